"""Which square wave tells most next: the lead of one kernel over another, and the error of a width, for a load's period.

Updates fall on a grid, so a load whose period is a simple multiple or fraction of the update period shows few distinct
phases and tells nothing, however long it runs.  Periods are compared by what the fitted kernels would make of them.
"""

from typing import Final

import numpy as np

from collector.sensing.board_power import LoadStamps, Signal, load_signals
from collector.sensing.regression import Fit
from collector.sensing.response import POINT_S, seen_and_slopes
from estimator.vocabulary.quantities import Array

RATIOS: Final = (0.57, 0.71, 0.91, 1.13, 1.27, 1.41, 1.83, 2.3, 3.17, 4.7, 7.37, 12.3)
"""Periods compared, in update periods: none within 2 % of a fraction with a denominator up to 4."""
READINGS: Final = 60
CYCLES_LEAST: Final = 6
LEAST_NOISE_SHARE: Final = 3e-3
"""Reading noise is at least this share of the step: edges and the board's rise scatter as well."""
GOLDEN: Final = 0.6180339887498949
CYCLE_SPREAD: Final = 0.015
"""Cycles are longer by this share in the mean, by twice as much at the end: phases fill in whatever the period is."""


def varied_cycles(period_s: float, count: int) -> Array:
    """Lengths of successive cycles, growing slowly so that a load that begins locked does not stay so [s], shape (count,)."""
    cycles: Array = period_s * (1.0 + 2.0 * CYCLE_SPREAD * np.arange(count, dtype=np.float64) / max(count, 1))
    return cycles


def square_wave(period_s: float, count: int) -> LoadStamps:
    """Stamps of a square wave of varied cycles from 0 on."""
    cycles = varied_cycles(period_s, count)
    starts = np.concatenate([[0.0], np.cumsum(cycles)[:-1]])
    return LoadStamps(start_s=starts, end_s=starts + 0.5 * cycles)


def best_ratio(fits: tuple[Fit, ...], period_s: float, *, undecided: bool) -> float:
    """The load period, in update periods, that tells the two likeliest kernels apart, or the width of the first."""
    scores = []
    for ratio in RATIOS:
        signal, ends = _setting(period_s, ratio)
        seen = [_seen(fit, signal, ends) for fit in fits[:2]]
        step_w = max(float(np.ptp(fits[0].predicted)), 1e-3)
        noise = np.sqrt((fits[0].noise_w / step_w) ** 2 + LEAST_NOISE_SHARE**2 + (fits[0].jitter_s * seen[0][2]) ** 2)
        first, second = seen[0], seen[1]
        if undecided:  # how far the second kernel stays behind, though offset, gain, width and delay adapt
            left = _left(first[0], [np.ones_like(ends), *second])
        else:
            left = _left(first[1], [np.ones_like(ends), first[0], first[2]])
        scores.append(float(np.sum((left / noise) ** 2)))
    return RATIOS[int(np.argmax(scores))]


def _setting(period_s: float, ratio: float) -> tuple[Signal, Array]:
    """The fast part of a square wave, and the ends of READINGS updates within it."""
    span = max(READINGS * period_s, CYCLES_LEAST * ratio * period_s)
    load = square_wave(ratio * period_s, int(np.ceil(span / (ratio * period_s))) + 2)
    ends = np.mod(np.arange(READINGS, dtype=np.float64) * (span / READINGS // period_s + 1.0) * period_s, span)
    return load_signals(load, 0.0, span + period_s)[0], ends + GOLDEN * period_s


def _seen(fit: Fit, signal: Signal, ends: Array) -> tuple[Array, Array, Array]:
    """Readings of a unit step, and their slopes in the log of the width and in time."""
    return seen_and_slopes(signal, fit.kernel, max(fit.width_s, POINT_S), ends - fit.delay_s)


def _left(value: Array, columns: list[Array]) -> Array:
    """What columns cannot explain of a value."""
    design = np.stack(columns, axis=1)
    design = design / np.maximum(np.linalg.norm(design, axis=0), 1e-12)
    return np.asarray(value - design @ np.linalg.lstsq(design, value, rcond=1e-9)[0])
