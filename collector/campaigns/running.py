"""Running a campaign: sensor, idle power, then every point of the plan, each row safe before the next starts."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from collector.bench import Bench
from collector.campaigns.context_guard import SUFFIX as KILLERS_SUFFIX
from collector.campaigns.continued_clock import continued_bench
from collector.campaigns.files import CampaignSpec
from collector.campaigns.kept import KeptRows
from collector.campaigns.measurement import Point, measure_traced
from collector.campaigns.outcome import idle_entry
from collector.campaigns.plan import CLOCK_SETTLE_S, CampaignPlan, check_budget, closing_clocks, closing_s, middle_clock
from collector.campaigns.repetition import Trials
from collector.campaigns.summary import anchor_drift, campaign_metadata, idle_drift, voltage_by_clock
from collector.campaigns.thermal import keep_in_band, warm_up
from collector.clocks import ClockHold, held_clock
from collector.dataset import SCHEMA_VERSION, KernelWriter, claimed_dataset, flag_counts, open_kernel_writer
from collector.dataset.claim import Claim
from collector.dataset.log import log_path
from collector.dataset.traces import IDLE, TraceRecord
from collector.errors import CampaignError, RunnerError
from collector.sampling import Sampler
from collector.sensing.calibration import SensorCalibration, calibration_from_document
from collector.sensing.live import characterise_sensor
from estimator import __version__

NS_PER_S: Final = 1e9
PLAN_DIGITS: Final = 16
UNUSABLE_FLAGS: Final = frozenset({"latency_absurd", "power_absurd", "power_missing", "sensor_stuck", "result_wrong"})
"""Flags with which a row says nothing about time or power, or not of this kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a campaign stands: what it is doing, points done of `total`, and the row just finished (None between rows)."""

    phase: str
    done: int
    total: int
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOutcome:
    """What came of a campaign.

    `rows` in the dataset, `kept` of them from an earlier run; `repeated` and `kept_repeated` of these further trials of a point; `planned`
    points, of which `missing` were not reached; `flags` and `rejected` count rows by doubt and points by the reason why they gave none;
    `unusable` rows say nothing about time or power; `drift` the largest relative spread of repeated anchors, and the change of power at
    rest from beginning to end; `elapsed_s` of the board's time.
    """

    output: Path
    rows: int
    kept: int
    repeated: int
    kept_repeated: int
    planned: int
    missing: int
    flags: dict[str, int]
    rejected: dict[str, int]
    unusable: int
    drift: dict[str, float]
    elapsed_s: float


def campaign_key(bench: Bench, spec: CampaignSpec, plan: CampaignPlan, families: tuple[str, ...], seed: int) -> dict[str, Any]:
    """What must be equal for a campaign to be resumed."""
    identity = bench.gpu.identity()
    return {
        "campaign": spec.name,
        "campaign_digest": spec.digest,
        "seed": seed,
        "sm_clocks_mhz": list(plan.clocks_mhz),
        "families": list(families),
        "selection": "all" if plan.choice is None else plan.choice.text,
        "gpu_uuid": identity.uuid,
        "driver": identity.driver,
        "vbios": identity.vbios,
        "wattprint_version": __version__,
        "schema_version": SCHEMA_VERSION,
        "plan": hashlib.sha256("".join(point.row_id for point in plan.points).encode()).hexdigest()[:PLAN_DIGITS],
    }


def run_campaign(
    bench: Bench,
    spec: CampaignSpec,
    plan: CampaignPlan,
    key: Mapping[str, Any],
    output: Path,
    *,
    kept: KeptRows | None = None,
    elsewhere: pa.Table | None = None,
    calibration: SensorCalibration | None = None,
    budget_s: float = math.inf,
    traces: bool = False,
    report: Callable[[Progress], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
    claim: Claim | None = None,
) -> CampaignOutcome:
    """Measure a plan into a dataset, of which `claim` is the right to write it where the caller has taken that already.

    Points whose rows are in `kept` are not measured again, nor those whose rows are `elsewhere`, in other parts of the dataset; with
    all of them there nothing is written.  A `calibration` of this board's sensor saves
    characterising it.  After `budget_s` of the board's time no further point
    is begun; the dataset is complete in itself and can be resumed.  `traces` keeps every poll beside the dataset; what is lost of
    those that were there is told to `warn`.  Raises CampaignError for a budget that leaves no time for a kernel, before anything is
    begun, DeviceError and DatasetError; finished rows are then on disk, in the log beside the output, as they are after an interruption.
    """
    with claimed_dataset(output, (KILLERS_SUFFIX,)) if claim is None else nullcontext(claim) as held:
        return _run(bench, spec, plan, key, output, held, kept, elsewhere, calibration, budget_s, traces, report, warn)


def _run(
    bench: Bench,
    spec: CampaignSpec,
    plan: CampaignPlan,
    key: Mapping[str, Any],
    output: Path,
    claim: Claim,
    kept: KeptRows | None,
    elsewhere: pa.Table | None,
    calibration: SensorCalibration | None,
    budget_s: float,
    traces: bool,
    report: Callable[[Progress], None],
    warn: Callable[[str], None],
) -> CampaignOutcome:
    """The campaign, its output claimed."""
    start_ns = bench.clock.now_ns()
    total = len(plan.points)
    known = _trials(elsewhere)
    if kept is None and known and all(point.row_id in known for point in plan.points):
        return _nothing_left(plan, output)
    trials = _trials(elsewhere, kept.table if kept else None)
    if kept is None:
        check_budget(spec, plan, budget_s, calibration)
    elif kept.metadata.get("complete") is True and not log_path(output).is_file() and not _pending(trials, spec, plan):
        return _unchanged(kept, plan, output)
    bench = continued_bench(bench, elsewhere, kept.table if kept else None)
    with held_clock(bench.gpu) as hold:
        sampler = Sampler(bench.gpu, bench.sensors)
        idle: list[TraceRecord] = []
        if kept is None:
            hold.set(middle_clock(plan.clocks_mhz))
            if calibration is None:
                report(Progress(phase="characterising the power sensor", done=0, total=total))
                calibration = characterise_sensor(bench, sampler).calibration
            report(Progress(phase="warming up, idle power", done=0, total=total))
            warm_c = warm_up(bench, spec)
            idle = [_idle_power(bench, sampler, hold, clock, spec) for clock in plan.clocks_mhz]
            entries = [idle_entry(record, calibration) for record in idle]
            metadata = campaign_metadata(bench, spec, plan, key, calibration, entries, warm_c)
        else:
            metadata = kept.metadata
            calibration = calibration_from_document(metadata.get("sensor") or {}, f"{output}: sensor")
        with open_kernel_writer(
            output, metadata, kept.table if kept else None, traces=traces, first_traces=tuple(idle), warn=warn, claim=claim
        ) as writer:
            session = _Session(
                bench=bench,
                sampler=sampler,
                hold=hold,
                spec=spec,
                clocks_mhz=plan.clocks_mhz,
                calibration=calibration,
                writer=writer,
                trials=trials,
                rejected=dict(plan.skipped),
                end_ns=start_ns + budget_s * NS_PER_S,
            )
            if kept is not None and session.time_left(spec.warmup_s) and _pending(trials, spec, plan):
                report(Progress(phase="warming up", done=len(session.trials), total=total))
                hold.set(middle_clock(plan.clocks_mhz))
                warm_up(bench, spec)
            report(Progress(phase="measuring", done=len(session.trials), total=total))
            for row in session.measured(plan):
                report(Progress(phase="measuring", done=len(session.trials), total=max(total, len(session.trials)), row=row))
            if session.any_measured:
                report(Progress(phase="idle power again", done=len(session.trials), total=total))
                metadata = {**metadata, "idle_after": session.idle_after(plan)}
            return _finish(session, metadata, plan, output, kept, (bench.clock.now_ns() - start_ns) / NS_PER_S)


def _trials(*tables: pa.Table | None) -> Trials:
    """What is on disk already."""
    trials = Trials()
    for table in tables:
        if table is not None:
            for batch in table.select(["row_id", "flags", "throttle_reasons", "power_w", "power_std_w"]).to_batches():
                for row in batch.to_pylist():
                    trials.add(row)
    return trials


def _pending(trials: Trials, spec: CampaignSpec, plan: CampaignPlan) -> bool:
    """Whether anything is left to measure: points without a row, or with rows that are not sure enough or spoilt."""
    return any(
        point.row_id not in trials or trials.next_for_precision(point, spec) is not None or trials.next_for_doubts(point, spec) is not None
        for point in plan.points
    )


def _nothing_left(plan: CampaignPlan, output: Path) -> CampaignOutcome:
    """The outcome of a campaign whose rows all lie in other parts."""
    return CampaignOutcome(
        output=output, rows=0, kept=0, repeated=0, kept_repeated=0, planned=len(plan.points), missing=0, flags={}, rejected={}, unusable=0,
        drift={}, elapsed_s=0.0,
    )  # fmt: skip


def _unchanged(kept: KeptRows, plan: CampaignPlan, output: Path) -> CampaignOutcome:
    """The outcome of a campaign that had come to its end: its dataset and its traces stay as they are."""
    metadata = kept.metadata
    return _outcome(
        kept.table, plan, output, kept=kept, rejected=metadata.get("rejected") or {}, drift=metadata.get("drift") or {}, elapsed_s=0.0
    )


def _outcome(
    table: pa.Table,
    plan: CampaignPlan,
    output: Path,
    *,
    kept: KeptRows | None,
    rejected: dict[str, int],
    drift: dict[str, float],
    elapsed_s: float,
    missing: int = 0,
) -> CampaignOutcome:
    """What came of a campaign, from its rows."""
    flags = table.column("flags").to_pylist()
    return CampaignOutcome(
        output=output,
        rows=table.num_rows,
        kept=kept.table.num_rows if kept else 0,
        repeated=_repeated(table, plan),
        kept_repeated=_repeated(kept.table, plan) if kept else 0,
        planned=len(plan.points),
        missing=missing,
        flags=flag_counts(flags),
        rejected=rejected,
        unusable=sum(1 for row in flags if UNUSABLE_FLAGS.intersection(row)),
        drift=drift,
        elapsed_s=elapsed_s,
    )


def _repeated(table: pa.Table, plan: CampaignPlan) -> int:
    """How many rows are further trials of a point."""
    return len(set(table.column("row_id").to_pylist()) - {point.row_id for point in plan.points})


@dataclass(slots=True, kw_only=True)
class _Session:
    """A campaign that is being measured."""

    bench: Bench
    sampler: Sampler
    hold: ClockHold
    spec: CampaignSpec
    clocks_mhz: tuple[float | None, ...]
    calibration: SensorCalibration
    writer: KernelWriter
    trials: Trials
    rejected: dict[str, int]
    end_ns: float
    any_measured: bool = False
    refused: int = 0
    out_of_time: bool = False

    def time_left(self, before_s: float = 0.0) -> bool:
        """Whether the budget has time for a point after so long, and for power at rest at the end."""
        needed_s = before_s + closing_s(self.spec, self.clocks_mhz) + self.spec.measurement.planned_total_s(self.calibration)
        return self.bench.clock.now_ns() + needed_s * NS_PER_S <= self.end_ns

    def measured(self, plan: CampaignPlan) -> Iterator[dict[str, Any]]:
        """Measure what is left, row by row: the plan with repeats of what is not sure enough, then again what something passing spoilt.

        Ends early where the budget does; `out_of_time` then says so.
        """
        for point in self._wanted(plan):
            if not self.time_left():
                self.out_of_time = True
                return
            row = self._measure(point)
            if row is not None:
                yield row

    def _wanted(self, plan: CampaignPlan) -> Iterator[Point]:
        """Points to measure next; which they are depends on the rows that came of those before."""
        for point in plan.points:
            if point.row_id not in self.trials:
                yield point
            while (again := self.trials.next_for_precision(point, self.spec)) is not None:
                yield again
                if again.row_id not in self.trials:
                    break
        for _ in range(self.spec.retries):
            for point in plan.points:
                if (again := self.trials.next_for_doubts(point, self.spec)) is not None:
                    yield again

    def _measure(self, point: Point) -> dict[str, Any] | None:
        """The row of a point, on disk; None (and a reason counted) for a kernel that cannot run here."""
        if self.hold.set(point.sm_clock_mhz):
            self.bench.clock.wait(CLOCK_SETTLE_S)
        keep_in_band(self.bench, self.spec)
        try:
            measured = measure_traced(self.bench, self.sampler, point, self.spec.measurement, self.calibration)
        except RunnerError as error:
            reason = f"{point.operator.family}: {error}"
            self.rejected[reason] = self.rejected.get(reason, 0) + 1
            self.refused += 1
            return None
        self.writer.append(measured.row, measured.traces)
        self.trials.add(measured.row)
        self.any_measured = True
        return measured.row

    def idle_after(self, plan: CampaignPlan) -> list[dict[str, float | None]]:
        """Power at rest once more, at a few of the clocks."""
        clocks = closing_clocks(plan.clocks_mhz)
        records = [_idle_power(self.bench, self.sampler, self.hold, clock, self.spec) for clock in clocks]
        self.writer.append_traces(tuple(records))
        return [idle_entry(record, self.calibration) for record in records]


def _idle_power(bench: Bench, sampler: Sampler, hold: ClockHold, clock: float | None, spec: CampaignSpec) -> TraceRecord:
    """The board at rest at one clock.  Raises CampaignError where its sensor gives no reading."""
    hold.set(clock)
    bench.clock.wait(spec.idle_settle_s)
    sampler.drain()
    started_unix_s = bench.clock.unix_s()
    bench.clock.wait(spec.idle_window_s)
    trace = sampler.drain()
    if not len(trace.board.host_ns):
        raise CampaignError("the power sensor gave no reading at rest; is another program using it?")
    return TraceRecord(
        row_id="",
        kind=IDLE,
        started_unix_s=started_unix_s,
        sm_clock_mhz=clock,
        power_limit_w=bench.gpu.power_limit_w(),
        power=trace.board,
        states=trace.states,
        reference=trace.reference,
    )


def _finish(
    session: _Session, metadata: Mapping[str, Any], plan: CampaignPlan, output: Path, kept: KeptRows | None, elapsed_s: float
) -> CampaignOutcome:
    """Write the Parquet file and sum up."""
    writer, rejected = session.writer, session.rejected
    if not writer.rows:
        writer.discard()
        reasons = "; ".join(rejected) or "the budget ended before the first row"
        raise CampaignError(f"nothing was measured: {reasons}")
    table = writer.table()
    drift = anchor_drift(table) | idle_drift(metadata.get("idle"), metadata.get("idle_after") or [])
    closing = {
        **metadata,
        "voltage": voltage_by_clock(table),
        "drift": drift,
        "rejected": rejected,
        "complete": not session.out_of_time,
    }
    writer.finish(closing, order=[point.row_id for point in plan.points])
    there = sum(1 for point in plan.points if point.row_id in session.trials)
    missing = max(0, len(plan.points) - there - session.refused) if session.out_of_time else 0
    return _outcome(table, plan, output, kept=kept, rejected=rejected, drift=drift, elapsed_s=elapsed_s, missing=missing)
