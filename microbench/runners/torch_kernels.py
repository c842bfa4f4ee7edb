"""Kernels by PyTorch: softmax, norms, reductions, element-wise work, copies, convolutions, attention, fp8 products.

Operands are drawn once for each buffer set; a result replaces the previous one in the same memory, so that no launch
allocates memory and results rotate with the operands.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.workload import Operator
from microbench.errors import UnsupportedError
from microbench.runners.runner import BoundKernel, HostValues, Launch, LibraryKernel
from microbench.runners.torch_device import TorchDevice
from microbench.sizing import operator_bytes, output_elements

Call = Callable[..., Any]
Shapes = tuple[tuple[tuple[int, ...], str], ...]

CALLED_IN: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
"""Precisions with kernels; fp8 only for products and copies."""

NORM_EPSILON: Final = 1e-5
"""PyTorch's default."""

SCALAR: Final = 1.5
"""Second operand of operators with a number."""


SCALED_PRODUCT_GRANULE: Final = 16
"""Multiple that inputs and outputs of an fp8 product must be.  Source: PyTorch, torch._scaled_mm."""

FP8_CAPABILITY: Final = 8.9
"""Least compute capability with fp8 matrix units."""

WORKSPACE_BYTES: Final = 256 << 20
"""Memory for the workspaces of convolutions, attention and fp8 products."""

BACKENDS: Final[dict[str, tuple[str, str]]] = {
    "flash": ("FLASH_ATTENTION", "flash-attention"),
    "cudnn": ("CUDNN_ATTENTION", "cudnn"),
    "efficient": ("EFFICIENT_ATTENTION", "pytorch"),
    "math": ("MATH", "pytorch"),
}
"""torch.nn.attention.SDPBackend and the library behind it, by our names."""

HALVES_ALONE: Final = frozenset({"flash", "cudnn"})
"""Backends for fp16 and bf16 only; other precisions use plain arithmetic."""

