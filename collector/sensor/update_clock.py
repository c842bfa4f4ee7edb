"""The update clock of a sensor that is polled: period, phase, jitter and slow wander from readings with repeats.

A change between two polls says that an update came between them, silence says that none came (or showed nothing
new).  Both are evidence, so neither the poll period nor a fraction of the period can pose as the clock.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensor.clock_evidence import LEAST_LEAD, clock_doubt, distances_of, hole_doubt, multiple_of, seen_apart
from collector.sensor.clock_likelihood import SILENCE_FLOOR, Changes, find_changes, likelihood_of
from collector.sensor.clock_parts import BEYOND, THIRDS, PartPeriod, PartsMean, mean_of, parts_of, phase_lost, times_text
from collector.sensor.clock_posterior import Bend, GridPosterior, grid_posterior
from collector.sensor.clock_rounding import crossing_doubt
from collector.sensor.clock_search import SECOND_CHANGES, ClockGuess, likelihood_near, search_clock
from collector.sensor.clock_tracking import Drift, fit_drift, last_in_brackets, numbered, smoothed_ticks
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
FIXED_POINT_ROUNDS: Final = 6
RELIABLE: Final = 0.02
"""A refined period further than this from the first one is a slip of the numbering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateClock:
    """Mean period over the record and its standard error, jitter of an update, and whether updates keep to a grid [s].

    The card's own period lies within `card_period_68_s` of it in 68 of 100 cases, within `card_period_95_s` in 95: slow wander, which
    a short record cannot tell from another period, has no normal distribution (see `clock_wander`).
    `n_updates` counts the updates that polls could see, those in holes left out, `missed_share` those among them that showed no change.
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

    Raises SensorError for too few changes, where changes come with every poll, and where they show no clock (see `clock_evidence`).
    """
    changes = find_changes(time_s, value)
    count = len(changes)
    if count < MIN_CHANGES:
        raise SensorError(f"only {count} changes of the reading; at least {MIN_CHANGES} are needed: poll longer, or under a varying load")
    poll_s = float(np.median(np.diff(time_s)))
    if count > MOST_CHANGING * (len(time_s) - 1):
        raise SensorError(f"the reading changes with every poll ({poll_s * 1e3:.1f} ms): poll faster to see the update clock")
    fit = shown_clock(changes, search_clock(changes), poll_s)
    together = _by_parts(changes, fit, poll_s)
    slots, span_s = int(fit.number[-1]), float(changes.until_s[-1] - changes.after_s[0])
    wanders = STEADY if fit.free else wanders_of(fit.bend, span_s)
    drift, ticks = fit.drift, fit.tick_s
    if fit.grid is not None:
        drift, ticks = fit.grid.drift(wanders.bend), fit.grid.tick_s(fit.number, wanders.bend)
    if together is not None:
        drift = replace(drift, period_s=together.period_s, period_std_s=together.std_s)
    card_s = card_bounds_s(wanders, slots, drift.period_std_s)
    polled = _polled(time_s[np.isfinite(value)], ticks, fit.number)
    clock = UpdateClock(
        period_s=drift.period_s,
        period_std_s=drift.period_std_s,
        card_period_68_s=card_s[0],
        card_period_95_s=card_s[1],
        jitter_s=float(np.hypot(drift.jitter_s, drift.step_s)),
        rigid=not fit.free and drift.step_s < FREE_STEP_SHARE * drift.period_s,
        n_updates=polled,
        missed_share=max(0.0, 1.0 - (count - 1) / max(polled, 1)),
        poll_s=poll_s,
    )
    return clock, Updates(time_s=ticks, value=changes.value, number=fit.number)


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
        fit = _fitted(changes, start)
        distances = distances_of(changes, fit.number, poll_s)
        multiple = multiple_of(distances)
        if multiple > 1:
            fit = _fitted(changes, replace(start, period_s=multiple * fit.drift.period_s, tick_s=float(fit.tick_s[0])))
            distances = distances_of(changes, fit.number, poll_s)
        doubt, remedy = crossing_doubt(changes, fit.tick_s, fit.drift.period_s, fit.drift.jitter_s, grid=fit.grid is not None)
        if not doubt:
            doubt, remedy = clock_doubt(changes, distances, fit.drift.period_s, fit.per_change)
        if not doubt:
            doubt, remedy = hole_doubt(changes, fit.number, fit.drift.period_s, poll_s)
        if not doubt:
            return fit
        doubts.append(f"{len(changes)} changes of the reading{seen_apart(distances)} show no update clock: {doubt}; {remedy}")
    raise SensorError(doubts[0])


