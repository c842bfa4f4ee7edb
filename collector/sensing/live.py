"""Characterising a board's own power sensor with loads that are planned here.

A quick square wave shows the update clock; square waves at periods that separate the responses follow, then a
long step for the rise.  If the averaging is still open, or the requested errors are not reached, the most informative load
is computed from the fits so far and run, until they are.  An external meter, if present, adds gain
and offset, from several levels of power.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.devices.protocols import Bench
from collector.errors import SensorError
from collector.sampling import SECONDS_PER_NS, Sampler, Trace, host_seconds, joined_readings
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.catalogue import compared
from collector.sensing.clock import UpdateClock, Updates, fit_update_clock
from collector.sensing.decision import informative_ratio
from collector.sensing.identify import Identification, SensorName, SensorRecord, identify_sensor
from collector.sensing.live_load import open_live_load
from estimator.vocabulary.frozen import FrozenMapping

REST_S: Final = 1.5
"""Rest before the loads; the tail of an earlier load decays within 0.5 to 2 s."""
FIRST_LOAD_S: Final = 5.0
"""Duration of the square wave that shows the update clock [s]; its period is no multiple of known periods (15, 20, 31, 100, 101 ms)."""
SQUARE_WAVES: Final = ((1.27, 6.0), (2.3, 4.0), (4.7, 4.0))
"""Periods in update periods and longest durations [s]: together they separate all responses."""
MORE_S: Final = 5.0
MAX_CYCLES: Final = 60
STEP_S: Final = 3.0
"""Duration of a step up and down [s]: for one-second averages and slow rises."""
LEVELS: Final = (0.2, 0.4, 0.6, 0.8, 1.0)
LEVEL_S: Final = 2.0
"""Duration of each level [s], a share of busy SMs; rest is the level 0, one SM the lowest level above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterisationGoal:
    """When to stop: requested standard errors (None: no requirement beyond the planned loads) and the longest time
    for loads [s].  An undecided averaging adds at most `undecided_runs` runs.
    """

    window_std_s: float | None = None
    gain_std: float | None = None
    longest_s: float = 180.0
    undecided_runs: int = 2


DEFAULT_GOAL: Final = CharacterisationGoal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Characterisation:
    """A calibration and its evidence: the record, its updates, the loads; `runs` lists the loads, in order."""

    calibration: SensorCalibration
    updates: Updates | None
    load: LoadStamps
    record: SensorRecord
    runs: tuple[str, ...]


class _Session:
    """Loads run on a bench, and all polls meanwhile."""

    def __init__(self, bench: Bench, sampler: Sampler) -> None:
        self.bench = bench
        self.sampler = sampler
        self.load = open_live_load(bench, sampler)
        self.starts: list[tuple[float, float]] = []
        self.known_until_s = float("inf")
        self.traces: list[Trace] = []
        self.runs: list[str] = []
        bench.clock.wait(REST_S)
        sampler.drain()
        self.begun_ns = bench.clock.now_ns()

    @property
    def spent_s(self) -> float:
        """Time since the first load [s]."""
        return (self.bench.clock.now_ns() - self.begun_ns) * 1e-9

    def square_wave(self, period_s: float, duration_s: float) -> None:
        """Runs of half a period with rests between them, cycles slightly different."""
        high_s = 0.5 * period_s
        ready = self.load.ready(high_s)
        if ready is None:
            raise SensorError(f"the board runs no load of {high_s * 1e3:.1f} ms")
        for cycle_s in (period_s * np.linspace(1.0, 1.0 + 0.03, max(1, round(duration_s / period_s)))).tolist():
            start_ns, end_ns = ready.run()
            self.starts.append((start_ns * SECONDS_PER_NS, end_ns * SECONDS_PER_NS))
            self.bench.clock.wait(max(0.0, cycle_s - (end_ns - start_ns) * SECONDS_PER_NS))
        self.runs.append(f"square wave of {period_s * 1e3:.1f} ms for {duration_s:.1f} s")
        self._drain()

    def level(self, share: float) -> None:
        """A share of the SMs busy for LEVEL_S, then a rest."""
        self.known_until_s = min(self.known_until_s, self.bench.clock.now_ns() * SECONDS_PER_NS)
        ready = self.load.ready(LEVEL_S, share)
        if ready is None:
            return
        self.bench.clock.wait(REST_S)
        ready.run()
        self.bench.clock.wait(REST_S)
        self.runs.append(f"{ready.share:.0%} of the SMs for {LEVEL_S:g} s")
        self._drain()

    def _drain(self) -> None:
        self.traces.append(self.sampler.drain())

    def stamps(self) -> LoadStamps:
        """The stamps of square waves and steps so far, without later loads."""
        table = np.array(self.starts)
        return LoadStamps(start_s=table[:, 0], end_s=table[:, 1], known_until_s=self.known_until_s)

    def clock(self) -> UpdateClock:
        """The update clock so far.  Raises SensorError."""
        readings = joined_readings([trace.board for trace in self.traces])
        return fit_update_clock(host_seconds(readings.host_ns), readings.power_w)[0]

    def record(self) -> SensorRecord:
        """The whole record so far."""
        readings = joined_readings([trace.board for trace in self.traces])
        parts = [trace.reference for trace in self.traces if trace.reference is not None]
        meter = joined_readings(parts) if parts else None
        return SensorRecord(
            time_s=host_seconds(readings.host_ns),
            power_w=readings.power_w,
            load=self.stamps() if self.starts else None,
            meter_s=None if meter is None else host_seconds(meter.host_ns),
            meter_w=None if meter is None else meter.power_w,
        )

    def name(self) -> SensorName:
        """Identity of the sensor."""
        identity = self.bench.gpu.identity()
        return SensorName(gpu_uuid=identity.uuid, driver=identity.driver, sensor=self.sampler.sensor_name, field=self.sampler.field)


