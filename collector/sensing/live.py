"""Characterising a board's own power sensor with loads that are planned here.

A quick square wave shows the update clock; square waves at periods that separate the responses follow, then a long step for the
rise.  If the averaging is still open, the most informative load is computed from the fits so far and run.  An external meter, if
present, adds gain and offset.
"""

from typing import Final

import numpy as np

from collector.devices.protocols import Bench, PreparedKernel
from collector.errors import SensorError
from collector.sampling import SECONDS_PER_NS, Sampler, Trace, host_seconds, host_spans, joined_readings
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.clock import fit_update_clock
from collector.sensing.decision import informative_ratio
from collector.sensing.identify import SensorRecord, identify_sensor
from estimator.vocabulary.workload import Operator, make_operator

REST_S: Final = 1.5
"""Rest before the loads; the tail of an earlier load decays within 0.5 to 2 s."""
FIRST_WAVE: Final = (0.074, 5.0)
"""Period and duration of the square wave that shows the update clock [s]: no multiple of known periods (15, 20, 31, 100, 101 ms)."""
SQUARE_WAVES: Final = ((1.27, 6.0), (2.3, 4.0), (4.7, 4.0))
"""Periods in update periods and longest durations [s]: together they separate all responses."""
MORE_S, MORE_RUNS = 5.0, 2
"""Duration [s] and greatest number of further loads for an undecided averaging."""
MAX_CYCLES: Final = 60
"""Most cycles of a square wave: more do not narrow the width."""
STEP_S: Final = 3.0
"""Duration of a step up and down [s]: for one-second averages and slow rises."""
LOAD_ELEMENTS: Final = 2**25
"""Size of the two tensors that the load adds: a large step in power that no power limit clips."""


class _Session:
    """Square waves run on a bench, and all polls meanwhile."""

    def __init__(self, bench: Bench, sampler: Sampler) -> None:
        self.bench = bench
        self.sampler = sampler
        self.kernel = bench.runner.prepare(load_operator(bench))
        self.launch_s = _launch_time(bench, self.kernel)
        self.stamps: list[tuple[int, int]] = []
        self.traces: list[Trace] = []
        bench.clock.wait(REST_S)
        sampler.drain()

    def square_wave(self, period_s: float, longest_s: float) -> None:
        """Runs of half a period with rests between them, cycles slightly different."""
        duration_s = min(longest_s, MAX_CYCLES * period_s)
        launches = max(1, round(0.5 * period_s / self.launch_s))
        for cycle_s in (period_s * np.linspace(1.0, 1.03, max(1, round(duration_s / period_s)))).tolist():
            record = self.bench.runner.run(self.kernel, launches)
            self.stamps.append((record.start_ns, record.end_ns))
            self.bench.clock.wait(max(0.0, cycle_s - (record.end_ns - record.start_ns) * SECONDS_PER_NS))
        self.traces.append(self.sampler.drain())

    def record(self) -> SensorRecord:
        """The whole record so far."""
        readings = joined_readings([trace.board for trace in self.traces])
        parts = [trace.reference for trace in self.traces if trace.reference is not None]
        meter = joined_readings(parts) if parts else None
        start_s, end_s = host_spans(self.stamps)
        return SensorRecord(
            time_s=host_seconds(readings.host_ns),
            power_w=readings.power_w,
            load=LoadStamps(start_s=start_s, end_s=end_s),
            meter_s=None if meter is None else host_seconds(meter.host_ns),
            meter_w=None if meter is None else meter.power_w,
        )


def characterise_sensor(bench: Bench, sampler: Sampler) -> SensorCalibration:
    """Run loads on a bench and determine its sensor.  Takes half a minute of the board's time.

    A sensor that cannot be characterised gives a calibration with nulls and notes.  Raises SensorError without a load that the board
    runs, DeviceError if the board fails.
    """
    session, identity = _Session(bench, sampler), bench.gpu.identity()
    sensor = SensorCalibration(gpu_uuid=identity.uuid, driver=identity.driver, sensor=sampler.sensor_name, field=sampler.field)
    session.square_wave(*FIRST_WAVE)
    record = session.record()
    try:
        period_s = fit_update_clock(record.time_s, record.power_w)[0].period_s
    except SensorError:
        return identify_sensor(record, sensor).calibration
    for ratio, longest_s in SQUARE_WAVES:
        bench.clock.wait(0.5 * ratio * period_s)
        session.square_wave(ratio * period_s, longest_s)
    bench.clock.wait(REST_S)
    session.square_wave(2.0 * STEP_S, 2.0 * STEP_S)
    found = identify_sensor(session.record(), sensor)
    for _ in range(MORE_RUNS):
        if found.decision is None or found.decision.kind != "undetermined":
            break
        bench.clock.wait(REST_S)
        session.square_wave(informative_ratio(found.decision.best, period_s) * period_s, MORE_S)
        found = identify_sensor(session.record(), sensor)
    return found.calibration


def characterisation_s(period_s: float) -> float:
    """The board's time for the loads that every characterisation of a sensor runs [s]; an undecided averaging takes more."""
    waves_s = sum(0.5 * ratio * period_s + min(longest_s, MAX_CYCLES * ratio * period_s) for ratio, longest_s in SQUARE_WAVES)
    return REST_S + FIRST_WAVE[1] + waves_s + REST_S + 2.0 * STEP_S


def load_operator(bench: Bench) -> Operator:
    """A kernel that draws much power, but stays below any limit, on every board.  Raises SensorError if it cannot run."""
    operator = make_operator("elementwise", "add", "fp32", elements=LOAD_ELEMENTS, reads=2 * LOAD_ELEMENTS)
    if not bench.runner.supports(operator):
        raise SensorError(f"this board cannot add {LOAD_ELEMENTS} numbers; there is no load to characterise its sensor with")
    return operator


def _launch_time(bench: Bench, prepared: PreparedKernel) -> float:
    """Time of one launch at the current clock [s], from launches that together take 50 ms."""
    launches, launch_s = 1, 0.0
    while launch_s * launches < 0.05:
        launches = int(np.ceil(0.06 / launch_s)) if launch_s else 3
        launch_s = float(np.mean(bench.runner.run(prepared, launches).segment_s))
    return launch_s
