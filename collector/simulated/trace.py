"""True board power over time: exact exponentials between changes of the silicon's power.

The silicon's power is constant within a segment.  The board follows it through first-order lags in parallel
(regulators, boost, warming): p = Σ w_j x_j, x_j' = (P − x_j) / τ_j, Σ w_j = 1.  Energy and a low-pass sensor's
state have closed forms, so no time steps are needed.
"""

import math
from typing import Final

import numpy as np

from collector.simulated.profile import TransientProfile
from estimator.vocabulary.quantities import Array

LAGS: Final = 3
_START, _POWER, _ENERGY, _FILTERED = range(4)
_LAG = slice(4, 4 + LAGS)


def _decay(since_s: Array, times_s: Array | float) -> Array:
    """Share of a lag that is left after a time; before the start of the trace all of it."""
    result: Array = np.exp(-np.maximum(since_s, 0.0) / times_s)
    return result


class PowerTrace:
    """Board power since `start_s`, with the board at rest for long before.

    `filter_time_s` is the time constant of the sensor's low-pass, whose state is part of the trace.
    """

    def __init__(self, transient: TransientProfile, filter_time_s: float, start_s: float, power_w: float) -> None:
        self._weights = np.array([1.0 - transient.slow_share - transient.creep_share, transient.slow_share, transient.creep_share])
        self._times = np.array([transient.fast_time_s, transient.slow_time_s, transient.creep_time_s])
        self._filter_time_s = filter_time_s
        self._response = self._weights / (1.0 - filter_time_s / self._times)
        self._scalars = list(zip(self._weights.tolist(), self._times.tolist(), self._response.tolist(), strict=True))
        self._rows = np.zeros((1024, 4 + LAGS))
        self._last = [start_s, power_w, 0.0, power_w, *([power_w] * LAGS)]
        self._rows[0] = self._last
        self._count = 1
        self._end_s = start_s
        self._known_from_s = -math.inf

    @property
    def end_s(self) -> float:
        """The time up to which power is known [s]."""
        return self._end_s

    def extend(self, until_s: float, power_w: float) -> None:
        """Extends the trace from its end to `until_s` with the silicon at `power_w`."""
        last = self._last
        elapsed = self._end_s - last[_START]
        if elapsed > 0.0:
            if last[_POWER] != power_w:
                self._begin(last, elapsed, power_w)
        else:
            self._rows[self._count - 1, _POWER] = last[_POWER] = power_w
        self._end_s = until_s

    def _begin(self, last: list[float], elapsed: float, power_w: float) -> None:
        """Closes the last segment and opens the next with the current state of the lags and the filter."""
        settled, energy = last[_POWER], last[_ENERGY] + last[_POWER] * elapsed
        slow_filter = math.exp(-elapsed / self._filter_time_s)
        filtered = settled + (last[_FILTERED] - settled) * slow_filter
        lags = []
        for state, (weight, time_s, response) in zip(last[_LAG], self._scalars, strict=True):
            away = state - settled
            decay = math.exp(-elapsed / time_s)
            lags.append(settled + away * decay)
            energy += weight * away * time_s * (1.0 - decay)
            filtered += response * away * (decay - slow_filter)
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._last = [self._end_s, power_w, energy, filtered, *lags]
        self._rows[self._count] = self._last
        self._count += 1

    def forget(self, before_s: float) -> None:
        """Forget the trace before a time; energy keeps its origin."""
        known = self._rows[: self._count]
        first = max(int(np.searchsorted(known[:, _START], before_s, side="right")) - 1, 0)
        self._rows[: self._count - first] = known[first:].copy()
        self._count -= first
        self._known_from_s = before_s

    def _segments(self, time_s: Array) -> tuple[Array, Array, Array]:
        """Segment rows (n, ·), time since their start (n, 1), and the lags' distance from the settled power (n, LAGS).

        Raises ValueError for a forgotten time.
        """
        if len(time_s) and time_s.min() < self._known_from_s:
            raise ValueError(f"power at {time_s.min():g} s was given up; it is known from {self._known_from_s:g} s on")
        known = self._rows[: self._count]
        index = np.maximum(np.searchsorted(known[:, _START], time_s, side="right") - 1, 0)
        rows = known[index]
        return rows, (time_s - rows[:, _START])[:, None], rows[:, _LAG] - rows[:, _POWER, None]

    def power_w(self, time_s: Array) -> Array:
        """Board power [W], shape (n,)."""
        rows, since, away = self._segments(time_s)
        result: Array = rows[:, _POWER] + (self._weights * away * _decay(since, self._times)).sum(axis=1)
        return result

    def energy_j(self, time_s: Array) -> Array:
        """Energy since the start of the trace [J], shape (n,); before it, the board at rest."""
        rows, since, away = self._segments(time_s)
        lagged = (self._weights * self._times * away * (1.0 - _decay(since, self._times))).sum(axis=1)
        result: Array = rows[:, _ENERGY] + rows[:, _POWER] * since[:, 0] + lagged
        return result

    def filtered_w(self, time_s: Array) -> Array:
        """Board power behind the sensor's first-order low-pass [W], shape (n,)."""
        rows, since, away = self._segments(time_s)
        slow_filter = _decay(since, self._filter_time_s)
        lagged = (self._response * away * (_decay(since, self._times) - slow_filter)).sum(axis=1)
        result: Array = rows[:, _POWER] + (rows[:, _FILTERED] - rows[:, _POWER]) * slow_filter[:, 0] + lagged
        return result

    def stored_j(self) -> float:
        """Energy that the silicon has drawn and the board has not shown yet, at the end of the trace [J].

        ∫(P − x_j) dt = τ_j Δx_j, so its change is the difference of the two integrals.
        """
        last = self._rows[self._count - 1]
        decay = np.exp(-(self._end_s - last[_START]) / self._times)
        lags = last[_POWER] + (last[_LAG] - last[_POWER]) * decay
        return float((self._weights * self._times * lags).sum())
