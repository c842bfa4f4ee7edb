"""Boards, power sensors and recordings drawn from a seed, by a program that shares no code with the collector.

`draw(seed, meter)` draws a board (planted shape of its power), a sensor (update clock, kernel, gain, offset, step of
its values), a load, a read path and perhaps a meter, and returns the recording with the truth; `Recording.write`
writes `R.csv`, `L.csv` and, with a meter, `P.csv`.
Everything is simulated. The shapes and their ranges are those measured on published traces of an RTX 3090, RTX 4090,
A100, A5000, V100 and K40m: 95 % of a step within 3 ms, or 60 to 75 % at once and the rest between 100 and 200 ms;
2 to 8 % of creep over 2 s; a tail of 5 to 20 % for 0.5 to 2 s; clocks of 15 to 101 ms, rigid, wandering or free-running.
Time is in seconds on the host's clock, power in watts, everything named `_ms` in milliseconds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
GRID_S = 1e-4
"""Step of the grid that holds the true power."""
MARGIN_S = 2.5
"""True power before the first and after the last reading, so that every kernel finds its past."""


@dataclass(frozen=True)
class Truth:
    """What was planted. `width_ms` is the box, twice the time constant of a low-pass, twice the mean lag of a
    trailing mean, and 0 without averaging. `delay_ms` is the stamp at which a value appears less the end of its
    kernel. `offset_w` is against the meter, whose own zero error is part of it; `gain` and `offset_w` mean
    reading = gain * power + offset. `recorded_period_ms` is the clock's mean in this recording.
    """

    seed: int
    kernel: str
    width_ms: float
    recorded_period_ms: float
    gain: float
    offset_w: float
    delay_ms: float


@dataclass(frozen=True)
class Recording:
    """What a laboratory records: pairs of (time, value); `power` is the truth on a grid and never written."""

    truth: Truth
    readings: tuple[Array, Array]
    load: tuple[Array, Array]
    meter: tuple[Array, Array] | None
    power: tuple[Array, Array]

    def write(self, folder):
        """Write the recording in the collector's formats; return the paths under `readings`, `load`, `reference`."""
        tables = {"readings": ("R.csv", "power_w", self.readings), "load": ("L.csv", "level", self.load)}
        if self.meter is not None:
            tables["reference"] = ("P.csv", "power_w", self.meter)
        paths = {}
        for name, (file, column, values) in tables.items():
            paths[name] = folder / file
            np.savetxt(paths[name], np.stack(values, 1), "%.6f,%.3f", ",", header=f"t_s,{column}", comments="", encoding="utf8")
        return paths


def draw(seed, meter=False):
    """Draw the board, sensor, load and read path of `seed`; the same ones with and without a meter."""
    sensor_rng, board_rng, load_rng, read_rng, meter_rng = (np.random.default_rng([seed, stream]) for stream in range(5))
    sensor = _Sensor.drawn(sensor_rng)
    starts, ends = _plan(load_rng, sensor.period_s)
    last = ends[-1] + load_rng.uniform(0.3, 2.0)
    time, power = _board_power(board_rng, starts, ends, last)
    slots, updates = sensor.updates(sensor_rng, last)
    values = sensor.values(sensor_rng, updates, time, power)
    stamps, readings, early_s = _poll(read_rng, updates, values, last)
    zero = meter_rng.uniform(-1.0, 3.0)
    measured = _metered(meter_rng, time, power + zero, last) if meter else None
    edges = np.stack([starts, ends], 1).ravel()
    seen = (updates > 0) & (updates < last)
    recorded = np.polyfit(slots[seen], updates[seen], 1)[0]
    truth = Truth(
        seed=seed,
        kernel=sensor.kernel,
        width_ms=1e3 * sensor.width_s(),
        recorded_period_ms=1e3 * float(recorded),
        gain=sensor.gain,
        offset_w=sensor.offset_w - (sensor.gain * zero if meter else 0.0),
        delay_ms=1e3 * (sensor.lag_s - early_s),
    )
    levels = np.tile([1.0, 0.0], len(starts))
    return Recording(truth, (stamps, readings), (edges, levels), measured, (time, power))


