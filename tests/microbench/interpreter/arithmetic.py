"""Instructions that compute one register from others.  Registers hold unsigned words, arrays of shape (n,).

Fused multiply-adds are rounded once: sums are taken in float64 with their error known, and rounded to odd before the last rounding.
Sources: Dekker (1971), Knuth's two-sum; Boldo and Melquiond, "Emulation of FMA and correctly rounded sums" (2008).
"""

import numpy as np

from microbench.numbers import decode, encode, nearest_codes
from tests.microbench.interpreter.program import InterpreterError

UNSIGNED = {1: np.bool_, 16: np.uint16, 32: np.uint32, 64: np.uint64}
FLOATING = frozenset({"f16", "f16x2", "bf16x2", "f32", "f64"})
LOW_WORD, WORD_BITS = np.uint64(0xFFFFFFFF), np.uint64(32)
SPLITTER = 2.0**27 + 1.0
"""Dekker's constant for float64."""


def view(word, kind):
    """A word read as u32, s64, f32…; b32 is as u32."""
    letter = {"s": "i", "f": "f"}.get(kind[0])
    return word.view(np.dtype(f"{letter}{word.itemsize}")) if letter else word


def raw(value):
    """The unsigned word of a result."""
    return value.view(UNSIGNED[value.dtype.itemsize * 8])


def values(word, kind):
    """A register's number or numbers as float64."""
    return view(word, kind).astype(np.float64) if kind in ("f32", "f64") else decode(word, kind)


def words(numbers, kind):
    """The register that holds these numbers, rounded to nearest."""
    return raw(np.ascontiguousarray(numbers).astype(f"f{int(kind[1:]) // 8}")) if kind in ("f32", "f64") else encode(numbers, kind)


