"""One kernel at one operating point: run it for as long as the sensor needs, and make a row of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from collector.bench import Bench
from collector.correction import SteadyPower, settle_time_s, steady_power, update_period_s
from collector.dataset import operator_columns
from collector.devices.protocols import GpuState, LaunchRecord, PreparedKernel, StateReadings, limiting_reasons
from collector.energy import CounterEnergy, counter_energy, launch_energy
from collector.generated_rows import load_columns, sampled_columns
from collector.sampling import SECONDS_PER_NS, Sampler, Trace, host_seconds
from collector.sensor.calibration import SensorCalibration
from estimator.quantities import Array
from estimator.workload import Operator
from microbench.generated_load import GeneratedLoad
from microbench.sizing import launches_for

RANGING_GROWTH: Final = 20
"""Launches of the ranging run grow by at most this factor a step: the first launch may be slow."""
FIRST_RANGING_LAUNCHES: Final = 3
RANGE_TOLERANCE: Final = 0.15
"""Share by which ranging and measured launch times may differ."""
CLOCK_TOLERANCE: Final = 0.015
"""Share by which the measured clock may miss the clock asked for: one step of the coarsest tables, and droop."""
CLOCK_VARIATION: Final = 0.02
"""Standard deviation of the clock in a window, as a share, beyond which one clock cannot stand for it."""
LATENCY_VARIATION: Final = 0.05
"""Spread of launch times between parts of a run, as a share."""
DRIFT_SHARE: Final = 0.03
UNSETTLED_SHARE: Final = 0.03
SIGNIFICANCE: Final = 3.0
"""A change counts where it is larger than its share and than so many standard errors."""
ABSURD_SHARE: Final = 0.2
"""With more absurd readings than this share, the rest is not believed either."""
FEW_SAMPLES: Final = 4
WINDOW_SHARE: Final = 0.7
"""A window below this share of what was planned is short."""
IDLE_SHARE: Final = 0.5
"""The later part of the rest before a run that counts as idle."""
IDLE_CHANGE_W: Final = 1.0
MIN_PARTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSettings:
    """How a kernel is measured.

    At least `updates` whole sensor updates and `window_s` seconds, after at least `settle_s` of the same load;
    before, `gap_s` at rest (`idle_s` where the point asks for its idle power) and a ranging run of `ranging_s`.
    `max_temperature_c` is the hottest that is normal.
    """

    updates: int = 20
    window_s: float = 1.5
    settle_s: float = 1.0
    gap_s: float = 0.2
    idle_s: float = 3.0
    ranging_s: float = 0.02
    max_temperature_c: float = 85.0

    def planned_window_s(self, calibration: SensorCalibration) -> float:
        """Span of the settled window that a run is planned for [s]."""
        return max(self.window_s, (self.updates + 1) * update_period_s(calibration))

    def planned_run_s(self, calibration: SensorCalibration) -> float:
        """Length of the measured run [s]."""
        return settle_time_s(calibration, self.settle_s) + self.planned_window_s(calibration)

    def planned_total_s(self, calibration: SensorCalibration) -> float:
        """Rest, ranging and run of a point without idle power together [s]."""
        return self.gap_s + 2.0 * self.ranging_s + self.planned_run_s(calibration)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A kernel at an operating point; `sm_clock_mhz` None leaves the clock alone.  `row_id` names the result.

    With `idle_before` the board rests before it long enough to tell its power at rest.  `load` is a generated kernel, which then
    runs in place of a library's; `operator` names it.
    """

    row_id: str
    operator: Operator
    l2_state: str
    sm_clock_mhz: float | None
    trial: int
    seed: int
    idle_before: bool = False
    load: GeneratedLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What happened: rest, ranging and measured run, with everything polled meanwhile."""

    prepared: PreparedKernel
    rest: Trace
    ranging_s: float
    record: LaunchRecord
    trace: Trace
    state: GpuState
    started_unix_s: float
    counter: Callable[[float, float], CounterEnergy]


def measure_kernel(
    bench: Bench, sampler: Sampler, point: Point, settings: MeasurementSettings, calibration: SensorCalibration
) -> dict[str, Any]:
    """Run a kernel at the clock that is set and return its row.

    What is doubtful about it stands in the row's flags; nothing is raised for bad data.  Raises RunnerError where
    the kernel cannot run, DeviceError where the board fails.
    """
    run = _run(bench, sampler, point, settings, calibration)
    start_s, end_s = run.record.start_ns * SECONDS_PER_NS, run.record.end_ns * SECONDS_PER_NS
    settled_s = min(start_s + settle_time_s(calibration, settings.settle_s), end_s)
    power = steady_power(run.trace.board, settled_s, end_s, calibration, run.state.power_limit_w)
    idle_w, idle_c = _idle_before(run.rest, calibration, run.state.power_limit_w) if point.idle_before else (math.nan, math.nan)
    latency_s, latency_std_s, spread = _latency(run.record, settled_s - start_s)
    counter = run.counter(power.raw_w, idle_w)
    states = _within(run.trace.states, settled_s, end_s)
    believed = power.samples > 0 and not power.stuck and power.absurd <= ABSURD_SHARE * (power.absurd + power.samples)
    power_w, power_std_w = (power.power_w, power.std_w) if believed else (math.nan, math.nan)
    energy_j, energy_std_j = launch_energy(power_w, power_std_w, latency_s, latency_std_s)
    flags = [
        *_state_flags(states, point.sm_clock_mhz, settings),
        *_power_flags(power, settings.planned_window_s(calibration)),
        *_latency_flags(latency_s, spread, run.ranging_s),
        *(["kernel_untraced"] if run.prepared.untraced else []),
        *(["counter_absurd"] if counter.absurd else []),
        *(["counter_disagrees"] if counter.disagrees and believed else []),
    ]
    identity = bench.gpu.identity()
    row: dict[str, Any] = {
        "row_id": point.row_id,
        **(operator_columns(point.operator) if point.load is None else load_columns(point.load)),
        **_kernel_columns(run.prepared),
        "gpu": identity.canonical_name or identity.name,
        "gpu_uuid": identity.uuid,
        "sm_clock_mhz": point.sm_clock_mhz,
        "sm_clock_measured_mhz": _mean(states.sm_clock_mhz),
        "memory_clock_mhz": run.state.memory_clock_mhz,
        "voltage_v": _mean(states.voltage_v),
        "temperature_c": _mean(states.temperature_c),
        "power_limit_w": run.state.power_limit_w,
        "throttle_reasons": _union(states),
        "launches": run.record.launches,
        "latency_s": latency_s,
        "latency_std_s": latency_std_s,
        "power_raw_w": power.raw_w if believed else math.nan,
        "power_w": power_w,
        "power_std_w": power_std_w,
        "energy_j": energy_j,
        "energy_std_j": energy_std_j,
        "energy_counter_j": counter.energy_j,
        "idle_before_w": idle_w,
        "temperature_before_c": idle_c,
        "samples": power.samples,
        "window_s": power.window_s,
        "flags": flags,
        "started_unix_s": run.started_unix_s,
        "trial": point.trial,
        "seed": point.seed,
        **({} if point.load is None else sampled_columns(run.trace.board, run.record)),
    }
    return {name: _known(value) for name, value in row.items()}


def _run(bench: Bench, sampler: Sampler, point: Point, settings: MeasurementSettings, calibration: SensorCalibration) -> _Run:
    """Rest, range, run."""
    load = point.load
    prepared = bench.runner.prepare(point.operator, point.l2_state) if load is None else bench.runner.prepare_generated(load)
    sampler.drain()
    bench.clock.wait(settings.idle_s if point.idle_before else settings.gap_s)
    rest = sampler.drain()
    started_unix_s = bench.clock.unix_s()
    launch_s = ranged_launch_s(bench, prepared, settings.ranging_s)
    before = sampler.energy()
    record = bench.runner.run(prepared, launches_for(settings.planned_run_s(calibration), launch_s))
    after = sampler.energy()
    state = bench.gpu.state()
    duration_s = (record.end_ns - record.start_ns) * SECONDS_PER_NS

    def counter(raw_power_w: float, rest_power_w: float) -> CounterEnergy:
        period = update_period_s(calibration)
        limit = state.power_limit_w
        return counter_energy(before, after, record.launches, duration_s, raw_power_w, rest_power_w, period, limit)

    return _Run(
        prepared=prepared,
        rest=rest,
        ranging_s=launch_s,
        record=record,
        trace=sampler.drain(),
        state=state,
        started_unix_s=started_unix_s,
        counter=counter,
    )


def ranged_launch_s(bench: Bench, prepared: PreparedKernel, ranging_s: float) -> float:
    """Time of a launch from short runs that grow until they last `ranging_s` [s]."""
    launches = FIRST_RANGING_LAUNCHES
    while True:
        record = bench.runner.run(prepared, launches)
        launch_s = float(np.mean(record.segment_s))
        if not launch_s > 0:
            return (record.end_ns - record.start_ns) * SECONDS_PER_NS / launches
        if launch_s * launches >= ranging_s:
            return launch_s
        launches = min(RANGING_GROWTH * launches, launches_for(1.2 * ranging_s, launch_s))


def _latency(record: LaunchRecord, settle_s: float) -> tuple[float, float, float]:
    """Mean time of a launch in the settled parts of a run, its standard error, and the parts' relative spread."""
    parts = record.segment_s
    begins = (np.cumsum(parts) - parts) * record.launches / len(parts)
    settled = parts[begins >= settle_s]
    if len(settled) < MIN_PARTS:
        settled = parts[-MIN_PARTS:]
    mean = float(settled.mean())
    if len(settled) < 2:
        return mean, math.nan, math.nan
    spread = float(settled.std(ddof=1))
    return mean, spread / math.sqrt(len(settled)), spread / mean if mean > 0 else math.nan


