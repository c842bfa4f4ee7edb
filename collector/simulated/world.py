"""The simulated world: one board, its heat, its clock and its power over time."""

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import cache, partial
from typing import Final

import numpy as np

from collector.devices.protocols import CLOCK_TOLERANCE_MHZ, THROTTLE_BITS, LaunchRecord
from collector.simulated.generated import copy_point, generated_point
from collector.simulated.plan import KernelPlan, sm_speeds
from collector.simulated.profile import BoardProfile, TransientProfile
from collector.simulated.scheduler import TimedEnergy, kernel_timing
from collector.simulated.silicon import clock_tree_w, launch_energy, relative_voltage, rest_power_w, voltage_v
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.values import frozen
from microbench.loads.copies import CopyLoad
from microbench.loads.generated import Load

NS: Final = 1e-9

LONGEST_STEP_S: Final = 0.5
"""Longest time step [s]: heat and leakage are updated after steps that double from the first to the longest."""

SETTLED_SHARE: Final = 0.99
"""Share to which the power limit must have taken hold before time steps grow."""

Launch = Callable[[float], TimedEnergy]
"""Time of one launch at a clock [MHz], without the sag of voltage and clock; its energy in the core and in memory [J]."""


@frozen
class OperatingPoint:
    """A kernel at a clock: time of a launch, time between launches, and power beyond the board at rest [W]."""

    gpu_s: float
    period_s: float
    voltage_v: float
    added_w: float


LoadedKernel = Callable[[float], OperatingPoint]
"""A kernel that can run: its operating point at a clock [MHz], computed once."""


