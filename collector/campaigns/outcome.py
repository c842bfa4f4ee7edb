"""Power, time and energy of a run from its polls and a sensor's calibration, with every doubt flagged."""

from dataclasses import fields
from math import inf, nan, sqrt
from typing import Final

import numpy as np

from collector.campaigns.files import MeasurementSettings
from collector.dataset.schema import Row
from collector.devices.protocols import EnergyReading, LaunchRecord, StateReadings, limiting_reasons
from collector.sampling import SECONDS_PER_NS, Trace, host_seconds
from collector.sensing.baselines import sampled_energies_j
from collector.sensing.calibration import SensorCalibration
from collector.sensing.steady import SteadyPower, counter_energy, launch_energy, settle_time_s, steady_power, update_period_s
from estimator.display.text import known
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

RANGE_TOLERANCE: Final = 0.15
"""Largest relative difference between ranging and measured launch times."""
CLOCK_TOLERANCE: Final = 0.015
"""Largest relative difference between measured and requested clock: one step of the coarsest tables, and droop."""
CLOCK_VARIATION: Final = 0.02
"""Largest standard deviation of the clock in a window, as a share, for which one clock represents the window."""
LIMITS: Final = {"latency_unsteady": 0.05, "drifting": 0.03, "unsettled": 0.03, "absurd": 0.2, "few_samples": 4, "short_window": 0.7}
"""Limits by flag.

As shares: spread of launch times between parts of a run, change of power over the window and at its beginning, absurd readings
(above it the other readings do not count either).  In sensor updates: few_samples.  As a share of the planned window: short_window.
"""
POWER_CAP: Final = "sw_power_cap"
"""Reason of a clock that the power limit keeps moving around the one that it allows: such a clock is the measured condition."""
SIGNIFICANCE: Final = 3.0
"""A change counts if it is larger than its share and than this many standard errors."""


@frozen
class Run:
    """A measured run of a kernel: its launches, the polls meanwhile, the counter before and after, and the launch time from ranging [s].

    `rest` are the polls at rest just before it, if it was long enough to measure the power; None otherwise.
    """

    trace: Trace
    record: LaunchRecord
    counter: tuple[EnergyReading | None, EnergyReading | None]
    ranging_s: float
    sm_clock_mhz: float | None
    power_limit_w: float
    rest: Trace | None


def outcome_columns(run: Run, settings: MeasurementSettings, calibration: SensorCalibration, *, generated: bool, doubts: list[str]) -> Row:
    """The columns of a row that follow from its run; unknown numbers are nan.

    `doubts` are flags that do not follow from the polls.  Bad data raise no error.
    """
    record, readings = run.record, run.trace.board
    launches = record.launches
    start_s, end_s = record.start_ns * SECONDS_PER_NS, record.end_ns * SECONDS_PER_NS
    settled_s = min(start_s + settle_time_s(calibration, settings.settle_s), end_s)
    power = steady_power(readings, settled_s, end_s, calibration, run.power_limit_w)
    idle_w, idle_c = (nan, nan) if run.rest is None else _idle_before(run.rest, calibration, run.power_limit_w)
    latency_s, latency_std_s, spread = _latency(record, settled_s - start_s)
    states = states_within(run.trace.states, settled_s, end_s)
    ranging = states_within(run.trace.states, -inf, start_s).sm_clock_mhz[-1:]
    believed = power.samples > 0 and not power.stuck and power.absurd <= LIMITS["absurd"] * (power.absurd + power.samples)
    raw_w, power_w, power_std_w = (power.raw_w, power.power_w, power.std_w) if believed else (nan, nan, nan)
    energy_j, energy_std_j = launch_energy(power_w, power_std_w, latency_s, latency_std_s)
    period_s = update_period_s(calibration)
    counter_j, counter_doubts = counter_energy(*run.counter, launches, end_s - start_s, raw_w, idle_w, period_s, run.power_limit_w)
    sampled = sampled_energies_j(readings, start_s, end_s) if generated else {}
    flags = [
        *_state_flags(states, run.sm_clock_mhz, settings),
        *_power_flags(power, settings.planned_window_s(calibration)),
        *_latency_flags(latency_s, spread, run.ranging_s, mean_known(ranging) / mean_known(states.sm_clock_mhz)),
        *doubts,
        *counter_doubts,
    ]
    return {
        "sm_clock_measured_mhz": mean_known(states.sm_clock_mhz),
        "voltage_v": mean_known(states.voltage_v),
        "temperature_c": mean_known(states.temperature_c),
        "power_limit_w": run.power_limit_w,
        "throttle_reasons": throttle_union(states),
        "launches": launches,
        "latency_s": latency_s,
        "latency_std_s": latency_std_s,
        "power_raw_w": raw_w,
        "power_w": power_w,
        "power_std_w": power_std_w,
        "energy_j": energy_j,
        "energy_std_j": energy_std_j,
        "energy_counter_j": counter_j,
        "idle_before_w": idle_w,
        "temperature_before_c": idle_c,
        "samples": power.samples,
        "window_s": power.window_s,
        "flags": flags,
        **{f"energy_{name}_j": joule / launches for name, joule in sampled.items()},
    }


def _true(**doubts: bool) -> list[str]:
    """The flags whose doubt holds."""
    return [flag for flag, doubt in doubts.items() if doubt]


