"""Kernels by PyTorch: softmax, norms, reductions, element-wise work, copies, convolutions, fp8 products.

Operands are drawn once for each buffer set; a result replaces the one before in the same place, so that no launch waits
for memory and results rotate with the operands.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from estimator.quantities import BYTES_PER_ELEMENT
from estimator.workload import Operator
from microbench.errors import UnsupportedError
from microbench.runners.runner import BoundKernel, HostValues, LibraryKernel
from microbench.runners.torch_attention import Call, TorchCall, attention_call
from microbench.runners.torch_device import TorchDevice
from microbench.sizing import operator_bytes

NORM_EPSILON: Final = 1e-5
"""PyTorch's default."""

SCALAR: Final = 1.5
"""Second operand of operators with a number."""

EXPONENT: Final = 3.0
"""Exponent of scalar_pow: a general one for the library, and finite for normal numbers."""

DROPOUT: Final = 0.1

HEAD_SIZES: Final = (128, 64, 32, 16, 8, 4, 2)
"""Numbers of a head, the usual ones first."""

SCALED_PRODUCT_GRANULE: Final = 16
"""Multiple that inputs and outputs of an fp8 product must be.  Source: PyTorch, torch._scaled_mm."""

FP8_CAPABILITY: Final = 8.9
"""Compute capability from which there are fp8 matrix units."""

WORKSPACE_BYTES: Final = 256 << 20
"""What convolutions and attention may take for themselves."""


def torch_kernel(operator: Operator, device: TorchDevice, compute_capability: float, attention: str) -> LibraryKernel:
    """PyTorch's kernel for an operator.  `attention` is "flash", "cudnn", "efficient" or "math".

    Raises UnsupportedError for an operator, a precision or a shape that PyTorch does not have here.
    """
    if operator.precision not in CALLED_IN:
        raise UnsupportedError(
            f"{operator.family}.{operator.operator}: PyTorch computes in {', '.join(CALLED_IN)}, not in {operator.precision}"
        )
    described = _describe(operator, device, compute_capability, attention)
    result_bytes = int(_output_elements(operator) * BYTES_PER_ELEMENT[operator.precision_out or operator.precision])

    def bind(buffer_sets: int, seed: int) -> BoundKernel:
        drawn = [
            [
                device.normal(shape, precision, seed + index * len(described.shapes) + i)
                for i, (shape, precision) in enumerate(described.shapes)
            ]
            for index in range(buffer_sets)
        ]
        operands = [described.prepare(inputs) for inputs in drawn]
        results: list[Any] = [None] * buffer_sets

        def launch_of(index: int) -> Callable[[], None]:
            inputs = operands[index]

            def launch() -> None:
                results[index] = described.call(*inputs)

            return launch

        def host_values(index: int) -> HostValues:
            return HostValues(inputs=tuple(device.to_host(values) for values in drawn[index]), output=device.to_host(results[index]))

        return BoundKernel(
            launches=tuple(launch_of(index) for index in range(buffer_sets)), capture=device.capture, host_values=host_values
        )

    return LibraryKernel(
        library=described.library,
        transpose=described.transpose,
        working_set_bytes=max(1, int(operator_bytes(operator))),
        scratch_bytes=result_bytes + described.scratch_bytes,
        bind=bind,
    )


CALLED_IN: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
"""Precisions in which there are kernels; fp8 for products and copies alone."""


def _describe(operator: Operator, device: TorchDevice, compute_capability: float, attention: str) -> TorchCall:
    family, precision = operator.family, operator.precision
    where = f"{family}.{operator.operator} in {precision}"
    if precision == "fp8" and family not in ("gemm", "copy"):
        raise UnsupportedError(f"{where}: PyTorch has fp8 for products and copies alone")
    match family:
        case "gemm":
            return _scaled_product(operator, device, compute_capability)
        case "conv":
            return _convolution(operator, device)
        case "attention":
            return attention_call(operator, device, attention)
        case "softmax" | "norm" | "reduction":
            return _rowwise(operator, device)
        case "elementwise":
            return _elementwise(operator, device)
        case "copy":
            return _copy(operator, device)
        case _:
            raise UnsupportedError(f"{where}: no kernel; families: gemm, conv, attention, softmax, norm, reduction, elementwise, copy")


