"""Kernels by PyTorch: softmax, norms, reductions, element-wise work, copies, convolutions, attention, fp8 products.

Operands are drawn once for each buffer set; a result replaces the previous one in the same memory, so that no launch
allocates memory and results rotate with the operands.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import Operator, cudnn_takes
from microbench.layouts import refuse
from microbench.runners.runner import BoundKernel, Launch, LibraryKernel
from microbench.runners.torch_device import TorchDevice

Call = Callable[..., Any]
Shapes = Sequence[tuple[int, ...]]

NORM_EPSILON: Final = 1e-5
"""PyTorch's default."""

SCALAR: Final = 1.5
"""Second operand of operators with a number."""

FP8_CAPABILITY: Final = 8.9
"""Least compute capability with fp8 matrix units."""

WORKSPACE_BYTES: Final = 256 << 20
"""Memory for the workspaces of convolutions, attention and fp8 products."""

BACKENDS: Final = {
    "flash": ("FLASH_ATTENTION", "flash-attention"),
    "cudnn": ("CUDNN_ATTENTION", "cudnn"),
    "efficient": ("EFFICIENT_ATTENTION", "pytorch"),
    "math": ("MATH", "pytorch"),
}
"""torch.nn.attention.SDPBackend and the library behind it, by our names."""

OWN_BACKEND: Final = "pytorch"
"""Name of the backend that PyTorch itself prefers on the board, from version 2.11 on."""

HALVES_ALONE: Final = frozenset({"flash", "cudnn"})
"""Backends for fp16 and bf16 only; other precisions use plain arithmetic."""

SHORTEST_SIDE: Final = 16
"""Shortest side of a matrix that is transposed, and shortest head that moves as one.  On an H200 copies of heads of one number run at the
rate of transpositions, and transpositions of three rows at that of copies of heads, three times as fast."""

WIDEST_HEAD: Final = 256
"""Largest head size of the kernels of FlashAttention and cuDNN."""


@dataclass(frozen=True, slots=True)
class Case:
    """An operator on a device."""

    operator: Operator
    device: TorchDevice

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(map(int, self.operator.shape))

    def refuse(self, broken: bool, reason: str) -> None:
        """Raise UnsupportedError with the reason if a condition is broken."""
        refuse(broken, self.operator, reason)

    def kernel(
        self,
        shapes: Shapes,
        call: Call,
        prepare: Callable[[list[Any]], list[Any]] = lambda inputs: inputs,
        *,
        library: str = "pytorch",
        transpose: str = "",
        scratch_bytes: int = 0,
    ) -> LibraryKernel:
        """The kernel that `call` runs on random inputs of these shapes.

        `prepare` turns the drawn inputs into the inputs of `call` (layouts, masks); `library` supplies the kernel, `transpose`
        is the layout of a product's inputs, `scratch_bytes` the memory beyond operands and result.
        """
        work, device, precision = operator_work(self.operator), self.device, self.operator.precision

        def bind(buffer_sets: int, seed: int) -> BoundKernel:
            drawn = [
                [device.normal(shape, precision, seed + index * len(shapes) + i) for i, shape in enumerate(shapes)]
                for index in range(buffer_sets)
            ]
            results: list[Any] = [None] * buffer_sets

            def launch_of(index: int) -> Launch:
                inputs = prepare(drawn[index])

                def launch() -> None:
                    results[index] = call(*inputs)

                return launch

            return BoundKernel(
                launches=tuple(map(launch_of, range(buffer_sets))),
                capture=device.capture,
                arrays=lambda index: (*drawn[index], results[index]),
            )

        return LibraryKernel(
            library=library,
            transpose=transpose,
            working_set_bytes=max(1, int(work.read_byte + work.write_byte)),
            scratch_bytes=int(work.write_byte) + scratch_bytes,
            bind=bind,
        )


def torch_kernel(operator: Operator, device: TorchDevice, compute_capability: float, attention: str) -> LibraryKernel:
    """PyTorch's kernel for an operator.  `attention` is one of BACKENDS, or OWN_BACKEND.

    Raises UnsupportedError for an operator, a precision or a shape that PyTorch does not have here.
    """
    case, family, precision = Case(operator, device), operator.family, operator.precision
    device.dtype(precision)  # a precision that PyTorch lacks is refused before any operand is drawn
    case.refuse(precision == "fp8" and family not in ("gemm", "copy"), "PyTorch has fp8 for products and copies alone")
    match family:
        case "gemm":
            return _scaled_product(case, compute_capability)
        case "conv":
            return _convolution(case)
        case "attention":
            own = "cudnn" if cudnn_takes(operator, f"{compute_capability:.1f}") else "flash"
            return _attention(case, own if attention == OWN_BACKEND else attention)
        case "softmax" | "norm" | "reduction":
            return _rowwise(case)
        case "copy":
            return _copy(case)
        case _:
            return _elementwise(case)


