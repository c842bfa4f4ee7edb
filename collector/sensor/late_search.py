"""The best fit of a kernel on a board of which a share of the power follows the load late, up and down.

Levels are solved for inside; width, delay, noise, jitter, drift and the late part's time are found by Gauss-Newton steps, as shares near
each other are asked for and a fit for one is where to begin for the next.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final

import numpy as np

from collector.sensor.kernel_errors import BEYOND_FIRST_ORDER
from collector.sensor.kernel_fit import JITTER_LN_STD, TAIL_DEGREES, Evaluation, KernelFit, KernelProblem, plain_misfit
from collector.sensor.load import BIN_S, LAUNCH_RISE_S, pole
from collector.sensor.sources import PowerSource
from estimator.quantities import Array

LATE_S, LN_LATE_STD = 0.018, 0.8
"""Prior of a late part's time: two standard deviations from 3.6 to 90 ms.  What is faster belongs to the launch, and the usual board has
a part that is slower (`load.SLOW_RISE_S`)."""
LN_LATE: Final = float(np.log(LATE_S))
LN_LATE_LIMITS: Final = (float(np.log(3e-3)), float(np.log(0.15)))
LEAST_LN_NOISE: Final = float(np.log(5e-3))
"""Times searched, and the least noise of readings."""
TEMPER: Final = BEYOND_FIRST_ORDER**2
"""Differences of log-likelihood count for less by this factor: so much more than to first order do repeated experiments scatter."""
STEPS: Final = np.array([1e-4, 4e-6, 1e-3, 1e-3, 1e-3, 1e-3])
MOST_MOVES: Final = np.array([0.3, 2e-3, 0.7, 0.7, 1.0, 0.4])
"""Finite differences in log width, delay, log noise, log jitter, drift and log time, and how far one step may go."""
ITERATIONS, SHORTENINGS = 10, 8
SHORTENED: Final = 0.4
ENOUGH_GAIN: Final = 0.02
"""A search ends where a step promises less log-likelihood than this; a step that gains nothing is tried at SHORTENED of its length."""
WIDTHS: Final = np.linspace(0.6, 1.05, 10)
DELAYS_S: Final = np.linspace(-4e-3, 4e-3, 9)
"""Widths, as shares of the usual fit's, and delays about its own that are looked through: a boxcar near a part of its period has
needles, which steps do not find."""
LAUNCHES: Final = 2
"""Columns of a source that follow a launch at once."""
WIDTH, DELAY, NOISE, JITTER, DRIFT, TIME = range(6)
"""Places of a point."""


class LateProblem(KernelProblem):
    """A kernel on boards of `any_launch` of which a share of what follows at once follows through one more pole."""

    def __init__(self, usual: KernelProblem, share: float, ln_late: float) -> None:
        self._usual, self._share = usual, share
        fast = usual.source.columns[0]
        late = np.fft.irfft(np.fft.rfft(fast) * pole(len(fast), float(np.exp(ln_late))), n=len(fast))
        super().__init__(usual.kernel, replace(usual.source, columns=late[None, :]), usual.time_s, usual.value, usual.jitter_s)

    def design(self, parameter_s: float, delay_s: Array, drift: float = 0.0) -> Array:
        """As the usual board's, part of the columns that follow at once late, whatever the launch's form."""
        result, late = self._usual.design(parameter_s, delay_s, drift), super().design(parameter_s, delay_s, drift)
        soon = slice(1, 1 + LAUNCHES)
        result[..., soon] += self._share * (late[..., 1:] - result[..., soon])
        return result


def any_launch(source: PowerSource) -> PowerSource:
    """A load's source with one more column, the second: power that follows a launch in one step, as late on average as in LAUNCH_RISE_S.

    Which of the two forms boards have is not known, and to a fit of many readings a wrong one looks like a late part.
    """
    fast, *others = source.columns
    keep = float(np.exp(-BIN_S / LAUNCH_RISE_S))
    level = (fast - keep * np.roll(fast, 1)) / (1.0 - keep)
    whole, part = divmod(keep / (1.0 - keep), 1.0)
    step = (1.0 - part) * np.roll(level, int(whole)) + part * np.roll(level, int(whole) + 1)
    return replace(source, columns=np.stack([fast, step, *others]), signed=0)


class LateBoards:
    """A kernel on boards with all kinds of late parts; the last two are kept, as a search moves one number at a time."""

    def __init__(self, usual: KernelProblem) -> None:
        self.usual = usual
        self.board = lru_cache(maxsize=2)(partial(LateProblem, usual))

    def evaluate(self, share: float, point: Array, weight: Array) -> tuple[Evaluation, float]:
        """A point worked out, and its log-likelihood with all priors but the share's."""
        found = self.board(share, float(point[TIME])).evaluate(point[:TIME], weight)
        return found, found.total - 0.5 * TEMPER * float((point[TIME] - LN_LATE) / LN_LATE_STD) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LateFit:
    """The best fit for one late share: `point` (6,), and the log-probability of all times near its own together.

    `ln_time_std` is the standard error of the logarithm of the late part's time.
    """

    share: float
    point: Array
    log_probability: float
    ln_time_std: float