def _rowwise(operator: Operator, device: TorchDevice) -> TorchCall:
    """Softmax, norms and reductions over the last of two dimensions."""
    torch, functional = device.torch, device.torch.nn.functional
    rows, dim = (int(size) for size in operator.shape)
    precision = operator.precision
    dtype_out = device.dtype(operator.precision_out) if operator.precision_out else None
    values, weights = ((rows, dim), precision), ((dim,), precision)
    match operator.operator:
        case "softmax":
            return TorchCall(shapes=(values,), call=lambda x: torch.softmax(x, -1, dtype=dtype_out))
        case "layernorm":
            return TorchCall(
                shapes=(values, weights, weights), call=lambda x, weight, bias: functional.layer_norm(x, (dim,), weight, bias, NORM_EPSILON)
            )
        case "rmsnorm":
            return TorchCall(shapes=(values, weights), call=lambda x, weight: functional.rms_norm(x, (dim,), weight, NORM_EPSILON))
        case "batchnorm":
            return TorchCall(
                shapes=(values, weights, weights, weights, weights),
                prepare=lambda inputs: [*inputs[:2], inputs[2].square() + 1.0, *inputs[3:]],
                call=lambda x, mean, variance, weight, bias: functional.batch_norm(
                    x, mean, variance, weight, bias, False, 0.0, NORM_EPSILON
                ),
            )
        case "sum":
            return TorchCall(shapes=(values,), call=lambda x: torch.sum(x, -1, dtype=dtype_out))
        case "mean":
            return TorchCall(shapes=(values,), call=lambda x: torch.mean(x, -1, dtype=dtype_out))
        case _:
            return TorchCall(shapes=(values,), call=lambda x: torch.amax(x, -1))


def _elementwise(operator: Operator, device: TorchDevice) -> TorchCall:
    """One number for each element; a second input of fewer numbers is broadcast along the leading dimension."""
    torch, functional = device.torch, device.torch.nn.functional
    elements, reads = int(operator["elements"]), int(operator["reads"])
    name, precision = operator.operator, operator.precision
    unary: dict[str, Call] = {
        "scalar_add": lambda x: x + SCALAR,
        "scalar_mul": lambda x: x * SCALAR,
        "scalar_div": lambda x: x / SCALAR,
        "scalar_pow": lambda x: torch.pow(x, EXPONENT),
        "relu": torch.relu,
        "gelu": functional.gelu,
        "silu": functional.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "exp": torch.exp,
        "dropout": lambda x: functional.dropout(x, DROPOUT, True),
        "typecast": lambda x: x.to(device.dtype(operator.precision_out or "fp32")),
    }
    binary: dict[str, Call] = {"add": torch.add, "mul": torch.mul, "div": torch.div, "pow": torch.pow}
    if name == "typecast" and (operator.precision_out or "fp32") in (precision, "tf32" if precision == "fp32" else precision):
        raise UnsupportedError(f"elementwise.typecast from {precision} to itself: nothing is moved")
    if name in unary and reads == elements:
        return TorchCall(shapes=(((elements,), precision),), call=unary[name])
    if name in binary:
        shapes = _binary_shapes(elements, reads, precision, name)
        positive = name == "pow"
        return TorchCall(shapes=shapes, call=binary[name], prepare=lambda inputs: [inputs[0].abs() if positive else inputs[0], *inputs[1:]])
    if name == "where" and reads == elements:
        return TorchCall(
            shapes=(((elements,), precision),),
            prepare=lambda inputs: [inputs[0] > 0, inputs[0], torch.zeros((), dtype=inputs[0].dtype, device=device.device)],
            call=torch.where,
            scratch_bytes=elements,
        )
    if name == "pool":
        return _pool(elements, reads, precision, device)
    raise UnsupportedError(f"elementwise.{name} with {reads} reads for {elements} elements: PyTorch has no single kernel for it")


