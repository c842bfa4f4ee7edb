"""The best fit of one averaging kernel to updates: width and delay searched, amplitudes solved inside."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.sensor.passed_noise import JITTER_NODE, JITTER_WEIGHTS, PassedNoise
from collector.sensor.simplex import simplex_maximum
from collector.sensor.sources import NONE_WIDTH_S, PowerSource, averaged_by
from estimator.quantities import Array

DELAY_LIMIT_S: Final = 0.014
"""Delays searched, either sign: a reader stamps up to some milliseconds early."""
DELAY_SOFT_S: Final = 0.012
DELAY_STEPS_S: Final = {True: 0.8e-3, False: 1e-3}
QUICK_PERIOD_S: Final = 0.03
"""Steps of the first search over delays; finer (True) for periods below QUICK_PERIOD_S."""
TAIL_DEGREES: Final = 4.0
"""Degrees of freedom of the Student distribution of residuals: single updates may be far off."""
TAIL_SCALE: Final = 0.83
"""Scale of that distribution that fits normal scatter of standard deviation 1 best: jitter is normal, and known as such."""
JITTER_S: Final = 6e-4
JITTER_LN_STD: Final = 0.7
"""Jitter of window ends where the update clock tells none, and how well its logarithm is known: without it, a jitter of several
milliseconds would explain every ramp, whatever the kernel."""
VARIANCE_FLOOR_W2: Final = 1e-6
BOXCAR_LEAST_S, LOW_PASS_LEAST_S = 8e-4, 6e-4
BOXCAR_MOST_S, LOW_PASS_MOST_S = 1.35, 0.6
"""Widths and time constants searched: below any effect, and above the one-second mean and the slowest board seen."""
BOXCAR_POINTS, LOW_PASS_POINTS = 40, 32
NEEDLES_S: Final = (4e-3, 0.14, 1e-3)
"""Widths that are tried one by one: under a load whose cycles are alike, and near a lock, the misfit is a needle 1 ms wide."""
CLIP: Final = 8.0
EVALUATIONS, RESTART_EVALUATIONS = 150, 150
START_STEP: Final = (0.08, 8e-4, 0.5, 0.5, 0.0)
RESTART_STEP: Final = (0.01, 3e-4, 0.1, 0.1, 0.3)
"""First moves in log width, delay, log noise, log jitter, and drift in its standard deviations."""
RIDGE: Final = 1e-10
LONG_WIDTH_S: Final = 0.4
LONG_WIDTHS_S: Final = (0.8, 1.305, 0.005)
LONG_DELAYS_S: Final = (-0.008, 0.009, 0.004)
"""A boxcar longer than LONG_WIDTH_S has lumpy increments: its width comes from plain least squares over these grids."""
WALL: Final = -1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """The best fit of one kernel: `width_s` is a boxcar's W or a low-pass's 2τ, 0 for none.

    `amplitude_w` are the offset and a factor for each column of the source (a meter's is the gain); `score` the
    penalised log-likelihood, `terms` its parts by update.  `noise_w` (with what kernels share of a meter's own) and `jitter_s` are
    the scatter of readings and of window ends, `drift` that of the delay through the record, in the source's standard deviations;
    `residual_w` is reading minus prediction, shape (n,).  Standard errors are nan until `with_errors` has worked them out.  Where load
    stamps alone told the width, it lies within `width_95_s` in 95 of 100 cases; else nan.
    """

    kernel: str
    width_s: float
    delay_s: float
    noise_w: float
    jitter_s: float
    drift: float
    amplitude_w: Array
    score: float
    terms: Array
    predicted_w: Array
    residual_w: Array
    r2: float
    width_std_s: float = float("nan")
    delay_std_s: float = float("nan")
    width_95_s: float = float("nan")
    amplitude_covariance: Array | None = None

    @property
    def parameter_s(self) -> float:
        """A boxcar's width, a low-pass's time constant [s]."""
        return 0.5 * self.width_s if self.kernel == "low-pass" else max(self.width_s, NONE_WIDTH_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A point of the search worked out: log-likelihood with priors, its terms (n,), amplitudes, prediction and residual (n,)."""

    total: float
    terms: Array
    amplitude: Array
    predicted: Array
    residual: Array
    weight: Array


class KernelProblem:
    """One kernel against updates at `time_s` with `value` (n,), whose window ends jitter by about `jitter_s`.

    Kernels that pass less of the meter's noise than one of `common_s` are compared as if they passed as much: what they predict better
    by that alone says nothing of the sensor.  Points are (log parameter, delay, log noise, log jitter, drift of the delay in the source's
    standard deviations).
    """

    def __init__(
        self,
        kernel: str,
        source: PowerSource,
        time_s: Array,
        value: Array,
        jitter_s: float = JITTER_S,
        common_s: float = NONE_WIDTH_S,
    ) -> None:
        self.kernel = kernel
        self.jitter_s = jitter_s
        self.source = source
        self.time_s = time_s
        self.value = value
        self._respond = averaged_by(kernel, source)
        self._drift = source.drift_std * (time_s - time_s.mean())
        self._passed = PassedNoise(kernel, source.noise)
        self._common_w2 = PassedNoise("boxcar", source.noise).variance_w2(common_s, 0.0)

    def missing_noise_w2(self, parameter_s: float, jitter_s: float) -> tuple[float, float]:
        """The meter's noise behind the kernel, and what it lacks to the common one [W²]; no jitter is none."""
        passed = self._passed.variance_w2(parameter_s * (2.0 if self.kernel == "low-pass" else 1.0), jitter_s)
        return passed, max(self._common_w2 - passed, 0.0)

    def design(self, parameter_s: float, delay_s: Array, drift: float = 0.0) -> Array:
        """Ones and averaged columns for delays of shape (g,): (g, n, 1 + c)."""
        columns = self._respond(parameter_s, self.time_s - drift * self._drift - delay_s[:, None])
        return np.concatenate([np.ones((*columns.shape[:2], 1)), columns], axis=2)

    def amplitudes(self, design: Array, weight: Array) -> Array:
        """Factors of a design's columns (n, c) for readings of such weights (n,), shape (c,)."""
        return solved(design, self.value, weight, self.source.signed + 1)

    def evaluate(self, point: Array, weight: Array) -> Evaluation:
        """The Student likelihood at a point, with the mean and the variance that jittering window ends give a reading.

        Without the variance ramps would dominate; without the mean jitter would pass for a wider window, as it rounds the
        corners of ramps.  `weight` (n,) starts the two rounds of reweighted least squares.
        """
        parameter, delay, jitter = float(np.exp(point[0])), float(point[1]), float(np.exp(point[3]))
        node = JITTER_NODE * jitter
        passed, missing = self.missing_noise_w2(parameter, jitter)
        designs = self.design(parameter, np.array([delay - node, delay, delay + node]), float(point[4]))
        design = np.tensordot(JITTER_WEIGHTS, designs, axes=1)
        for _ in range(2):
            amplitude = self.amplitudes(design, weight)
            if passed > 0.0:
                amplitude = unattenuated(amplitude, design, weight, passed)
            predicted = design @ amplitude
            residual = self.value - predicted
            of_jitter = TAIL_SCALE**2 * np.tensordot(JITTER_WEIGHTS, (designs @ amplitude - predicted) ** 2, axes=1)
            variance = float(np.exp(2.0 * point[2])) + of_jitter + VARIANCE_FLOOR_W2
            z = (residual**2 + amplitude[1] ** 2 * missing) / variance
            weight = (TAIL_DEGREES + 1.0) / (TAIL_DEGREES + z) / variance
        added = JITTER_NODE * float(np.sqrt(missing)) * float(amplitude[1])
        logs = [np.log1p((residual + side * added) ** 2 / (TAIL_DEGREES * variance)) for side in ((-1.0, 0.0, 1.0) if added else (0.0,))]
        tails = np.tensordot(JITTER_WEIGHTS, logs, axes=1) if added else logs[0]
        terms = -0.5 * np.log(variance) - 0.5 * (TAIL_DEGREES + 1.0) * tails
        prior = 0.5 * ((point[3] - np.log(self.jitter_s)) / JITTER_LN_STD) ** 2
        prior += 0.5 * (delay / DELAY_SOFT_S) ** 4 + 0.5 * float(point[4]) ** 2
        return Evaluation(
            total=float(terms.sum() - prior), terms=terms, amplitude=amplitude, predicted=predicted, residual=residual, weight=weight
        )


def solved(design: Array, value: Array, weight: Array, signed: int) -> Array:
    """Weighted least squares, columns from `signed` on not negative (a negative one is dropped); shape (c,)."""
    weighted = design * weight[:, None]
    normal, moment = design.T @ weighted, value @ weighted
    normal[np.diag_indices_from(normal)] += RIDGE * float(np.trace(normal))
    kept = list(range(len(moment)))
    while True:
        part = np.linalg.solve(normal[np.ix_(kept, kept)], moment[kept])
        negative = [place for place, index in enumerate(kept) if index >= signed and part[place] < 0.0]
        if not negative:
            break
        kept.pop(negative[0])
    result = np.zeros(len(moment))
    result[kept] = part
    return result


def unattenuated(amplitude: Array, design: Array, weight: Array, noise_w2: float) -> Array:
    """Offset and gain (2,) without what noise of such variance in the meter's column takes from the gain."""
    power, total = design[:, 1], float(weight.sum())
    mean = float(weight @ power) / total
    spread = float(weight @ (power - mean) ** 2) / total
    gain = float(amplitude[1]) * spread / max(spread - noise_w2, 0.5 * spread)
    return np.array([float(amplitude[0]) + mean * (float(amplitude[1]) - gain), gain])


def fit_kernel(problem: KernelProblem, period_s: float) -> KernelFit:
    """The best width, delay, noise and jitter of one kernel; standard errors come from `errors.with_errors`."""
    parameters, delays = _start_parameters(problem.kernel), _start_delays(period_s)
    misfit = np.stack([plain_misfit(problem, parameter, delays) for parameter in parameters])
    best: tuple[Array, float] | None = None
    for row, column in _two_lowest(misfit):
        start_noise = float(np.log(max(0.5 * np.sqrt(np.exp(misfit[row, column])), 0.05)))
        start = np.array([np.log(parameters[row]), delays[column], start_noise, np.log(5e-4), 0.0])
        found = climbed(problem, start, START_STEP, EVALUATIONS)
        best = found if best is None or found[1] > best[1] else best
    assert best is not None
    again = climbed(problem, best[0], RESTART_STEP, RESTART_EVALUATIONS)
    point = again[0] if again[1] > best[1] else best[0]
    fit = described(problem, point)
    if fit.kernel == "boxcar" and fit.width_s > LONG_WIDTH_S:
        fit = replace(fit, width_s=_long_width(problem, fit.width_s))
    return fit


def described(problem: KernelProblem, point: Array) -> KernelFit:
    """A point of the search as a fit."""
    found = problem.evaluate(point, _even(problem))
    found = problem.evaluate(point, found.weight)
    value = problem.value
    parameter = float(np.exp(point[0]))
    return KernelFit(
        kernel=problem.kernel,
        width_s=parameter * {"none": 0.0, "low-pass": 2.0, "boxcar": 1.0}[problem.kernel],
        delay_s=float(point[1]),
        noise_w=float(np.exp(point[2])),
        jitter_s=float(np.exp(point[3])),
        drift=float(point[4]),
        amplitude_w=found.amplitude,
        score=found.total - (0.0 if problem.kernel == "none" else 0.5 * float(np.log(len(value)))),
        terms=found.terms,
        predicted_w=found.predicted,
        residual_w=found.residual,
        r2=float(1.0 - np.var(found.residual) / max(float(np.var(value)), 1e-12)),
    )


def _even(problem: KernelProblem) -> Array:
    return np.ones(len(problem.value))


def _start_parameters(kernel: str) -> Array:
    """Widths (boxcar) or time constants (low-pass) to start from [s], ascending."""
    if kernel == "none":
        return np.array([NONE_WIDTH_S])
    if kernel == "low-pass":
        return np.geomspace(LOW_PASS_LEAST_S, LOW_PASS_MOST_S, LOW_PASS_POINTS)
    return np.union1d(np.geomspace(BOXCAR_LEAST_S, BOXCAR_MOST_S, BOXCAR_POINTS), np.arange(*NEEDLES_S))


def _start_delays(period_s: float) -> Array:
    step = DELAY_STEPS_S[period_s < QUICK_PERIOD_S]
    return np.arange(-DELAY_LIMIT_S, DELAY_LIMIT_S + 0.5 * step, step)


def plain_misfit(problem: KernelProblem, parameter_s: float, delays_s: Array) -> Array:
    """Log of the clipped mean square residual of plain least squares, for all delays at once; shape (g,)."""
    design = problem.design(parameter_s, delays_s)
    normal = design.transpose(0, 2, 1) @ design
    trace = np.trace(normal, axis1=1, axis2=2)
    normal += np.eye(design.shape[2]) * (RIDGE * trace)[:, None, None]
    amplitude = np.linalg.solve(normal, (problem.value @ design)[..., None])[..., 0]
    residual2 = (problem.value - (design @ amplitude[..., None])[..., 0]) ** 2
    limit = CLIP**2 * np.median(residual2, axis=1, keepdims=True) + 0.1
    missing = problem.missing_noise_w2(parameter_s, 0.0)[1] * amplitude[:, 1] ** 2
    logs: Array = np.log(np.mean(np.minimum(residual2, limit), axis=1) + missing + 1e-4)
    return logs


def _two_lowest(misfit: Array) -> list[tuple[int, int]]:
    """The lowest cell and the lowest one apart from it."""
    left = misfit.copy()
    cells = []
    for _ in range(2):
        row, column = divmod(int(np.argmin(left)), left.shape[1])
        if not np.isfinite(left[row, column]):
            break
        cells.append((row, column))
        left[max(0, row - 2) : row + 3, max(0, column - 2) : column + 3] = np.inf
    return cells


def climbed(problem: KernelProblem, start: Array, step: tuple[float, ...], evaluations: int) -> tuple[Array, float]:
    """The best point near a start, and the log-likelihood with priors there."""
    first = problem.evaluate(start, _even(problem))
    weight = first.weight
    moves = np.array(step)
    if problem.kernel == "none":
        moves[0] = 0.0
    return simplex_maximum(_walled(problem, weight), start, moves, evaluations=evaluations)


def _walled(problem: KernelProblem, weight: Array) -> Callable[[Array], float]:
    low, high = {
        "none": (np.log(NONE_WIDTH_S), np.log(NONE_WIDTH_S)),
        "boxcar": (np.log(0.5 * BOXCAR_LEAST_S), np.log(1.3 * BOXCAR_MOST_S)),
        "low-pass": (np.log(0.5 * LOW_PASS_LEAST_S), np.log(1.3 * LOW_PASS_MOST_S)),
    }[problem.kernel]

    def function(point: Array) -> float:
        if not (
            low <= point[0] <= high
            and abs(point[1]) < 2.0 * DELAY_LIMIT_S
            and -7.0 < point[2] < 6.0
            and -12.0 < point[3] < -3.0
            and abs(point[4]) < 5.0
        ):
            return WALL
        return problem.evaluate(point, weight).total

    return function


def _long_width(problem: KernelProblem, width_s: float) -> float:
    """Width of a one-second mean by plain least squares [s]."""
    widths, delays = np.arange(*LONG_WIDTHS_S), np.arange(*LONG_DELAYS_S)
    misfit = []
    for width in np.append(widths, width_s):
        design = problem.design(float(width), delays)
        residuals = [problem.value - part @ solved(part, problem.value, _even(problem), problem.source.signed + 1) for part in design]
        misfit.append(min(float(residual @ residual) for residual in residuals))
    return float(np.append(widths, width_s)[int(np.argmin(misfit))])