class World:
    """A board at rest or at work; only `rest` and `run` advance time."""

    def __init__(self, profile: BoardProfile, seed: int) -> None:
        self.profile = profile
        self.gpu = gpu = profile.spec
        streams = np.random.SeedSequence([seed, gpu.num_sms]).spawn(4)
        self.sensor_seed, noise = streams[:2]
        self._noise, self._foreign = np.random.default_rng(noise), np.random.default_rng(noise.spawn(1)[0])
        self.shared = False
        self._speeds = sm_speeds(profile.schedule, gpu.num_sms, seed)
        self.clocks_mhz: list[float] = gpu.clocks_mhz().tolist()
        self._voltage_v = cache(lambda clock: voltage_v(profile, clock))
        self.locked_mhz: float | None = None
        # time for which the board has been at rest and polled when a session begins
        self.now_ns = int((5.0 + profile.faults.startup_s) / NS)
        self.frozen_s: list[tuple[float, float]] = []
        rest_w = self._settled_rest_w()
        thermal = profile.thermal
        self._die_k, self._sink_k = thermal.die_k_per_w * rest_w, thermal.sink_k_per_w * rest_w
        self.trace = PowerTrace(profile.transient, 0.5 * profile.sensor.window_s, 0.0, rest_w)
        self._log: list[tuple[float, float, float, float, int]] = []
        self._extend(self.now_ns, rest_w, self.rest_clock_mhz(), voltage_v(profile, self.rest_clock_mhz()), THROTTLE_BITS["gpu_idle"])

    @property
    def now_s(self) -> float:
        """Host time [s]."""
        return self.now_ns * NS

    @property
    def temperature_c(self) -> float:
        """Die temperature [degree Celsius]."""
        return self.profile.thermal.ambient_c + self._die_k + self._sink_k

    def rest_clock_mhz(self) -> float:
        """SM clock while nothing runs."""
        return self.profile.clock.idle_mhz if self.locked_mhz is None else self.locked_mhz

    def rest(self, seconds: float) -> None:
        """Advances time with nothing running."""
        left_ns = round(seconds / NS)
        clock = self.rest_clock_mhz()
        volt = self._voltage_v(clock)
        step_s = 0.01
        while left_ns > 0:
            step_ns = min(left_ns, round(step_s / NS))
            self._pass(step_ns, clock, volt, THROTTLE_BITS["gpu_idle"], self._rest_w(clock, volt))
            left_ns -= step_ns
            step_s = min(2.0 * step_s, LONGEST_STEP_S)

    def load(self, plan: KernelPlan, l2_state: str) -> LoadedKernel:
        """A plan prepared to run."""
        energy = launch_energy(self.profile, plan, l2_state)

        def launch(sm_clock_mhz: float) -> TimedEnergy:
            return kernel_timing(self.profile, plan, l2_state, sm_clock_mhz, self._speeds), energy

        return cache(partial(self._work_out, launch))

    def load_generated(self, load: Load) -> LoadedKernel:
        """A generated kernel or a copy prepared to run."""

        def launch(sm_clock_mhz: float) -> TimedEnergy:
            if isinstance(load, CopyLoad):
                return copy_point(self.profile, load)
            return generated_point(self.profile, load, sm_clock_mhz, self._speeds)

        return cache(partial(self._work_out, launch))

    def run(self, kernel: LoadedKernel, launches: int) -> LaunchRecord:
        """Launch a kernel back to back and advance time by its duration."""
        segments = min(10, launches)  # parts of a run that are timed separately
        schedule, faults = self.profile.schedule, self.profile.faults
        start_ns = self.now_ns
        stale, throttle, _ = self._noise.random(3).tolist()  # three, so that the results of a seed stay unchanged
        speed = math.exp(schedule.run_spread * self._noise.standard_normal())
        self.shared = faults.foreign_share > 0.0 and self._foreign.random() < faults.foreign_share
        slow_down, foreign_w = (1.2, 60.0) if self.shared else (1.0, 0.0)
        reported = np.exp(schedule.segment_spread * self._noise.standard_normal(segments))
        self.rest(schedule.launch_lag_s)
        begin_s = self.now_s
        done, times, counts = 0.0, [0.0], [0.0]
        step_s = max(self.profile.clock.governor_delay_s, 1e-3)
        settled = False
        while done < launches:
            held = 0.0 if done == 0.0 else 1.0 if not faults.limit_lag_s else -math.expm1(-times[-1] / faults.limit_lag_s)
            clock, mask = self._governed_clock(kernel, held, speed, 0.8 if throttle < faults.throttle_share else 1.0)
            point = kernel(clock)
            period = max((point.gpu_s + schedule.launch_gap_s) * speed, schedule.host_launch_s) * slow_down
            part = min(launches - done, step_s / period)
            step_ns = max(1, round(part * period / NS))
            share = point.period_s / period
            power = self._rest_w(clock, point.voltage_v) + point.added_w * share + foreign_w
            self._pass(step_ns, clock, point.voltage_v, mask, power)
            done = launches if launches - done - part < 1e-6 else done + part
            times.append(times[-1] + step_ns * NS)
            counts.append(done)
            step_s = min(2.0 * step_s, LONGEST_STEP_S) if settled else step_s
            settled = held > SETTLED_SHARE if faults.limit_lag_s else True
        if stale < faults.stale_share:
            self.frozen_s.append((begin_s, self.now_s))
        edges = np.interp(np.linspace(0.0, launches, segments + 1), counts, times)
        segment_s = np.diff(edges) / (launches / segments) * reported
        return LaunchRecord(start_ns=start_ns, end_ns=self.now_ns, launches=launches, segment_s=segment_s)

    def _work_out(self, launch: Launch, sm_clock_mhz: float) -> OperatingPoint:
        """Time and power of a launch, with the sag of voltage and clock that its own current causes."""
        profile, constants = self.profile, self.profile.power
        at_rest = next_volt = self._voltage_v(sm_clock_mhz)
        next_clock = sm_clock_mhz
        for _ in range(3):
            volt, clock = next_volt, next_clock
            timing, (core_j, dram_j) = launch(clock)
            period = max(timing.gpu_s + profile.schedule.launch_gap_s, profile.schedule.host_launch_s)
            duty = timing.gpu_s / period
            running = constants.ungated_share + (1.0 - constants.ungated_share) * timing.busy_share
            core_w = clock_tree_w(profile, constants.sm_clock_w, volt, clock) * running * duty
            core_w += core_j * relative_voltage(profile, volt) ** 2 / period
            added_w = core_w + dram_j / period + constants.active_w * duty
            next_volt = at_rest - profile.clock.load_line_ohm * core_w / at_rest
            next_clock = sm_clock_mhz * (1.0 - profile.clock.droop_share * min(1.0, core_w / self.gpu.power_limit_w))
        return OperatingPoint(gpu_s=timing.gpu_s, period_s=period, voltage_v=volt, added_w=added_w)

    def _governed_clock(self, kernel: LoadedKernel, held: float, speed: float, factor: float) -> tuple[float, int]:
        """The clock under the limits of heat and power, and the reasons for it; a slow run (`speed` > 1) draws less.

        `held` is the share to which the power limit has taken hold.
        """
        clock = self.profile.clock
        asked = clock.boost_mhz if self.locked_mhz is None else self.locked_mhz
        mask, wanted = 0, asked * factor
        hot = self.temperature_c - clock.slowdown_temperature_c
        if hot > 0.0 or factor < 1.0:
            wanted -= max(hot, 0.0) * clock.slowdown_mhz_per_k
            mask |= THROTTLE_BITS["sw_thermal_slowdown"]
        top = max(bisect_right(self.clocks_mhz, wanted + CLOCK_TOLERANCE_MHZ) - 1, 0)
        if held and self._power_at(kernel, top, speed) > self.gpu.power_limit_w:
            mask |= THROTTLE_BITS["sw_power_cap"]
            within = bisect_right(range(1, top), self.gpu.power_limit_w, key=lambda index: self._power_at(kernel, index, speed))
            top = round(top + held * (within - top))
        return self.clocks_mhz[top], mask

    def _power_at(self, kernel: LoadedKernel, index: int, speed: float) -> float:
        clock = self.clocks_mhz[index]
        point = kernel(clock)
        return point.added_w / speed + self._rest_w(clock, point.voltage_v)

    def _rest_w(self, clock: float, volt: float) -> float:
        return rest_power_w(self.profile, clock, volt, self.temperature_c)

    def _settled_rest_w(self) -> float:
        """Power of the board after a long rest, warmed by itself [W]."""
        thermal, clock = self.profile.thermal, self.rest_clock_mhz()
        volt = self._voltage_v(clock)
        power = self.profile.power.board_w
        for _ in range(20):
            temperature = thermal.ambient_c + (thermal.die_k_per_w + thermal.sink_k_per_w) * power
            power = rest_power_w(self.profile, clock, volt, temperature)
        return power

    def _pass(self, step_ns: int, clock: float, volt: float, mask: int, power: float) -> None:
        """Advances time with the silicon at constant power."""
        seconds = step_ns * NS
        self._extend(self.now_ns + step_ns, power, clock, volt, mask)
        thermal = self.profile.thermal
        self._die_k += (thermal.die_k_per_w * power - self._die_k) * -math.expm1(-seconds / thermal.die_time_s)
        self._sink_k += (thermal.sink_k_per_w * power - self._sink_k) * -math.expm1(-seconds / thermal.sink_time_s)

    def _extend(self, until_ns: int, power_w: float, clock: float, volt: float, mask: int) -> None:
        self._log.append((self.trace.end_s, clock, self.temperature_c, volt, mask))
        self.trace.extend(until_ns * NS, power_w)
        self.now_ns = until_ns

    def states_at(self, time_s: Array) -> tuple[Array, Array, Array, IntArray]:
        """SM clock [MHz], temperature [degree Celsius], voltage [V] and throttle mask at past times, shape (n,) each."""
        first = bisect_right(self._log, min(time_s, default=math.inf), key=lambda entry: entry[0]) - 1
        log = np.array(self._log[max(first, 0) :])
        rows = log[np.maximum(np.searchsorted(log[:, 0], time_s, side="right") - 1, 0)]
        return rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4].astype(np.int64)


