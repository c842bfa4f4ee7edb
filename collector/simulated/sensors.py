"""The simulated board's power sensor: an update clock, an averaging window, a gain, and a host that polls.

Every random number belongs to an update or a poll, never to a call: readings do not depend on the number of calls.
"""

from typing import Final

import numpy as np

from collector.devices.protocols import EnergyReading, PowerReadings
from collector.simulated.world import NS, World
from estimator.vocabulary.quantities import Array, BoolArray

CHUNK: Final = 256
"""Number of updates or polls that are drawn at once."""

CALL_SHARES: Final = (1.0 / 12.0, 1.0)
"""Shortest and longest duration of a slow call, as shares of the planted one [1]."""


class PollClock:
    """Times at which a host polls: a period and occasional holes."""

    def __init__(self, seed: np.random.SeedSequence, start_s: float, period_s: float, spread_s: float, call_s: float = 0.0) -> None:
        self._random = np.random.default_rng(seed)
        self._period_s, self._spread_s, self._call_s = period_s, spread_s, call_s
        self._times = np.array([start_s])

    def until(self, now_s: float) -> Array:
        """Polls since the last call up to now [s], shape (n,)."""
        times = self._times
        while times[-1] <= now_s:
            steps = self._period_s + self._spread_s * self._random.standard_exponential(CHUNK)
            if self._call_s:  # the host rests four times as long as a call took
                steps = np.maximum(steps, 5.0 * self._call_s * self._random.uniform(*CALL_SHARES, CHUNK))
            times = np.concatenate([times, times[-1] + np.cumsum(steps)])
        count = int(np.searchsorted(times, now_s, side="right"))
        self._times = times[count:]
        return times[:count]


