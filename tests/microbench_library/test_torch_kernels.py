"""PyTorch's kernels compute what their operators say, on the CPU; skipped where PyTorch is not installed."""

import importlib.util

import numpy as np
import pytest

from estimator import make_operator
from estimator.vocabulary.work import operator_work
from microbench.errors import DeviceLostError, KernelFailedError, UnsupportedError
from microbench.runners.torch_device import TorchDevice, load_torch
from microbench.runners.torch_kernels import BACKENDS, torch_kernel
from tests.collector.dataset_rows import product
from tests.microbench_library.host_values import attended, host_values, layernorm, reference_product, softmax

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")

HOPPER = 9.0


@pytest.fixture(scope="module")
def device():
    return TorchDevice(load_torch(), "cpu")


def rmsnorm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def convolved(x, weight):
    """3 × 3, stride 2, padding 1."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    return np.einsum("bchwij,fcij->bfhw", windows, weight)


def rows(family, name, precision="fp32", **more):
    return make_operator(family, name, precision, rows=24, dim=40, **more)


def flat(name, reads, elements=360, family="elementwise", **more):
    return make_operator(family, name, "fp32", elements=elements, reads=reads, **more)


CONVOLUTION = {"batch": 2, "channels": 4, "height": 9, "width": 7, "filters": 6, "kernel_h": 3, "kernel_w": 3, "stride": 2, "padding": 1}
ATTENTION = {"batch": 2, "heads": 4, "head_dim": 8, "window": 0}

CASES = [
    (rows("softmax", "softmax"), softmax),
    (rows("norm", "layernorm"), layernorm),
    (rows("norm", "rmsnorm"), rmsnorm),
    (rows("norm", "batchnorm"), lambda x, mean, spread, weight, bias: (x - mean) / np.sqrt(spread**2 + 1 + 1e-5) * weight + bias),
    (rows("reduction", "sum"), lambda x: x.sum(-1)),
    (rows("reduction", "mean"), lambda x: x.mean(-1)),
    (flat("add", 380), lambda x, y: x + y),
    (flat("mul", 360), lambda x, y: x * y),
    (flat("pow", 720), lambda x, y: np.abs(x) ** y),
    (flat("silu", 360), lambda x: x / (1 + np.exp(-x))),
    (flat("typecast", 360, precision_out="fp64"), lambda x: x),
    (flat("where", 360), lambda x: np.where(x > 0, x, 0)),
    (flat("transpose", 360, family="copy"), lambda x: x.T),
    (flat("contiguous", 384, 384, family="copy"), lambda x: np.swapaxes(x, 0, 1)),
    (flat("layout", 360, family="copy"), lambda x: x),
    (flat("cat", 360, family="copy"), lambda x, y: np.concatenate((x, y))),
    (make_operator("conv", "conv2d", "fp32", groups=1, **CONVOLUTION), convolved),
    (make_operator("attention", "prefill", "fp32", queries=12, context=12, kv_heads=4, causal=0, **ATTENTION), attended),
    (make_operator("attention", "decode", "fp32", queries=1, context=20, kv_heads=2, causal=1, **ATTENTION), attended),
]


def launched(operator, device, sets=1):
    """A kernel that ran on every buffer set."""
    bound = torch_kernel(operator, device, HOPPER, "math").bind(sets, 5)
    for launch in bound.launches:
        launch()
    return bound


@pytest.mark.parametrize("operator, reference", CASES, ids=lambda case: getattr(case, "operator", ""))
def test_a_kernel_computes_its_operator_from_operands_as_large_as_it_counts(operator, reference, device):
    bound = launched(operator, device, 2)
    (first, *_), _ = host_values(bound, 0)
    for index in range(2):
        inputs, output = host_values(bound, index)
        assert output.reshape(-1) == pytest.approx(reference(*inputs).reshape(-1), rel=2e-4, abs=2e-5)
    assert not np.array_equal(first, inputs[0])
    bound.launches[0]()
    assert np.array_equal(first, host_values(bound, 0)[0][0]), "operands keep their place from launch to launch"
    # Inputs and output together are the bytes by which campaigns are planned, weights and statistics of norms aside.
    moved = 4 * sum(x.size for x in inputs) + (8 if operator.precision_out == "fp64" else 4) * output.size
    assert moved == pytest.approx(sum(operator_work(operator)[1:]), rel=0.12)


def test_causal_prefill_sees_no_later_token_and_gathered_rows_are_all_the_rows(device):
    prefill = make_operator("attention", "prefill", "fp32", queries=6, context=6, kv_heads=4, causal=1, **ATTENTION)
    inputs, output = host_values(launched(prefill, device), 0)
    assert output[:, :, 0] == pytest.approx(inputs[2][:, 0], rel=1e-5)
    inputs, output = host_values(launched(flat("gather", 360, family="copy"), device), 0)
    assert sorted(map(tuple, output)) == sorted(map(tuple, inputs[0]))


def test_an_fp8_product_has_the_result_that_the_card_is_checked_against(device):
    """The same sizes as on the card (tests/hardware); its operands have no batch."""
    inputs, output = host_values(launched(product(208, 336, 528, "fp8"), device), 0)
    wanted = reference_product(inputs, "tn")
    assert output.shape == wanted.shape
    assert np.abs(output - wanted).max() <= 2.0**-8 * np.abs(wanted).max()  # bf16


def attention(precision="bf16", queries=8, context=8, causal=0, **more):
    return make_operator("attention", "prefill", precision, queries=queries, context=context, kv_heads=4, causal=causal, **ATTENTION | more)


@pytest.mark.parametrize(
    "operator, words",
    [
        (attention(queries=64, context=64, causal=1, window=16), "window"),
        (attention(queries=16, context=64, causal=1), "causal"),
        (attention(precision_kv="fp8"), "one precision"),
        (attention(head_dim=512), "512"),
        (flat("add", 500), "divide"),
        (flat("other", 360), "no single kernel"),
        (rows("reduction", "moments"), "no single kernel"),
        (flat("cat", 700, family="copy"), "reads what it writes"),
        (flat("transpose", 359, 359, family="copy"), "cannot be laid out"),  # a prime: one row, whose transpose is a view
        (flat("contiguous", 359, 359, family="copy"), "cannot be laid out"),
        (flat("typecast", 360), "to itself"),
        (rows("softmax", "softmax", "fp8"), "fp8"),
        (product(8, 24, 32, "fp8"), "multiples of 16"),
    ],
)
def test_what_pytorch_lacks_is_refused_by_name(operator, words, device):
    with pytest.raises(UnsupportedError, match=words):
        torch_kernel(operator, device, HOPPER, "flash")


def test_an_unknown_attention_backend_is_refused_with_the_known_ones(device):
    with pytest.raises(UnsupportedError, match="flash, cudnn, efficient, math"):
        torch_kernel(attention(), device, HOPPER, "fast")
    for name, _ in BACKENDS.values():
        assert hasattr(device.torch.nn.attention.SDPBackend, name)


@pytest.mark.parametrize(
    "message, error",
    [
        ("CUDA error: an illegal memory access was encountered", DeviceLostError),
        ("mat1 and mat2 shapes cannot be multiplied", KernelFailedError),
    ],
)
def test_pytorchs_messages_become_the_errors_they_stand_for(message, error, device):
    with pytest.raises(error, match="adding: "), device.errors("adding"):
        raise RuntimeError(message)