def idle_entry(idle: Trace, sm_clock_mhz: float | None, calibration: SensorCalibration, power_limit_w: float) -> dict[str, float | None]:
    """Power at rest at one clock, with the temperature at which it was measured, as the file metadata hold it."""
    host_s = host_seconds(idle.board.host_ns)
    power = steady_power(idle.board, float(host_s[0]), float(host_s[-1]), calibration, power_limit_w)
    entry = {
        "sm_clock_mhz": sm_clock_mhz,
        "sm_clock_measured_mhz": mean_known(idle.states.sm_clock_mhz),
        "power_w": power.power_w,
        "std_w": power.std_w,
        "temperature_c": mean_known(idle.states.temperature_c),
        "samples": float(power.samples),
    }
    return dict(known(entry))


def _latency(run: LaunchRecord, settle_s: float) -> tuple[float, float, float]:
    """Mean time of a launch in the settled parts of a run, its standard error, and the parts' relative spread."""
    parts = run.segment_s
    begins = (np.cumsum(parts) - parts) * run.launches / len(parts)
    settled = parts[begins >= settle_s]
    if len(settled) < 3:
        settled = parts[-3:]
    mean = float(settled.mean())
    if len(settled) < 2:
        return mean, nan, nan
    spread = float(settled.std(ddof=1))
    return mean, spread / sqrt(len(settled)), spread / mean if mean > 0 else nan


def _idle_before(rest: Trace, calibration: SensorCalibration, power_limit_w: float) -> tuple[float, float]:
    """Power at rest [W] in the later half of the rest before a run, and the temperature; nan where it fell by over 1 W."""
    host_s = host_seconds(rest.board.host_ns)
    if not len(host_s):
        return nan, nan
    last = float(host_s[-1])
    start, end = float(last - 0.5 * (last - host_s[0])), last
    idle = steady_power(rest.board, start, end, calibration, power_limit_w)
    falling = abs(idle.change_w) > 1.0 and abs(idle.change_w) > SIGNIFICANCE * np.nan_to_num(idle.change_std_w)
    if falling or idle.absurd or idle.stuck:
        return nan, nan
    return idle.power_w, mean_known(states_within(rest.states, start, end).temperature_c)


def states_within(states: StateReadings, start_s: float, end_s: float) -> StateReadings:
    """States polled between two host times; if there is none, the last one before their end, else the first one after it."""
    host_s = host_seconds(states.host_ns)
    inside = np.flatnonzero((host_s >= start_s) & (host_s <= end_s))
    if not len(inside) and len(host_s):
        inside = np.array([max(0, int(np.searchsorted(host_s, end_s, side="right")) - 1)])
    return StateReadings(**{one.name: getattr(states, one.name)[inside] for one in fields(StateReadings)})


def _state_flags(states: StateReadings, asked_mhz: float | None, settings: MeasurementSettings) -> list[str]:
    """Doubts about the operating point."""
    clock, reasons = mean_known(states.sm_clock_mhz), limiting_reasons(throttle_union(states))
    return _true(
        throttled=bool(reasons),
        clock_off_target=asked_mhz is not None and not abs(clock - asked_mhz) <= CLOCK_TOLERANCE * asked_mhz,
        clock_varied=POWER_CAP not in reasons
        and len(states.sm_clock_mhz) > 1
        and bool(np.std(states.sm_clock_mhz) > CLOCK_VARIATION * clock),
        hot=mean_known(states.temperature_c) > settings.max_temperature_c,
    )


def _power_flags(power: SteadyPower, planned_s: float) -> list[str]:
    """Doubts about the power."""
    missing = power.samples == 0
    changed = abs(power.change_w) > SIGNIFICANCE * power.change_std_w
    first = abs(power.first_w - power.raw_w)
    late = first > LIMITS["unsettled"] * power.raw_w and first > SIGNIFICANCE * power.raw_std_w * sqrt(LIMITS["few_samples"])
    told = not missing and not power.stuck
    return _true(
        power_missing=missing,
        sensor_stuck=power.stuck and not missing,
        power_absurd=bool(power.absurd),
        few_samples=told and power.samples < LIMITS["few_samples"],
        short_window=told and power.window_s < LIMITS["short_window"] * planned_s,
        drifting=told and changed and abs(power.change_w) > LIMITS["drifting"] * power.raw_w,
        unsettled=told and late,
    )


def _latency_flags(latency_s: float, spread: float, ranging_s: float, faster: float) -> list[str]:
    """Doubts about the time; `faster` is the ratio of the clocks while ranging and measured, nan where one is unknown.

    Of a kernel that follows the clock latency times clock is the same in both runs, of one that follows the memory the latency itself.
    """
    if not 0.0 < latency_s < inf:
        return ["latency_absurd"]
    away = np.nanmin(np.abs(latency_s - ranging_s * np.array([1.0, faster])))
    return _true(latency_unsteady=spread > LIMITS["latency_unsteady"], range_mismatch=bool(away > RANGE_TOLERANCE * latency_s))


def throttle_union(states: StateReadings) -> int:
    """All throttle reasons seen."""
    return int(np.bitwise_or.reduce(states.throttle_mask)) if len(states.throttle_mask) else 0


def mean_known(values: Array) -> float:
    """Mean of the known values; nan without any."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else nan