class SimulatedSensor:
    """The board's own power sensor; implements PowerSensor."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._profile = world.profile.sensor
        *seeds, polls, setting = world.sensor_seed.spawn(5)
        self._timing, self._noise, self._skip = (np.random.default_rng(seed) for seed in seeds)
        rate, phase, wander = np.random.default_rng(setting).random(3).tolist()
        # largest relative error of a sensor's clock against the host's: ±300 ppm (assumed from published recordings)
        self._period_s = self._profile.update_period_s * (1.0 + 3e-4 * (2.0 * rate - 1.0))
        # updates begin this long after the trace, so that every window lies within it
        self._phase_s = 1.5 + self._period_s * phase
        self._wander_phase = 2.0 * np.pi * wander
        self._drawn = 0
        self._polls = PollClock(polls, world.now_s, self._profile.poll_period_s, self._profile.poll_spread_s, world.profile.faults.call_s)
        self._stamps = np.random.default_rng(polls.spawn(1)[0])
        # Updates to come: times, noise, and whether each is missing; updates made: times, and the values of both fields.
        self._pending = self._seen = np.zeros((3, 0))

    def name(self) -> str:
        """Name of the source."""
        return "nvml"

    def fields(self) -> tuple[str, ...]:
        """The fields that `read` returns."""
        return ("instant", "average") if self._profile.average_slots else ("instant",)

    def read(self) -> tuple[PowerReadings, ...]:
        """Every poll since the last call, repeats included."""
        world = self._world
        self._update(world.now_s)
        due = self._polls.until(world.now_s)
        shown = self._seen[1:, np.searchsorted(self._seen[0], due, side="right") - 1]
        # the host stamps a poll this long before the driver answers
        early_s = 5e-5 + 0.5 * world.profile.faults.call_s * self._stamps.uniform(*CALL_SHARES, len(due))
        host_ns = np.round((due - early_s) / NS).astype(np.int64)
        self._seen = self._seen[:, -64:]  # no later reading can show the others
        return tuple(PowerReadings(field=name, host_ns=host_ns, power_w=power) for name, power in zip(self.fields(), shown, strict=False))

    def read_energy(self) -> EnergyReading:
        """The energy counter: the energy through the sensor, updated with its readings."""
        world = self._world
        world.rest(world.profile.faults.call_s)
        self._update(world.now_s)
        last = self._seen[0, -1]
        energy = self._profile.gain * float(world.trace.energy_j(np.array([last]))[0]) + self._profile.offset_w * last
        return EnergyReading(host_ns=world.now_ns, energy_j=np.floor(energy / 1e-3) * 1e-3)

    def _draw(self) -> Array:
        """The next CHUNK updates: times, noise, and missing ones; shape (3, CHUNK)."""
        profile, period_s = self._profile, self._period_s
        jitter = self._timing.standard_normal(CHUNK) * profile.jitter_s
        if profile.clock == "rigid":
            nominal = self._phase_s + period_s * np.arange(self._drawn, self._drawn + CHUNK)
            wander = profile.wander_s * np.sin(2.0 * np.pi * nominal / profile.wander_period_s + self._wander_phase)
            times = nominal + wander + np.clip(jitter, -0.2 * period_s, 0.2 * period_s)
        else:
            times = self._phase_s + np.cumsum(np.maximum(period_s + jitter, 0.25 * period_s))
            self._phase_s = float(times[-1])
        self._drawn += CHUNK
        return np.stack([times, self._noise.standard_normal(CHUNK) * profile.noise_w, self._skip.random(CHUNK) < profile.skip_share])

    def _update(self, now_s: float) -> None:
        """Makes all updates up to now."""
        pending = self._pending
        while not pending.size or pending[0, -1] <= now_s:
            pending = np.hstack([pending, self._draw()])
        count = int(np.searchsorted(pending[0], now_s, side="right"))
        (times, noise, skipped), self._pending = pending[:, :count], pending[:, count:]
        if not count:
            return
        profile = self._profile
        end = times - profile.delay_s
        if profile.kind == "boxcar":
            energy = self._world.trace.energy_j(np.concatenate([end, end - profile.window_s]))
            mean = (energy[:count] - energy[count:]) / profile.window_s
        else:
            mean = self._world.trace.filtered_w(end)
        held = skipped.astype(np.bool_)
        for begin, stop in self._world.frozen_s:
            held |= (times >= begin) & (times < stop)
        self._append(times, profile.gain * mean + profile.offset_w + noise, held)

    def _append(self, times: Array, value: Array, held: BoolArray) -> None:
        """Appends new updates; a held update repeats the value before it."""
        quantum, slots, weight = self._profile.quantum_w, self._profile.average_slots, self._profile.average_weight
        known = self._seen.shape[1]
        fresh = np.concatenate([np.ones(known, dtype=np.bool_), ~held])
        fresh[0] = True
        instant = np.concatenate([self._seen[1], np.round(value / quantum) * quantum])
        instant = instant[np.maximum.accumulate(np.where(fresh, np.arange(len(fresh)), 0))]
        padded = np.concatenate([np.full(slots, instant[0]), instant])
        trailing = np.convolve(padded, np.append(np.full(slots, weight), 1.0 - slots * weight), mode="valid")
        average = np.concatenate([self._seen[2], np.round(trailing[known:] / quantum) * quantum])
        self._seen = np.stack([np.concatenate([self._seen[0], times]), instant, average])


METER_RATE_HZ: Final = 1000.0


class SimulatedMeter:
    """An external meter in the board's supply lines, true but noisy; implements PowerSensor."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._noise = np.random.default_rng(world.sensor_seed.spawn(1)[0])
        self._read_samples = int(world.now_s * METER_RATE_HZ)

    def name(self) -> str:
        """Name of the source."""
        return "meter"

    def fields(self) -> tuple[str, ...]:
        """The fields that `read` returns."""
        return ("total",)

    def read(self) -> tuple[PowerReadings, ...]:
        """Every sample since the last call: mean power over the sampling interval that ends with it."""
        last = int(self._world.now_s * METER_RATE_HZ)
        edges = np.arange(self._read_samples, last + 1) / METER_RATE_HZ
        energy = self._world.trace.energy_j(edges)
        # sample noise of the external meter: an ElmorLabs PMD's 1.5 to 3.7 W, averaged over five of its samples
        power = np.diff(energy) * METER_RATE_HZ + 0.8 * self._noise.standard_normal(len(edges) - 1)
        self._read_samples = last
        return (PowerReadings(field="total", host_ns=np.round(edges[1:] / NS).astype(np.int64), power_w=power),)

    def read_energy(self) -> EnergyReading | None:
        """None: the meter has no counter."""
        return None
