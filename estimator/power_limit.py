"""A board at its power limit: the clock at which it settles, and what power, clock and latency may be there.

    P = max(min(P(f_asked)·e^x, L·e^y), P(f_lowest)·e^x),      f = highest clock up to f_asked with P(f)·e^x ≤ L·e^y

P(f) is the power equation and x its error, common to all clocks; L is the limit and y how exactly a board holds it.  Power is
censored: a board that would draw more holds its limit.  What the equation is wrong by then shows as another clock, hence as
another latency.  Every limit of an interval changes without a step as a load grows past L.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.quantities import NORMAL_90, Array, BoolArray, IntArray

LIMIT_TOLERANCE: Final = 1.001
"""A power this close to the limit fits it."""

UNLIMITED_W: Final = 1e9
"""A power limit that no board meets [W]."""

LIMIT_LN_STD: Final = 0.0075
"""How exactly a board holds its limit: 15 throttled runs of six models on a 250 W A100-PCIe (EnergAIzer artifact, start-up removed) drew
0.996 to 1.012 of it, 0.6 % from 1 in root mean square; a normal 90 % interval of this width is Student's, of so few models."""

STAYS_ABOVE: Final = "power stays above the limit of {:g} W even at the lowest clock"

CURVE_CLOCKS: Final = 9
"""Clocks at which kernels are evaluated to know their time at all: its logarithm, as a polynomial in that of the clock, is right to
4e-7 for the published model lists on an A100."""

LIMIT_REACH: Final = 3.0
"""A limit this many standard deviations above the equation's power leaves no trace in a 90 % interval."""

NODE_STEP: Final = 0.2
NODES: Final = np.arange(-20.0, 21.0) * NODE_STEP
"""A standard normal distribution as a mixture: normals of width NODE_STEP at these places."""

NODE_WEIGHTS: Final = np.exp(-0.5 * NODES**2 / (1.0 - NODE_STEP**2)) / np.sum(np.exp(-0.5 * NODES**2 / (1.0 - NODE_STEP**2)))
"""Their shares: with these the mixture is the standard normal distribution to four digits of what lies in its tails."""

TAILS: Final = np.array([[0.05], [0.95]])
TAIL_SCORES: Final = np.array([[[-NORMAL_90]], [[NORMAL_90]]])
"""What lies below the limits of a 90 % interval, and where these lie in a standard normal distribution."""

LEAST_STD: Final = 1e-6
PRECISION: Final = 1e-11
"""The least width of a part of the mixture, and how well limits are found, in logarithms."""

MOST_STEPS: Final = 40
"""Newton's steps, halvings where these leave the interval."""

