"""Workload datasets: whole-model measurements, a row per run, as CSV or Parquet.

Columns: workload (path, relative to the file), gpu, precision, attention, sm_clock_mhz (asked), sm_clock_measured_mhz,
iterations, latency_s and energy_j (per iteration), temperature_c, host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from estimator.errors import EstimatorError
from estimator.formats import read_workload
from estimator.forms.rewriting import ATTENTION_FORMS, with_precision
from estimator.gpu import GpuSpec
from estimator.power import ASSUMED_IDLE_SHARE
from estimator.quantities import BYTES_PER_ELEMENT, HZ_PER_MHZ, Array, BoolArray, IntArray, canonical_precision
from estimator.workload import COMPLETED, Operator, Workload
from fitter.errors import InputError
from fitter.rows.columns import Startup, WorkloadRows
from fitter.rows.rejected import RejectedRow
from fitter.rows.roofline import ROOF_TOLERANCE, minimal_work
from fitter.rows.screening import ABOVE_LIMIT_SHARE, CLOCK_MARGIN, impossible_temperature, known_gpus, least_power_w
from fitter.rows.startup import TRUNCATED_SHARE, StartupEstimate, estimate_startup, is_perturbed, target_duration_s
from fitter.rows.tables import Table

LONGEST_RUN_S: Final = 30 * 86400.0
"""No run, and so no iteration, takes a month: such a time is an error of whoever wrote it [s]."""

COLUMNS: Final = frozenset(
    {
        "workload", "gpu", "precision", "attention", "host", "sm_clock_mhz", "sm_clock_measured_mhz", "iterations", "latency_s",
        "energy_j", "temperature_c",
    }
)  # fmt: skip
"""Columns that a workload dataset may have; others are left alone."""

NEEDED: Final = ("workload", "latency_s")

LAUNCH_S: Final = 30e-6
"""Usual host cost of one framework operator [s]; only to tell which runs the GPU paces."""

GPU_BOUND_MARGIN: Final = 1.5
"""A run this much slower than its host's launches is paced by the GPU [1]."""

STARTUP_ACTIVE_W: Final = 8.0
"""Power of a board in use beyond idle while a run starts up [W]; the prior of the power fit's `active` term."""

PERTURBED_WEIGHT: Final = 0.25
"""Weight in the fit of a run whose pace changed [1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadReading:
    """Rows of one workload dataset, the rejected ones, and the start-up of each host."""

    rows: WorkloadRows | None
    rejected: list[RejectedRow]
    startups: tuple[Startup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The columns of a workload dataset as read, shape (n,); None where a GPU or a workload is not known."""

    gpus: Sequence[GpuSpec | None]
    workloads: Sequence[Workload | None]
    asked_mhz: Array
    measured_mhz: Array
    iterations: Array
    latency_s: Array
    energy_j: Array
    temperature_c: Array


def is_workload_dataset(header: tuple[str, ...]) -> bool:
    """Whether a file with these columns is a workload dataset."""
    return all(name in header for name in NEEDED)


def read_workload_dataset(table: Table, gpu: GpuSpec | None = None) -> WorkloadReading:
    """Rows of a workload dataset, start-up removed, and the reasons for those left out.

    gpu: the GPU of all rows where the table has no such column.  Raises InputError for a table without the needed
    columns.
    """
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise InputError(f"{table.path}: no column {missing[0]!r}; a workload dataset needs {', '.join(NEEDED)}")
    if "gpu" not in table and gpu is None:
        raise InputError(f"{table.path}: no column 'gpu'; add it, or name the GPU of all rows with --gpu")
    reasons = dict.fromkeys(_indices(table.oversized()), ("BAD_TEXT", "a cell is longer than any name can be"))
    gpu_texts = table.texts("gpu") if "gpu" in table else [gpu.name if gpu else ""] * len(table)
    runs = _Runs(
        gpus=known_gpus(gpu_texts, gpu, reasons),
        workloads=_workloads(table, reasons),
        asked_mhz=table.numbers("sm_clock_mhz"),
        measured_mhz=table.numbers("sm_clock_measured_mhz"),
        iterations=table.numbers("iterations"),
        latency_s=table.numbers("latency_s"),
        energy_j=table.numbers("energy_j"),
        temperature_c=table.numbers("temperature_c"),
    )
    _check_runs(table, runs, reasons)
    hosts = [f"{text}@{host}" for text, host in zip(gpu_texts, table.texts("host"), strict=True)]
    startups = _startups(runs, hosts, reasons)
    _check_roof(runs, reasons)
    keep = np.array([i for i in range(len(table)) if i not in reasons], dtype=np.int64)
    rows, power_reasons = _accepted(table, runs, keep, hosts, startups) if len(keep) else (None, {})
    rejected = [_rejected(table, i, *why, power_only=False) for i, why in reasons.items()]
    rejected += [_rejected(table, i, *why, power_only=True) for i, why in power_reasons.items()]
    return WorkloadReading(
        rows=rows,
        rejected=sorted(rejected, key=lambda item: item.row),
        startups=tuple(_startup(table.name, host, found) for host, found in startups.items()),
    )