_START, _POWER, _ENERGY, _FILTERED, _LAGS = range(5)


class PowerTrace:
    """Board power since `start_s`, with the board at rest for long before: exact exponentials between changes of the silicon's power.

    The silicon's power is constant within a segment.  The board follows it through first-order lags in parallel (regulators, boost,
    warming): p = Σ w_j x_j, x_j' = (P − x_j) / τ_j, Σ w_j = 1.  Energy and a low-pass sensor's state have closed forms, so no time steps
    are needed.

    `filter_time_s` is the time constant of the sensor's low-pass, whose state is part of the trace.
    """

    def __init__(self, transient: TransientProfile, filter_time_s: float, start_s: float, power_w: float) -> None:
        self._weights = np.array([1.0 - transient.slow_share - transient.creep_share, transient.slow_share, transient.creep_share])
        self._times = np.array([transient.fast_time_s, transient.slow_time_s, transient.creep_time_s])
        self._filter_time_s = filter_time_s
        self._response = self._weights / (1.0 - filter_time_s / self._times)
        self._rows = np.zeros((1024, _LAGS + len(self._times)))
        self._rows[0] = start_s, power_w, 0.0, power_w, power_w, power_w, power_w
        self._count = 1
        self.end_s = start_s
        """The time up to which power is known [s]."""

    def extend(self, until_s: float, power_w: float) -> None:
        """Extends the trace from its end to `until_s` with the silicon at `power_w`."""
        last = self._rows[self._count - 1]
        if self.end_s == last[_START]:
            last[_POWER] = power_w
        elif last[_POWER] != power_w:
            if self._count == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._rows[self._count] = self._states(np.array([self.end_s]))
            self._rows[self._count, :_ENERGY] = self.end_s, power_w
            self._count += 1
        self.end_s = until_s

    def _states(self, time_s: Array) -> Array:
        """State at each time: start and power of its segment, energy, filtered power and lags; shape (n, ·)."""
        known = self._rows[: self._count]
        states = known[np.maximum(np.searchsorted(known[:, _START], time_s, side="right") - 1, 0)]
        power, since = states[:, _POWER, None], (time_s - states[:, _START])[:, None]
        away, past = states[:, _LAGS:] - power, np.maximum(since, 0.0)  # before the trace the board was at rest
        decay, slow_filter = np.exp(-past / self._times), np.exp(-past / self._filter_time_s)
        lagged = (self._response * away * (decay - slow_filter)).sum(axis=1)
        states[:, _ENERGY] += (power * since)[:, 0] + (self._weights * self._times * away * (1.0 - decay)).sum(axis=1)
        states[:, _FILTERED] = power[:, 0] + (states[:, _FILTERED] - power[:, 0]) * slow_filter[:, 0] + lagged
        states[:, _LAGS:] = power + away * decay
        return states

    def energy_j(self, time_s: Array) -> Array:
        """Energy since the start of the trace [J], shape (n,); before it, the board at rest."""
        return self._states(time_s)[:, _ENERGY]

    def filtered_w(self, time_s: Array) -> Array:
        """Board power behind the sensor's first-order low-pass [W], shape (n,)."""
        return self._states(time_s)[:, _FILTERED]
