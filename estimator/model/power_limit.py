"""A board at its power limit: the clock at which it settles, and intervals of power, clock and latency there.

    P = max(min(P(f_asked)·e^x, L·e^y), P(f_lowest)·e^x),      f = highest clock up to f_asked with P(f)·e^x ≤ L·e^y

P(f) is the power equation and x its error, common to all clocks; L is the limit and y the board's error in holding it.  Power is
censored: a board that would draw more holds its limit.  An error of the equation then appears as another clock, hence as another
latency.  Every limit of an interval changes continuously as a load grows past L.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from estimator.model.mixture import NODES, mixture_limits
from estimator.vocabulary.quantities import NORMAL_90, Array, BoolArray, IntArray

LIMIT_TOLERANCE: Final = 1.001
"""Largest ratio of power to limit that counts as within the limit."""

UNLIMITED_W: Final = 1e12
"""A power limit that no board reaches [W]; as a power cap it means no cap.  The board keeps its own limit then: rest power that was not
measured is assumed to be a share of it."""

LIMIT_LN_STD: Final = 0.0075
"""Standard deviation with which a board holds its limit [ln]: 15 throttled runs of six models on a 250 W A100-PCIe (EnergAIzer artifact,
start-up removed) drew 0.996 to 1.012 of it, 0.6 % from 1 in root mean square; with this value a normal 90 % interval equals Student's."""

STAYS_ABOVE: Final = "power stays above the limit of {:g} W even at the lowest clock"

LIMIT_REACH: Final = 3.0
"""Distance of the limit above the equation's power at which it no longer affects a 90 % interval [standard deviation]."""

POINTS_AT_ONCE: Final = 256
"""Points whose intervals at the limit are computed together: larger tables would not fit into the processor's caches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settled:
    """Operating points under a power limit, columns of shape (c,).

    asked_mhz, free_s, free_w        requested clock [MHz], with the latency [s] and the power [W] of the equations there
    clock_mhz, latency_s, power_w    actual clock, with the reported latency and power
    """

    asked_mhz: Array
    free_s: Array
    free_w: Array
    clock_mhz: Array
    latency_s: Array
    power_w: Array

    def select(self, index: IntArray | slice | tuple[slice, None]) -> "Settled":
        """The points `index`; (…, None) gives columns of shape (c, 1)."""
        return Settled(**{name: getattr(self, name)[index] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoardCurve:
    """Latency [s] and power without a limit [W] of a workload over the ascending clocks that a board can lock, all of shape (c,)."""

    clock_mhz: Array
    latency_s: Array
    power_w: Array

    def settled_mhz(self, limit_w: Array | float, asked_mhz: Array, asked_w: Array) -> Array:
        """SM clock at which a board settles under its power limit [MHz], the shape to which the arguments broadcast.

        asked_w: power at the requested clocks, which may lie between two steps.  A board over its limit lowers its clock step by step and
        alternates between the highest one within the limit and the next, so that it holds the limit on average: its mean clock lies
        between them.  If even the lowest clock exceeds the limit, the board runs at the lowest clock.
        """
        asked_mhz, asked_w, limit = np.broadcast_arrays(asked_mhz, asked_w, limit_w)
        last = self._last(asked_mhz)  # power rises with the clock
        below = np.clip(np.searchsorted(self.power_w, limit, side="right") - 1, 0, last)
        low_w, low_mhz, ends = self.power_w[below], self.clock_mhz[below], below == last
        above = np.minimum(below + 1, len(self.power_w) - 1)
        span_w = np.where(ends, asked_w, self.power_w[above]) - low_w
        share = np.clip((limit - low_w) / np.where(span_w > 0.0, span_w, np.inf), 0.0, 1.0)
        between = low_mhz + share * (np.where(ends, asked_mhz, self.clock_mhz[above]) - low_mhz)
        settled: Array = np.where(asked_w <= limit, asked_mhz, np.where(low_w <= limit, between, self.clock_mhz[0]))
        return settled

    def log_latency(self, clock_mhz: Array, asked_mhz: Array, asked_s: Array) -> Array:
        """ln(latency [s]) at clocks up to the requested ones, where latency is `asked_s`; shape of the clocks."""
        own, own_s, wanted = np.log(self.clock_mhz), np.log(self.latency_s), np.log(clock_mhz)
        last, asked = self._last(asked_mhz), np.log(asked_mhz)
        beyond = asked - own[last]
        share = np.maximum(wanted - own[last], 0.0) / np.where(beyond > 0.0, beyond, 1.0)
        found: Array = np.interp(np.minimum(wanted, own[last]), own, own_s) + share * (np.log(asked_s) - own_s[last])
        return found

    def _last(self, asked_mhz: Array) -> IntArray:
        """Index of the board's highest clock that is not above a requested one."""
        return np.searchsorted(self.clock_mhz, asked_mhz, side="right") - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranges:
    """Lower and upper limits of 90 % intervals, shape (2, c); nan if an uncertainty is unknown."""

    sm_clock_mhz: Array
    latency_s: Array
    power_w: Array
    energy_j: Array