def _workloads(table: Table, reasons: dict[int, tuple[str, str]]) -> list[Workload | None]:
    """The workload of each row, attention and number format as the row names them; every file is read once for each."""
    cache: dict[tuple[str, str, str], Workload | tuple[str, str]] = {}
    result: list[Workload | None] = []
    for i, key in enumerate(zip(table.texts("workload"), table.texts("attention"), table.texts("precision"), strict=True)):
        if i in reasons and reasons[i][0] == "BAD_TEXT":
            result.append(None)
            continue
        if key not in cache:
            cache[key] = _workload(table.path.parent, *key)
        found = cache[key]
        if isinstance(found, tuple):
            reasons.setdefault(i, found)
        result.append(None if isinstance(found, tuple) else found)
    return result


def _workload(folder: Path, text: str, attention: str, precision: str) -> Workload | tuple[str, str]:
    if not text or "\0" in text:
        return ("MISSING_WORKLOAD", "no workload is named")
    if attention and attention.lower() not in ATTENTION_FORMS:
        return ("UNKNOWN_ATTENTION", f"{attention[:40]!r}; known: {', '.join(ATTENTION_FORMS)}")
    if precision and canonical_precision(precision) is None:
        return ("UNKNOWN_PRECISION", f"{precision[:40]!r}; known: {', '.join(BYTES_PER_ELEMENT)}")
    path = folder / text
    try:
        if not path.is_file():  # also keeps pipes and devices out
            found = "not a file" if path.exists() else "no such file; paths are relative to the data set's folder"
            return ("MISSING_WORKLOAD", f"{text[:200]!r}: {found}")
        workload = read_workload(path, attention=attention.lower())
        if precision:
            workload = with_precision(workload, precision)
    except EstimatorError as error:
        return ("MISSING_WORKLOAD", str(error)[:300])
    except OSError as error:
        return ("MISSING_WORKLOAD", f"{text[:200]!r}: {error.strerror or error}")
    return workload if workload.operators else ("WORKLOAD_WITHOUT_OPERATORS", text[:200])


def _check_runs(table: Table, runs: _Runs, reasons: dict[int, tuple[str, str]]) -> None:
    """Rows with values that cannot be."""
    for i in _indices(~(runs.latency_s > 0) | ~(runs.latency_s <= LONGEST_RUN_S)):
        reasons.setdefault(i, ("BAD_LATENCY", f"latency_s = {runs.latency_s[i]:g}"))
    with np.errstate(over="ignore", invalid="ignore"):
        endless = runs.iterations * runs.latency_s > LONGEST_RUN_S
    for i in _indices(table.garbled("iterations") | (runs.iterations < 1) | endless):
        reasons.setdefault(i, ("BAD_ITERATIONS", f"iterations = {runs.iterations[i]:g} of {runs.latency_s[i]:g} s"))
    for i in _indices(table.garbled("temperature_c") | impossible_temperature(runs.temperature_c)):
        reasons.setdefault(i, ("BAD_TEMPERATURE", f"temperature_c = {runs.temperature_c[i]:g}"))
    for name, column in (("sm_clock_mhz", runs.asked_mhz), ("sm_clock_measured_mhz", runs.measured_mhz)):
        for i in _indices(table.garbled(name) & ~np.isfinite(column)):
            reasons.setdefault(i, ("BAD_CLOCK", f"{name} is no number"))
        for i in _indices(~np.isnan(column)):
            spec = runs.gpus[i]
            if spec and not spec.sm_clock_min_mhz / CLOCK_MARGIN <= column[i] <= spec.sm_clock_limit_mhz * CLOCK_MARGIN:
                limits = f"{spec.name} runs {spec.sm_clock_min_mhz:g} to {spec.sm_clock_limit_mhz:g} MHz"
                reasons.setdefault(i, ("BAD_CLOCK", f"{name} = {column[i]:g}; {limits}"))
    for i in _indices(table.repeated()):
        reasons.setdefault(i, ("DUPLICATE", "equals an earlier row in every column"))


