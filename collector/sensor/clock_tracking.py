"""Following a clock through a record: which change is which update, and how its phase wanders."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.sensor.clock_likelihood import Changes
from estimator.quantities import Array, IntArray

LOOP_GAIN: Final = 0.25
FREE_LOOP_GAIN: Final = 0.8
"""How far the phase of a tracked clock follows a tick that was seen outside its bracket."""
LOOP_LIMIT: Final = 0.3
"""Largest correction of the loop, in periods."""
JITTERS_S: Final = (5e-5, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3, 1.28e-2)
STEPS_S: Final = (0.0, 1e-5, 3e-5, 1e-4, 3e-4, 6e-4, 1.2e-3, 2.4e-3, 4.8e-3, 9.6e-3)
"""Jitter of single updates and steps of the phase from one update to the next that are compared."""
COMPARED: Final = 3000
"""Changes on which they are compared."""
START_SLOPE: Final = 0.03
"""Relative error of the period from which a filter starts."""
START_VARIANCES, START_VARIANCE_S2 = 4.0, 1e-6
"""Variance of the first phase: so many times its bracket's, and a millisecond squared."""
OUTLIER: Final = 16.0
"""Squared deviation, in variances, beyond which one change counts no more."""
LEAST_STEP_S: Final = 5e-6
MOST_LATE: Final = 0.1
"""Share of updates that may come late against a grid."""
CLIPPED: Final = 4.0
"""Standard deviations at which a change pulls the smoothed phase no harder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A clock whose phase walks: period and standard error, jitter of an update, step of the phase per update [s]."""

    period_s: float
    period_std_s: float
    jitter_s: float
    step_s: float


def numbered(changes: Changes, period_s: float, tick_s: float, free: bool) -> IntArray:
    """Every change's update number, by a clock that follows slow wander; shape (n,), ascending from 0.

    The clock moves only where a tick falls outside its bracket, never towards the bracket's middle: middles follow
    the polls, not the sensor.
    """
    number = np.empty(len(changes), dtype=np.int64)
    gain, limit = (FREE_LOOP_GAIN if free else LOOP_GAIN), LOOP_LIMIT * period_s
    first = 0.5 * float(changes.after_s[0] + changes.until_s[0])
    tick = tick_s + period_s * round((first - tick_s) / period_s)
    index, before = 0, -1
    for place, (after, until) in enumerate(zip(changes.after_s.tolist(), changes.until_s.tolist(), strict=True)):
        steps = round((0.5 * (after + until) - tick) / period_s)
        if place > 1 and index + steps == before and number[place - 2] < before - 1:
            number[place - 1] = before = before - 1  # the one before came late, by half a period and more
        if index + steps <= before:
            steps = before + 1 - index
        tick += steps * period_s
        index += steps
        if tick < after or tick > until:
            outside = after - tick if tick < after else until - tick
            tick += gain * max(-limit, min(limit, outside))
        number[place] = before = index
    counted: IntArray = number - number[0]
    return counted


def nearest_ticks(middle_s: Array, period_s: float, tick_s: float) -> IntArray:
    """Number of the tick of a rigid grid, one of whose ticks is at `tick_s`, that is nearest to each change; shape (n,), ascending.

    Of two changes nearest to one tick the first is a late update of the tick before, if that showed nothing else: updates are held up
    by the driver now and then, but never come before they are due.
    """
    place: IntArray = np.rint((middle_s - tick_s) / period_s).astype(np.int64)
    free = np.append(True, np.diff(place) > 1)
    place[:-1] -= (place[:-1] == place[1:]) & free[:-1]
    number: IntArray = np.maximum.accumulate(place - np.arange(len(place))) + np.arange(len(place))
    return number


def due(changes: Changes, tick_s: Array, jitter_s: float) -> Changes:
    """The same with brackets that reach back to the ticks (n,) of those changes that came later than jitter explains; unchanged for none.

    Unchanged as well where so many are late that there is no grid which they are late against.
    """
    late = changes.after_s > tick_s + jitter_s
    if not np.any(late) or np.mean(late) > MOST_LATE:
        return changes
    return replace(changes, after_s=np.where(late, tick_s - jitter_s, changes.after_s))


def last_in_brackets(changes: Changes, number: IntArray, period_s: float) -> IntArray:
    """Numbers (n,) where those of changes seen across holes are of the last update in each, which left the value that was seen.

    It lies a period at most before the poll that saw it, and is counted back from the change that follows.
    """
    result: IntArray = number.copy()
    middle = changes.middle_s
    for place in np.flatnonzero(changes.width_s > period_s)[::-1].tolist():
        if place + 1 < len(result):
            back = max(1, int(np.ceil((middle[place + 1] - changes.until_s[place]) / period_s)))
            result[place] = max(int(result[place]), int(result[place + 1]) - back)
    result -= result[0]
    return result


