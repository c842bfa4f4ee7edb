"""Inspection of machine code: the opcodes of a kernel's loop, and their comparison with the declared ones.

The text is nvdisasm's; the loop begins at the lowest target of a backward branch.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.values import frozen
from microbench.kernel import Expectation

EXPECTED_SHARE: Final = 0.95
"""Least share of declared work in the loop's body, without control (microbenchmark notes, section 6)."""

LOOP_CONTROL: Final = (
    ("BRA",),
    ("ISETP", "UISETP"),
    ("IADD3", "UIADD3", "VIADD", "UIADD", "IADD", "IMAD.IADD", "UIMAD.IADD", "UVIADD"),
)
"""Opcodes of the branch, the test and the count of a loop: one of each."""

CALLS: Final = ("CALL", "RET", "JCALL")
LOCAL_MEMORY: Final = ("LDL", "STL")

UNOPTIMISED: Final = (
    *("MOV", "IMAD.MOV", "UMOV", "R2UR", "R2P", "P2R", "PLOP3", "NOP", "HFMA2.MMA", "CS2R", "S2R", "S2UR"),
    *("SEL", "BSSY", "BSYNC", "BMOV", "WARPSYNC", "ENDCOLLECTIVE", "YIELD", "VOTE", "PRMT", "LOP3", "ISETP", "IADD3", "IADD3.X", "BRA"),
)
"""Opcodes around every operation at -O0: copies, and predicates in registers."""

_LABEL: Final = re.compile(r"^\s*(\.L_\w+|\$[\w$]+):")
_LINE: Final = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9_.a-z]*)([^;]*);?")
_TARGET: Final = re.compile(r"`\((\.L_\w+)\)")
_PREDICATE: Final = re.compile(r"!?U?P[T\d]")
_NOTHING: Final = re.compile(r"[-|~]*(?:U?RZ(?:\.[A-Z]\w*)*|0x0|0)\|?")
_REGISTER: Final = re.compile(r"\bR\d")

PRODUCTS: Final = frozenset({"IMAD", "FFMA", "HFMA2", "DFMA"})
"""Opcodes whose first two sources are multiplied before the others are added."""

SUMS: Final = frozenset({"IADD3", "IADD", "FADD", "HADD2", "DADD"})
"""Opcodes whose sources are added."""


@frozen
class Instruction:
    """One machine instruction: address [byte], opcode as `operation` names it, registers that a thread reads, branch label ("" for none).

    A call of a label in the same code never returns: the assembler leaves a long loop this way, so it counts as a branch.
    """

    address: int
    opcode: str
    reads: int = 0
    target: str = ""


@frozen
class Listing:
    """The machine code of one entry: its instructions in order, the addresses of its labels, and the start of its callees (`end`)."""

    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    end: int