# --------------------------------------------------------------------------------------------------------- the load


def _plan(rng, period_s):
    """Return starts and ends of the load's executions (s) by one of four plans."""
    plan = str(rng.choice(["set", "square", "locked", "blocks"], p=[0.45, 0.3, 0.1, 0.15]))
    if plan == "set":
        cycles = [(1.27 * period_s, 6.0), (2.3 * period_s, 4.0), (4.7 * period_s, 4.0), (6.0, 6.0)]
    elif plan == "blocks":
        length = rng.uniform(1.0, 4.0)
        cycles = [(length, length * rng.integers(1, 5))]
    elif plan == "square":
        cycles = [(period_s * rng.uniform(0.6, 5.3), rng.uniform(8.0, 12.0))]
    else:
        cycles = [(period_s * rng.uniform(2 / 3, 4 / 3), 8.0)]
    scatter = 0.0005 if plan == "locked" else 0.015
    halves = [np.full(2 * max(1, round(span / cycle)), cycle / 2) for cycle, span in cycles]
    lengths = np.concatenate(halves)
    lengths = lengths * (1 + scatter * rng.standard_normal(len(lengths)))
    edges = rng.uniform(0.5, 1.5) + np.concatenate([[0.0], np.cumsum(lengths)])
    return edges[0:-1:2], edges[1::2]


# -------------------------------------------------------------------------------------------------------- the board


def _board_power(rng, starts, ends, last):
    """Return the grid (s) and the true power on it (W) for executions stamped `starts`, `ends`."""
    idle, step = rng.uniform(50, 135), rng.uniform(60, 280)
    board = str(rng.choice(["at once", "late boost"]))
    at_once = rng.uniform(0.60, 0.75) if board == "late boost" else 1.0
    remembers_s = float(rng.choice([0.0, rng.uniform(0.02, 0.5)]))
    tail, tail_s, charge_s = rng.uniform(0.05, 0.20), rng.uniform(0.5, 2.0) / 3, rng.uniform(0.02, 0.5)
    ramp_s, creep = rng.uniform(0.02, 0.05), rng.uniform(0.02, 0.08)
    lag = rng.uniform(2e-4, 4.5e-4)
    begins = starts + lag + 5e-5 * rng.standard_normal(len(starts))
    finishes = ends + 5e-5 * rng.standard_normal(len(ends))
    time = np.arange(-MARGIN_S, last + MARGIN_S, GRID_S)
    shape, load = np.zeros(len(time)), np.zeros(len(time))
    boost, charge = 0.0, 0.0
    nexts = np.append(begins[1:], time[-1] + GRID_S)
    for begin, finish, following in zip(begins, finishes, nexts, strict=True):
        low, high, until = np.searchsorted(time, [begin, finish, following])
        since = time[low:high] - begin
        risen = np.clip(boost + np.maximum(0.0, since - (0.1 if boost == 0 else 0.0)) / 0.1, 0, 1)
        level = at_once + (1 - at_once) * risen
        if finish - begin > 0.5:
            level = level * np.clip(0.3 + 0.7 * (finish - time[low:high]) / ramp_s, 0.3, 1)
        shape[low:high], load[low:high] = level, 1.0
        charge = 1 - (1 - charge) * np.exp(-(finish - begin) / charge_s)
        shape[high:until] = tail * charge * np.exp(-(time[high:until] - finish) / tail_s)
        pause = following - finish
        charge *= np.exp(-pause / tail_s)
        boost = float(risen[-1]) * float(np.exp(-pause / remembers_s)) if remembers_s and len(risen) else 0.0
        boost = boost if boost > 0.05 else 0.0
    power = idle + step * (_first_order(shape, 1e-3) + creep * _first_order(load, 0.7))
    ripple = rng.uniform(0.01, 0.02) * np.sin(2 * np.pi * (rng.uniform(20, 150) * time + rng.uniform()))
    noise = _first_order(rng.standard_normal(len(time)), 3e-3) * np.sqrt(2 * 3e-3 / GRID_S)
    power += (power - idle) * ripple + rng.uniform(0.3, 1.5) * noise
    if rng.uniform() < 0.1:
        power = np.minimum(power, idle + step * rng.uniform(0.95, 1.05))
    return time, power


