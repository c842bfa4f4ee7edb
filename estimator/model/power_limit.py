"""A board at its power limit: the clock at which it settles, and intervals of power, clock and latency there.

    P = max(min(P(f_asked)·e^x, L·e^y), P(f_lowest)·e^x),      f = highest clock up to f_asked with P(f)·e^x ≤ L·e^y

P(f) is the power equation and x its error, common to all clocks; L is the share of the limit that the board holds, y its error.  Power is
censored: a board that would draw more holds its limit.  An error of the equation then appears as another clock, hence as another
latency.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from estimator.vocabulary.quantities import NORMAL_90, Array, BoolArray, IntArray
from estimator.vocabulary.values import Columns, arrays

LIMIT_TOLERANCE: Final = 1.001
"""Largest ratio of power to limit that counts as within the limit."""

UNLIMITED_W: Final = 1e12
"""A power limit that no board reaches [W]; as a power cap it means no cap.  The board keeps its own limit then: rest power that was not
measured is assumed to be a share of it."""

LIMIT_SHARE: Final = 0.98
LIMIT_SHARE_STD: Final = 0.018
"""Share of its limit that a throttled board draws on average, and the standard deviation of one run [1].  Runs and kernels of published
collections average 1.00 (A100-PCIe), 0.99 (H200, GB200), 0.97 (V100) and 0.96 (A100-SXM, H100, with pauses of the host), which scatter by
0.016; runs of one board by 0.0075."""


class Held(NamedTuple):
    """Power that a throttled board holds on average [W], and the standard deviation of its logarithm."""

    power_w: float
    ln_std: float


STAYS_ABOVE: Final = "power stays above the limit of {:g} W even at the lowest clock"


@arrays
class Settled(Columns):
    """Operating points of v workloads at c clocks under a power limit, columns of shape (v, c).

    asked_mhz, free_s, free_w        requested clock [MHz], with the latency [s] and the power [W] of the equations there
    clock_mhz, latency_s, power_w    actual clock, with the reported latency and power
    """

    asked_mhz: Array
    free_s: Array
    free_w: Array
    clock_mhz: Array
    latency_s: Array
    power_w: Array


@arrays
class BoardCurves:
    """Latency [s] and power without a limit [W] of v workloads, shape (v, c), over the ascending clocks (c,) that a board can lock.

    Methods are for points that broadcast against each other; `row` is the workload of each.
    """

    clock_mhz: Array
    latency_s: Array
    power_w: Array

    def settled_mhz(self, row: IntArray | int, limit_w: Array | float, asked_mhz: Array, asked_w: Array) -> Array:
        """SM clock at which a board settles under its power limit [MHz].

        asked_w: power at the requested clocks, which may lie between two steps.  A board over its limit lowers its clock step by step and
        alternates between the highest one within the limit and the next, so that it holds the limit on average: its mean clock lies
        between them.  If even the lowest clock exceeds the limit, the board runs at the lowest clock.
        """
        last = self._last(asked_mhz)
        below = np.clip(self._within(row, limit_w) - 1, 0, last)
        low_w, high_w = _ends(self.power_w, row, below, last, asked_w)
        low_mhz, high_mhz = _ends(self.clock_mhz[None], 0, below, last, asked_mhz)
        between = low_mhz + _share(limit_w, low_w, high_w) * (high_mhz - low_mhz)
        return np.where(asked_w <= limit_w, asked_mhz, np.where(low_w <= limit_w, between, self.clock_mhz[0]))

    def log_latency(self, row: IntArray | int, clock_mhz: Array, asked_mhz: Array, asked_s: Array) -> Array:
        """ln(latency [s]) at clocks up to the requested ones, where latency is `asked_s`."""
        last, wanted = self._last(asked_mhz), np.log(clock_mhz)
        below = np.clip(self._last(clock_mhz), 0, last)
        low_s, high_s = _ends(np.log(self.latency_s), row, below, last, np.log(asked_s))
        return low_s + _share(wanted, *_ends(np.log(self.clock_mhz)[None], 0, below, last, np.log(asked_mhz))) * (high_s - low_s)

    def _last(self, mhz: Array) -> IntArray:
        """Index of the board's highest clock that is not above each given one."""
        return np.searchsorted(self.clock_mhz, mhz, side="right") - 1

    def _within(self, row: IntArray | int, limit_w: Array | float) -> IntArray:
        """Number of clocks at which power, which rises with the clock, is within a limit."""
        count = len(self.clock_mhz)
        found, step = np.zeros(np.broadcast_shapes(np.shape(row), np.shape(limit_w)), dtype=np.int64), 1 << count.bit_length()
        while step := step // 2:
            further = np.minimum(found + step, count)
            found = np.where(self.power_w[row, further - 1] <= limit_w, further, found)
        return found


