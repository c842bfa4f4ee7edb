"""Whether parts of a record tell the period that the whole of it tells.

A clock that changes its period, loses its phase while the host sleeps or comes late now and then still lets some grid be laid through
its updates, and the longer the record the smaller that grid's error.  So stretches between holes, or thirds of a record without them,
are fitted by themselves.  Slow wander makes them differ as well; their errors hold what it may be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from collector.sensor.clock_likelihood import HOLE_POLLS, Changes
from estimator.quantities import Array, IntArray

LEAST_CHANGES: Final = 40
"""Fewer changes do not tell a period of their own."""
MOST_PARTS: Final = 4
"""The longest stretches that are fitted; each costs about as much as the whole."""
MOST_CHANGES: Final = 2000
"""Changes of a part that are fitted, its first: more would tell no more against the wander that may be."""
THIRDS: Final = 3
LOST_TICKS: Final = 0.25
"""A hole in which the stretches beside it leave the number of updates open by more than this share of one ends the grid."""
SET_FORWARD_S: Final = 0.128
"""Time servers' clients step a clock that is off by more, and slew one that is off by less: a longer hole may be such a step."""
BEYOND: Final = 3.0
"""Standard deviations of chi² by which parts disagree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPeriod:
    """Period of a part and its standard error, with the wander that may be in it [s]."""

    period_s: float
    std_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsMean:
    """Mean of the parts' periods, its error widened by how they scatter [s], and whether they disagree."""

    period_s: float
    std_s: float
    disagree: bool


def parts_of(changes: Changes, period_s: float, poll_s: float) -> tuple[tuple[Changes, ...], bool]:
    """The longest stretches between holes, or thirds where there is only one; and whether they are such stretches.

    A hole is longer than the stretches beside it: shorter ones are bridged by the phase.
    """
    edges = _long_holes(changes, period_s, poll_s)
    stretched = len(edges) > 0
    if not stretched:
        edges = (np.arange(1, THIRDS) * len(changes)) // THIRDS
    bounds = [0, *edges.tolist(), len(changes)]
    behind = int(stretched)  # a change seen across a hole came at any time in it
    places = [(first + behind, last) for first, last in pairwise(bounds) if last - first > LEAST_CHANGES]
    longest = sorted(places, key=lambda place: place[0] - place[1])[:MOST_PARTS]
    return tuple(changes.part(first, min(last, first + MOST_CHANGES)) for first, last in sorted(longest)), stretched


def _long_holes(changes: Changes, period_s: float, poll_s: float) -> IntArray:
    """Places of the first changes behind holes longer than all the time in which polls were seen."""
    gap = np.diff(changes.until_s)
    hole = changes.width_s[1:] > max(HOLE_POLLS * poll_s, 2.0 * period_s)
    hole[changes.holes.behind] = True
    seen_s = float(gap[~hole].sum())
    edges: IntArray = np.flatnonzero(hole & (gap > seen_s)) + 1
    return edges


def set_apart(changes: Changes, poll_s: float) -> tuple[Changes, ...]:
    """The parts between the longest holes in which the host's clock may have been put forward; none where there is no such hole.

    A clock that was put forward leaves no reading either, and by chance about a whole number of periods: the phases on both sides then
    fit about, and the period of a grid through both is off by more than its error.
    """
    hole_s = changes.width_s.copy()
    np.maximum.at(hole_s, changes.holes.behind + 1, changes.holes.until_s - changes.holes.from_s)
    hole_s[0] = 0.0
    edges = np.flatnonzero(hole_s > max(SET_FORWARD_S, HOLE_POLLS * poll_s))
    longest = sorted(edges[np.argsort(-hole_s[edges], kind="stable")][: MOST_PARTS - 1].tolist())
    bounds = [0, *longest, len(changes)]
    return tuple(changes.part(first + (first > 0), last) for first, last in pairwise(bounds) if last - first > LEAST_CHANGES and longest)


def mean_of(parts: Sequence[PartPeriod]) -> PartsMean:
    """What the parts say together; where they disagree no part's own error counts, but their scatter alone."""
    period = np.array([part.period_s for part in parts])
    weight = 1.0 / np.array([part.std_s for part in parts]) ** 2
    mean, free = float(weight @ period / weight.sum()), max(len(parts) - 1, 1)
    chi2 = float(weight @ (period - mean) ** 2)
    std = max(1.0, chi2 / free) ** 0.5 / float(weight.sum()) ** 0.5
    disagree = len(parts) > 1 and chi2 > free + BEYOND * (2.0 * free) ** 0.5
    if disagree:
        mean, std = float(period.mean()), max(std, float(period.std(ddof=1)) / len(parts) ** 0.5)
    return PartsMean(period_s=mean, std_s=std, disagree=disagree)


def phase_lost(changes: Changes, together: PartsMean) -> bool:
    """Whether the longest silence holds so many updates that the parts' period leaves their number open."""
    longest_s = float(np.max(np.diff(changes.until_s)))
    return longest_s * together.std_s > LOST_TICKS * together.period_s**2


def times_text(parts: Sequence[PartPeriod]) -> str:
    """The parts' periods as text [ms]."""
    values: Array = np.array([part.period_s for part in parts])
    return ", ".join(f"{1e3 * value:.5g}" for value in values) + " ms"
