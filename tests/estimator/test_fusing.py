"""Which calls of attention a GPU runs as one kernel, by what PyTorch's selection of kernels asks for."""

import pytest

from estimator.tracing.calls import Tensor
from estimator.tracing.fusing import AttentionCalls, FusedRequest, why_not_fused


def tensor(*shape: int, dtype: str = "bfloat16", inner: int = 1) -> Tensor:
    strides = [inner]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return Tensor(shape=shape, strides=tuple(strides), dtype=dtype)


def call(head: int = 64, dtype: str = "bfloat16", value_head: int = 0, kv_heads: int = 8, keys: int = 128, **flags: bool) -> FusedRequest:
    key, value = (tensor(2, kv_heads, keys, size, dtype=dtype) for size in (head, value_head or head))
    return FusedRequest(query=tensor(2, 8, 128, head, dtype=dtype), key=key, value=value, **flags)


@pytest.mark.parametrize(
    "fused",
    [
        call(),
        call(dtype="float16", causal=True),
        call(dtype="float32"),
        call(dtype="float32", masked=True),
        call(head=60),  # FlashAttention fills up heads by itself
        call(head=256),
        call(head=320),
        call(masked=True),
        call(value_head=32),
        call(causal=True, keys=256),
        call(kv_heads=2, shared_keys=True),
        call(kv_heads=2, shared_keys=True, masked=True),
    ],
)
def test_what_some_kernel_takes_is_fused(fused: FusedRequest) -> None:
    assert why_not_fused(fused) == ""


@pytest.mark.parametrize(
    ("apart", "reason"),
    [
        (call(dtype="float64"), "float64 numbers"),
        (call(head=60, dtype="float16", masked=True), "a mask with such heads"),
        (call(head=30, dtype="float32"), "float32 numbers in such heads"),
        (call(head=300), "heads of 300 elements"),
        (call(value_head=30), "heads of 30 and 64 elements"),
        (call(head=60, causal=True, keys=256), "a causal mask over unequally many"),
        (call(kv_heads=2), "without enable_gqa"),
        (call(kv_heads=2, shared_keys=True, dtype="float32"), "float32 numbers in such heads"),
        (call(head=256, kv_heads=2, shared_keys=True, masked=True), "a mask with such heads"),
        (FusedRequest(query=tensor(8, 16, 64), key=tensor(8, 16, 64), value=tensor(8, 16, 64)), "tensors of 3 axes"),
        (FusedRequest(query=tensor(2, 8, 16, 64), key=tensor(1, 8, 16, 64), value=tensor(2, 8, 16, 64)), "several sequences share"),
        (FusedRequest(query=tensor(2, 8, 16, 64, inner=2), key=tensor(2, 8, 16, 64), value=tensor(2, 8, 16, 64)), "side by side"),
        (
            FusedRequest(query=tensor(2, 8, 16, 64), key=tensor(2, 8, 16, 64), value=tensor(2, 8, 16, 64, dtype="float32")),
            "bfloat16 and float32 numbers",
        ),
    ],
)
def test_what_no_kernel_takes_is_not_and_says_why(apart: FusedRequest, reason: str) -> None:
    assert reason in why_not_fused(apart)


def test_switched_off_kernels_fuse_nothing() -> None:
    assert "switched off" in why_not_fused(call(), ())
    assert why_not_fused(call(masked=True), ("flash",)) == "a mask with such heads"
    assert why_not_fused(call(masked=True), ("mem_efficient",)) == ""


@pytest.mark.parametrize(
    ("form", "reason", "fuses", "notes"),
    [
        ("flash", "r", True, 0),
        ("flash", "", True, 0),
        ("eager", "", False, 1),
        ("eager", "r", False, 1),
        ("", "", True, 1),
        ("", "r", False, 1),
    ],
)
def test_a_form_that_is_asked_for_decides_and_every_other_choice_is_noted(form: str, reason: str, fuses: bool, notes: int) -> None:
    met = AttentionCalls(form=form)
    assert met.fuses(reason) is fuses
    assert len(met.notes()) == notes