def _idle_before(rest: Trace, calibration: SensorCalibration, power_limit_w: float) -> tuple[float, float]:
    """Power at rest just before the run [W] and the temperature then; nan where it was still falling or nothing was read."""
    host_s = host_seconds(rest.board.host_ns)
    if not len(host_s):
        return math.nan, math.nan
    start, end = float(host_s[-1] - IDLE_SHARE * (host_s[-1] - host_s[0])), float(host_s[-1])
    idle = steady_power(rest.board, start, end, calibration, power_limit_w)
    falling = abs(idle.change_w) > IDLE_CHANGE_W and abs(idle.change_w) > SIGNIFICANCE * np.nan_to_num(idle.change_std_w)
    if falling or idle.absurd or idle.stuck:
        return math.nan, math.nan
    return idle.power_w, _mean(_within(rest.states, start, end).temperature_c)


def _within(states: StateReadings, start_s: float, end_s: float) -> StateReadings:
    """States polled between two host times; the nearest one where there is none."""
    host_s = host_seconds(states.host_ns)
    inside = np.flatnonzero((host_s >= start_s) & (host_s <= end_s))
    if not len(inside) and len(host_s):
        inside = np.array([int(np.abs(host_s - end_s).argmin())])
    return StateReadings(
        host_ns=states.host_ns[inside],
        sm_clock_mhz=states.sm_clock_mhz[inside],
        temperature_c=states.temperature_c[inside],
        voltage_v=states.voltage_v[inside],
        throttle_mask=states.throttle_mask[inside],
    )


