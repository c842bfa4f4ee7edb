"""A row of an instruction table → a kernel.

The construction: K accumulators and four operands a thread, all loaded from memory and different from thread to
thread, so that the work stays on the vector pipes; a loop that is not unrolled; every accumulator stored at the end.

A row's template is emitted once for each accumulator and step.  In it
    {d}             the accumulator, {n} the next one, {m} the one after that
    {x} {y} {z} {w} the operands, rotating by one each step
    other names     temporaries of the row
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from estimator.frozen import FrozenMapping
from microbench.kernel import EVERYWHERE, Argument, Buffer, Check, Expectation, Kernel, Module, Pattern, Slot, Support, Work
from microbench.toolchain.ptx import entry_text, loop_operations

WIDTH_BITS: Final[dict[str, int]] = {
    "f16": 16,
    "u32": 32,
    "s32": 32,
    "f32": 32,
    "f16x2": 32,
    "bf16x2": 32,
    "u8x4": 32,
    "s8x4": 32,
    "s4x8": 32,
    "b1x32": 32,
    "e4m3x4": 32,
    "e5m2x4": 32,
    "u64": 64,
    "s64": 64,
    "f64": 64,
}
"""Bits of a value by its kind."""

DEFAULT_CHAINS: Final = 8
"""Independent chains of a thread: hides the latency of every pipe at full occupancy (microbenchmark notes, 1.4)."""

DEFAULT_UNROLL: Final = 64
"""Operations in the loop's body: overhead 3/64, and the body still fits the smallest instruction cache."""

UNROLL_SWEEP: Final = (16, 64, 256)
"""Bodies for the regression over unroll factors (GPUJoule uses 256)."""

