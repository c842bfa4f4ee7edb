"""The update clock of a sensor from polled readings, repeats included.

A change between two polls brackets an update; runs without a change are evidence too: they speak against
clocks that are faster than the true one.  Both together make a likelihood of (period, phase, jitter) that
neither the poll period nor a fraction of the period can fool.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensor.search import curvature_covariance, zoom_maximum
from estimator.quantities import Array, IntArray

CHANGE_FLOOR: Final = 2e-3
"""Probability of a change that no update explains; keeps one odd reading from deciding."""
MISSED_SHARES: Final = (0.005, 0.05, 0.3, 0.8)
"""Shares of updates that may show no change (skipped, or the same value again)."""
SILENCE_FLOOR: Final = -60.0
"""Least log-probability of one silence."""
FIRST_SPAN_S: Final = 5.0
FIRST_CHANGES: Final = 80
"""Span and changes of the first search; longer records extend it."""
MIN_CHANGES: Final = 12
"""Fewer changes than this say nothing about a clock."""
PERIOD_LIMITS_S: Final = (2e-3, 2.0)
"""Periods between which sensors of NVIDIA boards lie, with room (15 to 101 ms seen)."""
RIGID_JITTER_SHARE: Final = 0.06
"""A clock whose phase noise is below this share of its period keeps a grid."""
WANDER_SHARE: Final = 2e-4
"""Slow wander of a card's clock, as a share of the period, over recordings of 10 s and less."""
WANDER_SPAN_S: Final = 10.0
LOOP_GAIN: Final = 0.25
"""How far the phase of a tracked clock follows a tick that was seen outside its bracket."""
FREE_LOOP_GAIN: Final = 0.8
LOG_JITTER_LIMITS: Final = (float(np.log(2e-5)), 0.0)
MAX_JITTER_SHARE: Final = 0.25
"""A phase that scatters by more than this share of the period is none."""
SPECTRUM_BIN_S: Final = 5e-4
START_JITTER_S: Final = 1e-3
START_PERIODS: Final = 5
"""Jitter with which periods are first compared, and how many of them are searched further."""
CHUNK: Final = 2_000_000
"""Likelihood terms that are evaluated at once; bounds memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of a polled value: update i came after `after_s` and not later than `until_s`, and left `value`.  Shape (n,)."""

    after_s: Array
    until_s: Array
    value: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateClock:
    """Period and its standard error, jitter of an update, and whether updates keep to a grid [s].

    `n_updates` counts the updates that the record spans, `missed_share` those among them that showed no change.
    `poll_s` is the median distance of two polls.
    """

    period_s: float
    period_std_s: float
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


def find_changes(time_s: Array, value: Array) -> Changes:
    """The changes in polls at `time_s` (ascending), both of shape (n,); polls that are not finite are left out."""
    finite = np.isfinite(value)
    time_s, value = time_s[finite], value[finite]
    index = np.flatnonzero(value[1:] != value[:-1]) + 1
    return Changes(after_s=time_s[index - 1], until_s=time_s[index], value=value[index])


def fit_update_clock(time_s: Array, value: Array) -> tuple[UpdateClock, Updates]:
    """The update clock behind polls, and the updates on it.

    `time_s` are host stamps [s], ascending, `value` the readings, repeats included, both of shape (n,).

    Raises SensorError for too few changes, and where changes come with every poll.
    """
    changes = find_changes(time_s, value)
    count = len(changes.value)
    if count < MIN_CHANGES:
        raise SensorError(f"only {count} changes of the reading; at least {MIN_CHANGES} are needed: poll longer, or under a varying load")
    poll_s = float(np.median(np.diff(time_s)))
    if count > 0.9 * (len(time_s) - 1):
        raise SensorError(f"the reading changes with every poll ({poll_s * 1e3:.1f} ms): poll faster to see the update clock")
    first = _part(changes, min(FIRST_SPAN_S, float(changes.until_s[min(FIRST_CHANGES, count) - 1] - changes.until_s[0])))
    best = _search(first, poll_s)
    while True:
        span = first.until_s[-1] - first.until_s[0]
        if len(first.value) == count:
            break
        shorter, first = first, _part(changes, 2.0 * span)
        best = _refined(first, _moved(best, shorter, first), poll_s)
    period, phase, log_jitter = best
    jitter = float(np.exp(log_jitter))
    rigid = jitter < max(RIGID_JITTER_SHARE * period, 0.25 * poll_s)
    updates = _tracked(changes, float(period), float(phase), LOOP_GAIN if rigid else FREE_LOOP_GAIN)
    number = int(updates.number[-1] - updates.number[0])
    span = float(changes.until_s[-1] - changes.until_s[0])
    if rigid:
        function = _likelihood_of(changes)
        step = np.array([0.3 * max(jitter, 0.1 * poll_s) / max(number, 1), 0.3 * max(jitter, 0.1 * poll_s), 0.2])
        variance = float(curvature_covariance(function, best, step)[0, 0])
        fallback = (poll_s / max(number, 1)) ** 2
        std = float(np.sqrt(variance if np.isfinite(variance) else fallback))
    else:
        period = (updates.time_s[-1] - updates.time_s[0]) / number
        std = float(np.hypot(np.std(np.diff(updates.time_s) - period * np.diff(updates.number)) / np.sqrt(number), poll_s / number))
    std = float(np.hypot(std, WANDER_SHARE * period * min(1.0, WANDER_SPAN_S / max(span, 1e-3))))
    clock = UpdateClock(
        period_s=float(period),
        period_std_s=std,
        jitter_s=jitter,
        rigid=bool(rigid),
        n_updates=number,
        missed_share=max(0.0, 1.0 - (count - 1) / max(number, 1)),
        poll_s=poll_s,
    )
    return clock, updates


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