LEAST_SECONDS: Final = 1e-300
"""Keeps the logarithm of a workload without kernels finite [s]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoardCurve:
    """Latency [s] and power without a limit [W] of a workload over the ascending clocks `clock_mhz`, all of shape (c,)."""

    clock_mhz: Array
    latency_s: Array
    power_w: Array

    def settled_mhz(self, limit_w: Array | float, asked_mhz: Array) -> Array:
        """As `settled_clock_mhz`."""
        return settled_clock_mhz(self.power_w, self.clock_mhz, limit_w, asked_mhz)

    def log_latency(self, clock_mhz: Array) -> Array:
        """ln(latency [s]) at clocks between."""
        return np.interp(np.log(clock_mhz), np.log(self.clock_mhz), np.log(self.latency_s))


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


def settled_clock_mhz(power_w: Array, grid_mhz: Array, limit_w: Array | float, asked_mhz: Array) -> Array:
    """SM clock at which a board settles under its power limit [MHz], shape of `asked_mhz`.

    power_w (c,) over the ascending clocks `grid_mhz`, which hold every asked one; limit_w: one, or one for each asked clock.
    A board over its limit alternates between the highest clock that fits and the next, so that on average it holds the limit: its
    mean clock lies between them.  Where even the lowest clock does not fit, it runs at that.
    """
    limit = np.broadcast_to(limit_w, asked_mhz.shape)
    index = np.searchsorted(grid_mhz, asked_mhz)
    order = np.arange(len(power_w))
    fits = (power_w <= limit[:, None]) & (order <= index[:, None])
    below = np.where(fits, order, 0).max(axis=1)
    above = np.minimum(below + 1, len(power_w) - 1)
    span = power_w[above] - power_w[below]
    share = np.where(span > 0, (limit - power_w[below]) / np.where(span > 0, span, 1.0), 0.0)
    between = grid_mhz[below] + np.clip(share, 0.0, 1.0) * (grid_mhz[above] - grid_mhz[below])
    settled: Array = np.where(below == index, asked_mhz, np.where(power_w[below] <= limit, between, grid_mhz[0]))
    return settled


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


def ranges(point: Settled, curve: BoardCurve | None, limit_w: float, latency_ln_std: Array, power_ln_std: Array) -> Ranges:
    """90 % intervals of clock, latency, power and energy.

    curve: None where no point is `near_limit`.  The deviations are those of the equations at the clock that runs, shape (c,).
    """
    energy_ln_std = np.hypot(latency_ln_std, power_ln_std)
    found = Ranges(
        sm_clock_mhz=np.stack([point.clock_mhz, point.clock_mhz]),
        latency_s=_around(point.latency_s, NORMAL_90 * latency_ln_std),
        power_w=_around(point.power_w, NORMAL_90 * power_ln_std),
        energy_j=_around(point.power_w * point.latency_s, NORMAL_90 * energy_ln_std),
    )
    if curve is None:
        return found
    near = np.flatnonzero(near_limit(point.free_w, limit_w, power_ln_std))
    if len(near):
        limits = _limited(point.select(near), curve, limit_w, latency_ln_std[near], power_ln_std[near])
        for name in Ranges.__slots__:
            getattr(found, name)[:, near] = getattr(limits, name)
    unknown = ~np.isfinite(power_ln_std) & (point.clock_mhz < point.asked_mhz)
    found.sm_clock_mhz[:, unknown] = np.nan
    return found


def _around(value: Array, half: Array) -> Array:
    return np.stack([value * np.exp(-half), value * np.exp(half)])


def _limited(point: Settled, curve: BoardCurve, limit_w: float, latency_ln_std: Array, power_ln_std: Array) -> Ranges:
    """Intervals of points near the limit.

    With d = x − y (see the top of this file) the clock depends on d alone, and what d leaves open of x and y moves both alike:

        ln P = max(min(ln P_a + ρ·d, ln L − (1 − ρ)·d), ln P_lowest + ρ·d) + r,      ρ = σ_x² / σ_d²,   σ_r = σ_x σ_y / σ_d

    The normal d is a mixture of narrow normals, each of which sees a piece of straight line; r and the error of the latency equation
    are normal beside it.
    """
    spread = np.hypot(power_ln_std, LIMIT_LN_STD)
    share, rest = ((power_ln_std / spread) ** 2)[:, None], power_ln_std * LIMIT_LN_STD / spread
    moved = spread[:, None] * NODES
    asked = np.broadcast_to(point.asked_mhz[:, None], moved.shape)
    clock = curve.settled_mhz(limit_w * np.exp(-moved.ravel()), asked.ravel()).reshape(moved.shape)
    usual = np.log(point.latency_s) - curve.log_latency(point.clock_mhz)
    latency = curve.log_latency(clock) + usual[:, None]
    free, lowest = np.log(point.free_w)[:, None] + share * moved, np.log(curve.power_w[0]) + share * moved
    power = np.maximum(np.minimum(free, np.log(limit_w) - (1.0 - share) * moved), lowest)
    quantities = np.concatenate([latency, power, power + latency])
    limits = np.exp(_mixture_limits(quantities, np.concatenate([latency_ln_std, rest, np.hypot(latency_ln_std, rest)])))
    of_latency, of_power, of_energy = np.split(limits, 3, axis=1)
    reach = limit_w * np.exp(np.stack([-NORMAL_90 * spread, NORMAL_90 * spread]))
    clocks = np.stack([curve.settled_mhz(held_w, point.asked_mhz) for held_w in reach])
    return Ranges(sm_clock_mhz=clocks, latency_s=of_latency, power_w=of_power, energy_j=of_energy)


def _mixture_limits(mean: Array, std: Array) -> Array:
    """5th and 95th percentile, shape (2, q), of quantities that are `mean` (q, nodes) at NODES and err by `std` (q,) beside."""
    slope = np.gradient(mean, NODE_STEP, axis=1)
    width = np.maximum(np.hypot(std[:, None], NODE_STEP * np.abs(slope)), LEAST_STD)
    ends = mean + TAIL_SCORES * width
    low, high = ends.min(axis=-1), ends.max(axis=-1)
    middle = mean @ NODE_WEIGHTS
    scatter = np.sqrt(((mean - middle[:, None]) ** 2 + width**2) @ NODE_WEIGHTS)
    found: Array = np.clip(middle + TAIL_SCORES[..., 0] * scatter, low, high)
    for _ in range(MOST_STEPS):
        score = (found[..., None] - mean) / width
        excess = normal_cdf(score) @ NODE_WEIGHTS - TAILS
        low, high = np.where(excess < 0.0, found, low), np.where(excess < 0.0, high, found)
        density = (np.exp(-0.5 * score**2) / width) @ NODE_WEIGHTS / math.sqrt(2.0 * math.pi)
        tried = found - excess / np.maximum(density, LEAST_STD)
        tried = np.where((tried >= low) & (tried <= high), tried, 0.5 * (low + high))
        moved = np.abs(tried - found).max()
        found = tried
        if moved < PRECISION:
            break
    return found


def normal_cdf(score: Array) -> Array:
    """Share of a standard normal distribution below, to 1e-7.  Source: Abramowitz and Stegun, 7.1.26."""
    size = np.abs(score) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * size)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * np.exp(-(size**2))
    result: Array = np.where(score < 0.0, tail, 1.0 - tail)
    return result


def std_of(value: Array, limits: Array) -> Array:
    """Standard deviation that stands for a 90 % interval: value times half the width of the interval of its logarithm over 1.645.

    Of a normal logarithm it is its own; limits: as in Ranges.
    """
    std: Array = value * np.log(limits[1] / limits[0]) / (2.0 * NORMAL_90)
    return std


def curve_clocks_mhz(grid_mhz: Array) -> Array:
    """Few clocks from whose times those at all clocks of an ascending grid follow (`over_clocks`): Chebyshev's nodes of ln f."""
    if len(grid_mhz) <= CURVE_CLOCKS:
        return grid_mhz
    middle, half = _span(grid_mhz)
    nodes: Array = np.exp(middle + half * _chebyshev_nodes())
    return nodes