def two_sum(a, b):
    """a + b as a rounded sum and its error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def odd_sum(a, b):
    """a + b rounded to odd: a later rounding to fewer digits is then as if from the exact sum."""
    total, error = two_sum(a, b)
    even = raw(np.ascontiguousarray(total)) & np.uint64(1) == 0
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error)
    return np.where(inexact & even, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


def fused(kind, x, y, z):
    """x · y + z, to be rounded once."""
    if kind != "f64":
        return odd_sum(x * y, z)
    high = x * y
    (top_x, low_x), (top_y, low_y) = ((t := SPLITTER * one - (SPLITTER * one - one), one - t) for one in (x, y))
    low = low_x * low_y - (((high - top_x * top_y) - low_x * top_y) - top_x * low_y)
    middle, middle_error = two_sum(z, low)
    top, top_error = two_sum(high, middle)
    return top + odd_sum(middle_error, top_error)


FUNCTIONS = {
    "mul": np.multiply, "min": np.fmin, "max": np.fmax, "abs": np.abs, "sqrt": np.sqrt,
    "div": np.divide, "rcp": lambda x: 1.0 / x, "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin, "cos": np.cos, "lg2": np.log2, "ex2": np.exp2, "tanh": np.tanh,
}  # fmt: skip
"""Functions of floating-point numbers; approximate ones are computed exactly and rounded."""

OWN_ARITHMETIC = frozenset({"div", "rcp", "sqrt"})
"""Those whose f32 form is computed in f32: a rounding of the rounded float64 could differ."""


def _floating(opcode, sources):
    root, kind = opcode[0], opcode[-1]
    if root == "copysign":
        top = np.uint32(1 << 31)
        return sources[0] & top | sources[1] & ~top
    if root in OWN_ARITHMETIC and kind == "f32":
        return raw(np.asarray(FUNCTIONS[root](*(view(word, kind) for word in sources)), dtype=np.float32))
    numbers = [values(word, kind) for word in sources]
    if root in ("add", "sub"):
        second = numbers[1] if root == "add" else -numbers[1]
        return words(odd_sum(numbers[0], second) if kind != "f64" else numbers[0] + second, kind)
    return words(fused(kind, *numbers) if root == "fma" else FUNCTIONS[root](*numbers), kind)


def product(opcode, a, b):
    """The low or the high half of a product of words, or all of it; of 24-bit numbers 32 of 48 bits."""
    if opcode[0].endswith("24"):
        whole = (a & np.uint32(0xFFFFFF)).astype(np.uint64) * (b & np.uint32(0xFFFFFF)).astype(np.uint64)
        return (whole >> np.uint64(16) if "hi" in opcode else whole & LOW_WORD).astype(np.uint32)
    if "lo" in opcode:
        return a * b
    wide = np.int64 if opcode[-1][0] == "s" else np.uint64
    whole = raw(view(a, opcode[-1]).astype(wide) * view(b, opcode[-1]).astype(wide))
    return whole if "wide" in opcode else (whole >> WORD_BITS).astype(np.uint32)


def quotient(kind, a, b):
    """a / b, towards zero.  Raises InterpreterError for a divisor of 0, whose quotient PTX leaves open."""
    left, right = view(a, kind).astype(np.int64), view(b, kind).astype(np.int64)
    if np.any(right == 0):
        raise InterpreterError("an integer is divided by 0")
    size = np.abs(left) // np.abs(right)
    return np.where((left < 0) != (right < 0), -size, size).astype(np.int64).astype(np.uint64).astype(a.dtype)


def lop3(a, b, c, table):
    """The bitwise function of three words with this truth table (a: 0xf0, b: 0xcc, c: 0xaa)."""
    rows = [row for row in range(8) if int(table[0]) >> row & 1]
    return np.bitwise_or.reduce(
        [np.zeros_like(a), *((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c) for row in rows)]
    )


def shift(left, kind, a, by):
    """a shifted by as much as it is wide at most; to the right the sign of signed kinds is kept."""
    bits = a.dtype.itemsize * 8
    amount = np.minimum(by, bits - 1).astype(a.dtype)
    if kind[0] == "s" and not left:
        return raw(view(a, kind) >> view(amount, kind))
    return np.where(by < bits, a << amount if left else a >> amount, a.dtype.type(0))


def funnel(left, low, high, by):
    """32 bits of the 64-bit word high:low, shifted by `by` modulo 32: the upper ones to the left, the lower ones to the right."""
    amount, both = (by & np.uint32(31)).astype(np.uint64), high.astype(np.uint64) << WORD_BITS | low.astype(np.uint64)
    return (both << amount >> WORD_BITS if left else both >> amount & LOW_WORD).astype(np.uint32)


def field(position, length):
    """Where a field begins, and its bits moved down to bit 0, as 64-bit words."""
    count = np.minimum((length & np.uint32(255)).astype(np.uint64), WORD_BITS)
    return np.minimum((position & np.uint32(255)).astype(np.uint64), WORD_BITS), (np.uint64(1) << count) - np.uint64(1)


def insert_field(bits, into, position, length):
    """The low `length` bits put into another word at `position` (bfi.b32)."""
    start, mask = field(position, length)
    mask = mask << start & LOW_WORD
    return (into.astype(np.uint64) & ~mask | bits.astype(np.uint64) << start & mask).astype(np.uint32)


def extract_field(a, position, length):
    """`length` bits from `position` on (bfe.u32)."""
    start, mask = field(position, length)
    return (a.astype(np.uint64) >> start & mask).astype(np.uint32)


def permute_bytes(a, b, selector):
    """Four bytes of b:a, each chosen by four bits; the highest of them spreads the byte's sign."""
    both = b.astype(np.uint64) << WORD_BITS | a.astype(np.uint64)
    result = np.zeros_like(a)
    for place in range(4):
        choice = selector >> np.uint32(4 * place) & np.uint32(15)
        byte = (both >> (choice & np.uint32(7)).astype(np.uint64) * np.uint64(8) & np.uint64(255)).astype(np.uint32)
        sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
        result |= np.where(choice & np.uint32(8), sign, byte) << np.uint32(8 * place)
    return result


def bits_of(a):
    """The bits of words, the lowest first, shape (n, 32)."""
    return a[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)


def highest_bit(kind, a, shifted):
    """Place of the highest bit that differs from the sign (bfind), or the shift that brings it to the top; all ones where there is none."""
    word = np.where(a >> np.uint32(31) == 1, ~a, a) if kind[0] == "s" else a
    place = np.where(word == 0, -1, 31 - np.argmax(bits_of(word)[:, ::-1], axis=1))
    return (np.where(shifted & (place >= 0), 31 - place, place) & 0xFFFFFFFF).astype(np.uint32)


def parts(word, kind):
    """Bytes or halves of words, shape (n, 4) or (n, 2)."""
    return np.ascontiguousarray(word).view(kind).reshape(len(word), -1).astype(np.int64)


def summed(terms, c):
    """The sum of a row's terms and c, modulo the width."""
    return (terms.sum(axis=1) & 0xFFFFFFFF).astype(np.uint32) + c


COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip

