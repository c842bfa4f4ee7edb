"""A board at its power limit: the clock at which it settles, and what power, clock and latency may be there.

    P = max(min(P(f_asked)·e^x, L·e^y), P(f_lowest)·e^x),      f = highest clock up to f_asked with P(f)·e^x ≤ L·e^y

P(f) is the power equation and x its error, common to all clocks; L is the limit and y how exactly a board holds it.  Power is
censored: a board that would draw more holds its limit.  What the equation is wrong by then shows as another clock, hence as
another latency.  Every limit of an interval changes without a step as a load grows past L.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from estimator.model.mixture import NODES, mixture_limits
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90, Array, BoolArray, IntArray

LIMIT_TOLERANCE: Final = 1.001
"""A power this close to the limit fits it."""

UNLIMITED_W: Final = 1e12
"""A power limit that no board meets [W]; as a power cap it asks for none.  The board keeps its own limit then: rest power that was not
measured is assumed to be a share of it."""

LIMIT_LN_STD: Final = 0.0075
"""How exactly a board holds its limit: 15 throttled runs of six models on a 250 W A100-PCIe (EnergAIzer artifact, start-up removed) drew
0.996 to 1.012 of it, 0.6 % from 1 in root mean square; a normal 90 % interval of this width is Student's, of so few models."""

STAYS_ABOVE: Final = "power stays above the limit of {:g} W even at the lowest clock"

CURVE_CLOCKS: Final = 9
"""Clocks at which kernels are evaluated to know their time at all: its logarithm, as a polynomial in that of the clock, is right to
4e-7 for the published model lists on an A100."""

LIMIT_REACH: Final = 3.0
"""A limit this many standard deviations above the equation's power leaves no trace in a 90 % interval."""

POINTS_AT_ONCE: Final = 256
"""Points whose intervals at the limit are worked on together: the tables of more would leave the processor's caches."""

