"""What a load that switches on and off makes of a board's power, on a fine time grid."""

from dataclasses import dataclass
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
    """When a load ran, host time [s]: run i from `start_s[i]` to `end_s[i]`, ascending; shape (n,)."""

    start_s: Array
    end_s: Array

    @property
    def edges(self) -> int:
        """Number of edges."""
        return 2 * len(self.start_s)


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


def load_shapes(load: LoadStamps, until_s: float) -> LoadShapes:
    """The three shapes of a load, from LEAD_S before its first edge to LEAD_S after `until_s`."""
    origin = float(load.start_s[0]) - LEAD_S
    count = int((until_s + LEAD_S - origin) / BIN_S)
    count += -count % FOURIER_MULTIPLE
    level_sum = np.zeros(count + 1)
    grid = np.arange(count + 1) * BIN_S
    for start, end in zip(load.start_s - origin, load.end_s - origin, strict=True):
        level_sum += np.clip(grid - start, 0.0, end - start)
    level = np.diff(level_sum) / BIN_S
    spectrum = np.fft.rfft(level)
    fast = spectrum * pole(count, LAUNCH_RISE_S)
    slow = fast * pole(count, SLOW_RISE_S) ** 2
    creep = fast * pole(count, CREEP_S)
    return LoadShapes(origin_s=origin, shapes=np.fft.irfft(np.stack([fast, slow, creep]), n=count, axis=1))


def pole(count: int, time_constant_s: float) -> ComplexArray:
    """Transfer function of a first-order low-pass on the grid, for `rfft` of `count` bins."""
    keep = np.exp(-BIN_S / time_constant_s)
    transfer: ComplexArray = (1.0 - keep) / (1.0 - keep * _delay_of_a_bin(count))
    return transfer


@lru_cache(maxsize=4)
def _delay_of_a_bin(count: int) -> ComplexArray:
    """exp(−iω) for `rfft` of `count` bins."""
    turn: ComplexArray = np.exp(-2j * np.pi * np.fft.rfftfreq(count))
    return turn
