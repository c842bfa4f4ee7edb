"""The update clock of a sensor that is polled: period, phase, jitter and slow wander from readings with repeats.

A change between two polls says that an update came between them, silence says that none came (or showed nothing
new).  Both are evidence, so neither the poll period nor a fraction of the period can pose as the clock.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensor.clock_likelihood import SILENCE_FLOOR, Changes, find_changes, likelihood_of
from collector.sensor.clock_posterior import GridPosterior, grid_posterior
from collector.sensor.clock_search import SECOND_CHANGES, ClockGuess, search_clock
from collector.sensor.clock_tracking import fit_drift, numbered, smoothed_ticks
from collector.sensor.clock_wander import STEADY, bend_of_track, card_bounds_s, wanders_of
from collector.sensor.simplex import simplex_maximum
from estimator.quantities import Array, IntArray

MIN_CHANGES: Final = 12
"""Fewer changes than this say nothing about a clock."""
MOST_CHANGING: Final = 0.97
"""Share of polls that show a change, beyond which the polls are too slow to see a clock."""
FREE_STEP_SHARE: Final = 0.015
"""A clock whose phase walks by more than this share of the period per update keeps no grid."""
GRID_JITTER_S: Final = {False: 1e-3, True: 1.5e-3}
SLOW_POLL_SHARE: Final = 0.5
GRID_LOG_LIKELIHOOD: Final = -0.6
"""A grid is taken where its jitter is below GRID_JITTER_S (more is wander, which a filter follows; True: polls so slow,
beyond SLOW_POLL_SHARE of the period, that a filter would slip) and its log-likelihood per change above this."""
EVALUATIONS: Final = 160
RENEWED_CHANGES: Final = 20_000
"""Changes from which the period is taken that numbers a whole record."""
RELIABLE: Final = 0.02
"""A refined period further than this from the first one is a slip of the numbering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateClock:
    """Mean period over the record and its standard error, jitter of an update, and whether updates keep to a grid [s].

    The card's own period lies within `card_period_68_s` of it in 68 of 100 cases, within `card_period_95_s` in 95: slow wander, which
    a short record cannot tell from another period, has no normal distribution (see `clock_wander`).
    `n_updates` counts the updates that the record spans, `missed_share` those among them that showed no change.
    `poll_s` is the median distance of two polls.
    """

    period_s: float
    period_std_s: float
    card_period_68_s: float
    card_period_95_s: float
    jitter_s: float
    rigid: bool
    n_updates: int
    missed_share: float
    poll_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """Updates with their times, values and numbers on the clock; shape (n,)."""

    time_s: Array
    value: Array
    number: IntArray


def fit_update_clock(time_s: Array, value: Array) -> tuple[UpdateClock, Updates]:
    """The update clock behind polls, and the updates on it.

    `time_s` are host stamps [s], ascending, `value` the readings, repeats included, both of shape (n,).

    Raises SensorError for too few changes, and where changes come with every poll.
    """
    changes = find_changes(time_s, value)
    count = len(changes)
    if count < MIN_CHANGES:
        raise SensorError(f"only {count} changes of the reading; at least {MIN_CHANGES} are needed: poll longer, or under a varying load")
    poll_s = float(np.median(np.diff(time_s)))
    if count > MOST_CHANGING * (len(time_s) - 1):
        raise SensorError(f"the reading changes with every poll ({poll_s * 1e3:.1f} ms): poll faster to see the update clock")
    guess = search_clock(changes)
    grid = None if guess.free else _grid(changes, guess)
    if grid is None:
        number = _numbered(changes, guess)
        drift = fit_drift(changes, number, guess.period_s)
        ticks = np.clip(smoothed_ticks(changes, number, drift), changes.after_s, changes.until_s)
        bend = bend_of_track(changes, number, drift)
    else:
        number, posterior = grid
        bend = posterior.bend
    slots, span_s = int(number[-1]), float(changes.until_s[-1] - changes.after_s[0])
    wanders = STEADY if guess.free else wanders_of(bend, span_s)
    if grid is not None:
        drift, ticks = posterior.drift(wanders.bend), posterior.tick_s(number, wanders.bend)
    card_s = card_bounds_s(wanders, slots, drift.period_std_s)
    clock = UpdateClock(
        period_s=drift.period_s,
        period_std_s=drift.period_std_s,
        card_period_68_s=card_s[0],
        card_period_95_s=card_s[1],
        jitter_s=float(np.hypot(drift.jitter_s, drift.step_s)),
        rigid=not guess.free and drift.step_s < FREE_STEP_SHARE * drift.period_s,
        n_updates=slots,
        missed_share=max(0.0, 1.0 - (count - 1) / max(slots, 1)),
        poll_s=poll_s,
    )
    return clock, Updates(time_s=ticks, value=changes.value, number=number)


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


def _grid(changes: Changes, guess: ClockGuess) -> tuple[IntArray, GridPosterior] | None:
    """The number of every change on a rigid grid, and that grid with its errors, where the record keeps to one.

    The grid is followed from the stretch where it was found, to both sides, in steps that keep its phase known.
    """
    middle, width = changes.middle_s, float(np.median(changes.width_s))
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
    if jitter > jitter_limit or value - joints * SILENCE_FLOOR < GRID_LOG_LIKELIHOOD * len(part):
        return None
    place = np.rint((middle - guess.tick_s - point[1]) / period).astype(np.int64)
    number = np.maximum.accumulate(place - np.arange(len(place))) + np.arange(len(place))
    number -= number[0]
    return number, grid_posterior(changes, number, period, jitter)


def held_updates(time_s: Array, value: Array, period_s: float) -> Updates:
    """Updates in a short stretch of polls when the period is known; an update that repeats its value counts as well.

    Changes divide the stretch; each part holds as many updates as periods fit in (rounded), a part between two
    changes at least one.
    """
    finite = np.isfinite(value)
    time_s, value = time_s[finite], value[finite]
    if not len(value):
        return Updates(time_s=np.empty(0), value=np.empty(0), number=np.empty(0, dtype=np.int64))
    changes = find_changes(time_s, value)
    edges = 0.5 * (changes.after_s + changes.until_s)
    values = np.append(value[:1], changes.value)
    starts, ends = np.append(time_s[0], edges), np.append(edges, time_s[-1])
    repeats = np.rint((ends - starts) / period_s).astype(np.int64)
    repeats[1:-1] = np.maximum(repeats[1:-1], 1)
    if not repeats.sum():
        repeats[-1] = 1
    if len(edges):
        starts[0] = ends[0] - repeats[0] * period_s
    within = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return Updates(
        time_s=np.repeat(starts, repeats) + within * period_s,
        value=np.repeat(values, repeats),
        number=np.arange(repeats.sum(), dtype=np.int64),
    )
