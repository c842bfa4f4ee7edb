"""Running a campaign: sensor, idle power, then every point of the plan, each row on disk before the next starts."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from collector.bench import Bench
from collector.campaigns.files import CampaignSpec
from collector.campaigns.measurement import Point, measure_kernel, ranged_launch_s
from collector.campaigns.metadata import KeptRows, anchor_drift, campaign_metadata, idle_drift, voltage_by_clock
from collector.campaigns.outcome import idle_entry
from collector.campaigns.plan import CLOCK_SETTLE_S, ROW_ID_DIGITS, CampaignPlan, check_budget, closing_clocks, closing_s, middle_clock
from collector.clocks import ClockHold, held_clock
from collector.dataset.log import log_path
from collector.dataset.schema import SCHEMA_VERSION, UNUSABLE, Metadata, Row, flag_counts, kernel_schema
from collector.dataset.writer import KernelWriter, open_kernel_writer
from collector.errors import CampaignError, RunnerError
from collector.sampling import Sampler
from collector.sensing.calibration import SensorCalibration, calibration_from_document
from collector.sensing.live import characterise_sensor, load_operator
from estimator import __version__
from microbench.sizing import launches_for

NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of a campaign: its activity, points done of `total`, and the row just finished (None between rows)."""

    phase: str
    done: int
    total: int
    row: Row | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOutcome:
    """The result of a campaign.

    `rows` in the dataset, `kept` of them from an earlier run; `planned` points, `missing` of them not reached; `flags` and `rejected` count
    rows by doubt and points without a row by reason; `unusable` rows have no valid time or power; `drift` is the largest relative spread of
    repeated anchors, and the change of power at rest from beginning to end; `elapsed_s` of the board's time.
    """

    output: Path
    rows: int
    kept: int
    planned: int
    missing: int
    flags: dict[str, int]
    rejected: dict[str, int]
    unusable: int
    drift: dict[str, float]
    elapsed_s: float


def campaign_key(bench: Bench, spec: CampaignSpec, plan: CampaignPlan, families: tuple[str, ...], seed: int) -> Metadata:
    """Values that must be equal for a campaign to be resumed."""
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
        "plan": hashlib.sha256("".join(point.row_id for point in plan.points).encode()).hexdigest()[:ROW_ID_DIGITS],
    }


@dataclass(frozen=True, slots=True)
class Campaign:
    """A plan to be measured into a dataset, by a process that has the right to write it (`claimed_dataset`).

    Points whose rows are in `kept` are not measured again, nor those whose rows are `elsewhere`, in other parts of the dataset; if
    all rows are there, nothing is written.  A `calibration` of this board's sensor replaces its characterisation.  `budget_s` limits the
    board's time: no point begins that would end after it.  The dataset is then complete in itself and can be resumed.
    """

    bench: Bench
    spec: CampaignSpec
    plan: CampaignPlan
    key: Metadata
    output: Path
    kept: KeptRows | None = None
    elsewhere: pa.Table | None = None
    calibration: SensorCalibration | None = None
    budget_s: float = math.inf
    report: Callable[[Progress], None] = lambda _: None

    def run(self) -> CampaignOutcome:
        """Measure the remaining points.

        Raises CampaignError if the budget has no time for a kernel, or nothing was measured, DeviceError and DatasetError; finished
        rows are then on disk, in the log beside the output, as after an interruption.
        """
        bench, spec, plan, kept = self.bench, self.spec, self.plan, self.kept
        start_ns, total = bench.clock.now_ns(), len(plan.points)
        tables = filter(None, (self.elsewhere, kept.table if kept else None))
        done = {row_id for table in tables for row_id in table.column("row_id").to_pylist()}
        left = [point for point in plan.points if point.row_id not in done]
        if kept is None:
            if not left:
                return self._outcome(kernel_schema({}).empty_table())
            check_budget(spec, plan, self.budget_s)
        complete = kept is not None and kept.metadata.get("complete") is True and not log_path(self.output).is_file()
        if kept is not None and complete and not left:
            return self._outcome(kept.table, kept.metadata.get("rejected"), kept.metadata.get("drift"))
        with held_clock(bench.gpu) as hold:
            sampler = Sampler(bench.gpu, bench.sensors)
            if kept is None:
                metadata, calibration = self._begun(sampler, hold)
            else:
                metadata = kept.metadata
                calibration = calibration_from_document(metadata.get("sensor") or {}, f"{self.output}: sensor")
            with open_kernel_writer(self.output, metadata, kept.table if kept else None) as writer:
                session = _Session(
                    bench=bench,
                    sampler=sampler,
                    hold=hold,
                    spec=spec,
                    plan=plan,
                    calibration=calibration,
                    writer=writer,
                    done=done,
                    end_ns=start_ns + self.budget_s * NS_PER_S,
                )
                if kept is not None and left and session.time_left(spec.warmup_s):
                    self.report(Progress(phase="warming up", done=len(done), total=total))
                    hold.set(middle_clock(plan.clocks_mhz))
                    warm_up(bench, spec.warmup_s)
                self.report(Progress(phase="measuring", done=len(done), total=total))
                for row in session.measured(left):
                    self.report(Progress(phase="measuring", done=len(done), total=total, row=row))
                if session.any_measured or not (session.out_of_time or "idle_after" in metadata):
                    self.report(Progress(phase="idle power again", done=len(done), total=total))
                    metadata = {**metadata, "idle_after": session.idle_after()}
                return self._finished(session, metadata, (bench.clock.now_ns() - start_ns) / NS_PER_S)

    def _begun(self, sampler: Sampler, hold: ClockHold) -> tuple[Metadata, SensorCalibration]:
        """The metadata of a new campaign, with the power at rest at every clock, and its sensor's calibration."""
        bench, spec, plan, calibration = self.bench, self.spec, self.plan, self.calibration
        hold.set(middle_clock(plan.clocks_mhz))
        if calibration is None:
            self.report(Progress(phase="characterising the power sensor", done=0, total=len(plan.points)))
            calibration = characterise_sensor(bench, sampler)
        self.report(Progress(phase="warming up, idle power", done=0, total=len(plan.points)))
        warm_c = warm_up(bench, spec.warmup_s)
        idle = [_idle_power(bench, sampler, hold, clock, spec, calibration) for clock in plan.clocks_mhz]
        return campaign_metadata(bench, spec, plan, self.key, calibration, idle, warm_c), calibration

    def _finished(self, session: "_Session", metadata: Metadata, elapsed_s: float) -> CampaignOutcome:
        """Writes the Parquet file and sums up."""
        writer, points = session.writer, self.plan.points
        rejected = {**self.plan.skipped, **session.refused}
        if not writer.rows:
            writer.discard()
            raise CampaignError(f"nothing was measured: {'; '.join(rejected) or 'the budget ended before the first row'}")
        table = writer.table()
        drift = anchor_drift(table) | idle_drift(metadata.get("idle"), metadata.get("idle_after") or [])
        closing = {"voltage": voltage_by_clock(table), "drift": drift, "rejected": rejected, "complete": not session.out_of_time}
        writer.finish({**metadata, **closing}, order=[point.row_id for point in points])
        left = sum(point.row_id not in session.done for point in points) - session.refused.total()
        return self._outcome(table, rejected, drift, elapsed_s, missing=max(0, left) if session.out_of_time else 0)

    def _outcome(
        self,
        table: pa.Table,
        rejected: dict[str, int] | None = None,
        drift: dict[str, float] | None = None,
        elapsed_s: float = 0.0,
        missing: int = 0,
    ) -> CampaignOutcome:
        """The outcome of a campaign, from its rows."""
        flags = table.column("flags").to_pylist()
        return CampaignOutcome(
            output=self.output,
            rows=table.num_rows,
            kept=self.kept.table.num_rows if self.kept else 0,
            planned=len(self.plan.points),
            missing=missing,
            flags=flag_counts(flags),
            rejected=rejected or {},
            unusable=sum(1 for row in flags if UNUSABLE.intersection(row)),
            drift=drift or {},
            elapsed_s=elapsed_s,
        )


