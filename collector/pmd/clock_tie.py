"""The meter's clock against the host's: a robust regression of arrival times on ticks.

A byte can arrive late but never early.  So the recording is cut into blocks, the earliest arrival of each, relative to
the meter's nominal clock, stands for it, and a continuous line with knots is put through these points with weights that
fall to zero for blocks in which every arrival was late (Tukey's biweight).  The meter's oscillator is not a crystal: it
differs from the nominal rate by up to 0.1 % and drifts with temperature, hence one fit a recording, and the knots.

What the fit cannot see is the shortest delay between a sample and the host, about 1 ms with a USB bridge.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.pmd.packets import NOMINAL_TICKS_PER_MS, RATE_SPREAD_TICKS_PER_MS
from collector.pmd.robust_fit import biweight_fit
from estimator.vocabulary.quantities import Array, IntArray

NS_PER_MS: Final = 1e6
NS_PER_S: Final = 1e9
NOMINAL_NS_PER_TICK: Final = NS_PER_MS / NOMINAL_TICKS_PER_MS
RATE_SPREAD: Final = RATE_SPREAD_TICKS_PER_MS / NOMINAL_TICKS_PER_MS

BLOCK_NS: Final = 50e6
"""Length of a block: about a dozen reads of the port."""
MOST_BLOCKS: Final = 20_000
KNOT_SPACING_NS: Final = 20e9
"""Distance of knots: the rate drifts less than 0.02 % in 10 s, which bends a line of 20 s by a millisecond at most."""
MOST_KNOTS: Final = 256
EARLY_NS: Final = 2e5
"""Scatter assumed of a block's earliest arrival where the recording is too short to show it: a scheduler's wake-up."""
SMALLEST_SCATTER_NS: Final = 1e3
FEWEST_FOR_PERSISTENCE: Final = 20
MOST_CORRELATED: Final = 0.98
SLOWEST: Final = 1e-3
"""Slowest run of host time that is told apart from a host clock that stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTie:
    """What host time a tick is.

    `source` says where the rate comes from: "stamps" of arrivals, edges of a "load", "given", or "nominal".
    `knot_ticks` and `knot_ns` are the corners of the line, shape (k,), k ≥ 2.  `ticks_per_ms` is the mean rate with its
    standard error, `residual_s` the rms distance of the blocks' earliest arrivals (of the load's edges) from the line,
    `blocks` their number, `offered` how many there were to use.
    """

    source: str
    knot_ticks: IntArray
    knot_ns: IntArray
    ticks_per_ms: float
    ticks_per_ms_std: float
    residual_s: float
    blocks: int
    offered: int

    def host_ns(self, ticks: IntArray) -> IntArray:
        """Host time of ascending ticks [ns], shape (n,); beyond the ends the outermost segments go on."""
        last = len(self.knot_ticks) - 2
        segment = np.clip(np.searchsorted(self.knot_ticks, ticks[[0, -1]] if len(ticks) else ticks, side="right") - 1, 0, last)
        if len(segment) and segment[0] != segment[-1]:
            segment = np.clip(np.searchsorted(self.knot_ticks, ticks, side="right") - 1, 0, last)
        else:
            segment = segment[:1]  # ticks ascend: all of them lie on one segment
        slope = np.diff(self.knot_ns) / np.diff(self.knot_ticks)
        past = np.rint((ticks - self.knot_ticks[segment]) * slope[segment]).astype(np.int64)
        host: IntArray = self.knot_ns[segment] + past
        return host


def straight_tie(
    source: str, ticks_per_ms: float, ticks_per_ms_std: float, *, residual_s: float = math.nan, blocks: int = 0, offered: int = 0
) -> ClockTie:
    """A tie for a recording that carries no host time: its first packet at 0 ns, one rate for all of it."""
    span = round(NS_PER_S / NS_PER_MS * ticks_per_ms)
    return ClockTie(
        source=source,
        knot_ticks=np.array([0, span], dtype=np.int64),
        knot_ns=np.array([0, round(span * NS_PER_MS / ticks_per_ms)], dtype=np.int64),
        ticks_per_ms=ticks_per_ms,
        ticks_per_ms_std=ticks_per_ms_std,
        residual_s=residual_s,
        blocks=blocks,
        offered=offered,
    )


