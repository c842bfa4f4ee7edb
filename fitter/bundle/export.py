"""Export: fits and what is known about their data, assembled into a bundle."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

import estimator
from estimator.bundle.content import DatasetRecord, Provenance
from estimator.model.coefficients import group_key, longest_prefix
from estimator.model.power import ASSUMED_IDLE_SHARE, BoardTables
from estimator.vocabulary.gpu import ClockTable, GpuSpec
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.workload import FAMILY_FIELDS, Operator
from fitter.rows.columns import Dataset, Selection

REFERENCE_CLOCK_MHZ: Final = 900.0
"""Clock at which coefficients of power are stated where the data do not suggest another [MHz]."""

LONGEST_TEXT: Final = 200
"""Texts about the surroundings are cut here [character]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardKnowledge:
    """Tables of the board that was measured, and how well its idle power is known."""

    tables: BoardTables
    idle_std_w: float | None
    idle_temperature_c: float | None
    voltage_std_v: tuple[float, ...] | None


def board_knowledge(selection: Selection, gpu: GpuSpec) -> BoardKnowledge:
    """Voltage and idle power over the clock: as measured beside the kernels, else as the GPU's specification knows them."""
    voltage, idle = gpu.voltage_v, gpu.idle_w
    idle_std = temperature = voltage_std = None
    rows, source = _merged(selection.datasets, "idle", "power_w")
    if rows:
        idle = _shaped(_clock_table(rows, "power_w", source), gpu.idle_w)
        idle_std, temperature = _mean(rows, "std_w"), _mean(rows, "temperature_c")
    rows, source = _merged(selection.datasets, "voltage", "voltage_v")
    if rows:
        measured = _clock_table(rows, "voltage_v", source)
        voltage = _shaped(measured, gpu.voltage_v)
        std_v = np.array([row.get("std_v", np.nan) for row in rows])
        clocks = (np.array(measured.sm_clock_mhz), np.array(voltage.sm_clock_mhz))
        voltage_std = tuple(np.interp(clocks[1], clocks[0], std_v).tolist()) if np.isfinite(std_v).all() else None
    if idle is None:
        idle = _idle_below(selection, gpu)
    tables = BoardTables(
        voltage_v=voltage,
        idle_w=idle,
        reference_clock_mhz=reference_clock_mhz(selection, gpu),
        power_limit_w=gpu.power_limit_w,
        idle_temperature_c=temperature,
    )
    return BoardKnowledge(tables=tables, idle_std_w=idle_std, idle_temperature_c=temperature, voltage_std_v=voltage_std)


def _idle_below(selection: Selection, gpu: GpuSpec) -> ClockTable | None:
    """Idle power where no table knows it and kernels drew little more than is usually assumed for a board at rest; else None."""
    rows = selection.kernels
    if rows is None:
        return None
    power = rows.power_w[np.isfinite(rows.power_w) & ~rows.at_limit]
    if len(power) < FEWEST_BELOW or IDLE_BELOW * power.min() >= ASSUMED_IDLE_SHARE * gpu.power_limit_w:
        return None
    watt = float(f"{IDLE_BELOW * power.min():.4g}")
    source = f"assumed: {IDLE_BELOW:g} of the least power measured"
    return ClockTable(sm_clock_mhz=(gpu.sm_clock_min_mhz, gpu.sm_clock_limit_mhz), value=(watt, watt), source=source)


IDLE_BELOW: Final = 0.8
"""A board at rest draws at most this share of the least power at which it ran a kernel (assumed) [1]."""

FEWEST_BELOW: Final = 20
"""The least of fewer powers may be one failed reading."""


def reference_clock_mhz(selection: Selection, gpu: GpuSpec) -> float:
    """The measured clock nearest to REFERENCE_CLOCK_MHZ, at which coefficients of power are stated."""
    clocks = measured_clocks(selection, gpu)
    return float(clocks[np.argmin(np.abs(clocks - REFERENCE_CLOCK_MHZ))])


