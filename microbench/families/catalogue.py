"""The list of all kernels, and the table of instructions (`instructions.toml`): a row → a kernel.

The construction: each thread loads K accumulators and four operands, different from thread to thread, from memory,
so that the work stays on the vector pipes; the loop is not unrolled; every accumulator is stored at the end.

Fields of a row: `instruction` is the priced one, `templates` the texts of one operation (several alternate, step by step), each with
`operations` instructions.  `start` is the accumulators' slot, `operands` a named set of operand slots or a set of the row.  `breaker` is
emitted every `every` steps: it keeps values alive or prevents folding of an identity.  `first` and `last` replace the template for the
first and the last accumulator of a step (carry chains).  `temporaries` are registers by name.  `opcodes` and `per_operation` are the
resulting opcodes, and the fewest and most of them for one operation; `companions` are additional opcodes of a breaker or a composite.
`chains` is the number of accumulators, `unroll` that of operations.  Missing fields come from `[defaults]`; the others are those of
`microbench.families.templates`.

A template is emitted once for each accumulator and step.  It contains
    {d}             the accumulator, {n} the next one, {m} the one after that
    {x} {y} {z} {w} the operands, rotating by one each step
    other names     temporaries of the row
"""

from itertools import cycle, islice
from typing import Any, Final

from estimator.vocabulary.reader import read
from microbench.families.templates import INSTRUCTIONS, Table, build_kernel, load_record, record_bytes, store_record, written_kernels
from microbench.kernel import Buffer, Kernel, Slot

ROWS: Final[tuple[Table, ...]] = tuple(INSTRUCTIONS["row"])
"""All rows of the table."""


def _operands(given: str | Table) -> list[Slot]:
    """Slots x0, x1… of a named set of operands, or of a set in the row."""
    chosen: dict[str, Any] = dict(INSTRUCTIONS["operands"][given] if isinstance(given, str) else given)
    # Of itself a row has four operands: the letters x, y, z, w.
    ranges, number, pairs = chosen.pop("ranges"), chosen.pop("number", 4), chosen.pop("pairs", "")
    return [
        Slot(name=f"x{place}", low=low, high=high, **(chosen | {pairs: f"x{place - 1}"} if pairs and place % 2 else chosen))
        for place, (low, high) in enumerate(islice(cycle(ranges), number))
    ]


def instruction_kernel(given: Table, *, chains: int = 0, unroll: int = 0) -> Kernel:
    """The kernel of a row, or with another number of chains and operations in its body; `chains` divides `unroll`."""
    row = {**INSTRUCTIONS["defaults"], **given}
    chains, unroll = chains or row["chains"], unroll or row["unroll"]
    count = unroll * row["operations"]
    fewest, most = row["per_operation"]
    starts = tuple(read(Slot, {"name": f"d{chain}", **row["start"]}) for chain in range(chains))
    inputs = _operands(row["operands"])
    operands, results = Buffer(name="operands", slots=(*starts, *inputs)), Buffer(name="results", slots=starts, written=True)
    return build_kernel(
        {
            **row,
            "name": f"{row['name']}_k{chains}_u{unroll}",
            "family": row["name"],
            "chains": chains,
            "unroll": unroll,
            "buffers": (operands, results),
            "before": [f"mad.wide.u32 operand_address, thread, {record_bytes(operands)}, operands;", *load_record(operands).splitlines()],
            "body": _body(row, chains, unroll // chains, [slot.name for slot in inputs]),
            "after": store_record(results).splitlines(),
            "flop": {precision: number * count for precision, number in row["flop"].items()},
            "fewest": int(count * fewest),
            "most": round(count * most),
        }
    )


def _body(row: Table, chains: int, steps: int, operands: list[str]) -> list[str]:
    lines: list[str] = []
    for step in range(steps):
        turn = dict(zip("xyzw", islice(cycle(operands), step, None), strict=False))
        names = [{"d": f"d{chain}", "n": f"d{(chain + 1) % chains}", "m": f"d{(chain + 2) % chains}", **turn} for chain in range(chains)]
        chosen = [row["templates"][step % len(row["templates"])]] * chains
        chosen[-1] = row.get("last", chosen[-1])
        chosen[0] = row.get("first", chosen[0])
        if row["breaker"] and step % row["every"] == row["every"] - 1:
            chosen += [row["breaker"]] * chains
        for template, own in zip(chosen, cycle(names)):
            lines += template.format_map(own).splitlines()
    return lines


KERNELS: Final = (
    *written_kernels("baselines.toml"),
    *(instruction_kernel(row) for row in ROWS),
    *written_kernels("matrices.toml"),
    *written_kernels("shared_memory.toml"),
    *written_kernels("global_memory.toml"),
    *written_kernels("blocks.toml"),
)
"""Every kernel at its default chains and unroll."""

SWEPT: Final = ("iadd3", "imad", "lop3_xor", "fadd", "fmul", "ffma", "dfma", "hfma2", "ex2")
"""Instructions whose loop overhead a regression over bodies of several lengths determines."""

SWEEP: Final = tuple(
    instruction_kernel(row, unroll=unroll)
    for row in ROWS
    if row["name"] in SWEPT
    for unroll in (16, 64, 256)  # GPUJoule uses 256
    if unroll != row.get("unroll", INSTRUCTIONS["defaults"]["unroll"])
) + tuple(instruction_kernel(row, chains=1) for row in ROWS if row["name"] in SWEPT)
"""Kernels at other unroll factors, and as one dependent chain, which shows latency and stalls."""

EVERY_KERNEL: Final = (*KERNELS, *SWEEP)
