"""Signals on a fine time grid: the power that a board may draw under a load, or that an external meter measured.

Times are host seconds, powers watts.  A `Signal` is constant within cells of GRID_S; every column of every regression in this
package is a signal, or a part of one, filtered by a sensor's response.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.errors import SensorError
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

GRID_S: Final = 5e-4
"""Cell of a signal [s]; far below any averaging window."""
LEAD_S: Final = 3.0
"""A signal is held constant for this long before its start [s], so that the longest window is filled."""
LAUNCH_LAG_S: Final = 3e-4
"""Delay from a launch's stamp to its power [s]: 0.2 to 0.45 ms on two boards (sensor.md 6)."""
LAUNCH_RISE_S: Final = 1.1e-3
"""First-order rise of the power that follows a launch without further delay [s] (95 % in 3 ms, sensor.md 6)."""
LATE_POLE_S, LATE_POLES_S = 0.08, 0.05
"""Time constants of the other delayed parts [s]: one pole of the first, or two poles of the second.

The records of two boards do not determine the form of these parts; each may be present.
"""
CREEP_S: Final = 0.8
"""Time constant of slow creep [s]: leakage with temperature, the tail after a load (sensor.md 3.2)."""
STEADY_CELLS, STEADY_VARIANCE = 21, 2.0
"""Power is steady over this many cells if their variance is below this multiple of the meter noise's variance."""


@frozen
class LoadStamps:
    """When a load ran, host time [s]: run i from `start_s[i]` to `end_s[i]`, ascending; shape (n,).

    `level` holds the runs' shares of the full load; None stands for 1.  The load is unknown before `known_from_s` and after
    `known_until_s`.
    """

    start_s: Array
    end_s: Array
    level: Array | None = None
    known_until_s: float = float("inf")
    known_from_s: float = float("-inf")

    @property
    def edges(self) -> int:
        """Number of edges; adjoining runs share one."""
        return 2 * len(self.start_s) - int(np.count_nonzero(self.start_s[1:] <= self.end_s[:-1]))

    @property
    def levels(self) -> Array:
        """The runs' shares of the full load, shape (n,)."""
        return np.ones(len(self.start_s)) if self.level is None else self.level

    @property
    def length_s(self) -> Array:
        """Lengths of the runs [s], shape (n,)."""
        return self.end_s - self.start_s

    @property
    def alike(self) -> bool:
        """Whether the runs have one level and about one length, so that they can be folded."""
        length = self.length_s
        # Runs have no common profile if their lengths scatter by more than this (standard deviation over mean).
        return float(np.std(length)) <= 0.2 * float(np.mean(length)) and float(np.ptp(self.levels)) == 0.0

    def part(self, first: int, last: int) -> "LoadStamps":
        """Runs `first` to `last` - 1; their neighbours bound the known time."""
        return LoadStamps(
            start_s=self.start_s[first:last],
            end_s=self.end_s[first:last],
            level=None if self.level is None else self.level[first:last],
            known_until_s=min([self.known_until_s, *self.start_s[last:].tolist()]),
            known_from_s=max([self.known_from_s, *self.end_s[:first].tolist()]),
        )

    def moved(self, by_s: float) -> "LoadStamps":
        """The same stamps, later by `by_s`."""
        times = ("start_s", "end_s", "known_until_s", "known_from_s")
        return replace(self, **{name: getattr(self, name) + by_s for name in times})


@dataclass(frozen=True, slots=True)
class Signal:
    """Cells of GRID_S from `start_s`: `value` (n,) and its integral `area` (n + 1,) [value · s]."""

    start_s: float
    value: Array
    area: Array

    def at(self, time_s: Array) -> Array:
        """Integral from the start to `time_s` (any shape) [value · s]."""
        place = np.clip((time_s - self.start_s) / GRID_S, 0.0, len(self.value) - 1e-6)
        cell = place.astype(np.int64)
        return self.area[cell] + (place - cell) * GRID_S * self.value[cell]

    def mean(self, time_s: Array, width_s: float) -> Array:
        """Mean over the `width_s` before each time (any shape)."""
        return (self.at(time_s) - self.at(time_s - width_s)) / width_s


def signal_of(start_s: float, value: Array) -> Signal:
    """A signal of these cells."""
    return Signal(start_s, value, np.concatenate([[0.0], np.cumsum(value) * GRID_S]))


def integrated(time_s: Array, value: Array) -> Array:
    """Integral of samples (n,) joined by lines, from the first one to each [value · s], shape (n,)."""
    return np.concatenate([[0.0], np.cumsum(0.5 * (value[1:] + value[:-1]) * np.diff(time_s))])