def _first_order(values, constant_s):
    """Pass values on the grid through a first-order low-pass of `constant_s`; the past before the grid is flat."""
    decay = GRID_S / constant_s
    block = max(1, min(len(values), int(20 / decay)))
    padded = np.concatenate([values, np.full(-len(values) % block, values[-1])]).reshape(-1, block)
    growth = np.exp(decay * np.arange(1, block + 1))
    inner = (1 - np.exp(-decay)) * np.cumsum(padded * growth, 1) / growth
    carry, carries = values[0], np.empty(len(padded))
    for row, end in enumerate(inner[:, -1]):
        carries[row] = carry
        carry = end + carry / growth[-1]
    return (inner + carries[:, None] / growth).ravel()[: len(values)]


# ------------------------------------------------------------------------------------------------------- the sensor


@dataclass(frozen=True)
class _Sensor:
    """One sensor. `constant_s` is the box or the time constant; `weights` are those of a trailing mean's slots."""

    kernel: str
    constant_s: float
    weights: Array
    period_s: float
    clock: str
    phase_s: float
    jitter_s: float
    gain: float
    offset_w: float
    lag_s: float
    quantum_w: float
    noise_w: float
    skips: float

    @classmethod
    def drawn(cls, rng):
        nominal_ms = float(rng.choice([15.41, 20.04, 31.0, 99.97, 101.2], p=[0.12, 0.16, 0.12, 0.3, 0.3]))
        slow = nominal_ms > 90
        kinds = ["boxcar", "low-pass", "none", "trailing-mean"]
        kernel = str(rng.choice(kinds, p=[0.45, 0.35, 0.08, 0.12] if slow else [0.5, 0.4, 0.1, 0.0]))
        constant_ms = {"boxcar": rng.choice([10, 20, 25, 100]), "low-pass": rng.choice([5, 12.5, 53])}.get(kernel, 0.0)
        equal = int(rng.integers(8, 10))
        rest, share = 1 - 0.0905 * equal, rng.uniform(0.1, 0.9)
        clocks = {15.41: "rigid", 20.04: "free-running", 31.0: "rigid", 99.97: "rigid", 101.2: "wandering"}
        return cls(
            kernel=kernel,
            constant_s=1e-3 * float(constant_ms) * rng.uniform(0.9, 1.1),
            weights=np.append(np.full(equal, 0.0905), [rest * share, rest * (1 - share)]),
            period_s=1e-3 * nominal_ms * (1 + rng.uniform(-3e-4, 3e-4)),
            clock=clocks[nominal_ms],
            phase_s=rng.uniform(0, 1e-3 * nominal_ms),
            jitter_s=rng.uniform(3e-4, 5e-4),
            gain=float(np.clip(rng.normal(1, 0.03), 0.87, 1.18)),
            offset_w=rng.uniform(-25, 16),
            lag_s=rng.uniform(0, 3e-3),
            quantum_w=0.01 if slow else 0.09,
            noise_w=1.0 if nominal_ms == 101.2 else rng.uniform(0.1, 0.3),
            skips=rng.uniform(0.001, 0.01),
        )

    def width_s(self):
        """Return the width that the truth states."""
        if self.kernel == "trailing-mean":
            return 2 * self.period_s * float(np.sum(self.weights * (np.arange(len(self.weights)) + 0.5)))
        return {"boxcar": 1.0, "low-pass": 2.0, "none": 0.0}[self.kernel] * self.constant_s

    def updates(self, rng, last):
        """Number the updates from just before 0 to past `last`; return numbers and times (s) of those not skipped."""
        count = int((last + 2 * self.period_s) / self.period_s) + 2
        if self.clock == "free-running":
            steps = self.period_s + 1e-3 * rng.standard_normal(count)
            pairs = np.flatnonzero(rng.uniform(size=count - 1) < 0.005)
            steps[pairs], steps[pairs + 1] = 0.65 * self.period_s, 1.65 * self.period_s + rng.normal(0, 1e-3, len(pairs))
            times = self.phase_s - self.period_s + np.cumsum(steps) - steps[0]
        else:
            times = self.phase_s + self.period_s * (np.arange(count) - 1)
            rms = 3.4e-3 if self.clock == "wandering" else 0.6e-3
            for cycle_s in (100.0, 130.0):
                times = times + rms * np.sin(2 * np.pi * (times / cycle_s + rng.uniform()))
            times = times + self.jitter_s * rng.standard_normal(count)
        kept = rng.uniform(size=count) >= self.skips
        kept[0] = True
        return np.flatnonzero(kept).astype(float), np.maximum.accumulate(times)[kept]

    def values(self, rng, updates, time, power):
        """Return the value (W) that each update publishes."""
        ends = updates - self.lag_s
        total = np.concatenate([[0.0], np.cumsum(power) * GRID_S])
        edges = np.append(time, time[-1] + GRID_S) - GRID_S / 2

        def boxed(end, width):
            return (np.interp(end, edges, total) - np.interp(end - width, edges, total)) / width

        if self.kernel == "boxcar":
            seen = boxed(ends, self.constant_s)
        elif self.kernel == "low-pass":
            seen = np.interp(ends, time, _first_order(power, self.constant_s))
        elif self.kernel == "none":
            seen = np.interp(ends, time, power)
        else:
            slots = [weight * boxed(ends - j * self.period_s, self.period_s) for j, weight in enumerate(self.weights)]
            seen = np.sum(slots, 0)
        raw = self.gain * seen + self.offset_w + self.noise_w * rng.standard_normal(len(ends))
        return np.round(raw / self.quantum_w) * self.quantum_w


