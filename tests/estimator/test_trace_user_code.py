"""Traces of models that users wrote themselves."""

import json
import re
import sys
from dataclasses import replace

import pytest

from estimator import WorkloadError, load_gpu
from estimator.cli import main
from estimator.tracing.models import TraceRequest
from estimator.tracing.torch_trace import trace_workload
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import workload_as_run
from tests.estimator.estimating import run
from tests.estimator.traced import need_torch, tally
from tests.processes import ended
from tests.words import one_line

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, about running models
need_torch()

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

def scripted():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.jit.script(torch.nn.Linear(8, 8))), torch.ones(2, 8)

def quantised():
    with torch.device("cpu"):
        return torch.nn.Sequential(torch.ao.nn.quantized.dynamic.Linear(8, 8)), torch.ones(2, 8)

def observed():
    return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(64, 64))), torch.ones(2, 64)

def chosen():
    class Choosing(torch.nn.Module):
        def forward(self, x):
            return x[torch.where(x > 3)]
    return Choosing(), (torch.ones(4),)

def sparse():
    return torch.nn.Embedding(100, 8, sparse=True), torch.ones(2, 4, dtype=torch.int64)

def wrong():
    return 3

def encoder(batch, sequence):
    return torch.nn.TransformerEncoderLayer(64, 4, batch_first=True), (torch.randn(batch, sequence, 64),)

def unfused(batch, sequence):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    attending, inputs = attends(batch, sequence)
    attending.forward = sdpa_kernel(SDPBackend.MATH)(attending.forward)
    return attending, inputs

def padded(batch, sequence):
    layers = torch.nn.TransformerEncoder(encoder(batch, sequence)[0], 1)
    hidden = torch.zeros(batch, sequence, dtype=torch.bool)
    return layers, {"src": torch.randn(batch, sequence, 64), "src_key_padding_mask": hidden}

def attends(batch, sequence, axes=4, mask=False):
    class Attending(torch.nn.Module):
        def forward(self, q, k, v):
            hidden = torch.zeros(sequence, sequence, dtype=q.dtype, device=q.device) if mask else None
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=hidden, is_causal=not mask)
    lead = (batch, 4)[: axes - 2]
    return Attending(), tuple(torch.randn(*lead, sequence, 64) for _ in range(3))

def flat(batch, sequence):
    return attends(batch, sequence, axes=3)

def first_queries(batch, sequence):
    attending, (query, *keys) = attends(batch, sequence)
    return attending, (query[:, :, :4], *keys)

def masked(batch, sequence):
    return attends(batch, sequence, mask=True)

def words():
    return torch.nn.Embedding(100, 8)

def fails():
    raise ValueError("line one\\nline two")

def heading():
    raise ValueError("what is wrong:\\n  a field")

def talks():
    print("said")
    return torch.nn.Linear(4, 4), (torch.randn(2, 4),)

def writes():
    import ctypes, os, threading
    os.write(1, b"from a file\\n")
    ctypes.CDLL(None).puts(b"from C")
    thread = threading.Thread(target=os.write, args=(1, b"from a thread\\n"))
    thread.start()
    thread.join()
    return talks()

def images(image, weight, groups=1, pixels=3):
    layers = torch.nn.Sequential(torch.nn.Conv2d(16, 16, pixels), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, groups=groups))
    return layers.to(memory_format=weight), (torch.randn(2, 16, 9, 9).to(memory_format=image),)

def drawn():
    class Drawn(torch.nn.Linear):
        def forward(self, x):
            mean, width = super().forward(x).chunk(2, -1)
            return torch.distributions.Normal(mean, width.exp()).rsample()
    return Drawn(8, 8), (torch.randn(2, 8),)

def enlarging():
    layers = [torch.nn.ConvTranspose2d(16, 16, 4, stride=2) for _ in range(2)]
    return torch.nn.Sequential(*layers), (torch.randn(2, 16, 9, 9),)

def sized(image_size=16):
    return torch.nn.Conv2d(3, 8, 1), (torch.randn(2, 3, image_size, image_size),)

def first():
    return images(torch.contiguous_format, torch.contiguous_format)

def last():
    return images(torch.channels_last, torch.channels_last)

def last_images():
    return images(torch.channels_last, torch.contiguous_format)

def last_weights():
    return images(torch.contiguous_format, torch.channels_last)

def grouped():
    return images(torch.contiguous_format, torch.contiguous_format, 4)

