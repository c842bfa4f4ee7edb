"""`estimate trace` from words to text and exit status; what needs PyTorch is skipped without it."""

import json
from dataclasses import replace
from functools import partial

import pytest

from estimator import Sizes, WorkloadError, read_workload
from estimator.tracing.models import TraceRequest, checked_request, load_model_config, model_names
from estimator.transforms.rescaling import sizes_in_name
from tests.estimator.estimating import fails, printed
from tests.estimator.estimating import run as estimate
from tests.estimator.traced import need_torch
from tests.processes import PYTHON, ended

SMALL = "--set n_layer=1 --set n_embd=64 --set n_head=4 --set vocab_size=100 --sequence 16"


run = partial(estimate, "trace")


def lines(text):
    return len(text.strip().splitlines())


# Without PyTorch ------------------------------------------------------------------------------------------------------


def test_the_list_names_every_shipped_model():
    assert [line.split()[0] for line in run("--list")[1].splitlines()[1:]] == list(model_names())
    assert [row["name"] for row in printed("trace --list")] == list(model_names())


@pytest.mark.parametrize("name, near", [("gpt9", "nearest: gpt2"), ("ResNet50", "nearest: resnet-50"), ("∞", "file; known: `estimate")])
def test_an_unknown_model_is_refused_with_the_nearest_ones(name, near):
    assert near in fails(f"trace {name}")


