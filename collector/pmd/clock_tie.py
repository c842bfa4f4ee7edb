"""The meter's clock against the host's: a robust regression of arrival times on ticks.

A byte can arrive late but never early.  So the recording is cut into blocks.  Each is represented by its earliest arrival, relative to
the meter's nominal clock, and a continuous line with knots is fitted to these points with weights that
fall to zero for blocks in which every arrival was late (Tukey's biweight).  The meter's oscillator is not a crystal: it
differs from the nominal rate by up to 0.1 % and drifts with temperature, hence one fit a recording, and the knots.

The fit cannot determine the shortest delay between a sample and the host, about 1 ms with a USB bridge.
"""

import math
from collections import deque
from typing import Final

import numpy as np

from collector.pmd.protocol import NOMINAL_TICKS_PER_MS, NS_PER_S, STAMP_TURN
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.values import frozen

NS_PER_TICK: Final = 1e6 / NOMINAL_TICKS_PER_MS
TURN_NS: Final = STAMP_TURN * NS_PER_TICK
RATE_SPREAD: Final = 2.0 / NOMINAL_TICKS_PER_MS
"""Relative standard deviation of the clock's rate from device to device and day to day."""
BLOCK_NS, KNOT_SPACING_NS = 50e6, 20e9
"""Lengths of a block and between knots [ns].

A block is about a dozen reads of the port; the rate drifts less than 0.02 % in 10 s, which bends a segment by at most a millisecond.
"""
SCATTER_NS: Final = (2e5, 1e3)
"""Scatter of a block's earliest arrival: for a recording too short to show it (a scheduler's wake-up), and the least."""
MEMORY_NS: Final = 2 * NS_PER_S
"""Time for which the earliest arrival is kept; a rate error of 0.1 % shifts it by 2 ms."""


@frozen
class ClockTie:
    """Host time of ticks.

    `knot_ticks` and `knot_ns` are the corners of the line, shape (k,), k ≥ 2.  `residual_s` is the rms distance of the blocks'
    earliest arrivals from it; nan for too few.
    """

    knot_ticks: IntArray
    knot_ns: IntArray
    residual_s: float = math.nan

    @property
    def ticks_per_ms(self) -> float:
        """Mean rate of the meter's clock."""
        return 1e6 * float(self.knot_ticks[-1] - self.knot_ticks[0]) / max(float(self.knot_ns[-1] - self.knot_ns[0]), 1.0)

    def host_ns(self, ticks: IntArray) -> IntArray:
        """Host time of ticks [ns], shape (n,); the outermost segments extend beyond the ends."""
        segment = np.clip(np.searchsorted(self.knot_ticks, ticks, side="right") - 1, 0, len(self.knot_ticks) - 2)
        slope = np.diff(self.knot_ns) / np.diff(self.knot_ticks)
        return self.knot_ns[segment] + np.rint((ticks - self.knot_ticks[segment]) * slope[segment]).astype(np.int64)


NOMINAL: Final = ClockTie(knot_ticks=np.array([0, round(1e3 * NOMINAL_TICKS_PER_MS)]), knot_ns=np.array([0, round(NS_PER_S)]))
"""The tie of a recording without host time: its first packet at 0 ns, the clock's nominal rate."""


