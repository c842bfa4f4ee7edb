"""The response of a sensor to power: the running operator h, exact within cells, with its derivatives in width and time.

A reading is level · ∫ h(t_i − delay − t) p(t) dt + offset.  h is a point (1 ms around the moment), a boxcar of width W (a trailing
mean is a wide one) or a first-order low-pass of time constant τ.  `width_s` is W or 2τ everywhere: both delay a ramp by half of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.sensing.board_power import GRID_S, LAUNCH_RISE_S, Signal, low_passed
from collector.sensing.calibration import ResponseKernel
from estimator.vocabulary.quantities import Array

KERNELS: Final[tuple[ResponseKernel, ...]] = ("none", "boxcar", "low-pass")
POINT_S: Final = 1e-3
"""Width of the point response [s]: the response of a sensor that does not average."""
SLOPE_S: Final = 4e-4
"""Half the step of a derivative in time [s]: a meter's noise from sample to sample must not become slope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorResponse:
    """A known response: kind, `width_s` (W or 2τ) and `delay_s` from the end of the averaging to the stamp, with standard errors [s]."""

    kernel: ResponseKernel
    width_s: float
    delay_s: float
    width_std_s: float = 0.0
    delay_std_s: float = 0.0

    @property
    def lag_s(self) -> float:
        """Mean age of the power in a reading [s]."""
        return 0.5 * self.width_s + self.delay_s

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
    return np.asarray(level + (state[cell - 1] - level) * np.exp(-(place - cell) * GRID_S / tau_s))


def seen_and_slopes(signal: Signal, kernel: ResponseKernel, width_s: float, end_s: Array) -> tuple[Array, Array, Array]:
    """Readings (n,), their derivatives in the log of the width, and in the averaging's end [1/s]."""
    if kernel == "low-pass":
        tau_s = 0.5 * width_s
        state = low_passed(signal.value, tau_s)
        here = _between(signal, state, tau_s, end_s)
        again = low_passed(state, tau_s)
        wider = np.interp(end_s, signal.start_s + GRID_S * np.arange(1, len(state) + 1), again) - here
        step = _between(signal, state, tau_s, end_s + SLOPE_S) - _between(signal, state, tau_s, end_s - SLOPE_S)
        return here, wider, step / (2.0 * SLOPE_S)
    here = seen(signal, kernel, width_s, end_s)
    if kernel == "none":
        width_s, end_s = POINT_S, end_s + 0.5 * POINT_S
    first, last = ((signal.at(time + SLOPE_S) - signal.at(time - SLOPE_S)) / (2.0 * SLOPE_S) for time in (end_s - width_s, end_s))
    return here, first - here, (last - first) / width_s


def columns(signals: Sequence[Signal], kernel: ResponseKernel, width_s: float, end_s: Array) -> Array:
    """Design matrix (..., n, 1 + signals): ones, then every signal through the operator."""
    return np.stack([np.ones_like(end_s), *(seen(one, kernel, width_s, end_s) for one in signals)], axis=-1)


def run_shares(response: SensorResponse, start_s: Array, end_s: Array, bins: int, time_s: Array) -> Array:
    """Share of readings at `time_s` (n,) that bin m of any run fills, shape (n, bins).

    Runs from `start_s` to `end_s` (j,), ascending and apart, have `bins` equal parts; in each part power follows immediately
    through a rise of LAUNCH_RISE_S.  Rise and response together are two poles, or a pole's integral: exact either way.
    """
    until, rise = time_s - response.delay_s, LAUNCH_RISE_S
    if response.kernel == "low-pass":
        tau = 0.5 * response.width_s
        if abs(tau / rise - 1.0) < 0.01:
            tau = 1.01 * rise
        slow, fast = (_faded(start_s, end_s, bins, until, constant) for constant in (tau, rise))
        return np.asarray((tau * slow - rise * fast) / (tau - rise))
    width = response.width_s
    if response.kernel == "none":
        width, until = POINT_S, until + 0.5 * POINT_S
    both = np.concatenate([until, until - width])
    drawn = time_in_bins(start_s, end_s, bins, both) - rise * _faded(start_s, end_s, bins, both, rise)
    return np.asarray((drawn[: len(until)] - drawn[len(until) :]) / width)


def drawn_in_bins(start_s: Array, end_s: Array, bins: int, time_s: Array) -> Array:
    """Integral of each bin's power before `time_s` (n,) per watt of it [s], shape (n, bins); power follows through LAUNCH_RISE_S."""
    spent = time_in_bins(start_s, end_s, bins, time_s)
    return np.asarray(spent - LAUNCH_RISE_S * _faded(start_s, end_s, bins, time_s, LAUNCH_RISE_S))


def time_in_bins(start_s: Array, end_s: Array, bins: int, time_s: Array) -> Array:
    """Time spent in each bin of the runs before `time_s` (n,) [s], shape (n, bins)."""
    length = np.maximum(end_s - start_s, 1e-9)
    whole = np.concatenate([[0.0], np.cumsum(length)]) / bins
    current = np.maximum(np.searchsorted(start_s, time_s, side="right") - 1, 0)
    place = np.clip((time_s - start_s[current]) / length[current], 0.0, 1.0) * bins
    within = np.clip(place[:, None] - np.arange(bins), 0.0, 1.0) * (length[current] / bins)[:, None]
    return np.asarray(whole[current][:, None] + within)


def _faded(start_s: Array, end_s: Array, bins: int, time_s: Array, tau_s: float) -> Array:
    """Integral of e^(−(t − x)/τ)/τ over the part of each bin before t = `time_s` (n,), shape (n, bins)."""
    edges = start_s[:, None] + (end_s - start_s)[:, None] * np.linspace(0.0, 1.0, bins + 1)
    following = np.append(start_s[1:], end_s[-1])
    added = np.diff(np.exp((edges - following[:, None]) / tau_s), axis=1)
    keep = np.exp((start_s - following) / tau_s)
    state = np.zeros((len(start_s), bins))
    for j in range(len(start_s) - 1):
        state[j + 1] = keep[j] * state[j] + added[j]
    index = np.searchsorted(start_s, time_s, side="right") - 1
    current = np.maximum(index, 0)
    reached = np.minimum(edges[current], time_s[:, None])
    now = np.diff(np.exp((reached - time_s[:, None]) / tau_s), axis=1)
    faded = np.exp(np.minimum(start_s[current] - time_s, 0.0) / tau_s)[:, None] * state[current] + now
    return np.where(index[:, None] >= 0, faded, 0.0)
