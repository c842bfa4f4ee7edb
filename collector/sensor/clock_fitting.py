"""The clock behind all changes of a record, on from one that was found in some of them: their numbers, their times, its errors."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensor.clock_evidence import clock_doubt, distances_of, hole_doubt, multiple_of, seen_apart
from collector.sensor.clock_likelihood import SILENCE_FLOOR, Changes, likelihood_of
from collector.sensor.clock_patterns import pattern_doubt
from collector.sensor.clock_posterior import Bend, GridPosterior, grid_posterior
from collector.sensor.clock_rounding import crossing_doubt
from collector.sensor.clock_search import SECOND_CHANGES, ClockGuess
from collector.sensor.clock_tracking import Drift, due, fit_drift, last_in_brackets, nearest_ticks, numbered, smoothed_ticks
from collector.sensor.clock_wander import bend_of_track
from collector.sensor.simplex import simplex_maximum
from estimator.quantities import Array, IntArray

MIN_CHANGES: Final = 12
"""Fewer changes than this say nothing about a clock."""
GRID_JITTER_S: Final = {False: 1e-3, True: 1.5e-3}
SLOW_POLL_SHARE: Final = 0.5
GRID_LOG_LIKELIHOOD: Final = -0.6
"""A grid is taken where its jitter is below GRID_JITTER_S (more is wander, which a filter follows; True: polls so slow,
beyond SLOW_POLL_SHARE of the period, that a filter would slip) and its log-likelihood per change above this."""
LATE_JITTERS: Final = 4.0
"""Jitters beyond which an update came late."""
EVALUATIONS: Final = 160
RENEWED_CHANGES: Final = 20_000
"""Changes from which the period is taken that numbers a whole record."""
FIXED_POINT_ROUNDS: Final = 6
RELIABLE: Final = 0.02
"""A refined period further than this from the first one is a slip of the numbering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedClock:
    """Changes on a clock: their numbers and times, shape (n,); `free` where they keep to no grid.

    `grid` is the rigid one that they keep to, where there is one, `per_change` its log-likelihood per change.
    """

    number: IntArray
    tick_s: Array
    drift: Drift
    bend: Bend
    grid: GridPosterior | None
    per_change: float | None
    free: bool


def shown_clock(changes: Changes, guess: ClockGuess, poll_s: float) -> FittedClock:
    """The clock that the changes show, on from a guess: that or a multiple of it, else distances that vary around one.

    Raises SensorError where the changes show none.
    """
    doubts = []
    for start in (guess, _by_distances(changes, guess)):
        fit = fitted(changes, start)
        distances = distances_of(changes, fit.number, poll_s)
        multiple = multiple_of(distances)
        if multiple > 1:
            fit = fitted(changes, replace(start, period_s=multiple * fit.drift.period_s, tick_s=float(fit.tick_s[0])))
            distances = distances_of(changes, fit.number, poll_s)
        doubt, remedy = crossing_doubt(changes, fit.tick_s, fit.drift.period_s, fit.drift.jitter_s, grid=fit.grid is not None)
        if not doubt:
            doubt, remedy = pattern_doubt(changes, fit.number, fit.drift.period_s, poll_s)
        if not doubt:
            doubt, remedy = clock_doubt(changes, distances, fit.drift.period_s, fit.per_change)
        if not doubt:
            doubt, remedy = hole_doubt(changes, fit.number, fit.drift.period_s, poll_s)
        if not doubt:
            return fit
        doubts.append(f"{len(changes)} changes of the reading{seen_apart(distances)} show no update clock: {doubt}; {remedy}")
    raise SensorError(doubts[0])


def _by_distances(changes: Changes, guess: ClockGuess) -> ClockGuess:
    """A clock of the changes' commonest distance, with ticks that keep to no grid."""
    gaps = np.diff(changes.middle_s)
    period = float(np.median(gaps))
    for _ in range(FIXED_POINT_ROUNDS):
        period = float(gaps.sum() / np.maximum(1.0, np.rint(gaps / period)).sum())
    return replace(guess, period_s=period, tick_s=float(changes.middle_s[0]), free=True)