LEAST_SECONDS: Final = 1e-300
"""Keeps the logarithm of a workload without kernels finite [s]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoardCurve:
    """Latency [s] and power without a limit [W] of a workload over the ascending clocks `clock_mhz`, all of shape (c,).

    lockable: which of them the board can lock, None: all; each other one was asked for and concerns only those who ask for it.
    """

    clock_mhz: Array
    latency_s: Array
    power_w: Array
    lockable: BoolArray | None = None

    def settled_mhz(self, limit_w: Array | float, asked_mhz: Array) -> Array:
        """As `settled_clock_mhz`."""
        return settled_clock_mhz(self.power_w, self.clock_mhz, limit_w, asked_mhz, self.lockable)

    def log_latency(self, clock_mhz: Array, asked_mhz: Array) -> Array:
        """ln(latency [s]) at clocks up to the asked ones, between which and the board's own it lies; shape of the clocks."""
        place, log_s = np.log(self.clock_mhz), np.log(self.latency_s)
        if self.lockable is None:
            return np.interp(np.log(clock_mhz), place, log_s)
        asked_at = np.searchsorted(self.clock_mhz, asked_mhz)
        own, own_s = place[self.lockable], log_s[self.lockable]
        last = np.searchsorted(own, place[asked_at], side="right") - 1
        wanted, beyond = np.log(clock_mhz), place[asked_at] - own[last]
        share = np.maximum(wanted - own[last], 0.0) / np.where(beyond > 0.0, beyond, 1.0)
        found: Array = np.interp(np.minimum(wanted, own[last]), own, own_s) + share * (log_s[asked_at] - own_s[last])
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settled:
    """Operating points under a power limit, columns of shape (c,).

    asked_mhz, free_w     clock asked for [MHz], and the power equation there [W]
    clock_mhz             clock that runs, with the latency [s] and the power [W] that are stated for it
    """

    asked_mhz: Array
    free_w: Array
    clock_mhz: Array
    latency_s: Array
    power_w: Array

    def select(self, index: IntArray) -> "Settled":
        """The points `index`."""
        return Settled(**{name: getattr(self, name)[index] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranges:
    """Lower and upper limits of 90 % intervals, shape (2, c); nan where an uncertainty is unknown."""

    sm_clock_mhz: Array
    latency_s: Array
    power_w: Array
    energy_j: Array


def settled_clock_mhz(
    power_w: Array, grid_mhz: Array, limit_w: Array | float, asked_mhz: Array, lockable: BoolArray | None = None
) -> Array:
    """SM clock at which a board settles under its power limit [MHz], the shape to which limits and asked clocks broadcast.

    power_w (c,) over the ascending clocks `grid_mhz`, which hold every asked one; lockable: as in BoardCurve.  A board walks down from
    the asked clock over its own ones: where others settle does not depend on it.
    A board over its limit alternates between the highest clock that fits and the next, so that on average it holds the limit: its
    mean clock lies between them.  Where even the lowest clock does not fit, it runs at that.
    """
    asked_w = power_w[np.searchsorted(grid_mhz, asked_mhz)]
    if lockable is not None:
        power_w, grid_mhz = power_w[lockable], grid_mhz[lockable]
    last, limit = np.broadcast_arrays(np.searchsorted(grid_mhz, asked_mhz, side="right") - 1, limit_w)
    below = _highest_fitting(power_w, limit, last)
    above = np.minimum(below + 1, len(power_w) - 1)
    low_w, low_mhz = power_w[below], grid_mhz[below]
    high_w, high_mhz = power_w[above], grid_mhz[above]
    if lockable is not None:  # the next clock may be the asked one, between two steps
        high_w, high_mhz = np.where(below == last, asked_w, high_w), np.where(below == last, asked_mhz, high_mhz)
    span = high_w - low_w
    share = np.where(span > 0, (limit - low_w) / np.where(span > 0, span, 1.0), 0.0)
    between = low_mhz + np.minimum(np.maximum(share, 0.0), 1.0) * (high_mhz - low_mhz)
    settled: Array = np.where(asked_w <= limit, asked_mhz, np.where(low_w <= limit, between, grid_mhz[0]))
    return settled


def _highest_fitting(power_w: Array, limit_w: Array, last: IntArray) -> IntArray:
    """Number of the highest clock, up to number `last`, whose power fits a limit, 0 where none does; shape of the limits."""
    least_from = np.minimum.accumulate(power_w[::-1])[::-1]  # rises with the clock even where power does not
    found: IntArray = np.where(power_w[last] <= limit_w, last, np.searchsorted(least_from, limit_w, side="right") - 1)
    beyond = found > last
    if beyond.any():  # power falls again above the last one
        order = np.arange(len(power_w))
        fits = (power_w <= limit_w[beyond][:, None]) & (order <= last[beyond][:, None])
        found[beyond] = np.where(fits, order, 0).max(axis=1)
    return np.maximum(found, 0)


def held_power_w(power_w: Array, clock_mhz: Array, asked_mhz: Array, lowest_mhz: float, limit_w: float) -> tuple[Array, BoolArray]:
    """Power to state at the clocks that run [W], and where it stays above the limit, shapes of `power_w`.

    A board whose clock was lowered, but not to the lowest, holds its limit on average, whatever the equation says at the mean clock.
    """
    holds = (clock_mhz < asked_mhz) & (clock_mhz > lowest_mhz)
    above: BoolArray = ~holds & (power_w > limit_w * LIMIT_TOLERANCE)
    held_w: Array = np.where(holds, limit_w, np.where(above, power_w, np.minimum(power_w, limit_w)))
    return held_w, above


def near_limit(free_w: Array, limit_w: float, power_ln_std: Array) -> BoolArray:
    """Where the limit may be felt: power by the equation lies above it, or below by less than LIMIT_REACH standard deviations."""
    with np.errstate(invalid="ignore"):
        near: BoolArray = free_w * np.exp(LIMIT_REACH * np.hypot(power_ln_std, LIMIT_LN_STD)) > limit_w
    return near


def ranges(point: Settled, curves: Sequence[BoardCurve] | None, limit_w: float, latency_ln_std: Array, power_ln_std: Array) -> Ranges:
    """90 % intervals of clock, latency, power and energy.

    curves: of workloads whose points lie one after the other, equally many each; None where no point is `near_limit`.  The deviations
    are those of the equations at the clock that runs, shape (c,).
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
    """Intervals of points near the limit; owner: number of each point's curve, ascending.

    With d = x − y (see the top of this file) the clock depends on d alone, and what d leaves open of x and y moves both alike:

        ln P = max(min(ln P_a + ρ·d, ln L − (1 − ρ)·d), ln P_lowest + ρ·d) + r,      ρ = σ_x² / σ_d²,   σ_r = σ_x σ_y / σ_d

    d is normal and a mixture of narrow normals (`estimator.model.mixture`); r and the error of the latency equation are normal beside it.
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
        clock[own] = curve.settled_mhz(held_w[own], point.asked_mhz[own, None])
        usual = np.log(point.latency_s[own]) - curve.log_latency(point.clock_mhz[own], point.asked_mhz[own])
        latency[own] = curve.log_latency(clock[own, : len(NODES)], point.asked_mhz[own, None]) + usual[:, None]
        lowest_w[own] = curve.power_w[0]
    free = np.log(point.free_w)[:, None] + share * moved
    lowest = np.log(lowest_w)[:, None] + share * moved
    power = np.maximum(np.minimum(free, np.log(limit_w) - (1.0 - share) * moved), lowest)
    quantities = np.concatenate([latency, power, power + latency])
    limits = np.exp(mixture_limits(quantities, np.concatenate([latency_ln_std, rest, np.hypot(latency_ln_std, rest)])))
    count = len(owner)
    return Ranges(
        sm_clock_mhz=clock[:, len(NODES) :].T,
        latency_s=limits[:, :count],
        power_w=limits[:, count : 2 * count],
        energy_j=limits[:, 2 * count :],
    )


def std_of(value: Array, limits: Array) -> Array:
    """Standard deviation that stands for a 90 % interval: value times half the width of the interval of its logarithm over 1.645.

    Of a normal logarithm it is its own; limits: as in Ranges.
    """
    std: Array = value * np.log(limits[1] / limits[0]) / (2.0 * NORMAL_90)
    return std


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClockGrid:
    """Ascending clocks over which a curve is made [MHz], shape (c,): those that a board can lock, and others asked for.

    lockable: which are the board's, None: all; span_mhz: the lowest and the highest clock that could be asked for.  What is worked out
    over some clocks does not depend on the others, so that no answer depends on what else is asked.
    """

    clock_mhz: Array
    lockable: BoolArray | None
    span_mhz: tuple[float, float]

    def few(self) -> bool:
        """Whether the board has so few clocks that each is evaluated."""
        return (len(self.clock_mhz) if self.lockable is None else int(self.lockable.sum())) <= CURVE_CLOCKS

    def curve_clocks_mhz(self) -> Array:
        """Few clocks from whose times those at all follow (`over_clocks`): Chebyshev's nodes of ln f."""
        if self.few():
            return self.clock_mhz
        middle, half = self._span()
        nodes: Array = np.exp(middle + half * _CHEBYSHEV_NODES)
        return nodes

    def over_clocks(self, gpu_s: Array) -> Array:
        """GPU time at every clock, shape (..., c), from that at `curve_clocks_mhz()`, shape (..., m) [s]."""
        if self.few():
            return gpu_s
        middle, half = self._span()
        weights = _chebyshev((np.log(self.clock_mhz) - middle) / half) @ _FROM_NODES
        found: Array = np.exp(np.log(np.maximum(gpu_s, LEAST_SECONDS)) @ weights.T)
        return found

    def _span(self) -> tuple[float, float]:
        low, high = map(math.log, self.span_mhz)
        return 0.5 * (low + high), 0.5 * (high - low)


def clock_grid(gpu: GpuSpec, asked_mhz: Array) -> ClockGrid:
    """All clocks that can be locked, and those asked for."""
    own = gpu.clocks_mhz()
    span_mhz = float(own[0]), max(float(own[-1]), gpu.sm_clock_limit_mhz)
    place = np.minimum(np.searchsorted(own, asked_mhz), len(own) - 1)
    between = asked_mhz[own[place] != asked_mhz]
    if not len(between):
        return ClockGrid(clock_mhz=own, lockable=None, span_mhz=span_mhz)
    joined = np.union1d(own, between)
    lockable = np.ones(len(joined), dtype=np.bool_)
    lockable[np.searchsorted(joined, between)] = False
    return ClockGrid(clock_mhz=joined, lockable=lockable, span_mhz=span_mhz)


def _chebyshev(places: Array) -> Array:
    """Chebyshev's polynomials at places of shape (c,) from −1 to 1, shape (c, m): T_k(x) = cos(k · arccos x)."""
    found: Array = np.cos(np.arccos(np.minimum(np.maximum(places, -1.0), 1.0))[:, None] * np.arange(CURVE_CLOCKS))
    return found


_CHEBYSHEV_NODES: Final = -np.cos(np.pi * (np.arange(CURVE_CLOCKS) + 0.5) / CURVE_CLOCKS)
_FROM_NODES: Final = np.linalg.inv(_chebyshev(_CHEBYSHEV_NODES))
"""Chebyshev's nodes, and what turns values there into the coefficients of polynomials."""
