"""Integer instructions.  Registers hold unsigned words; every function takes and gives such arrays of shape (n,)."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.microbench.interpreter.program import InterpreterError

Word = NDArray[Any]

UNSIGNED: Final[dict[int, Any]] = {1: np.bool_, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: Final[dict[int, Any]] = {16: np.int16, 32: np.int32, 64: np.int64}
WORD: Final = np.uint64(32)
LOW_WORD: Final = np.uint64(0xFFFFFFFF)
LOW_24: Final = np.uint32(0xFFFFFF)
BITS_BELOW_HIGH: Final = np.uint64(16)
"""Bits of a 48-bit product below its high word."""


def view(word: Word, kind: str) -> Word:
    """A word read as u32, s64, f32…; b32 is as u32."""
    if kind[0] == "s":
        return word.view(SIGNED[int(kind[1:])])
    if kind[0] == "f":
        return word.view(np.dtype(f"f{int(kind[1:]) // 8}"))
    return word


def raw(value: Word) -> Word:
    """The unsigned word of a result."""
    return value.view(UNSIGNED[value.dtype.itemsize * 8])


def add(kind: str, a: Word, b: Word) -> Word:
    """a + b, modulo the width."""
    return a + b


def subtract(kind: str, a: Word, b: Word) -> Word:
    """a − b, modulo the width."""
    return a - b


def minimum(kind: str, a: Word, b: Word) -> Word:
    """The smaller, as signed or unsigned numbers."""
    return raw(np.minimum(view(a, kind), view(b, kind)))


def maximum(kind: str, a: Word, b: Word) -> Word:
    """The larger, as signed or unsigned numbers."""
    return raw(np.maximum(view(a, kind), view(b, kind)))


def low_product(kind: str, a: Word, b: Word) -> Word:
    """The low half of a · b."""
    return a * b


def wide_product(kind: str, a: Word, b: Word) -> Word:
    """All 64 bits of the product of two 32-bit numbers."""
    if kind[0] == "s":
        return raw(view(a, kind).astype(np.int64) * view(b, kind).astype(np.int64))
    return a.astype(np.uint64) * b.astype(np.uint64)


def high_product(kind: str, a: Word, b: Word) -> Word:
    """The high half of a · b."""
    return (wide_product(kind, a, b) >> WORD).astype(np.uint32)


def product_24(a: Word, b: Word, *, high: bool) -> Word:
    """The low or the high 32 of the 48 bits of the product of two 24-bit numbers."""
    whole = (a & LOW_24).astype(np.uint64) * (b & LOW_24).astype(np.uint64)
    return (whole >> BITS_BELOW_HIGH if high else whole & LOW_WORD).astype(np.uint32)


def quotient(kind: str, a: Word, b: Word) -> Word:
    """a / b, towards zero.  Raises InterpreterError for a divisor of 0, whose quotient PTX leaves open."""
    left, right = view(a, kind).astype(np.int64), view(b, kind).astype(np.int64)
    if np.any(right == 0):
        raise InterpreterError("an integer is divided by 0")
    size = np.abs(left) // np.abs(right)
    return np.where((left < 0) != (right < 0), -size, size).astype(np.int64).astype(np.uint64).astype(a.dtype)


def remainder(kind: str, a: Word, b: Word) -> Word:
    """a − b · (a / b)."""
    result: Word = a - b * quotient(kind, a, b)
    return result


def absolute(kind: str, a: Word) -> Word:
    """|a|."""
    return raw(np.abs(view(a, kind)))


def lop3(a: Word, b: Word, c: Word, table: int) -> Word:
    """The bitwise function of three words with this truth table (a: 0xf0, b: 0xcc, c: 0xaa)."""
    result = np.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


def shift_left(a: Word, by: Word) -> Word:
    """a · 2^by; 0 from the width on."""
    bits = a.dtype.itemsize * 8
    result: Word = np.where(by < bits, a << np.minimum(by, bits - 1).astype(a.dtype), a.dtype.type(0))
    return result


def shift_right(kind: str, a: Word, by: Word) -> Word:
    """a shifted right; the sign is kept for signed kinds."""
    bits = a.dtype.itemsize * 8
    amount = np.minimum(by, bits - 1).astype(a.dtype)
    if kind[0] == "s":
        signed = view(a, kind)
        return raw(signed >> amount.view(signed.dtype))
    result: Word = np.where(by < bits, a >> amount, a.dtype.type(0))
    return result


def funnel(left: bool, low: Word, high: Word, by: Word) -> Word:
    """32 bits of the 64-bit word high:low, shifted by `by` modulo 32: the upper ones to the left, the lower ones to the right."""
    amount = (by & np.uint32(31)).astype(np.uint64)
    both = high.astype(np.uint64) << WORD | low.astype(np.uint64)
    return (both << amount >> WORD if left else both >> amount & LOW_WORD).astype(np.uint32)


def bit_field(a: Word, position: Word, length: Word) -> Word:
    """`length` bits of a from `position` on (bfe.u32)."""
    start, count = (position & np.uint32(255)).astype(np.uint64), (length & np.uint32(255)).astype(np.uint64)
    mask = (np.uint64(1) << np.minimum(count, WORD)) - np.uint64(1)
    return (a.astype(np.uint64) >> np.minimum(start, WORD) & mask).astype(np.uint32)


def insert_field(field: Word, into: Word, position: Word, length: Word) -> Word:
    """The low `length` bits of `field` put into another word at `position` (bfi.b32)."""
    start, count = (position & np.uint32(255)).astype(np.uint64), (length & np.uint32(255)).astype(np.uint64)
    mask = ((np.uint64(1) << np.minimum(count, WORD)) - np.uint64(1)) << np.minimum(start, WORD) & LOW_WORD
    moved = field.astype(np.uint64) << np.minimum(start, WORD)
    return ((into.astype(np.uint64) & ~mask) | (moved & mask)).astype(np.uint32)


def reverse_bits(a: Word) -> Word:
    """The bits in reverse order."""
    result = np.zeros_like(a)
    for bit in range(32):
        result |= (a >> np.uint32(bit) & np.uint32(1)) << np.uint32(31 - bit)
    return result


def permute_bytes(a: Word, b: Word, selector: Word) -> Word:
    """Four bytes of b:a, each chosen by four bits; the highest of them spreads the byte's sign."""
    both = b.astype(np.uint64) << WORD | a.astype(np.uint64)
    result = np.zeros_like(a)
    for place in range(4):
        choice = selector >> np.uint32(4 * place) & np.uint32(15)
        byte = (both >> (choice & np.uint32(7)).astype(np.uint64) * np.uint64(8) & np.uint64(255)).astype(np.uint32)
        sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
        result |= np.where(choice & np.uint32(8), sign, byte) << np.uint32(8 * place)
    return result


