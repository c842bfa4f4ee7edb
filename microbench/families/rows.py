"""The table of instructions (`instructions.toml`): a row → a kernel; and the lists of opcodes that all tables share.

The construction: each thread loads K accumulators and four operands, different from thread to thread, from memory,
so that the work stays on the vector pipes; the loop is not unrolled; every accumulator is stored at the end.

A row's template is emitted once for each accumulator and step.  It contains
    {d}             the accumulator, {n} the next one, {m} the one after that
    {x} {y} {z} {w} the operands, rotating by one each step
    other names     temporaries of the row
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.reader import read
from microbench.kernel import Buffer, Expectation, Kernel, Module, Pattern, Slot, Support, Work
from microbench.numbers import STORAGE
from microbench.operands import record_type
from microbench.toolchain.ptx import Texts, entry_text, loop_operations

Table = Mapping[str, Any]

_TABLE: Final[Table] = tomllib.loads(Path(__file__).with_name("instructions.toml").read_text(encoding="utf-8"))

ARGUMENTS: Final = ("operands", "results", "iterations", "active_lanes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One instruction of a table.

    `ptx` is the priced instruction, `templates` the texts of one operation (several alternate, step by step), each with `operations`
    instructions.  `start` is the accumulators' slot, `operands` up to four operand slots.  `breaker` is emitted every `every` steps: it
    keeps values alive or prevents folding of an identity.  `first` and `last` replace the template for the first and the
    last accumulator of a step (carry chains).  `sass` and `per_operation` are the resulting opcodes, and the fewest and most
    of them for one operation; `companions` are additional opcodes of a breaker or a composite.

    8 chains hide the latency of every pipe at full occupancy (microbenchmark notes, 1.4); with 64 operations the loop's overhead is 3/64,
    and the body fits the smallest instruction cache.
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
    temporaries: Mapping[str, str] = FrozenMapping({})
    module: Module = "cuda"
    flop: Mapping[str, float] = FrozenMapping({})
    support: Support = Support()  # noqa: RUF009 (it cannot change)
    tolerance: float = 0.0
    unroll: int = 64
    chains: int = 8
    whole_warp: bool = False
    patterns: tuple[Pattern, ...] = ("zero", "constant", "random")


def opcodes(*words: str) -> tuple[str, ...]:
    """Opcodes in their order; a lower-case word is replaced by the opcodes of its list in the table."""
    lists = _TABLE["opcodes"]
    return tuple(one for word in words for one in (opcodes(*lists[word]) if word in lists else (word,)))


def row(given: Table) -> Row:
    """A row from a table of TOML; an unknown field raises ValueError."""
    words = {name: opcodes(*given[name]) for name in ("sass", "companions", "uniform") if name in given}
    operands = {"operands": _operands(given["operands"])} if "operands" in given else {}
    return read(Row, {**given, **words, **operands, "start": {"name": "d", **given["start"]}})


def _operands(given: str | Table) -> tuple[Slot, ...]:
    """Slots x0, x1… of a named set of operands, or of a set in the row."""
    chosen: dict[str, Any] = dict(_TABLE["operands"][given] if isinstance(given, str) else given)
    # Of itself a row has four operands: the letters x, y, z, w.
    ranges, number, pairs = chosen.pop("ranges"), chosen.pop("number", 4), chosen.pop("pairs", "")
    return tuple(
        Slot(name=f"x{place}", low=low, high=high, **(chosen | {pairs: f"x{place - 1}"} if pairs and place % 2 else chosen))
        for place, (low, high) in enumerate(islice(cycle(ranges), number))
    )


def instruction_kernel(row: Row, *, chains: int | None = None, unroll: int | None = None) -> Kernel:
    """The kernel of a row with this many chains and operations in its body.  Raises ValueError if `chains` does not divide `unroll`."""
    chains = row.chains if chains is None else chains
    unroll = row.unroll if unroll is None else unroll
    if chains < 1 or unroll < chains or unroll % chains:
        raise ValueError(f"{row.name}: {unroll} operations cannot be shared by {chains} chains; take a multiple")
    name = f"{row.name}_k{chains}_u{unroll}"
    operations = unroll * row.operations
    starts = tuple(replace(row.start, name=f"d{chain}") for chain in range(chains))
    operands, results = Buffer(name="operands", slots=(*starts, *row.operands)), Buffer(name="results", slots=starts, written=True)
    registers = slot_registers(operands, {"b64": ["operand_address", "result_address"]})
    for temporary, kind in row.temporaries.items():
        registers.setdefault(kind, []).append(temporary)
    text = entry_text(
        name=name,
        arguments=ARGUMENTS,
        registers=registers,
        texts=Texts(
            [f"mad.wide.u32 operand_address, thread, {record_bytes(operands)}, operands;", *load_record(operands).splitlines()],
            _body(row, chains, unroll // chains),
            store_record(results).splitlines(),
        ),
        lanes_may_idle=not row.whole_warp,
    )
    return Kernel(
        name=name,
        family=row.name,
        instruction=row.ptx,
        module=row.module,
        level="register",
        text=text,
        buffers=(operands, results),
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
        tolerance=row.tolerance,
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
        names = [{"d": f"d{chain}", "n": f"d{(chain + 1) % chains}", "m": f"d{(chain + 2) % chains}", **turn} for chain in range(chains)]
        chosen = [row.templates[step % len(row.templates)]] * chains
        chosen[-1] = row.last or chosen[-1]
        chosen[0] = row.first or chosen[0]
        if row.breaker and step % row.every == row.every - 1:
            chosen += [row.breaker] * chains
        for template, own in zip(chosen, cycle(names)):
            lines += template.format_map(own).splitlines()
    return lines


def slot_bits(slot: Slot) -> int:
    """Width of a slot's word."""
    return 8 * int(np.dtype(STORAGE[slot.kind]).itemsize)


def slot_registers(buffer: Buffer, registers: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Registers by type, followed by one for each slot of a buffer with the slot's name."""
    found = {kind: list(names) for kind, names in registers.items()}
    for slot in buffer.slots:
        found.setdefault(f"b{slot_bits(slot)}", []).append(slot.name)
    return found


def record_bytes(buffer: Buffer) -> int:
    """Size of a record [byte]: a multiple of its widest slot."""
    return record_type(buffer).itemsize


def load_record(buffer: Buffer) -> str:
    """PTX that loads a thread's record at `operand_address` into the registers of its slots."""
    return "\n".join(f"ld.global.b{slot_bits(slot)} {slot.name}, [operand_address+{place}];" for slot, place in _places(buffer))


def store_record(buffer: Buffer) -> str:
    """PTX that stores the registers of its slots as a thread's record of the results."""
    stores = [f"st.global.b{slot_bits(slot)} [result_address+{place}], {slot.name};" for slot, place in _places(buffer)]
    return "\n".join([f"mad.wide.u32 result_address, thread, {record_bytes(buffer)}, results;", *stores])


def _places(buffer: Buffer) -> list[tuple[Slot, int]]:
    """Each slot with its offset in a record [byte]."""
    fields: Table = record_type(buffer).fields or {}
    return [(slot, int(fields[slot.name][1])) for slot in buffer.slots]


ROWS: Final[tuple[Row, ...]] = tuple(map(row, _TABLE["row"]))
"""All rows of the table."""
