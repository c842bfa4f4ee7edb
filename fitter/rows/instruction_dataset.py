"""Screened rows of generated kernels from `collect --campaign instructions`."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd

from collector.dataset.schema import UNUSABLE
from estimator.counts.energies import TRANSACTION_BYTES
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.reader import LEAST_ONE, Span, read
from fitter.rows.columns import InstructionRow, InstructionRows, Selection
from fitter.rows.screening import COUNT_LIMIT, LIMITS, Screen
from fitter.rows.tables import Table

FAMILY: Final = "instruction"
"""Family of generated kernels in a dataset."""

SAMPLING: Final = ("mtsm", "sma", "papi")
"""Published ways of sampling; rows have their energies in extra columns."""

HISTOGRAM: Final[Any] = Annotated[Mapping[str, Annotated[float, Span(1e-9, 1e9)]], LEAST_ONE]
"""Positive counts by name; machine code is always shorter than the largest one."""

REJECTS: Final = UNUSABLE | {"short_window", "clock_varied"}
"""Flags that make a row unusable for energy."""

NEEDED: Final = ("iterations", "active_threads", "active_warps", "sm_clock_measured_mhz")
"""Columns that a kernel's row needs for an energy."""

TEXTS: Final = {"kernel": "operator", "instruction": "instruction", "mode": "launch_mode", "assembler": "assembler", "link": "link"}
NUMBERS: Final = {
    "latency_s": "latency_s", "power_w": "power_w", "power_std_w": "power_std_w", "idle_w": "idle_before_w",
    "temperature_c": "temperature_c", "asked_mhz": "sm_clock_mhz",
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


def read_instruction_rows(table: Table, gpu: GpuSpec | None = None) -> Selection:
    """Accepted and rejected rows of a table of generated kernels; `gpu` may be a user's specification."""
    screen = Screen(table, gpu, repeated=False)
    table = screen.table
    screen.reject_flags(REJECTS)
    values = {name: table.numbers(name) for name in (*NUMBERS.values(), *OTHERS)}
    screen.reject_limits(values)
    values["voltage_v"][values["voltage_v"] == 0.0] = np.nan  # of boards that report none
    linked = np.array(table.texts("link"), dtype=object) != ""
    copied = linked & table.frame["loop_opcodes"].isna().to_numpy() & np.isnan(values["iterations"])
    body, operations = (
        [{} if copied[i] else _counts(screen, i, name) for i in range(len(table))] for name in ("loop_opcodes", "loop_operations")
    )
    needed = {**dict.fromkeys(NEEDED, ~copied), "power_w": True, "link_bytes": linked}
    for name, rows in needed.items():
        screen.reject(rows & ~(values[name] > 0), LIMITS.get(name, COUNT_LIMIT).reason, f"{name} must be above 0")
    counts, grid = {name: np.nan_to_num(column) for name, column in values.items()}, table.products("grid")
    columns = pd.DataFrame(
        {
            **{field: table.texts(column) for field, column in TEXTS.items()},
            **{field: values[column] for field, column in NUMBERS.items()},
            **{field: counts[column] for field, column in COUNTS.items()},
            "source": table.name,
            "row": table.row,
            "gpu": [screen.specs[i].name for i in screen.gpu_index],
            "random": table.marked("random", "data_pattern"),
            "body": body,
            "operations": operations,
            "blocks": np.where(grid > 0, grid, 1.0),
            "transactions": pd.DataFrame({level: counts[f"{level}_transactions"] for level in TRANSACTION_BYTES}).to_dict("records"),
            "throttled": table.marked("throttled"),
            "published": pd.DataFrame({name: values[f"energy_{name}_j"] for name in SAMPLING}).to_dict("records"),
        }
    )
    found = tuple(InstructionRow(**one) for one in columns.iloc[screen.kept()].to_dict("records"))  # type: ignore[arg-type]
    return Selection(instructions=InstructionRows(rows=found) if found else None, rejected=screen.rejected())


def _counts(screen: Screen, i: int, name: str) -> dict[str, float]:
    """Histogram in a cell: a JSON object of names and positive counts; other content rejects the row."""
    text = screen.table.frame[name].iloc[i]
    try:
        return dict(read(HISTOGRAM, json.loads(text)))
    except (TypeError, ValueError, RecursionError):
        screen.reject([i], "BAD_HISTOGRAM", f"{name} is no object of names and positive counts: {str(text)[:60]!r}")
        return {}