def _rowwise(case: Case) -> LibraryKernel:
    """Softmax, norms and reductions over the last of two dimensions, with their vectors of weights."""
    operator, torch = case.operator, case.device.torch
    functional, (rows, dim) = torch.nn.functional, case.sizes
    out = case.device.dtype(operator.precision_out) if operator.precision_out else None
    calls: dict[str, tuple[int, Call]] = {
        "softmax": (0, lambda x: torch.softmax(x, -1, dtype=out)),
        "layernorm": (2, lambda x, weight, bias: functional.layer_norm(x, (dim,), weight, bias, NORM_EPSILON)),
        "rmsnorm": (1, lambda x, weight: functional.rms_norm(x, (dim,), weight, NORM_EPSILON)),
        "batchnorm": (4, lambda x, mean, variance, *own: functional.batch_norm(x, mean, variance, *own, False, 0.0, NORM_EPSILON)),
        "sum": (0, lambda x: torch.sum(x, -1, dtype=out)),
        "mean": (0, lambda x: torch.mean(x, -1, dtype=out)),
        "max": (0, lambda x: torch.amax(x, -1)),
    }
    case.refuse(operator.operator not in calls, "PyTorch has no single kernel for it")
    vectors, call = calls[operator.operator]

    def prepare(inputs: list[Any]) -> list[Any]:
        return [*inputs[:2], inputs[2].square() + 1.0, *inputs[3:]] if operator.operator == "batchnorm" else inputs

    return case.kernel([(rows, dim), *[(dim,)] * vectors], call, prepare)