def _binary_shapes(elements: int, reads: int, precision: str, name: str) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shapes of two inputs that read `reads` numbers together."""
    second = reads - elements
    if second == elements:
        return (((elements,), precision), ((elements,), precision))
    if second == 0:
        return (((elements,), precision), ((1,), precision))
    if 0 < second < elements and elements % second == 0:
        return (((elements // second, second), precision), ((second,), precision))
    raise UnsupportedError(f"elementwise.{name} with {reads} reads for {elements} elements: the second input must divide the first")


def _pool(elements: int, reads: int, precision: str, device: TorchDevice) -> TorchCall:
    """The largest of each square window, the windows side by side."""
    edge = math.isqrt(reads // elements) if reads >= elements else 0
    height, width = _rectangle(elements)
    if edge < 1 or edge * edge * elements != reads:
        raise UnsupportedError(f"elementwise.pool with {reads} reads for {elements} elements: windows must be square")
    functional = device.torch.nn.functional
    return TorchCall(shapes=(((1, 1, height * edge, width * edge), precision),), call=lambda x: functional.max_pool2d(x, edge, edge))


def _copy(operator: Operator, device: TorchDevice) -> TorchCall:
    """Data moved without arithmetic: permuted heads, transposition, channels last, gathered rows, concatenation."""
    torch = device.torch
    elements, reads = int(operator["elements"]), int(operator["reads"])
    precision = operator.precision
    if reads != elements:
        raise UnsupportedError(f"copy.{operator.operator} with {reads} reads for {elements} elements: a copy reads what it writes")
    rows, columns = _rectangle(elements)
    values = (((rows, columns), precision),)
    refused = UnsupportedError(f"copy.{operator.operator} of {elements} elements: they cannot be laid out so that a copy moves them")
    match operator.operator:
        case "transpose":
            if rows < 2:
                raise refused
            return TorchCall(shapes=values, call=lambda x: x.t().contiguous())
        case "contiguous":
            tokens, heads, head_dim = _heads(elements)
            if min(tokens, heads) < 2:
                raise refused
            return TorchCall(shapes=(((tokens, heads, head_dim), precision),), call=lambda x: x.transpose(0, 1).contiguous())
        case "layout":
            height, width = _rectangle(columns)
            if rows < 2 or columns < 2:
                raise refused
            shape = (1, rows, height, width)
            return TorchCall(shapes=((shape, precision),), call=lambda x: x.contiguous(memory_format=torch.channels_last))
        case "gather":

            def prepare(inputs: list[Any]) -> list[Any]:
                generator = torch.Generator(device=device.device).manual_seed(rows)
                return [inputs[0], torch.randperm(rows, device=device.device, generator=generator)]

            return TorchCall(shapes=values, prepare=prepare, call=lambda x, index: x.index_select(0, index), scratch_bytes=8 * rows)
        case _:
            if rows < 2:
                raise refused
            parts = (((rows // 2, columns), precision), ((rows - rows // 2, columns), precision))
            return TorchCall(shapes=parts, call=lambda x, y: torch.cat((x, y), 0))


def _convolution(operator: Operator, device: TorchDevice) -> TorchCall:
    """Convolution by cuDNN: channels last for the matrix units, channels first for fp32 on CUDA cores."""
    torch, functional = device.torch, device.torch.nn.functional
    batch, channels, height, width, filters, kernel_h, kernel_w, stride, padding, groups = (int(size) for size in operator.shape)
    precision = operator.precision
    on_tensor_cores = precision in ("fp16", "bf16", "tf32")
    if operator.cuda_cores and on_tensor_cores:
        raise UnsupportedError(f"conv.{operator.operator} in {precision}: cuDNN runs it on tensor cores; cuda_cores cannot be had")
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
    """Whether cuDNN may compute fp32 convolutions in tf32; the switch was renamed in PyTorch 2.9."""
    convolution = getattr(torch.backends.cudnn, "conv", None)
    if convolution is not None and hasattr(convolution, "fp32_precision"):
        convolution.fp32_precision = "tf32" if allowed else "ieee"
    else:
        torch.backends.cudnn.allow_tf32 = allowed


def _scaled_product(operator: Operator, device: TorchDevice, compute_capability: float) -> TorchCall:
    """A linear layer in fp8 with one scale for each operand: cuBLASLt through torch._scaled_mm, output in bf16."""
    torch = device.torch
    batch, m, n, k = (int(size) for size in operator.shape)
    where = f"gemm.{operator.operator} in {operator.precision}"
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


def _heads(elements: int) -> tuple[int, int, int]:
    """Tokens, heads and numbers of a head: the widest of usual heads that leaves several tokens and heads; ones where none does."""
    for head_dim in (*HEAD_SIZES, 1):
        heads, tokens = _rectangle(elements // head_dim) if elements % head_dim == 0 else (1, 1)
        if heads > 1:
            return tokens, heads, head_dim
    return 1, 1, elements


def _rectangle(elements: int) -> tuple[int, int]:
    """Two factors of a number of elements, as near to each other as they come, the larger one last."""
    rows = math.isqrt(elements)
    while elements % rows:
        rows -= 1
    return rows, elements // rows


def _output_elements(operator: Operator) -> float:
    """Numbers that a launch writes, at most."""
    match operator.family:
        case "gemm":
            return operator["batch"] * operator["m"] * operator["n"]
        case "conv":
            return operator["batch"] * operator["filters"] * operator["height"] * operator["width"] * 2.0
        case "attention":
            return operator["batch"] * operator["queries"] * operator["heads"] * operator["head_dim"]
        case "softmax" | "norm" | "reduction":
            return operator["rows"] * operator["dim"]
        case _:
            return operator["elements"]
