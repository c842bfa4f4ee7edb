"""Finding the update period behind changes without knowing anything of it."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensor.clock_likelihood import PERIOD_LIMITS_S, Changes, likelihood_of, log_likelihoods
from collector.sensor.simplex import simplex_maximum
from estimator.quantities import Array

FIRST_CHANGES: Final = 80
"""Changes of the first search; the best periods are then held against more of the record."""
SECOND_CHANGES: Final = 320
PEAKS: Final = 40
MULTIPLIED: Final = 12
"""Spectral peaks taken as candidates, and how many of them with their simple multiples."""
SPECTRUM_BIN_S: Final = 5e-4
START_JITTER_S: Final = 1e-3
REFINED: Final = 8
KEPT: Final = 3
"""Periods that are searched further on the first changes, and on more."""
EVALUATIONS: Final = 140
PHASES: Final = 16
NEAR_PHASES: Final = 13
"""Phases tried over the period, and around the circular mean of the changes: the former alone step over a 1 ms bracket."""
FREE_BELOW_S: Final = 0.05
"""Clocks whose jitter adds up were seen with short periods only."""
SEGMENT: Final = 16
SEGMENT_COST: Final = 3.0
FREE_LEAD: Final = 4.0
"""A free-running clock is compared on segments of so many changes, each with a phase of its own at this cost in
log-likelihood, and is taken where it leads by so much."""
FREE_CANDIDATES: Final = 14
HOLE_GAPS: Final = (40.0, 400.0)
"""A hole is a gap of this many usual distances of changes; of more where stretches between those hold fewer than FIRST_CHANGES."""
LEAST_STRETCH: Final = 12
MOST_SCANNED: Final = 2000
SLOW_POLL_SHARE: Final = 0.35
"""Polls apart by more than this share of the changes' distance: change times then cluster at the polls' own distance."""
SCANNED: Final = (0.7, 2.0)
"""Periods that are then scanned one by one, in median distances of changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockGuess:
    """A clock: period, time of one tick, jitter [s]; `free` where ticks keep to no grid."""

    period_s: float
    tick_s: float
    jitter_s: float
    free: bool


def search_clock(changes: Changes) -> ClockGuess:
    """The clock of the beginning of a record (SECOND_CHANGES changes after the last long hole before them)."""
    changes = _unbroken(changes)
    first = changes.part(0, FIRST_CHANGES)
    candidates = _candidate_periods(first.middle_s, float(np.median(first.width_s)))
    guesses = _scored(first, candidates)[:REFINED]
    origin = float(first.middle_s[0])
    span = float(first.until_s[-1] - first.until_s[0])
    refined = [_refined(first, guess, origin, span) for guess in guesses]
    refined.sort(key=lambda item: -item[1])
    longer = changes.part(0, SECOND_CHANGES)
    if len(longer) > len(first):
        finalists = _distinct([item[0] for item in refined])[:KEPT]
        span = float(longer.until_s[-1] - longer.until_s[0])
        refined = [_refined(longer, point, origin, span) for point in _lengthened(changes, finalists, origin)]
        refined.sort(key=lambda item: -item[1])
    point, value = refined[0]
    period = float(point[0])
    if period < FREE_BELOW_S:
        gaps = np.median(np.diff(longer.middle_s))
        near = candidates[np.argsort(np.abs(candidates / gaps - 1.0))][:FREE_CANDIDATES]
        free_period, free_value = _best_free(longer, np.append(near, [float(item[0][0]) for item in refined]))
        if free_value > value + FREE_LEAD:
            return ClockGuess(period_s=free_period, tick_s=float(longer.middle_s[0]), jitter_s=float(np.exp(point[2])), free=True)
    return ClockGuess(period_s=period, tick_s=origin + float(point[1]), jitter_s=float(np.exp(point[2])), free=False)


def likelihood_near(changes: Changes, periods_s: Array) -> float:
    """The log-likelihood of the best rigid clock with about one of the periods, on SECOND_CHANGES changes at most."""
    part = changes.part(0, SECOND_CHANGES)
    span = float(part.until_s[-1] - part.until_s[0])
    return max(_refined(part, point, float(part.middle_s[0]), span)[1] for point in _scored(part, periods_s)[:KEPT])


def _unbroken(changes: Changes) -> Changes:
    """The longest stretch without a hole in which the phase would be lost, if it holds enough."""
    gaps = np.diff(changes.middle_s)
    for most in HOLE_GAPS:
        breaks = np.flatnonzero(gaps > most * float(np.median(gaps))) + 1
        bounds = np.concatenate([[0], breaks, [len(changes)]])
        longest = int(np.argmax(np.diff(bounds)))
        first, last = int(bounds[longest]), int(bounds[longest + 1])
        if last - first >= FIRST_CHANGES:
            break
    return changes.part(first, last) if last - first >= LEAST_STRETCH else changes.part(0, SECOND_CHANGES)


