"""Kernel datasets: what `collect` measured, with its quality flags and what the file says about board and sensor."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from collector.dataset import FLAGS, SHAPE_COLUMNS, KernelDataset, read_kernel_dataset
from estimator.errors import WorkloadError
from estimator.gpu import GpuSpec
from estimator.quantities import Array, IntArray
from estimator.workload import FAMILY_FIELDS, Operator, make_operator
from fitter.rows.columns import KernelRows
from fitter.rows.instruction_dataset import is_instruction
from fitter.rows.rejected import RejectedRow
from fitter.rows.screening import RawKernels, screen

REJECTS_ROW: Final = frozenset({"latency_absurd", "shared_board"})
"""Flags with which a row says nothing of its kernel: of two processes on a board each takes the other's time and power for its own."""

REJECTS_POWER: Final = frozenset({"power_missing", "power_absurd", "sensor_stuck", "short_window"})
"""Flags with which a row says nothing about power."""

TIMED_ONLY: Final = "short_window"
"""The flag of a row that was only timed, as a budget's choice asks for: without a power nothing is rejected."""

LOWERS_WEIGHT: Final = frozenset(
    {
        "few_samples", "unsettled", "drifting", "latency_unsteady", "range_mismatch", "clock_varied", "counter_disagrees",
        "counter_absurd", "hot",
    }
)  # fmt: skip
"""Flags with which a row counts less.  The others change nothing: a throttled row has its measured clock."""

FLAGGED_WEIGHT: Final = 0.25
"""Weight in the fit of a row with a doubt [1]."""


def read_collected(path: Path, gpu: GpuSpec | None = None) -> tuple[KernelDataset, KernelRows | None, list[RejectedRow]]:
    """A kernel dataset, its accepted rows and the reasons for the others; generated kernels are not among them.

    gpu: a GPU that rows may name though it is not shipped.

    Raises DatasetError for a dataset that is missing, damaged or foreign, InputError for an implausible one.
    """
    dataset = read_kernel_dataset(path)
    rows, rejected = collected_rows(dataset.table, path.name, gpu=gpu)
    return dataset, rows, rejected


def collected_rows(table: pa.Table, source: str, first: int = 0, gpu: GpuSpec | None = None) -> tuple[KernelRows | None, list[RejectedRow]]:
    """Accepted rows of a kernel dataset's table, or of a piece of it that begins after `first` rows, and the reasons for the others.

    Rows of generated kernels are not among them.  Raises InputError for an implausible table.
    """
    library = np.flatnonzero(~is_instruction(table))
    if not len(library):
        return None, []
    raw = _raw(table.take(library), source)
    return screen(replace(raw, row=library.astype(np.int64) + first + 1), gpu)


def _raw(table: pa.Table, source: str) -> RawKernels:
    """The dataset's columns, ready for screening."""
    count = table.num_rows
    reasons: dict[int, tuple[str, str]] = {}
    power_reasons: dict[int, tuple[str, str]] = {}
    power = _numbers(table, "power_w")
    given = np.array(table.column("power_w").is_valid().to_pylist(), dtype=np.bool_)
    flags = [tuple(value or ()) for value in table.column("flags").to_pylist()]
    for i, own in enumerate(flags):
        for flag in own:
            if flag in REJECTS_ROW:
                reasons.setdefault(i, (flag.upper(), FLAGS[flag]))
            elif flag in REJECTS_POWER and (given[i] or flag != TIMED_ONLY):
                power_reasons.setdefault(i, (flag.upper(), FLAGS[flag]))
    operators = _operators(table, reasons)
    doubted = np.where([bool(LOWERS_WEIGHT.intersection(own)) for own in flags], FLAGGED_WEIGHT, 1.0)
    return RawKernels(
        source=source,
        operators=operators,
        gpus=_texts(table, "gpu"),
        latency_s=_numbers(table, "latency_s"),
        latency_std_s=_numbers(table, "latency_std_s"),
        power_w=power,
        power_given=given,
        power_std_w=_numbers(table, "power_std_w"),
        power_limit_w=_numbers(table, "power_limit_w"),
        idle_w=_numbers(table, "idle_before_w"),
        temperature_c=_numbers(table, "temperature_c"),
        sm_clock_mhz=_numbers(table, "sm_clock_measured_mhz"),
        sm_clock_asked_mhz=_numbers(table, "sm_clock_mhz"),
        l2_warm=np.array([state != "cold" for state in _texts(table, "l2_state")], dtype=np.bool_),
        library=_texts(table, "library"),
        kernel_name=_texts(table, "kernel_name"),
        tile_m=_numbers(table, "tile_m"),
        tile_n=_numbers(table, "tile_n"),
        split_k=_numbers(table, "split_k"),
        grid=np.stack([_numbers(table, f"grid_{axis}") for axis in "xyz"], axis=1),
        block_threads=np.stack([_numbers(table, f"block_{axis}") for axis in "xyz"], axis=1).prod(axis=1),
        trial=_numbers(table, "trial").astype(np.int64),
        started_s=_numbers(table, "started_unix_s"),
        weight=shared_weight(doubted, _repeats(table, operators, reasons)),
        flags=flags,
        marks=[""] * count,
        row=np.arange(1, count + 1, dtype=np.int64),
        reasons=reasons,
        power_reasons=power_reasons,
    )


