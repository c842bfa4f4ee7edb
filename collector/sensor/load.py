"""What a load that switches on and off makes of a board's power, on a fine time grid."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from estimator.quantities import Array

ComplexArray = NDArray[np.complex128]

BIN_S: Final = 5e-4
"""Grid of the load's shape; far below any averaging window."""
LAUNCH_RISE_S: Final = 1.1e-3
"""First-order rise of the power that follows a launch at once (launch lag 0.3 ms and blocks filling up)."""
SLOW_RISE_S: Final = 0.05
"""Two poles for the part that follows later: clock boost, voltage regulation."""
CREEP_S: Final = 0.8
"""One pole for what creeps: leakage with temperature, the tail after a load."""
FOURIER_MULTIPLE: Final = 1024
"""Grids are a multiple of this long, which keeps Fourier transforms fast."""
LEAD_S: Final = 2.5
"""Rest added before and after, so that nothing wraps around."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStamps:
    """When a load ran, host time [s]: run i from `start_s[i]` to `end_s[i]`, ascending; shape (n,).

    `level` are the runs' shares of the full load, all 1 where it is left out.  Nothing is known of the load after
    `known_until_s`, nor before `known_from_s`.
    """

    start_s: Array
    end_s: Array
    level: Array | None = None
    known_until_s: float = float("inf")
    known_from_s: float = float("-inf")

    @property
    def edges(self) -> int:
        """Number of edges: adjoining runs share one."""
        if not len(self.start_s):
            return 0
        return 2 * len(self.start_s) - int(np.count_nonzero(self.start_s[1:] <= self.end_s[:-1]))

    @property
    def levels(self) -> Array:
        """The runs' shares of the full load, shape (n,)."""
        return np.ones(len(self.start_s)) if self.level is None else self.level

    def moved(self, by_s: float) -> "LoadStamps":
        """The same with all stamps later by so much."""
        return replace(
            self,
            start_s=self.start_s + by_s,
            end_s=self.end_s + by_s,
            known_until_s=self.known_until_s + by_s,
            known_from_s=self.known_from_s + by_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShapes:
    """The load on a grid from `origin_s` in steps of BIN_S: shares of full power, shape (3, n).

    Rows: power that follows at once, with the slow rise, creeping.
    """

    origin_s: float
    shapes: Array

    def spectrum(self) -> ComplexArray:
        """Fourier transform of the shapes, shape (3, n / 2 + 1)."""
        spectrum: ComplexArray = np.fft.rfft(self.shapes, axis=1)
        return spectrum


@dataclass(frozen=True, slots=True, kw_only=True)
class LatePart:
    """A share of the power that would follow at once and follows with a time constant instead, up and down."""

    share: float
    time_s: float


def followed_late(shapes: LoadShapes, late: LatePart) -> LoadShapes:
    """The shapes of a load on a board with a late part: the first row is that of all that follows at once or with it."""
    fast, *others = shapes.shapes
    later = np.fft.irfft(np.fft.rfft(fast) * pole(len(fast), late.time_s), n=len(fast))
    return replace(shapes, shapes=np.stack([fast + late.share * (later - fast), *others]))


def load_shapes(load: LoadStamps, until_s: float) -> LoadShapes:
    """The three shapes of a load, from LEAD_S before its first edge to LEAD_S after `until_s`."""
    origin = float(load.start_s[0]) - LEAD_S
    count = int((until_s + LEAD_S - origin) / BIN_S)
    count += -count % FOURIER_MULTIPLE
    level = np.diff(np.interp(origin + np.arange(count + 1) * BIN_S, *load_integral(load))) / BIN_S
    spectrum = np.fft.rfft(level)
    fast = spectrum * pole(count, LAUNCH_RISE_S)
    slow = fast * pole(count, SLOW_RISE_S) ** 2
    creep = fast * pole(count, CREEP_S)
    return LoadShapes(origin_s=origin, shapes=np.fft.irfft(np.stack([fast, slow, creep]), n=count, axis=1))


def load_integral(load: LoadStamps) -> tuple[Array, Array]:
    """Integral of the level over time at its corners: times [s] and values, ascending."""
    times = np.empty(2 * len(load.start_s))
    times[0::2], times[1::2] = load.start_s, load.end_s
    values = np.zeros(len(times))
    values[1::2] = np.cumsum(load.levels * (load.end_s - load.start_s))
    values[2::2] = values[1:-1:2]
    return times, values


def pole(count: int, time_constant_s: float) -> ComplexArray:
    """Transfer function of a first-order low-pass on the grid, for `rfft` of `count` bins."""
    keep = np.exp(-BIN_S / time_constant_s)
    transfer: ComplexArray = (1.0 - keep) / (1.0 - keep * _delay_of_a_bin(count))
    return transfer


@lru_cache(maxsize=4)
def sharpened(count: int) -> Array:
    """What undoes the smoothing by the grid, for `rfft` of `count` bins: means over bins are taken, and held in between.

    Without it a low-pass of 10 ms, seen under a load of 10 ms, comes out 1 % short.
    """
    gain: Array = np.sinc(np.fft.rfftfreq(count)) ** -2
    return gain


@lru_cache(maxsize=4)
def _delay_of_a_bin(count: int) -> ComplexArray:
    """exp(−iω) for `rfft` of `count` bins."""
    turn: ComplexArray = np.exp(-2j * np.pi * np.fft.rfftfreq(count))
    return turn
