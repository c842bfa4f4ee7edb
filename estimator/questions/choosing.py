"""Choice of a clock or point: the best one under limits, points that do not differ from it, and the front of latency and energy."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Final

import numpy as np

from estimator.questions.judging import QUANTITIES, Asked, Judged, at_clocks, judged, log_ratio_std, value_of
from estimator.questions.sweeping import Sweep, joined_sweeps, pieces_of
from estimator.uncertainty.validity import why_no_time
from estimator.vocabulary.errors import OperatingPointError, require
from estimator.vocabulary.quantities import NORMAL_90, Array, BoolArray, IntArray
from estimator.vocabulary.values import frozen

MILLISECONDS: Final = 1e-3
"""Unit of latencies for people [s]."""

UNITS: Final = {"latency": "s", "power": "W", "energy": "J"}
COMPARED: Final = tuple(UNITS)
"""Compared quantities."""


@frozen
class Gain:
    """Ratio of one quantity at a point to another point, with the limits of its 90 % interval (nan: unknown)."""

    ratio: float
    low: float
    high: float


@frozen
class Best:
    """The best point under limits, with comparisons.

    points           all evaluated points; `fits` (n,) those within the limits and, if any of these is, within memory
    index            index of the best point
    goal             the quantity that is minimised
    alike            indices of points of the same workload and board within the limits that do not differ from the best one: the 90 %
                     interval of their ratio to it contains 1
    clocks_mhz       lowest and highest requested clock among these [MHz]
    usual_clock_mhz  the usual clock, with which `gains` compare latency, power and energy [MHz]
    front            indices of points on the front between latency and energy, least latency first
    """

    points: Sweep
    fits: BoolArray
    index: int
    goal: str
    alike: IntArray
    clocks_mhz: tuple[float, float]
    usual_clock_mhz: float
    gains: dict[str, Gain]
    front: IntArray


def best(
    asked: Asked | Sequence[Asked],
    goal: str = "energy",
    *,
    power_limit_w: float = math.inf,
    latency_limit_s: float = math.inf,
) -> Best:
    """The point of least `goal` (a key of QUANTITIES) among all requested clocks.

    Default clocks: all that the GPU can lock; those that the fit has not seen have wider intervals.

    Energies of workloads with known batches are compared per request.  power_limit_w, latency_limit_s: limits of the mean power [W] and the
    latency of an iteration [s].  Points that do not fit into a board's memory are left out, unless no other point is within the limits.

    Raises OperatingPointError for an unknown goal, and if no point is within the limits.
    """
    if goal not in QUANTITIES:
        raise OperatingPointError(f"unknown goal {goal!r}; known: {', '.join(QUANTITIES)}")
    require(asked, (Asked, Sequence), "asked", "an Asked, or several")
    given = [asked] if isinstance(asked, Asked) else asked
    questions = [
        at_clocks(one, tuple((one.gpu or one.bundle.gpu).clocks_mhz().tolist())) if one.sm_clock_mhz is None else one for one in given
    ]
    points = joined_sweeps(answered(questions))
    value = np.where(np.isfinite(points.power_w) | math.isinf(power_limit_w), value_of(points, goal), np.nan)
    batches = points.label("batch")
    if all(QUANTITIES[goal]) and all(batches):
        value /= batches
    if not np.isfinite(value).any():
        timed = np.isfinite(points.latency_s).any()
        reason = "the bundle has no power coefficients" if timed else why_no_time(points.cases[0].warnings)
        raise OperatingPointError(f"no point can be chosen by {goal}: {reason}")
    fits = np.isfinite(value)
    limits = (points.power_w, power_limit_w, "W"), (points.latency_s / MILLISECONDS, latency_limit_s / MILLISECONDS, "ms")
    set_limits = [one for one in limits if not math.isinf(one[1])]
    for column, limit, _ in set_limits:
        fits &= column <= limit
    if not fits.any():
        least = (f"{limit:g} {unit} (least: {np.nanmin(column, initial=math.inf):.4g} {unit})" for column, limit, unit in set_limits)
        raise OperatingPointError(f"no point keeps {' and '.join(least)}; allow more, or other clocks, batches and GPUs")
    in_memory = fits & ~np.array([bool(lines) for lines in points.label("too_large")])
    fits = in_memory if in_memory.any() else fits
    index = int(np.where(fits, value, np.inf).argmin())
    number = int(points.case[index])
    own = points.case == number
    answer, first = judged(questions[number]), int(np.flatnonzero(own)[0])
    alike = first + _alike(answer, index - first, goal, fits[own])
    clocks_mhz = points.asked_clock_mhz[alike]
    usual = judged(at_clocks(questions[number], None))
    return Best(
        points=points,
        fits=fits,
        index=index,
        goal=goal,
        alike=alike,
        clocks_mhz=(float(clocks_mhz.min()), float(clocks_mhz.max())),
        usual_clock_mhz=float(usual.points.asked_clock_mhz[0]),
        gains={name: gain(answer, index - first, usual, name) for name in COMPARED},
        front=np.flatnonzero(fits)[pareto_front(points.select(fits))],
    )


def answered(asked: Sequence[Asked]) -> Iterator[Sweep]:
    """Points of all queries in their order, many at a time: neighbours that differ only in the workload are swept together."""
    for _, same in groupby(asked, key=lambda one: (id(one.bundle), id(one.gpu), one.settings())):
        together = list(same)
        yield from pieces_of([one.variant for one in together], together[0].board())


def pareto_front(points: Sweep) -> IntArray:
    """Indices of the Pareto-optimal points in latency and energy, least latency first.

    Latency is the latency of an iteration, for which every request waits; energy is `energy_per_request_j`.
    """
    latency, energy = points.latency_s, energy_per_request_j(points)
    known = np.flatnonzero(np.isfinite(latency) & np.isfinite(energy))
    order = known[np.lexsort((energy[known], latency[known]))]
    least = np.minimum.accumulate(np.concatenate([[np.inf], energy[order]]))
    return order[energy[order] < least[:-1]]


def gain(left: Judged, i: int, right: Judged, quantity: str) -> Gain:
    """left[i] / right[0] of a quantity with its 90 % interval; shared errors cancel."""
    ratio = float(value_of(left.points, quantity)[i] / value_of(right.points, quantity)[0])
    spread = math.exp(NORMAL_90 * float(log_ratio_std(left, i, right, 0, quantity)))
    return Gain(ratio=ratio, low=ratio / spread, high=ratio * spread)


def energy_per_request_j(points: Sweep) -> Array:
    """Energy per request of each point [J], shape (n,); energy per iteration for all points if one case's batch is unknown."""
    return points.per_request()["energy_per_request_j"] if all(points.label("batch")) else points.energy_j