def mostly_grouped():
    return images(torch.contiguous_format, torch.contiguous_format, 4, 1)

class Widened(torch.nn.RMSNorm):
    def forward(self, tensor):
        return super().forward(tensor.float())

def norms(second=torch.nn.RMSNorm):
    return torch.nn.Sequential(torch.nn.RMSNorm(64), second(64)), (torch.randn(3, 7, 64),)

def widened_norms():
    return norms(Widened)

class Cast(torch.nn.Linear):
    def forward(self, x, enabled=True, device="cuda"):
        with torch.autocast(device or x.device.type, torch.float16, enabled):
            return super().forward(x)

def cast():
    return Cast(8, 8), torch.randn(2, 8)

def cast_there():
    return Cast(8, 8), {"x": torch.randn(2, 8), "device": ""}

def elsewhere():
    class Elsewhere(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.zeros(8, device="cpu")
    return Elsewhere(8, 8), torch.randn(2, 8)

def positions():
    class Positions(torch.nn.Embedding):
        def forward(self, x):
            return x + super().forward(torch.arange(4))
    return Positions(4, 8), torch.randn(2, 4, 8)

def uncast():
    return Cast(8, 8), {"x": torch.randn(2, 8), "enabled": False}

def recurrent():
    return torch.nn.Sequential(torch.nn.GRU(8, 8, batch_first=True)), (torch.randn(3, 2, 8),)

class Stored(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(48, 32).to(torch.float8_e4m3fn), requires_grad=False)

    def forward(self, x):
        one = torch.ones((), device=x.device)
        return torch._scaled_mm(x.to(torch.float8_e4m3fn), self.weight.t(), one, one, out_dtype=x.dtype)

def stored():
    from collections import UserDict
    return Stored(), UserDict(x=torch.randn(16, 32))

class Heads(torch.nn.Module):
    def __init__(self, summed):
        super().__init__()
        self.heads, self.summed = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(4)]), summed

    def forward(self, x):
        results = [head(x) for head in self.heads]
        if self.summed is None:
            return {"loss": results[0].mean(-1), "logits": results[1:]}
        return sum(results) if self.summed else dict(enumerate(results))

def heads(summed=False):
    return Heads(summed), (torch.randn(16, 64),)

def summed():
    return heads(True)

def lost():
    return heads(None)

TIED = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(3)])
TIED[1].weight = TIED[2].weight = TIED[0].weight
KEPT = TIED(torch.randn(16, 64))  # its graph refers to the weights

def tied():
    return TIED, (torch.randn(16, 64),)