def _by_parts(changes: Changes, fit: FittedClock, poll_s: float) -> PartsMean | None:
    """What parts of the record say, where the whole's period and error do not hold; None where they do.

    Raises SensorError for parts whose periods differ by more than RELIABLE.
    """
    whole_s = fit.drift.period_s
    parts, stretched = parts_of(changes, whole_s, poll_s)
    periods = [period for part in parts if (period := _part_period(part, whole_s)) is not None]
    if len(periods) < 1 + (not stretched):
        return None
    values = [period.period_s for period in periods]
    if max(values) > (1.0 + RELIABLE) * min(values):
        raise SensorError(
            f"{len(changes)} changes of the reading show no update clock that lasts: the period differs between parts of the record: "
            f"{times_text(periods)}; record again without changing driver settings or the board's state, or give one part only"
        )
    together = mean_of(periods)
    if not stretched and sum(map(len, parts)) < len(changes) - THIRDS:
        return None  # of a long record only pieces were fitted, and wander moves those more than the whole
    if abs(whole_s - together.period_s) > BEYOND * float(np.hypot(together.std_s, fit.drift.period_std_s)):
        return together  # the number of updates slipped somewhere
    if stretched and phase_lost(changes, together):
        return together
    if not together.disagree:
        return None
    return replace(together, period_s=whole_s, std_s=max(together.std_s, fit.drift.period_std_s))


def _part_period(part: Changes, whole_s: float) -> PartPeriod | None:
    """The period of a part: its own where it leads the whole's, else near that; None where the part shows no clock."""
    guess = search_clock(part)
    poll_s = float(np.median(part.width_s))
    own = abs(guess.period_s / whole_s - 1.0) > RELIABLE
    if own:
        lead = likelihood_near(part, np.array([guess.period_s])) - likelihood_near(part, np.array([whole_s]))
        own = lead >= LEAST_LEAD[False]
        guess = guess if own else replace(guess, period_s=whole_s, tick_s=float(part.middle_s[0]))
    fit = _fitted(part, guess)
    drift = fit.drift
    if not own and clock_doubt(part, distances_of(part, fit.number, poll_s), drift.period_s, fit.per_change)[0]:
        return None
    wanders = wanders_of(fit.bend, float(part.until_s[-1] - part.after_s[0]))
    return PartPeriod(period_s=drift.period_s, std_s=card_bounds_s(wanders, int(fit.number[-1]), drift.period_std_s)[0])


def _by_distances(changes: Changes, guess: ClockGuess) -> ClockGuess:
    """A clock of the changes' commonest distance, with ticks that keep to no grid."""
    gaps = np.diff(changes.middle_s)
    period = float(np.median(gaps))
    for _ in range(FIXED_POINT_ROUNDS):
        period = float(gaps.sum() / np.maximum(1.0, np.rint(gaps / period)).sum())
    return replace(guess, period_s=period, tick_s=float(changes.middle_s[0]), free=True)


def _fitted(changes: Changes, guess: ClockGuess) -> FittedClock:
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


def _polled(poll_s: Array, tick_s: Array, number: IntArray) -> int:
    """How many ticks, from the first change to the one before the last, were followed by a poll before the next tick."""
    within = poll_s[(poll_s >= tick_s[0]) & (poll_s < tick_s[-1])]
    return len(np.unique(np.floor(np.interp(within, tick_s, number))))


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
    per_change = (value - joints * SILENCE_FLOOR) / len(part)
    if jitter > jitter_limit or per_change < GRID_LOG_LIKELIHOOD:
        return None
    place = np.rint((middle - guess.tick_s - point[1]) / period).astype(np.int64)
    number = np.maximum.accumulate(place - np.arange(len(place))) + np.arange(len(place))
    number = last_in_brackets(changes, number - number[0], period)
    return number, grid_posterior(changes.latest(period), number, period, jitter), per_change


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