def shared_weight(weight: Array, repeats: IntArray) -> Array:
    """Weights of rows of which those with the same number in `repeats` (n,) repeat one measurement; −1: none.  Shape (n,).

    Together they weigh as much as the best of them alone: what the equations get wrong about a kernel they get wrong in all its trials.
    """
    shared = weight.copy()
    members = repeats >= 0
    if members.any():
        total = np.bincount(repeats[members], weight[members])
        best = np.zeros(len(total))
        np.maximum.at(best, repeats[members], weight[members])
        shared[members] *= best[repeats[members]] / total[repeats[members]]
    return shared


def _repeats(table: pa.Table, operators: list[Operator | None], reasons: dict[int, tuple[str, str]]) -> IntArray:
    """A number for each kernel at each clock asked for, the same for all its usable trials; −1 for rows that are rejected, shape (n,).

    A product in another layout is one more trial: the equations know no layouts.  Each has its own time, power and tile.
    """
    names = ("gpu_uuid", "l2_state", "sm_clock_mhz")
    columns = [table.column(name).to_pylist() for name in names]
    numbers: dict[tuple[Any, ...], int] = {}
    return np.array(
        [
            -1 if i in reasons or operator is None else numbers.setdefault((operator, *where), len(numbers))
            for i, (operator, *where) in enumerate(zip(operators, *columns, strict=True))
        ],
        dtype=np.int64,
    )


def _operators(table: pa.Table, reasons: dict[int, tuple[str, str]]) -> list[Operator | None]:
    """The operator of each row, None (with a reason) where it cannot be; rows of one kernel share one object."""
    names = ("family", "operator", "precision", "precision_out", "precision_kv", "cuda_cores", *SHAPE_COLUMNS)
    columns = [table.column(name).to_pylist() for name in names]
    seen: dict[tuple[Any, ...], Operator | tuple[str, str]] = {}
    result: list[Operator | None] = []
    for i, values in enumerate(zip(*columns, strict=True)):
        if values not in seen:
            seen[values] = _operator(dict(zip(names, values, strict=True)))
        found = seen[values]
        if isinstance(found, tuple):
            reasons.setdefault(i, found)
        result.append(None if isinstance(found, tuple) else found)
    return result


def _operator(values: dict[str, Any]) -> Operator | tuple[str, str]:
    family = values["family"]
    if family not in FAMILY_FIELDS:
        return ("UNKNOWN_OPERATOR", f"family {str(family)[:40]!r}")
    shape = {name: values[name] for name in FAMILY_FIELDS[family] if values[name] is not None}
    try:
        return make_operator(
            family,
            values["operator"],
            values["precision"],
            precision_out=values["precision_out"] or "",
            precision_kv=values["precision_kv"] or "",
            cuda_cores=bool(values["cuda_cores"]),
            **shape,
        )
    except WorkloadError as error:
        return ("BAD_SHAPE", str(error)[:200])


def _numbers(table: pa.Table, column: str) -> Array:
    """A number column, nan for nulls."""
    values: Array = table.column(column).to_pandas().to_numpy(dtype=np.float64, na_value=np.nan)
    return values


def _texts(table: pa.Table, column: str) -> list[str]:
    return [value or "" for value in table.column(column).to_pylist()]
