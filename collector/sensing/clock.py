"""The update clock of a polled sensor: period, phase, jitter and wander from readings that repeat until the next update.

Each change of the polled value brackets one update; a run of equal values shows that no update was seen in it.  Both are
evidence for a clock of period T, phase, jitter and a share of updates without a change, so that neither the polls nor a fraction
of T can be mistaken for the clock (sensor-method.md 1.2).  A banded smoother then follows the phase over the record.  Times in seconds.
"""

from dataclasses import replace
from typing import Final

import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded

from collector.errors import SensorError
from estimator.vocabulary.quantities import Array, BoolArray, IntArray
from estimator.vocabulary.values import Columns, arrays, frozen

SHORTEST_S: Final = 0.008
LONGEST_S: Final = 0.6
"""Periods between these are searched [s]; published ones are 15 to 101 ms."""
FIRST_CHANGES: Final = (25, 260)
"""Least and greatest number of changes in the first seconds, which the search uses."""
MIN_CHANGES: Final = 8
"""Least number of changes of the reading for a clock."""
COMB_S: Final = 5e-4
"""Resolution of the comb of changes whose spectrum gives candidate periods [s]."""
JITTERS_S: Final = (5e-5, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3)
WALKS_S: Final = (1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 6e-4, 1.2e-3)
"""Jitters of an update and walks of the phase per update that the smoother compares."""
SLOW_POLL, MISCOUNTED = 0.5, 0.02
"""Polls farther apart than this share of the period miscount updates without a grid, by up to this share (sensor-method.md 2.1)."""
FREE_WALK_SHARE: Final = 0.015
"""A phase that walks by more than this share of the period per update keeps no grid."""
WANDER, WANDER_S = 3.5e-4, 20.0
"""A record of up to this length cannot determine a card's period better than this share of it: clocks wander over 30 to 100 s.

Stretches of 20 s of the recorded A100 deviate by 7e-4 from the period of its 200 s.
"""
FREE_CLOCK: Final = "updates do not keep to a grid; the period is their mean distance, and times within a poll are a guess"
HOLE_S, HOLE_POLLS = 1.0, 50.0
"""Polls farther apart than this (and than this many polls) separate stretches; the clock is searched in the longest one."""


@frozen
class Updates:
    """Updates with their host times [s], values [W] and numbers on the clock; shape (n,)."""

    time_s: Array
    value: Array
    number: IntArray


@frozen
class UpdateClock:
    """Mean period over the record with its standard error, jitter of an update [s].

    `card_period_std_s` is the error as the card's own period: a short record cannot separate slow wander from another period.
    `n_updates` counts the updates that polls could see; `poll_s` is the median distance of two polls.  `rigid`: the updates keep to a
    grid.
    """

    period_s: float
    period_std_s: float
    jitter_s: float
    rigid: bool
    poll_s: float
    card_period_std_s: float = np.nan
    n_updates: int = 0
    remark: str = ""


@arrays
class _Changes(Columns):
    """Brackets (`low`, `high`] of updates and the values that they brought, and whether a hole lies before each, shape (n,)."""

    low: Array
    high: Array
    value: Array
    after_hole: BoolArray

    @property
    def middle(self) -> Array:
        return 0.5 * (self.low + self.high)

    @property
    def noise(self) -> Array:
        """Variance of a time that lies anywhere in its bracket [s²]."""
        return (self.high - self.low) ** 2 / 12.0 + 1e-12

    def __len__(self) -> int:
        return len(self.value)


def fit_update_clock(time_s: Array, value: Array) -> tuple[UpdateClock, Updates]:
    """The update clock behind polls at `time_s` (n,), ascending [s], with readings `value` (n,); and the updates that changed them.

    Raises SensorError for fewer than MIN_CHANGES changes, for changes at every poll, and for changes that no clock explains.
    """
    finite = np.isfinite(value) & np.isfinite(time_s)
    time_s, value = time_s[finite], value[finite]
    poll = float(np.median(np.diff(time_s))) if len(time_s) > 1 else 0.0
    hole = max(HOLE_S, HOLE_POLLS * poll)
    stretch = np.concatenate([[0], np.cumsum(np.diff(time_s) > hole)])
    at = np.flatnonzero(np.diff(value) != 0.0) + 1
    at = at[stretch[at] == stretch[at - 1]]  # a change across a hole does not determine its time
    changes = _Changes(low=time_s[at - 1], high=time_s[at], value=value[at], after_hole=np.diff(stretch[at], prepend=0) > 0)
    if len(changes) < MIN_CHANGES:
        raise SensorError(
            f"only {len(changes)} changes of the reading; at least {MIN_CHANGES} are needed: poll longer, or under a varying load"
        )
    if len(changes) > 0.97 * (len(time_s) - 1):
        raise SensorError(f"the reading changes with every poll ({poll * 1e3:.1f} ms): poll faster to see the update clock")
    cuts = np.array([0, *np.flatnonzero(changes.after_hole[1:]) + 1, len(changes)])
    longest = int(np.argmax(np.diff(cuts)))
    main = changes.select(slice(*cuts[longest : longest + 2]))
    if len(main) < MIN_CHANGES:
        raise SensorError(f"the polls have holes of more than {hole:.3g} s, and no stretch between them has {MIN_CHANGES} changes")
    clock, updates = _tracked(changes, _searched(main, poll), poll)
    span = float(time_s[-1] - time_s[0])
    due = due_updates(updates, clock.period_s, time_s, float(value[0]))
    wander = WANDER * clock.period_s * min(1.0, WANDER_S / span)
    return replace(
        clock,
        card_period_std_s=float(np.hypot(clock.period_std_s, wander)),
        n_updates=int(np.count_nonzero((due.number >= 0) & (due.number < updates.number[-1]))),
        remark="; ".join([FREE_CLOCK] * (not clock.rigid) + [f"the polls have {len(cuts) - 2} hole(s)"] * (len(cuts) > 2)),
    ), updates