def _part(changes: Changes, span_s: float) -> Changes:
    """The changes of the first `span_s`."""
    count = int(np.searchsorted(changes.until_s, changes.until_s[0] + span_s, side="right"))
    count = min(max(count, MIN_CHANGES), len(changes.value))
    return Changes(after_s=changes.after_s[:count], until_s=changes.until_s[:count], value=changes.value[:count])


def _ticks(x: Array, period: Array, phase: Array, jitter: Array) -> Array:
    """Expected number of updates before times x, up to a constant."""
    position = (x - phase) / period
    whole = np.rint(position)
    z = np.clip((position - whole) * period / jitter, -6.0, 6.0)
    return whole + 0.5 * (1.0 + np.tanh(0.7978845608028654 * (z + 0.044715 * z**3)))  # normal distribution, error < 4e-4


def _likelihood_of(changes: Changes) -> Callable[[Array], Array]:
    """The log-likelihood of (period, phase at the record's middle, log jitter), shape (g, 3) → (g,)."""
    after, until = changes.after_s, changes.until_s
    middle = 0.5 * (until[0] + until[-1])
    missed = np.array(MISSED_SHARES)[:, None]

    def block(points: Array) -> Array:
        period, phase, jitter = points[:, :1], points[:, 1:2] + middle, np.exp(points[:, 2:3])
        n_after, n_until = _ticks(after, period, phase, jitter), _ticks(until, period, phase, jitter)
        seen = np.minimum(n_until - n_after, 1.0)
        silent = np.maximum(n_after[:, 1:] - n_until[:, :-1], 0.0)
        whole = np.floor(silent)
        best = np.full(len(points), -np.inf)
        for share in missed[:, 0]:
            change = np.log(CHANGE_FLOOR + (1.0 - CHANGE_FLOOR) * seen * (1.0 - share)).sum(axis=1)
            silence = np.maximum(whole * np.log(share) + np.log1p(-(silent - whole) * (1.0 - share)), SILENCE_FLOOR).sum(axis=1)
            best = np.maximum(best, change + silence)
        return best

    def function(points: Array) -> Array:
        size = max(1, CHUNK // len(after))
        values = np.concatenate([block(points[i : i + size]) for i in range(0, len(points), size)])
        period, log_jitter = points[:, 0], points[:, 2]
        good = (period >= PERIOD_LIMITS_S[0]) & (period <= PERIOD_LIMITS_S[1])
        good &= (log_jitter >= LOG_JITTER_LIMITS[0]) & (log_jitter <= np.log(MAX_JITTER_SHARE * np.maximum(period, PERIOD_LIMITS_S[0])))
        return np.where(good, values, -np.inf)

    return function


def _search(changes: Changes, poll_s: float) -> Array:
    """(period, phase at the middle, log jitter) of the best clock for a short record, searched over all periods."""
    middle_times = 0.5 * (changes.after_s + changes.until_s)
    span = float(middle_times[-1] - middle_times[0])
    centre = 0.5 * (changes.until_s[0] + changes.until_s[-1])
    half = float(np.median(0.5 * (changes.until_s - changes.after_s)))
    periods = _candidate_periods(middle_times, span)
    periods = np.unique(np.concatenate([periods, periods - periods**2 / (6.0 * span), periods + periods**2 / (6.0 * span)]))
    periods = periods[(periods > PERIOD_LIMITS_S[0]) & (periods < min(PERIOD_LIMITS_S[1], span / 3.0))]
    angle = np.angle(np.exp(2j * np.pi * (middle_times - centre) / periods[:, None]).mean(axis=1)) / (2 * np.pi) * periods
    near = angle[:, None] + np.linspace(-2.0 * half, 2.0 * half, 13)
    everywhere = periods[:, None] * np.linspace(0.0, 1.0, 16, endpoint=False)
    phases = np.concatenate([near, everywhere], axis=1)
    starts = np.stack([np.repeat(periods, phases.shape[1]), phases.ravel(), np.full(phases.size, np.log(START_JITTER_S))], axis=1)
    function = _likelihood_of(changes)
    values = function(starts)
    best: Array = starts[0]
    best_value = -np.inf
    for period in _best_periods(starts, values, START_PERIODS):
        start = starts[np.argmax(np.where(starts[:, 0] == period, values, -np.inf))]
        width = np.array([period**2 / (6.0 * span), half + 1e-3, 1.0])
        point, value = zoom_maximum(function, start, width, rounds=8)
        if value > best_value:
            best, best_value = point, value
    return best


def _best_periods(starts: Array, values: Array, count: int) -> list[float]:
    """The periods of the best starts, each once."""
    chosen: list[float] = []
    for index in np.argsort(-values):
        period = float(starts[index, 0])
        if period not in chosen:
            chosen.append(period)
        if len(chosen) == count:
            break
    return chosen


def _candidate_periods(middle_times: Array, span: float) -> Array:
    """Periods at which change times cluster: spectral peaks, distances of changes, and their simple multiples."""
    bins = np.zeros(max(64, int(2 ** np.ceil(np.log2(4.0 * span / SPECTRUM_BIN_S)))))
    np.add.at(bins, ((middle_times - middle_times[0]) / SPECTRUM_BIN_S).astype(np.int64), 1.0)
    spectrum = np.abs(np.fft.rfft(bins))
    frequency = np.fft.rfftfreq(len(bins), SPECTRUM_BIN_S)
    low = int(np.searchsorted(frequency, 3.0 / span))
    high = int(np.searchsorted(frequency, 1.0 / PERIOD_LIMITS_S[0]))
    inner = spectrum[low:high]
    peak = np.flatnonzero((inner[1:-1] >= inner[:-2]) & (inner[1:-1] > inner[2:])) + 1
    strongest = 1.0 / frequency[low + peak[np.argsort(-inner[peak])[:40]]]
    gaps = np.diff(middle_times)
    fixed = []
    for quantile in (0.05, 0.25, 0.5, 0.75):
        period = float(np.quantile(gaps, quantile))
        for _ in range(6):
            period = float(gaps.sum() / np.maximum(1.0, np.rint(gaps / period)).sum())
        fixed.append(period)
    base = np.concatenate([fixed, strongest])
    top = np.concatenate([fixed, strongest[:12]])
    return np.concatenate([base, 2.0 * top, 0.5 * top, 3.0 * top])


def _refined(changes: Changes, best: Array, poll_s: float) -> Array:
    """The best clock for a longer record, from that of its beginning."""
    period, phase, log_jitter = (float(value) for value in best)
    span = float(changes.until_s[-1] - changes.until_s[0])
    updates = _tracked(changes, period, phase, LOOP_GAIN)
    number = updates.number - updates.number.mean()
    slope = float((number @ (updates.time_s - updates.time_s.mean())) / (number @ number))
    middle = 0.5 * (changes.until_s[0] + changes.until_s[-1])
    start = np.array([slope, updates.time_s.mean() - slope * updates.number.mean() - middle, log_jitter])
    start[1] -= slope * np.rint(start[1] / slope)
    return zoom_maximum(_likelihood_of(changes), start, np.array([poll_s * slope / span, poll_s, 0.8]), rounds=10)[0]


def _tracked(changes: Changes, period: float, phase: float, gain: float) -> Updates:
    """Every change numbered by a clock that follows slow wander, and its time within its bracket.

    The clock moves only where a tick falls outside its bracket, never towards the bracket's middle: middles
    follow the polls, not the sensor.  `phase` is relative to the first change's bracket span, any tick will do.
    """
    count = len(changes.value)
    number = np.empty(count, dtype=np.int64)
    times = np.empty(count)
    tick = _nearest_tick(changes, period, phase)
    index = 0
    for i in range(count):
        after, until = changes.after_s[i], changes.until_s[i]
        steps = int(np.rint((0.5 * (after + until) - tick) / period))
        if i:
            steps = max(steps, 1)
        predicted = tick + steps * period
        inside = min(max(predicted, after), until)
        index += steps
        number[i], times[i] = index, inside
        tick = predicted + gain * (inside - predicted)
    return Updates(time_s=times, value=changes.value, number=number - number[0])


def _nearest_tick(changes: Changes, period: float, phase: float) -> float:
    """The tick nearest to the first change, from a phase given relative to the record's middle."""
    middle = 0.5 * (changes.until_s[0] + changes.until_s[-1])
    first = 0.5 * (changes.after_s[0] + changes.until_s[0])
    return float(middle + phase + period * np.rint((first - middle - phase) / period))


def _moved(best: Array, shorter: Changes, longer: Changes) -> Array:
    """A clock whose phase is given for the middle of one record, for the middle of another."""
    shift = 0.5 * (shorter.until_s[0] + shorter.until_s[-1]) - 0.5 * (longer.until_s[0] + longer.until_s[-1])
    return np.array([best[0], best[1] + shift, best[2]])