@frozen
class InspectedEntry:
    """Machine code of an entry in numbers.

    `body` counts opcodes in one turn of the loop (without slow paths), `reads` the registers that a thread reads for each of them.
    Registers are per thread, shared bytes per block; `spilled_bytes` are stored and loaded for lack of registers.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    body: Mapping[str, int]
    reads: Mapping[str, int]


def read_listings(disassembly: str) -> dict[str, Listing]:
    """The entries of a disassembled cubin by name."""
    sections: dict[str, list[str]] = {}
    for text in re.split(r"^\s*\.section\s+", disassembly, flags=re.MULTILINE)[1:]:
        first, *lines = text.splitlines()
        if first.startswith(".text."):
            sections[first.removeprefix(".text.").partition(",")[0].strip()] = lines
    return {name: _read_listing(lines) for name, lines in sections.items()}


def _read_listing(lines: Iterable[str]) -> Listing:
    instructions: list[Instruction] = []
    waiting: list[str] = []
    labels: dict[str, int] = {}
    callee = ""
    for line in lines:
        if label := _LABEL.match(line):
            waiting.append(label[1])
            if label[1].startswith("$") and not callee:
                callee = label[1]
        elif found := _LINE.match(line):
            address = int(found[1], 16)
            labels.update(dict.fromkeys(waiting, address))
            waiting = []
            target = _TARGET.search(found[3])
            sources = _sources(found[3])
            opcode = "BRA" if target and found[2].startswith("CALL") else operation(found[2], sources)
            reads = sum(bool(_REGISTER.search(word)) for word in sources)
            instructions.append(Instruction(address=address, opcode=opcode, reads=reads, target=target[1] if target else ""))
    beyond = instructions[-1].address + 1 if instructions else 0
    return Listing(instructions=tuple(instructions), labels=FrozenMapping(labels), end=labels.get(callee, beyond))


def _sources(operands: str) -> list[str]:
    """The operands after the destination, without predicates."""
    return [word for word in (part.strip() for part in operands.split(",")[1:]) if not _PREDICATE.match(word)]


def operation(opcode: str, sources: Sequence[str]) -> str:
    """The opcode, with MOV as its second word for a sum or product that only copies a source or writes zero.

    A product with zero is such a copy: IMAD.U32 R1, RZ, RZ, R2; IMAD.U32 R1, R2, R3, R4 is a multiply-add.  A sum with a carry is a sum.
    """
    base, *words = opcode.split(".")
    if base not in PRODUCTS | SUMS or "X" in words or "MOV" in words:
        return opcode
    left = list(sources)
    if base in PRODUCTS:
        if not any(_NOTHING.fullmatch(factor) for factor in left[:2]):
            return opcode
        left = left[2:]
    if base in SUMS and sum(not _NOTHING.fullmatch(word) for word in left) > 1:
        return opcode
    return ".".join([base, "MOV", *words])


def loop_body(listing: Listing) -> tuple[Instruction, ...]:
    """The instructions of the outermost loop, head to branch; empty without a loop."""
    own = [line for line in listing.instructions if line.address < listing.end]
    back = [
        (listing.labels[line.target], line.address)
        for line in own
        if line.opcode.partition(".")[0] == "BRA" and listing.labels.get(line.target, line.address) < line.address
    ]
    if not back:
        return ()
    head = min(target for target, _ in back)
    last = max(address for target, address in back if target == head)
    return tuple(line for line in own if head <= line.address <= last)


def histogram(instructions: Iterable[Instruction]) -> FrozenMapping[int]:
    """Instructions by opcode, the most frequent first."""
    counts = Counter(sorted(line.opcode for line in instructions))
    return FrozenMapping(dict(counts.most_common()))


def register_reads(instructions: Iterable[Instruction]) -> FrozenMapping[int]:
    """Registers that a thread reads, by opcode."""
    counts: Counter[str] = Counter()
    for line in instructions:
        counts[line.opcode] += line.reads
    return FrozenMapping(dict(counts))


def body_complaint(expected: Expectation, entry: InspectedEntry, level: str) -> str:
    """The fault in a loop; "" without one.  At O0 the assembler's copies are accepted; the declared work must still be present."""
    if not entry.body:
        return "it has no loop"
    if entry.spilled_bytes and not expected.local:
        return f"{entry.spilled_bytes} bytes of registers are spilled to local memory"
    work = sum(count for opcode, count in entry.body.items() if is_one_of(opcode, expected.opcodes))
    most = expected.most if level == "O3" else 4 * expected.most
    if not EXPECTED_SHARE * expected.fewest <= work <= most + len(LOOP_CONTROL):
        wanted = str(expected.fewest) if expected.fewest == expected.most else f"{expected.fewest} to {expected.most}"
        return f"{work} of {' or '.join(expected.opcodes)} in the loop, {wanted} promised"
    total, stray = sum(entry.body.values()), 0
    others = _others(entry.body, expected, level)
    calls_allowed = expected.calls or (expected.converges and level == "O0")
    for opcode, count in others.items():
        call = is_one_of(opcode, CALLS)
        if call and calls_allowed:
            continue
        if call:
            return f"{count} {opcode}: the instruction is emulated"
        if is_one_of(opcode, LOCAL_MEMORY) and not expected.local:
            return f"{count} {opcode}: local memory is used"
        if opcode.startswith("U") and level == "O3":
            return f"{count} {opcode}: work escapes to the uniform datapath"
        # Any other opcode may reach 2 % (microbenchmark notes, section 6); below 50 instructions a single one is more than that, and is let
        # pass.
        if count > max(0.02 * total, 1.0 if total < 50 else 0.0):
            return f"{count} of {total} instructions are {opcode}, which nobody promised"
        stray += count
    if stray > max((1.0 - EXPECTED_SHARE) * total, 1.0):
        return f"{stray} of {total} instructions are not the promised ones: {', '.join(others)}"
    return ""


def _others(body: Mapping[str, int], expected: Expectation, level: str) -> dict[str, int]:
    """Counts of the instructions that are neither work, companions nor loop control."""
    allowed = expected.opcodes + expected.companions + expected.uniform + (UNOPTIMISED if level == "O0" else ())
    others = {opcode: count for opcode, count in body.items() if not is_one_of(opcode, allowed)}
    for control in LOOP_CONTROL:
        for opcode in [opcode for opcode in others if is_one_of(opcode, control)][:1]:
            others[opcode] -= 1
    return {opcode: count for opcode, count in others.items() if count}


def is_one_of(opcode: str, names: Iterable[str]) -> bool:
    """Whether an opcode is one of the names, or one of them with modifiers."""
    return any(opcode == name or opcode.startswith(f"{name}.") for name in names)