INTEGER = {
    "add": lambda o, a, b: a + b,
    "sub": lambda o, a, b: a - b,
    "and": lambda o, a, b: a & b,
    "or": lambda o, a, b: a | b,
    "xor": lambda o, a, b: a ^ b,
    "not": lambda o, a: ~a,
    "cnot": lambda o, a: (a == 0).astype(a.dtype),
    "mov": lambda o, a: a,
    "cvta": lambda o, a: a,
    "min": lambda o, a, b: raw(np.minimum(view(a, o[-1]), view(b, o[-1]))),
    "max": lambda o, a, b: raw(np.maximum(view(a, o[-1]), view(b, o[-1]))),
    "abs": lambda o, a: raw(np.abs(view(a, o[-1]))),
    "selp": lambda o, a, b, chosen: np.where(chosen, a, b),
    "lop3": lambda o, a, b, c, table: lop3(a, b, c, table),
    "shl": lambda o, a, by: shift(True, o[-1], a, by),
    "shr": lambda o, a, by: shift(False, o[-1], a, by),
    "shf": lambda o, low, high, by: funnel(o[1] == "l", low, high, by),
    "mul": product,
    "mul24": product,
    "mad": lambda o, a, b, c: product(o, a, b) + c,
    "mad24": lambda o, a, b, c: product(o, a, b) + c,
    "div": lambda o, a, b: quotient(o[-1], a, b),
    "rem": lambda o, a, b: a - b * quotient(o[-1], a, b),
    "bfe": lambda o, a, position, length: extract_field(a, position, length),
    "bfi": lambda o, bits, into, position, length: insert_field(bits, into, position, length),
    "brev": lambda o, a: np.packbits(bits_of(a).astype(np.uint8), axis=1).view(">u4").ravel().astype(np.uint32),
    "prmt": lambda o, a, b, selector: permute_bytes(a, b, selector),
    "popc": lambda o, a: bits_of(a).sum(axis=1, dtype=np.uint32),
    "clz": lambda o, a: np.uint32(31) - highest_bit("u32", a, False),
    "bfind": lambda o, a: highest_bit(o[-1], a, "shiftamt" in o),
    "sad": lambda o, a, b, c: INTEGER["max"](o, a, b) - INTEGER["min"](o, a, b) + c,
    "dp4a": lambda o, a, b, c: summed(parts(a, "i1") * parts(b, "i1"), c),
    "dp2a": lambda o, a, b, c: summed(parts(a, "i2") * parts(b, "i1")[:, :2], c),
    "vabsdiff4": lambda o, a, b, c: summed(np.abs(parts(a, "u1") - parts(b, "u1")), c),
}
"""Integer instructions by their first word: functions of the opcode and the sources."""


def compute(opcode, sources, carry):
    """The result of one instruction, and the carry flag after it."""
    root, kind = opcode[0], opcode[-1]
    if root in ("addc", "subc", "madc") or "cc" in opcode:
        return _carried(opcode, sources, carry)
    if root == "cvt":
        return _converted(kind, opcode[-2], sources), carry
    if root == "setp":
        return COMPARISONS[opcode[1]](*(values(word, kind) if kind in FLOATING else view(word, kind) for word in sources)), carry
    if kind in FLOATING and root != "selp":
        return _floating(opcode, sources), carry
    return INTEGER[root](opcode, *sources), carry


def _carried(opcode, sources, carry):
    """Additions, subtractions and products that set or read the carry; for a subtraction it is the borrow."""
    incoming = carry if opcode[0].endswith("c") else np.zeros_like(carry)
    root, wide = opcode[0].removesuffix("c"), [source.astype(np.uint64) for source in sources]
    if root == "sub":
        total, outgoing = wide[0] - wide[1] - incoming, (wide[0] < wide[1] + incoming).astype(np.uint64)
    else:
        first = wide[0] if root == "add" else product(("mad", "hi" if "hi" in opcode else "lo", "u32"), *sources[:2]).astype(np.uint64)
        total = first + wide[-1] + incoming
        outgoing = total >> WORD_BITS
    return (total & LOW_WORD).astype(np.uint32), outgoing if "cc" in opcode else carry


def _converted(origin, target, sources):
    """cvt of one number, or of two into one packed word (the first goes to the upper half)."""
    whole = origin not in FLOATING
    numbers = [view(source, origin) if whole else values(source, origin) for source in sources]
    if len(numbers) > 1:
        pairs = np.stack(numbers[::-1], axis=1).ravel()
        return encode(pairs, target) if target != "e4m3x2" else nearest_codes(pairs, "e4m3x4").view(np.uint16)
    bits = int(target[1:])
    if target in FLOATING:
        return raw(numbers[0].astype(f"f{bits // 8}"))
    if whole:
        return numbers[0].astype(UNSIGNED[bits])
    largest = 2.0 ** (bits - 1)
    return raw(np.clip(np.trunc(np.nan_to_num(numbers[0], nan=0.0)), -largest, largest - 1).astype(f"i{bits // 8}"))
