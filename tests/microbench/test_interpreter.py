"""The interpreter against arithmetic done in another way: whole numbers and fractions."""

import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.microbench.interpreter.arithmetic import compute

WORDS = st.integers(0, 2**32 - 1)
MASK = 2**32 - 1


def one(opcode: str, *sources: Any) -> int:
    """The result of an instruction for one thread."""
    words = [word if isinstance(word, np.ndarray) else np.array([word], dtype=np.uint32) for word in sources]
    with np.errstate(all="ignore"):
        result, _ = compute(tuple(opcode.split(".")), words, np.array([0], dtype=np.uint64))
    return int(result[0])


def signed(word: int) -> int:
    return word - 2**32 if word >> 31 else word


def parts(word: int, kind: str) -> tuple[int, ...]:
    return struct.unpack(kind, struct.pack("<I", word))


def chosen_bytes(a: int, b: int, selector: int) -> int:
    both = (b << 32 | a).to_bytes(8, "little")
    found = [(both[selector >> 4 * place & 7], selector >> 4 * place & 8) for place in range(4)]
    return int.from_bytes(bytes((255 if byte & 128 else 0) if spread else byte for byte, spread in found), "little")


def by_table(a: int, b: int, c: int) -> int:
    return sum((0xCA >> ((a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)) & 1) << bit for bit in range(32))


WHOLE: dict[str, Callable[..., int]] = {
    "add.u32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
    "mul.lo.u32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: a * b >> 32,
    "mul.hi.s32": lambda a, b: signed(a) * signed(b) >> 32,
    "mad.hi.u32": lambda a, b, c: (a * b >> 32) + c,
    "mul24.lo.u32": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "mul24.hi.u32": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16,
    "min.s32": lambda a, b: min(signed(a), signed(b)),
    "max.u32": max,
    "sad.s32": lambda a, b, c: abs(signed(a) - signed(b)) + c,
    "abs.s32": lambda a: abs(signed(a)),
    "div.u32": lambda a, b: a // (b or 1),
    "rem.u32": lambda a, b: a % (b or 1),
    "div.s32": lambda a, b: int(Fraction(signed(a), signed(b) or 1)),
    "rem.s32": lambda a, b: signed(a) - int(Fraction(signed(a), signed(b) or 1)) * (signed(b) or 1),
    "shl.b32": lambda a, by: a << by,
    "shr.u32": lambda a, by: a >> by,
    "shr.s32": lambda a, by: signed(a) >> by,
    "shf.l.wrap.b32": lambda a, b, by: (b << 32 | a) << by % 32 >> 32,
    "shf.r.wrap.b32": lambda a, b, by: (b << 32 | a) >> by % 32,
    "prmt.b32": chosen_bytes,
    "dp4a.s32.s32": lambda a, b, c: sum(x * y for x, y in zip(parts(a, "4b"), parts(b, "4b"), strict=True)) + c,
    "dp2a.lo.s32.s32": lambda a, b, c: sum(x * y for x, y in zip(parts(a, "2h"), parts(b, "4b")[:2], strict=True)) + c,
    "lop3.b32": by_table,
}


@pytest.mark.parametrize("opcode", WHOLE)
@given(a=WORDS, b=WORDS, c=WORDS, by=st.integers(0, 80))
def test_integer_instructions_are_those_of_whole_numbers_modulo_the_width(opcode: str, a: int, b: int, c: int, by: int) -> None:
    names = WHOLE[opcode].__code__.co_varnames if opcode != "max.u32" else ("a", "b")
    count = WHOLE[opcode].__code__.co_argcount if opcode != "max.u32" else 2
    sources = [{"a": a, "b": b, "c": c, "by": by, "selector": c}[name] for name in names[:count]]
    if opcode[:3] in ("div", "rem"):
        sources[1] = b or 1
    table = [0xCA] if opcode == "lop3.b32" else []
    assert one(opcode, *sources, *table) == WHOLE[opcode](*sources) & MASK


@given(st.lists(WORDS, min_size=4, max_size=4), st.lists(WORDS, min_size=4, max_size=4))
def test_a_carry_chain_adds_and_subtracts_long_numbers(a: list[int], b: list[int]) -> None:
    def number(words: list[int]) -> int:
        return sum(word << 32 * place for place, word in enumerate(words))

    for root, expected in (("add", number(a) + number(b)), ("sub", number(a) - number(b))):
        carry, words = np.zeros(1, dtype=np.uint64), []
        for place in range(4):
            operands = [np.array([side[place]], dtype=np.uint32) for side in (a, b)]
            word, carry = compute((f"{root}c" if place else root, "cc", "u32"), operands, carry)
            words.append(int(word[0]))
        assert number(words) == expected % 2**128


def rounded(exact: Fraction, kind: type[np.floating[Any]]) -> float:
    """A fraction rounded to nearest, ties to even, by comparison with the neighbours of an approximation."""
    near = kind(float(exact))
    candidates = [near, np.nextafter(near, kind(np.inf)), np.nextafter(near, kind(-np.inf))]
    distance = [(abs(Fraction(float(value)) - exact), int(np.array([value]).view(f"u{value.itemsize}")[0]) & 1) for value in candidates]
    return float(candidates[distance.index(min(distance))])


def numbers(width: int, largest: float) -> st.SearchStrategy[float]:
    return st.floats(width=width, allow_subnormal=False, min_value=-largest, max_value=largest)  # type: ignore[call-overload,no-any-return]


def fused(kind: str, *values: float) -> float:
    real = {"f32": np.float32, "f64": np.float64}[kind]
    words: list[NDArray[Any]] = [np.array([value], dtype=real).view(f"u{np.dtype(real).itemsize}") for value in values]
    return float(np.array([one(f"fma.rn.{kind}", *words)], dtype=words[0].dtype).view(real)[0])


# Just below the middle of two neighbours: rounding to float64 first would land on the middle, and go the wrong way.
@example(2.0**-24 * (1 + 2.0**-23), 1 - 2.0**-23, 1 + 2.0**-23)
@given(*[numbers(32, 2.0**60)] * 3)
def test_a_single_multiply_add_is_rounded_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact and Fraction(2) ** -126 < abs(exact) < Fraction(2) ** 127:
        assert fused("f32", a, b, c) == rounded(exact, np.float32)


@example(2.0**-53 * (1 + 2.0**-52), 1 - 2.0**-52, 1 + 2.0**-52)
@given(*[numbers(64, 2.0**200)] * 3)
def test_a_double_multiply_add_is_rounded_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    smallest = min((abs(Fraction(x)) for x in (a, b) if x), default=Fraction(1))
    if exact and smallest > Fraction(2) ** -400 and abs(exact) > Fraction(2) ** -700:
        assert fused("f64", a, b, c) == rounded(exact, np.float64)
