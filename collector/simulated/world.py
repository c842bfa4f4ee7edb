"""The simulated world: one board, its heat, its clock and its power over time."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from collector.devices.protocols import THROTTLE_BITS
from collector.errors import ClockError
from collector.simulated.generated import copy_point, generated_point
from collector.simulated.plan import KernelPlan, sm_speeds
from collector.simulated.profile import BoardProfile
from collector.simulated.scheduler import KernelTiming, kernel_timing
from collector.simulated.silicon import (
    LaunchEnergy,
    clock_tree_w,
    launch_energy,
    leakage_w,
    relative_voltage,
    rest_power_w,
    voltage_v,
)
from collector.simulated.trace import PowerTrace
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, IntArray
from microbench.loads.copies import CopyLoad
from microbench.loads.generated import GeneratedLoad

NS: Final = 1e-9

LONGEST_STEP_S: Final = 0.5
"""Longest time step [s]: heat and leakage are updated after steps that double from the first to the longest."""

MOST_SEGMENTS: Final = 50_000
"""Greatest number of segments; beyond it only the later half is kept: an hour of a campaign, whose sensors need only seconds."""

CLOCK_TOLERANCE_MHZ: Final = 0.51
"""Largest difference from a supported clock [MHz]: drivers report half steps rounded."""


Launch = Callable[[float], tuple[KernelTiming, LaunchEnergy]]
"""Time and energy of one launch at a clock [MHz], without the sag of voltage and clock."""

LEDGER: Final = ("board", "clock_tree", "leakage", "active", "busy_sms", "dram", "l2", "shared", "tensor", "cuda", "sfu", "link", "hidden")
"""Entries of the energy ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """A kernel at a clock: time of a launch, time between launches, and power beyond the board at rest [W]."""

    gpu_s: float
    period_s: float
    voltage_v: float
    parts_w: dict[str, float]

    @property
    def added_w(self) -> float:
        """All power beyond the board at rest [W]."""
        return sum(self.parts_w.values())


