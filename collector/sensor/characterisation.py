"""Characterising a board's own power sensor with loads that are planned here.

A quick square wave shows the update clock; square waves at periods that tell averaging kernels apart follow,
then a long step for the rise.  An external meter, where one is there, adds gain and offset.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from collector.bench import Bench
from collector.devices.protocols import PreparedKernel
from collector.errors import SensorError
from collector.sampling import Sampler, Trace, host_seconds, joined_readings
from collector.sensor.averaging import Averaging, KernelFit, fit_averaging, step_response
from collector.sensor.calibration import NO_METER, SensorCalibration
from collector.sensor.gain import Gain, fit_gain
from collector.sensor.load import LoadStamps
from collector.sensor.update_clock import UpdateClock, Updates, fit_update_clock
from estimator.frozen import FrozenMapping
from estimator.quantities import Array
from estimator.workload import Operator, make_operator

REST_S: Final = 1.5
"""Rest before the loads; the tail of an earlier load decays within 0.5 to 2 s."""
FIRST_HALF_PERIOD_S: Final = 0.037
FIRST_LOAD_S: Final = 5.0
"""The square wave that shows the update clock: off every multiple of known periods (15, 20, 31, 100, 101 ms)."""
SQUARE_WAVES: Final = ((1.27, 6.0), (2.3, 4.0), (4.7, 4.0))
"""Periods in update periods and longest durations [s]: together they tell every kernel from every other."""
MAX_CYCLES: Final = 60
STEP_S: Final = 3.0
"""A step up and down: one-second averages and slow rises."""
PERIOD_SPREAD: Final = 0.015
"""Cycles differ by up to this share, so that phases fill in."""
GOLDEN: Final = 0.6180339887498949
FREE_CLOCK_POLLS: Final = 0.4
"""Error of widths and delays on a clock without a grid, in polls; of six simulated ones the largest was 0.37."""
RESOLUTION_DECIMALS: Final = 4
"""NVML reports milliwatts."""
RANGING_S: Final = 0.05
RISE_LEVEL: Final = 0.9
SETTLED_SHARE: Final = 0.01
LAGGED_SHARE: Final = 0.2
"""A board of which more than this share of the power follows late has a rise of its own."""

LOAD_ELEMENTS: Final = 2**25
"""The load adds two tensors of this many numbers: a large step in power that no power limit clips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Characterisation:
    """A calibration and what led to it: all readings with their updates, and the loads."""

    calibration: SensorCalibration
    updates: Updates | None
    load: LoadStamps
    averaging: Averaging | None


def characterise_sensor(bench: Bench, sampler: Sampler, progress: Callable[[str, float], None] | None = None) -> Characterisation:
    """Run the loads on a bench and say what its sensor does.  Takes about half a minute of the board's time.

    `progress` is called with a step's name and the share done.  A sensor that cannot be characterised gives a
    calibration with nulls and notes.  Raises DeviceError where the board fails.
    """
    report = progress or (lambda _name, _share: None)
    prepared = bench.runner.prepare(load_operator(bench))
    launch_s = _launch_time(bench, prepared)
    bench.clock.wait(REST_S)
    sampler.drain()
    report("update clock", 0.0)
    starts: list[tuple[float, float]] = _square_wave(bench, prepared, launch_s, 2.0 * FIRST_HALF_PERIOD_S, FIRST_LOAD_S)
    traces = [sampler.drain()]
    try:
        period_s = _clock_of(traces)[0].period_s
    except SensorError as error:
        return Characterisation(calibration=_unknown(bench, sampler, str(error)), updates=None, load=_stamps(starts), averaging=None)
    plan = [(share * period_s, min(longest, MAX_CYCLES * share * period_s)) for share, longest in SQUARE_WAVES]
    for index, (period, duration) in enumerate([*plan, (2.0 * STEP_S, 2.0 * STEP_S)]):
        report("averaging", (index + 1.0) / (len(plan) + 2.0))
        bench.clock.wait(REST_S if index == len(plan) else 0.5 * period)
        starts += _square_wave(bench, prepared, launch_s, period, duration)
        traces.append(sampler.drain())
    report("fit", (len(plan) + 1.0) / (len(plan) + 2.0))
    clock, updates = _clock_of(traces)
    load = _stamps(starts)
    averaging = fit_averaging(updates, load, clock.period_s)
    gain, gain_note = _gain(updates, averaging, traces)
    calibration = _calibration(bench, sampler, clock, updates, averaging, gain, gain_note)
    return Characterisation(calibration=calibration, updates=updates, load=load, averaging=averaging)


