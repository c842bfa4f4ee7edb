"""Standard errors of a kernel's width, delay and amplitudes."""

from dataclasses import replace
from typing import Final

import numpy as np

from collector.sensor.kernel_fit import (
    JITTER_LN_STD,
    TAIL_DEGREES,
    TAIL_SCALE,
    VARIANCE_FLOOR_W2,
    KernelFit,
    KernelProblem,
)
from collector.sensor.load import SLOW_RISE_S, pole
from collector.sensor.passed_noise import JITTER_NODE, JITTER_WEIGHTS
from collector.sensor.simplex import simplex_maximum
from collector.sensor.sources import NONE_WIDTH_S
from estimator.quantities import Array

DELAY_STEP_S: Final = 8e-5
LN_WIDTH_STEP: Final = 4e-3
LN_JITTER_STEP: Final = 0.05
DRIFT_STEP: Final = 0.05
"""Finite differences in delay, log width, log jitter and drift."""
BLOCKS: Final = 16
LEAST_BLOCK: Final = 6
"""Updates show their scatter one by one, and blocks of the record what they have in common.  Each counts by how many there are: of
16 blocks alone an error would be known to a sixth only, and one standard error would hold less than it says."""
BEYOND_FIRST_ORDER: Final = 1.1
"""Repeated experiments scatter by 1.0 to 1.2 times the errors to first order: 286 simulated sensors by 1.2, and by 1.0 those of a world
that shares no code with this (`benchmarks/foreign_sensors.py`)."""
FLOOR_S: Final = {"meter": 4e-5, "load": 1e-4}
"""What none of both holds (the form of a launch's rise, the grid), by what the fit had."""
SHORT_S: Final = 2.0 * NONE_WIDTH_S
SHORT_STD_S: Final = NONE_WIDTH_S / 12.0**0.5
"""A sensor that averages for less than SHORT_S, or not at all, looks at a moment or at two milliseconds: the middle of what it sees is
known; when that ends is not, and what a width seems to tell there is the meter's noise and the grid."""
LONG_WIDTH_S: Final = 0.4
LONG_STD_S: Final = 0.025
"""A one-second mean has uneven weights: its width means no more than this."""
FEW_EDGES_SHARE: Final = 0.05
"""The least error of a width that a step or two tell: a meter's rate and the board's fall before an end's stamp move the one
reading on a ramp directly (published recordings: 101.3 to 105.4 ms for the same step by the rates of seven recordings)."""
OWN_SHARE: Final = 0.2
"""Of the noise at which kernels are compared at least so much counts for errors: what was added for the comparison does not."""
NOISES: Final = 1
"""Parameters that were fitted beside those of the covariance: the noise."""
SLOW: Final = 1
"""Place of the slow rise among a load's columns, after the one that follows at once."""
RANK: Final = 1e-10
TINY: Final = 1e-300
SURE_SHARE: Final = 0.6
"""Of a variance that 16 values show, as much is there in 19 of 20 cases (15 over the 95th percentile of χ² with 15 degrees of freedom)."""
PROFILE_LEAST, PROFILE_MOST, PROFILE_POINTS = 0.5, 2.0, 41
PROFILE_STEP: Final = np.array([0.0, 1e-3, 0.3, 0.3, 0.3])
PROFILE_EVALUATIONS: Final = 70
"""Widths of a profile, as shares of the best one, and the search for the rest at each."""


def with_errors(problem: KernelProblem, fit: KernelFit, shared_s: Array | None = None) -> KernelFit:
    """The fit with standard errors: what updates, and blocks of the record, scatter by about the best point, and a floor.

    `shared_s` (m, n) is what the times of updates may be off by together (see `Updates`): no scatter shows it.
    """
    count = len(fit.amplitude_w)
    covariance = _covariance(problem, fit, shared_s)
    floor = FLOOR_S[problem.source.kind]
    short_std = SHORT_STD_S if fit.width_s < SHORT_S else 0.0
    delay_std = float(np.sqrt(covariance[count, count] + floor**2 + problem.source.time_std_s**2 + short_std**2))
    if fit.kernel == "boxcar" and fit.width_s > LONG_WIDTH_S:
        width_std = LONG_STD_S
    else:
        width_std = float(np.sqrt(fit.width_s**2 * covariance[count + 1, count + 1] + floor**2 + short_std**2))
    return replace(fit, width_std_s=width_std, delay_std_s=delay_std, amplitude_covariance=covariance[:count, :count])


