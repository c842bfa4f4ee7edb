"""Which square wave tells most next: the lead of one kernel over another, and the error of a width, for a load's period.

Updates fall on a grid, so a load whose period is a simple multiple or fraction of the update period shows few distinct
phases and tells nothing, however long it runs.  Periods are compared by what the fitted kernels would make of them.
"""

from typing import Final

import numpy as np

from collector.sensor.kernel_fit import KernelFit
from collector.sensor.load import LoadStamps
from collector.sensor.sources import PowerSource, averaged_by, load_source
from estimator.quantities import Array

RATIOS: Final = (0.57, 0.71, 0.91, 1.13, 1.27, 1.41, 1.83, 2.3, 3.17, 4.7, 7.37, 12.3)
"""Periods compared, in update periods: none within 2 % of a fraction with a denominator up to 4."""
READINGS: Final = 60
CYCLES_LEAST: Final = 6
LN_WIDTH_STEP: Final = 0.01
DELAY_STEP_S: Final = 2e-4
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


def best_ratio(fits: tuple[KernelFit, ...], period_s: float, step_w: float, *, undecided: bool) -> float:
    """The load period, in update periods, that tells the two likeliest kernels apart, or the width of the first."""
    scores = [_lead(fits, period_s, step_w, ratio) if undecided else -_width_std(fits[0], period_s, step_w, ratio) for ratio in RATIOS]
    return RATIOS[int(np.argmax(scores))]


def _setting(period_s: float, ratio: float) -> tuple[PowerSource, Array]:
    """A square wave as a source, and the ends of READINGS updates within it."""
    span = max(READINGS * period_s, CYCLES_LEAST * ratio * period_s)
    source = load_source(square_wave(ratio * period_s, int(np.ceil(span / (ratio * period_s))) + 2), span + period_s)
    ends: Array = np.mod(np.arange(READINGS, dtype=np.float64) * (span / READINGS // period_s + 1.0) * period_s, span)
    return source, ends + GOLDEN * period_s


def _seen(fit: KernelFit, source: PowerSource, ends: Array, *, ln_width: float = 0.0, delay_s: float = 0.0) -> Array:
    """Readings of a unit step at once, shape (n,)."""
    parameter = fit.parameter_s * float(np.exp(ln_width))
    return averaged_by(fit.kernel, source)(parameter, ends - fit.delay_s - delay_s)[:, 0]


def _lead(fits: tuple[KernelFit, ...], period_s: float, step_w: float, ratio: float) -> float:
    """Log-likelihood by which the first kernel would lead the second, which adapts offset, gain, width and delay."""
    first, second = fits[0], fits[1]
    source, ends = _setting(period_s, ratio)
    truth, other = _seen(first, source, ends), _seen(second, source, ends)
    columns = [np.ones_like(ends), other, _slope(second, source, ends, delay=True)]
    if second.kernel != "none":
        columns.append(_slope(second, source, ends, delay=False))
    return float(np.sum((_left(truth, columns) / _noise(first, step_w, source, ends)) ** 2))


def _width_std(fit: KernelFit, period_s: float, step_w: float, ratio: float) -> float:
    """Relative standard error of the width; infinite where the load tells none."""
    if fit.kernel == "none":
        return float("inf")
    source, ends = _setting(period_s, ratio)
    columns = [np.ones_like(ends), _seen(fit, source, ends), _slope(fit, source, ends, delay=True)]
    left = _left(_slope(fit, source, ends, delay=False), columns) / _noise(fit, step_w, source, ends)
    information = float(np.sum(left**2))
    return float(1.0 / np.sqrt(information)) if information > 0 else float("inf")


def _slope(fit: KernelFit, source: PowerSource, ends: Array, *, delay: bool) -> Array:
    """Change of readings with the delay, or with the log of the width."""
    if delay:
        return (_seen(fit, source, ends, delay_s=DELAY_STEP_S) - _seen(fit, source, ends, delay_s=-DELAY_STEP_S)) / (2.0 * DELAY_STEP_S)
    return (_seen(fit, source, ends, ln_width=LN_WIDTH_STEP) - _seen(fit, source, ends, ln_width=-LN_WIDTH_STEP)) / (2.0 * LN_WIDTH_STEP)


def _noise(fit: KernelFit, step_w: float, source: PowerSource, ends: Array) -> Array:
    """Standard deviation of readings in units of the step, jitter through the slope included."""
    slope = _slope(fit, source, ends, delay=True)
    noise: Array = np.sqrt((fit.noise_w / max(step_w, 1e-3)) ** 2 + LEAST_NOISE_SHARE**2 + (fit.jitter_s * slope) ** 2)
    return noise


def _left(value: Array, columns: list[Array]) -> Array:
    """What columns cannot explain of a value."""
    design = np.stack(columns, axis=1)
    design = design / np.maximum(np.linalg.norm(design, axis=0), 1e-12)
    left: Array = value - design @ np.linalg.lstsq(design, value, rcond=1e-9)[0]
    return left
