"""Conversion between float64 and number formats of GPUs: halves, bfloats, fp8, packed into words."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from estimator.vocabulary.quantities import Array

STORAGE: Final[dict[str, type[np.generic]]] = {
    "f16": np.uint16,
    "s32": np.int32,
    "f32": np.float32,
    "u64": np.uint64,
    "f64": np.float64,
    **dict.fromkeys(("u32", "f16x2", "bf16x2", "u8x4", "s8x4", "s4x8", "b1x32", "e4m3x4", "e5m2x4"), np.uint32),
}
"""NumPy type of a slot's kind in a record."""

VIEWED: Final[dict[str, Any]] = {"f16": np.float16, "f16x2": np.float16, "s8x4": np.int8, "u8x4": np.uint8}
"""Kinds that are arrays of a NumPy type."""

BITS: Final = {"s4x8": 4, "b1x32": 1}
"""Kinds whose whole numbers are narrower than a byte, with their width; those of 4 bits have a sign."""


def _widened(words: NDArray[Any]) -> Array:
    """The numbers as float64, with quiet NaNs for signalling ones."""
    with np.errstate(invalid="ignore"):
        values = words.astype(np.float64)
    return np.where(np.isnan(values), np.nan, values)


def _e4m3() -> Array:
    """The value of each positive e4m3 code; the last one is not a number (OCP 8-bit floating point specification)."""
    exponent, fraction = np.divmod(np.arange(128), 8)
    values = np.where(exponent == 0, fraction * 2.0**-9, (1.0 + fraction / 8.0) * 2.0 ** (exponent - 7.0))
    return np.where(np.arange(128) == 127, np.nan, values)


CODED: Final[dict[str, tuple[Any, Array]]] = {
    "bf16x2": (np.uint16, _widened((np.arange(1 << 15, dtype=np.uint32) << np.uint32(16)).view(np.float32))),
    "e4m3x4": (np.uint8, _e4m3()),
    "e5m2x4": (np.uint8, _widened((np.arange(128, dtype=np.uint16) << np.uint16(8)).view(np.float16))),
}
"""Other kinds of floating point: the type of a code, whose highest bit is the sign, and the value of each positive code."""


def decode(words: NDArray[Any], kind: str) -> Array:
    """The numbers in an array of one kind; packed kinds give 2 to 32 for each word, lowest bits first.  Shape (n · numbers,)."""
    packed = np.ascontiguousarray(words)
    if kind in VIEWED:
        return np.asarray(packed.view(VIEWED[kind]).astype(np.float64))
    if kind in CODED:
        storage, table = CODED[kind]
        codes = packed.view(storage)
        return np.asarray(np.where(codes >= len(table), -1.0, 1.0) * table[codes % len(table)])
    if kind in BITS:
        numbers = np.unpackbits(packed.view(np.uint8), bitorder="little").reshape(-1, BITS[kind]) @ (1 << np.arange(BITS[kind]))
        return np.asarray((numbers - 16 * (numbers > 7)).astype(np.float64))
    return _widened(words)


def encode(values: Array, kind: str) -> NDArray[Any]:
    """The stored form of numbers, rounded to nearest; the inverse of `decode`."""
    if kind in VIEWED:
        rounded = values if VIEWED[kind] is np.float16 else np.rint(values)
        return np.ascontiguousarray(rounded.astype(VIEWED[kind])).view(STORAGE[kind])
    if kind in CODED:
        return np.ascontiguousarray(nearest_codes(values, kind)).view(np.uint32)
    if kind in BITS:
        bits = np.rint(values).astype(np.int64)[:, None] >> np.arange(BITS[kind]) & 1
        return np.packbits(bits.astype(np.uint8), bitorder="little").view(np.uint32)
    return values.astype(STORAGE[kind])


def nearest_codes(values: Array, kind: str) -> NDArray[Any]:
    """float64 → the codes of a kind of CODED, rounded once to nearest, ties to even, and limited to the largest number."""
    storage, table = CODED[kind]
    finite = table[np.isfinite(table)]
    size = np.minimum(np.abs(values), finite[-1])
    above = np.clip(np.searchsorted(finite, size), 1, len(finite) - 1)
    down, up = size - finite[above - 1], finite[above] - size
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, above - 1)
    code = np.where(np.isnan(values), len(table) - 1, code)
    return (code | np.where(np.signbit(values), len(table), 0)).astype(storage)
