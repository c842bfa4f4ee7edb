"""Which calls of scaled_dot_product_attention PyTorch runs on a GPU as one fused kernel.

Source: ATen, native/transformers/cuda/sdp_utils.cpp, for boards from Ampere on.  FlashAttention takes 16-bit numbers, heads of up to
256 and no mask; the memory-efficient kernel takes 32-bit numbers and masks too, if heads fill whole 128-bit loads and share no keys;
cuDNN's takes masks and shared keys, in 16 bits and heads of up to 128.  What none takes is computed as products and a softmax.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from estimator.tracing.calls import Tensor

HALVES: Final = ("bfloat16", "float16")
SINGLE: Final = "float32"
AXES: Final = 4
"""Batch, heads, tokens, and the elements of a head."""

FLASH_HEAD: Final = 256
"""Longest head of FlashAttention."""

LOAD_BITS: Final = 128
"""Heads of the other kernels are whole loads."""

CUDNN_HEAD: Final = 128
"""Longest head of cuDNN's kernel on every board."""

BACKENDS: Final = ("flash", "mem_efficient", "cudnn")
"""Kernels, as PyTorch names their switches."""


@dataclass(slots=True)
class AttentionCalls:
    """How a trace takes calls of scaled_dot_product_attention, and what it has met.

    form      "flash": every one fused; "eager": none; "": those that a GPU fuses
    window    of sliding attention [token], 0 without one
    fused     calls recorded as one kernel
    fusible   calls taken apart that a GPU would fuse
    apart     why calls were taken apart that no fused kernel takes
    """

    form: str
    window: int = 0
    fused: int = 0
    fusible: int = 0
    apart: dict[str, None] = field(default_factory=dict)

    def fuses(self, reason: str) -> bool:
        """Whether to record a call as one kernel; reason: why a GPU does not fuse it, "" where it does."""
        if self.form == "flash" or not (self.form or reason):
            self.fused += 1
            return True
        if reason:
            self.apart[reason] = None
        else:
            self.fusible += 1
        return False

    def notes(self) -> tuple[str, ...]:
        """What a trace in this form says of them."""
        lines = []
        if self.fused and not self.form:
            lines.append("scaled_dot_product_attention was traced as one fused kernel, as PyTorch runs it on a GPU")
        if self.fusible:
            lines.append(
                "scaled_dot_product_attention was traced as separate kernels, as asked; PyTorch runs it fused on a GPU: --attention flash"
            )
        if self.apart:
            lines.append(f"scaled_dot_product_attention was traced as separate kernels: no fused one takes {', '.join(self.apart)}")
        return tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedRequest:
    """A call that might be fused; masked: with a mask of its own, shared_keys: several heads may use the keys of one."""

    query: Tensor
    key: Tensor
    value: Tensor
    masked: bool = False
    causal: bool = False
    shared_keys: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All three."""
        return self.query, self.key, self.value

    @property
    def grouped(self) -> bool:
        """Whether heads share keys."""
        return self.query.shape[1] != self.key.shape[1]


def why_not_fused(call: FusedRequest, backends: Collection[str] = BACKENDS) -> str:
    """What keeps a GPU from fusing a call, "" where nothing does; backends: those of BACKENDS that are switched on."""
    kinds = list(dict.fromkeys(tensor.dtype for tensor in call.tensors))
    if len(kinds) > 1 or kinds[0] not in (*HALVES, SINGLE):
        return f"{' and '.join(kinds)} numbers"
    if any(len(tensor.shape) != AXES for tensor in call.tensors):
        return f"tensors of {len(call.query.shape)} axes (it must be 4: batch, heads, tokens, elements)"
    if any(tensor.shape[-1] > 1 and tensor.strides[-1] != 1 for tensor in call.tensors):
        return "heads whose elements do not lie side by side"
    if len({tensor.shape[0] for tensor in call.tensors}) > 1:
        return "keys that several sequences share"
    if call.grouped and not call.shared_keys:
        return "heads that share keys without enable_gqa"
    refusals = {"flash": _flash_refusal, "mem_efficient": _efficient_refusal, "cudnn": _cudnn_refusal}
    found = [refusals[backend](call) for backend in BACKENDS if backend in backends]
    if not found:
        return "a call whose fused kernels are switched off"
    return "" if "" in found else found[0]


def _flash_refusal(call: FusedRequest) -> str:
    heads = {tensor.shape[-1] for tensor in call.tensors}
    if call.query.dtype == SINGLE:
        return f"{SINGLE} numbers in such heads"
    if len(heads) > 1 or max(heads) > FLASH_HEAD:
        return f"heads of {' and '.join(map(str, sorted(heads)))} elements"
    if call.masked:
        return "a mask with such heads"
    uneven = call.causal and call.query.shape[-2] != call.key.shape[-2]
    return "a causal mask over unequally many queries and keys with such heads" if uneven else ""


def _efficient_refusal(call: FusedRequest) -> str:
    return "heads that share keys" if call.grouped else _part_loads(call)


def _cudnn_refusal(call: FusedRequest) -> str:
    if call.query.dtype == SINGLE:
        return f"{SINGLE} numbers"
    most = max(tensor.shape[-1] for tensor in call.tensors)
    return f"heads of {most} elements" if most > CUDNN_HEAD else _part_loads(call)


def _part_loads(call: FusedRequest) -> str:
    whole = LOAD_BITS // (16 if call.query.dtype in HALVES else 32)
    return "" if all(tensor.shape[-1] % whole == 0 for tensor in call.tensors) else f"heads that are no multiple of {whole} elements"