def _ends(column: Array, row: IntArray | int, below: IntArray, last: IntArray, asked: Array) -> tuple[Array, Array]:
    """A column (v, c) at the clock `below` and at the next one, which is the requested one after the `last`."""
    return column[row, below], np.where(below == last, asked, column[row, np.minimum(below + 1, column.shape[1] - 1)])


def _share(value: Array | float, low: Array, high: Array) -> Array:
    """Place of a value between two others, from 0 to 1."""
    return np.clip((value - low) / np.where(high > low, high - low, np.inf), 0.0, 1.0)


@arrays
class Ranges(Columns):
    """Lower and upper limits of 90 % intervals, shape (2, v, c); nan if an uncertainty is unknown."""

    sm_clock_mhz: Array
    latency_s: Array
    power_w: Array
    energy_j: Array


def highest_clock_mhz(power_w: Callable[[Array], Array], limit_w: Array | float, lowest_mhz: float, asked_mhz: Array) -> Array:
    """The highest clocks between the lowest and the requested ones at which power is within a limit [MHz], shape (n,).

    power_w: power at clocks of shape (n,), which rises with the clock.
    """
    low, high = np.full_like(asked_mhz, lowest_mhz), asked_mhz.astype(np.float64)
    fits = power_w(high) <= limit_w
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        within = power_w(middle) <= limit_w
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    return np.where(fits, asked_mhz, low)


BISECTIONS: Final = 11
"""Halvings of the range of clocks: 1,600 MHz to within 1 MHz."""


def held_power_w(power_w: Array, clock_mhz: Array, asked_mhz: Array, lowest_mhz: float, limit_w: float) -> tuple[Array, BoolArray]:
    """Reported power at the actual clocks [W], and whether it stays above the limit, shapes of `power_w`.

    A board whose clock was lowered, but not to the lowest, holds its limit on average; its power is the limit, not the equation's value.
    """
    holds = (clock_mhz < asked_mhz) & (clock_mhz > lowest_mhz)
    above: BoolArray = ~holds & (power_w > limit_w * LIMIT_TOLERANCE)
    held_w: Array = np.where(holds, limit_w, np.where(above, power_w, np.minimum(power_w, limit_w)))
    return held_w, above


def near_limit(free_w: Array, held: Held, power_ln_std: Array) -> BoolArray:
    """Whether the limit affects an interval: at its end, the equation's power exceeds the limit."""
    return free_w * np.exp(NORMAL_90 * np.hypot(power_ln_std, held.ln_std)) > held.power_w


def ranges(point: Settled, curves: BoardCurves | None, held: Held, latency_ln_std: Array, power_ln_std: Array) -> Ranges:
    """90 % intervals of clock, latency, power and energy.

    curves: None if no point is `near_limit`.  The deviations are those of the equations at the actual clock (v, c).
    """
    energy_ln_std = np.hypot(latency_ln_std, power_ln_std)
    found = Ranges(
        sm_clock_mhz=np.array([point.clock_mhz, point.clock_mhz]),
        latency_s=_around(point.latency_s, NORMAL_90 * latency_ln_std),
        power_w=_around(point.power_w, NORMAL_90 * power_ln_std),
        energy_j=_around(point.power_w * point.latency_s, NORMAL_90 * energy_ln_std),
    )
    if curves is not None:
        near = near_limit(point.free_w, held, power_ln_std)
        limits = _limited(point.select(near), curves, np.nonzero(near)[0], held, latency_ln_std[near], power_ln_std[near])
        for name in Ranges.__slots__:
            getattr(found, name)[:, near] = getattr(limits, name)
    unknown = ~np.isfinite(power_ln_std) & (point.clock_mhz < point.asked_mhz)
    found.sm_clock_mhz[:, unknown] = np.nan
    return found