def _alike(answer: Judged, best_point: int, goal: str, fits: BoolArray) -> IntArray:
    """Points within the limits whose ratio to the best one may be 1; all of them if its uncertainty is unknown."""
    value = value_of(answer.points, goal)
    distance = np.log(value / value[best_point])
    # False if a bundle states no errors: no point differs then.
    apart = distance > NORMAL_90 * log_ratio_std(answer, slice(None), answer, slice(best_point, best_point + 1), goal)
    apart[best_point] = False
    return np.flatnonzero(~apart & fits)


_FIRST: Final = np.zeros(1, dtype=np.int64)


@frozen
class Comparison:
    """Two predictions at one clock each: one point of each, and right over left with its 90 % interval by COMPARED."""

    left: Sweep
    right: Sweep
    ratios: dict[str, Gain]

    def _repr_html_(self) -> str:
        """A table for notebooks, in SI units."""
        sides = [(one.cases[0], f"{one.sm_clock_mhz[0]:.0f} MHz") for one in (self.left, self.right)]
        names = (filter(None, (case.workload, case.gpu, case.precision, case.attention, clock, case.validity)) for case, clock in sides)
        rows = [["", *(escape(", ".join(words)) for words in names), "ratio (90 % interval)"]]
        for name, gain in self.ratios.items():
            values = [f"{value_of(one, name)[0]:.4g}" for one in (self.left, self.right)]
            rows.append([f"{name} [{UNITS[name]}]", *values, f"{gain.ratio:.3g} ({gain.low:.3g} to {gain.high:.3g})"])
        return f"<table>{''.join(f'<tr><td>{cells}</td></tr>' for cells in map('</td><td>'.join, rows))}</table>"


def compare(left: Asked, right: Asked) -> Comparison:
    """Compare two predictions, each at its first requested clock.  Raises the errors of `estimate`."""
    first, second = judged(left), judged(right)
    return Comparison(
        left=first.points.select(_FIRST),
        right=second.points.select(_FIRST),
        ratios={name: gain(second, 0, first, name) for name in COMPARED},
    )
