"""Floating-point instructions: IEEE ones exactly, approximate ones as the function itself.

A fused multiply-add is rounded once: sums are taken in float64 with their error known, and rounded to odd before the last rounding.
Sources: Dekker (1971), Knuth's two-sum; Boldo and Melquiond, "Emulation of FMA and correctly rounded sums" (2008).
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from estimator.quantities import Array
from microbench.numbers import decode, encode

Word = NDArray[Any]
SPLITTER: Final = 2.0**27 + 1.0
"""Dekker's constant for float64."""


def values(word: Word, kind: str) -> Array:
    """A register's number or numbers as float64."""
    if kind in ("f32", "f64"):
        return word.view(np.float32 if kind == "f32" else np.float64).astype(np.float64)
    return decode(word, kind)


def words(numbers: Array, kind: str) -> Word:
    """The register that holds these numbers, rounded to nearest."""
    if kind == "f32":
        return numbers.astype(np.float32).view(np.uint32)
    if kind == "f64":
        return np.ascontiguousarray(numbers).view(np.uint64)
    return encode(numbers, kind)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as a rounded sum and its error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a · b as a rounded product and its error."""
    product = a * b
    high_a, high_b = (SPLITTER * a - (SPLITTER * a - a)), (SPLITTER * b - (SPLITTER * b - b))
    low_a, low_b = a - high_a, b - high_b
    return product, low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)


def odd_sum(a: Array, b: Array) -> Array:
    """a + b rounded to odd: a later rounding to fewer digits is then as if from the exact sum."""
    total, error = two_sum(a, b)
    even = np.ascontiguousarray(total).view(np.uint64) & np.uint64(1) == 0
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error)
    return np.where(inexact & even, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


def fused(kind: str, a: Word, b: Word, c: Word) -> Word:
    """a · b + c, rounded once."""
    x, y, z = values(a, kind), values(b, kind), values(c, kind)
    if kind != "f64":
        return words(odd_sum(x * y, z), kind)
    high, low = two_product(x, y)
    middle, middle_error = two_sum(z, low)
    top, top_error = two_sum(high, middle)
    return words(top + odd_sum(middle_error, top_error), kind)


def add(kind: str, a: Word, b: Word) -> Word:
    """a + b."""
    return words(odd_sum(values(a, kind), values(b, kind)) if kind != "f64" else values(a, kind) + values(b, kind), kind)


def subtract(kind: str, a: Word, b: Word) -> Word:
    """a − b."""
    return words(odd_sum(values(a, kind), -values(b, kind)) if kind != "f64" else values(a, kind) - values(b, kind), kind)


def multiply(kind: str, a: Word, b: Word) -> Word:
    """a · b; exact in float64 for all but f64, which rounds once."""
    return words(values(a, kind) * values(b, kind), kind)


def minimum(kind: str, a: Word, b: Word) -> Word:
    """The smaller number."""
    return words(np.fmin(values(a, kind), values(b, kind)), kind)


def maximum(kind: str, a: Word, b: Word) -> Word:
    """The larger number."""
    return words(np.fmax(values(a, kind), values(b, kind)), kind)


def divide(kind: str, a: Word, b: Word) -> Word:
    """a / b, in the kind's own arithmetic."""
    if kind == "f32":
        return (a.view(np.float32) / b.view(np.float32)).view(np.uint32)
    return words(values(a, kind) / values(b, kind), kind)


def negate(kind: str, a: Word) -> Word:
    """−a."""
    return words(-values(a, kind), kind)


def copy_sign(sign: Word, size: Word) -> Word:
    """The magnitude of the second with the sign of the first (copysign.f32)."""
    top = np.uint32(1 << 31)
    return sign & top | size & ~top


def root(kind: str, a: Word) -> Word:
    """√a, in the kind's own arithmetic."""
    if kind == "f32":
        return np.sqrt(a.view(np.float32)).view(np.uint32)
    return words(np.sqrt(values(a, kind)), kind)


def reciprocal(kind: str, a: Word) -> Word:
    """1 / a."""
    if kind == "f32":
        return (np.float32(1.0) / a.view(np.float32)).view(np.uint32)
    return words(1.0 / values(a, kind), kind)


FUNCTIONS: Final[dict[str, Callable[[Array], Array]]] = {
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": np.tanh,
}
"""Approximate functions by their PTX name."""


def function(name: str, kind: str, a: Word) -> Word:
    """An approximate function, computed exactly and rounded."""
    return words(FUNCTIONS[name](values(a, kind)), kind)
