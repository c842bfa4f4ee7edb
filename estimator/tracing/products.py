"""Matrix products, convolutions and fused attention from their calls."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from estimator.tracing.calls import BACKWARD, OPERATIONS, Call, Part, Tensor, base_name, moved, part
from estimator.transforms import INNER, INTERNAL, LAYER
from estimator.vocabulary.quantities import SIXTEEN_BIT
from estimator.vocabulary.workload import PIXEL_LAYOUT, TRACED, is_of_single_pixels

BACKWARD_PRODUCTS: Final = 2.5
"""Fused attention's backward pass in forward passes: it computes five products, the forward pass two (it computes the
scores again).  Source: FlashAttention-2 (arXiv 2307.08691), section 3."""

LOADED: Final = 8
"""Numbers of 16 bits that a lane loads at once."""

COMPLEX: Final = "complex64"
"""Numbers of two fp32."""


def linear(call: Call) -> list[Part]:
    """A[m, k]·B[k, n] without a batch; vectors have an axis of length 1.

    If A's columns lie in memory one after another and are no multiple of a load, it is taken as Bᵀ·Aᵀ, whose columns n are such.
    """
    a, b = map(call.tensor, OPERATIONS["linear"][base_name(call)])
    m = a.shape[0] if len(a.shape) > 1 else 1
    n = b.shape[1] if len(b.shape) > 1 else 1
    if a.innermost == 0 and m % LOADED and m > 1:
        m, n = n, m
    return [*_summand(call), _product("linear", call, a, 1, m, n)]


def batched(call: Call) -> list[Part]:
    """One product for each element of the first axis; a single one, as of `torch.einsum` with a weight, has the kernel of a linear layer,
    and all with one matrix, expanded over the batch, are taken as one.

    Source: ATen, native/cuda/Blas.cpp.
    """
    a, b = map(call.tensor, OPERATIONS["batched"].get(base_name(call), ("self", "mat2")))
    (batch, m, _), n = a.shape, b.shape[2]
    for shared, rows, columns in ((b, m, n), (a, n, m)):
        if batch in (1, shared.elements // max(shared.stored, 1)):
            return [*_summand(call), _product("linear", call, a, 1, batch * rows, columns)]
    return [*_summand(call), _product("bmm", call, a, batch, m, n)]


def _summand(call: Call) -> list[Part]:
    """A copy of the summand into the result, which the product then reads and overwrites; a layer's bias needs none: its kernel adds it.

    Source: ATen, native/cuda/Blas.cpp, addmm_out_cuda_impl.
    """
    found = call.tensors("self") if base_name(call) in ("addmm", "baddbmm") and call.number("beta", 1) else ()
    written = call.output.elements
    return [moved("copy.contiguous", one.precision, written, one.stored + written, share=INNER) for one in found if len(one.shape) > 1]


def _product(name: str, call: Call, a: Tensor, batch: int, m: int, n: int) -> Part:
    """A product of `a`; one of complex numbers multiplies the real matrix [2m, 2k] of real and imaginary parts in fp32."""
    if a.dtype == COMPLEX:
        return part(f"gemm.{name}", "fp32", batch=batch, m=2 * m, n=n, k=2 * a.shape[-1])
    return part(f"gemm.{name}", a.precision, batch=batch, m=m, n=n, k=a.shape[-1], out=call.output.precision)


def grouped(call: Call) -> list[Part]:
    """Rows distributed evenly over experts, each a linear layer with its own matrix: at most as many experts as rows.

    The experts' matrices are on one side, with the rows on the other; or both sides are rows and the experts' matrices
    come out (a gradient).
    """
    a, b = call.tensor("self"), call.tensor("mat2")
    left, right = (len(tensor.shape) == 3 for tensor in (a, b))
    if left and right:
        return batched(call)
    rows = b.shape[1] if left else a.shape[0] if right else a.shape[1]
    busy = min((a if left else b if right else call.output).shape[0], rows)
    each = math.ceil(rows / busy)
    m, n, k = (a.shape[1], each, a.shape[-1]) if left else (each, b.shape[2], a.shape[-1]) if right else (a.shape[0], b.shape[1], each)
    return [part("gemm.linear", a.precision, batch=busy, m=m, n=n, k=k)]


# Convolutions ---------------------------------------------------------------------------------------------------------


def convolution(call: Call) -> list[Part]:
    """A convolution of the own format; PyTorch adds the bias afterwards, but for depthwise kernels."""
    out, image, kernel = call.output, call.tensor("input"), _kernel(call, call.output)
    if kernel.operator.operator == "depthwise":
        return [kernel]
    turned = _turned([image], [out], PIXEL_LAYOUT if is_of_single_pixels(kernel.operator) else "layout")
    bias = [moved("elementwise.add", image.precision, out.elements, out.elements, share=INNER) for _ in call.tensors("bias")]
    return [kernel, *turned, *bias]


def _kernel(call: Call, out: Tensor) -> Part:
    """A convolution with the result `out`.

    One over an image with one stride and one padding, without dilation, has its own fields; any other those of one without padding that
    has as many outputs and taps; if transposed, backwards.
    """
    image, (*taps, tap) = call.tensor("input"), call.tensor("weight").shape[2:]
    wide, narrow = (out, image) if call.number("transposed") else (image, out)
    height, width = wide.shape[-2:]
    groups, stride, padding = call.number("groups", 1), call.axes("stride", 1)[-1], call.number("padding")
    *rows, columns = narrow.shape[2:]
    strides, paddings, dilations = ({*call.axes(name, 1)} for name in ("stride", "padding", "dilation"))
    if wide is out or (len(taps), len(strides), len(paddings), dilations) != (1, 1, 1, {1}):
        height, width, padding = (math.prod(rows) - 1) * stride + math.prod(taps), (columns - 1) * stride + tap, 0
    return part(
        "conv.depthwise" if 1 < groups == image.shape[1] else "conv.conv2d", image.precision,
        batch=wide.shape[0], channels=wide.shape[1], height=height, width=width, filters=narrow.shape[1],
        kernel_h=math.prod(taps), kernel_w=tap, stride=stride, padding=padding, groups=groups,
    )  # fmt: skip


def _turned(read: Sequence[Tensor], written: Sequence[Tensor], rule: str = "layout") -> list[Part]:
    """Conversions of channels-first images of convolutions: cuDNN's dense ones in 16 bits read and write channels last; those in tf32 read
    so and write channels first (names of its kernels: nhwckrsc_nchw).
    """
    precision = read[0].precision
    sides = (*read, *written) if precision in SIXTEEN_BIT else read if precision == "fp32" else ()
    return [
        moved("copy.layout", precision, side.elements, side.elements, share=INTERNAL, origin=f"{TRACED}:{rule}")
        for side in sides
        if len(side.shape) == 4 and not _channels_last(side)
    ]


def _channels_last(tensor: Tensor) -> bool:
    """Whether an image has its channels innermost in memory; a single pixel or channel has both layouts."""
    return tensor.shape[1] == 1 or math.prod(tensor.shape[2:]) == 1 or tensor.innermost == 1


def convolution_backward(call: Call) -> list[Part]:
    """Gradients of the image and of the weight, if requested: convolutions with as many multiplications and bytes as the forward one."""
    image, gradient = call.tensor("input"), call.tensor("grad_output")
    of_image, of_weight, of_bias = call.axes("output_mask", 1, 1, 0)
    parts = [Part(replace(_kernel(call, gradient).operator, origin=BACKWARD), float(of_image + of_weight))]
    if parts[0].operator.operator != "depthwise":
        parts += _turned([gradient], [image]) * of_image + _turned([image, gradient], []) * of_weight
    if of_bias:
        positions = gradient.elements // gradient.shape[1]
        parts.append(part("reduction.sum", image.precision, rows=gradient.shape[1], dim=positions, share=INNER, origin=BACKWARD))
    return [one for one in parts if one.times]


# Attention ------------------------------------------------------------------------------------------------------------


def attention(call: Call, share: float = LAYER, origin: str = TRACED, times: float = 1.0) -> list[Part]:
    """One fused attention kernel on tensors [..., head, token, dim]; a tensor without heads has one."""
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    heads, kv_heads = (tensor.shape[-3] if len(tensor.shape) > 2 else 1 for tensor in (query, key))
    queries, head_dim = query.shape[-2:]
    kernel = part(
        "attention.prefill" if queries > 1 else "attention.decode",
        query.precision,
        batch=query.elements // (heads * queries * head_dim),
        queries=queries,
        context=key.shape[-2],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=max(head_dim, value.shape[-1]),
        window=call.number("window"),
        causal=int(call.number("causal") and queries > 1),
        share=share,
        origin=origin,
        times=times,
    )
    return [kernel]


def attention_backward(call: Call) -> list[Part]:
    """Gradients of fused attention, in forward passes."""
    return attention(call, LAYER / BACKWARD_PRODUCTS, BACKWARD, BACKWARD_PRODUCTS)