def measured_clocks(selection: Selection, gpu: GpuSpec) -> Array:
    """SM clocks of all rows [MHz], each once, ascending; the clock of the published rates where none was recorded."""
    parts = [rows.clock_mhz(gpu) for rows in (selection.kernels, selection.workloads) if rows is not None]
    if not parts:
        parts += [] if selection.instructions is None else [selection.instructions.column("sm_clock_mhz")]
        parts += [] if selection.blocks is None else [selection.blocks.sm_clock_mhz]
    clocks = np.unique(np.concatenate(parts)) if parts else np.array([])
    known = clocks[np.isfinite(clocks)]
    return known if len(known) else np.array([gpu.sm_clock_max_mhz])


def clock_range_mhz(selection: Selection, gpu: GpuSpec) -> tuple[float, float]:
    """The range of SM clocks that the fit has seen [MHz]."""
    clocks = measured_clocks(selection, gpu)
    return float(clocks[0]), float(clocks[-1])


def domain_of(selection: Selection, groups: Iterable[str]) -> dict[str, dict[str, tuple[float, float]]]:
    """For each coefficient group, the range of every shape field that served it.

    Zero (an unlimited window, no padding) says nothing about size and is left out where other values occur.
    """
    known = set(groups)
    operators: dict[Operator, None] = {}
    if selection.kernels is not None:
        used = np.unique(selection.kernels.operator_index)
        operators.update(dict.fromkeys(selection.kernels.operators[i] for i in used))
    if selection.workloads is not None:
        for i in np.unique(selection.workloads.workload_index):
            operators.update(dict.fromkeys(selection.workloads.workloads[i].operators))
    shapes: dict[str, list[tuple[float, ...]]] = {}
    families: dict[str, str] = {}
    for operator in operators:
        group = longest_prefix(group_key(operator), known)
        if group is not None:
            shapes.setdefault(group, []).append(operator.shape)
            families[group] = operator.family
    return {group: _ranges(FAMILY_FIELDS[families[group]], np.array(rows)) for group, rows in sorted(shapes.items())}


def provenance_of(selection: Selection, seed: int) -> Provenance:
    """Digests and counts of the data sets, the program and the time."""
    records = tuple(
        DatasetRecord(name=d.name, sha256=d.sha256, kind=d.kind, rows=d.rows, used=d.used, rejected=dict(d.rejected))
        for d in selection.datasets
    )
    version = estimator.__version__
    return Provenance(created_utc=_now_utc(), wattprint_version=version, commit=source_commit(), seed=seed, datasets=records)


def environment_of(selection: Selection) -> dict[str, str]:
    """What the data sets say about driver, board and programs, and whether a board was simulated."""
    found: dict[str, str] = {}
    for dataset in selection.datasets:
        metadata = dataset.metadata
        board, campaign, versions = (_object(metadata.get(key)) for key in ("gpu", "campaign", "versions"))
        facts = {"driver": metadata.get("driver"), "vbios": board.get("vbios"), "campaign": campaign.get("name")}
        facts |= {f"version of {name}": version for name, version in versions.items()}
        found |= {key: str(value)[:LONGEST_TEXT] for key, value in facts.items() if isinstance(value, str | int | float) and value != ""}
        if metadata.get("simulated") is True:
            found["simulated"] = "true"
    return found


def sensor_of(selection: Selection) -> Mapping[str, Any] | None:
    """The power sensor's characterisation, of the first data set that has one."""
    return next((sensor for dataset in selection.datasets if (sensor := _object(dataset.metadata.get("sensor")))), None)


def board_uuid(selection: Selection) -> str:
    """The identity of the board where all data sets name the same one, else ""."""
    found = {_object(dataset.metadata.get("gpu")).get("uuid") for dataset in selection.datasets} - {None}
    only = found.pop() if len(found) == 1 else ""
    return only[:LONGEST_TEXT] if isinstance(only, str) else ""


