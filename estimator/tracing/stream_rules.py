"""Element-wise work, copies, gathers and optimizer steps from the calls that ask for them."""

import math
from collections.abc import Callable
from typing import Final

from estimator.forms.host_shares import INNER, LAYER, LIGHT
from estimator.quantities import BYTES_PER_ELEMENT
from estimator.tracing.calls import Call, Tensor
from estimator.tracing.making import Part, moved, read_elements, stored_bytes

POINTWISE: Final[dict[str, str]] = {
    "add": "add", "sub": "add", "rsub": "add", "lerp": "add",
    "mul": "mul", "neg": "scalar_mul", "div": "div", "true_divide": "div", "floor_divide": "div", "reciprocal": "scalar_div",
    "pow": "pow", "sqrt": "scalar_pow", "rsqrt": "scalar_pow", "square": "scalar_pow",
    "relu": "relu", "threshold": "relu", "hardtanh": "relu", "leaky_relu": "relu", "clamp": "relu", "clamp_min": "relu",
    "gelu": "gelu", "gelu_backward": "gelu", "silu": "silu", "silu_backward": "silu", "sigmoid": "sigmoid", "tanh": "tanh",
    "exp": "exp", "where": "where", "masked_fill": "where",
    "polar": "other",
}  # fmt: skip
"""Our name of element-wise operations; others that the framework calls pointwise are `other`."""

WITH_A_NUMBER: Final[dict[str, str]] = {"add": "scalar_add", "mul": "scalar_mul", "div": "scalar_div", "pow": "scalar_pow"}
"""Names where one tensor alone comes in."""

INSIDE: Final = frozenset({"neg"})
"""Element-wise operations that surround others as copies do (the half that a rotary embedding turns)."""

FILLS: Final = (
    "arange", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like", "new_ones", "new_zeros", "new_full", "scalar_tensor",
    "fill", "zero", "eye", "linspace", "bernoulli", "normal",
    "uniform", "rand", "randn", "rand_like", "randn_like", "random", "exponential",
)  # fmt: skip
"""Operations that write a tensor from next to nothing."""

CONTIGUOUS: Final = (
    "repeat", "flip", "roll", "constant_pad_nd", "slice_scatter", "select_scatter", "slice_backward", "select_backward", "unfold_backward",
    "pixel_shuffle", "pixel_unshuffle", "reflection_pad2d", "replication_pad2d", "tril", "triu", "channel_shuffle", "_reshape_copy",
    "as_strided_scatter", "im2col", "col2im", "_to_dense", "diagonal_scatter",
)  # fmt: skip
GATHERS: Final = (
    "index", "index_select", "gather", "take", "take_along_dim", "masked_select", "repeat_interleave",
    "upsample_bilinear2d", "upsample_nearest2d", "upsample_bicubic2d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "grid_sampler_2d",
)  # fmt: skip
SCATTERS: Final[dict[str, str]] = {
    "index_put": "values", "_index_put_impl": "values", "_unsafe_index_put": "values", "index_add": "source", "index_copy": "source",
    "scatter": "src", "scatter_add": "src", "index_fill": "index", "scatter_reduce": "src", "masked_scatter": "source",
}  # fmt: skip
"""Operations that put rows into a tensor, and the input that holds the rows."""

CHUNK_ELEMENTS: Final = 65536
LAUNCH_CHUNKS: Final = 320
LAUNCH_TENSORS: Final = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""What one launch over a list of tensors takes: elements of a chunk, chunks, tensors by the number of lists that go together.
Source: PyTorch, MultiTensorApply.cuh."""


def pointwise(call: Call) -> list[Part]:
    """An element-wise operation: reads all that comes in, broadcast tensors once, and writes its result."""
    base = base_name(call)
    out = call.outputs[0] if call.outputs else call.largest
    precision = call.largest.precision
    tensors = sum(tensor.elements > 1 for _, tensor in call.inputs)
    name = POINTWISE.get(base, "other")
    if tensors < 2:
        name = WITH_A_NUMBER.get(name, name)
    share = INNER if base in INSIDE else LIGHT
    return [moved("elementwise", name, precision, out.elements, read_elements(call, precision), share=share, out=out.precision)]


def base_name(call: Call) -> str:
    """The operation's name without its library and without the mark of one that works in place."""
    return call.name.partition(".")[2].removesuffix("_").removeprefix("_foreach_")


def _fill(call: Call) -> list[Part]:
    out = call.outputs[0]
    return [moved("elementwise", "other", out.precision, out.elements, 1.0)]


def _clone(call: Call) -> list[Part]:
    """A copy; what comes from the host has no source on the device."""
    return _copied(call.inputs[0][1] if call.inputs else call.outputs[0], call.outputs[0])


def _copy_into(call: Call) -> list[Part]:
    sources = call.tensors("src")
    return _copied(sources[0] if sources else call.outputs[0], call.outputs[0])