def _startups(runs: _Runs, hosts: list[str], reasons: dict[int, tuple[str, str]]) -> dict[str, StartupEstimate]:
    """Start-up of each host; truncated runs are rejected, and runs whose share of a known start-up is not."""
    duration_s = runs.iterations * runs.latency_s
    bound = _gpu_bound(runs)
    result: dict[str, StartupEstimate] = {}
    for host in dict.fromkeys(hosts):
        rows = np.array([i for i, own in enumerate(hosts) if own == host and i not in reasons], dtype=np.int64)
        target = target_duration_s(duration_s[rows])
        if np.isnan(target):
            continue
        result[host] = estimate_startup(duration_s[rows], runs.latency_s[rows], bound[rows], target)
        for i in rows[duration_s[rows] < TRUNCATED_SHARE * target].tolist():
            detail = f"iterations × latency_s = {duration_s[i]:.3g} s where the other runs aim at {target:g} s"
            reasons.setdefault(i, ("TRUNCATED_RUN", detail))
        if result[host].startup_s > 0:
            for i in rows[~np.isfinite(runs.iterations[rows])].tolist():
                reasons.setdefault(i, ("BAD_ITERATIONS", "missing, so the start-up within latency_s cannot be removed"))
    return result


def _gpu_bound(runs: _Runs) -> BoolArray:
    """Rows much slower than their host's launches, shape (n,)."""
    launches = np.array([_launch_s(workload) for workload in runs.workloads])
    result: BoolArray = runs.latency_s > GPU_BOUND_MARGIN * launches
    return result


def _launch_s(workload: Workload | None) -> float:
    if workload is None:
        return float("inf")
    pairs = zip(workload.operators, workload.counts, strict=True)
    return LAUNCH_S * sum(count * operator.host_share for operator, count in pairs if not operator.origin.startswith(COMPLETED))


def _check_roof(runs: _Runs, reasons: dict[int, tuple[str, str]]) -> None:
    """Runs faster than their matrix products at the peak rate: they did not run what they name.

    Convolutions are left out, as lists may name depthwise ones as dense.
    """
    for i in range(len(runs.latency_s)):
        spec, workload = runs.gpus[i], runs.workloads[i]
        if i in reasons or spec is None or workload is None:
            continue
        clock = next((float(c) for c in (runs.measured_mhz[i], runs.asked_mhz[i]) if np.isfinite(c)), spec.sm_clock_limit_mhz)
        least = _product_clocks(workload, spec) / (clock * HZ_PER_MHZ)
        if runs.latency_s[i] * ROOF_TOLERANCE < least:
            reasons[i] = ("ABOVE_ROOF", f"latency_s = {runs.latency_s[i]:.4g}; {spec.name} needs at least {least:.4g} s")


def _product_clocks(workload: Workload, spec: GpuSpec) -> float:
    """SM clocks that the matrix products of an iteration take at the peak rate."""
    pairs = zip(workload.operators, workload.counts, strict=True)
    chosen: dict[Operator, float] = {operator: count for operator, count in pairs if operator.family in ("gemm", "attention")}
    if not chosen:
        return 0.0
    work = minimal_work(tuple(chosen), spec)
    clocks = work.flop / (work.flop_per_clock * spec.num_sms)
    return float(np.nan_to_num(clocks) @ np.array(list(chosen.values())))