def _searched(changes: _Changes, poll: float) -> float:
    """The period of the likeliest clock of the first changes.  Raises SensorError if random changes are about as likely."""
    least = min(FIRST_CHANGES[0], len(changes))
    few = int(np.clip(np.searchsorted(changes.low, changes.low[0] + 5.0), least, min(FIRST_CHANGES[1], len(changes))))
    first = changes.select(slice(few))
    tried = _candidates(first)
    tried = tried[np.abs(tried / poll - 1.0) > 0.03]
    lead, found = max((_lead(first, period) for period in tried.tolist()), default=(0.0, 0.0))
    # In log-likelihood per change simulated clocks lead changes at random times by at least 0.7, changes without a clock by at most 0.1.
    if lead < 0.4:
        apart = float(np.median(np.diff(changes.middle))) * 1e3
        raise SensorError(
            f"{len(changes)} changes of the reading show no update clock, they come {apart:.3g} ms apart: chance explains their times "
            f"about as well; poll every {0.2 * apart:.2g} ms or faster, under a varying load"
        )
    return found


def _lead(changes: _Changes, period: float) -> tuple[float, float]:
    """Lead of a clock with a walking phase over changes at random times at their mean rate, in log-likelihood per change; its period."""
    tick = _counted(changes, period)
    due, seen = float(tick[-1] - tick[0]) + 1.0, float(len(changes))
    shown = min(seen / due, 1.0 - 0.5 / due)
    # Least share of changes that must follow in successive updates.  Updates that are missed at random leave such changes.  A clock with
    # fewer is a fraction of distances of two lengths, unless the readings take few values.
    if np.mean(np.diff(tick) == 1.0) < 0.2 * shown and len(np.unique(changes.value)) > 0.5 * seen:
        return 0.0, period
    walked, slope = max(_walked(changes, tick, 0.0, walk, period)[:2] for walk in (1e-5, 3e-4, 1.2e-3))
    told = walked - 0.5 * seen * np.log(2.0 * np.pi) + seen * np.log(shown) + (due - seen) * np.log(1.0 - shown)
    rate = seen / max(float(changes.high[-1] - changes.low[0]), 1e-9)
    return float(told / seen - np.log(rate) + 1.0), period + slope


def _candidates(changes: _Changes) -> Array:
    """Periods to try: peaks of the spectrum of the changes, and intervals that agree with themselves."""
    age = changes.middle - changes.middle[0]
    size = 1 << int(np.ceil(np.log2(4.0 * max(age[-1], COMB_S) / COMB_S)))
    comb = np.bincount(np.round(age / COMB_S).astype(np.int64), minlength=size).astype(np.float64)
    power, frequency = np.abs(np.fft.rfft(comb)), np.fft.rfftfreq(len(comb), COMB_S)
    power[(frequency < 1.0 / LONGEST_S) | (frequency > 1.0 / SHORTEST_S)] = 0.0
    peak = np.flatnonzero((power[1:-1] > power[:-2]) & (power[1:-1] >= power[2:])) + 1
    every = 1.0 / frequency[peak[np.argsort(-power[peak])][:40]]
    return np.asarray(every[(every > SHORTEST_S) & (every < LONGEST_S)])


def _tracked(changes: _Changes, period: float, poll: float) -> tuple[UpdateClock, Updates]:
    """The clock over all changes, and the updates: the ticks are counted, then a smoother follows the phase.

    Where a pause of the polls holds several updates, the reading after it is the last one.
    """
    changes = replace(changes, low=np.maximum(changes.low, changes.high - period))
    tick = _counted(changes, period)
    fits = [(*_walked(changes, tick, jitter, walk, period), jitter, walk) for jitter in JITTERS_S for walk in WALKS_S]
    _, slope, slope_std, time, jitter, walk = max(fits, key=lambda one: one[0])
    if poll > SLOW_POLL * period and walk >= FREE_WALK_SHARE * period:
        slope_std = float(np.hypot(slope_std, MISCOUNTED * period))
    time = np.clip(time, changes.low, changes.high)
    clock = UpdateClock(
        period_s=period + slope,
        period_std_s=1.1 * slope_std,  # so that the rms of error over stated error is 1 on 60 simulated clocks
        jitter_s=float(np.hypot(jitter, walk)),
        rigid=walk < FREE_WALK_SHARE * (period + slope),
        poll_s=poll,
    )
    return clock, Updates(time_s=np.maximum.accumulate(time), value=changes.value, number=(tick - tick[0]).astype(np.int64))


