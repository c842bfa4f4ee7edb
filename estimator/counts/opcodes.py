"""Machine opcodes and their energy classes."""

from collections.abc import Mapping
from typing import Final

LANES: Final = 32
"""Threads of a warp."""

RARE: Final = "rare"
"""Class of opcodes that no measured kernel contains: they share one energy."""

SHAPED: Final = frozenset(
    {"HMMA", "IMMA", "DMMA", "QMMA", "BMMA", "OMMA", "HGMMA", "QGMMA", "IGMMA", "BGMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA"}
)
"""Matrix opcodes, whose modifiers give their size: each is a separate class."""

SECOND_WORD: Final = {
    "IMAD": frozenset({"HI", "WIDE", "IADD", "X", "SHL"}),
    "MUFU": frozenset({"RCP", "RSQ", "SQRT", "SIN", "COS", "EX2", "LG2", "TANH", "RCP64H", "RSQ64H"}),
    "HFMA2": frozenset({"BF16_V2"}),
    "HADD2": frozenset({"BF16_V2"}),
    "IDP": frozenset({"4A", "2A"}),
    "SHFL": frozenset({"BFLY", "IDX", "UP", "DOWN"}),
}
"""Modifiers that turn an opcode into another instruction; all others (rounding, signs, predicates) do not."""

COPY: Final = "MOV"
"""Modifier of instructions that copy a register; inspection sets it by the operands (`microbench.toolchain.inspect.operation`)."""

DATA_MOVERS: Final = ("LDG", "LDS", "LDL", "LDC", "LD.", "STG", "STS", "STL", "ST.", "LDSM", "LDGSTS", "ATOM", "RED.", "REDG", "UBLKCP")
"""Prefixes of opcodes that move data: the energy of their lanes is the energy of their transactions."""

CONTROL: Final = frozenset(
    {"BRA", "BSSY", "BSYNC", "BAR", "CALL", "RET", "DEPBAR", "LDGDEPBAR", "WARPSYNC", "NOP", "NANOSLEEP", "EXIT", "YIELD", "BMOV", "SYNCS"}
)
"""Opcodes without lanes: they cost only their issue."""

LOOP_PARTS: Final = (("BRA",), ("UISETP", "ISETP"), ("UIADD3", "UIADD", "VIADD", "IADD3", "IADD"))
"""Opcodes of loop control in every iteration: branch, test, count; the first opcode present in the loop is used."""


def sass_class(opcode: str) -> str:
    """The energy class of an instruction; "" if its energy is in its issue or in its transactions."""
    base, *modifiers = opcode.split(".")
    if base in SHAPED:
        return opcode
    if base in CONTROL or base.startswith("U") or opcode.startswith(DATA_MOVERS):
        return ""
    kept = [word for word in modifiers if word == COPY or word in SECOND_WORD.get(base, ())]
    return ".".join([base, *kept[:1]])


def loop_classes(body: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Instructions of one iteration of a measured loop by class without loop control, and the number of all issued instructions."""
    left = dict(body)
    for part in LOOP_PARTS:
        found = next((one for base in part for one in sorted(left) if one.partition(".")[0] == base and left[one] >= 1), None)
        if found is not None:
            left[found] -= 1
    counts: dict[str, float] = {}
    for opcode, count in left.items():
        name = sass_class(opcode)
        if name and count > 0:
            counts[name] = counts.get(name, 0.0) + count
    return counts, float(sum(body.values()))
