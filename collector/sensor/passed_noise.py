"""How much of a meter's own noise each averaging passes.

A wide averaging loses the meter's noise and a narrow one keeps it, so a wide one predicts readings better whatever the sensor does: one
that does not average passes for a boxcar of some milliseconds.  Averagings are therefore compared as if all of them passed as much.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from collector.sensor.meter_noise import MeterNoise
from collector.sensor.sources import averaged_by, meter_source
from estimator.quantities import Array

JITTER_NODE: Final = 3.0**0.5
JITTER_WEIGHTS: Final = (1.0 / 6.0, 2.0 / 3.0, 1.0 / 6.0)
"""Gauss-Hermite quadrature of a normal distribution at −√3, 0 and √3 standard deviations, exact to the fifth power."""
WIDTHS_S: Final = np.geomspace(4e-4, 2e-2, 14)
"""A longer averaging passes noise by its length alone."""
NODES_S: Final = np.array([0.0, 3e-4, 6e-4, 1.2e-3, 2.5e-3, 6e-3, 1.5e-2])
SAMPLES: Final = 1 << 14
ENDS: Final = 10_000
MARGIN: Final = 0.05
SPACING_DECIMALS: Final = 6


class PassedNoise:
    """Variance of a meter's noise behind one kernel, by its width (boxcar W, low-pass 2τ) and its jitter [W²]."""

    def __init__(self, kernel: str, noise: MeterNoise) -> None:
        self._power_w2 = noise.sample_w**2
        spacing_s = round(noise.spacing_s, SPACING_DECIMALS)
        self._table = _passed(kernel, spacing_s) if self._power_w2 > 0.0 and spacing_s > 0.0 else np.zeros((len(WIDTHS_S), len(NODES_S)))

    def variance_w2(self, width_s: float, jitter_s: float) -> float:
        """What is left in the mean over window ends that jitter by `jitter_s` of a kernel of this width [W²]."""
        last = float(WIDTHS_S[-1])
        place = float(np.interp(np.log(min(width_s, last)), np.log(WIDTHS_S), np.arange(len(WIDTHS_S))))
        row = min(int(place), len(WIDTHS_S) - 2)
        at_width = self._table[row] + (place - row) * (self._table[row + 1] - self._table[row])
        return self._power_w2 * min(1.0, last / width_s) * float(np.interp(JITTER_NODE * jitter_s, NODES_S, at_width))


@lru_cache(maxsize=8)
def _passed(kernel: str, spacing_s: float) -> Array:
    """Share of the variance of samples so far apart that is left behind a kernel of each of WIDTHS_S, with jitter of each of NODES_S.

    Noise with all frequencies equally strong goes the way of a meter's samples; its phases do not matter.
    """
    phases = np.exp(2j * np.pi * np.random.default_rng(0).random(SAMPLES // 2 + 1))
    noise = np.fft.irfft(phases, n=SAMPLES)
    samples: Array = noise / float(noise.std())
    time_s: Array = spacing_s * np.arange(SAMPLES, dtype=np.float64)
    respond = averaged_by(kernel, meter_source(time_s, samples))
    ends = time_s[-1] * np.linspace(MARGIN, 1.0 - MARGIN, ENDS)
    left = np.empty((len(WIDTHS_S), len(NODES_S)))
    for row, width in enumerate(WIDTHS_S.tolist()):
        if row and kernel == "none":
            left[row] = left[0]
            continue
        for column, node in enumerate(NODES_S.tolist()):
            averaged = respond(0.5 * width if kernel == "low-pass" else width, ends + node * np.array([[-1.0], [0.0], [1.0]]))
            left[row, column] = np.var(np.tensordot(JITTER_WEIGHTS, averaged, axes=1))
    return left