def fit_drift(changes: Changes, number: IntArray, period_s: float) -> Drift:
    """Period, jitter and phase steps of a numbered record, by the likelihood of a filter over (phase, slope)."""
    jitter, step = (axis.ravel() for axis in np.meshgrid(JITTERS_S, STEPS_S, indexing="ij"))
    few = slice(0, COMPARED)
    variance = changes.width_s**2 / 12.0
    away = changes.middle_s - changes.middle_s[0] - number * period_s
    likelihood = _likelihoods(away[few], number[few], variance[few], jitter, step, period_s)
    best = int(np.argmax(likelihood))
    slope, slope_variance = _followed(away, number, variance, float(jitter[best]), float(step[best]), period_s)
    return Drift(
        period_s=period_s + slope,
        period_std_s=slope_variance**0.5,
        jitter_s=float(jitter[best]),
        step_s=float(step[best]),
    )


def _likelihoods(away: Array, number: IntArray, variance: Array, jitter: Array, step: Array, period_s: float) -> Array:
    """Log-likelihoods of pairs (jitter, step) of shape (g,).

    Kalman filter: the phase walks by `step` per update, the slope is constant.
    """
    phase, slope, total = np.zeros_like(jitter), np.zeros_like(jitter), np.zeros_like(jitter)
    p00, p01 = np.full_like(jitter, START_VARIANCES * variance[0] + START_VARIANCE_S2), np.zeros_like(jitter)
    p11 = np.full_like(jitter, (START_SLOPE * period_s) ** 2)
    jitter2, step2 = jitter**2, step**2
    steps = np.diff(number, prepend=number[:1]).astype(np.float64)
    for seen, count, width2 in zip(away.tolist(), steps.tolist(), variance.tolist(), strict=True):
        phase = phase + count * slope
        p00 = p00 + count * (2.0 * p01 + count * p11 + step2)
        p01 = p01 + count * p11
        spread = p00 + width2 + jitter2
        error = seen - phase
        surprise = np.minimum(error * error / spread, OUTLIER)
        total -= 0.5 * (np.log(spread) + surprise)
        used = (surprise < OUTLIER) / spread
        gain0, gain1 = p00 * used, p01 * used
        phase, slope = phase + gain0 * error, slope + gain1 * error
        p11, p01, p00 = p11 - gain1 * p01, p01 - gain0 * p01, p00 - gain0 * p00
    return total


def _followed(away: Array, number: IntArray, variance: Array, jitter: float, step: float, period_s: float) -> tuple[float, float]:
    """Slope and its variance after the same filter for one pair, in plain numbers: records have a million changes."""
    phase = slope = p01 = 0.0
    p00, p11 = START_VARIANCES * float(variance[0]) + START_VARIANCE_S2, (START_SLOPE * period_s) ** 2
    step2 = step**2
    steps = np.diff(number, prepend=number[:1]).astype(np.float64)
    for seen, count, noise in zip(away.tolist(), steps.tolist(), (variance + jitter**2).tolist(), strict=True):
        phase += count * slope
        p00 += count * (2.0 * p01 + count * p11 + step2)
        p01 += count * p11
        spread = p00 + noise
        error = seen - phase
        if error * error < OUTLIER * spread:
            gain0, gain1 = p00 / spread, p01 / spread
            phase += gain0 * error
            slope += gain1 * error
            p11 -= gain1 * p01
            p01 -= gain0 * p01
            p00 -= gain0 * p00
    return slope, p11


def smoothed_ticks(changes: Changes, number: IntArray, drift: Drift) -> Array:
    """Update times [s]: a phase that walks, held against the brackets' middles; shape (n,)."""
    away = changes.middle_s - number * drift.period_s
    centre = float(away.mean())
    weight = 1.0 / (changes.width_s**2 / 12.0 + drift.jitter_s**2)
    coupling = 1.0 / (max(drift.step_s, LEAST_STEP_S) ** 2 * np.maximum(np.diff(number), 1))
    for _ in range(2):
        phase = _tridiagonal(weight, coupling, weight * (away - centre))
        limit = CLIPPED / np.sqrt(weight)
        within = np.clip(away - centre, phase - limit, phase + limit)
        if np.array_equal(within, away - centre):
            break
        away = centre + within
    return centre + phase + number * drift.period_s


def _tridiagonal(weight: Array, coupling: Array, right: Array) -> Array:
    """Solves (diag(weight) + chain of couplings) x = right, by elimination; shape (n,)."""
    diagonal = weight.copy()
    diagonal[:-1] += coupling
    diagonal[1:] += coupling
    main, side, known = diagonal.tolist(), coupling.tolist(), right.tolist()
    for i in range(1, len(main)):
        share = side[i - 1] / main[i - 1]
        main[i] -= share * side[i - 1]
        known[i] += share * known[i - 1]
    known[-1] /= main[-1]
    for i in range(len(main) - 2, -1, -1):
        known[i] = (known[i] + side[i] * known[i + 1]) / main[i]
    return np.array(known)