def characterise_sensor(
    bench: Bench,
    sampler: Sampler,
    progress: Callable[[str, float], None] | None = None,
    goal: CharacterisationGoal = DEFAULT_GOAL,
) -> Characterisation:
    """Run loads on a bench and determine its sensor.  Takes half a minute of the board's time, or the time for the goal.

    `progress` is called with a step's name and the finished share of the time.  A sensor that cannot be characterised gives a
    calibration with nulls and notes.  Raises DeviceError if the board fails.
    """
    report = progress or (lambda _name, _share: None)
    session = _Session(bench, sampler)
    report("update clock", 0.0)
    session.square_wave(2.0 * 0.037, FIRST_LOAD_S)
    try:
        period_s = session.clock().period_s
    except SensorError:
        return _finished(session, identify_sensor(session.record(), session.name()), goal)
    for ratio, longest in SQUARE_WAVES:
        report("averaging", min(1.0, session.spent_s / goal.longest_s))
        bench.clock.wait(0.5 * ratio * period_s)
        session.square_wave(ratio * period_s, min(longest, MAX_CYCLES * ratio * period_s))
    bench.clock.wait(REST_S)
    session.square_wave(2.0 * STEP_S, 2.0 * STEP_S)
    if len(sampler.references):
        for share in (1.0 / bench.gpu_spec.num_sms, *LEVELS):
            report("levels", min(1.0, session.spent_s / goal.longest_s))
            session.level(share)
    return _refined(session, goal, report)


def _refined(session: _Session, goal: CharacterisationGoal, report: Callable[[str, float], None]) -> Characterisation:
    """Runs more loads, each the most informative one, until the goal is reached or its time is spent."""
    added = 0
    while True:
        report("fit", min(1.0, session.spent_s / goal.longest_s))
        found = identify_sensor(session.record(), session.name())
        undecided = found.calibration.averaging == "undetermined"
        wanted = (undecided and added < goal.undecided_runs) or not _reached(found.calibration, goal)
        if not wanted or found.decision is None or found.clock is None or session.spent_s + MORE_S > goal.longest_s:
            return _finished(session, found, goal)
        ratio = informative_ratio(found.decision.best, found.clock.period_s)
        period_s = ratio * found.clock.period_s
        session.bench.clock.wait(REST_S)
        session.square_wave(period_s, min(MORE_S, MAX_CYCLES * period_s) if ratio > 1.0 else MORE_S)
        added += 1


def _reached(calibration: SensorCalibration, goal: CharacterisationGoal) -> bool:
    """Whether the requested standard errors are reached; those that no run here can give do not count."""
    if goal.window_std_s is not None and (calibration.window_std_s is None or calibration.window_std_s > goal.window_std_s):
        return False
    return goal.gain_std is None or calibration.gain_std is None or calibration.gain_std <= goal.gain_std


def _finished(session: _Session, found: Identification, goal: CharacterisationGoal) -> Characterisation:
    """The result, with a note if the goal was not reached."""
    calibration, notes = found.calibration, {**found.calibration.notes, "load": session.load.remark}
    if not _reached(calibration, goal):
        notes["goal"] = f"the asked standard errors were not reached within {session.spent_s:.0f} s of loads"
    published = compared(calibration, session.bench.gpu.identity().name)
    if published:
        notes["catalogue"] = published
    calibration = replace(calibration, notes=FrozenMapping(notes))
    return Characterisation(
        calibration=calibration,
        updates=found.updates,
        load=session.stamps(),
        record=session.record(),
        runs=tuple(session.runs),
    )
