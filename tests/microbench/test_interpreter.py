"""The interpreter against arithmetic done in another way: whole numbers, fractions, NumPy's own functions."""

import struct
from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.microbench.interpreter.arithmetic import compute

WORDS = st.integers(0, 2**32 - 1)
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False, min_value=-(2.0**60), max_value=2.0**60)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False, min_value=-(2.0**200), max_value=2.0**200)
MASK = 2**32 - 1


def one(opcode: str, *sources: NDArray[np.generic] | int | float, carry: int = 0) -> int:
    """The result of an instruction for one thread."""
    words = [word if isinstance(word, np.ndarray) else np.array([word], dtype=np.uint32) for word in sources]
    with np.errstate(all="ignore"):
        result, _ = compute(tuple(opcode.split(".")), words, np.array([carry], dtype=np.uint64))
    return int(result[0])


def signed(word: int) -> int:
    return word - 2**32 if word >> 31 else word


def single(number: float) -> NDArray[np.uint32]:
    return np.array([number], dtype=np.float32).view(np.uint32)


def double(number: float) -> NDArray[np.uint64]:
    return np.array([number], dtype=np.float64).view(np.uint64)


@given(WORDS, WORDS, WORDS)
def test_integer_arithmetic_is_that_of_whole_numbers_modulo_the_width(a: int, b: int, c: int) -> None:
    assert one("add.u32", a, b) == (a + b) & MASK
    assert one("sub.s32", a, b) == (a - b) & MASK
    assert one("mul.lo.u32", a, b) == a * b & MASK
    assert one("mul.hi.u32", a, b) == a * b >> 32
    assert one("mul.hi.s32", a, b) == (signed(a) * signed(b) >> 32) & MASK
    assert one("mad.hi.u32", a, b, c) == ((a * b >> 32) + c) & MASK
    assert one("mul.wide.u32", a, b) == a * b
    assert one("mul24.lo.u32", a, b) == (a & 0xFFFFFF) * (b & 0xFFFFFF) & MASK
    assert one("mul24.hi.u32", a, b) == (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16
    assert one("min.s32", a, b) == min(signed(a), signed(b)) & MASK
    assert one("max.u32", a, b) == max(a, b)
    assert one("sad.s32", a, b, c) == (abs(signed(a) - signed(b)) + c) & MASK
    assert one("abs.s32", a) == abs(signed(a)) & MASK


@given(WORDS, st.integers(1, 2**32 - 1))
def test_quotient_and_remainder_make_up_the_dividend(a: int, b: int) -> None:
    assert (one("div.u32", a, b), one("rem.u32", a, b)) == divmod(a, b)
    quotient, rest = signed(one("div.s32", a, b)), signed(one("rem.s32", a, b))
    if (signed(a), signed(b)) != (-(2**31), -1):
        assert quotient * signed(b) + rest == signed(a)
        assert abs(rest) < abs(signed(b))
        assert rest == 0 or (rest < 0) == (signed(a) < 0)


@given(WORDS, WORDS, WORDS, st.integers(0, 255))
def test_a_truth_table_decides_each_bit(a: int, b: int, c: int, table: int) -> None:
    expected = sum((table >> ((a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)) & 1) << bit for bit in range(32))
    assert one("lop3.b32", a, b, c, table) == expected


@given(WORDS, WORDS, st.integers(0, 80))
def test_shifts_are_those_of_whole_numbers(a: int, b: int, by: int) -> None:
    assert one("shl.b32", a, by) == a << by & MASK
    assert one("shr.u32", a, by) == a >> by
    assert one("shr.s32", a, by) == signed(a) >> by & MASK
    both = b << 32 | a
    assert one("shf.l.wrap.b32", a, b, by) == both << by % 32 >> 32 & MASK
    assert one("shf.r.wrap.b32", a, b, by) == both >> by % 32 & MASK


@given(WORDS, WORDS, WORDS)
def test_bytes_are_chosen_and_multiplied_one_by_one(a: int, b: int, selector: int) -> None:
    both = (b << 32 | a).to_bytes(8, "little")
    chosen = []
    for place in range(4):
        choice = selector >> 4 * place & 15
        byte = both[choice & 7]
        chosen.append((255 if byte & 128 else 0) if choice & 8 else byte)
    assert one("prmt.b32", a, b, selector) == int.from_bytes(bytes(chosen), "little")
    left, right = struct.unpack("4b", struct.pack("<I", a)), struct.unpack("4b", struct.pack("<I", b))
    assert one("dp4a.s32.s32", a, b, selector) == (sum(x * y for x, y in zip(left, right, strict=True)) + selector) & MASK
    halves = struct.unpack("2h", struct.pack("<I", a))
    assert one("dp2a.lo.s32.s32", a, b, selector) == (halves[0] * right[0] + halves[1] * right[1] + selector) & MASK


@given(st.lists(WORDS, min_size=4, max_size=4), st.lists(WORDS, min_size=4, max_size=4))
def test_a_carry_chain_adds_and_subtracts_long_numbers(a: list[int], b: list[int]) -> None:
    def number(words: list[int]) -> int:
        return sum(word << 32 * place for place, word in enumerate(words))

    for first, rest, expected in (
        ("add.cc.u32", "addc.cc.u32", number(a) + number(b)),
        ("sub.cc.u32", "subc.cc.u32", number(a) - number(b)),
    ):
        carry, words = np.zeros(1, dtype=np.uint64), []
        for place in range(4):
            operands = [np.array([side[place]], dtype=np.uint32) for side in (a, b)]
            word, carry = compute(tuple((rest if place else first).split(".")), operands, carry)
            words.append(int(word[0]))
        assert number(words) == expected % 2**128


def rounded(exact: Fraction, kind: str) -> float:
    """A fraction rounded to nearest, ties to even, by comparison with the neighbours of an approximation."""
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]
    near = dtype(float(exact))
    candidates = [near, np.nextafter(near, dtype(np.inf)), np.nextafter(near, dtype(-np.inf))]
    finite = [value for value in candidates if np.isfinite(value)]
    distance = [abs(Fraction(float(value)) - exact) for value in finite]
    best = [value for value, gap in zip(finite, distance, strict=True) if gap == min(distance)]
    even = [value for value in best if not int(np.array([value]).view(f"u{value.itemsize}")[0]) & 1]
    return float((even or best)[0])


# Just below the middle of two neighbours: rounding to float64 first would land on the middle, and go the wrong way.
@example(2.0**-24 * (1 + 2.0**-23), 1 - 2.0**-23, 1 + 2.0**-23)
@given(SINGLES, SINGLES, SINGLES)
def test_a_single_multiply_add_is_rounded_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    got = np.array([one("fma.rn.f32", single(a), single(b), single(c))], dtype=np.uint32).view(np.float32)[0]
    if exact and abs(exact) < Fraction(2) ** 127 and abs(exact) > Fraction(2) ** -126:
        assert float(got) == rounded(exact, "f32")


@example(2.0**-53 * (1 + 2.0**-52), 1 - 2.0**-52, 1 + 2.0**-52)
@given(DOUBLES, DOUBLES, DOUBLES)
def test_a_double_multiply_add_is_rounded_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    got = np.array([one("fma.rn.f64", double(a), double(b), double(c))], dtype=np.uint64).view(np.float64)[0]
    smallest = min((abs(Fraction(x)) for x in (a, b) if x), default=Fraction(1))
    if exact and smallest > Fraction(2) ** -400 and abs(exact) > Fraction(2) ** -700:
        assert float(got) == rounded(exact, "f64")