def low_passed(value: Array, tau_s: float) -> Array:
    """Cells `value` (n,) through a first-order low-pass that starts settled: its state at the end of each cell."""
    from scipy.signal import lfilter  # half a second to import, and most processes filter nothing

    keep = np.exp(-GRID_S / tau_s)
    return np.asarray(lfilter([1.0 - keep], [1.0, -keep], value, zi=[keep * value[0]])[0])


def smoothed(value: Array, tau_s: float) -> Array:
    """The same low-pass as the mean over each cell, shape (n,): a signal's cells again."""
    state = low_passed(value, tau_s)
    return value - tau_s / GRID_S * np.diff(state, prepend=value[0])


def meter_signal(time_s: Array, power_w: Array) -> Signal:
    """Signal of an external meter's samples (n,), joined by lines; before them, the mean of its first 50 ms.

    Raises SensorError for a record that is too short to be a reference, and for one that ends at the meter's range: there, and only there,
    samples repeat.
    """
    if len(time_s) < 100:
        raise SensorError(f"the reference has {len(time_s)} samples; at least 100 are needed")
    top, same = power_w[:-1] == power_w.max(), np.diff(power_w) == 0.0
    if np.count_nonzero(top & same) > 2 and np.mean(same[top]) > 0.5 > np.mean([*same[~top], False]):
        told = f"its largest value, {power_w.max():.6g} W, comes {np.count_nonzero(top)} times"
        raise SensorError(f"the reference is cut off at the end of the meter's range: {told}; choose a larger range")
    area = integrated(time_s, power_w)
    # Longest stretch of a record that is used [s]: responses show within seconds, and memory stays bounded.
    cells = int((min(float(time_s[-1]), float(time_s[0]) + 240.0) - time_s[0]) / GRID_S)
    value = _quiet(np.diff(np.interp(time_s[0] + GRID_S * np.arange(cells + 1), time_s, area)) / GRID_S)
    lead = np.full(int(LEAD_S / GRID_S), value[: int(0.05 / GRID_S)].mean())
    return signal_of(float(time_s[0]) - GRID_S * len(lead), np.concatenate([lead, value]))


def _quiet(value: Array) -> Array:
    """A meter's cells (n,) without noise where the power is steady, so that noise does not favour a wide response over a narrow one."""
    half = STEADY_CELLS // 2
    padded = np.pad(value - value.mean(), half, mode="edge")
    mean, square = (np.convolve(one, np.full(STEADY_CELLS, 1.0 / STEADY_CELLS), mode="valid") for one in (padded, padded**2))
    noise = float(np.median(np.abs(np.diff(value)))) / (0.6745 * np.sqrt(2.0))
    return np.where(square - mean**2 < STEADY_VARIANCE * noise**2, mean + value.mean(), value)


def load_signals(load: LoadStamps, start_s: float, end_s: float) -> tuple[Signal, ...]:
    """Parts of a board's power under a load: its fast rise, delayed parts of the known forms, and creep; 1 is the full load."""
    origin_s = start_s - LEAD_S
    cells = int(np.ceil((end_s - origin_s) / GRID_S))
    level = run_cells(load.start_s + LAUNCH_LAG_S, load.end_s + LAUNCH_LAG_S, load.levels, origin_s, cells)
    fast = smoothed(level, LAUNCH_RISE_S)
    middle = origin_s + GRID_S * (np.arange(cells) + 0.5) - LAUNCH_LAG_S
    run = np.searchsorted(load.start_s, middle, side="right") - 1
    age = np.where(run >= 0, middle - load.start_s[np.maximum(run, 0)], 0.0)
    # A clock boost begins evenly between 0.1 and 0.2 s after the launch, and ends with the load (sensor.md 3.2).
    boost = smoothed(level * np.clip(age / 0.1 - 1.0, 0.0, 1.0), LAUNCH_RISE_S)
    two_poles = smoothed(smoothed(fast, LATE_POLES_S), LATE_POLES_S)
    parts = (fast, boost, smoothed(fast, LATE_POLE_S), two_poles, smoothed(fast, CREEP_S))
    return tuple(signal_of(origin_s, part) for part in parts)


def run_cells(start_s: Array, end_s: Array, level: Array, origin_s: float, count: int) -> Array:
    """Level of runs (j,), ascending and apart, in `count` cells from `origin_s`; 0 between them."""
    until = np.cumsum(level * (end_s - start_s))
    area = np.column_stack([until - level * (end_s - start_s), until])
    node = origin_s + GRID_S * np.arange(count + 1)
    return np.asarray(np.diff(np.interp(node, np.column_stack([start_s, end_s]).ravel(), area.ravel())) / GRID_S)
