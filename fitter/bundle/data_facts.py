"""Facts about the data behind a bundle: board, sensor, environment, ranges, provenance."""

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

import estimator
from estimator.bundle.content import DatasetRecord, Provenance
from estimator.model.coefficients import group_key, longest_prefixes
from estimator.model.power import BoardTables
from estimator.vocabulary.gpu import ClockTable, GpuSpec
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.workload import Operator
from fitter.rows.columns import Dataset, Selection
from fitter.rows.screening import first_known

REFERENCE_CLOCK_MHZ: Final = 900.0
"""Power coefficients are stated at the measured clock nearest to this one [MHz]."""

LONGEST_TEXT: Final = 200
"""Longest text about the environment [characters]; longer ones are cut."""


def board_knowledge(selection: Selection, gpu: GpuSpec) -> BoardTables:
    """Voltage and idle power over the clock: as measured with the kernels, else from the GPU's specification."""
    idle, voltage = (_merged(selection.datasets, *names) for names in (("idle", "power_w"), ("voltage", "voltage_v")))
    volts = gpu.voltage_v if voltage is None else _shaped(voltage, "voltage_v", gpu.voltage_v)
    clocks = measured_clocks(selection, gpu)
    return BoardTables(
        gpu=gpu,
        voltage_v=volts,
        idle_w=(gpu.idle_w or _idle_below(selection, gpu)) if idle is None else _shaped(idle, "power_w", gpu.idle_w),
        reference_clock_mhz=float(clocks[np.argmin(np.abs(clocks - REFERENCE_CLOCK_MHZ))]),
    )


def _merged(datasets: Sequence[Dataset], table: str, column: str) -> pd.DataFrame | None:
    """One table by clock, merged from all data sets; None if no data set has it.

    Data sets that share a clock have equal weights: boards differ more from day to day than within a measurement.
    """
    rows = [{"name": one.name} | row for one in datasets for file in one.files for row in file.get(table) or ()]
    columns = ["name", "sm_clock_mhz", "sm_clock_measured_mhz", column]
    found = pd.DataFrame(rows, columns=columns).set_index("name").astype(float)
    clock_mhz = found["sm_clock_mhz"].fillna(found.pop("sm_clock_measured_mhz").round())  # of an unlocked board
    known = found.assign(sm_clock_mhz=clock_mhz)[(clock_mhz > 0) & (found[column] > 0)]
    if not len(known):
        return None
    merged: pd.DataFrame = known.groupby("sm_clock_mhz").mean()
    merged.attrs["source"] = f"measured, {', '.join(sorted(set(known.index)))}"
    return merged


def _shaped(measured: pd.DataFrame, column: str, usual: ClockTable | None) -> ClockTable:
    """A table measured at a few clocks, at all others with the shape of the specification's table, since their ratio is smooth.

    A straight line between two locked clocks, or beyond them, would miss the knee at which boards begin to raise the voltage.
    """
    clocks, values, source = measured.index.to_numpy(), measured[column].to_numpy(), measured.attrs["source"]
    if usual is not None:
        own, share = clocks, values / usual.at(clocks)
        clocks = np.union1d(own, usual.sm_clock_mhz)
        values = usual.at(clocks) * np.interp(clocks, own, share)
        source = f"{source}; at other clocks as {usual.source}"
    return ClockTable(sm_clock_mhz=tuple(clocks.tolist()), value=tuple(values.tolist()), source=source)


def _idle_below(selection: Selection, gpu: GpuSpec) -> ClockTable | None:
    """Idle power if no table has it and kernels drew little more than the usual assumption for a board at rest; else None."""
    rows = selection.kernels
    if rows is None:
        return None
    power = rows.power_w[np.isfinite(rows.power_w) & ~rows.bounded]
    usual = BoardTables(gpu=gpu, voltage_v=gpu.voltage_v, idle_w=None, reference_clock_mhz=gpu.sm_clock_max_mhz)
    if len(power) < 20 or IDLE_BELOW * power.min() >= usual.rest_w(np.array([gpu.sm_clock_limit_mhz]))[0]:
        return None
    watt = float(f"{IDLE_BELOW * power.min():.4g}")
    source = f"assumed: {IDLE_BELOW:g} of the least power measured"
    return ClockTable(sm_clock_mhz=(gpu.sm_clock_min_mhz, gpu.sm_clock_limit_mhz), value=(watt, watt), source=source)


IDLE_BELOW: Final = 0.8
"""A board at rest draws at most this share of the least power at which it ran a kernel (assumed) [1]."""


def measured_clocks(selection: Selection, gpu: GpuSpec) -> Array:
    """Distinct SM clocks of all rows [MHz], ascending; the clock of the published rates if none was recorded."""
    parts = [rows.clock_mhz(gpu) for rows in selection.tables]
    if not parts:
        parts += [] if selection.instructions is None else [selection.instructions.column("sm_clock_mhz")]
        parts += [] if selection.blocks is None else [selection.blocks.sm_clock_mhz]
    clocks = np.unique(np.concatenate([[], *parts]))
    known: Array = clocks[np.isfinite(clocks)]
    return known if len(known) else np.array([gpu.sm_clock_max_mhz])