def load_operator(bench: Bench) -> Operator:
    """A kernel that draws much power, but stays below any limit, on every board.  Raises SensorError where it cannot run."""
    operator = make_operator("elementwise", "add", "fp32", elements=LOAD_ELEMENTS, reads=2 * LOAD_ELEMENTS)
    if not bench.runner.supports(operator):
        raise SensorError(f"this board cannot add {LOAD_ELEMENTS} numbers; there is no load to characterise its sensor with")
    return operator


def _launch_time(bench: Bench, prepared: PreparedKernel) -> float:
    """Time of one launch at the present clock [s]."""
    launches = 3
    while True:
        record = bench.runner.run(prepared, launches)
        launch_s = float(np.mean(record.segment_s))
        if launch_s * launches >= RANGING_S:
            return launch_s
        launches = int(np.ceil(1.2 * RANGING_S / launch_s))


def _square_wave(bench: Bench, prepared: PreparedKernel, launch_s: float, period_s: float, duration_s: float) -> list[tuple[float, float]]:
    """Runs with rests between them, cycles a little different; start and end of each run [s]."""
    stamps = []
    count = max(1, round(duration_s / period_s))
    for index in range(count):
        cycle_s = period_s * (1.0 + PERIOD_SPREAD * (2.0 * ((index + 1) * GOLDEN % 1.0) - 1.0))
        record = bench.runner.run(prepared, max(1, round(0.5 * cycle_s / launch_s)))
        stamps.append((record.start_ns * 1e-9, record.end_ns * 1e-9))
        bench.clock.wait(max(0.0, cycle_s - (record.end_ns - record.start_ns) * 1e-9))
    return stamps


def _stamps(starts: list[tuple[float, float]]) -> LoadStamps:
    table = np.array(starts)
    return LoadStamps(start_s=table[:, 0], end_s=table[:, 1])


def _clock_of(traces: list[Trace]) -> tuple[UpdateClock, Updates]:
    readings = joined_readings([trace.board for trace in traces])
    return fit_update_clock(host_seconds(readings.host_ns), readings.power_w)


def _gain(updates: Updates, averaging: Averaging, traces: list[Trace]) -> tuple[Gain | None, str]:
    """Gain and offset, or the reason why they are not known."""
    parts = [trace.reference for trace in traces if trace.reference is not None]
    if not parts:
        return None, NO_METER
    try:
        return fit_gain(updates, averaging.fits[0], joined_readings(parts)), ""
    except SensorError as error:
        return None, str(error)


def _unknown(bench: Bench, sampler: Sampler, reason: str) -> SensorCalibration:
    """A calibration that knows nothing."""
    identity = bench.gpu.identity()
    return SensorCalibration(
        gpu_uuid=identity.uuid,
        driver=identity.driver,
        sensor=sampler.sensor_name,
        field=sampler.field,
        averaging="undetermined",
        n_updates=0,
        notes=FrozenMapping({"update_period_s": reason, "averaging": reason, "gain": reason, "offset_w": reason}),
    )