def held_power_w(power_w: Array, clock_mhz: Array, asked_mhz: Array, lowest_mhz: float, limit_w: float) -> tuple[Array, BoolArray]:
    """Reported power at the actual clocks [W], and whether it stays above the limit, shapes of `power_w`.

    A board whose clock was lowered, but not to the lowest, holds its limit on average; its power is the limit, not the equation's value.
    """
    holds = (clock_mhz < asked_mhz) & (clock_mhz > lowest_mhz)
    above: BoolArray = ~holds & (power_w > limit_w * LIMIT_TOLERANCE)
    held_w: Array = np.where(holds, limit_w, np.where(above, power_w, np.minimum(power_w, limit_w)))
    return held_w, above


def near_limit(free_w: Array, limit_w: float, power_ln_std: Array) -> BoolArray:
    """Whether the limit may affect a point: the equation's power is above it, or less than LIMIT_REACH standard deviations below."""
    with np.errstate(invalid="ignore"):
        near: BoolArray = free_w * np.exp(LIMIT_REACH * np.hypot(power_ln_std, LIMIT_LN_STD)) > limit_w
    return near


def ranges(point: Settled, curves: Sequence[BoardCurve] | None, limit_w: float, latency_ln_std: Array, power_ln_std: Array) -> Ranges:
    """90 % intervals of clock, latency, power and energy.

    curves: curves of workloads whose points are consecutive, the same number for each; None if no point is `near_limit`.  The deviations
    are those of the equations at the actual clock, shape (c,).
    """
    energy_ln_std = np.sqrt(latency_ln_std**2 + power_ln_std**2)
    found = Ranges(
        sm_clock_mhz=np.array([point.clock_mhz, point.clock_mhz]),
        latency_s=_around(point.latency_s, NORMAL_90 * latency_ln_std),
        power_w=_around(point.power_w, NORMAL_90 * power_ln_std),
        energy_j=_around(point.power_w * point.latency_s, NORMAL_90 * energy_ln_std),
    )
    if curves is None:
        return found
    near = np.flatnonzero(near_limit(point.free_w, limit_w, power_ln_std))
    each = len(point.free_w) // len(curves)
    for first in range(0, len(near), POINTS_AT_ONCE):
        part = near[first : first + POINTS_AT_ONCE]
        limits = _limited(point.select(part), curves, part // each, limit_w, latency_ln_std[part], power_ln_std[part])
        for name in Ranges.__slots__:
            getattr(found, name)[:, part] = getattr(limits, name)
    unknown = ~np.isfinite(power_ln_std) & (point.clock_mhz < point.asked_mhz)
    found.sm_clock_mhz[:, unknown] = np.nan
    return found


def _around(value: Array, half: Array) -> Array:
    factor = np.exp(half)
    return np.array([value / factor, value * factor])


def _limited(
    point: Settled, curves: Sequence[BoardCurve], owner: IntArray, limit_w: float, latency_ln_std: Array, power_ln_std: Array
) -> Ranges:
    """Intervals of points near the limit; owner: index of each point's curve, ascending.

    With d = x − y (see the top of this file) the clock depends only on d, and the rest of x and y is common to both:

        ln P = max(min(ln P_a + ρ·d, ln L − (1 − ρ)·d), ln P_lowest + ρ·d) + r,      ρ = σ_x² / σ_d²,   σ_r = σ_x σ_y / σ_d

    d is normal and a mixture of narrow normals (`estimator.model.mixture`); r and the latency equation's error are independent normals.
    """
    spread = np.hypot(power_ln_std, LIMIT_LN_STD)
    share, rest = ((power_ln_std / spread) ** 2)[:, None], power_ln_std * LIMIT_LN_STD / spread
    moved = spread[:, None] * NODES
    ends = (spread * NORMAL_90)[:, None]
    held_w = limit_w * np.exp(-np.concatenate([moved, ends, -ends], axis=1))
    clock, latency, lowest_w = np.empty_like(held_w), np.empty_like(moved), np.empty_like(spread)
    starts = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()
    for start, stop in pairwise((*starts, len(owner))):
        own, curve = slice(start, stop), curves[owner[start]]
        at = point.select(own).select((slice(None), None))
        clock[own] = curve.settled_mhz(held_w[own], at.asked_mhz, at.free_w)
        usual = np.log(at.latency_s) - curve.log_latency(at.clock_mhz, at.asked_mhz, at.free_s)
        latency[own] = curve.log_latency(clock[own, : len(NODES)], at.asked_mhz, at.free_s) + usual
        lowest_w[own] = curve.power_w[0]
    free = np.log(point.free_w)[:, None] + share * moved
    lowest = np.log(lowest_w)[:, None] + share * moved
    power = np.maximum(np.minimum(free, np.log(limit_w) - (1.0 - share) * moved), lowest)
    quantities = np.concatenate([latency, power, power + latency])
    limits = np.exp(mixture_limits(quantities, np.concatenate([latency_ln_std, rest, np.hypot(latency_ln_std, rest)])))
    latency_s, power_w, energy_j = np.split(limits, 3, axis=1)
    return Ranges(sm_clock_mhz=clock[:, len(NODES) :].T, latency_s=latency_s, power_w=power_w, energy_j=energy_j)


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
    return np.exp(middle + half * nodes), _chebyshev((place - middle) / half) @ np.linalg.inv(_chebyshev(nodes))


def _chebyshev(places: Array) -> Array:
    """Chebyshev's polynomials at places of shape (c,) from −1 to 1, shape (c, m): T_k(x) = cos(k · arccos x)."""
    found: Array = np.cos(np.arccos(np.clip(places, -1.0, 1.0))[:, None] * np.arange(CURVE_CLOCKS))
    return found
