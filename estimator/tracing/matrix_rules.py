"""Matrix products, convolutions and fused attention from the calls that ask for them."""

import math
from collections.abc import Callable
from typing import Final

from estimator.forms.host_shares import INNER, INTERNAL, LAYER
from estimator.tracing.calls import ATTENTION, ATTENTION_BACKWARD, Call, Tensor
from estimator.tracing.making import ON_CUDA_CORES, Part, moved, product, rows_of
from estimator.workload import TRACED, make_operator

SIXTEEN_BIT: Final = frozenset({"bf16", "fp16"})
"""Precisions in which cuDNN computes dense convolutions channels-last and converts what comes channels-first."""

BACKWARD_PRODUCTS: Final = 2.5
"""Fused attention's backward pass in forward passes: it makes five products where the forward pass makes two (it
computes the scores again).  Source: FlashAttention-2 (arXiv 2307.08691), section 3."""

PLANE: Final = 2
"""Axes of an image."""

EXPERT_AXES: Final = 3
"""Axes of the matrices of all experts."""


def _linear(call: Call, left: str, right: str) -> list[Part]:
    """A[m, k]·B[k, n] without a batch; vectors have an axis of length 1."""
    a, b = call.tensor(left), call.tensor(right)
    m = a.shape[0] if len(a.shape) > 1 else 1
    n = b.shape[1] if len(b.shape) > 1 else 1
    return [product("linear", a.precision, batch=1, m=m, n=n, k=a.shape[-1], out=call.outputs[0].precision)]


def _batched(call: Call, left: str, right: str) -> list[Part]:
    a, b = call.tensor(left), call.tensor(right)
    batch, m, k = a.shape
    return [product("bmm", a.precision, batch=batch, m=m, n=b.shape[2], k=k, out=call.outputs[0].precision)]


def _grouped(call: Call) -> list[Part]:
    """Rows shared out over experts, each a linear layer with its own matrix: as many experts as there are rows, evenly loaded.

    The experts' matrices are on one side, with the rows on the other; or both sides are rows and the experts' matrices
    come out (a gradient).
    """
    a, b, out = call.tensor("self"), call.tensor("mat2"), call.outputs[0]
    if len(a.shape) == len(b.shape):
        if len(a.shape) == EXPERT_AXES:
            return _batched(call, "self", "mat2")
        experts, rows = out.shape[0], a.shape[1]
        busy = min(experts, rows)
        return [product("linear", a.precision, batch=busy, m=a.shape[0], n=b.shape[1], k=math.ceil(rows / busy))]
    experts, rows = (a.shape[0], b.shape[1]) if len(a.shape) == EXPERT_AXES else (b.shape[0], a.shape[0])
    busy = min(experts, rows)
    each = math.ceil(rows / busy)
    m, n = (a.shape[1], each) if len(a.shape) == EXPERT_AXES else (each, b.shape[2])
    return [product("linear", a.precision, batch=busy, m=m, n=n, k=a.shape[-1])]


# Convolutions ---------------------------------------------------------------------------------------------------------


def _convolution(call: Call) -> list[Part]:
    image, weight, out = call.tensor("input"), call.tensor("weight"), call.outputs[0]
    return _conv_parts(call, image, weight, out)


def _conv_parts(call: Call, image: Tensor, weight: Tensor, out: Tensor) -> list[Part]:
    """A convolution of the own format where it can say what is asked; else the matrix product that it amounts to."""
    shape = _plain_conv(call, image, weight, out)
    if shape is None:
        return [_as_product(call, image, weight, out)]
    depthwise = shape["groups"] > 1 and shape["groups"] == shape["channels"]
    precision = image.precision
    operator = make_operator(
        "conv",
        "depthwise" if depthwise else "conv2d",
        precision,
        cuda_cores=precision in ON_CUDA_CORES,
        host_share=LAYER,
        origin=TRACED,
        **shape,  # type: ignore[arg-type]
    )
    if depthwise or precision not in SIXTEEN_BIT:
        return [Part(operator)]
    turned = [
        moved("copy", "layout", precision, side.elements, side.elements, share=INTERNAL, origin=f"{TRACED}:layout")
        for side in (image, out)
        if not _channels_last(side)
    ]
    return [Part(operator), *turned]


def _plain_conv(call: Call, image: Tensor, weight: Tensor, out: Tensor) -> dict[str, int] | None:
    """Fields of a convolution over an image with one stride and one padding, without dilation; None for any other."""
    stride, padding, dilation = (_axes(call, name) for name in ("stride", "padding", "dilation"))
    if call.number("transposed", False) or len(image.shape) != PLANE + 2:
        return None
    if len(set(stride)) != 1 or len(set(padding)) != 1 or set(dilation) != {1}:
        return None
    batch, channels, height, width = image.shape
    filters, _, kernel_h, kernel_w = weight.shape
    groups = call.number("groups", 1)
    if not isinstance(groups, int) or out.shape[1] != filters:
        return None
    return {
        "batch": batch, "channels": channels, "height": height, "width": width, "filters": filters,
        "kernel_h": kernel_h, "kernel_w": kernel_w, "stride": stride[0], "padding": padding[0], "groups": groups,
    }  # fmt: skip