def _object(value: Any) -> Mapping[str, Any]:
    """A JSON object, an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def completion_of(selection: Selection) -> str:
    """The completion rule set with which the workloads were read, "" where there are none."""
    names = {workload.completion for workload in selection.workloads.workloads} if selection.workloads is not None else set()
    return " | ".join(sorted(name for name in names if name))


def default_name(selection: Selection, gpu: GpuSpec) -> str:
    """The name of a bundle that the user does not name: its GPU, marked where the board was simulated."""
    return f"sim-{gpu.name}" if environment_of(selection).get("simulated") == "true" else gpu.name


def source_commit() -> str:
    """The commit of the source tree that this program runs from, "" for an installed one."""
    git = Path(estimator.__file__).resolve().parent.parent / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="ascii").strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        loose = git / name
        if loose.is_file():
            return loose.read_text(encoding="ascii").strip()
        packed = (git / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), "")
    except (OSError, UnicodeDecodeError):
        return ""


def _now_utc() -> str:
    """The time for provenance; SOURCE_DATE_EPOCH makes a run repeatable to the byte."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.now(UTC)
    if given.isdecimal():
        with suppress(OverflowError, ValueError, OSError):  # no time that a calendar has
            moment = datetime.fromtimestamp(int(given), UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _ranges(names: Sequence[str], shapes: Array) -> dict[str, tuple[float, float]]:
    ranges = {}
    for column, name in enumerate(names):
        values = shapes[:, column]
        positive = values[values > 0]
        chosen = positive if len(positive) else values
        ranges[name] = (float(chosen.min()), float(chosen.max()))
    return ranges


def _table(value: Any, column: str) -> list[Mapping[str, float]]:
    """Rows of a metadata table with a clock and a finite value, ascending in the clock, each clock once."""
    if not isinstance(value, list):
        return []
    rows: dict[float, Mapping[str, float]] = {}
    for row in value:
        numbers = {k: float(v) for k, v in row.items() if isinstance(v, int | float)} if isinstance(row, Mapping) else {}
        clock = numbers.get("sm_clock_mhz", np.nan)
        if np.isfinite(clock) and clock > 0 and np.isfinite(numbers.get(column, np.nan)) and numbers[column] > 0:
            rows[clock] = numbers
    return [rows[clock] for clock in sorted(rows)]


def _merged(datasets: Sequence[Dataset], table: str, column: str) -> tuple[list[Mapping[str, float]], str]:
    """One table of what all data sets measured of the board, whatever their order, and where it comes from.

    At a clock that several measured each counts the same: boards differ more from day to day than within a measurement.
    """
    clocks: dict[float, list[Mapping[str, float]]] = {}
    names = set()
    for dataset in datasets:
        for row in _table(dataset.metadata.get(table), column):
            clocks.setdefault(row["sm_clock_mhz"], []).append(row)
            names.add(dataset.name)
    merged = [_averaged(clocks[clock]) for clock in sorted(clocks)]
    return merged, f"measured, {', '.join(sorted(names))}"


def _averaged(rows: list[Mapping[str, float]]) -> Mapping[str, float]:
    """The mean of every number over rows of one clock, whatever their order; numbers that are not finite do not count."""
    names = sorted({name for row in rows for name in row})
    values = {name: sorted(row[name] for row in rows if np.isfinite(row.get(name, np.nan))) for name in names}
    return {name: float(np.mean(own)) for name, own in values.items() if own}


def _clock_table(rows: list[Mapping[str, float]], column: str, source: str) -> ClockTable:
    return ClockTable(sm_clock_mhz=tuple(row["sm_clock_mhz"] for row in rows), value=tuple(row[column] for row in rows), source=source)


def _shaped(measured: ClockTable, usual: ClockTable | None) -> ClockTable:
    """A table measured at a few clocks, between them as the specification's table runs: a board differs from it by a smooth factor.

    A straight line between two locked clocks would miss the knee at which boards begin to raise the voltage, and a board
    that holds its power limit runs between them.
    """
    if usual is None:
        return measured
    own = np.array(measured.sm_clock_mhz)
    inner = [f for f in usual.sm_clock_mhz if own[0] < f < own[-1]]
    clocks = np.union1d(own, inner)
    factor = np.interp(clocks, own, np.array(measured.value) / usual.at(own))
    values = (usual.at(clocks) * factor).tolist()
    source = f"{measured.source}; between its {len(own)} clocks as {usual.source}"
    return ClockTable(sm_clock_mhz=tuple(clocks.tolist()), value=tuple(values), source=source)


def _mean(rows: list[Mapping[str, float]], column: str) -> float | None:
    values = [row[column] for row in rows if np.isfinite(row.get(column, np.nan))]
    return float(np.mean(values)) if values else None