def _accepted(
    table: Table, runs: _Runs, keep: IntArray, hosts: list[str], startups: dict[str, StartupEstimate]
) -> tuple[WorkloadRows, dict[int, tuple[str, str]]]:
    """The kept rows with start-up removed, and rows whose energy cannot be."""
    found = [startups.get(hosts[i]) for i in keep]
    startup = np.array([s.startup_s if s else 0.0 for s in found])
    target = np.array([s.target_s if s else np.nan for s in found])
    iterations, raw_latency, raw_energy = runs.iterations[keep], runs.latency_s[keep], runs.energy_j[keep]
    perturbed = is_perturbed(iterations * raw_latency, raw_latency, target, startup)
    share = np.where(startup > 0, startup / iterations, 0.0)
    latency = raw_latency - share
    energy = raw_energy - _startup_w(runs, keep) * share
    power_reasons = _check_energy(table, runs, keep, energy / latency)
    bad = np.array([i in power_reasons for i in keep.tolist()])
    workloads, workload_index = _numbered([runs.workloads[i] for i in keep])
    gpus, gpu_index = _numbered([spec.name for i in keep if (spec := runs.gpus[i]) is not None])
    attention = table.texts("attention")
    rows = WorkloadRows(
        workloads=tuple(w for w in workloads if w is not None),
        workload_index=workload_index,
        gpus=gpus,
        gpu_index=gpu_index,
        attention=tuple(attention[i].lower() for i in keep),
        sm_clock_asked_mhz=runs.asked_mhz[keep],
        sm_clock_measured_mhz=runs.measured_mhz[keep],
        latency_s=latency,
        energy_j=np.where(bad, np.nan, energy),
        raw_latency_s=raw_latency,
        raw_energy_j=np.where(bad, np.nan, raw_energy),
        iterations=iterations,
        temperature_c=runs.temperature_c[keep],
        startup_s=startup,
        planned_latency_s=target / iterations,
        gpu_bound=_gpu_bound(runs)[keep],
        perturbed=perturbed,
        weight=np.where(perturbed, PERTURBED_WEIGHT, 1.0),
        flags=tuple(("perturbed",) if p else () for p in perturbed),
        sources=(table.name,),
        source_index=np.zeros(len(keep), dtype=np.int64),
        row=keep + 1,
    )
    return rows, power_reasons


def _startup_w(runs: _Runs, keep: IntArray) -> Array:
    """Power during start-up [W], shape (n,): idle at the locked clock, and that the board is in use."""
    result = []
    for i in keep.tolist():
        spec = runs.gpus[i]
        if spec is None:
            result.append(np.nan)
            continue
        clock = runs.measured_mhz[i] if np.isfinite(runs.measured_mhz[i]) else runs.asked_mhz[i]
        known = spec.idle_w is not None and np.isfinite(clock)
        idle = float(spec.idle_w.at(np.array([clock]))[0]) if known and spec.idle_w else ASSUMED_IDLE_SHARE * spec.power_limit_w
        result.append(idle + STARTUP_ACTIVE_W)
    return np.array(result)


def _check_energy(table: Table, runs: _Runs, keep: IntArray, power_w: Array) -> dict[int, tuple[str, str]]:
    """Rows whose energy cannot be.  A blank one is no fault: such a row tells its latency."""
    garbled = table.garbled("energy_j")
    found: dict[int, tuple[str, str]] = {}
    for position, i in enumerate(keep.tolist()):
        spec, energy = runs.gpus[i], float(runs.energy_j[i])
        if np.isnan(energy) and not garbled[i]:
            continue
        if not 0.0 < energy < np.inf:
            found[i] = ("BAD_POWER", f"energy_j = {energy:g}")
        elif not power_w[position] > 0:
            found[i] = ("BAD_POWER", f"energy_j = {energy:g} is less than idle power over the start-up")
        elif spec is not None and power_w[position] < least_power_w(spec):
            watts = f"energy_j / latency_s = {power_w[position]:.4g} W"
            found[i] = ("BAD_POWER", f"{watts}, less than the board draws at rest; are both in joules and seconds per iteration?")
        elif spec is not None and power_w[position] > ABOVE_LIMIT_SHARE * spec.power_limit_w:
            watts = f"energy_j / latency_s = {power_w[position]:.4g} W; limit {spec.power_limit_w:g} W"
            detail = f"{watts}; is energy_j in joules per iteration?"
            found[i] = ("ABOVE_LIMIT", detail)
    return found


Value = TypeVar("Value")


def _numbered(values: list[Value]) -> tuple[tuple[Value, ...], IntArray]:
    known: dict[Value, int] = {}
    index = np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)
    return tuple(known), index


def _startup(source: str, host: str, found: StartupEstimate) -> Startup:
    return Startup(
        source=source,
        gpu=host.removesuffix("@").replace("@", " on "),
        target_s=found.target_s,
        startup_s=found.startup_s,
        quartiles_s=found.quartiles_s,
        runs=int(found.settled.sum()),
    )


def _rejected(table: Table, i: int, reason: str, detail: str, *, power_only: bool) -> RejectedRow:
    return RejectedRow(source=table.name, row=i + 1, reason=reason, detail=detail, power_only=power_only)


def _indices(mask: BoolArray) -> list[int]:
    found: list[int] = np.flatnonzero(mask).tolist()
    return found