def with_profiled_width(problem: KernelProblem, fit: KernelFit) -> KernelFit:
    """The fit with the width's error from the likelihood itself, everything else fitted again at every width.

    A step or two may leave widths and delays that differ much about equally likely; a curvature sees one of them only.
    """
    widths = fit.width_s * np.geomspace(PROFILE_LEAST, PROFILE_MOST, PROFILE_POINTS)
    likelihood = []
    for width in widths.tolist():
        parameter = fit.parameter_s * width / fit.width_s
        moved = 0.5 * (width - fit.width_s) if fit.kernel == "boxcar" else parameter - fit.parameter_s
        start = np.array([np.log(parameter), fit.delay_s - moved, np.log(fit.noise_w), np.log(fit.jitter_s), fit.drift])
        weight = problem.evaluate(start, np.ones(len(problem.value))).weight

        def total(point: Array, weight: Array = weight) -> float:
            return problem.evaluate(point, weight).total

        likelihood.append(simplex_maximum(total, start, PROFILE_STEP, evaluations=PROFILE_EVALUATIONS)[1])
    share = np.exp(np.array(likelihood) - max(likelihood)) * widths  # even in the width, on an even grid of its logarithm
    share /= share.sum()
    spread = float(np.sqrt(np.sum(share * (widths - fit.width_s) ** 2)))
    return replace(fit, width_std_s=max(fit.width_std_s, spread, FEW_EDGES_SHARE * fit.width_s))