def clock_range_mhz(selection: Selection, gpu: GpuSpec) -> tuple[float, float]:
    """The range of SM clocks that the fit has seen [MHz]."""
    clocks = measured_clocks(selection, gpu)
    kernels = selection.kernels
    if kernels is not None and np.isnan(first_known(kernels.sm_clock_mhz, kernels.sm_clock_asked_mhz)).any():
        clocks = np.sort(np.append(clocks, gpu.sm_clock_max_mhz))  # a free clock lies between that of the peak rates and the highest
    return float(clocks[0]), float(clocks[-1])


def domain_of(selection: Selection, groups: Iterable[str]) -> dict[str, dict[str, tuple[float, float]]]:
    """For each coefficient group, the range of every shape field of its rows.

    Zero (an unlimited window, no padding) is not a size and is left out if other values occur.
    """
    used: list[Sequence[Operator]] = [] if selection.kernels is None else [selection.kernels.row_operators()]
    used += [] if selection.workloads is None else [workload.operators for workload in selection.workloads.row_workloads()]
    shapes: dict[str, list[dict[str, float]]] = {}
    every = [*dict.fromkeys(operator for operators in used for operator in operators)]
    for operator, group in zip(every, longest_prefixes(map(group_key, every), set(groups)), strict=True):
        if group is not None:
            shapes.setdefault(group, []).append(operator.named_shape())
    return {group: _ranges(pd.DataFrame(rows)) for group, rows in sorted(shapes.items())}


def _ranges(shapes: pd.DataFrame) -> dict[str, tuple[float, float]]:
    sizes = {name: column[column > 0] if (column > 0).any() else column for name, column in shapes.items()}
    return {str(name): (float(column.min()), float(column.max())) for name, column in sizes.items()}


def provenance_of(selection: Selection, seed: int) -> Provenance:
    """Digests and counts of the data sets, the program and the time."""
    records = tuple(
        DatasetRecord(name=d.name, sha256=d.sha256, kind=d.kind, rows=d.rows, used=d.used, rejected=dict(d.rejected))
        for d in selection.datasets
    )
    return Provenance(created_utc=_now_utc(), wattprint_version=estimator.__version__, commit=source_commit(), seed=seed, datasets=records)


def environment_of(selection: Selection) -> dict[str, str]:
    """Driver, board and programs from the data sets' metadata, and whether a board was simulated."""
    found: dict[str, str] = {}
    for metadata in selection.files:
        gpu, campaign, versions = (metadata.get(name) or {} for name in ("gpu", "campaign", "versions"))
        facts = {"driver": metadata.get("driver"), "vbios": gpu.get("vbios"), "campaign": campaign.get("name")}
        facts |= {f"version of {name}": version for name, version in versions.items()}
        found |= {key: str(value)[:LONGEST_TEXT] for key, value in facts.items() if isinstance(value, str | int | float) and value != ""}
        found |= {"simulated": "true"} if metadata.get("simulated") is True else {}
    return found


def sensor_of(selection: Selection) -> Mapping[str, Any] | None:
    """The power sensor's characterisation from the first file that has one."""
    return next(filter(None, (file.get("sensor") for file in selection.files)), None)


def board_uuid(selection: Selection) -> str:
    """The identity of the board if all data sets that name one name the same, else ""."""
    found = {str(uuid)[:LONGEST_TEXT] for file in selection.files if (uuid := (file.get("gpu") or {}).get("uuid"))}
    return found.pop() if len(found) == 1 else ""


def completion_of(selection: Selection) -> str:
    """The completion rule set with which the workloads were read, "" without workloads."""
    names = {workload.completion for workload in selection.workloads.workloads} if selection.workloads is not None else set()
    return " | ".join(sorted(name for name in names if name))


def default_name(selection: Selection, gpu: GpuSpec) -> str:
    """Default name of a bundle: its GPU, marked if the board was simulated."""
    return f"sim-{gpu.name}" if environment_of(selection).get("simulated") == "true" else gpu.name


def source_commit() -> str:
    """The commit of the source tree that this program runs from, "" for an installed one."""
    tree = Path(estimator.__file__).resolve().parent.parent
    if not (tree / ".git").exists():
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        asked = ["git", "-C", str(tree), "rev-parse", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return ""


def _now_utc() -> str:
    """The time for provenance; SOURCE_DATE_EPOCH makes a run repeatable to the byte."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.now(UTC)
    if given.isdecimal():
        with suppress(OverflowError, ValueError, OSError):  # a time outside the calendar
            moment = datetime.fromtimestamp(int(given), UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
