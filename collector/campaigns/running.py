"""Running a campaign: sensor, idle power, then every point of the plan, each row on disk before the next starts.

Its file's metadata are known before the first row, completed from the rows at the end, and read again on resume.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from collector.campaigns.files import CampaignSpec
from collector.campaigns.measurement import Point, measure_kernel, ranged_launch_s
from collector.campaigns.outcome import idle_entry
from collector.campaigns.plan import CLOCK_SETTLE_S, CampaignPlan, digest_of, middle_clock
from collector.clocks import ClockHold, held_clock
from collector.dataset.reader import KernelDataset, RecoveredLog, log_path, read_kernel_dataset, read_log
from collector.dataset.schema import SCHEMA_VERSION, UNUSABLE, Metadata, Row, flag_counts, repeated_rows
from collector.dataset.writer import KernelWriter, open_kernel_writer
from collector.devices.protocols import Bench
from collector.errors import CampaignError, RunnerError
from collector.sampling import SECONDS_PER_NS, Sampler
from collector.sensing.calibration import SensorCalibration, calibration_from_document
from collector.sensing.live import characterise_sensor, load_operator
from estimator import __version__
from estimator.display.text import known
from estimator.vocabulary.values import frozen
from microbench.sizing import launches_for

SPOILT: Final = frozenset({"throttled", "shared_board", "sensor_stuck"})
"""Flags whose rows are not used for drift."""


def campaign_metadata(
    bench: Bench,
    spec: CampaignSpec,
    plan: CampaignPlan,
    key: Metadata,
    calibration: SensorCalibration,
    idle: list[dict[str, float | None]],
) -> Metadata:
    """File metadata that are known before the first row."""
    identity = bench.gpu.identity()
    return {
        "kind": "kernels",
        "gpu": {
            "name": identity.name,
            "specification": bench.gpu_spec.name,
            "uuid": identity.uuid,
            "pci_address": identity.pci_address,
            "compute_capability": identity.compute_capability,
            "vbios": identity.vbios,
            "power_limit_w": known(bench.gpu.power_limit_w()),
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
            "selection": None if plan.choice is None else asdict(plan.choice),
            "measurement": asdict(spec.measurement),
        },
        "key": key,
        "seed": key["seed"],
        "idle": idle,
        "versions": {"wattprint": __version__, "numpy": np.__version__, "pyarrow": pa.__version__},
        "started_unix_s": bench.clock.unix_s(),
        "complete": False,
    }


def voltage_by_clock(table: pa.Table) -> list[dict[str, float]] | None:
    """Voltage under load by clock, from rows that no limit slowed down; None if it cannot be read."""
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


def anchor_drift(table: pa.Table) -> dict[str, float]:
    """Largest relative spread (highest minus lowest over mean) of latency and power among repeated anchors.

    Scatter beyond the rows' own standard errors is scatter between runs, and temperature.
    """
    trial, latency, power = (np.array(table.column(name).to_pylist(), dtype=np.float64) for name in ("trial", "latency_s", "power_w"))
    drift: dict[str, float] = {}
    for rows in repeated_rows(table, SPOILT):
        for name, values in (("latency", latency[rows]), ("power", power[rows])):
            told = values[np.isfinite(values)]
            if trial[rows].any() and len(told) > 1:
                drift[name] = max(drift.get(name, 0.0), float(np.ptp(told) / told.mean()))
    return drift


KeptRows = RecoveredLog | KernelDataset
"""Rows of an earlier run of the same campaign, and its metadata."""


def kept_rows(output: Path, key: Metadata) -> KeptRows | None:
    """Rows to continue from: of an unfinished log, else of a finished dataset; None without either.

    Raises CampaignError if they belong to another campaign, board or version; the message names the difference.
    """
    log = log_path(output)
    if not log.is_file() and not output.is_file():
        return None
    kept = read_log(log) if log.is_file() else read_kernel_dataset(output)
    before = kept.metadata.get("key")
    if not isinstance(before, dict):
        raise CampaignError(f"{output}: not from a campaign that can be resumed; use --fresh, or another --out")
    differs = [f"{name} was {before.get(name)!r}, is {value!r}" for name, value in key.items() if before.get(name) != value]
    if differs:
        raise CampaignError(f"{output} cannot be resumed: {'; '.join(differs)}; use the same settings, --fresh, or another --out")
    return kept


@frozen
class Progress:
    """State of a campaign: its activity, points done of `total`, and the row just finished (None between rows)."""

    phase: str
    done: int
    total: int
    row: Row | None = None


@frozen
class CampaignOutcome:
    """The result of a campaign.

    `rows` in the dataset, `rows_kept` of them from an earlier run; `rows_planned` points, `rows_missing` of them not reached; `flags` and
    `rejected` count rows by doubt and points without a row by reason; `unusable_rows` have no valid time or power; `drift` is the largest
    relative spread of repeated anchors.
    """

    dataset: Path
    rows: int
    rows_kept: int
    rows_planned: int
    rows_missing: int
    flags: dict[str, int]
    rejected: dict[str, int]
    unusable_rows: int
    drift: dict[str, float]
    board_time_s: float


def campaign_key(bench: Bench, spec: CampaignSpec, plan: CampaignPlan, families: tuple[str, ...], seed: int) -> Metadata:
    """Values that must be equal for a campaign to be resumed: the rows kept, and their correction, then fit those to come."""
    identity = bench.gpu.identity()
    return {
        "campaign": spec.name,
        "campaign_digest": spec.digest,
        "seed": seed,
        "sm_clocks_mhz": list(plan.clocks_mhz),
        "families": list(families),
        "selection": "all" if plan.choice is None else f"{plan.choice.budget_s:g} s",
        "gpu_uuid": identity.uuid,
        "driver": identity.driver,
        "vbios": identity.vbios,
        "wattprint_version": __version__,
        "schema_version": SCHEMA_VERSION,
        "sensor": digest_of(plan.sensor.document()),
        "plan": digest_of(*(point.row_id for point in plan.points)),
    }


@dataclass(slots=True)
class Campaign:
    """A plan to be measured into a dataset, by a process that has the right to write it (`claimed_dataset`).

    Points whose rows are in `kept` are not measured again.  A `calibration` of this board's sensor replaces its characterisation.
    `budget_s` limits the board's time: no point begins that would end after it.  The dataset is then complete in itself and can be
    resumed.  `run` counts in `refused` the points that cannot run here, by reason.
    """

    bench: Bench
    spec: CampaignSpec
    plan: CampaignPlan
    key: Metadata
    output: Path
    kept: KeptRows | None = None
    calibration: SensorCalibration | None = None
    budget_s: float = math.inf
    report: Callable[[Progress], None] = lambda _: None
    done: set[str] = field(default_factory=set, init=False)
    refused: Counter[str] = field(default_factory=Counter, init=False)

    def run(self) -> CampaignOutcome:
        """Measure the remaining points.

        Raises CampaignError if nothing was measured, DeviceError and DatasetError; finished rows are then on disk, in the log beside the
        output, as after an interruption.
        """
        bench, kept, now_ns = self.bench, self.kept, self.bench.clock.now_ns
        start_ns = now_ns()
        if kept is not None:
            self.done.update(kept.table.column("row_id").to_pylist())
            metadata = kept.metadata
            calibration = self._metered(calibration_from_document(metadata.get("sensor") or {}, f"{self.output}: sensor"))
        left = [point for point in self.plan.points if point.row_id not in self.done]
        if kept is not None and not left and kept.metadata.get("complete") is True and not log_path(self.output).is_file():
            return self._outcome(kept.table, kept.metadata)
        with held_clock(bench.gpu) as hold:
            sampler = Sampler(bench.gpu, bench.sensors)
            if kept is None:
                metadata, calibration = self._begun(sampler, hold)
            last_ns = start_ns + (self.budget_s - self.spec.measurement.planned_total_s(calibration)) / SECONDS_PER_NS
            with open_kernel_writer(self.output, metadata, kept.table if kept else None) as writer:
                if kept is not None and left and now_ns() + self.spec.warmup_s / SECONDS_PER_NS <= last_ns:
                    self._tell("warming up")
                    hold.set(middle_clock(self.plan.clocks_mhz))
                    warm_up(bench, self.spec.warmup_s)
                self._tell("measuring")
                missing = 0
                for number, point in enumerate(left):
                    if now_ns() > last_ns:
                        missing = len(left) - number
                        break
                    self._measure(point, sampler, hold, calibration, writer)
                return self._finished(writer, metadata, missing, (now_ns() - start_ns) * SECONDS_PER_NS)

    def _metered(self, calibration: SensorCalibration) -> SensorCalibration:
        """The calibration.  Raises CampaignError if a meter is there and it has no gain."""
        if len(self.bench.sensors) > 1 and calibration.gain is None:
            why = calibration.notes.get("gain")
            raise CampaignError(f"no gain of this meter is known: {why}; characterise the sensor with it, or leave out --pmd")
        return calibration

    def _tell(self, phase: str, row: Row | None = None) -> None:
        self.report(Progress(phase=phase, done=len(self.done) + self.refused.total(), total=len(self.plan.points), row=row))

    def _begun(self, sampler: Sampler, hold: ClockHold) -> tuple[Metadata, SensorCalibration]:
        """The metadata of a new campaign, with the power at rest at every clock, and its sensor's calibration."""
        bench, spec, plan, calibration = self.bench, self.spec, self.plan, self.calibration
        hold.set(middle_clock(plan.clocks_mhz))
        if calibration is None:
            self._tell("characterising the power sensor")
            calibration = characterise_sensor(bench, sampler)
        calibration = self._metered(calibration)
        self._tell("warming up, idle power")
        warm_up(bench, spec.warmup_s)
        idle = [_idle_power(bench, sampler, hold, clock, spec, calibration) for clock in plan.clocks_mhz]
        return campaign_metadata(bench, spec, plan, self.key, calibration, idle), calibration

    def _measure(self, point: Point, sampler: Sampler, hold: ClockHold, calibration: SensorCalibration, writer: KernelWriter) -> None:
        """Puts the row of a point on disk and reports it; a kernel that cannot run here is counted with its reason."""
        if hold.set(point.sm_clock_mhz):
            self.bench.clock.wait(CLOCK_SETTLE_S)
        try:
            row = measure_kernel(self.bench, sampler, point, self.spec.measurement, calibration)
        except RunnerError as error:
            self.refused[f"{point.operator.family}: {error}"] += 1
            self._tell("measuring")
            return
        writer.append(row)
        self.done.add(row["row_id"])
        self._tell("measuring", row)

    def _finished(self, writer: KernelWriter, metadata: Metadata, missing: int, elapsed_s: float) -> CampaignOutcome:
        """Writes the Parquet file and sums up."""
        rejected = {**self.plan.skipped, **self.refused}
        if not writer.rows:
            writer.discard()
            raise CampaignError(f"nothing was measured: {'; '.join(rejected) or 'the budget ended before the first row'}")
        table = writer.table()
        closing = {"voltage": voltage_by_clock(table), "drift": anchor_drift(table), "rejected": rejected, "complete": not missing}
        writer.finish({**metadata, **closing}, order=[point.row_id for point in self.plan.points])
        return self._outcome(table, closing, elapsed_s, missing)

    def _outcome(self, table: pa.Table, closing: Metadata, elapsed_s: float = 0.0, missing: int = 0) -> CampaignOutcome:
        """The outcome of a campaign, from its rows and its last metadata."""
        flags = table.column("flags").to_pylist()
        return CampaignOutcome(
            dataset=self.output,
            rows=table.num_rows,
            rows_kept=self.kept.table.num_rows if self.kept else 0,
            rows_planned=len(self.plan.points),
            rows_missing=missing,
            flags=flag_counts(flags),
            rejected=closing.get("rejected") or {},
            unusable_rows=sum(1 for row in flags if UNUSABLE.intersection(row)),
            drift=closing.get("drift") or {},
            board_time_s=elapsed_s,
        )


def warm_up(bench: Bench, seconds: float) -> None:
    """Applies a load for this long."""
    if seconds > 0.0:
        prepared = bench.runner.prepare(load_operator(bench))
        bench.runner.run(prepared, launches_for(seconds, ranged_launch_s(bench, prepared, 0.05)))


def _idle_power(
    bench: Bench, sampler: Sampler, hold: ClockHold, clock: float | None, spec: CampaignSpec, calibration: SensorCalibration
) -> dict[str, float | None]:
    """The board at rest at one clock.  Raises CampaignError if its sensor gives no reading."""
    hold.set(clock)
    bench.clock.wait(spec.idle_settle_s)
    sampler.drain()
    bench.clock.wait(spec.idle_window_s)
    trace = sampler.drain()
    if not len(trace.board.host_ns):
        raise CampaignError("the power sensor gave no reading at rest; is another program using it?")
    return idle_entry(trace, clock, calibration, bench.gpu.power_limit_w())
