"""Sensors whose updates keep to no grid, or of which polls show too little: simulated, each with its period.

A host polls what the last update left.  Nothing here knows how clocks are found.
"""

from dataclasses import dataclass

import numpy as np

from estimator.vocabulary.quantities import Array


@dataclass(frozen=True)
class Hostile:
    """Polls `time_s`, `value` (n,), and the period: a grid's, else the mean distance of updates [s]."""

    time_s: Array
    value: Array
    period_s: float


def white_jitter(random):
    """A grid, every update of which comes early or late by a tenth of the period and more, 10 ms at least."""
    period = random.uniform(0.05, 0.2)
    jitter = random.uniform(0.01, max(0.011, 0.3 * period))
    due = _grid(period, random.uniform(8.0, 40.0))
    return polled(np.sort(due + random.normal(0.0, jitter, len(due))), moving(len(due), random), random, period_s=period)


def random_distances(random):
    """Each update at a random distance from the one before: even, or a dead time and a wait without memory."""
    period, count = random.uniform(0.02, 0.15), int(random.integers(60, 400))
    if random.random() < 0.5:
        spread = random.uniform(0.2, 0.9)
        distance = period * random.uniform(1.0 - spread, 1.0 + spread, count)
    else:
        dead = random.uniform(0.0, 0.8)
        distance = period * (dead + (1.0 - dead) * random.exponential(1.0, count))
    update = np.cumsum(distance)
    return polled(update, moving(count, random), random, period_s=_mean(update))


def two_distances(random):
    """Short and long distances in turn or at random: a clock with a fraction of both periods and mostly unseen updates fits too."""
    period, count = random.uniform(0.03, 0.15), int(random.integers(80, 400))
    share = random.uniform(0.1, 0.25)
    turn = np.arange(count) % 2 if random.random() < 0.5 else random.integers(0, 2, count)
    update = np.cumsum(period * (1.0 + share * (2.0 * turn - 1.0)))
    return polled(update, moving(count, random), random, period_s=_mean(update))


def two_levels(random):
    """A good clock that shows two readings without noise: the load's edges alone are seen; at times locked to the clock."""
    period, update = _clocked(random, (0.02, 0.12), (8.0, 30.0))
    half = float(random.integers(2, 9)) * period if random.random() < 0.4 else random.uniform(1.5, 9.0) * period
    scatter = random.choice([0.0, 0.01, 0.1])
    edge = np.cumsum(half * (1.0 + scatter * random.standard_normal(int(update[-1] / half) + 2)))
    level = np.searchsorted(edge, update) % 2
    return polled(update, np.where(level, 200.0, 60.0), random, period_s=period)


def stretches(random):
    """A good clock that is polled for a short stretch of every longer one."""
    period, update = _clocked(random, (0.015, 0.11), (15.0, 60.0))
    every = random.uniform(1.0, 4.0)
    within = random.uniform(3.0 * period, 0.5 * every)
    return polled(update, moving(len(update), random), random, period_s=period, every_s=every, polled_s=within)


def skipped(random):
    """A good clock of which a third to two thirds of the updates do not come."""
    period, update = _clocked(random, (0.015, 0.11), (10.0, 40.0))
    kept = random.random(len(update)) >= random.uniform(0.3, 0.7)
    return polled(update[kept], moving(len(update), random)[kept], random, period_s=period)


def _grid(period_s, span_s):
    return period_s * np.arange(float(int(span_s / period_s) + 2))


def _clocked(random, periods_s, spans_s):
    """A period, and the updates of a good clock."""
    period = random.uniform(*periods_s)
    due = _grid(period, random.uniform(*spans_s))
    return period, due + random.normal(0.0, 3e-4, len(due))


def _mean(update_s):
    return float(update_s[-1] - update_s[0]) / (len(update_s) - 1)


def moving(count, random):
    """Readings that every update changes: a load that comes and goes, with noise."""
    level = np.repeat(random.random(count), random.integers(1, 6, count))[:count]
    return np.round(60.0 + 140.0 * level + random.normal(0.0, random.choice([0.3, 1.0]), count), 2)


def polled(update_s, value, random, *, period_s, every_s=np.inf, polled_s=np.inf):
    """Polls from the first to the last update, of every stretch `every_s` long the first `polled_s` only."""
    poll = min(float(random.choice([0.001, 0.002, 0.005, 0.007, 0.013])), 0.3 * period_s)
    span = float(update_s[-1] - update_s[0])
    step = poll * (1.0 + np.abs(random.normal(0.0, 0.08, int(span / poll) + 2)))
    time_s = update_s[0] + np.cumsum(step)
    time_s = time_s[time_s < update_s[-1]]
    if np.isfinite(every_s):
        time_s = time_s[time_s % every_s < polled_s]
    return Hostile(time_s=time_s, value=value[np.searchsorted(update_s, time_s, side="right") - 1], period_s=period_s)