def nominal_tie() -> ClockTie:
    """The tie of a recording of whose clock nothing is known."""
    return straight_tie("nominal", NOMINAL_TICKS_PER_MS, RATE_SPREAD_TICKS_PER_MS)


def fit_clock_tie(ticks: IntArray, host_ns: IntArray) -> ClockTie:
    """Tie ticks to the host times at which they were seen, both ascending, shape (n,), n ≥ 1."""
    nominal_ns = (ticks - ticks[0]) * NOMINAL_NS_PER_TICK
    lag_ns = (host_ns - host_ns[0]) - nominal_ns
    time, lag = _earliest(nominal_ns, lag_ns)
    span = max(float(time[-1]), BLOCK_NS)
    knots = np.linspace(0.0, span, 1 + int(np.clip(round(span / KNOT_SPACING_NS), 1, MOST_KNOTS)))
    hats = _hats(time, knots)
    # every segment's rate is the nominal one within its spread: this decides only where its points cannot
    slopes = np.diff(np.eye(len(knots)), axis=0) / ((knots[1] - knots[0]) * RATE_SPREAD)
    at_knots, weight, scatter = biweight_fit(hats, lag, slopes.T @ slopes, EARLY_NS, SMALLEST_SCATTER_NS)
    residual = lag - hats @ at_knots
    slope, slope_std = _mean_slope(time, hats @ at_knots, weight, scatter * _persistence(residual, weight))
    knot_ticks = ticks[0] + np.round(knots / NOMINAL_NS_PER_TICK).astype(np.int64)
    return ClockTie(
        source="stamps",
        knot_ticks=knot_ticks,
        knot_ns=host_ns[0] + np.round((knot_ticks - ticks[0]) * NOMINAL_NS_PER_TICK + at_knots).astype(np.int64),
        ticks_per_ms=NOMINAL_TICKS_PER_MS / max(1.0 + slope, SLOWEST),
        ticks_per_ms_std=NOMINAL_TICKS_PER_MS * slope_std,
        residual_s=float(np.sqrt(np.average(residual**2, weights=weight))) / NS_PER_S if len(time) > 2 else float("nan"),
        blocks=len(time),
        offered=len(time),
    )


def _earliest(time: Array, lag: Array) -> tuple[Array, Array]:
    """Time and lag of the earliest arrival of each block that has one."""
    length = max(BLOCK_NS, float(time[-1]) / MOST_BLOCKS)
    block = (time / length).astype(np.int64)
    order = np.lexsort((lag, block))
    first = order[np.concatenate([[True], np.diff(block[order]) > 0])]
    return time[first], lag[first]


def _hats(time: Array, knots: Array) -> Array:
    """Weight of each knot in the line at each time, shape (n, k)."""
    spacing = knots[1] - knots[0]
    hats: Array = np.clip(1.0 - np.abs(time[:, None] - knots) / spacing, 0.0, 1.0)
    return hats


def _mean_slope(time: Array, fitted: Array, weight: Array, scatter: float) -> tuple[float, float]:
    """Slope of one straight line through the fitted points, and its standard error."""
    centre = float(np.average(time, weights=weight))
    spread = float(np.sum(weight * (time - centre) ** 2))
    information = spread / scatter**2 + 1.0 / RATE_SPREAD**2
    if spread <= 0.0:
        return 0.0, RATE_SPREAD
    slope = float(np.sum(weight * (time - centre) * fitted)) / spread
    return slope, float(1.0 / np.sqrt(information))


def _persistence(residual: Array, weight: Array) -> float:
    """How much less neighbouring residuals say than independent ones: a busy machine is late for many blocks in a row."""
    if len(residual) < FEWEST_FOR_PERSISTENCE:
        return 1.0
    kept = np.where(weight > 0.0, residual - np.average(residual, weights=weight), 0.0)
    correlation = float(np.clip(np.sum(kept[1:] * kept[:-1]) / np.sum(kept**2), 0.0, MOST_CORRELATED))
    return float(np.sqrt((1.0 + correlation) / (1.0 - correlation)))
