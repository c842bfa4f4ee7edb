"""A meter's clock against the host's, by the edges of a load that both saw.

Every launch edge is searched in the meter's power, following what the edges before it said; a line through their lags
gives the meter's offset and the error of its rate.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensor.load import LoadStamps
from collector.sensor.sources import LAUNCH_LAG_S
from estimator.quantities import Array

MIN_EDGES: Final = 6
MIN_SPAN_S: Final = 3.0
"""Fewer edges, or within a shorter time, tell no rate."""
MOST_EDGES: Final = 4000
GRID_S: Final = 2.5e-4
SIDE_S: Final = 3e-3
"""Mean power before and after a possible edge is taken over this long."""
FIRST_REACH_S: Final = 0.06
FIRST_SPAN_S: Final = 1.0
"""The first starts are searched together: in so long no meter's rate moves an edge by a millisecond."""
REACH_S: Final = 5e-3
"""How far from its expected place an edge is searched, at first and when the rate is known."""
FOLLOW: Final = 0.3
MAX_SCATTER_S: Final = 1e-3
MAD_TO_STD: Final = 1.4826
SIGNIFICANT: Final = 5.0
LEAST_DRIFT_S: Final = 1e-3
"""A rate is put right where its error is this many standard errors and moves an edge by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """`lag_s` of the meter's stamps behind the host's at `origin_s` (the launch's own lag taken out), growing by `rate`.

    `rate_std` is its standard error, `scatter_s` that of an edge, `edges` how many were used.
    """

    origin_s: float
    lag_s: float
    rate: float
    rate_std: float
    scatter_s: float
    edges: int
    span_s: float

    @property
    def drifts(self) -> bool:
        """Whether the meter's rate is off by more than chance."""
        return abs(self.rate) > SIGNIFICANT * self.rate_std and abs(self.rate) * self.span_s > LEAST_DRIFT_S

    def host_s(self, meter_s: Array) -> Array:
        """The meter's stamps in host time [s]."""
        return meter_s - self.lag_s - self.rate * (meter_s - self.origin_s)


def align_meter(time_s: Array, power_w: Array, load: LoadStamps) -> Alignment | None:
    """The line that ties a meter to the host; None where too few edges are seen to tell one."""
    starts = load.start_s[(load.start_s > time_s[0] + FIRST_REACH_S) & (load.start_s < time_s[-1] - FIRST_REACH_S)][:MOST_EDGES]
    if len(starts) < MIN_EDGES or starts[-1] - starts[0] < MIN_SPAN_S:
        return None
    energy = np.concatenate([[0.0], np.cumsum(0.5 * (power_w[1:] + power_w[:-1]) * np.diff(time_s))])
    lags = _followed(starts, time_s, energy)
    return _line(starts, lags)


def _followed(starts: Array, time_s: Array, energy: Array) -> Array:
    """Lag of the meter's edge behind every start [s]."""
    first = starts[: max(MIN_EDGES, int(np.searchsorted(starts, starts[0] + FIRST_SPAN_S)))]
    together = _edge_lag(first, 0.0, FIRST_REACH_S, time_s, energy)
    single = [_edge_lag(starts[place : place + 1], together, REACH_S, time_s, energy) for place in range(MIN_EDGES)]
    expected, rate, before = float(np.median(single)), 0.0, float(starts[0])
    lags = np.empty(len(starts))
    for index, start in enumerate(starts.tolist()):
        gap = start - before
        lag = _edge_lag(np.array([start]), expected + rate * gap, REACH_S, time_s, energy)
        away = lag - expected - rate * gap
        rate += 0.1 * FOLLOW * away / max(gap, 0.05)
        expected, before = expected + rate * gap + FOLLOW * away, start
        lags[index] = lag
    return lags


def _edge_lag(starts: Array, expected: float, reach: float, time_s: Array, energy: Array) -> float:
    """Where within reach of its expected place the power rises most behind starts (n,), on the mean over them [s].

    A quick load has a rise at every cycle; the one at which all of several starts see theirs is right.
    """
    lag = expected + np.arange(-reach, reach + GRID_S, GRID_S)
    places = starts[:, None] + lag
    before, at, after = (np.interp(places + shift, time_s, energy) for shift in (-SIDE_S, 0.0, SIDE_S))
    rise = ((after - at) - (at - before)).mean(axis=0)
    high = rise > 0.5 * rise.max()
    near = np.abs(lag - lag[int(np.argmax(rise))]) <= SIDE_S
    weight = np.where(high & near, rise, 0.0)
    return float(np.sum(weight * lag) / np.sum(weight)) if np.sum(weight) > 0 else expected


def _line(starts: Array, lags: Array) -> Alignment | None:
    """A robust line through the lags; None where they scatter too much to be edges."""
    origin = float(starts.mean())
    x, used = starts - origin, np.ones(len(starts), dtype=np.bool_)
    offset = rate = scatter = 0.0
    for _ in range(8):
        centre = float(x[used].mean())
        spread = float(np.sum((x[used] - centre) ** 2))
        rate = float(np.sum((x[used] - centre) * lags[used]) / spread)
        offset = float(lags[used].mean()) - rate * centre
        residual = lags - offset - rate * x
        scatter = MAD_TO_STD * float(np.median(np.abs(residual))) + 1e-5
        used = np.abs(residual) < 3.0 * scatter
        if np.count_nonzero(used) < MIN_EDGES:
            return None
    if scatter > MAX_SCATTER_S:
        return None
    return Alignment(
        origin_s=origin,
        lag_s=offset - LAUNCH_LAG_S,
        rate=rate,
        rate_std=scatter / float(np.sqrt(spread)),
        scatter_s=scatter,
        edges=int(np.count_nonzero(used)),
        span_s=float(starts[-1] - starts[0]),
    )
