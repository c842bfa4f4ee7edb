"""Screened rows of generated kernels from `collect --campaign instructions`."""

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from estimator.counts.energies import TRANSACTION_BYTES
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BoolArray
from fitter.rows.columns import InstructionRow, InstructionRows, Selection
from fitter.rows.screening import COUNT_LIMIT, LIMITS, Screen
from fitter.rows.tables import Table

FAMILY: Final = "instruction"
"""Family of generated kernels in a dataset."""

SAMPLING: Final = ("mtsm", "sma", "papi")
"""Published ways of sampling; rows have their energies in extra columns."""

MOST_COUNT: Final = 1e9
"""Largest count in a histogram; machine code is always shorter."""

REJECTS: Final = frozenset(
    {"latency_absurd", "power_missing", "power_absurd", "sensor_stuck", "short_window", "clock_varied", "result_wrong"}
)
"""Flags that make a row unusable for energy."""

MEASURED: Final = ("latency_s", "power_w")
"""Columns that every row needs for an energy."""

NEEDED: Final = ("iterations", "active_threads", "active_warps", "sm_clock_measured_mhz", *MEASURED)
"""Columns that a kernel's row needs for an energy."""

TEXTS: Final = {"kernel": "operator", "instruction": "instruction", "mode": "launch_mode", "assembler": "assembler", "link": "link"}
NUMBERS: Final = {
    "latency_s": "latency_s", "power_w": "power_w", "power_std_w": "power_std_w", "idle_w": "idle_before_w",
    "idle_c": "temperature_before_c", "temperature_c": "temperature_c", "asked_mhz": "sm_clock_mhz",
    "sm_clock_mhz": "sm_clock_measured_mhz", "voltage_v": "voltage_v",
}  # fmt: skip
COUNTS: Final = {
    "turns": "iterations",
    "threads": "active_threads",
    "warps": "active_warps",
    "unroll": "unroll",
    "link_bytes": "link_bytes",
}
"""Columns of the fields of an InstructionRow; unknown numbers are nan, unknown counts 0."""

OTHERS: Final = (*COUNTS.values(), *(f"{level}_transactions" for level in TRANSACTION_BYTES), *(f"energy_{name}_j" for name in SAMPLING))


def is_instruction(table: Table) -> BoolArray:
    """Mask of the generated kernels in a kernel dataset, shape (n,)."""
    return np.array([name == FAMILY for name in table.texts("family")], dtype=np.bool_)


def read_instruction_rows(table: Table, gpu: GpuSpec | None = None) -> Selection:
    """Accepted and rejected rows of a table of generated kernels; `gpu` may be a user's specification."""
    screen = Screen(table, gpu, repeated=False)
    table, frame = screen.table, screen.table.frame
    screen.reject_flags(REJECTS)
    throttled = table.flagged("throttled")
    texts = {field: table.texts(column) for field, column in TEXTS.items()}
    linked = np.array([bool(link) for link in texts["link"]], dtype=np.bool_)
    copied = linked & np.asarray(frame["loop_opcodes"].isna() & frame["iterations"].isna())
    body, operations = (
        [{} if copied[i] else _counts(screen, i, name) for i in range(len(table))] for name in ("loop_opcodes", "loop_operations")
    )
    values = {name: table.numbers(name) for name in (*NUMBERS.values(), *OTHERS)}
    screen.reject_limits(values)
    for name in (*NEEDED, "link_bytes"):
        needed = linked if name == "link_bytes" else ~copied | (name in MEASURED)
        screen.reject(needed & ~(values[name] > 0), LIMITS.get(name, COUNT_LIMIT).reason, f"{name} must be above 0")
    counts = {name: np.nan_to_num(column) for name, column in values.items()}
    random, blocks = table.texts("data_pattern"), np.nan_to_num(table.products("grid"))
    found = []
    for i in screen.kept().tolist():
        columns: dict[str, Any] = {field: column[i] for field, column in texts.items()}
        columns |= {field: float(values[column][i]) for field, column in NUMBERS.items()}
        columns |= {field: float(counts[column][i]) for field, column in COUNTS.items()}
        found.append(
            InstructionRow(
                **columns,
                source=table.name,
                row=int(table.row[i]),
                gpu=screen.specs[screen.gpu_index[i]].name,
                random=random[i] == "random",
                body=body[i],
                operations=operations[i],
                blocks=float(blocks[i]) or 1.0,
                transactions={level: float(counts[f"{level}_transactions"][i]) for level in TRANSACTION_BYTES},
                throttled=bool(throttled[i]),
                published={name: float(values[f"energy_{name}_j"][i]) for name in SAMPLING},
            )
        )
    return Selection(instructions=InstructionRows(rows=tuple(found)) if found else None, rejected=screen.rejected())


def _counts(screen: Screen, i: int, name: str) -> dict[str, float]:
    """Histogram in a cell: a JSON object of names and positive counts; other content rejects the row."""
    text = screen.table.frame[name].iloc[i]
    try:
        found: Any = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found = None
    numbers = found.values() if isinstance(found, Mapping) else ()
    if not numbers or not all(type(one) in (int, float) and 0 < one <= MOST_COUNT for one in numbers):
        screen.reject([i], "BAD_HISTOGRAM", f"{name} is no object of names and positive counts: {str(text)[:60]!r}")
        return {}
    return {key: float(count) for key, count in found.items()}