def fit_clock_tie(ticks: IntArray, host_ns: IntArray) -> ClockTie:
    """Tie ticks to the host times at which they were seen, shape (n,), n ≥ 1."""
    time, lag = _earliest((ticks - ticks[0]) * NS_PER_TICK, host_ns - host_ns[0])
    span = max(float(time.max()), BLOCK_NS)
    knots = np.linspace(0.0, span, 1 + min(max(round(span / KNOT_SPACING_NS), 1), 256))
    hats = np.clip(1.0 - np.abs(time[:, None] - knots) / knots[1], 0.0, 1.0)  # weight of each knot in the line, shape (n, k)
    # every segment's rate is the nominal one within its spread: this has an effect only without enough points
    slopes = np.diff(np.eye(len(knots)), axis=0) / (knots[1] * RATE_SPREAD)
    at_knots, weight = _biweight_fit(hats, lag, slopes.T @ slopes)
    residual = lag - hats @ at_knots
    knot_ticks = ticks[0] + np.round(knots / NS_PER_TICK).astype(np.int64)
    return ClockTie(
        knot_ticks=knot_ticks,
        knot_ns=host_ns[0] + np.round((knot_ticks - ticks[0]) * NS_PER_TICK + at_knots).astype(np.int64),
        residual_s=float(np.sqrt(np.average(residual**2, weights=weight))) / NS_PER_S if len(time) > 2 else math.nan,
    )


def _earliest(time: Array, host_ns: IntArray) -> tuple[Array, Array]:
    """Nominal time and lag of the earliest arrival of each block with an arrival."""
    lag = host_ns - time
    block = (time / max(BLOCK_NS, time.max() / 20_000)).astype(np.int64)
    order = np.lexsort((lag, block))
    first = order[np.concatenate([[True], np.diff(block[order]) > 0])]
    return time[first], lag[first]


def _biweight_fit(design: Array, values: Array, penalty: Array) -> tuple[Array, Array]:
    """Coefficients (p,) and weights (n,) of a fit of `values` (n,) by `design` (n, p), with Tukey's biweight.

    `penalty`, shape (p, p), is the inverse covariance of a prior around 0, in units of the coefficients.
    """
    weight: Array = np.ones(len(values))
    scatter, smallest = SCATTER_NS
    for _ in range(20):
        weighted = design * weight[:, None]
        # packets that came in few bursts, on a busy host, do not reach every knot
        found = np.linalg.lstsq(weighted.T @ design / scatter**2 + penalty, weighted.T @ values / scatter**2, rcond=None)[0]
        coefficients: Array = found.astype(np.float64)
        residual = values - design @ coefficients
        centred: Array = residual - float(np.median(residual))
        if len(values) > 2 * design.shape[1]:
            scatter = max(1.4826 * float(np.median(np.abs(centred))), smallest)  # of a normal distribution
        weight = np.maximum(1.0 - (centred / (4.685 * scatter)) ** 2, 0.0) ** 2  # 95 % efficient for normal residuals
    return coefficients, weight


class TurnWatch:
    """Turns of the 16-bit stamp that ticks cannot show: a hole longer than 22 ms.

    Across such a hole the ticks are short by a multiple of one turn, and from then on all bytes seem to arrive late by
    that much.  Arrivals are sometimes late for other reasons, but the earliest ones of any two seconds are not.
    """

    def __init__(self) -> None:
        self._earliest: deque[tuple[float, float]] = deque()  # (time, lag) with lags ascending: the head is the window's minimum
        self._late = 0

    def turns(self, ticks: int, host_ns: int, *, after_break: bool) -> int:
        """Turns to add to the ticks of this arrival's last packet and all later ones; 0 nearly always.

        `after_break`: a packet since the last arrival does not follow its predecessor; otherwise sixteen
        late arrivals in a row mean a hole.  Negative if an earlier result was wrong: no byte arrives before it was sent.
        """
        time = ticks * NS_PER_TICK
        lag = host_ns - time
        while len(self._earliest) > 1 and self._earliest[0][0] < time - MEMORY_NS:
            self._earliest.popleft()
        turns = round((lag - self._earliest[0][1]) / TURN_NS) if self._earliest else 0
        self._late = self._late + 1 if turns > 0 else 0
        if turns > 0 and not after_break and self._late < 16:
            return 0
        if turns < 0:
            self._earliest.clear()
        time, lag = time + turns * TURN_NS, lag - turns * TURN_NS
        while self._earliest and self._earliest[-1][1] >= lag:
            self._earliest.pop()
        self._earliest.append((time, lag))
        return turns
