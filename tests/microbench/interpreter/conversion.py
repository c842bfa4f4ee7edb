"""Conversions (cvt) between kinds of numbers."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from microbench.numbers import bf16_codes, e4m3_codes
from tests.microbench.interpreter import floats
from tests.microbench.interpreter.integers import UNSIGNED, view
from tests.microbench.interpreter.program import InterpreterError

Word = NDArray[Any]
INTEGERS: Final = ("u16", "u32", "u64", "s16", "s32", "s64")


def convert(opcode: tuple[str, ...], sources: list[Word]) -> Word:
    """cvt of one number, or of two into one packed word (the first goes to the upper half)."""
    target, origin = opcode[-2:]
    if target == "f16x2":
        high, low = (floats.values(source, origin).astype(np.float16).view(np.uint16).astype(np.uint32) for source in sources)
        return high << np.uint32(16) | low
    if target == "bf16x2":
        high, low = (bf16_codes(floats.values(source, origin)).astype(np.uint32) for source in sources)
        return high << np.uint32(16) | low
    if target == "e4m3x2":
        top, bottom = (e4m3_codes(floats.values(source, origin)).astype(np.uint16) for source in sources)
        return top << np.uint16(8) | bottom
    source = sources[0]
    if target in INTEGERS and origin in INTEGERS:
        bits = int(target[1:])
        wide = view(source, origin).astype(np.int64) if origin[0] == "s" else source
        return wide.astype(UNSIGNED[bits])
    if target in INTEGERS:
        return _to_integer(target, floats.values(source, origin))
    if target[0] == "f":
        number = view(source, origin) if origin in INTEGERS else floats.values(source, origin)
        if target == "f32" and origin in INTEGERS:
            return number.astype(np.float32).view(np.uint32)
        return floats.words(number.astype(np.float64), target)
    raise InterpreterError(f"cvt.{target}.{origin} is outside the generated subset")


def _to_integer(target: str, numbers: NDArray[np.float64]) -> Word:
    """Towards zero, clamped to the range; not a number becomes 0."""
    bits = int(target[1:])
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if target[0] == "s" else (0.0, 2.0**bits - 1)
    whole = np.clip(np.trunc(np.nan_to_num(numbers, nan=0.0)), low, high)
    return whole.astype(np.int64 if target[0] == "s" else np.uint64).astype(UNSIGNED[bits])