def _elementwise(case: Case) -> LibraryKernel:
    """Element-wise operators; a smaller second input is broadcast along the leading dimension."""
    device, torch, (elements, reads) = case.device, case.device.torch, case.sizes
    name, dtype, out = case.operator.operator, device.dtype(case.operator.precision), device.dtype(case.operator.precision_out or "fp32")
    unary: dict[str, Call] = {
        "scalar_add": lambda x: x + SCALAR,
        "scalar_mul": lambda x: x * SCALAR,
        "scalar_div": lambda x: x / SCALAR,
        "scalar_pow": lambda x: torch.pow(x, 3.0),  # a general exponent for the library, finite for normal numbers
        **{name: getattr(torch, name) for name in ("relu", "tanh", "sigmoid", "exp", "where")},
        **{name: getattr(torch.nn.functional, name) for name in ("gelu", "silu")},
        "dropout": lambda x: torch.nn.functional.dropout(x, 0.1, True),
        "typecast": lambda x: x.to(out),
    }
    case.refuse(name == "typecast" and out == dtype, "a conversion to itself moves nothing")
    if name in ("add", "mul", "div", "pow"):
        second = reads - elements
        case.refuse(
            not 0 <= second <= elements or bool(elements % max(second, 1)), f"the second input must divide the first; sizes {case.sizes}"
        )
        first = (elements // second, second) if 0 < second < elements else (elements,)
        return case.kernel(
            [first, (max(second, 1),)], getattr(torch, name), lambda inputs: [inputs[0].abs(), inputs[1]] if name == "pow" else inputs
        )
    case.refuse(name not in unary or reads != elements, f"PyTorch has no single kernel for it; sizes {case.sizes}")
    if name != "where":
        return case.kernel([(elements,)], unary[name])
    nothing = torch.zeros((), dtype=dtype, device=device.device)
    return case.kernel([(elements,)], unary[name], lambda inputs: [inputs[0] > 0, *inputs, nothing], scratch_bytes=elements)


def _copy(case: Case) -> LibraryKernel:
    """Copies without arithmetic: permuted heads, transposition, channels last, gathered rows, concatenation."""
    device, torch, (elements, reads) = case.device, case.device.torch, case.sizes
    name = case.operator.operator
    case.refuse(reads != elements, f"a copy reads what it writes; sizes {case.sizes}")
    rows, columns = _rectangle(elements)
    tokens, heads, head_dim = _heads(elements)
    least = SHORTEST_SIDE if name == "transpose" else 2
    still = rows < least if name in ("transpose", "layout", "cat") else name == "contiguous" and min(tokens, heads) < 2
    case.refuse(still, f"{elements} elements cannot be laid out so that a copy moves them")
    calls: dict[str, tuple[Shapes, Call]] = {
        "transpose": ([(rows, columns)], lambda x: x.t().contiguous()),
        "contiguous": ([(tokens, heads, head_dim)], lambda x: x.transpose(0, 1).contiguous()),
        "layout": ([(1, rows, *_rectangle(columns))], lambda x: x.contiguous(memory_format=torch.channels_last)),
        "gather": ([(rows, columns)], lambda x, index: x.index_select(0, index)),
        "cat": ([(rows // 2, columns), (rows - rows // 2, columns)], lambda x, y: torch.cat((x, y), 0)),
    }

    def permuted(inputs: list[Any]) -> list[Any]:
        generator = torch.Generator(device=device.device).manual_seed(rows)
        return [*inputs, torch.randperm(rows, device=device.device, generator=generator)]

    return case.kernel(*calls[name], permuted, scratch_bytes=8 * rows) if name == "gather" else case.kernel(*calls[name])


def _convolution(case: Case) -> LibraryKernel:
    """Convolution by cuDNN: channels last for the matrix units, channels first for fp32 on CUDA cores."""
    torch, precision = case.device.torch, case.operator.precision
    batch, channels, height, width, filters, kernel_h, kernel_w, stride, padding, groups = case.sizes
    on_tensor_cores = precision in ("fp16", "bf16", "tf32")
    case.refuse(case.operator.cuda_cores and on_tensor_cores, "cuDNN runs it on tensor cores; cuda_cores cannot be had")
    memory = torch.channels_last if on_tensor_cores else torch.contiguous_format

    def call(x: Any, weight: Any) -> Any:
        _set_tf32(torch, precision == "tf32")
        return torch.nn.functional.conv2d(x, weight, None, stride, padding, 1, groups)

    return case.kernel(
        [(batch, channels, height, width), (filters, channels // groups, kernel_h, kernel_w)],
        call,
        lambda inputs: [values.contiguous(memory_format=memory) for values in inputs],
        library="cudnn",
        scratch_bytes=WORKSPACE_BYTES,
    )


def _set_tf32(torch: Any, allowed: bool) -> None:
    """Set whether cuDNN may compute fp32 convolutions in tf32; the switch was renamed in PyTorch 2.9."""
    if hasattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision"):
        torch.backends.cudnn.conv.fp32_precision = "tf32" if allowed else "ieee"
    else:
        torch.backends.cudnn.allow_tf32 = allowed


def _scaled_product(case: Case, compute_capability: float) -> LibraryKernel:
    """A linear layer in fp8 with one scale for each operand: cuBLASLt through torch._scaled_mm, output in bf16, sizes multiples of 16.

    Accumulates in full precision (without Hopper's fast accumulation); `scripts.card_smoke` measures both.
    """
    device, torch, (batch, m, n, k) = case.device, case.device.torch, case.sizes
    case.refuse(compute_capability < FP8_CAPABILITY, f"needs compute capability {FP8_CAPABILITY}, this board has {compute_capability:g}")
    case.refuse(batch != 1 or bool(n % 16 or k % 16), f"one product with n and k multiples of 16; sizes {case.sizes}")
    dtype_out = device.dtype(case.operator.precision_out or "bf16")
    return case.kernel(
        [(m, k), (n, k)],
        lambda x, weight, scale: torch._scaled_mm(x, weight, scale_a=scale, scale_b=scale, out_dtype=dtype_out, use_fast_accum=False),
        lambda inputs: [inputs[0], inputs[1].t(), torch.ones((), dtype=torch.float32, device=device.device)],
        library="cublas",
        transpose="tn",
        scratch_bytes=WORKSPACE_BYTES,
    )


def _attention(case: Case, attention: str) -> LibraryKernel:
    """scaled_dot_product_attention by one backend; operands have the layout of models, [batch, token, head, number]."""
    case.refuse(attention not in BACKENDS, f"attention by {attention!r} is unknown; known: {OWN_BACKEND}, {', '.join(BACKENDS)}")
    torch, precision = case.device.torch, case.operator.precision
    batch, queries, context, heads, kv_heads, head_dim, window, causal = case.sizes
    shifted = bool(causal) and 1 < queries != context
    case.refuse(0 < window < context, f"a window of {window} tokens; PyTorch's kernels see all {context}")
    case.refuse(case.operator.precision_kv not in ("", precision), "PyTorch wants one precision for queries, keys and values")
    case.refuse(shifted, "causal with fewer queries than tokens; PyTorch aligns the mask at the first token")
    chosen = attention if precision in ("fp16", "bf16") or attention not in HALVES_ALONE else "math"
    too_wide = chosen in HALVES_ALONE and head_dim > WIDEST_HEAD
    case.refuse(too_wide, f"heads of {head_dim} numbers; {chosen} takes up to {WIDEST_HEAD}")
    backend, library = BACKENDS[chosen]
    options = {"is_causal": bool(causal) and queries > 1} | ({"enable_gqa": True} if kv_heads != heads else {})

    def call(q: Any, k: Any, v: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    scores = batch * heads * queries * context * BYTES_PER_ELEMENT[precision] if chosen == "math" else 0.0
    cached = (batch, context, kv_heads, head_dim)
    return case.kernel(
        [(batch, queries, heads, head_dim), cached, cached],
        call,
        lambda inputs: [values.transpose(1, 2) for values in inputs],
        library=library,
        scratch_bytes=WORKSPACE_BYTES + int(3 * scores),
    )


def _heads(elements: int) -> tuple[int, int, int]:
    """Tokens, heads and head size: the widest usual head size that leaves several tokens and heads; else ones."""
    for head_dim in (128, 64, 32, SHORTEST_SIDE):  # head sizes, the usual ones first
        heads, tokens = _rectangle(elements // head_dim) if elements % head_dim == 0 else (1, 1)
        if heads > 1:
            return tokens, heads, head_dim
    return 1, 1, elements


def _rectangle(elements: int) -> tuple[int, int]:
    """The two nearest factors of a number of elements, the larger one last."""
    rows = next(rows for rows in range(math.isqrt(elements), 0, -1) if elements % rows == 0)
    return rows, elements // rows
