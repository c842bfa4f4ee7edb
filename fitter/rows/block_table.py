"""Grids of kernels: a table of one's own, or the sweeps over blocks that `collect` measured, screened.

A table has a row for each launch of a kernel with a number of blocks.  Needed are `kernel`, `block_threads`, `blocks` and `latency_s`;
`gpu`, `blocks_per_sm`, `power_w` or `energy_j`, `power_std_w`, `idle_w`, `sm_clock_mhz` and `flop_per_block` may be missing.
"""

import math
from collections.abc import Collection
from typing import Final

import numpy as np
import pyarrow as pa

from estimator.blocks.model import MOST_BLOCKS
from estimator.gpu import GpuSpec
from estimator.quantities import BoolArray
from fitter.rows.block_rows import BlockRows
from fitter.rows.rejected import RejectedRow
from fitter.rows.screening import known_gpu, unknown_gpu
from fitter.rows.tables import LONGEST_TEXT, Table

NEEDED: Final = ("kernel", "block_threads", "blocks", "latency_s")
OPTIONAL: Final = ("gpu", "blocks_per_sm", "power_w", "energy_j", "power_std_w", "idle_w", "sm_clock_mhz", "flop_per_block")
COLUMNS: Final = frozenset({*NEEDED, *OPTIONAL})
"""Columns that are read."""

SWEEP: Final = "block_sweep"
"""Launch mode of such rows in a kernel dataset."""

MOST_THREADS: Final = 1024
"""Threads of a block (CUDA programming guide, technical specifications)."""

WARP_LANES: Final = 32
"""Threads of a warp."""

LONGEST_S: Final = 3600.0
"""Longest launch [s]."""

MOST_POWER_W: Final = 1e5
"""More than any board draws [W]."""

MOST_RESIDENT: Final = 32
"""Blocks on an SM (ibid.)."""

REJECTS: Final = frozenset({"latency_absurd", "power_missing", "power_absurd", "sensor_stuck", "clock_varied", "throttled", "result_wrong"})
"""Flags with which a measured row says nothing about a grid."""

SLOWED: Final = "throttled"
"""The flag of grids that ran below the clock asked for; rejections say of which kernel at which clock."""


def is_block_table(header: Collection[str]) -> bool:
    """Whether a table's columns are those of grids of kernels."""
    return set(NEEDED) <= set(header)


def read_block_table(table: Table, gpu: GpuSpec | None) -> tuple[BlockRows | None, list[RejectedRow]]:
    """The rows of a table, and the reasons for those that cannot be used; `gpu` is that of a table without such a column."""
    names, kernels = table.texts("gpu"), table.texts("kernel")
    numbers = {name: table.numbers(name) for name in COLUMNS - {"kernel", "gpu"}}
    power = np.where(np.isfinite(numbers["power_w"]), numbers["power_w"], numbers["energy_j"] / numbers["latency_s"])
    oversized, repeated = table.oversized(), table.repeated()
    garbled = np.any([table.garbled(name) for name in numbers], axis=0)
    accepted, rejected = [], []
    for index, (name, kernel) in enumerate(zip(names, kernels, strict=True)):
        reason = _table_reason(index, oversized, repeated, garbled)
        spec = known_gpu(name, gpu) if name else gpu
        row = {field: float(values[index]) for field, values in numbers.items()} | {"power_w": float(power[index])}
        found = reason or _reason(kernel, row)
        if found is None and spec is None:
            found = unknown_gpu(name)
        if found is not None or spec is None:
            rejected.append(_rejected(found, table.name, index + 1))
            continue
        accepted.append(_entry(kernel, spec, row, table.name, index + 1))
    return _rows(accepted), rejected


def _table_reason(index: int, oversized: BoolArray, repeated: BoolArray, garbled: BoolArray) -> tuple[str, str] | None:
    if oversized[index]:
        return "BAD_TEXT", f"a cell of more than {LONGEST_TEXT} characters"
    if repeated[index]:
        return "DUPLICATE", ""
    return ("BAD_COUNT", "a cell that is no finite number") if garbled[index] else None