def _axes(call: Call, name: str) -> tuple[int, ...]:
    value = call.number(name, (1,))
    return value if isinstance(value, tuple) else (int(value),)


def _channels_last(tensor: Tensor) -> bool:
    """Whether an image lies in memory with its channels innermost; a single pixel or channel lies both ways."""
    return tensor.shape[1] == 1 or math.prod(tensor.shape[2:]) == 1 or tensor.innermost == 1


def _as_product(call: Call, image: Tensor, weight: Tensor, out: Tensor) -> Part:
    """The product [positions, taps]·[taps, filters] of each group; a transposed convolution starts from its input's positions."""
    groups = int(call.number("groups", 1))  # type: ignore[arg-type]
    side = image if call.number("transposed", False) else out
    positions = side.elements // side.shape[1]
    taps = math.prod(weight.shape[1:])
    origin = f"{TRACED}:convolution"
    return product("bmm", image.precision, batch=groups, m=positions, n=weight.shape[0] // groups, k=taps, origin=origin)


def _convolution_backward(call: Call) -> list[Part]:
    """Gradients of the image (by the same number of multiplications) and of the weight, each where it is asked for.

    Of a depthwise convolution both are taken as further such convolutions; of a dense one as the products
    [positions, filters]·[filters, taps] and [filters, positions]·[positions, taps].
    """
    image, weight, gradient = call.tensor("input"), call.tensor("weight"), call.tensor("grad_output")
    asked = call.number("output_mask", (1, 1, 0))
    of_image, of_weight, of_bias = (bool(item) for item in asked) if isinstance(asked, tuple) else (True, True, False)
    groups = int(call.number("groups", 1))  # type: ignore[arg-type]
    origin, precision = f"{TRACED}:backward", image.precision
    filters, taps = weight.shape[0] // groups, math.prod(weight.shape[1:])
    positions = gradient.elements // gradient.shape[1]
    parts = []
    if groups > 1 and groups == image.shape[1]:
        forward = _conv_parts(call, image, weight, gradient)[0].operator
        parts.append(Part(forward, float(of_image + of_weight)))
    else:
        if of_image:
            parts.append(product("bmm", precision, batch=groups, m=positions, n=taps, k=filters, origin=origin))
        if of_weight:
            parts.append(product("bmm", precision, batch=groups, m=filters, n=taps, k=positions, origin=origin))
    if of_bias:
        parts.append(rows_of("reduction", "sum", precision, gradient.shape[1], positions, share=INNER, origin=origin))
    return [part for part in parts if part.times]


# Attention ------------------------------------------------------------------------------------------------------------


def _attention(call: Call) -> list[Part]:
    return [Part(make_operator("attention", **_attention_fields(call), host_share=LAYER, origin=TRACED))]  # type: ignore[arg-type]


def _attention_backward(call: Call) -> list[Part]:
    fields = _attention_fields(call) | {"host_share": LAYER / BACKWARD_PRODUCTS}
    return [Part(make_operator("attention", **fields, origin=f"{TRACED}:backward"), BACKWARD_PRODUCTS)]  # type: ignore[arg-type]


def _attention_fields(call: Call) -> dict[str, object]:
    """What one fused attention kernel works on: tensors [..., head, token, dim]; a tensor without heads has one."""
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    heads, kv_heads = (tensor.shape[-3] if len(tensor.shape) > PLANE else 1 for tensor in (query, key))
    queries, context = query.shape[-2], key.shape[-2]
    precision = query.precision
    return {
        "operator": "prefill" if queries > 1 else "decode",
        "precision": precision,
        "batch": query.elements // (heads * queries * query.shape[-1]),
        "queries": queries,
        "context": context,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": max(query.shape[-1], value.shape[-1]),
        "window": call.number("window", 0),
        "causal": int(bool(call.number("causal", False)) and queries > 1),
        "cuda_cores": precision in ON_CUDA_CORES,
    }


MATRIX_RULES: Final[dict[str, Callable[[Call], list[Part]]]] = {
    "aten.mm": lambda call: _linear(call, "self", "mat2"),
    "aten.addmm": lambda call: _linear(call, "mat1", "mat2"),
    "aten.mv": lambda call: _linear(call, "self", "vec"),
    "aten.addmv": lambda call: _linear(call, "mat", "vec"),
    "aten.dot": lambda call: _linear(call, "self", "tensor"),
    "aten._addmm_activation": lambda call: _linear(call, "mat1", "mat2"),
    "aten._scaled_mm": lambda call: _linear(call, "self", "mat2"),
    "aten._int_mm": lambda call: _linear(call, "self", "mat2"),
    "aten.bmm": lambda call: _batched(call, "self", "mat2"),
    "aten.baddbmm": lambda call: _batched(call, "batch1", "batch2"),
    "aten._grouped_mm": _grouped,
    "aten.convolution": _convolution,
    "aten._convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    ATTENTION: _attention,
    ATTENTION_BACKWARD: _attention_backward,
}
"""Calls that multiply matrices, and the operators of each."""
