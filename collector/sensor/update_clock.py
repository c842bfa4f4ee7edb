"""The update clock of a sensor that is polled: period, phase, jitter and slow wander from readings with repeats.

A change between two polls says that an update came between them, silence says that none came (or showed nothing
new).  Both are evidence, so neither the poll period nor a fraction of the period can pose as the clock.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensor.clock_evidence import LEAST_LEAD, clock_doubt, distances_of
from collector.sensor.clock_fitting import MIN_CHANGES, RELIABLE, FittedClock, fitted, shown_clock
from collector.sensor.clock_likelihood import Changes, find_changes
from collector.sensor.clock_parts import BEYOND, THIRDS, PartPeriod, PartsMean, mean_of, parts_of, phase_lost, set_apart, times_text
from collector.sensor.clock_patterns import Skips, regular_skips
from collector.sensor.clock_search import likelihood_near, search_clock
from collector.sensor.clock_stretches import clock_of_stretches
from collector.sensor.clock_wander import STEADY, card_bounds_s, shared_of_track, wanders_of
from estimator.quantities import Array, IntArray

MOST_CHANGING: Final = 0.97
"""Share of polls that show a change, beyond which the polls are too slow to see a clock."""
FREE_STEP_SHARE: Final = 0.015
"""A clock whose phase walks by more than this share of the period per update keeps no grid."""

MOST_JUMP: Final = 0.1
"""A clock that wanders is followed over holes, but not where its phase jumps by more periods than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateClock:
    """Mean period over the record and its standard error, jitter of an update, and whether updates keep to a grid [s].

    The card's own period lies within `card_period_68_s` of it in 68 of 100 cases, within `card_period_95_s` in 95: slow wander, which
    a short record cannot tell from another period, has no normal distribution (see `clock_wander`).
    `n_updates` counts the updates that polls could see, those in holes left out, `missed_share` those among them that showed no change.
    `poll_s` is the median distance of two polls, `skips` which updates do not come, where that is one in turn.  `remark` says that, and
    where the phase is lost in the record; "" where neither is so.
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
    remark: str = ""
    skips: Skips | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """Updates with their times, values and numbers on the clock; shape (n,).

    `shared_s` (m, n) is what their times may be off by together: independent changes of one standard deviation each; None where it is
    not known.
    """

    time_s: Array
    value: Array
    number: IntArray
    shared_s: Array | None = None


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
    fit, together, remark = _whole_or_stretches(changes, poll_s)
    slots, span_s = int(fit.number[-1]), float(changes.until_s[-1] - changes.after_s[0])
    wanders = STEADY if fit.free or remark else wanders_of(fit.bend, span_s)  # the error of stretches holds their wander
    drift, ticks = fit.drift, fit.tick_s
    if fit.grid is not None:
        drift, ticks = fit.grid.drift(wanders.bend), fit.grid.tick_s(fit.number, wanders.bend)
        shared = fit.grid.shared_s(fit.number, wanders.bend)
    else:
        shared = shared_of_track(changes.latest(drift.period_s), drift)
    if together is not None:
        drift = replace(drift, period_s=together.period_s, period_std_s=together.std_s)
    card_s = card_bounds_s(wanders, slots, drift.period_std_s)
    skips = None if remark else regular_skips(changes, fit.number, poll_s)
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
        remark="; ".join(text for text in (remark, "" if skips is None else skips.remark(drift.period_s)) if text),
        skips=skips,
    )
    return clock, Updates(time_s=ticks, value=changes.value, number=fit.number, shared_s=shared)


def _whole_or_stretches(changes: Changes, poll_s: float) -> tuple[FittedClock, PartsMean | None, str]:
    """The clock of all changes, and what parts say of its period; where the phase is lost in holes that of the stretches, and a remark.

    Raises SensorError where neither shows a clock.
    """
    try:
        whole = shown_clock(changes, search_clock(changes), poll_s)
        together = _by_parts(changes, whole, poll_s)
    except SensorError:
        stretched = clock_of_stretches(changes, poll_s)
        if stretched is None:
            raise
        return stretched.fit, stretched.together, stretched.remark()
    if whole.grid is None:
        with suppress(SensorError):
            stretched = clock_of_stretches(changes, poll_s)
            if stretched is not None and stretched.jump > MOST_JUMP and stretched.together.std_s < whole.drift.period_std_s:
                return stretched.fit, stretched.together, stretched.remark()
    return whole, together, ""


def _by_parts(changes: Changes, fit: FittedClock, poll_s: float) -> PartsMean | None:
    """What parts of the record say, where the whole's period and error do not hold; None where they do.

    Raises SensorError for parts whose periods differ by more than RELIABLE.
    """
    whole_s = fit.drift.period_s
    parts, stretched = parts_of(changes, whole_s, poll_s)
    periods = [period for part in parts if (period := _part_period(part, whole_s)) is not None]
    if len(periods) < 1 + (not stretched):
        return _with_clock_set(changes, fit, poll_s)
    values = [period.period_s for period in periods]
    if max(values) > (1.0 + RELIABLE) * min(values):
        raise SensorError(
            f"{len(changes)} changes of the reading show no update clock that lasts: the period differs between parts of the record: "
            f"{times_text(periods)}; record again without changing driver settings or the board's state, or give one part only"
        )
    together = mean_of(periods)
    if not stretched and sum(map(len, parts)) < len(changes) - THIRDS:
        return _with_clock_set(changes, fit, poll_s)  # of a long record only pieces were fitted, and wander moves those more than the whole
    if abs(whole_s - together.period_s) > BEYOND * float(np.hypot(together.std_s, fit.drift.period_std_s)):
        return together  # the number of updates slipped somewhere
    if stretched and phase_lost(changes, together):
        return together
    if not together.disagree:
        return _with_clock_set(changes, fit, poll_s)
    return replace(together, period_s=whole_s, std_s=max(together.std_s, fit.drift.period_std_s))


def _with_clock_set(changes: Changes, fit: FittedClock, poll_s: float) -> PartsMean | None:
    """The period of the parts between holes in which the clock may have been set; None where there are none or they show no period."""
    periods = [period for part in set_apart(changes, poll_s) if (period := _part_period(part, fit.drift.period_s)) is not None]
    if not periods:
        return None
    apart = mean_of(periods)
    return replace(apart, std_s=max(apart.std_s, fit.drift.period_std_s))


def _part_period(part: Changes, whole_s: float) -> PartPeriod | None:
    """The period of a part: its own where it leads the whole's, else near that; None where the part shows no clock."""
    guess = search_clock(part)
    poll_s = float(np.median(part.width_s))
    own = abs(guess.period_s / whole_s - 1.0) > RELIABLE
    if own:
        lead = likelihood_near(part, np.array([guess.period_s])) - likelihood_near(part, np.array([whole_s]))
        own = lead >= LEAST_LEAD[False]
        guess = guess if own else replace(guess, period_s=whole_s, tick_s=float(part.middle_s[0]))
    fit = fitted(part, guess)
    drift = fit.drift
    if not own and clock_doubt(part, distances_of(part, fit.number, poll_s), drift.period_s, fit.per_change)[0]:
        return None
    wanders = wanders_of(fit.bend, float(part.until_s[-1] - part.after_s[0]))
    return PartPeriod(period_s=drift.period_s, std_s=card_bounds_s(wanders, int(fit.number[-1]), drift.period_std_s)[0])


def _polled(poll_s: Array, tick_s: Array, number: IntArray) -> int:
    """How many ticks, from the first change to the one before the last, were followed by a poll before the next tick."""
    within = poll_s[(poll_s >= tick_s[0]) & (poll_s < tick_s[-1])]
    return len(np.unique(np.floor(np.interp(within, tick_s, number))))


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
