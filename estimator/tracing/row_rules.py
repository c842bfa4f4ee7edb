"""Softmax, normalisations, reductions, pooling and losses from the calls that ask for them."""

import math
from collections.abc import Callable
from typing import Final

from estimator.forms.host_shares import INNER, LAYER, LIGHT
from estimator.quantities import BYTES_PER_ELEMENT
from estimator.tracing.calls import Call, Tensor
from estimator.tracing.making import Part, moved, read_elements, rows_of, stored_bytes
from estimator.workload import TRACED

BACKWARD: Final = f"{TRACED}:backward"


def _softmax(call: Call) -> list[Part]:
    tensor = call.tensor("self")
    dim = tensor.shape[int(call.number("dim", -1))] if tensor.shape else 1  # type: ignore[arg-type]
    return [rows_of("softmax", "softmax", tensor.precision, tensor.elements // dim, dim, out=call.outputs[0].precision)]


def _layer_norm(name: str) -> Callable[[Call], list[Part]]:
    def rule(call: Call) -> list[Part]:
        tensor = call.tensor("input")
        axes = call.number("normalized_shape", ())
        dim = math.prod(axes) if isinstance(axes, tuple) else int(axes)
        return [rows_of("norm", name, tensor.precision, tensor.elements // dim, dim, out=call.outputs[0].precision)]

    return rule


def _group_norm(call: Call) -> list[Part]:
    tensor = call.tensor("input")
    rows = int(call.number("N", tensor.shape[0])) * int(call.number("group", 1))  # type: ignore[arg-type]
    return [rows_of("norm", "layernorm", tensor.precision, rows, tensor.elements // rows)]


def _batch_norm(call: Call) -> list[Part]:
    """A scale and a shift for each channel; in training the statistics are gathered first."""
    tensor = call.tensor("input")
    channels = tensor.shape[1]
    rows = tensor.elements // channels
    apply = rows_of("norm", "batchnorm", tensor.precision, rows, channels, share=LIGHT)
    if not (call.number("training", False) or call.number("train", False)):
        return [apply]
    return [rows_of("reduction", "mean", tensor.precision, channels, rows, share=INNER), apply]


def _norm_backward(call: Call) -> list[Part]:
    """The gradient of the input, from that of the output and the input; sums over the rows for scale and shift."""
    gradient, tensor = call.tensor("grad_out"), call.tensor("input")
    axes = call.number("normalized_shape", ())
    dim = math.prod(axes) if isinstance(axes, tuple) and axes else tensor.shape[1]
    rows = tensor.elements // dim
    return [
        moved("elementwise", "other", tensor.precision, tensor.elements, gradient.elements + tensor.elements, share=LAYER, origin=BACKWARD),
        rows_of("reduction", "sum", tensor.precision, 2 * dim, rows, share=INNER, origin=BACKWARD),
    ]


def _two_tensors(call: Call) -> list[Part]:
    """A gradient that is computed place by place from the tensors that come in (softmax, pooling, loss)."""
    out = call.outputs[0]
    precision = call.largest.precision
    return [moved("elementwise", "other", precision, out.elements, read_elements(call, precision), out=out.precision, origin=BACKWARD)]


def _reduction(name: str) -> Callable[[Call], list[Part]]:
    def rule(call: Call) -> list[Part]:
        return _reduced(name, call.largest, call.outputs)

    return rule


def _reduced(name: str, tensor: Tensor, outputs: tuple[Tensor, ...]) -> list[Part]:
    out = outputs[0]
    rows = max(out.elements, 1)
    return [rows_of("reduction", name, tensor.precision, rows, max(tensor.elements // rows, 1), share=INNER, out=out.precision)]


def _ranked(call: Call) -> list[Part]:
    """The largest few of each row: a reduction that reads the row once."""
    tensor = call.tensor("self")
    dim = tensor.shape[int(call.number("dim", -1))] if tensor.shape else 1  # type: ignore[arg-type]
    return [rows_of("reduction", "max", tensor.precision, tensor.elements // dim, dim, share=LIGHT)]


SHORT_SORT: Final = 4096
"""Rows up to this length PyTorch sorts within one block of threads.  Source: ATen, native/cuda/Sort.cpp."""


def _sorted(call: Call) -> list[Part]:
    """Values are copied and their places numbered; then a short row is sorted at once, a longer one by a pass for each byte of a key."""
    tensor = call.tensor("self")
    dim = tensor.shape[int(call.number("dim", -1))] if tensor.shape else 1  # type: ignore[arg-type]
    places, width = call.outputs[-1], BYTES_PER_ELEMENT[tensor.precision]
    pairs = tensor.elements + stored_bytes((places,)) / width
    return [
        moved("copy", "contiguous", tensor.precision, tensor.elements, tensor.stored),
        moved("elementwise", "other", places.precision, places.elements, 1.0, share=INNER),
        moved("elementwise", "other", tensor.precision, pairs, pairs, share=INNER, times=1.0 if dim <= SHORT_SORT else width),
    ]


def _loss(call: Call) -> list[Part]:
    """One value picked from each row, and their mean."""
    tensor, target = call.tensor("self"), call.tensor("target")
    return [rows_of("reduction", "mean", tensor.precision, 1, max(target.elements, 1), share=LIGHT)]


def _pool(call: Call) -> list[Part]:
    tensor = call.tensor("self")
    return [moved("elementwise", "pool", tensor.precision, call.outputs[0].elements, tensor.elements)]


SUMS: Final = ("sum", "nansum", "prod", "norm", "linalg_vector_norm", "logsumexp", "count_nonzero", "histc", "bincount")
MEANS: Final = ("mean", "var", "std", "var_mean", "std_mean")
EXTREMES: Final = ("amax", "amin", "max", "min", "argmax", "argmin", "all", "any", "aminmax")
POOLS: Final = (
    "max_pool2d_with_indices",
    "avg_pool2d",
    "_adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "max_pool3d_with_indices",
    "avg_pool3d",
)
GRADIENTS: Final = (
    "_softmax_backward_data", "_log_softmax_backward_data", "nll_loss_backward", "nll_loss2d_backward", "avg_pool2d_backward",
    "max_pool2d_with_indices_backward", "_adaptive_avg_pool2d_backward", "native_dropout_backward", "native_group_norm_backward",
    "hardtanh_backward", "softplus_backward", "leaky_relu_backward", "elu_backward", "hardswish_backward", "hardsigmoid_backward",
    "mish_backward", "logit_backward", "mse_loss_backward", "smooth_l1_loss_backward", "upsample_bilinear2d_backward",
    "upsample_nearest2d_backward", "upsample_bicubic2d_backward",
)  # fmt: skip

ROW_RULES: Final[dict[str, Callable[[Call], list[Part]]]] = {
    "aten._softmax": _softmax,
    "aten._log_softmax": _softmax,
    "aten._safe_softmax": _softmax,
    "aten.native_layer_norm": _layer_norm("layernorm"),
    "aten._fused_rms_norm": _layer_norm("rmsnorm"),
    "aten.native_group_norm": _group_norm,
    "aten.native_batch_norm": _batch_norm,
    "aten.cudnn_batch_norm": _batch_norm,
    "aten._native_batch_norm_legit": _batch_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten._batch_norm_with_update": _batch_norm,
    "aten.native_layer_norm_backward": _norm_backward,
    "aten.native_batch_norm_backward": _norm_backward,
    "aten.topk": _ranked,
    "aten.sort": _sorted,
    "aten.nll_loss_forward": _loss,
    "aten.nll_loss2d_forward": _loss,
    **{f"aten.{name}": _reduction("sum") for name in SUMS},
    **{f"aten.{name}": _reduction("mean") for name in MEANS},
    **{f"aten.{name}": _reduction("max") for name in EXTREMES},
    **dict.fromkeys((f"aten.{name}" for name in POOLS), _pool),
    **dict.fromkeys((f"aten.{name}" for name in GRADIENTS), _two_tensors),
}
"""Calls over rows, and the operators of each."""