ARGUMENTS: Final = (
    Argument(pointer="operands"),
    Argument(pointer="results"),
    Argument(scalar="iterations"),
    Argument(scalar="active_lanes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One instruction of a table.

    `ptx` is what is priced, `templates` the text of one operation (several take turns, step by step), holding `operations` of
    them.  `start` is the accumulators' slot, `operands` up to four operand slots.  `breaker` is emitted every `every` steps: it keeps
    the values alive or an identity from folding.  `first` and `last` replace the template for the first and the
    last accumulator of a step (carry chains).  `sass` and `per_operation` say what it becomes: opcodes, and the fewest and most
    of them for one operation; `companions` what a breaker or a composite brings along.
    """

    name: str
    ptx: str
    templates: tuple[str, ...]
    start: Slot
    operands: tuple[Slot, ...] = ()
    sass: tuple[str, ...]
    per_operation: tuple[float, float] = (1.0, 1.0)
    companions: tuple[str, ...] = ()
    uniform: tuple[str, ...] = ()
    calls: bool = False
    operations: float = 1.0
    breaker: str = ""
    every: int = 1
    first: str = ""
    last: str = ""
    temporaries: Mapping[str, str] = field(default_factory=lambda: FrozenMapping({}))
    module: Module = "cuda"
    flop: Mapping[str, float] = field(default_factory=lambda: FrozenMapping({}))
    support: Support = EVERYWHERE
    tolerance: float = 0.0
    unroll: int = DEFAULT_UNROLL
    chains: int = DEFAULT_CHAINS
    whole_warp: bool = False
    patterns: tuple[Pattern, ...] = ("zero", "constant", "random")


def instruction_kernel(row: Row, *, chains: int | None = None, unroll: int | None = None) -> Kernel:
    """The kernel of a row with so many chains and operations in its body.  Raises ValueError where the one does not divide the other."""
    chains = row.chains if chains is None else chains
    unroll = row.unroll if unroll is None else unroll
    if chains < 1 or unroll < chains or unroll % chains:
        raise ValueError(f"{row.name}: {unroll} operations cannot be shared by {chains} chains; take a multiple")
    name = f"{row.name}_k{chains}_u{unroll}"
    steps = unroll // chains
    operations = unroll * row.operations
    text = _text(name, row, chains, steps)
    return Kernel(
        name=name,
        family=row.name,
        instruction=row.ptx,
        module=row.module,
        level="register",
        text=text,
        buffers=_buffers(row, chains),
        arguments=ARGUMENTS,
        work=Work(
            operations=loop_operations(text),
            flop=FrozenMapping({precision: count * operations for precision, count in row.flop.items()}),
        ),
        expectation=Expectation(
            opcodes=row.sass,
            fewest=int(operations * row.per_operation[0]),
            most=round(operations * row.per_operation[1]),
            companions=row.companions,
            uniform=row.uniform,
            calls=row.calls,
            converges=row.whole_warp,
        ),
        check=Check(relative_tolerance=row.tolerance),
        support=row.support,
        modes=("full", "sm_sweep", "single") if row.whole_warp else ("full", "sm_sweep", "lane_sweep", "single"),
        patterns=row.patterns,
        chains=chains,
        unroll=unroll,
    )


def _body(row: Row, chains: int, steps: int) -> list[str]:
    lines: list[str] = []
    operands = [slot.name for slot in row.operands]
    for step in range(steps):
        turn = {letter: operands[(step + place) % len(operands)] for place, letter in enumerate("xyzw")} if operands else {}
        template = row.templates[step % len(row.templates)]
        for chain in range(chains):
            names = {"d": f"d{chain}", "n": f"d{(chain + 1) % chains}", "m": f"d{(chain + 2) % chains}", **turn}
            chosen = row.first if row.first and chain == 0 else row.last if row.last and chain == chains - 1 else template
            lines += chosen.format_map(names).splitlines()
        if row.breaker and step % row.every == row.every - 1:
            for chain in range(chains):
                lines += row.breaker.format_map({"d": f"d{chain}", "n": f"d{(chain + 1) % chains}", **turn}).splitlines()
    return lines


def _buffers(row: Row, chains: int) -> tuple[Buffer, ...]:
    starts = tuple(_renamed(row.start, f"d{chain}") for chain in range(chains))
    return (
        Buffer(name="operands", slots=(*starts, *row.operands)),
        Buffer(name="results", slots=starts, written=True),
    )


def _renamed(slot: Slot, name: str) -> Slot:
    return Slot(name=name, kind=slot.kind, low=slot.low, high=slot.high, never_zero=slot.never_zero, odd=slot.odd)


def _text(name: str, row: Row, chains: int, steps: int) -> str:
    operands, results = _buffers(row, chains)
    registers: dict[str, list[str]] = {"b64": ["operand_address", "result_address"]}
    for slot in operands.slots:
        registers.setdefault(f"b{WIDTH_BITS[slot.kind]}", []).append(slot.name)
    for temporary, kind in row.temporaries.items():
        registers.setdefault(kind, []).append(temporary)
    before = [f"mad.wide.u32 operand_address, thread, {record_bytes(operands)}, operands;"]
    for slot, offset in zip(operands.slots, offsets(operands), strict=True):
        before.append(f"ld.global.b{WIDTH_BITS[slot.kind]} {slot.name}, [operand_address+{offset}];")
    after = [f"mad.wide.u32 result_address, thread, {record_bytes(results)}, results;"]
    for slot, offset in zip(results.slots, offsets(results), strict=True):
        after.append(f"st.global.b{WIDTH_BITS[slot.kind]} [result_address+{offset}], {slot.name};")
    return entry_text(
        name=name,
        arguments=ARGUMENTS,
        registers=registers,
        before=before,
        body=_body(row, chains, steps),
        after=after,
        lanes_may_idle=not row.whole_warp,
    )


def offsets(buffer: Buffer) -> tuple[int, ...]:
    """Where each slot lies in a record [byte]: in order, each at a multiple of its own size."""
    places: list[int] = []
    end = 0
    for slot in buffer.slots:
        size = WIDTH_BITS[slot.kind] // 8
        end = -(-end // size) * size
        places.append(end)
        end += size
    return tuple(places)


def record_bytes(buffer: Buffer) -> int:
    """Size of a record [byte]: a multiple of its widest slot."""
    widest = max(WIDTH_BITS[slot.kind] // 8 for slot in buffer.slots)
    end = offsets(buffer)[-1] + WIDTH_BITS[buffer.slots[-1].kind] // 8
    return -(-end // widest) * widest


def slots(kind: str, *ranges: tuple[float, float], odd: bool = False, never_zero: bool = False) -> tuple[Slot, ...]:
    """Operand slots x0, x1… with these ranges."""
    return tuple(
        Slot(name=f"x{place}", kind=kind, low=low, high=high, odd=odd, never_zero=never_zero) for place, (low, high) in enumerate(ranges)
    )


def start(kind: str, low: float, high: float, *, never_zero: bool = False, odd: bool = False) -> Slot:
    """The accumulators' slot."""
    return Slot(name="d", kind=kind, low=low, high=high, never_zero=never_zero, odd=odd)