def _copied(source: Tensor, target: Tensor) -> list[Part]:
    """A conversion, or a copy; one into another order of elements is a transposing one."""
    precision, out = source.precision, target.precision
    if source.dtype != target.dtype:
        return [moved("elementwise", "typecast", precision, target.elements, source.stored, share=INNER, out=out)]
    turned = len(source.shape) == len(target.shape) and source.stored == source.elements and source.innermost != target.innermost
    return [moved("copy", "transpose" if turned else "contiguous", precision, target.elements, source.stored, share=INNER)]


def _contiguous(call: Call) -> list[Part]:
    out = call.outputs[0]
    return [moved("copy", "contiguous", out.precision, out.elements, min(call.largest.stored, out.elements), share=INNER)]


def _cat(call: Call) -> list[Part]:
    out = call.outputs[0]
    return [moved("copy", "cat", out.precision, out.elements, tuple(tensor.stored for tensor in call.tensors("tensors")), share=INNER)]


def _embedding(call: Call) -> list[Part]:
    return _gathered(call, call.tensor("indices"), LAYER)


def _gather(call: Call) -> list[Part]:
    indices = [tensor for name, tensor in call.inputs if name in ("index", "indices")]
    return _gathered(call, indices[0] if indices else None, LIGHT)


def _gathered(call: Call, indices: Tensor | None, share: float) -> list[Part]:
    """Elements read as many as written, and the numbers that say which."""
    out = call.outputs[0]
    said = stored_bytes((indices,)) / BYTES_PER_ELEMENT[out.precision] if indices is not None else 0.0
    return [moved("copy", "gather", out.precision, out.elements, (out.elements, said), share=share)]


def _scatter(call: Call) -> list[Part]:
    """Rows put in their places; out of place, the tensor around them is copied first."""
    target = call.outputs[0]
    base = base_name(call)
    rows = call.tensors(SCATTERS[base]) or call.tensors("index")
    elements = max((tensor.elements for tensor in rows), default=target.elements)
    parts = [moved("copy", "gather", target.precision, elements, elements)]
    if not call.name.endswith("_"):
        parts.append(moved("copy", "contiguous", target.precision, target.elements, target.elements, share=INNER))
    return parts


def _embedding_backward(call: Call) -> list[Part]:
    """Rows of the gradient added into a table of zeros."""
    gradient, table = call.tensor("grad_output"), call.outputs[0]
    return [
        moved("elementwise", "other", table.precision, table.elements, 1.0),
        moved("copy", "gather", table.precision, gradient.elements, 2.0 * gradient.elements),
    ]


def _dropout(call: Call) -> list[Part]:
    """A result and a mask of a byte an element are written: in elements of the result."""
    tensor = call.tensor("input")
    return [moved("elementwise", "dropout", tensor.precision, tensor.elements, tensor.elements)]


# Lists of tensors -----------------------------------------------------------------------------------------------------


def over_lists(call: Call) -> list[Part]:
    """One operation on every tensor of a list (an optimizer's step), in as few launches as the framework needs.

    The result is the list `self` where the operation works in place; a fused optimizer writes its moments too.
    """
    lists = list(dict.fromkeys(name for name, _ in call.inputs))
    members = [tensor for tensor in call.tensors(lists[0]) if tensor.elements]
    total = sum(tensor.elements for tensor in members)
    if not total:
        return []
    precision = members[0].precision
    reads = sum(read_elements(call, precision))
    written = total + sum(member.elements for name, member in call.inputs if name in FUSED_WRITES)
    base = base_name(call)
    name = POINTWISE.get(base, "other")
    if len(lists) < 2:
        name = WITH_A_NUMBER.get(name, name)
    launches = _launches(members, min(len(lists), max(LAUNCH_TENSORS)))
    elements = max(round(written / launches), 1)
    return [moved("elementwise", name, precision, elements, reads * elements / written, times=float(launches))]


FUSED_WRITES: Final = frozenset({"exp_avgs", "exp_avg_sqs", "momentum_buffer_list", "max_exp_avg_sqs"})
"""Lists that a fused optimizer writes beside the parameters."""


def _launches(members: list[Tensor], depth: int) -> int:
    chunks = sum(math.ceil(tensor.elements / CHUNK_ELEMENTS) for tensor in members)
    return max(math.ceil(chunks / LAUNCH_CHUNKS), math.ceil(len(members) / LAUNCH_TENSORS[depth]))


STREAM_RULES: Final[dict[str, Callable[[Call], list[Part]]]] = {
    "aten.clone": _clone,
    "aten._to_copy": _clone,
    "aten.copy_": _copy_into,
    "aten._foreach_copy_": over_lists,
    "aten.cat": _cat,
    "aten.stack": _cat,
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding_backward,
    "aten.native_dropout": _dropout,
    "aten.cumsum": pointwise,
    "aten.cumprod": pointwise,
    **{f"aten.{name}{mark}": _fill for name in FILLS for mark in ("", "_")},
    **{f"aten.{name}": _contiguous for name in CONTIGUOUS},
    **{f"aten.{name}": _gather for name in GATHERS},
    **{f"aten.{name}{mark}": _scatter for name in SCATTERS for mark in ("", "_")},
}
"""Calls that stream through memory, and the operators of each."""