@pytest.mark.parametrize(
    "words",
    [
        "", "gpt2 --batch 0", "gpt2 --sequence 1e9", "gpt2 --phase nap", "gpt2 --attention ring", "gpt2 --set n_layer",
        "gpt2 --set a=1 --set a=2", "''", "gpt2 -o ''", "gpt2 --image-size 0",
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_2(words):
    fails(f"trace {words}", status=2)


def test_without_pytorch_one_line_says_what_to_install():
    hidden = "import sys; sys.modules['torch'] = None; from estimator.cli import main; sys.exit(main(['trace', 'gpt2']))"
    done = ended(*PYTHON, hidden)
    assert (done.returncode, done.stdout, lines(done.stderr)) == (1, "", 1)
    assert "pip install 'wattprint[torch]'" in done.stderr


@pytest.mark.parametrize(
    "content, expected",
    [
        ("", "no configuration of Transformers: not valid JSON"),
        ('{"n_layer": 2}', "lacks the field 'model_type'"),
        ('{"model_type": 7}', "model_type must be a text"),
        ('{"model_type": "gpt2", "architectures": "GPT2Model"}', "architectures must be a list"),
        (" " * (2 << 20), "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_its_fault(tmp_path, content, expected):
    path = tmp_path / "config.json"
    path.write_text(content)
    for name in (path, tmp_path):
        with pytest.raises(WorkloadError, match=expected) as caught:
            load_model_config(str(name))
        assert "config.json" in str(caught.value)


def test_a_configuration_file_keeps_its_fields_and_leaves_weights_and_code_alone(tmp_path):
    path = tmp_path / "config.json"
    document = {
        "model_type": "gpt2",
        "architectures": ["GPT2Model"],
        "n_layer": 3,
        "torch_dtype": "float32",
        "auto_map": {"AutoModel": "x.y"},
    }
    path.write_text(json.dumps(document))
    config = load_model_config(str(path))
    assert (config.model_type, config.architecture, dict(config.config)) == ("gpt2", "GPT2Model", {"n_layer": 3})
    for weights, precision in (({"dtype": "float16"}, "fp16"), ({"dtype": "auto"}, ""), ({}, "")):
        assert replace(config, weights=weights).precision == precision
    narrow = {"torch_dtype": "float8_e4m3fn"}
    assert replace(config, weights=narrow | {"quantization_config": {"quant_method": "fp8"}}).precision == ""
    with pytest.raises(WorkloadError, match="torch_dtype = 'float8_e4m3fn' is no type of a model"):
        replace(config, weights=narrow).precision  # noqa: B018
    assert config.precision == "fp32"


@pytest.mark.parametrize("name", model_names())
def test_every_shipped_configuration_is_whole(name):
    config = load_model_config(name)
    assert config.title
    assert config.architecture.lower().replace("_", "").startswith(config.model_type.removesuffix("_text").replace("_", ""))


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 0}, {"batch": True}, {"sequence": 10**9}, {"phase": "decode", "sequence": 1}, {"precision": "fp7"}, {"attention": "x"},
        {"phase": "train", "precision": "fp8"}, {"logits": "none"}, {"image_size": -1},
    ],
)  # fmt: skip
def test_an_impossible_request_is_refused_by_its_field(changes):
    with pytest.raises(WorkloadError) as caught:
        checked_request(TraceRequest(model="gpt2", **changes))
    assert any(str(name) in str(caught.value) or str(value) in str(caught.value) for name, value in changes.items())


def test_a_name_states_the_sizes_that_the_inputs_have_and_no_others():
    request = TraceRequest(model="a/b/config.json", precision="bf16", attention="eager")
    names = [request.label(sizes) for sizes in ({"batch": 3, "sequence": 7}, {"batch": 3}, {})]
    assert names == ["b-prefill-b3-s7-bf16-eager", "b-prefill-b3-bf16-eager", "b-prefill-bf16-eager"]
    assert [sizes_in_name(name) for name in names] == [Sizes(batch=3, sequence=7), Sizes(batch=3, sequence=0), None]
    assert TraceRequest(model="r", image_size=96, precision="bf16", attention="eager").label({"batch": 1}) == "r-prefill-b1-i96-bf16-eager"


# With PyTorch ---------------------------------------------------------------------------------------------------------


def test_a_trace_on_stdout_is_a_workload_that_the_estimator_reads(tmp_path):
    need_torch()
    status, out, err = run("gpt2", SMALL)
    assert status == 0
    assert "note: traced on the meta device" in err
    assert "--attention flash" in err
    path = tmp_path / "w.json"
    path.write_text(out)
    assert read_workload(path).name == "gpt2-prefill-b1-s16-fp32-eager"  # as its weights are stored
    assert printed(path, "--bundle a100-pcie-40gb-eager")["latency_s"] > 0.0


@pytest.mark.parametrize("words", ["", "--phase decode", "--phase train", "--phase train --runtime compiled", "--weights int4"])
def test_a_file_of_a_trace_has_the_answer_of_its_model(tmp_path, words):
    need_torch()
    path, asked = tmp_path / "w.json", f"{words} --batch 2 --sequence 16 --attention flash"
    assert run("gpt2", asked, f"-o {path}").status == 0
    file, model = (
        printed(path, "--gpu a100"),
        printed("--model gpt2", asked, "--gpu a100", *[] if "runtime" in words else ["--runtime eager"]),
    )
    assert [file[name] for name in ("latency_s", "power_w", "energy_j")] == [model[name] for name in ("latency_s", "power_w", "energy_j")]


def test_operators_that_cannot_be_modelled_are_said_and_end_in_3(tmp_path):
    need_torch()
    lab = tmp_path / "lab.py"
    lab.write_text(
        "import torch\n\nclass Spectrum(torch.nn.Module):\n    def forward(self, x):\n        return torch.fft.fft(x).real + 1\n\n"
        "def build():\n    return Spectrum(), (torch.zeros(4, 16, dtype=torch.complex64),)\n"
    )
    status, out, err = run(f"{lab}:build")
    assert status == 3
    assert "aten._fft_c2c ×1" in err
    assert [(item["name"], item["count"]) for item in json.loads(out)["unknown"]] == [("aten._fft_c2c", 1)]


LAB = """
import torch

def fixed():
    return torch.nn.Linear(8, 8), (torch.zeros(3, 8),)

def images(batch):
    return torch.nn.Conv2d(3, 4, 3), (torch.zeros(batch, 3, 16, 16),)

def tokens():
    return torch.nn.Embedding(100, 8)

def lstm(batch, sequence):
    return torch.nn.LSTM(8, 16, batch_first=True), (torch.zeros(batch, sequence, 8),)

def ends():
    raise SystemExit(0)
"""


@pytest.fixture
def lab(tmp_path):
    path = tmp_path / "lab.py"
    path.write_text(LAB)
    return path


def test_sizes_that_the_inputs_have_not_are_neither_named_nor_taken(lab):
    need_torch()
    for words, sizes in (("fixed", ""), ("images --batch 2", "-b2"), ("tokens --sequence 4", "-b1-s4")):
        assert printed(f"trace {lab}:{words}")["name"] == f"lab.py:{words.split()[0]}-prefill{sizes}-bf16-eager"
    for words, missing in (("fixed --batch 2", "batch"), ("images --sequence 9", "sequence"), ("fixed --image-size 9", "image-size")):
        assert f"leave --{missing} out" in fails(f"trace {lab}:{words}")
    assert "leave --image-size out" in fails("trace gpt2", SMALL, "--image-size 9")
    assert "leave --channels-last out" in fails("trace gpt2", SMALL, "--channels-last")


def test_splits_launch_nothing_and_code_that_ends_the_program_is_one_line(lab):
    need_torch()
    assert printed(f"trace {lab}:lstm --batch 2 --sequence 3").get("unknown", []) == []
    assert "its code ends the program" in fails(f"trace {lab}:ends")