def _calibration(
    bench: Bench, sampler: Sampler, clock: UpdateClock, updates: Updates, averaging: Averaging, gain: Gain | None, gain_note: str
) -> SensorCalibration:
    """Everything that was found, as one value."""
    identity = bench.gpu.identity()
    best = averaging.fits[0]
    claimed = averaging.kind != "undetermined"
    notes = {"delay_s": "includes how early or late this host stamps a reading"}
    if not clock.rigid:
        notes["update_period_s"] = "updates do not keep to a grid; the period is their mean distance, times within a poll are a guess"
    if not claimed:
        notes["averaging"] = notes["window_s"] = averaging.reason
    if gain is None:
        notes["gain"] = notes["offset_w"] = gain_note
    rise_s, settle_s = _rise(averaging.fits[:2])
    return SensorCalibration(
        gpu_uuid=identity.uuid,
        driver=identity.driver,
        sensor=sampler.sensor_name,
        field=sampler.field,
        averaging=averaging.kind,
        n_updates=clock.n_updates,
        update_period_s=clock.period_s,
        update_period_std_s=clock.period_std_s,
        update_jitter_s=clock.jitter_s,
        window_s=best.width_s if claimed else None,
        window_std_s=_with_polls(best.width_std_s, clock) if claimed else None,
        tau_s=0.5 * best.width_s if averaging.kind == "low-pass" else None,
        delay_s=best.delay_s if claimed else None,
        delay_std_s=_with_polls(best.delay_std_s, clock) if claimed else None,
        rise_time_s=rise_s,
        settle_s=settle_s + clock.jitter_s + clock.poll_s,
        transient=_transient(averaging.kind, best, clock.period_s),
        gain=gain.gain if gain else None,
        gain_std=gain.gain_std if gain else None,
        offset_w=gain.offset_w if gain else None,
        offset_std_w=gain.offset_std_w if gain else None,
        gain_offset_correlation=gain.correlation if gain else None,
        sampled_fraction=min(1.0, best.width_s / clock.period_s) if claimed else None,
        reading_noise_w=best.noise_w,
        resolution_w=_resolution(updates.value),
        poll_period_s=clock.poll_s,
        candidates=tuple(_candidate(fit) for fit in averaging.fits),
        notes=FrozenMapping(notes),
    )


def _with_polls(std_s: float, clock: UpdateClock) -> float:
    """A standard error enlarged for a clock without a grid: an update's time is known to a share of a poll only [s]."""
    return std_s if clock.rigid else float(np.hypot(std_s, FREE_CLOCK_POLLS * clock.poll_s))


def _resolution(value: Array) -> float | None:
    """Smallest step between readings [W]; None where there is only one value."""
    steps = np.diff(np.unique(np.round(value, RESOLUTION_DECIMALS)))
    return float(np.round(steps.min(), RESOLUTION_DECIMALS)) if len(steps) else None


def _candidate(fit: KernelFit) -> FrozenMapping[Any]:
    return FrozenMapping(
        {
            "kernel": fit.kernel,
            "window_s": fit.width_s,
            "window_std_s": fit.width_std_s,
            "delay_s": fit.delay_s,
            "score": fit.score,
            "r2": fit.r2,
        }
    )


def _rise(fits: tuple[KernelFit, ...]) -> tuple[float, float]:
    """Time to RISE_LEVEL of the level after a second, and to within SETTLED_SHARE of the level without creep [s].

    The slower of the given fits counts for settling: better to discard too much.
    """
    settle = []
    for fit in fits:
        time_s, settled = step_response(fit, creep=False)
        outside = np.flatnonzero(np.abs(settled - settled[-1]) > SETTLED_SHARE * abs(settled[-1]))
        settle.append(float(time_s[outside[-1]]) if len(outside) else 0.0)
    time_s, response = step_response(fits[0], creep=True)
    level = np.interp(1.0, time_s, response)
    risen = np.flatnonzero(response >= RISE_LEVEL * level)
    return float(time_s[risen[0]]), max(settle) if fits[0].r2 - fits[1].r2 < 1e-3 else settle[0]


def _transient(kind: str, fit: KernelFit, period_s: float) -> str | None:
    """The class of the rise that readings show."""
    if kind == "trailing-mean":
        return "ramp"
    if kind == "low-pass" and fit.width_s > period_s:
        return "logarithmic"
    at_once, late = float(fit.amplitude_w[1]), float(fit.amplitude_w[2])
    return "lagged" if late > LAGGED_SHARE * (at_once + late) else "instant"