def _around(value: Array, half: Array, above: Array | None = None) -> Array:
    """Ends of an interval from the distances of the logarithms of both ends, equal if only one is given."""
    return np.array([value * np.exp(-half), value * np.exp(half if above is None else above)])


def _limited(point: Settled, curves: BoardCurves, row: IntArray, held: Held, latency_ln_std: Array, power_ln_std: Array) -> Ranges:
    """Intervals of n points near the limit, columns of shape (n,).

    With d = x − y (see the top of this file) the clock depends only on d, and the rest of x and y is common to both:

        ln P = max(min(ln P_a + ρ·d, ln L − (1 − ρ)·d), ln P_lowest + ρ·d) + r,      ρ = σ_x² / σ_d²,   σ_r = σ_x σ_y / σ_d

    d, r and the latency equation's error are independent: the change of a quantity over the 90 % interval of d, and 90 % intervals of the
    others, add in squares, on each side.  The upper limit of power is that of its formula at the upper limits of x and y.
    """
    limit_w, limit_std = held
    spread = np.hypot(power_ln_std, limit_std)
    share, rest = (power_ln_std / spread) ** 2, NORMAL_90 * power_ln_std * limit_std / spread
    moved = np.array([[0.0], [1.0], [-1.0]]) * NORMAL_90 * spread
    clock = curves.settled_mhz(row, limit_w * np.exp(-moved), point.asked_mhz, point.free_w)
    latency = curves.log_latency(row, clock, point.asked_mhz, point.free_s)
    capped = np.minimum(np.log(point.free_w) + share * moved, np.log(limit_w) - (1.0 - share) * moved)
    lowest_w = curves.power_w[row, 0]
    power = np.maximum(capped, np.log(lowest_w) + share * moved)

    def interval(value: Array, logarithm: Array, half: Array) -> Array:
        change = logarithm - logarithm[0]
        return _around(value, np.hypot(change.min(axis=0), half), np.hypot(change.max(axis=0), half))

    of_time, own_w = NORMAL_90 * latency_ln_std, np.exp(NORMAL_90 * power_ln_std)
    highest_w = np.maximum(np.minimum(point.free_w * own_w, limit_w * np.exp(NORMAL_90 * limit_std)), lowest_w * own_w)
    return Ranges(
        sm_clock_mhz=clock[1:],
        latency_s=interval(point.latency_s, latency, of_time),
        power_w=np.array([interval(point.power_w, power, rest)[0], highest_w]),
        energy_j=interval(point.power_w * point.latency_s, power + latency, np.hypot(of_time, rest)),
    )


def std_of(value: Array, limits: Array) -> Array:
    """Standard deviation equivalent to a 90 % interval: value times half the width of the interval of its logarithm over 1.645.

    For a normal logarithm it is exact; limits: as in Ranges.
    """
    std: Array = value * np.log(limits[1] / limits[0]) / (2.0 * NORMAL_90)
    return std


CURVE_CLOCKS: Final = 9
"""Number of clocks at which kernels are evaluated for their time at all clocks: ln(time) as a polynomial in ln(clock) is accurate to
4e-7 for the published model lists on an A100."""


def curve_nodes(clock_mhz: Array) -> tuple[Array, Array]:
    """A few clocks [MHz], shape (m,), and weights (c, m) that give ln(time) at all ascending clocks (c,) from ln(time) at the few.

    They are Chebyshev's nodes of ln f and polynomials through them; for few clocks, the clocks themselves.
    """
    if len(clock_mhz) <= CURVE_CLOCKS:
        return clock_mhz, np.eye(len(clock_mhz))
    place = np.log(clock_mhz)
    middle, half = 0.5 * (place[0] + place[-1]), 0.5 * (place[-1] - place[0])
    nodes = -np.cos(np.pi * (np.arange(CURVE_CLOCKS) + 0.5) / CURVE_CLOCKS)
    places = (place - middle) / half
    return np.exp(middle + half * nodes), np.vander(places, CURVE_CLOCKS) @ np.linalg.inv(np.vander(nodes, CURVE_CLOCKS))