def _candidate_periods(middle_s: Array, width_s: float) -> Array:
    """Periods at which change times cluster: spectral peaks, distances of changes, and their simple multiples."""
    span = float(middle_s[-1] - middle_s[0])
    bins = np.zeros(min(2**20, max(64, int(2 ** np.ceil(np.log2(4.0 * span / SPECTRUM_BIN_S))))))
    bin_s = max(SPECTRUM_BIN_S, 2.0 * span / len(bins))
    np.add.at(bins, ((middle_s - middle_s[0]) / bin_s).astype(np.int64), 1.0)
    spectrum = np.abs(np.fft.rfft(bins))
    frequency = np.fft.rfftfreq(len(bins), bin_s)
    low = int(np.searchsorted(frequency, 3.0 / span))
    high = int(np.searchsorted(frequency, 1.0 / PERIOD_LIMITS_S[0]))
    inner = spectrum[low:high]
    peak = np.flatnonzero((inner[1:-1] >= inner[:-2]) & (inner[1:-1] > inner[2:])) + 1
    strongest = 1.0 / frequency[low + peak[np.argsort(-inner[peak])[:PEAKS]]]
    gaps = np.diff(middle_s)
    fixed = []
    for quantile in (0.05, 0.25, 0.5, 0.75):
        period = float(np.quantile(gaps, quantile))
        for _ in range(6):
            period = float(gaps.sum() / np.maximum(1.0, np.rint(gaps / period)).sum())
        fixed.append(period)
    base = np.concatenate([fixed, strongest, _scan(width_s, gaps, span)])
    top = np.concatenate([fixed, strongest[:MULTIPLIED]])
    periods = np.unique(np.concatenate([base, 2.0 * top, 0.5 * top, 3.0 * top]))
    inside = (periods > PERIOD_LIMITS_S[0]) & (periods < min(PERIOD_LIMITS_S[1], span / 3.0))
    return periods[inside] if np.any(inside) else np.array([float(np.clip(np.median(gaps), *PERIOD_LIMITS_S))])


def _scan(width_s: float, gaps: Array, span_s: float) -> Array:
    """Periods around the distance of changes, three steps to a turn of the phase over the record; none for fast polls."""
    gap = float(np.median(gaps))
    if width_s < SLOW_POLL_SHARE * gap:
        return np.empty(0)
    low, high = 1.0 / (SCANNED[1] * gap), 1.0 / (SCANNED[0] * gap)
    frequency = np.linspace(low, high, min(MOST_SCANNED, 1 + int((high - low) * 3.0 * span_s)))
    return 1.0 / frequency


def _starts(changes: Changes, periods: Array, origin_s: float) -> Array:
    """Clocks to compare: every period with phases over it and around the changes' circular mean, shape (g, 3)."""
    middle = changes.middle_s - origin_s
    half = float(np.median(0.5 * changes.width_s))
    turn = np.array([np.exp(2j * np.pi * middle / period).mean() for period in periods])
    angle = np.angle(turn) / (2.0 * np.pi) * periods
    near = angle[:, None] + np.linspace(-2.0 * half, 2.0 * half, NEAR_PHASES)
    everywhere = periods[:, None] * np.linspace(0.0, 1.0, PHASES, endpoint=False)
    phases = np.concatenate([near, everywhere], axis=1)
    jitter = np.full(phases.size, np.log(START_JITTER_S))
    return np.stack([np.repeat(periods, phases.shape[1]), phases.ravel(), jitter], axis=1)


def _scored(changes: Changes, candidates: Array) -> list[Array]:
    """The best clock of every candidate period and its neighbours, best first."""
    span = float(changes.until_s[-1] - changes.until_s[0])
    beside = candidates**2 / (6.0 * span)
    periods = np.concatenate([candidates - beside, candidates, candidates + beside])
    starts = _starts(changes, periods, float(changes.middle_s[0]))
    values = log_likelihoods(changes, starts, float(changes.middle_s[0])).reshape(len(periods), -1)
    best = values.argmax(axis=1)
    points = starts.reshape(len(periods), -1, 3)[np.arange(len(periods)), best]
    return list(points[np.argsort(-values.max(axis=1))])


def _refined(changes: Changes, point: Array, origin_s: float, span_s: float) -> tuple[Array, float]:
    period = float(point[0])
    step = np.array([period**2 / (6.0 * span_s), 0.3 * float(np.median(changes.width_s)) + 5e-4, 0.5])
    return simplex_maximum(likelihood_of(changes, origin_s), point, step, evaluations=EVALUATIONS)


def _distinct(points: list[Array]) -> list[Array]:
    """Points with periods that differ by more than a thousandth, in their order."""
    chosen: list[Array] = []
    for point in points:
        if all(abs(point[0] / other[0] - 1.0) > 1e-3 for other in chosen):
            chosen.append(point)
    return chosen


def _lengthened(changes: Changes, points: list[Array], origin_s: float) -> list[Array]:
    """Clocks of FIRST_CHANGES changes followed to SECOND_CHANGES in steps that keep the phase known."""
    result = []
    for start in points:
        point, count = start, FIRST_CHANGES
        while count < min(SECOND_CHANGES, len(changes)):
            count *= 2
            part = changes.part(0, count)
            point, _ = _refined(part, point, origin_s, float(part.until_s[-1] - part.until_s[0]))
        result.append(point)
    return result


def _best_free(changes: Changes, periods: Array) -> tuple[float, float]:
    """The period of a clock that loses its phase from segment to segment, and its penalised log-likelihood."""
    total = np.zeros(len(periods))
    for first in range(0, len(changes) - SEGMENT + 1, SEGMENT):
        segment = changes.part(first, first + SEGMENT)
        origin = float(segment.middle_s[0])
        values = log_likelihoods(segment, _starts(segment, periods, origin), origin).reshape(len(periods), -1)
        total += values.max(axis=1) - SEGMENT_COST
    if len(changes) < SEGMENT:
        return float(periods[0]), -np.inf
    best = int(np.argmax(total))
    return float(periods[best]), float(total[best])