def over_clocks(gpu_s: Array, grid_mhz: Array) -> Array:
    """GPU time at every clock of a grid, shape (..., c), from that at `curve_clocks_mhz(grid_mhz)`, shape (..., m) [s]."""
    if len(grid_mhz) <= CURVE_CLOCKS:
        return gpu_s
    middle, half = _span(grid_mhz)
    weights = _chebyshev((np.log(grid_mhz) - middle) / half) @ np.linalg.inv(_chebyshev(_chebyshev_nodes()))
    found: Array = np.exp(np.log(np.maximum(gpu_s, LEAST_SECONDS)) @ weights.T)
    return found


def _span(grid_mhz: Array) -> tuple[float, float]:
    low, high = float(np.log(grid_mhz[0])), float(np.log(grid_mhz[-1]))
    return 0.5 * (low + high), 0.5 * (high - low)


def _chebyshev(places: Array) -> Array:
    """Chebyshev's polynomials at places of shape (c,) from −1 to 1, shape (c, m): T_k(x) = cos(k · arccos x)."""
    found: Array = np.cos(np.arccos(np.clip(places, -1.0, 1.0))[:, None] * np.arange(CURVE_CLOCKS))
    return found


def _chebyshev_nodes() -> Array:
    nodes: Array = -np.cos(np.pi * (np.arange(CURVE_CLOCKS) + 0.5) / CURVE_CLOCKS)
    return nodes