@dataclass(slots=True, kw_only=True)
class _Session:
    """A campaign during measurement; `refused` counts points that cannot run here, by reason."""

    bench: Bench
    sampler: Sampler
    hold: ClockHold
    spec: CampaignSpec
    plan: CampaignPlan
    calibration: SensorCalibration
    writer: KernelWriter
    done: set[str]
    end_ns: float
    refused: Counter[str] = field(default_factory=Counter)
    any_measured: bool = False
    out_of_time: bool = False

    def time_left(self, before_s: float = 0.0) -> bool:
        """Whether the budget has time for a point after `before_s`, and for power at rest at the end."""
        needed_s = before_s + closing_s(self.spec, self.plan.clocks_mhz) + self.spec.measurement.planned_total_s(self.calibration)
        return self.bench.clock.now_ns() + needed_s * NS_PER_S <= self.end_ns

    def measured(self, points: Sequence[Point]) -> Iterator[Row]:
        """Measures points, row by row; ends early at the end of the budget, and `out_of_time` is then true."""
        for point in points:
            if not self.time_left():
                self.out_of_time = True
                return
            if (row := self._measure(point)) is not None:
                yield row

    def _measure(self, point: Point) -> Row | None:
        """The row of a point, on disk; None (and a reason counted) for a kernel that cannot run here."""
        if self.hold.set(point.sm_clock_mhz):
            self.bench.clock.wait(CLOCK_SETTLE_S)
        try:
            row = measure_kernel(self.bench, self.sampler, point, self.spec.measurement, self.calibration)
        except RunnerError as error:
            self.refused[f"{point.operator.family}: {error}"] += 1
            return None
        self.writer.append(row)
        self.done.add(row["row_id"])
        self.any_measured = True
        return row

    def idle_after(self) -> list[dict[str, float | None]]:
        """Power at rest again, at a few of the clocks."""
        clocks = closing_clocks(self.plan.clocks_mhz)
        return [_idle_power(self.bench, self.sampler, self.hold, clock, self.spec, self.calibration) for clock in clocks]


def warm_up(bench: Bench, seconds: float) -> float:
    """Applies a load for this long; returns the final temperature, nan if it cannot be read [°C]."""
    if seconds > 0.0:
        prepared = bench.runner.prepare(load_operator(bench))
        bench.runner.run(prepared, launches_for(seconds, ranged_launch_s(bench, prepared, 0.05)))
    return bench.gpu.state().temperature_c


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
