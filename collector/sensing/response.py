"""The response of a sensor to power: the running operator h, exact within cells, with its derivatives in width and time.

A reading is level · ∫ h(t_i − delay − t) p(t) dt + offset.  h is a point (1 ms around the moment), a boxcar of width W (a trailing
mean is a wide one) or a first-order low-pass of time constant τ.  `width_s` is W or 2τ everywhere: both delay a ramp by half of it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from collector.sensing.board_power import GRID_S, Signal, low_passed
from collector.sensing.calibration import ResponseKernel
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

KERNELS: Final[tuple[ResponseKernel, ...]] = ("none", "boxcar", "low-pass")
POINT_S: Final = 1e-3
"""Width of the point response [s]: the response of a sensor that does not average."""
SLOPE_S: Final = 4e-4
"""Half the step of a derivative in time [s]: a meter's noise from sample to sample must not become slope."""


@frozen
class SensorResponse:
    """A known response: kind, `width_s` (W or 2τ) and `delay_s` from the end of the averaging to the stamp, with standard errors [s]."""

    kernel: ResponseKernel
    width_s: float
    delay_s: float
    width_std_s: float = 0.0
    delay_std_s: float = 0.0

    @property
    def reach_s(self) -> float:
        """Age beyond which power no longer counts [s]."""
        # Number of widths after which a low-pass has forgotten its input (e⁻⁶).
        return self.width_s * (3.0 if self.kernel == "low-pass" else 1.0) + self.delay_s

    def moved(self, *, width_s: float = 0.0, delay_s: float = 0.0) -> "SensorResponse":
        """The same response with width and delay changed by these amounts."""
        return replace(self, width_s=max(self.width_s + width_s, POINT_S), delay_s=self.delay_s + delay_s)


def seen(signal: Signal, kernel: ResponseKernel, width_s: float, end_s: Array) -> Array:
    """Readings with averaging ends `end_s` (any shape)."""
    if kernel == "low-pass":
        return _between(signal, low_passed(signal.value, 0.5 * width_s), 0.5 * width_s, end_s)
    if kernel == "none":
        return signal.mean(end_s + 0.5 * POINT_S, POINT_S)
    return signal.mean(end_s, width_s)


def _between(signal: Signal, state: Array, tau_s: float, end_s: Array) -> Array:
    """A low-pass's output within cells, from its `state` at their ends."""
    place = np.clip((end_s - signal.start_s) / GRID_S, 1.0, len(signal.value) - 1e-6)
    cell = place.astype(np.int64)
    level = signal.value[cell]
    return level + (state[cell - 1] - level) * np.exp(-(place - cell) * GRID_S / tau_s)


def seen_and_slopes(signal: Signal, kernel: ResponseKernel, width_s: float, end_s: Array) -> tuple[Array, Array, Array]:
    """Readings (n,), their derivatives in the log of the width, and in the averaging's end [1/s]."""
    if kernel == "low-pass":
        tau_s = 0.5 * width_s
        state = low_passed(signal.value, tau_s)
        here, before, after = (_between(signal, state, tau_s, end_s + away_s) for away_s in (0.0, -SLOPE_S, SLOPE_S))
        again = low_passed(state, tau_s)
        wider = np.interp(end_s, signal.start_s + GRID_S * np.arange(1, len(state) + 1), again) - here
        return here, wider, (after - before) / (2.0 * SLOPE_S)
    here = seen(signal, kernel, width_s, end_s)
    if kernel == "none":
        width_s, end_s = POINT_S, end_s + 0.5 * POINT_S
    first, last = ((signal.at(time + SLOPE_S) - signal.at(time - SLOPE_S)) / (2.0 * SLOPE_S) for time in (end_s - width_s, end_s))
    return here, first - here, (last - first) / width_s


def columns(signals: Sequence[Signal], kernel: ResponseKernel, width_s: float, end_s: Array) -> Array:
    """Design matrix (..., n, 1 + signals): ones, then every signal through the operator."""
    return np.stack([np.ones_like(end_s), *(seen(one, kernel, width_s, end_s) for one in signals)], axis=-1)
