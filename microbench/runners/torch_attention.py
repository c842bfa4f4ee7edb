"""Attention by PyTorch: FlashAttention, cuDNN, memory-efficient or plain arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from estimator.quantities import BYTES_PER_ELEMENT
from estimator.workload import Operator
from microbench.errors import UnsupportedError
from microbench.runners.torch_device import TorchDevice

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCall:
    """How PyTorch computes an operator: `shapes` of the random inputs, each with its precision, and `call` on them.

    `prepare` turns the drawn inputs into what `call` takes (layouts, masks); `library` supplies the kernel, `transpose`
    is the layout of a product's inputs, `scratch_bytes` what it needs beyond operands and result.
    """

    shapes: tuple[tuple[tuple[int, ...], str], ...]
    call: Call
    prepare: Callable[[list[Any]], list[Any]] = lambda inputs: inputs
    library: str = "pytorch"
    transpose: str = ""
    scratch_bytes: int = 0


BACKENDS: Final[dict[str, str]] = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
"""torch.nn.attention.SDPBackend by our names."""

LIBRARIES: Final[dict[str, str]] = {"flash": "flash-attention", "cudnn": "cudnn", "efficient": "pytorch", "math": "pytorch"}

HALVES_ALONE: Final = frozenset({"flash", "cudnn"})
"""Backends that compute in fp16 and bf16 alone; other precisions take plain arithmetic."""

WIDEST_HEAD: Final = 256
"""Head size up to which FlashAttention and cuDNN have kernels."""

WORKSPACE_BYTES: Final = 64 << 20


def attention_call(operator: Operator, device: TorchDevice, attention: str) -> TorchCall:
    """scaled_dot_product_attention by one backend; operands lie as models keep them, [batch, token, head, number].

    Raises UnsupportedError for an unknown backend, a sliding window, mixed precisions and heads that it cannot take.
    """
    if attention not in BACKENDS:
        raise UnsupportedError(f"attention by {attention!r}: known are {', '.join(BACKENDS)}")
    torch, functional = device.torch, device.torch.nn.functional
    batch, queries, context, heads, kv_heads, head_dim, window, causal = (int(size) for size in operator.shape)
    precision = operator.precision
    where = f"attention.{operator.operator} in {precision}"
    if 0 < window < context:
        raise UnsupportedError(f"{where}: a window of {window} tokens; PyTorch's kernels see all {context}")
    if operator.precision_kv and operator.precision_kv != precision:
        raise UnsupportedError(f"{where}: keys and values in {operator.precision_kv}; PyTorch wants one precision")
    if causal and queries > 1 and queries != context:
        raise UnsupportedError(f"{where}: causal with {queries} queries on {context} tokens; PyTorch aligns the mask at the first token")
    chosen = attention if precision in ("fp16", "bf16") or attention not in HALVES_ALONE else "math"
    if chosen in HALVES_ALONE and head_dim > WIDEST_HEAD:
        raise UnsupportedError(f"{where}: heads of {head_dim} numbers; {chosen} takes up to {WIDEST_HEAD}")
    backend = getattr(torch.nn.attention.SDPBackend, BACKENDS[chosen])
    is_causal = bool(causal) and queries > 1
    grouped = {"enable_gqa": True} if kv_heads != heads else {}

    def call(q: Any, k: Any, v: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, **grouped)

    scores = batch * heads * queries * context * BYTES_PER_ELEMENT[precision] if chosen == "math" else 0.0
    shapes = tuple(
        ((batch, tokens, own_heads, head_dim), precision)
        for tokens, own_heads in ((queries, heads), (context, kv_heads), (context, kv_heads))
    )
    return TorchCall(
        shapes=shapes,
        prepare=lambda inputs: [values.transpose(1, 2) for values in inputs],
        call=call,
        library=LIBRARIES[chosen],
        scratch_bytes=WORKSPACE_BYTES + int(3 * scores),
    )