def _counted(changes: _Changes, period: float) -> Array:
    """The tick of every change (n,); the phase is corrected by the distance of the tick from its bracket, and anew after a hole."""
    tick, last, phase = np.empty(len(changes)), -1e18, float(changes.middle[0])
    brackets = zip(changes.low.tolist(), changes.high.tolist(), changes.after_hole.tolist(), strict=True)
    for i, (low, high, after_hole) in enumerate(brackets):
        here = max(float(round((0.5 * (low + high) - phase) / period)), last + 1.0)
        time = phase + here * period
        away = low - time if time < low else high - time if time > high else 0.0
        phase += 0.5 * (low + high) - time if after_hole else 0.8 * max(-0.3 * period, min(0.3 * period, away))
        tick[i] = last = here
    return tick


def _walked(changes: _Changes, tick: Array, jitter: float, walk: float, period: float) -> tuple[float, float, float, Array]:
    """Log-likelihood, slope, its standard error and times (n,) of a phase that walks by `walk` per tick, and freely in holes."""
    middle, noise = changes.middle, changes.noise + jitter**2
    left = middle - tick * period
    hole = changes.after_hole[1:]
    gap = np.where(hole, 1.0, np.diff(tick))
    place = np.append(0.0, np.cumsum(gap))
    place, left = place - place.mean(), left - left.mean()
    link = 1.0 / np.where(hole, period**2, walk**2 * gap)
    band = np.zeros((2, len(left)))
    band[1] = 1.0 / noise
    band[1, :-1] += link
    band[1, 1:] += link
    band[0, 1:] = -link
    root = cholesky_banded(band)
    volume = 2.0 * np.log(root[1]).sum() - np.log(link).sum() + np.log(noise).sum()
    for _ in range(2):
        both = np.column_stack([left, place])
        smooth = cho_solve_banded((root, False), both / noise[:, None])
        (yy, yt), (_, tt) = both.T @ ((both - smooth) / noise[:, None])
        fitted = smooth[:, 0] + yt / tt * (place - smooth[:, 1])
        left = np.clip(left, fitted - 4.0 * np.sqrt(noise), fitted + 4.0 * np.sqrt(noise))
    time = fitted + tick * period + np.mean(middle - tick * period)
    return -0.5 * float(volume + yy - yt * yt / tt), float(yt / tt), float(1.0 / np.sqrt(tt)), np.asarray(time)


def due_updates(changes: Updates, period_s: float, poll_s: Array, first_value: float) -> Updates:
    """All updates with a poll before the next one: `changes`, and between, before and after them those that repeat a value."""
    ticks = changes.number.astype(np.float64)
    early, late = np.minimum(poll_s - changes.time_s[0], 0.0), np.maximum(poll_s - changes.time_s[-1], 0.0)
    polled = np.floor(np.interp(poll_s, changes.time_s, ticks) + (early + late) / period_s)
    number = np.union1d(polled, ticks)
    beyond = np.minimum(number - ticks[0], 0.0) + np.maximum(number - ticks[-1], 0.0)
    return Updates(
        time_s=np.interp(number, ticks, changes.time_s) + beyond * period_s,
        value=np.append(first_value, changes.value)[np.searchsorted(ticks, number, side="right")],
        number=number.astype(np.int64),
    )


def held_updates(time_s: Array, value: Array, period_s: float) -> Updates:
    """Updates in polls (n,) of possible power that show no clock, with a known period: changes are whole periods apart."""
    if not len(value):
        return Updates(time_s=time_s, value=value, number=np.empty(0, dtype=np.int64))
    at = np.flatnonzero(np.diff(value) != 0.0) + 1
    at = at if len(at) else np.zeros(1, dtype=np.int64)
    edge = np.maximum(0.5 * (time_s[np.maximum(at - 1, 0)] + time_s[at]), time_s[at] - 0.5 * period_s)
    number = np.cumsum(np.maximum(np.rint(np.diff(edge, prepend=edge[0]) / period_s), 1.0)).astype(np.int64)
    whole = (time_s > time_s[0] + 0.5 * period_s) & (time_s < time_s[-1] - 0.5 * period_s)  # rounds the parts at both ends
    return due_updates(Updates(time_s=edge, value=value[at], number=number), period_s, time_s[whole], float(value[0]))
