"""Standard errors of a kernel's width, delay and amplitudes."""

from dataclasses import replace
from typing import Final

import numpy as np

from collector.sensor.kernel_fit import KernelFit, KernelProblem
from estimator.quantities import Array

STEP: Final = np.array([4e-3, 8e-5, 0.0, 0.0, 0.05])
"""Finite differences in log width, delay [s] and drift (noise and jitter are held)."""
BLOCKS: Final = 16
LEAST_BLOCK: Final = 6
INFLATION: Final = {"meter": 1.1, "load": 1.1}
FLOOR_S: Final = {"meter": 7e-5, "load": 1.5e-4}
"""What curvature and blocks leave out (tick, grid and rise errors): a factor and a floor, by what the fit had."""
JITTER_BIAS: Final = {"boxcar": 3.0, "low-pass": 0.5}
"""Jitter that is not told from averaging widens a short kernel by up to twice this times jitter² / parameter (equal variances)."""
LONG_WIDTH_S: Final = 0.4
LONG_STD_S: Final = 0.025
"""A one-second mean has uneven weights: its width means no more than this."""
AMPLITUDE_INFLATION: Final = 1.4
"""The same for gain and offset: with it 66 % and 95 % of simulated sensors lie within one and two standard errors."""


def with_errors(problem: KernelProblem, fit: KernelFit) -> KernelFit:
    """The fit with standard errors: sandwich over blocks of the record or curvature, whichever is larger, and floors."""
    point = np.array([np.log(fit.parameter_s), fit.delay_s, np.log(fit.noise_w), np.log(fit.jitter_s), fit.drift])
    variance = _variance(problem, point, fit)
    inflation, floor = INFLATION[problem.source.kind], FLOOR_S[problem.source.kind]
    width_std = LONG_STD_S
    if fit.kernel != "boxcar" or fit.width_s <= LONG_WIDTH_S:
        smeared = JITTER_BIAS.get(fit.kernel, 0.0) * fit.jitter_s**2 / fit.parameter_s
        width_std = float(np.sqrt((inflation * fit.width_s) ** 2 * variance[0] + floor**2 + smeared**2)) if fit.width_s else floor
    delay_std = float(np.hypot(inflation * np.sqrt(variance[1]), floor))
    covariance = _amplitude_covariance(problem, point, fit)
    return replace(fit, width_std_s=width_std, delay_std_s=delay_std, amplitude_covariance=covariance)


def _variance(problem: KernelProblem, point: Array, fit: KernelFit) -> Array:
    """Variances of log width and delay, shape (2,); infinite where the likelihood has no maximum there."""
    free = [1, 4] if fit.kernel == "none" else [0, 1, 4]
    weight = problem.evaluate(point, np.ones(len(problem.value))).weight

    def terms(*moves: tuple[int, float]) -> Array:
        moved = point.copy()
        for index, sign in moves:
            moved[index] += sign * STEP[index]
        return problem.evaluate(moved, weight).terms

    middle = terms()
    ahead, behind = [terms((i, 1.0)) for i in free], [terms((i, -1.0)) for i in free]
    score = np.array([(a - b) / (2.0 * STEP[i]) for a, b, i in zip(ahead, behind, free, strict=True)])
    hessian = np.empty((len(free), len(free)))
    for place, i in enumerate(free):
        hessian[place, place] = -float(np.sum(ahead[place] + behind[place] - 2.0 * middle)) / STEP[i] ** 2
        for other, j in enumerate(free[:place]):
            same = terms((i, 1.0), (j, 1.0)) + terms((i, -1.0), (j, -1.0))
            mixed = same - terms((i, 1.0), (j, -1.0)) - terms((i, -1.0), (j, 1.0))
            hessian[place, other] = hessian[other, place] = -float(np.sum(mixed)) / (4.0 * STEP[i] * STEP[j])
    hessian[-1, -1] += 1.0
    result = np.full(2, np.inf)
    try:
        inverse = np.linalg.inv(hessian)
    except np.linalg.LinAlgError:
        return result
    if not np.all(np.diag(inverse) > 0):
        return result
    blocks = min(BLOCKS, max(len(middle) // LEAST_BLOCK, 3))
    sums = np.array([part.sum(axis=1) for part in np.array_split(score, blocks, axis=1)])
    sandwich = inverse @ (sums.T @ sums) @ inverse * blocks / (blocks - 1.0)
    largest = np.maximum(np.diag(inverse), np.diag(sandwich))
    if fit.kernel == "none":
        return np.array([0.0, largest[0]])
    return largest[:2]


def _amplitude_covariance(problem: KernelProblem, point: Array, fit: KernelFit) -> Array:
    """Covariance of offset and factors: width and delay vary with them (columns of their slopes stand beside), by blocks."""
    delays = np.array([fit.delay_s - STEP[1], fit.delay_s, fit.delay_s + STEP[1]])
    designs = problem.design(fit.parameter_s, delays, fit.drift)
    design = designs[1]
    slopes = [(designs[2] - designs[0]) @ fit.amplitude_w / (2.0 * STEP[1])]
    if fit.kernel != "none":
        wider, narrower = (
            problem.design(fit.parameter_s * float(np.exp(sign * STEP[0])), delays[1:2], fit.drift)[0] for sign in (1.0, -1.0)
        )
        slopes.append((wider - narrower) @ fit.amplitude_w / (2.0 * STEP[0]))
    jacobian = np.concatenate([design, np.stack(slopes, axis=1)], axis=1)
    weight = problem.evaluate(point, np.ones(len(problem.value))).weight
    scale = np.maximum(np.sqrt(np.sum(jacobian**2 * weight[:, None], axis=0)), 1e-12)
    scaled = jacobian / scale
    inverse = np.linalg.pinv(scaled.T @ (scaled * weight[:, None]), rcond=1e-10)
    score = scaled * (weight * fit.residual_w)[:, None]
    blocks = min(BLOCKS, max(len(score) // LEAST_BLOCK, 3))
    sums = np.array([part.sum(axis=0) for part in np.array_split(score, blocks)])
    sandwich = inverse @ (sums.T @ sums) @ inverse * blocks / (blocks - 1.0)
    grown = np.sqrt(np.maximum(np.diag(sandwich) / np.maximum(np.diag(inverse), 1e-300), 1.0))
    count = design.shape[1]
    covariance: Array = AMPLITUDE_INFLATION**2 * (inverse * np.outer(grown, grown) / np.outer(scale, scale))[:count, :count]
    return covariance
