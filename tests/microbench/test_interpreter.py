"""The interpreter against arithmetic done in another way: whole numbers and fractions."""

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.microbench.interpreter.arithmetic import compute

WORDS = st.integers(0, 2**32 - 1)


def one(opcode, *sources):
    """The result of an instruction for one thread, whose whole-number sources are 32-bit words."""
    words = [np.array([word], dtype=np.uint32) if isinstance(word, int) else word for word in sources]
    with np.errstate(all="ignore"):
        return compute(tuple(opcode.split(".")), words, np.zeros(1, dtype=np.uint64))[0][0]


def signed(word):
    return word - 2**32 if word >> 31 else word


def dot(a, kind_a, b, kind_b):
    return sum(
        x * y for x, y in zip(*(struct.unpack(kind, struct.pack("<I", word)) for word, kind in ((a, kind_a), (b, kind_b))), strict=False)
    )


def chosen_bytes(a, b, selector):
    both = (b << 32 | a).to_bytes(8, "little")
    found = [(both[selector >> 4 * place & 7], selector >> 4 * place & 8) for place in range(4)]
    return int.from_bytes(bytes((255 if byte & 128 else 0) if spread else byte for byte, spread in found), "little")


WHOLE = {
    "mul.hi.s32": lambda a, b, _: signed(a) * signed(b) >> 32,
    "mad.hi.u32": lambda a, b, c: (a * b >> 32) + c,
    "mul24.hi.u32": lambda a, b, _: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16,
    "sad.s32": lambda a, b, c: abs(signed(a) - signed(b)) + c,
    "div.s32": lambda a, b, _: int(Fraction(signed(a), signed(b))),
    "rem.s32": lambda a, b, _: signed(a) - int(Fraction(signed(a), signed(b))) * signed(b),
    "shr.s32": lambda a, b, _: signed(a) >> b,
    "shf.l.wrap.b32": lambda a, b, by: (b << 32 | a) << by % 32 >> 32,
    "shf.r.wrap.b32": lambda a, b, by: (b << 32 | a) >> by % 32,
    "prmt.b32": chosen_bytes,
    "dp4a.s32.s32": lambda a, b, c: dot(a, "4b", b, "4b") + c,
    "dp2a.lo.s32.s32": lambda a, b, c: dot(a, "2h", b, "4b") + c,
    "lop3.b32": lambda a, b, c: a & b | ~a & c,
}


@pytest.mark.parametrize("opcode", WHOLE)
@given(a=WORDS, b=st.integers(1, 80) | st.integers(1, 2**32 - 1), c=WORDS)
def test_integer_instructions_are_those_of_whole_numbers_modulo_the_width(opcode, a, b, c):
    two = opcode.split(".")[0] in ("mul", "mul24", "div", "rem", "shr")
    sources = [a, b] if two else [a, b, c, 0xCA] if opcode == "lop3.b32" else [a, b, c]
    assert int(one(opcode, *sources)) == WHOLE[opcode](a, b, c) % 2**32


@given(st.lists(WORDS, min_size=4, max_size=4), st.lists(WORDS, min_size=4, max_size=4))
def test_a_carry_chain_adds_and_subtracts_long_numbers(a, b):
    def number(words):
        return sum(word << 32 * place for place, word in enumerate(words))

    for root, expected in (("add", number(a) + number(b)), ("sub", number(a) - number(b))):
        carry, words = np.zeros(1, dtype=np.uint64), []
        for place in range(4):
            operands = [np.array([side[place]], dtype=np.uint32) for side in (a, b)]
            word, carry = compute((f"{root}c" if place else root, "cc", "u32"), operands, carry)
            words.append(int(word[0]))
        assert number(words) == expected % 2**128


def distances(values, kind):
    """How far a fused multiply-add and its two neighbours are from the exact result."""
    words = [np.array([value], dtype=kind).view(f"u{np.dtype(kind).itemsize}") for value in values]
    found = one(f"fma.rn.f{8 * np.dtype(kind).itemsize}", *words).view(kind)
    exact = Fraction(values[0]) * Fraction(values[1]) + Fraction(values[2])
    return [abs(Fraction(float(one)) - exact) for one in (found, np.nextafter(found, kind(np.inf)), np.nextafter(found, kind(-np.inf)))]


def numbers(width, largest):
    return st.floats(width=width, allow_subnormal=False, min_value=-largest, max_value=largest).filter(lambda x: abs(x) > 1 / largest)


# Just below the middle of two neighbours: rounding to float64 first would land on the middle, and go the wrong way.
@example((2.0**-24 * (1 + 2.0**-23), 1 - 2.0**-23, 1 + 2.0**-23))
@given(st.tuples(*[numbers(32, 2.0**40)] * 3))
def test_a_single_multiply_add_is_rounded_once(values):
    own, *others = distances(values, np.float32)
    assert own <= min(others)


@example((2.0**-53 * (1 + 2.0**-52), 1 - 2.0**-52, 1 + 2.0**-52))
@given(st.tuples(*[numbers(64, 2.0**200)] * 3))
def test_a_double_multiply_add_is_rounded_once(values):
    own, *others = distances(values, np.float64)
    assert own <= min(others)
