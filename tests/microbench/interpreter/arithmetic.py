"""Instructions that compute one register from others: which function each opcode is."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.microbench.interpreter import floats, integers
from tests.microbench.interpreter.conversion import convert
from tests.microbench.interpreter.integers import COMPARISONS, UNSIGNED, view
from tests.microbench.interpreter.program import InterpreterError

Word = NDArray[Any]
Opcode = tuple[str, ...]

FLOATING: Final = frozenset({"f16", "f16x2", "bf16x2", "f32", "f64"})
BITWISE: Final = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
PAIRED: Final = {
    "add": (integers.add, floats.add),
    "sub": (integers.subtract, floats.subtract),
    "min": (integers.minimum, floats.minimum),
    "max": (integers.maximum, floats.maximum),
    "div": (integers.quotient, floats.divide),
}
"""Instructions that are there for integers and for floating point."""


def compute(opcode: Opcode, sources: list[Word], carry: Word) -> tuple[Word, Word]:
    """The result of one instruction, and the carry flag after it."""
    if opcode[0] in ("addc", "subc", "madc") or "cc" in opcode:
        return _carried(opcode, sources, carry)
    result = _floating(opcode, sources) if opcode[-1] in FLOATING and opcode[0] not in ("cvt", "setp") else _integer(opcode, sources)
    return result, carry


def _floating(opcode: Opcode, sources: list[Word]) -> Word:
    root, kind = opcode[0], opcode[-1]
    match root:
        case "add" | "sub" | "min" | "max" | "div":
            return PAIRED[root][1](kind, *sources)
        case "mul":
            return floats.multiply(kind, *sources)
        case "fma":
            return floats.fused(kind, *sources)
        case "rcp":
            return floats.reciprocal(kind, *sources)
        case "sqrt":
            return floats.root(kind, *sources)
        case "neg":
            return floats.negate(kind, *sources)
        case "copysign":
            return floats.copy_sign(*sources)
        case "abs":
            return floats.maximum(kind, sources[0], floats.negate(kind, sources[0]))
        case "selp":
            return np.where(sources[2], sources[0], sources[1])
        case name if name in floats.FUNCTIONS:
            return floats.function(name, kind, *sources)
    raise InterpreterError(f"{'.'.join(opcode)} is outside the generated subset")


def _integer(opcode: Opcode, sources: list[Word]) -> Word:
    root, kind = opcode[0], opcode[-1]
    if root in BITWISE:
        return BITWISE[root](*sources)
    if root in PAIRED:
        return PAIRED[root][0](kind, *sources)
    match root:
        case "mov" | "cvta":
            return sources[0]
        case "cvt":
            return convert(opcode, sources)
        case "setp":
            operands = [floats.values(word, kind) if kind in FLOATING else view(word, kind) for word in sources]
            return COMPARISONS[opcode[1]](*operands)
        case "selp":
            return np.where(sources[2], sources[0], sources[1])
        case "not":
            return ~sources[0]
        case "cnot":
            return np.equal(sources[0], 0).astype(sources[0].dtype)
        case "lop3":
            return integers.lop3(sources[0], sources[1], sources[2], int(sources[3][0]))
        case "shl":
            return integers.shift_left(*sources)
        case "shr":
            return integers.shift_right(kind, *sources)
        case "shf":
            return integers.funnel(opcode[1] == "l", *sources)
        case "mul" | "mad" | "mul24" | "mad24":
            return _product(opcode, sources)
        case "rem":
            return integers.remainder(kind, *sources)
        case _:
            return _intrinsic(opcode, sources)


def _product(opcode: Opcode, sources: list[Word]) -> Word:
    kind = opcode[-1]
    if opcode[0].endswith("24"):
        product = integers.product_24(*sources[:2], high="hi" in opcode)
    else:
        part = {"lo": integers.low_product, "hi": integers.high_product, "wide": integers.wide_product}[opcode[1]]
        product = part(kind, *sources[:2])
    return product + sources[2] if opcode[0].startswith("mad") else product


def _intrinsic(opcode: Opcode, sources: list[Word]) -> Word:
    kind = opcode[-1]
    match opcode[0]:
        case "abs":
            return integers.absolute(kind, *sources)
        case "bfe":
            return integers.bit_field(*sources)
        case "bfi":
            return integers.insert_field(*sources)
        case "brev":
            return integers.reverse_bits(*sources)
        case "prmt":
            return integers.permute_bytes(*sources)
        case "popc":
            return integers.count_ones(*sources)
        case "clz":
            return integers.leading_zeros(*sources)
        case "bfind":
            return integers.highest_bit(kind, sources[0], "shiftamt" in opcode)
        case "sad":
            return integers.difference_sum(kind, *sources)
        case "dp4a":
            return integers.dot_bytes(*sources)
        case "dp2a":
            return integers.dot_halves(*sources)
        case "vabsdiff4":
            return integers.byte_differences(*sources)
    raise InterpreterError(f"{'.'.join(opcode)} is outside the generated subset")


def _carried(opcode: Opcode, sources: list[Word], carry: Word) -> tuple[Word, Word]:
    """Additions, subtractions and products that set or read the carry; for a subtraction it is the borrow."""
    incoming = carry if opcode[0].endswith("c") else np.zeros_like(carry)
    wide = [source.astype(np.uint64) for source in sources]
    match opcode[0].removesuffix("c"):
        case "add":
            total = wide[0] + wide[1] + incoming
            outgoing = total >> integers.WORD
        case "sub":
            total = wide[0] - wide[1] - incoming
            outgoing = (wide[0] < wide[1] + incoming).astype(np.uint64)
        case _:
            product = integers.high_product("u32", *sources[:2]) if "hi" in opcode else integers.low_product("u32", *sources[:2])
            total = product.astype(np.uint64) + wide[2] + incoming
            outgoing = total >> integers.WORD
    result = (total & integers.LOW_WORD).astype(UNSIGNED[32])
    return result, outgoing if "cc" in opcode else carry