def _reason(kernel: str, row: dict[str, float]) -> tuple[str, str] | None:
    """What is wrong with a row, if anything."""
    if not kernel:
        return "UNKNOWN_OPERATOR", "a kernel without a name"
    for name, most in (("blocks", MOST_BLOCKS), ("block_threads", MOST_THREADS), ("blocks_per_sm", MOST_RESIDENT)):
        value = row[name]
        if name == "blocks_per_sm" and math.isnan(value):
            continue
        if not (1 <= value <= most and value == math.floor(value)):
            return "BAD_SHAPE", f"{name} = {value:g} must be a whole number from 1 to {most}"
    if not 0 < row["latency_s"] <= LONGEST_S:
        return "BAD_LATENCY", f"latency_s = {row['latency_s']:g} must be a number above 0 and up to {LONGEST_S:g}"
    for name in ("power_w", "idle_w", "power_std_w"):
        if row[name] < 0 or row[name] > MOST_POWER_W or (name == "power_w" and row[name] == 0):
            return "BAD_POWER", f"{name} = {row[name]:g} must be a number above 0 and up to {MOST_POWER_W:g}"
    if row["idle_w"] > row["power_w"]:
        return "BAD_POWER", f"power_w = {row['power_w']:g} is below idle_w = {row['idle_w']:g}"
    if row["sm_clock_mhz"] <= 0 or row["flop_per_block"] <= 0:
        return "BAD_COUNT", "sm_clock_mhz and flop_per_block must be positive"
    return None


def _rejected(found: tuple[str, str] | None, source: str, number: int) -> RejectedRow:
    reason, detail = found or ("UNKNOWN_GPU", "")
    return RejectedRow(source=source, row=number, reason=reason, detail=detail)


def _entry(kernel: str, gpu: GpuSpec, row: dict[str, float], source: str, number: int) -> dict[str, object]:
    resident = row["blocks_per_sm"]
    return {
        "kernel": kernel,
        "gpu": gpu.name,
        "block_threads": row["block_threads"],
        # Registers and shared memory may allow fewer; only who measured them knows.
        "blocks_per_sm": resident if math.isfinite(resident) else max(1.0, gpu.warps_per_sm * WARP_LANES // row["block_threads"]),
        "blocks": row["blocks"],
        "latency_s": row["latency_s"],
        "power_w": row["power_w"],
        "power_std_w": row["power_std_w"],
        "idle_w": row["idle_w"],
        "sm_clock_mhz": row["sm_clock_mhz"],
        "flop_per_block": row["flop_per_block"],
        "source": source,
        "row": number,
    }


def _rows(entries: list[dict[str, object]]) -> BlockRows | None:
    if not entries:
        return None
    return BlockRows.of({name: [entry[name] for entry in entries] for name in entries[0]})


def is_block_sweep(table: pa.Table) -> BoolArray:
    """Which rows of a kernel dataset are grids of a sweep over blocks, shape (n,)."""
    if "launch_mode" not in table.column_names:
        return np.zeros(table.num_rows, dtype=np.bool_)
    return np.array([mode == SWEEP for mode in table.column("launch_mode").to_pylist()], dtype=np.bool_)


def read_block_sweep(
    table: pa.Table, source: str, own: BoolArray, gpu: GpuSpec | None = None
) -> tuple[BlockRows | None, list[RejectedRow]]:
    """The grids among the rows of a kernel dataset, and the reasons for those that cannot be used."""
    accepted, rejected = [], []
    for index in np.flatnonzero(own).tolist():
        values = {name: table.column(name)[index].as_py() for name in table.column_names}
        spec = known_gpu(str(values["gpu"]), gpu)
        flags = [flag for flag in values["flags"] or () if flag in REJECTS]
        row = {
            "blocks": math.prod(_number(values[f"grid_{axis}"], 1.0) for axis in "xyz"),
            "block_threads": math.prod(_number(values[f"block_{axis}"], 1.0) for axis in "xyz"),
            "blocks_per_sm": _number(values["blocks_per_sm"]),
            "latency_s": _number(values["latency_s"]),
            "power_w": _number(values["power_w"]),
            "power_std_w": _number(values["power_std_w"]),
            "idle_w": _number(values["idle_before_w"]),
            "sm_clock_mhz": _number(values["sm_clock_measured_mhz"]),
            "flop_per_block": math.nan,
        }
        kernel = str(values["operator"] or "")
        at = f"{kernel} at {_number(values['sm_clock_mhz'], row['sm_clock_mhz']):g} MHz" if SLOWED in flags else ""
        found = (flags[0].upper(), at) if flags else ("UNKNOWN_GPU", "") if spec is None else _reason(kernel, row)
        if found is not None or spec is None:
            rejected.append(_rejected(found, source, index + 1))
            continue
        accepted.append(_entry(kernel, spec, row, source, index + 1))
    return _rows(accepted), rejected


def _number(value: object, missing: float = math.nan) -> float:
    return float(value) if isinstance(value, int | float) else missing