WIDEST_HEAD: Final = 256
"""Largest head size of the kernels of FlashAttention and cuDNN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCall:
    """PyTorch's computation of an operator: `shapes` of the random inputs, each with its precision, and `call` on them.

    `prepare` turns the drawn inputs into the inputs of `call` (layouts, masks); `library` supplies the kernel, `transpose`
    is the layout of a product's inputs, `scratch_bytes` the memory beyond operands and result.
    """

    shapes: Shapes
    call: Call
    prepare: Callable[[list[Any]], list[Any]] = lambda inputs: inputs
    library: str = "pytorch"
    transpose: str = ""
    scratch_bytes: int = 0


def torch_kernel(operator: Operator, device: TorchDevice, compute_capability: float, attention: str) -> LibraryKernel:
    """PyTorch's kernel for an operator.  `attention` is one of BACKENDS.

    Raises UnsupportedError for an operator, a precision or a shape that PyTorch does not have here.
    """
    described = _describe(operator, device, compute_capability, attention)
    result_bytes = int(output_elements(operator) * BYTES_PER_ELEMENT[operator.precision_out or operator.precision])

    def bind(buffer_sets: int, seed: int) -> BoundKernel:
        shapes = described.shapes
        drawn = [
            [device.normal(shape, precision, seed + index * len(shapes) + i) for i, (shape, precision) in enumerate(shapes)]
            for index in range(buffer_sets)
        ]
        results: list[Any] = [None] * buffer_sets

        def launch_of(index: int) -> Launch:
            inputs = described.prepare(drawn[index])

            def launch() -> None:
                results[index] = described.call(*inputs)

            return launch

        def host_values(index: int) -> HostValues:
            return HostValues(inputs=tuple(device.to_host(values) for values in drawn[index]), output=device.to_host(results[index]))

        return BoundKernel(launches=tuple(map(launch_of, range(buffer_sets))), capture=device.capture, host_values=host_values)

    return LibraryKernel(
        library=described.library,
        transpose=described.transpose,
        working_set_bytes=max(1, int(operator_bytes(operator))),
        scratch_bytes=result_bytes + described.scratch_bytes,
        bind=bind,
    )


def _describe(operator: Operator, device: TorchDevice, compute_capability: float, attention: str) -> TorchCall:
    family, precision = operator.family, operator.precision
    where = f"{family}.{operator.operator} in {precision}"
    if precision not in CALLED_IN:
        raise UnsupportedError(f"{where}: PyTorch computes in {', '.join(CALLED_IN)}")
    if precision == "fp8" and family not in ("gemm", "copy"):
        raise UnsupportedError(f"{where}: PyTorch has fp8 for products and copies alone")
    match family:
        case "gemm":
            return _scaled_product(operator, device, compute_capability, where)
        case "conv":
            return _convolution(operator, device, where)
        case "attention":
            return _attention(operator, device, attention, where)
        case "softmax" | "norm" | "reduction":
            return _rowwise(operator, device)
        case "copy":
            return _copy(operator, device, where)
        case _:
            return _elementwise(operator, device, where)


def _rowwise(operator: Operator, device: TorchDevice) -> TorchCall:
    """Softmax, norms and reductions over the last of two dimensions, with their vectors of weights."""
    torch, functional = device.torch, device.torch.nn.functional
    rows, dim = (int(size) for size in operator.shape)
    out = device.dtype(operator.precision_out) if operator.precision_out else None
    calls: dict[str, tuple[int, Call]] = {
        "softmax": (0, lambda x: torch.softmax(x, -1, dtype=out)),
        "layernorm": (2, lambda x, weight, bias: functional.layer_norm(x, (dim,), weight, bias, NORM_EPSILON)),
        "rmsnorm": (1, lambda x, weight: functional.rms_norm(x, (dim,), weight, NORM_EPSILON)),
        "batchnorm": (4, lambda x, mean, variance, *own: functional.batch_norm(x, mean, variance, *own, False, 0.0, NORM_EPSILON)),
        "sum": (0, lambda x: torch.sum(x, -1, dtype=out)),
        "mean": (0, lambda x: torch.mean(x, -1, dtype=out)),
        "max": (0, lambda x: torch.amax(x, -1)),
    }
    vectors, call = calls[operator.operator]

    def prepare(inputs: list[Any]) -> list[Any]:
        return [*inputs[:2], inputs[2].square() + 1.0, *inputs[3:]] if operator.operator == "batchnorm" else inputs

    shapes = (((rows, dim), operator.precision), *([((dim,), operator.precision)] * vectors))
    return TorchCall(shapes=shapes, prepare=prepare, call=call)


def _elementwise(operator: Operator, device: TorchDevice, where: str) -> TorchCall:
    """Element-wise operators; a smaller second input is broadcast along the leading dimension."""
    torch, functional = device.torch, device.torch.nn.functional
    elements, reads = int(operator["elements"]), int(operator["reads"])
    name, precision, out = operator.operator, operator.precision, operator.precision_out or "fp32"
    unary: dict[str, Call] = {
        "scalar_add": lambda x: x + SCALAR,
        "scalar_mul": lambda x: x * SCALAR,
        "scalar_div": lambda x: x / SCALAR,
        "scalar_pow": lambda x: torch.pow(x, 3.0),  # a general exponent for the library, finite for normal numbers
        "relu": torch.relu,
        "gelu": functional.gelu,
        "silu": functional.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "exp": torch.exp,
        "dropout": lambda x: functional.dropout(x, 0.1, True),
        "typecast": lambda x: x.to(device.dtype(out)),
    }
    binary: dict[str, Call] = {"add": torch.add, "mul": torch.mul, "div": torch.div, "pow": torch.pow}
    where = f"{where} with {reads} reads for {elements} elements"
    if name == "typecast" and device.dtype(out) == device.dtype(precision):
        raise UnsupportedError(f"{where}: a conversion to itself moves nothing")
    if name in unary and reads == elements:
        return TorchCall(shapes=(((elements,), precision),), call=unary[name])
    if name in binary:
        second = reads - elements
        if not 0 <= second <= elements or elements % max(second, 1):
            raise UnsupportedError(f"{where}: the second input must divide the first")
        first = (elements // second, second) if 0 < second < elements else (elements,)
        positive = name == "pow"
        return TorchCall(
            shapes=((first, precision), ((max(second, 1),), precision)),
            call=binary[name],
            prepare=lambda inputs: [inputs[0].abs() if positive else inputs[0], *inputs[1:]],
        )
    if name == "where" and reads == elements:
        return TorchCall(
            shapes=(((elements,), precision),),
            prepare=lambda inputs: [inputs[0] > 0, inputs[0], torch.zeros((), dtype=inputs[0].dtype, device=device.device)],
            call=torch.where,
            scratch_bytes=elements,
        )
    edge = math.isqrt(max(reads, 0) // elements)
    if name == "pool":  # maximum of adjacent square windows
        height, width = _rectangle(elements)
        if edge < 1 or edge * edge * elements != reads:
            raise UnsupportedError(f"{where}: windows must be square")
        return TorchCall(shapes=(((1, 1, height * edge, width * edge), precision),), call=lambda x: functional.max_pool2d(x, edge, edge))
    raise UnsupportedError(f"{where}: PyTorch has no single kernel for it")


def _copy(operator: Operator, device: TorchDevice, where: str) -> TorchCall:
    """Copies without arithmetic: permuted heads, transposition, channels last, gathered rows, concatenation."""
    torch, name, precision = device.torch, operator.operator, operator.precision
    elements, reads = int(operator["elements"]), int(operator["reads"])
    if reads != elements:
        raise UnsupportedError(f"{where} with {reads} reads for {elements} elements: a copy reads what it writes")
    rows, columns = _rectangle(elements)
    tokens, heads, head_dim = _heads(elements)
    if (name in ("transpose", "layout", "cat") and rows < 2) or (name == "contiguous" and min(tokens, heads) < 2):
        raise UnsupportedError(f"{where} of {elements} elements: they cannot be laid out so that a copy moves them")

    def permuted(inputs: list[Any]) -> list[Any]:
        generator = torch.Generator(device=device.device).manual_seed(rows)
        return [inputs[0], torch.randperm(rows, device=device.device, generator=generator)]

    values = (((rows, columns), precision),)
    parts = (((rows // 2, columns), precision), ((rows - rows // 2, columns), precision))
    match name:
        case "transpose":
            return TorchCall(shapes=values, call=lambda x: x.t().contiguous())
        case "contiguous":
            return TorchCall(shapes=(((tokens, heads, head_dim), precision),), call=lambda x: x.transpose(0, 1).contiguous())
        case "layout":
            shape = (1, rows, *_rectangle(columns))
            return TorchCall(shapes=((shape, precision),), call=lambda x: x.contiguous(memory_format=torch.channels_last))
        case "gather":
            return TorchCall(shapes=values, prepare=permuted, call=lambda x, index: x.index_select(0, index), scratch_bytes=8 * rows)
        case _:
            return TorchCall(shapes=parts, call=lambda x, y: torch.cat((x, y), 0))


def _convolution(operator: Operator, device: TorchDevice, where: str) -> TorchCall:
    """Convolution by cuDNN: channels last for the matrix units, channels first for fp32 on CUDA cores."""
    torch, functional = device.torch, device.torch.nn.functional
    batch, channels, height, width, filters, kernel_h, kernel_w, stride, padding, groups = (int(size) for size in operator.shape)
    precision = operator.precision
    on_tensor_cores = precision in ("fp16", "bf16", "tf32")
    if operator.cuda_cores and on_tensor_cores:
        raise UnsupportedError(f"{where}: cuDNN runs it on tensor cores; cuda_cores cannot be had")
    memory = torch.channels_last if on_tensor_cores else torch.contiguous_format

    def call(x: Any, weight: Any) -> Any:
        _set_tf32(torch, precision == "tf32")
        return functional.conv2d(x, weight, None, stride, padding, 1, groups)

    return TorchCall(
        shapes=(((batch, channels, height, width), precision), ((filters, channels // groups, kernel_h, kernel_w), precision)),
        prepare=lambda inputs: [values.contiguous(memory_format=memory) for values in inputs],
        call=call,
        library="cudnn",
        scratch_bytes=WORKSPACE_BYTES,
    )


def _set_tf32(torch: Any, allowed: bool) -> None:
    """Set whether cuDNN may compute fp32 convolutions in tf32; the switch was renamed in PyTorch 2.9."""
    if hasattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision"):
        torch.backends.cudnn.conv.fp32_precision = "tf32" if allowed else "ieee"
    else:
        torch.backends.cudnn.allow_tf32 = allowed


def _scaled_product(operator: Operator, device: TorchDevice, compute_capability: float, where: str) -> TorchCall:
    """A linear layer in fp8 with one scale for each operand: cuBLASLt through torch._scaled_mm, output in bf16."""
    torch = device.torch
    batch, m, n, k = (int(size) for size in operator.shape)
    if operator.precision != "fp8":
        raise UnsupportedError(f"{where}: PyTorch is used for fp8 products alone; the others are cuBLAS's")
    if compute_capability < FP8_CAPABILITY:
        raise UnsupportedError(f"{where}: needs compute capability {FP8_CAPABILITY:g}, this board has {compute_capability:g}")
    if batch != 1 or n % SCALED_PRODUCT_GRANULE or k % SCALED_PRODUCT_GRANULE:
        raise UnsupportedError(f"{where}: one product with n and k multiples of {SCALED_PRODUCT_GRANULE}; got {batch} of {m}x{n}x{k}")
    dtype_out = device.dtype(operator.precision_out or "bf16")
    return TorchCall(
        shapes=(((m, k), "fp8"), ((n, k), "fp8")),
        prepare=lambda inputs: [inputs[0], inputs[1].t(), torch.ones((), dtype=torch.float32, device=device.device)],
        call=lambda x, weight, scale: torch._scaled_mm(x, weight, scale_a=scale, scale_b=scale, out_dtype=dtype_out),
        library="cublas",
        transpose="tn",
        scratch_bytes=WORKSPACE_BYTES,
    )


def _attention(operator: Operator, device: TorchDevice, attention: str, where: str) -> TorchCall:
    """scaled_dot_product_attention by one backend; operands have the layout of models, [batch, token, head, number]."""
    if attention not in BACKENDS:
        raise UnsupportedError(f"attention by {attention!r}: known are {', '.join(BACKENDS)}")
    torch, functional = device.torch, device.torch.nn.functional
    batch, queries, context, heads, kv_heads, head_dim, window, causal = (int(size) for size in operator.shape)
    precision = operator.precision
    if 0 < window < context:
        raise UnsupportedError(f"{where}: a window of {window} tokens; PyTorch's kernels see all {context}")
    if operator.precision_kv and operator.precision_kv != precision:
        raise UnsupportedError(f"{where}: keys and values in {operator.precision_kv}; PyTorch wants one precision")
    if causal and queries > 1 and queries != context:
        raise UnsupportedError(f"{where}: causal with {queries} queries on {context} tokens; PyTorch aligns the mask at the first token")
    chosen = attention if precision in ("fp16", "bf16") or attention not in HALVES_ALONE else "math"
    if chosen in HALVES_ALONE and head_dim > WIDEST_HEAD:
        raise UnsupportedError(f"{where}: heads of {head_dim} numbers; {chosen} takes up to {WIDEST_HEAD}")
    backend, library = BACKENDS[chosen]
    options = {"is_causal": bool(causal) and queries > 1} | ({"enable_gqa": True} if kv_heads != heads else {})

    def call(q: Any, k: Any, v: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            return functional.scaled_dot_product_attention(q, k, v, **options)

    scores = batch * heads * queries * context * BYTES_PER_ELEMENT[precision] if chosen == "math" else 0.0
    cached = ((batch, context, kv_heads, head_dim), precision)
    return TorchCall(
        shapes=(((batch, queries, heads, head_dim), precision), cached, cached),
        prepare=lambda inputs: [values.transpose(1, 2) for values in inputs],
        call=call,
        library=library,
        scratch_bytes=WORKSPACE_BYTES + int(3 * scores),
    )


def _heads(elements: int) -> tuple[int, int, int]:
    """Tokens, heads and head size: the widest usual head size that leaves several tokens and heads; else ones."""
    for head_dim in (128, 64, 32, 16, 8, 4, 2, 1):  # head sizes, the usual ones first
        heads, tokens = _rectangle(elements // head_dim) if elements % head_dim == 0 else (1, 1)
        if heads > 1:
            return tokens, heads, head_dim
    return 1, 1, elements


def _rectangle(elements: int) -> tuple[int, int]:
    """The two nearest factors of a number of elements, the larger one last."""
    rows = next(rows for rows in range(math.isqrt(elements), 0, -1) if elements % rows == 0)
    return rows, elements // rows
