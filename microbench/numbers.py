"""Numbers as GPUs store them: halves, bfloats, fp8, packed into words; to and from float64."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from estimator.quantities import Array

STORAGE: Final[dict[str, Any]] = {
    "f16": np.uint16,
    "u32": np.uint32,
    "s32": np.int32,
    "f32": np.float32,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
    "u8x4": np.uint32,
    "s8x4": np.uint32,
    "s4x8": np.uint32,
    "b1x32": np.uint32,
    "e4m3x4": np.uint32,
    "e5m2x4": np.uint32,
    "u64": np.uint64,
    "s64": np.int64,
    "f64": np.float64,
}
"""How a slot's kind lies in a record."""

E4M3_BIAS: Final = 7
E4M3_NAN: Final = 0x7F
E4M3_MAX: Final = 448.0
"""The largest e4m3 number (OCP 8-bit floating point specification)."""

E5M2_MAX: Final = 57344.0
"""The largest e5m2 number (OCP 8-bit floating point specification); the format is the upper byte of a half."""

HALF_BYTE: Final = 4
BF16_SHIFT: Final = 16


def _e4m3_table() -> Array:
    """The value of each e4m3 code, shape (256,)."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, fraction * 2.0 ** (1 - E4M3_BIAS - 3), (1.0 + fraction / 8.0) * 2.0 ** (exponent - float(E4M3_BIAS)))
    value = np.where(code & E4M3_NAN == E4M3_NAN, np.nan, value)
    return np.where(code & 0x80, -value, value)


E4M3: Final = _e4m3_table()


def decode(words: NDArray[Any], kind: str) -> Array:
    """The numbers in an array of one kind; packed kinds give 2 to 32 for each word, lowest bits first.  Shape (n · numbers,)."""
    match kind:
        case "f16":
            return words.view(np.float16).astype(np.float64)
        case "f16x2":
            return np.ascontiguousarray(words).view(np.float16).astype(np.float64)
        case "bf16x2":
            return bf16_values(np.ascontiguousarray(words).view(np.uint16))
        case "s8x4":
            return np.ascontiguousarray(words).view(np.int8).astype(np.float64)
        case "u8x4":
            return np.ascontiguousarray(words).view(np.uint8).astype(np.float64)
        case "s4x8":
            return _nibbles(np.ascontiguousarray(words).view(np.uint8))
        case "b1x32":
            return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little").astype(np.float64)
        case "e4m3x4":
            return E4M3[np.ascontiguousarray(words).view(np.uint8)]
        case "e5m2x4":
            return (np.ascontiguousarray(words).view(np.uint8).astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float64)
        case _:
            with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
                return words.astype(np.float64)


def encode(values: Array, kind: str) -> NDArray[Any]:
    """The stored form of numbers, rounded to nearest; the inverse of `decode`."""
    match kind:
        case "f16":
            return values.astype(np.float16).view(np.uint16)
        case "f16x2":
            return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
        case "bf16x2":
            return np.ascontiguousarray(bf16_codes(values)).view(np.uint32)
        case "s8x4":
            return np.ascontiguousarray(np.rint(values).astype(np.int8)).view(np.uint32)
        case "u8x4":
            return np.ascontiguousarray(np.rint(values).astype(np.uint8)).view(np.uint32)
        case "s4x8":
            low, high = np.rint(values).astype(np.int8).view(np.uint8).reshape(-1, 2).T & np.uint8(15)
            return np.ascontiguousarray(low | high << np.uint8(HALF_BYTE)).view(np.uint32)
        case "b1x32":
            return np.packbits(np.rint(values) != 0, bitorder="little").view(np.uint32)
        case "e4m3x4":
            return np.ascontiguousarray(e4m3_codes(values)).view(np.uint32)
        case "e5m2x4":
            return np.ascontiguousarray(e5m2_codes(values)).view(np.uint32)
        case _:
            return values.astype(STORAGE[kind])


def bf16_values(codes: NDArray[np.uint16]) -> Array:
    """bfloat16 → float64."""
    with np.errstate(invalid="ignore"):
        return (codes.astype(np.uint32) << np.uint32(BF16_SHIFT)).view(np.float32).astype(np.float64)


def bf16_codes(values: Array) -> NDArray[np.uint16]:
    """float64 → bfloat16, to nearest, ties to even; not a number stays so.

    From float64 in one step: rounding to float32 first would round twice.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
    word = np.ascontiguousarray(single).view(np.uint32).astype(np.uint64)
    kept = word & np.uint64(0xFFFF0000)
    below = np.abs(values - bf16_values((kept >> np.uint64(BF16_SHIFT)).astype(np.uint16)))
    step = _bf16_step(kept)
    odd = (word >> np.uint64(BF16_SHIFT)) & np.uint64(1)
    up = np.where(np.isfinite(values), (below > step / 2) | ((below == step / 2) & (odd == 1)), False)
    rounded = (kept + (up.astype(np.uint64) << np.uint64(BF16_SHIFT))).astype(np.uint32)
    codes = (rounded >> np.uint32(BF16_SHIFT)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), codes)


def _bf16_step(kept: NDArray[np.uint64]) -> Array:
    """Distance to the next bfloat16 away from zero."""
    code = (kept >> np.uint64(BF16_SHIFT)).astype(np.uint16)
    here, beyond = bf16_values(code), bf16_values(code + np.uint16(1))
    with np.errstate(invalid="ignore"):
        step = np.abs(beyond - here)
    return np.where(np.isfinite(step), step, np.inf)


def _nibbles(pairs: NDArray[np.uint8]) -> Array:
    """Two signed numbers of four bits to a byte, the lower first."""
    both = np.stack([pairs << np.uint8(HALF_BYTE), pairs & np.uint8(0xF0)], axis=1).view(np.int8) >> HALF_BYTE
    return np.asarray(both.astype(np.float64).ravel())


def e5m2_codes(values: Array) -> NDArray[np.uint8]:
    """float64 → e5m2, to nearest, ties to even; beyond the largest number, the largest (satfinite)."""
    table = (np.arange(0x7C, dtype=np.uint16) << np.uint16(8)).view(np.float16).astype(np.float64)
    size = np.minimum(np.abs(values), E5M2_MAX)
    above = np.clip(np.searchsorted(table, size), 1, len(table) - 1)
    down, up = size - table[above - 1], table[above] - size
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, above - 1)
    code = np.where(np.isnan(values), 0x7F, code)
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def e4m3_codes(values: Array) -> NDArray[np.uint8]:
    """float64 → e4m3, to nearest, ties to even; beyond the largest number, the largest (satfinite)."""
    size = np.minimum(np.abs(values), E4M3_MAX)
    table = E4M3[:E4M3_NAN]
    above = np.clip(np.searchsorted(table, size), 1, E4M3_NAN - 1)
    down, up = size - table[above - 1], table[above] - size
    take_up = (up < down) | ((up == down) & (above % 2 == 0))
    code = np.where(take_up, above, above - 1)
    code = np.where(size == 0.0, 0, code)
    code = np.where(np.isnan(values), E4M3_NAN, code)
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)