def count_ones(a: Word) -> Word:
    """Bits that are set."""
    count = np.zeros_like(a)
    for bit in range(32):
        count += a >> np.uint32(bit) & np.uint32(1)
    return count


def highest_bit(kind: str, a: Word, shift: bool) -> Word:
    """Place of the highest bit that differs from the sign (bfind), or the shift that brings it to the top; all ones where there is none."""
    word = np.where(a >> np.uint32(31) == 1, ~a, a) if kind[0] == "s" else a
    place = np.full(a.shape, -1, dtype=np.int64)
    for bit in range(32):
        place = np.where(word >> np.uint32(bit) & np.uint32(1), bit, place)
    found = np.where(place < 0, -1, 31 - place) if shift else place
    return (found & 0xFFFFFFFF).astype(np.uint32)


def leading_zeros(a: Word) -> Word:
    """Zeros above the highest bit that is set."""
    return (np.uint32(31) - highest_bit("u32", a, False)).astype(np.uint32)


def difference_sum(kind: str, a: Word, b: Word, c: Word) -> Word:
    """|a − b| + c (sad)."""
    return maximum(kind, a, b) - minimum(kind, a, b) + c


def _bytes(word: Word, signed: bool) -> NDArray[np.int64]:
    return np.ascontiguousarray(word).view(np.int8 if signed else np.uint8).reshape(-1, 4).astype(np.int64)


def dot_bytes(a: Word, b: Word, c: Word) -> Word:
    """Sum of four products of signed bytes, and c (dp4a)."""
    result: Word = (np.sum(_bytes(a, True) * _bytes(b, True), axis=1) & 0xFFFFFFFF).astype(np.uint32) + c
    return result


def dot_halves(a: Word, b: Word, c: Word) -> Word:
    """Two signed 16-bit numbers times the lower two signed bytes, and c (dp2a.lo)."""
    halves = np.ascontiguousarray(a).view(np.int16).reshape(-1, 2).astype(np.int64)
    result: Word = (np.sum(halves * _bytes(b, True)[:, :2], axis=1) & 0xFFFFFFFF).astype(np.uint32) + c
    return result


def byte_differences(a: Word, b: Word, c: Word) -> Word:
    """Sum of four absolute differences of bytes, and c (vabsdiff4.add)."""
    result: Word = np.sum(np.abs(_bytes(a, False) - _bytes(b, False)), axis=1).astype(np.uint32) + c
    return result


COMPARISONS: Final[dict[str, Callable[[Word, Word], Word]]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
