"""The table of instructions (`instructions.toml`): a row → a kernel.

The construction: each thread loads K accumulators and four operands, different from thread to thread, from memory,
so that the work stays on the vector pipes; the loop is not unrolled; every accumulator is stored at the end.

Fields of a row: `ptx` is the priced instruction, `templates` the texts of one operation (several alternate, step by step), each with
`operations` instructions.  `start` is the accumulators' slot, `operands` a named set of operand slots or a set of the row.  `breaker` is
emitted every `every` steps: it keeps values alive or prevents folding of an identity.  `first` and `last` replace the template for the
first and the last accumulator of a step (carry chains).  `temporaries` are registers by name.  `sass` and `per_operation` are the resulting
opcodes, and the fewest and most of them for one operation; `companions` are additional opcodes of a breaker or a composite.  `whole_warp`
instructions need all lanes.  The other fields are those of `microbench.families.build`.

A template is emitted once for each accumulator and step.  It contains
    {d}             the accumulator, {n} the next one, {m} the one after that
    {x} {y} {z} {w} the operands, rotating by one each step
    other names     temporaries of the row

8 chains hide the latency of every pipe at full occupancy (microbenchmark notes, 1.4); with 64 operations the loop's overhead is 3/64,
and the body fits the smallest instruction cache.
"""

from itertools import cycle, islice
from typing import Any, Final

from estimator.vocabulary.reader import read
from microbench.families.build import INSTRUCTIONS, Table, build_kernel, load_record, record_bytes, store_record
from microbench.kernel import Buffer, Kernel, Slot

ROWS: Final[tuple[Table, ...]] = tuple(INSTRUCTIONS["row"])
"""All rows of the table."""

CHAINS: Final = 8
UNROLL: Final = 64
"""Accumulators, and operations in a turn of the loop, of rows that state none."""


def _operands(given: str | Table) -> list[Slot]:
    """Slots x0, x1… of a named set of operands, or of a set in the row."""
    chosen: dict[str, Any] = dict(INSTRUCTIONS["operands"][given] if isinstance(given, str) else given)
    # Of itself a row has four operands: the letters x, y, z, w.
    ranges, number, pairs = chosen.pop("ranges"), chosen.pop("number", 4), chosen.pop("pairs", "")
    return [
        Slot(name=f"x{place}", low=low, high=high, **(chosen | {pairs: f"x{place - 1}"} if pairs and place % 2 else chosen))
        for place, (low, high) in enumerate(islice(cycle(ranges), number))
    ]


def instruction_kernel(row: Table, *, chains: int | None = None, unroll: int | None = None) -> Kernel:
    """The kernel of a row with this many chains and operations in its body; `chains` divides `unroll`."""
    chains, unroll = chains or row.get("chains", CHAINS), unroll or row.get("unroll", UNROLL)
    count = unroll * row.get("operations", 1.0)
    fewest, most = row.get("per_operation", (1.0, 1.0))
    whole_warp = row.get("whole_warp", False)
    starts = tuple(read(Slot, {"name": f"d{chain}", **row["start"]}) for chain in range(chains))
    inputs = _operands(row["operands"]) if "operands" in row else []
    operands, results = Buffer(name="operands", slots=(*starts, *inputs)), Buffer(name="results", slots=starts, written=True)
    return build_kernel(
        {
            "module": "cuda",
            **{name: value for name, value in row.items() if name not in ("operands", "operations")},
            "name": f"{row['name']}_k{chains}_u{unroll}",
            "family": row["name"],
            "instruction": row["ptx"],
            "level": "register",
            "chains": chains,
            "unroll": unroll,
            "buffers": (operands, results),
            "scalars": ("iterations", "active_lanes"),
            "registers": {"b64": ["operand_address", "result_address"]},
            "temporaries": row.get("temporaries", {}),
            "before": [f"mad.wide.u32 operand_address, thread, {record_bytes(operands)}, operands;", *load_record(operands).splitlines()],
            "body": _body(row, chains, unroll // chains, [slot.name for slot in inputs]),
            "after": store_record(results).splitlines(),
            "lanes_may_idle": not whole_warp,
            "max_threads": 1024,
            "fixed": False,
            "modes": ("full", "sm_sweep", "single") if whole_warp else ("full", "sm_sweep", "lane_sweep", "single"),
            "flop": {precision: number * count for precision, number in row.get("flop", {}).items()},
            "opcodes": row["sass"],
            "fewest": int(count * fewest),
            "most": round(count * most),
            "converges": whole_warp,
        }
    )


def _body(row: Table, chains: int, steps: int, operands: list[str]) -> list[str]:
    lines: list[str] = []
    for step in range(steps):
        turn = {letter: operands[(step + place) % len(operands)] for place, letter in enumerate("xyzw")} if operands else {}
        names = [{"d": f"d{chain}", "n": f"d{(chain + 1) % chains}", "m": f"d{(chain + 2) % chains}", **turn} for chain in range(chains)]
        chosen = [row["templates"][step % len(row["templates"])]] * chains
        chosen[-1] = row.get("last", chosen[-1])
        chosen[0] = row.get("first", chosen[0])
        every = row.get("every", 1)
        if "breaker" in row and step % every == every - 1:
            chosen += [row["breaker"]] * chains
        for template, own in zip(chosen, cycle(names)):
            lines += template.format_map(own).splitlines()
    return lines