def _state_flags(states: StateReadings, asked_mhz: float | None, settings: MeasurementSettings) -> list[str]:
    """Doubts about the operating point."""
    flags = []
    clock = _mean(states.sm_clock_mhz)
    if limiting_reasons(_union(states)):
        flags.append("throttled")
    if asked_mhz is not None and not abs(clock - asked_mhz) <= CLOCK_TOLERANCE * asked_mhz:
        flags.append("clock_off_target")
    if len(states.sm_clock_mhz) > 1 and np.std(states.sm_clock_mhz) > CLOCK_VARIATION * clock:
        flags.append("clock_varied")
    if _mean(states.temperature_c) > settings.max_temperature_c:
        flags.append("hot")
    return flags


def _power_flags(power: SteadyPower, planned_s: float) -> list[str]:
    """Doubts about the power."""
    absurd = ["power_absurd"] if power.absurd else []
    if power.samples == 0:
        return ["power_missing", *absurd]
    if power.stuck:
        return ["sensor_stuck", *absurd]
    flags = absurd
    if power.samples < FEW_SAMPLES:
        flags.append("few_samples")
    if power.window_s < WINDOW_SHARE * planned_s:
        flags.append("short_window")
    changed = abs(power.change_w) > SIGNIFICANCE * power.change_std_w
    if changed and abs(power.change_w) > DRIFT_SHARE * power.raw_w:
        flags.append("drifting")
    first = abs(power.first_w - power.raw_w)
    if first > UNSETTLED_SHARE * power.raw_w and first > SIGNIFICANCE * power.raw_std_w * math.sqrt(FEW_SAMPLES):
        flags.append("unsettled")
    return flags


def _latency_flags(latency_s: float, spread: float, ranging_s: float) -> list[str]:
    """Doubts about the time."""
    if not 0.0 < latency_s < math.inf:
        return ["latency_absurd"]
    flags = []
    if spread > LATENCY_VARIATION:
        flags.append("latency_unsteady")
    if abs(latency_s - ranging_s) > RANGE_TOLERANCE * latency_s:
        flags.append("range_mismatch")
    return flags


def _kernel_columns(prepared: PreparedKernel) -> dict[str, Any]:
    """What the library chose; zeros that mean "none" become null."""
    return {
        "library": prepared.library or None,
        "kernel_name": prepared.kernel_name or None,
        **{f"grid_{axis}": size or None for axis, size in zip("xyz", prepared.grid, strict=True)},
        **{f"block_{axis}": size or None for axis, size in zip("xyz", prepared.block, strict=True)},
        "registers_per_thread": prepared.registers_per_thread or None,
        "shared_bytes_per_block": None if prepared.untraced else prepared.shared_bytes_per_block,
        "blocks_per_sm": prepared.blocks_per_sm or None,
        "tile_m": prepared.tile_m or None,
        "tile_n": prepared.tile_n or None,
        "tile_k": prepared.tile_k or None,
        "stages": prepared.stages or None,
        "split_k": None if prepared.untraced else prepared.split_k or None,
        "transpose": prepared.transpose or None,
        "l2_state": prepared.l2_state,
    }


def _union(states: StateReadings) -> int:
    """All throttle reasons that were seen."""
    return int(np.bitwise_or.reduce(states.throttle_mask)) if len(states.throttle_mask) else 0


def _mean(values: Array) -> float:
    """Mean of what is known; nan for nothing."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def _known(value: Any) -> Any:
    """Numbers that are not finite become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