LoadedKernel = Callable[[float], OperatingPoint]
"""A kernel that can run: its operating point at a clock [MHz], computed once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """A run: host stamps and mean time of a launch in equal parts of it, shape (n,) [s]."""

    start_ns: int
    end_ns: int
    segment_s: Array


class World:
    """A board at rest or at work; only `rest` and `run` advance time."""

    def __init__(self, profile: BoardProfile, gpu: GpuSpec, seed: int) -> None:
        self.profile = profile
        self.gpu = gpu
        streams = np.random.SeedSequence([seed, gpu.num_sms]).spawn(4)
        self.sensor_seed, self._noise_seed = streams[0], streams[1]
        self._noise = np.random.Generator(np.random.PCG64(self._noise_seed))
        self._foreign = np.random.Generator(np.random.PCG64(self._noise_seed.spawn(1)[0]))
        self.shared = False
        self._speeds = sm_speeds(profile.schedule, gpu.num_sms, seed)
        self._clocks = gpu.clocks_mhz()
        self._clock_list: list[float] = self._clocks.tolist()
        self._voltage_v = cache(lambda clock: voltage_v(profile, clock))
        self._steps = np.arange(64 + 1, dtype=np.float64)  # parts of a run that can be timed separately
        self.locked_mhz: float | None = None
        self.now_ns = int(5.0 / NS)  # time for which the board has been at rest and polled when a session begins
        self.ledger_j = dict.fromkeys(LEDGER, 0.0)
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

    def supported_clocks_mhz(self) -> tuple[float, ...]:
        """SM clocks that can be locked, ascending [MHz]."""
        return tuple(self._clock_list)

    def lock(self, sm_clock_mhz: float) -> None:
        """Hold the SM clock.  Raises ClockError for an unsupported one."""
        nearest = float(self._clocks[np.abs(self._clocks - sm_clock_mhz).argmin()])
        if not abs(nearest - sm_clock_mhz) <= CLOCK_TOLERANCE_MHZ:
            low, high, step = self._clocks[0], self._clocks[-1], self.gpu.sm_clock_step_mhz
            raise ClockError(f"SM clock {sm_clock_mhz:g} MHz is not supported; take {low:g} to {high:g} MHz in steps of {step:g}")
        self.locked_mhz = nearest

    def unlock(self) -> None:
        """Give the SM clock back to the board."""
        self.locked_mhz = None

    def rest_clock_mhz(self) -> float:
        """SM clock while nothing runs."""
        return self.profile.clock.idle_mhz if self.locked_mhz is None else self.locked_mhz

    def rest(self, seconds: float) -> None:
        """Advances time with nothing running."""
        left_ns = round(seconds / NS)
        clock = self.rest_clock_mhz()
        volt = self._voltage_v(clock)
        step_s = 0.01
        mask = THROTTLE_BITS["gpu_idle"]
        while left_ns > 0:
            step_ns = min(left_ns, round(step_s / NS))
            rest = self._rest_parts_w(clock, volt)
            self._pass(step_ns, clock, volt, mask, rest)
            left_ns -= step_ns
            step_s = min(2.0 * step_s, LONGEST_STEP_S)

    def load(self, plan: KernelPlan, l2_state: str) -> LoadedKernel:
        """A plan prepared to run."""
        energy = launch_energy(self.profile, plan, l2_state)
        return self._loaded(lambda clock: (kernel_timing(self.profile, self.gpu, plan, l2_state, clock, self._speeds), energy))

    def load_generated(self, load: GeneratedLoad | CopyLoad) -> LoadedKernel:
        """A generated kernel or a copy prepared to run."""
        if isinstance(load, CopyLoad):
            return self._loaded(lambda _clock: copy_point(self.profile, self.gpu, load))
        return self._loaded(lambda clock: generated_point(self.profile, self.gpu, load, clock, self._speeds))

    def _loaded(self, launch: Launch) -> LoadedKernel:
        return cache(lambda clock: self._work_out(launch, clock))

    def run(self, kernel: LoadedKernel, launches: int, segments: int) -> RunOutcome:
        """Launch a kernel back to back and advance time by its duration; at most 64 `segments`."""
        schedule, faults = self.profile.schedule, self.profile.faults
        start_ns = self.now_ns
        stale, throttle, _ = self._noise.random(3).tolist()  # three, so that the results of a seed stay unchanged
        stale, throttle = stale < faults.stale_share, throttle < faults.throttle_share
        speed = math.exp(schedule.run_spread * float(self._noise.standard_normal()))
        self.shared = faults.foreign_share > 0.0 and bool(self._foreign.random() < faults.foreign_share)
        slow_down = faults.foreign_slowdown if self.shared else 1.0
        foreign_w = faults.foreign_w if self.shared else 0.0
        reported = np.exp(schedule.segment_spread * self._noise.standard_normal(segments))
        self.rest(schedule.launch_lag_s)
        begin_s = self.now_s
        done, times, counts = 0.0, [0.0], [0.0]
        step_s = max(self.profile.clock.governor_delay_s, 1e-3)
        governed = False
        while done < launches:
            clock, mask = self._governed_clock(kernel, governed, speed, faults.throttle_factor if throttle else 1.0)
            point = kernel(clock)
            period = self._period_s(point, speed) * slow_down
            part = min(launches - done, step_s / period)
            step_ns = max(1, round(part * period / NS))
            share = point.period_s / period
            rest = self._rest_parts_w(clock, point.voltage_v)
            parts = {name: watt * share for name, watt in point.parts_w.items()}
            parts["hidden"] += foreign_w
            self._pass(step_ns, clock, point.voltage_v, mask, rest | parts)
            done = launches if launches - done - part < 1e-6 else done + part
            times.append(times[-1] + step_ns * NS)
            counts.append(done)
            step_s = step_s if not governed else min(2.0 * step_s, LONGEST_STEP_S)
            governed = True
        if stale:
            self.frozen_s.append((begin_s, self.now_s))
        ends = self._steps[: segments + 1] * (launches / segments)
        ends[-1] = launches
        edges = np.interp(ends, counts, times)
        return RunOutcome(start_ns=start_ns, end_ns=self.now_ns, segment_s=np.diff(edges) / (launches / segments) * reported)

    def _work_out(self, launch: Launch, sm_clock_mhz: float) -> OperatingPoint:
        """Time and power of a launch, with the sag of voltage and clock that its own current causes."""
        profile = self.profile
        at_rest = next_volt = self._voltage_v(sm_clock_mhz)
        next_clock = sm_clock_mhz
        for _ in range(3):
            volt, clock = next_volt, next_clock
            timing, energy = launch(clock)
            period = max(timing.gpu_s + profile.schedule.launch_gap_s, profile.schedule.host_launch_s)
            duty = timing.gpu_s / period
            over = relative_voltage(profile, volt) ** 2
            parts = {name: joule * over / period for name, joule in energy.core_j.items()}
            parts["dram"] = energy.dram_j / period
            parts["hidden"] = energy.hidden_j * over / period
            parts["active"] = profile.power.active_w * duty
            running = profile.power.ungated_share + (1.0 - profile.power.ungated_share) * timing.busy_share
            parts["busy_sms"] = clock_tree_w(profile, profile.power.sm_clock_w, volt, clock) * running * duty
            core_w = sum(parts.values()) - parts["dram"] - parts["active"]
            next_volt = at_rest - profile.clock.load_line_ohm * core_w / at_rest
            next_clock = sm_clock_mhz * (1.0 - profile.clock.droop_share * min(1.0, core_w / self.gpu.power_limit_w))
        return OperatingPoint(gpu_s=timing.gpu_s, period_s=period, voltage_v=volt, parts_w=parts)

    def _period_s(self, point: OperatingPoint, speed: float) -> float:
        """Time from one launch to the next, with this run's random variation [s]."""
        schedule = self.profile.schedule
        return max((point.gpu_s + schedule.launch_gap_s) * speed, schedule.host_launch_s)

    def _governed_clock(self, kernel: LoadedKernel, governed: bool, speed: float, factor: float) -> tuple[float, int]:
        """The clock under the limits of heat and power, and the reasons for it; a slow run (`speed` > 1) draws less."""
        clock = self.profile.clock
        asked = clock.boost_mhz if self.locked_mhz is None else self.locked_mhz
        mask, wanted = 0, asked * factor
        hot = self.temperature_c - clock.slowdown_temperature_c
        if hot > 0.0 or factor < 1.0:
            wanted -= max(hot, 0.0) * clock.slowdown_mhz_per_k
            mask |= THROTTLE_BITS["sw_thermal_slowdown"]
        top = max(bisect_right(self._clock_list, wanted + CLOCK_TOLERANCE_MHZ) - 1, 0)
        if governed and self._power_at(kernel, top, speed) > self.gpu.power_limit_w:
            mask |= THROTTLE_BITS["sw_power_cap"]
            low = 0
            while low < top:
                middle = (low + top + 1) // 2
                if self._power_at(kernel, middle, speed) <= self.gpu.power_limit_w:
                    low = middle
                else:
                    top = middle - 1
            top = low
        return self._clock_list[top], mask

    def _power_at(self, kernel: LoadedKernel, index: int, speed: float) -> float:
        clock = self._clock_list[index]
        point = kernel(clock)
        return point.added_w / speed + sum(self._rest_parts_w(clock, point.voltage_v).values())

    def _rest_parts_w(self, clock: float, volt: float) -> dict[str, float]:
        profile = self.profile
        return {
            "board": profile.power.board_w,
            "clock_tree": clock_tree_w(profile, profile.power.idle_clock_w, volt, clock),
            "leakage": leakage_w(profile, volt, self.temperature_c),
        }

    def _settled_rest_w(self) -> float:
        """Power of the board after a long rest, warmed by itself [W]."""
        thermal, clock = self.profile.thermal, self.rest_clock_mhz()
        power = self.profile.power.board_w
        for _ in range(20):
            temperature = thermal.ambient_c + (thermal.die_k_per_w + thermal.sink_k_per_w) * power
            power = rest_power_w(self.profile, clock, temperature)
        return power

    def _pass(self, step_ns: int, clock: float, volt: float, mask: int, parts_w: dict[str, float]) -> None:
        """Advances time with the silicon at constant power."""
        seconds, ledger_j = step_ns * NS, self.ledger_j
        for name, watt in parts_w.items():
            ledger_j[name] += watt * seconds
        power = sum(parts_w.values())
        self._extend(self.now_ns + step_ns, power, clock, volt, mask)
        thermal = self.profile.thermal
        self._die_k += (thermal.die_k_per_w * power - self._die_k) * -math.expm1(-seconds / thermal.die_time_s)
        self._sink_k += (thermal.sink_k_per_w * power - self._sink_k) * -math.expm1(-seconds / thermal.sink_time_s)

    def _extend(self, until_ns: int, power_w: float, clock: float, volt: float, mask: int) -> None:
        self._log.append((self.trace.end_s, clock, self.temperature_c, volt, mask))
        if len(self._log) > MOST_SEGMENTS:
            del self._log[: MOST_SEGMENTS // 2]
            self.trace.forget(self._log[0][0])
            self.frozen_s = [frozen for frozen in self.frozen_s if frozen[1] > self._log[0][0]]
        self.trace.extend(until_ns * NS, power_w)
        self.now_ns = until_ns

    def states_at(self, time_s: Array) -> tuple[Array, Array, Array, IntArray]:
        """SM clock [MHz], temperature [degree Celsius], voltage [V] and throttle mask at past times, shape (n,) each."""
        first = max(0, len(self._log) - 1)
        while first > 0 and self._log[first][0] > (time_s[0] if len(time_s) else self.now_s):
            first -= 1
        log = np.array(self._log[first:])
        rows = log[np.maximum(np.searchsorted(log[:, 0], time_s, side="right") - 1, 0)]
        return rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4].astype(np.int64)