# ------------------------------------------------------------------------------------------ the reader and the meter


def _poll(rng, updates, values, last):
    """Return each poll's stamp (s) and value (W), and the mean time (s) from stamp to read."""
    poll_ms = float(rng.choice([2.0, 5.0, 7.0, 8.0, 13.0]))
    gaps = poll_ms + rng.exponential(0.05 * poll_ms, int(last / poll_ms * 1e3) + 1)
    slow = rng.uniform(size=len(gaps))
    gaps = np.where(slow < 0.02, np.maximum(gaps, rng.uniform(poll_ms, 20, len(gaps))), gaps)
    gaps = np.where(slow > 0.9995, rng.uniform(30, 90, len(gaps)), gaps)
    reads = np.cumsum(gaps) * 1e-3
    reads = reads[(reads < last) & (reads > updates[0])]
    early = 1e-3 * (rng.uniform(0, 5) + rng.uniform(0, 1, len(reads)))
    stamps = reads - early
    if rng.uniform() < 0.5:
        stamps = np.floor(stamps * 1e3) / 1e3
    kept = np.append(True, np.diff(stamps) > 0)
    current = np.searchsorted(updates, reads, "right") - 1
    return stamps[kept], values[current][kept], float(np.mean((reads - stamps)[kept]))


def _metered(rng, time, power, last):
    """Return the meter's stamps (s) and power (W): its own clock, drifting rate, noise and one line of hum."""
    ticks = rng.choice([602, 637, 684, 739], int(4900 * last), p=[0.84, 0.08, 0.05, 0.03]).astype(float)
    ticks[703::704] = 953
    nominal = np.cumsum(ticks) / 2.935e6
    rate, drift = rng.uniform(2930, 2940) / 2935 - 1, rng.uniform(-2e-4, 2e-4)
    taken = nominal / (1 + rate + drift * (nominal / last - 0.5))
    taken, nominal = taken[taken < last], nominal[taken < last]
    hum = rng.uniform(0.3, 1.8) * np.sin(2 * np.pi * (rng.choice([77.0, 138.0]) * taken + rng.uniform()))
    seen = np.interp(taken, time, power) + hum + rng.uniform(1.5, 3.2) * rng.standard_normal(len(taken))
    return nominal + rng.normal(0, 1e-4), seen
