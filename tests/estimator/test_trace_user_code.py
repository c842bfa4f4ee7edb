"""Traces of models that users wrote themselves."""

import json
import re

import pytest

from estimator.cli import main
from estimator.errors import WorkloadError
from estimator.trace import trace_workload
from estimator.tracing.request import TraceRequest
from tests.estimator.traced import REASON, tally

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, about running models
pytest.importorskip("torch", reason=REASON, exc_type=ImportError)
pytest.importorskip("transformers", reason=REASON, exc_type=ImportError)

USER_CODE = """
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(32, 32)
        self.layer = torch.nn.Linear(32, 48)
        self.conv = torch.nn.ConvTranspose2d(3, 8, 2, stride=2)

    def forward(self, x, image=None):
        x = self.first(x)
        x = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return self.layer(x).sum() + (0 if image is None else self.conv(image).sum())

def build(batch, sequence):
    return Small(), {"x": torch.randn(batch, 4, sequence, 32), "image": torch.randn(batch, 3, 8, 8)}

def decides():
    class Deciding(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 3 else x
    return Deciding(), (torch.ones(4),)

def wrong():
    return 3

def encoder(batch, sequence):
    return torch.nn.TransformerEncoderLayer(64, 4, batch_first=True), (torch.randn(batch, sequence, 64),)

def words():
    return torch.nn.Embedding(100, 8)

def fails():
    raise ValueError("line one\\nline two")

def heading():
    raise ValueError("what is wrong:\\n  a field")

def talks():
    print("said")
    return torch.nn.Linear(4, 4), (torch.randn(2, 4),)

def recurrent():
    return torch.nn.Sequential(torch.nn.GRU(8, 8)), (torch.randn(3, 2, 8),)
"""


@pytest.fixture
def user_file(tmp_path) -> str:
    path = tmp_path / "lab.py"
    path.write_text(USER_CODE)
    return str(path)


def test_a_function_of_one_s_own_is_traced_in_both_directions(user_file):
    request = TraceRequest(model=f"{user_file}:build", batch=2, sequence=16, attention="flash")
    workload = trace_workload(request)
    assert tally(workload, "prefill", "linear", "bmm") == {"prefill": 1, "linear": 2, "bmm": 1}
    product = next(operator for operator in workload.operators if operator.operator == "bmm")
    assert product.shape == (1, 2 * 8 * 8, 3, 8 * 2 * 2)
    assert product.precision == "bf16"
    step = trace_workload(TraceRequest(model=f"{user_file}:build", batch=2, sequence=16, attention="flash", phase="train"))
    assert tally(step, "prefill")["prefill"] == 3.5


@pytest.mark.parametrize(("phase", "attention"), [("prefill", 1), ("train", 3.5)])
def test_attention_inside_pytorch_s_own_layers_is_fused(user_file, phase, attention):
    workload = trace_workload(TraceRequest(model=f"{user_file}:encoder", batch=2, sequence=16, attention="flash", phase=phase))
    assert tally(workload, "prefill", "bmm", "softmax") == {"prefill": attention, "bmm": 0, "softmax": 0}


def test_what_a_model_prints_stays_out_of_the_workload(user_file, capsys):
    assert main(["trace", f"{user_file}:talks"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["format"] == "wattprint-workload"
    assert "said" in err


def test_a_recurrent_layer_is_said_to_be_overstated(user_file, capsys):
    assert main(["trace", f"{user_file}:recurrent"]) == 3
    out, err = capsys.readouterr()
    assert "warning: recurrent layers" in err
    assert "recurrent layers" in json.loads(out)["warnings"][0]


def test_a_module_without_inputs_is_given_tokens(user_file):
    workload = trace_workload(TraceRequest(model=f"{user_file}:words", batch=2, sequence=16))
    assert tally(workload, "gather") == {"gather": 1}


@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        ("FILE:decides", {}, "decides by the content of a tensor"),
        ("FILE:wrong", {}, "must return a torch.nn.Module"),
        ("FILE:missing", {}, "nothing to call"),
        ("FILE:fails", {}, "ValueError: line one"),
        ("FILE:heading", {}, "ValueError: what is wrong: a field"),
        ("nowhere.py:build", {}, "no such file"),
        ("no_such_module_here:build", {}, "No module named"),
        ("FILE:build", {"phase": "decode"}, "decodes where its inputs say so"),
        ("FILE:build", {"settings": {"a": 1}}, "no configuration to change"),
        ("gpt2", {"sequence": 2048}, "longer than max_position_embeddings = 1024"),
        ("gpt2", {"settings": {"layers": 3}}, "no field 'layers'"),
        ("gpt2", {"settings": {"n_head": 7}}, "cannot be traced"),
        ("bert-large", {"phase": "decode"}, "keeps no cache"),
        ("resnet-101", {"phase": "decode"}, "has no cache"),
        ("vit-base-16", {"image_size": 8}, "cannot be traced"),
        ("gpt2", {"settings": {"n_layer": "many"}}, "cannot be traced"),
    ],
)
def test_what_cannot_be_traced_is_said_in_one_line(user_file, model, changes, expected):
    with pytest.raises(WorkloadError, match=re.escape(expected)) as caught:
        trace_workload(TraceRequest(model=model.replace("FILE", user_file), **changes))
    assert "\n" not in str(caught.value)
