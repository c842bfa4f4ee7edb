"""True board power over time: exact exponentials between changes of the silicon's power.

The silicon's power is constant within a segment.  The board follows it through first-order lags in parallel
(regulators, boost, warming): p = Σ w_j x_j, x_j' = (P − x_j) / τ_j, Σ w_j = 1.  Energy and a low-pass sensor's
state have closed forms, so no time steps are needed.
"""

import numpy as np

from collector.simulated.profile import TransientProfile
from estimator.vocabulary.quantities import Array

_START, _POWER, _ENERGY, _FILTERED, _LAGS = range(5)


class PowerTrace:
    """Board power since `start_s`, with the board at rest for long before.

    `filter_time_s` is the time constant of the sensor's low-pass, whose state is part of the trace.
    """

    def __init__(self, transient: TransientProfile, filter_time_s: float, start_s: float, power_w: float) -> None:
        self._weights = np.array([1.0 - transient.slow_share - transient.creep_share, transient.slow_share, transient.creep_share])
        self._times = np.array([transient.fast_time_s, transient.slow_time_s, transient.creep_time_s])
        self._filter_time_s = filter_time_s
        self._response = self._weights / (1.0 - filter_time_s / self._times)
        self._rows = np.zeros((1024, _LAGS + len(self._times)))
        self._rows[0] = start_s, power_w, 0.0, power_w, power_w, power_w, power_w
        self._count = 1
        self.end_s = start_s
        """The time up to which power is known [s]."""

    def extend(self, until_s: float, power_w: float) -> None:
        """Extends the trace from its end to `until_s` with the silicon at `power_w`."""
        if self.end_s == self._rows[self._count - 1, _START]:
            self._rows[self._count - 1, _POWER] = power_w
        elif self._rows[self._count - 1, _POWER] != power_w:
            if self._count == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._rows[self._count] = self._states(np.array([self.end_s]))
            self._rows[self._count, :_ENERGY] = self.end_s, power_w
            self._count += 1
        self.end_s = until_s

    def _states(self, time_s: Array) -> Array:
        """State at each time: start and power of its segment, energy, filtered power and lags; shape (n, ·)."""
        known = self._rows[: self._count]
        states = known[np.maximum(np.searchsorted(known[:, _START], time_s, side="right") - 1, 0)]
        power, since = states[:, _POWER, None], (time_s - states[:, _START])[:, None]
        away, past = states[:, _LAGS:] - power, np.maximum(since, 0.0)  # before the trace the board was at rest
        decay, slow_filter = np.exp(-past / self._times), np.exp(-past / self._filter_time_s)
        lagged = (self._response * away * (decay - slow_filter)).sum(axis=1)
        states[:, _ENERGY] += (power * since)[:, 0] + (self._weights * self._times * away * (1.0 - decay)).sum(axis=1)
        states[:, _FILTERED] = power[:, 0] + (states[:, _FILTERED] - power[:, 0]) * slow_filter[:, 0] + lagged
        states[:, _LAGS:] = power + away * decay
        return states

    def energy_j(self, time_s: Array) -> Array:
        """Energy since the start of the trace [J], shape (n,); before it, the board at rest."""
        return self._states(time_s)[:, _ENERGY]

    def filtered_w(self, time_s: Array) -> Array:
        """Board power behind the sensor's first-order low-pass [W], shape (n,)."""
        return self._states(time_s)[:, _FILTERED]