def _covariance(problem: KernelProblem, fit: KernelFit, shared_s: Array | None) -> Array:
    """Covariance of amplitudes, delay, log width (0 for none), log jitter and drift.

    Student's information, that of the jitter's own prior and of the scatter that it causes included: jitter that is not known
    exactly widens or narrows a short kernel.  Residuals are smaller than the noise by what was fitted to them: of 90 updates
    at one every 100 ms that is 4 % of every error.  No error is less than the model's own: the one reading on a ramp that a
    parameter was fitted to scatters by nothing; and none less than the blocks are sure of, where residuals belong together.
    """
    expected, variance, of_jitter = _moments(problem, fit)
    jacobian = np.concatenate([expected, _slopes(problem, fit)], axis=1)
    residual = problem.value - expected @ fit.amplitude_w
    degrees = TAIL_DEGREES
    share = (degrees + 1.0) / (degrees + 3.0)
    scale = np.maximum(np.sqrt(np.sum(jacobian**2 / variance[:, None], axis=0)), 1e-12)
    scaled = jacobian / scale
    own = np.zeros(jacobian.shape[1])
    own[-2] = JITTER_LN_STD**-2 + 2.0 * degrees / (degrees + 3.0) * float(np.sum((of_jitter / variance) ** 2))
    own[-1] = 1.0
    own /= scale**2
    information = share * scaled.T @ (scaled / variance[:, None]) + np.diag(own)
    inverse = np.linalg.pinv(information, rcond=RANK, hermitian=True)
    score = scaled * ((degrees + 1.0) * residual / (degrees * variance + residual**2))[:, None]
    blocks = min(BLOCKS, max(len(score) // LEAST_BLOCK, 3))
    sums = np.array([part.sum(axis=0) for part in np.array_split(score, blocks)])
    common = sums.T @ sums * blocks / (blocks - 1.0)
    scatter = (len(score) * score.T @ score + blocks * common) / (len(score) + blocks)
    seen, together = (inverse @ (meat + np.diag(own)) @ inverse for meat in (scatter, common))
    floor = np.maximum(np.diag(inverse), SURE_SHARE * np.diag(together))
    least = np.sqrt(np.maximum(floor / np.maximum(np.diag(seen), TINY), 1.0))
    freedom = max(len(score) - jacobian.shape[1] - NOISES, 1)
    covariance: Array = BEYOND_FIRST_ORDER**2 * len(score) / freedom * seen * np.outer(least / scale, least / scale)
    if problem.source.kind == "load":
        shift = inverse @ (share * scaled.T @ (_other_rise(problem, fit, expected) / variance)) / scale
        covariance = covariance + np.outer(shift, shift)
    if shared_s is not None:
        change = jacobian[:, expected.shape[1], None] * shared_s.T
        shifts = inverse @ (share * scaled.T @ (change / variance[:, None])) / scale[:, None]
        covariance = covariance + shifts @ shifts.T
    return covariance


def _other_rise(problem: KernelProblem, fit: KernelFit, expected: Array) -> Array:
    """What readings would change by if the power that follows a launch late rose by one pole, not two (n,) [W], over √2.

    Stamps alone do not tell the form of a rise, and window and delay follow what is taken for it.  Of two forms, either as likely, the
    one that is taken is wrong in half of the cases: one standard deviation is the difference over √2.
    """
    columns = problem.source.columns.copy()
    count = columns.shape[1]
    columns[SLOW] = np.fft.irfft(np.fft.rfft(columns[SLOW - 1]) * pole(count, SLOW_RISE_S), n=count)
    other = KernelProblem(problem.kernel, replace(problem.source, columns=columns), problem.time_s, problem.value, problem.jitter_s)
    column = 1 + SLOW
    change = _moments(other, fit)[0][:, column] - expected[:, column]
    result: Array = float(fit.amplitude_w[column]) * change / 2.0**0.5
    return result


def _moments(problem: KernelProblem, fit: KernelFit) -> tuple[Array, Array, Array]:
    """Columns (n, c) as a reading expects them, the variance of readings and the jitter's part of it (n,)."""
    node = JITTER_NODE * fit.jitter_s
    designs = problem.design(fit.parameter_s, np.array([fit.delay_s - node, fit.delay_s, fit.delay_s + node]), fit.drift)
    expected = np.tensordot(JITTER_WEIGHTS, designs, axes=1)
    of_jitter = TAIL_SCALE**2 * np.tensordot(JITTER_WEIGHTS, ((designs - expected) @ fit.amplitude_w) ** 2, axes=1)
    missing = problem.missing_noise_w2(fit.parameter_s, fit.jitter_s)[1] * float(fit.amplitude_w[1]) ** 2
    own_w2 = max(fit.noise_w**2 - missing, OWN_SHARE * fit.noise_w**2)
    return expected, own_w2 + of_jitter + VARIANCE_FLOOR_W2, of_jitter


def _slopes(problem: KernelProblem, fit: KernelFit) -> Array:
    """Change of expected readings with delay, log width, log jitter and drift, shape (n, 4)."""

    def moved(*, delay: float = 0.0, ln_width: float = 0.0, ln_jitter: float = 0.0, drift: float = 0.0) -> Array:
        changed = replace(
            fit,
            delay_s=fit.delay_s + delay,
            width_s=fit.width_s * float(np.exp(ln_width)),
            jitter_s=fit.jitter_s * float(np.exp(ln_jitter)),
            drift=fit.drift + drift,
        )
        result: Array = _moments(problem, changed)[0] @ fit.amplitude_w
        return result

    columns = [
        (moved(delay=DELAY_STEP_S) - moved(delay=-DELAY_STEP_S)) / (2.0 * DELAY_STEP_S),
        (moved(ln_width=LN_WIDTH_STEP) - moved(ln_width=-LN_WIDTH_STEP)) / (2.0 * LN_WIDTH_STEP),
        (moved(ln_jitter=LN_JITTER_STEP) - moved(ln_jitter=-LN_JITTER_STEP)) / (2.0 * LN_JITTER_STEP),
        (moved(drift=DRIFT_STEP) - moved(drift=-DRIFT_STEP)) / (2.0 * DRIFT_STEP),
    ]
    return np.stack(columns, axis=1)
