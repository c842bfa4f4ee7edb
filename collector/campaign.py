"""Running a campaign: sensor, idle power, then every point of the plan, each row safe before the next starts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from collector.bench import Bench
from collector.clocks import ClockHold, held_clock
from collector.config import CampaignSpec
from collector.correction import steady_power
from collector.dataset import KernelWriter, flag_counts, open_kernel_writer, read_kernel_dataset
from collector.dataset.log import log_path, read_log
from collector.errors import CampaignError, RunnerError
from collector.measurement import Point, measure_kernel, ranged_launch_s
from collector.plan import CampaignPlan
from collector.sampling import Sampler, host_seconds
from collector.sensor.calibration import SensorCalibration, calibration_from_document
from collector.sensor.characterisation import characterise_sensor, load_operator
from estimator import __version__
from microbench.sizing import launches_for

CLOCK_SETTLE_S: Final = 0.2
"""Rest after the clock was changed."""
UNUSABLE_FLAGS: Final = frozenset({"latency_absurd", "power_absurd", "power_missing", "sensor_stuck"})
"""Flags with which a row says nothing about time or power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a campaign stands: what it is doing, points done of `total`, and the row just finished (None between rows)."""

    phase: str
    done: int
    total: int
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """Rows of an earlier run of the same campaign, and its metadata."""

    table: pa.Table
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOutcome:
    """What came of a campaign.

    `rows` in the dataset, `kept` of them from an earlier run; `planned` points; `flags` and `rejected` count rows
    by doubt and points by the reason why they gave none; `unusable` rows say nothing about time or power; `drift`
    the largest relative spread of repeated anchors; `elapsed_s` of the board's time.
    """

    output: Path
    rows: int
    kept: int
    planned: int
    flags: dict[str, int]
    rejected: dict[str, int]
    unusable: int
    drift: dict[str, float]
    elapsed_s: float


def kept_rows(output: Path, key: Mapping[str, Any]) -> KeptRows | None:
    """Rows to go on from: of an unfinished log, else of a finished dataset; None where there is neither.

    Raises CampaignError where they belong to another campaign, board or version, and says which.
    """
    log = log_path(output)
    if log.is_file():
        recovered = read_log(log)
        kept = KeptRows(table=recovered.table, metadata=recovered.metadata)
    elif output.is_file():
        dataset = read_kernel_dataset(output)
        kept = KeptRows(table=dataset.table, metadata=dataset.metadata)
    else:
        return None
    before = kept.metadata.get("key")
    if not isinstance(before, dict):
        raise CampaignError(f"{output}: not from a campaign that can be resumed; use --fresh, or another --out")
    differs = [f"{name} was {before.get(name)!r}, is {value!r}" for name, value in key.items() if before.get(name) != value]
    if differs:
        raise CampaignError(f"{output} cannot be resumed: {'; '.join(differs)}; use the same settings, --fresh, or another --out")
    return kept


def campaign_key(bench: Bench, spec: CampaignSpec, plan: CampaignPlan, families: tuple[str, ...], seed: int) -> dict[str, Any]:
    """What must be equal for a campaign to be resumed."""
    identity = bench.gpu.identity()
    return {
        "campaign": spec.name,
        "campaign_digest": spec.digest,
        "seed": seed,
        "sm_clocks_mhz": list(plan.clocks_mhz),
        "families": list(families),
        "gpu_uuid": identity.uuid,
        "driver": identity.driver,
        "vbios": identity.vbios,
        "wattprint_version": __version__,
    }


def run_campaign(
    bench: Bench,
    spec: CampaignSpec,
    plan: CampaignPlan,
    key: Mapping[str, Any],
    output: Path,
    *,
    kept: KeptRows | None = None,
    calibration: SensorCalibration | None = None,
    budget_s: float = math.inf,
    report: Callable[[Progress], None] = lambda _: None,
) -> CampaignOutcome:
    """Measure a plan into a dataset.

    Points whose rows are in `kept` are not measured again.  A `calibration` of this board's sensor saves
    characterising it.  After `budget_s` of the board's time no further point
    is begun; the dataset is complete in itself and can be resumed.  Raises DeviceError and DatasetError; finished
    rows are then on disk, in the log beside the output, as they are after an interruption.
    """
    start_ns = bench.clock.now_ns()

    def elapsed_s() -> float:
        return (bench.clock.now_ns() - start_ns) * 1e-9

    with held_clock(bench.gpu) as hold:
        sampler = Sampler(bench.gpu, bench.sensors)
        total = len(plan.points)
        if kept is None:
            hold.set(_middle(plan.clocks_mhz))
            if calibration is None:
                report(Progress(phase="characterising the power sensor", done=0, total=total))
                calibration = characterise_sensor(bench, sampler).calibration
            report(Progress(phase="warming up, idle power", done=0, total=total))
            _warm_up(bench, spec.warmup_s)
            idle = [_idle_power(bench, sampler, hold, clock, spec, calibration) for clock in plan.clocks_mhz]
            metadata = _metadata(bench, spec, plan, key, calibration, idle)
        else:
            metadata = kept.metadata
            calibration = calibration_from_document(metadata.get("sensor") or {}, f"{output}: sensor")
            report(Progress(phase="warming up", done=0, total=total))
            hold.set(_middle(plan.clocks_mhz))
            _warm_up(bench, spec.warmup_s)
        rejected = dict(plan.skipped)
        with open_kernel_writer(output, metadata, kept.table if kept else None) as writer:
            done = set(kept.table.column("row_id").to_pylist()) if kept else set()
            finished = len(done)
            report(Progress(phase="measuring", done=finished, total=total))
            point_s = spec.measurement.planned_total_s(calibration)
            for point in plan.points:
                if point.row_id in done:
                    continue
                if elapsed_s() + point_s > budget_s:
                    break
                row = _measured(bench, sampler, hold, point, spec, calibration, writer, rejected)
                finished += 1
                report(Progress(phase="measuring", done=finished, total=total, row=row))
            return _finish(writer, metadata, plan, output, kept, rejected, elapsed_s())


def _measured(
    bench: Bench,
    sampler: Sampler,
    hold: ClockHold,
    point: Point,
    spec: CampaignSpec,
    calibration: SensorCalibration,
    writer: KernelWriter,
    rejected: dict[str, int],
) -> dict[str, Any] | None:
    """The row of a point, on disk; None (and a reason counted) for a kernel that cannot run here."""
    if hold.set(point.sm_clock_mhz):
        bench.clock.wait(CLOCK_SETTLE_S)
    try:
        row = measure_kernel(bench, sampler, point, spec.measurement, calibration)
    except RunnerError as error:
        reason = f"{point.operator.family}: {error}"
        rejected[reason] = rejected.get(reason, 0) + 1
        return None
    writer.append(row)
    return row


def _middle(clocks_mhz: tuple[float | None, ...]) -> float | None:
    """The clock at which sensor and warm-up run: in the middle, clear of the power limit."""
    return clocks_mhz[(len(clocks_mhz) - 1) // 2]


def _warm_up(bench: Bench, seconds: float) -> None:
    """Load until the board is as warm as a campaign keeps it."""
    if seconds <= 0:
        return
    prepared = bench.runner.prepare(load_operator(bench))
    launch_s = ranged_launch_s(bench, prepared, 0.05)
    bench.runner.run(prepared, launches_for(seconds, launch_s))


def _idle_power(
    bench: Bench, sampler: Sampler, hold: ClockHold, clock: float | None, spec: CampaignSpec, calibration: SensorCalibration
) -> dict[str, float | None]:
    """Power at rest at one clock, with the temperature at which it was measured."""
    hold.set(clock)
    bench.clock.wait(spec.idle_settle_s)
    sampler.drain()
    bench.clock.wait(spec.idle_window_s)
    trace = sampler.drain()
    host_s = host_seconds(trace.board.host_ns)
    if not len(host_s):
        raise CampaignError("the power sensor gave no reading at rest; is another program using it?")
    power = steady_power(trace.board, float(host_s[0]), float(host_s[-1]), calibration, bench.gpu.power_limit_w())
    entry = {
        "sm_clock_mhz": clock,
        "sm_clock_measured_mhz": float(trace.states.sm_clock_mhz.mean()) if len(trace.states.sm_clock_mhz) else math.nan,
        "power_w": power.power_w,
        "std_w": power.std_w,
        "temperature_c": float(trace.states.temperature_c.mean()) if len(trace.states.temperature_c) else math.nan,
        "samples": float(power.samples),
    }
    return {name: value if value is not None and math.isfinite(value) else None for name, value in entry.items()}


def _metadata(
    bench: Bench,
    spec: CampaignSpec,
    plan: CampaignPlan,
    key: Mapping[str, Any],
    calibration: SensorCalibration,
    idle: list[dict[str, float | None]],
) -> dict[str, Any]:
    """File metadata as far as they are known before the first row."""
    identity = bench.gpu.identity()
    return {
        "kind": "kernels",
        "gpu": {
            "name": identity.name,
            "specification": identity.canonical_name,
            "uuid": identity.uuid,
            "pci_address": identity.pci_address,
            "compute_capability": identity.compute_capability,
            "vbios": identity.vbios,
            "power_limit_w": bench.gpu.power_limit_w(),
        },
        "driver": identity.driver,
        "simulated": identity.simulated,
        "sensor": calibration.document(),
        "campaign": {
            "name": spec.name,
            "digest": spec.digest,
            "description": spec.description,
            "kernels": plan.kernels,
            "anchors": plan.anchors,
            "planned_rows": len(plan.points),
        },
        "key": dict(key),
        "seed": key["seed"],
        "idle": idle,
        "versions": {"wattprint": __version__, "numpy": np.__version__, "pyarrow": pa.__version__},
        "started_unix_s": bench.clock.unix_s(),
        "complete": False,
    }


def _finish(
    writer: KernelWriter,
    metadata: Mapping[str, Any],
    plan: CampaignPlan,
    output: Path,
    kept: KeptRows | None,
    rejected: dict[str, int],
    elapsed_s: float,
) -> CampaignOutcome:
    """Write the Parquet file and sum up."""
    if not writer.rows:
        reasons = "; ".join(rejected) or "the budget ended before the first row"
        raise CampaignError(f"nothing was measured: {reasons}")
    table = writer.table()
    drift = _drift(table)
    refused = sum(rejected.values()) - sum(plan.skipped.values())
    writer.finish(
        {
            **metadata,
            "voltage": _voltage(table),
            "drift": drift,
            "rejected": rejected,
            "complete": writer.rows + refused >= len(plan.points),
        },
        order=[point.row_id for point in plan.points],
    )
    flags = table.column("flags").to_pylist()
    return CampaignOutcome(
        output=output,
        rows=writer.rows,
        kept=kept.table.num_rows if kept else 0,
        planned=len(plan.points),
        flags=flag_counts(flags),
        rejected=rejected,
        unusable=sum(1 for row in flags if UNUSABLE_FLAGS.intersection(row)),
        drift=drift,
        elapsed_s=elapsed_s,
    )


def _voltage(table: pa.Table) -> list[dict[str, float]] | None:
    """Voltage under load by clock, from rows that no limit slowed down; None where it cannot be read."""
    by_clock: dict[float, list[float]] = {}
    columns = [table.column(name).to_pylist() for name in ("sm_clock_mhz", "voltage_v", "flags")]
    for clock, voltage, flags in zip(*columns, strict=True):
        if clock is not None and voltage is not None and "throttled" not in flags:
            by_clock.setdefault(clock, []).append(voltage)
    if not by_clock:
        return None
    return [
        {"sm_clock_mhz": clock, "voltage_v": float(np.median(values)), "std_v": float(np.std(values)), "rows": float(len(values))}
        for clock, values in sorted(by_clock.items())
    ]


def _drift(table: pa.Table) -> dict[str, float]:
    """Largest relative spread (highest minus lowest over mean) of latency and power among repeated anchors.

    What their scatter is beyond the rows' own standard errors is scatter between runs, and temperature.
    """
    names = ("family", "operator", "precision", "sm_clock_mhz", "kernel_name", "elements", "m", "n", "k")
    columns = [table.column(name).to_pylist() for name in (*names, "trial", "latency_s", "power_w", "flags")]
    groups: dict[tuple[Any, ...], list[tuple[float | None, float | None]]] = {}
    repeated = set()
    for *identity, trial, latency, power, flags in zip(*columns, strict=True):
        if "throttled" in flags:
            continue
        groups.setdefault(tuple(identity), []).append((latency, power))
        if trial:
            repeated.add(tuple(identity))
    drift: dict[str, float] = {}
    for group in repeated:
        for index, name in enumerate(("latency", "power")):
            values = [value for pair in groups[group] if (value := pair[index]) is not None]
            if len(values) > 1:
                spread = float((max(values) - min(values)) / np.mean(values))
                drift[name] = max(drift.get(name, 0.0), spread)
    return drift