def fitted(changes: Changes, guess: ClockGuess) -> FittedClock:
    """Numbers and times of all changes on a clock that was found in some of them."""
    grid = None if guess.free else _grid(changes, guess)
    if grid is not None:
        number, posterior, per_change = grid
        return FittedClock(
            number=number, tick_s=posterior.tick_s(number, posterior.bend), drift=posterior.drift(posterior.bend), bend=posterior.bend,
            grid=posterior, per_change=per_change, free=False,
        )  # fmt: skip
    number = last_in_brackets(changes, _numbered(changes, guess), guess.period_s)
    changes = changes.latest(guess.period_s)
    drift = fit_drift(changes, number, guess.period_s)
    ticks = np.clip(smoothed_ticks(changes, number, drift), changes.after_s, changes.until_s)
    bend = bend_of_track(changes, number, drift)
    return FittedClock(number=number, tick_s=ticks, drift=drift, bend=bend, grid=None, per_change=None, free=guess.free)


def _numbered(changes: Changes, guess: ClockGuess) -> IntArray:
    """Update numbers over the whole record, by a period from more of it than the first one came from."""
    period = guess.period_s
    tick = float(changes.middle_s[0]) if guess.free else guess.tick_s
    first = changes.part(0, RENEWED_CHANGES)
    number = numbered(first, period, tick, guess.free)
    slope = float(np.polyfit(number, first.middle_s, 1)[0]) if number[-1] else period
    renewed = abs(slope / period - 1.0) < RELIABLE and (guess.free or len(changes) > MIN_CHANGES * 10)
    if not renewed and len(first) == len(changes):
        return number
    return numbered(changes, slope if renewed else period, tick, guess.free)


def _grid(changes: Changes, guess: ClockGuess) -> tuple[IntArray, GridPosterior, float] | None:
    """The number of every change on a rigid grid, that grid with its errors, and its log-likelihood per change, where there is one.

    The grid is followed from the stretch where it was found, to both sides, in steps that keep its phase known.
    """
    given, middle, width = changes, changes.middle_s, float(np.median(changes.width_s))
    jitter_limit = GRID_JITTER_S[width > SLOW_POLL_SHARE * guess.period_s]
    start = int(np.searchsorted(middle, guess.tick_s - guess.period_s))
    point, reach = np.array([guess.period_s, 0.0, np.log(max(guess.jitter_s, 1e-4))]), SECOND_CHANGES
    while True:
        whole = changes.part(max(0, start - reach // 2), start + reach)
        part, joints = whole.spread()
        span = max(float(part.until_s[-1] - part.until_s[0]), guess.period_s)
        step = np.array([0.5 * width * guess.period_s / span, 0.3 * width, 0.4])
        point, value = simplex_maximum(likelihood_of(part, guess.tick_s), point, step, evaluations=EVALUATIONS)
        if len(whole) == len(changes):
            break
        if np.exp(point[2]) > 2.0 * jitter_limit:
            return None
        reach *= 2
    period, jitter = float(point[0]), float(np.exp(point[2]))
    if jitter > jitter_limit:
        return None
    tick = guess.tick_s + float(point[1])
    number = nearest_ticks(middle, period, tick)
    changes = due(changes, tick + period * number.astype(np.float64), LATE_JITTERS * jitter)
    if changes is not given:
        part, joints = changes.spread()
        value = likelihood_of(part, guess.tick_s)(point)
    per_change = (value - joints * SILENCE_FLOOR) / len(part)
    if per_change < GRID_LOG_LIKELIHOOD:
        return None
    number = last_in_brackets(changes, number - number[0], period)
    return number, grid_posterior(changes.latest(period), number, period, jitter), per_change