def inlined():
    class Inlined(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = torch.nn.Parameter(torch.zeros(64, 64))

        def forward(self, x):
            return torch.nn.functional.linear(x, self.matrix)
    return Inlined(), (torch.randn(16, 64),)

def bags():
    return torch.nn.Sequential(torch.nn.EmbeddingBag(64, 64), torch.nn.Linear(64, 64, bias=False)), torch.ones(4, 8, dtype=torch.int64)

def spectrum():
    class Product(torch.nn.Module):
        def forward(self, a):
            return a @ a
    return Product(), (torch.zeros(2, 64, 64, dtype=torch.complex64),)

def powers():
    class Powers(torch.nn.Module):
        def forward(self, x):
            return torch.matrix_exp(x)
    return Powers(), torch.zeros(2, 8, 8)

def losing():
    class Losing(torch.nn.Module):
        @torch.inference_mode()
        def forward(self, x, y):
            lost = torch.nn.functional.binary_cross_entropy_with_logits(x, y)
            return lost, x.logsumexp(-1), torch.nn.functional.scaled_dot_product_attention(x, x, x)
    return Losing(), (torch.randn(2, 64, 96), torch.randn(2, 64, 96))

def total():
    return torch.nn.Linear(64, 4096, bias=False), (torch.randn(2048, 64),)
"""


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "lab.py"
    path.write_text(USER_CODE)
    return str(path)


@pytest.fixture
def traced(user_file):
    """Traces a function of the file."""
    return lambda function, **asked: trace_workload(TraceRequest(model=f"{user_file}:{function}", **asked))


def test_a_function_of_one_s_own_is_traced_in_both_directions(traced):
    asked = {"batch": 2, "sequence": 16, "attention": "flash"}
    workload = traced("build", **asked)
    assert tally(workload, "prefill", "linear", "conv2d") == {"prefill": 1, "linear": 2, "conv2d": 1}
    enlarging = next(operator for operator in workload.operators if operator.operator == "conv2d")
    assert (operator_work(enlarging).flop, enlarging.precision) == (2 * (2 * 8 * 8) * 3 * (8 * 2 * 2), "bf16")
    assert tally(traced("build", phase="train", **asked), "prefill")["prefill"] == 3.5


@pytest.mark.parametrize("allowed, precision", [(True, "tf32"), (False, "fp32")])
def test_convolutions_of_fp32_tensors_run_as_pytorch_is_told(traced, monkeypatch, allowed, precision):
    import torch

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    operators = traced("first", precision="fp32").operators
    found = {(one.family == "conv" or one.operator == "layout", one.precision) for one in operators}
    assert found == {(True, precision), (False, "fp32")}
    for phase in ("prefill", "train"):  # a transposed one beside layers
        operators = traced("build", precision="fp32", phase=phase).operators
        found = {(one.operator, one.precision) for one in operators if one.operator in ("conv2d", "linear", "bmm")}
        assert found == {("conv2d", precision), ("linear", "fp32")}


@pytest.mark.parametrize("allowed, precision", [(True, "tf32"), (False, "fp32")])
def test_products_of_fp32_tensors_run_as_pytorch_is_told(traced, allowed, precision):
    from torch.backends.cuda import matmul

    before, matmul.allow_tf32 = matmul.allow_tf32, allowed
    try:
        operators = traced("heads", precision="fp32").operators
    finally:
        matmul.allow_tf32 = before
    assert {one.precision for one in operators if one.family == "gemm"} == {precision}


@pytest.mark.parametrize(
    "function, asked, turned",
    [
        ("first", {}, 4),
        ("last", {}, 0),
        ("last_images", {}, 0),
        ("last_weights", {}, 1),
        ("first", {"channels_last": True}, 0),
        ("grouped", {"channels_last": True}, 0),
        ("first", {"runtime": "compiled"}, 1),
        ("grouped", {"runtime": "compiled"}, 1),
        ("mostly_grouped", {"runtime": "compiled"}, 4),
        ("mostly_grouped", {}, 4),
    ],
)
def test_images_stay_channels_last_from_convolution_to_convolution_as_on_a_gpu(traced, function, asked, turned):
    workload = traced(function, **asked)
    assert tally(workload, "conv2d", "layout") == {"conv2d": 2, "layout": turned}
    assert bool(workload.warnings) == ("grouped" in function and "channels_last" in asked)


def test_parameters_of_distributions_are_taken_as_valid(traced):
    assert traced("drawn", phase="train").unknown == ()


def test_convolutions_that_enlarge_images_alone_have_their_layouts(traced):
    assert [tally(traced("enlarging", channels_last=last), "layout")["layout"] for last in (False, True)] == [4, 0]


def test_traced_single_pixels_in_fp16_stay_as_they_lie_on_some_boards(traced):
    workload = traced("mostly_grouped", precision="fp16")
    assert [tally(workload_as_run(workload, load_gpu(gpu)), "layout") for gpu in ("a100", "rtx-3090")] == [{"layout": 4}, {"layout": 2}]


def test_grouped_convolutions_keep_a_compiled_training_step_channels_first(traced):
    assert tally(traced("grouped", runtime="compiled", phase="train"), "layout") == {"layout": 10}


def test_an_rms_norm_is_one_kernel_as_on_a_gpu(traced):
    workload = traced("norms")
    assert [(one.family, one.operator, one.shape) for one in workload.operators] == [("norm", "rmsnorm", (21.0, 64.0))]
    assert sum(workload.counts) == 2
    assert tally(traced("norms", phase="train"), "rmsnorm", "mean") == {"rmsnorm": 2, "mean": 0}
    mixed = traced("widened_norms")  # weights in 16 bits, numbers in 32
    assert tally(mixed, "rmsnorm", "mean") == {"rmsnorm": 1, "mean": 1}


@pytest.mark.parametrize(
    "function, precision, fused",
    [
        ("attends", "bf16", 1),
        ("attends", "tf32", 1),
        ("encoder", "fp16", 1),
        ("masked", "bf16", 1),
        ("padded", "bf16", 1),
        ("unfused", "bf16", 0),
        ("attends", "fp64", 0),
        ("flat", "bf16", 0),
    ],
)
def test_attention_that_pytorch_fuses_on_a_gpu_is_fused_unless_asked_otherwise(traced, function, precision, fused):
    asked = {"batch": 2, "sequence": 16, "precision": precision}
    workload, eager = traced(function, **asked), traced(function, attention="eager", **asked)
    assert tally(workload, "prefill", "bmm", "softmax") == {"prefill": fused, "bmm": 2 - 2 * fused, "softmax": 1 - fused}
    assert workload.name.endswith("-flash" if fused else "-eager")
    assert tally(eager, "prefill", "bmm", "softmax") == {"prefill": 0, "bmm": 2, "softmax": 1}


def test_few_queries_of_causal_attention_see_the_first_keys(traced):
    (one,) = traced("first_queries", batch=2, sequence=16).operators
    assert (one["queries"], one["context"], one["causal"]) == (4, 4, 1)


@pytest.mark.parametrize("command", [("trace",), ("sweep", "--bundle", "a10-eager", "--json", "--freqs", "900", "--model")])
def test_what_its_code_writes_past_python_stays_out_of_the_answer(user_file, capfd, command):
    assert main([*command, f"{user_file}:writes"]) in (0, 3)
    out, err = capfd.readouterr()
    json.loads(out)
    assert all(word in err for word in ("said", "from a file", "from C", "from a thread"))


def test_a_closed_stderr_breaks_no_trace(user_file, tmp_path):
    trace = f"import sys; from estimator.cli import main; sys.exit(main(['trace', '{user_file}:writes']))"
    shell = f'"{sys.executable}" -c "{trace}" 2>&- >{tmp_path}/w.json'
    assert ended("/bin/sh", "-c", shell).returncode == 0
    assert json.loads((tmp_path / "w.json").read_text())["format"] == "wattprint-workload"


@pytest.mark.parametrize(
    "function, told",
    [
        ("recurrent", "recurrent layers are"),
        ("cast", "torch.autocast of its code"),
        ("cast_there", "torch.autocast of its code"),
        ("uncast", ""),
    ],
)
def test_what_a_trace_of_a_layer_cannot_hold_is_a_warning(user_file, function, told):
    status, out, err = run(f"trace {user_file}:{function}")
    assert (status, [line.split(": ", 1)[1].startswith(told) for line in err.splitlines() if "warning" in line]) == (0, [True] * bool(told))
    assert [line.startswith(told) for line in json.loads(out).get("warnings", [])] == [True] * bool(told)


def test_every_result_of_a_training_step_has_a_gradient(traced):
    """As many products and moments of the optimizer as where one sum is the result."""
    several, one = (traced(function, phase="train") for function in ("heads", "summed"))
    assert tally(several, "linear") == tally(one, "linear")
    assert several.footprint.optimizer_byte == one.footprint.optimizer_byte


def test_a_loss_of_each_example_is_summed_and_other_results_beside_it_have_no_gradient(traced):
    assert tally(traced("lost", phase="train"), "linear") == {"linear": 4 + 1}


@pytest.mark.parametrize("weights, byte", [("", 2.0), ("int8", 1.0), ("int4", 0.5)])
@pytest.mark.parametrize("function, wide_byte", [("tied", 0.0), ("inlined", 0.0), ("bags", 2.0)])
def test_weights_of_products_are_stored_narrow_and_once_and_tables_stay(traced, function, wide_byte, weights, byte):
    """Those of layers that share them, of a function's own product, and of bags of embeddings beside a layer."""
    assert traced(function, weights=weights).footprint.weights_byte == pytest.approx(64 * 64 * (byte + wide_byte), rel=0.1)


def test_a_product_of_complex_numbers_has_four_real_ones(traced):
    (product,) = traced("spectrum", precision="fp32").operators
    assert (product.precision, operator_work(product).flop) == ("fp32", 4 * 2 * 2 * 64**3)


def test_a_compiled_sum_keeps_the_gpu_as_busy_as_an_eager_one(traced):
    """A kernel that writes one number may read in as many blocks as a sum."""
    eager, compiled = (traced("total", phase="train", runtime=runtime) for runtime in ("eager", "compiled"))
    (one,) = (one for one in compiled.operators if one.family == "reduction")
    assert one in [replace(other, origin=one.origin, host_share=one.host_share) for other in eager.operators]


def test_what_a_kernel_is_given_twice_is_read_once(traced):
    """AdamW's average of squared gradients reads itself and the gradients."""
    reads = {one["reads"] for one in traced("total", phase="train").operators if one.operator == "other"}
    assert {2 * 64 * 4096, 3 * 64 * 4096} <= reads


def test_compositions_launch_what_they_are_made_of(traced):
    """Of the loss a difference, two products and a sigmoid; of logsumexp differences and powers; of attention that no row is hidden."""
    found = tally(traced("losing", precision="fp64"), "sum", "mean", "max", "softmax", "where", "bmm")
    assert found == {"sum": 1, "mean": 1, "max": 2, "softmax": 1, "where": 1, "bmm": 2}


def test_weights_in_8_bits_stay_so_and_inputs_are_any_mapping(traced):
    assert {one.precision for one in traced("stored").operators if one.family == "gemm"} == {"fp8"}


def test_a_file_finds_the_modules_beside_it_and_its_own_annotations(tmp_path):
    (tmp_path / "beside_it.py").write_text("import torch\nclass Beside(torch.nn.Linear): pass\n")
    lines = ["from __future__ import annotations", "from dataclasses import dataclass", "import torch", "from beside_it import Beside"]
    lines += ["@dataclass", "class Sizes:", "    width: int = 32"]
    lines += ["def build():", "    return Beside(Sizes().width, 48), torch.randn(2, 32)"]
    (tmp_path / "own.py").write_text("\n".join(lines))
    found = trace_workload(TraceRequest(model=f"{tmp_path / 'own.py'}:build"))
    assert [one.shape[2:] for one in found.operators if one.family == "gemm"] == [(48, 32)]
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("asked, size", [({}, 16), ({"image_size": 32}, 32)])
def test_a_size_of_images_that_is_not_asked_for_is_that_of_the_function(traced, asked, size):
    (pixels,) = {one.shape[2] for one in traced("sized", **asked).operators if one.family == "conv"}
    assert pixels == size


def test_a_module_without_inputs_is_given_tokens(traced):
    assert tally(traced("words", batch=2, sequence=16), "gather") == {"gather": 1}


@pytest.mark.parametrize(
    "model, changes, expected",
    [
        ("FILE:decides", {}, "decides by the content of a tensor"),
        ("FILE:wrong", {}, "must return a torch.nn.Module"),
        ("FILE:scripted", {}, "torch.jit or torch.ao hides a part of it; return the model before it (--weights)"),
        ("FILE:quantised", {}, "torch.jit or torch.ao hides a part of it"),
        ("FILE:observed", {}, "take out what reads them, quantise by --weights"),
        ("FILE:chosen", {}, "take out what reads them, quantise by --weights"),
        ("FILE:sparse", {"phase": "train"}, "make them dense"),
        ("FILE:elsewhere", {}, "take .cuda() and fixed devices out"),
        ("FILE:positions", {}, "aten.embedding has no indices on the model's device: make it there (device=x.device)"),
        ("FILE:words", {"weights": "fp8"}, "has no layers or experts that fp8 takes"),
        ("FILE:powers", {}, "launches nothing that is known (aten.linalg_matrix_exp)"),
        ("FILE:missing", {}, "nothing to call"),
        ("FILE:fails", {}, "ValueError: line one"),
        ("FILE:heading", {}, "ValueError: what is wrong: a field"),
        ("nowhere.py:build", {}, "no such file"),
        ("no_such_module_here:build", {}, "No module named"),
        ("FILE:build", {"phase": "decode"}, "decodes where its inputs say so"),
        ("FILE:build", {"settings": {"a": 1}}, "no configuration to change"),
        ("gpt2", {"sequence": 2048}, "= 1024; ask for less, or `estimate trace --set max_position_embeddings=2048`"),
        ("gpt2", {"settings": {"layers": 3}}, "no field 'layers'"),
        ("gpt2", {"settings": {"n_head": 7}}, "cannot be traced"),
        ("bert-large", {"phase": "decode"}, "keeps no cache"),
        ("resnet-101", {"phase": "decode"}, "has no cache"),
        ("vit-base-16", {"image_size": 8}, "cannot be traced"),
        ("gpt2", {"settings": {"n_layer": "many"}}, "cannot be traced"),
    ],
)
def test_what_cannot_be_traced_is_said_in_one_line(user_file, model, changes, expected):
    with one_line(WorkloadError, match=re.escape(expected)):
        trace_workload(TraceRequest(model=model.replace("FILE", user_file), **changes))