def start_of(fit: KernelFit) -> Array:
    """The usual board's fit as a point, shape (6,)."""
    noise = max(float(np.log(fit.noise_w)), LEAST_LN_NOISE)
    return np.array([np.log(fit.parameter_s), fit.delay_s, noise, np.log(fit.jitter_s), fit.drift, LN_LATE])


def wide_start(boards: LateBoards, fit: KernelFit, share: float, late_s: float) -> Array:
    """The best of widths and delays about the usual fit's for one late part, by plain least squares, shape (6,)."""
    board = boards.board(share, float(np.log(late_s)))
    parameters, delays = fit.parameter_s * WIDTHS, fit.delay_s + DELAYS_S
    misfits = np.stack([plain_misfit(board, parameter, delays) for parameter in parameters.tolist()])
    row, column = divmod(int(np.argmin(misfits)), len(delays))
    return np.array([np.log(parameters[row]), delays[column], *start_of(fit)[NOISE:TIME], np.log(late_s)])


def climbed_late(boards: LateBoards, share: float, start: Array) -> LateFit:
    """The best point for a late share near a start; without a share the late part's time stays as its prior has it."""
    point = start
    weight = boards.evaluate(share, point, np.ones(len(boards.usual.value)))[0].weight
    for _ in range(ITERATIONS):
        found, total = boards.evaluate(share, point, weight)
        slope, information = _slope(boards, share, point, found, total, weight)
        step = np.linalg.solve(information, slope)
        if 0.5 * float(slope @ step) < ENOUGH_GAIN:
            break
        step *= min(1.0, float(np.min(MOST_MOVES / np.maximum(np.abs(step), 1e-12))))
        for _ in range(SHORTENINGS):
            moved = point + step
            moved[NOISE] = max(moved[NOISE], LEAST_LN_NOISE)
            moved[TIME] = np.clip(moved[TIME], *LN_LATE_LIMITS)
            there, there_total = boards.evaluate(share, moved, weight)
            if there_total > total:
                break
            step = SHORTENED * step
        else:
            break
        point, total, weight = moved, there_total, there.weight
    time_std = float(np.sqrt(TEMPER * np.linalg.inv(information)[TIME, TIME])) if share else LN_LATE_STD
    log_probability = total / TEMPER + float(np.log(time_std / LN_LATE_STD))
    return LateFit(share=share, point=point, log_probability=log_probability, ln_time_std=time_std)


def _slope(boards: LateBoards, share: float, point: Array, found: Evaluation, total: float, weight: Array) -> tuple[Array, Array]:
    """Slope of the log-likelihood (6,) and Fisher's information (6, 6) at a point, levels solved for."""
    variance = _variance(found)
    slope, of_mean, of_variance = np.empty(6), np.empty((6, len(variance))), np.empty((6, len(variance)))
    for index in (DELAY, NOISE, JITTER, DRIFT, TIME, WIDTH):
        moved = point.copy()
        moved[index] += STEPS[index]
        there, there_total = boards.evaluate(share, moved, weight)
        slope[index] = (there_total - total) / STEPS[index]
        of_mean[index] = (there.predicted - found.predicted) / STEPS[index]
        of_variance[index] = np.log(_variance(there) / variance) / STEPS[index]
    degrees = TAIL_DEGREES
    information = (degrees + 1.0) / (degrees + 3.0) * (of_mean / variance) @ of_mean.T
    information += 0.5 * degrees / (degrees + 3.0) * of_variance @ of_variance.T
    own = np.array([1e-2, 1.0, 1e-2, JITTER_LN_STD**-2, 1.0, TEMPER / LN_LATE_STD**2])
    return slope, information + np.diag(own)


def _variance(found: Evaluation) -> Array:
    """Variance of every reading [W²], from the weight that it had (see `KernelProblem.evaluate`)."""
    result: Array = np.maximum((TAIL_DEGREES + 1.0) / found.weight - found.residual**2, 1e-9) / TAIL_DEGREES
    return result
