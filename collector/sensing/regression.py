"""Readings on signals: one response's width and delay, with levels, noise and jitter solved inside, and their standard errors.

readings_i = level · (h_θ * p)(u_i − delay) + offset + noise, where p is a meter's power (the level is the gain) or the signals from a
load's stamps (levels unknown, slow parts not below 0).  Source of the scheme: sensor-method.md 1.4, 1.5.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from scipy.optimize import nnls

from collector.sensing.board_power import Signal
from collector.sensing.calibration import ResponseKernel
from collector.sensing.response import KERNELS, POINT_S, columns, seen_and_slopes
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

DELAY_S: Final = 0.014
"""The search covers delays between minus and plus this [s]; a fit may reach twice as far, but then its delay is not used."""
SOFT_DELAY_S: Final = 0.012
"""Scale of the fourth-power penalty on delays [s]."""
LARGEST_S: Final = {"none": POINT_S, "boxcar": 1.4, "low-pass": 0.8}
"""Largest width or time constant of each response [s]: trailing means of a second, and wider than any published low-pass."""
SMALLEST_S: Final = 8e-4
"""Smallest width [s]; narrower responses are points to readings."""
BANDS: Final = (0.3, 1.2, 3.0)
"""A fit starts from the best width in each of the bands between these, in update periods."""
FREEDOM: Final = 4.0
"""Degrees of freedom of the residuals' t distribution: single updates may deviate strongly."""
USUAL_JITTER_S, JITTER_LN_STD = 6e-4, 1.2
"""Prior of the jitter of an averaging's end (0.3 to 0.5 ms on published boards)."""
SLOW_SHARE: Final = 0.1
"""Prior of a board's slow parts for the errors, as a share of the step: it includes the parts that the fit leaves out."""
LEAST_VARIANCE: Final = 1e-6
"""Least variance of a reading [W²]."""
ERRORS: Final = {True: (1.0, 1.0e-4), False: (1.2, 2.5e-4)}
"""Factor on the formal standard error of a width and an added error [s], with a meter and without.

Chosen on 60 simulated sensors (seeds 900 on), on which the rms of error over stated error is 1.
"""
GAIN_FLOOR, OFFSET_FLOOR_W = 7e-4, 0.12
"""Least errors of gain and offset, from the same sensors."""


@frozen
class Fit:
    """The best fit of one response.

    `width_s` is W or 2τ, `score` is the log-likelihood and `each` (n,) its parts, `level` the
    offset and the level of each signal, `residual` and `predicted` (n,) in watts, `explained` R².
    """

    kernel: ResponseKernel
    width_s: float
    delay_s: float
    score: float
    each: Array
    level: Array
    residual: Array
    predicted: Array
    noise_w: float
    jitter_s: float
    explained: float
    level_std: Array
    width_std_s: float = np.nan
    delay_std_s: float = np.nan
    level_correlation: float = 0.0

    @property
    def evidence(self) -> float:
        """The score, less half the log of the number of updates for a width."""
        return self.score - (0.0 if self.kernel == "none" else 0.5 * float(np.log(len(self.each))))

    @property
    def place(self) -> Array:
        """The log of the width, and the delay."""
        return np.array([np.log(max(self.width_s, SMALLEST_S)), self.delay_s])

    @property
    def at_bound(self) -> bool:
        """Whether the width lies within 3 % of the end of the search: a longer one may fit better, with another level."""
        return self.width_s > 0.97 * LARGEST_S[self.kernel]


Fits = tuple[Fit, ...]
"""A fit of each response."""


@frozen
class Problem:
    """Updates (n,) and the signals that explain them; `metered`: one signal, whose level is the gain.

    Without `late` the levels of a board's delayed parts (all signals but the first and the last) are 0, but the errors still include them.
    """

    time_s: Array
    value_w: Array
    signals: Sequence[Signal]
    metered: bool
    late: bool = False

    def best(self, starts: dict[ResponseKernel, list[Array]]) -> Fits:
        """The likeliest fit of every response, from its starts."""
        return tuple(max((self._fitted(kernel, place) for place in starts[kernel]), key=lambda fit: fit.score) for kernel in KERNELS)

    def late_cost(self) -> float:
        """Log-likelihood that a board's delayed parts must add; readings that do not need these parts leave them out."""
        return 8.0 + 0.5 * (len(self.signals) - 2) * float(np.log(len(self.time_s)))

    def at(self, fit: Fit) -> Fit:
        """The fit of levels at the width and delay of another fit."""
        return self._at(fit.kernel, fit.place, None)[0]

    def drifting(self, rate: float) -> "Problem":
        """The same problem with a delay that changes by `rate` seconds a second around the middle of the record."""
        return replace(self, time_s=self.time_s - rate * (self.time_s - self.time_s.mean()))

    def drift(self, fit: Fit) -> float:
        """The rate of the delay that leaves the least residuals, to first order from a fit with a constant delay [s/s]."""
        matrix, weight = self._at(fit.kernel, fit.place, fit)[1]
        part = np.column_stack([matrix[:, 1] * (self.time_s - self.time_s.mean()), matrix]) * np.sqrt(weight)[:, None]
        scale = np.linalg.norm(part, axis=0) + 1e-12
        return float(np.linalg.lstsq(part / scale, fit.residual * np.sqrt(weight), rcond=None)[0][0] / scale[0])

    def near(self, fit: Fit) -> Fit:
        """The likeliest fit of the same response from the width and delay of another fit."""
        return self._fitted(fit.kernel, fit.place)

    def _levels(self, design: Array, weight: Array) -> Array:
        """Levels (k,) of a design (n, k), those of slow parts not below 0."""
        root, count = np.sqrt(weight)[:, None], design.shape[1]
        scaled, target = design * root, self.value_w * root[:, 0]
        if count <= 2:
            return np.asarray(np.linalg.lstsq(scaled, target, rcond=None)[0])
        free = np.arange(count) if self.late else np.array([0, 1, count - 1])
        both = nnls(np.concatenate([scaled[:, free], -scaled[:, :1]], axis=1), target, maxiter=200)[0]
        level = np.zeros(count)
        level[free] = both[:-1]
        level[0] -= both[-1]
        return level

    def _misfit(self, kernel: ResponseKernel, width_s: float, delays: Array) -> Array:
        """Log of the clipped mean square residual at every delay (d,)."""
        design = columns(self.signals, kernel, width_s, self.time_s - delays[:, None])
        turned = design.swapaxes(1, 2)
        square = turned @ design
        square += 1e-9 * np.trace(square, axis1=1, axis2=2)[:, None, None] * np.eye(design.shape[-1])
        level = np.linalg.solve(square, turned @ self.value_w[:, None])
        left = np.abs(self.value_w - (design @ level)[..., 0])
        limit = 8.0 * np.median(left, axis=1, keepdims=True) + 0.4
        return np.asarray(np.log(np.mean(np.minimum(left, limit) ** 2, axis=1) + 1e-4))

    def starts(self, kernel: ResponseKernel, period_s: float) -> list[Array]:
        """Logs of widths, and delays, to start from: the least misfit in each band of a grid of a millisecond.

        A minimum of the misfit is that narrow where the width is a multiple of a quick load's period (sensor-method.md 1.4).
        """
        if kernel == "none":
            widths = np.array([POINT_S])
        elif kernel == "boxcar":
            top = min(LARGEST_S["boxcar"], 13.0 * period_s)
            widths = np.union1d(np.geomspace(SMALLEST_S, top, 100), np.arange(2e-3, min(top, 0.2), 1e-3))
        else:
            widths = np.geomspace(1.2e-3, min(LARGEST_S["low-pass"], 10.0 * period_s), 30)
        delays = np.arange(-DELAY_S, DELAY_S + 1e-9, 1e-3 if period_s > 0.03 else 8e-4)
        step = -(-len(self.time_s) // 400)
        thin = replace(self, time_s=self.time_s[::step], value_w=self.value_w[::step])
        misfit = np.array([thin._misfit(kernel, width, delays) for width in widths.tolist()])
        bands = np.split(np.arange(len(widths)), np.searchsorted(widths, np.array(BANDS) * period_s))
        best = [band[misfit[band].min(axis=1).argmin()] for band in bands if len(band)]
        return [np.array([np.log(widths[i]), delays[misfit[i].argmin()]]) for i in best]

    def _fitted(self, kernel: ResponseKernel, x: Array) -> Fit:
        """The maximum near a start: damped Gauss-Newton in the log of the width and the delay."""
        low = np.array([np.log(SMALLEST_S), -2.0 * DELAY_S])
        high = np.array([np.log(LARGEST_S[kernel]), 2.0 * DELAY_S])
        most = np.array([0.3, 4e-3])
        best, slopes = self._at(kernel, x, None)
        first, damping = (1 if kernel == "none" else 0), 1e-2
        for turn in range(24):
            matrix, weight = slopes
            part = matrix[:, first:] * np.sqrt(weight)[:, None]
            scale = np.linalg.norm(part, axis=0) + 1e-12
            part = part / scale
            normal = part.T @ part + np.diag(np.where(np.arange(part.shape[1]) < 2 - first, damping, 1e-9))
            step = np.zeros(2)
            step[first:] = (np.linalg.solve(normal, part.T @ (best.residual * np.sqrt(weight))) / scale)[: 2 - first]
            there = np.clip(x + np.clip(step, -most, most), low, high)
            new, parts = self._at(kernel, there, best if turn > 5 else None)
            gain = new.score - best.score
            if gain > 0.0:
                best, slopes, x, damping = new, parts, there, damping / 4.0
            else:
                damping *= 6.0
            if damping > 1e4 or (turn > 5 and 0.0 < gain < 1e-3):
                break
        return self._with_errors(best, *slopes)

    def _at(self, kernel: ResponseKernel, x: Array, like: Fit | None) -> tuple[Fit, tuple[Array, Array]]:
        """The fit at a width and delay, with derivatives (n, 2 + levels) of the readings and weights (n,); noise as in `like`."""
        width_s, end_s = float(np.exp(x[0])), self.time_s - x[1]
        parts = [seen_and_slopes(one, kernel, width_s, end_s) for one in self.signals]
        design = np.stack([np.ones_like(end_s), *(one[0] for one in parts)], axis=1)
        weight = np.ones(len(end_s))
        noise, jitter = (like.noise_w, like.jitter_s) if like else (0.0, 0.0)
        for turn in range(4):
            level = self._levels(design, weight)
            residual = self.value_w - design @ level
            slope = np.sum([b * one[2] for b, one in zip(level[1:], parts, strict=True)], axis=0)
            if like is None and turn < 3:
                noise, jitter = noise_and_jitter(residual, slope)
            spread = noise**2 + (jitter * slope) ** 2 + LEAST_VARIANCE
            weight = (FREEDOM + 1.0) / (FREEDOM + residual**2 / spread) / spread
        each = likelihood(residual, spread)
        prior = 0.5 * (x[1] / SOFT_DELAY_S) ** 4 + 0.5 * (np.log(jitter / USUAL_JITTER_S) / JITTER_LN_STD) ** 2
        wider = np.sum([b * one[1] for b, one in zip(level[1:], parts, strict=True)], axis=0)
        fit = Fit(
            kernel=kernel,
            width_s=0.0 if kernel == "none" else width_s,
            delay_s=float(x[1]),
            score=float(each.sum()) - float(prior),
            each=each,
            level=level,
            level_std=np.full(2, np.nan),
            residual=residual,
            predicted=design @ level,
            noise_w=noise,
            jitter_s=jitter,
            explained=1.0 - float(np.var(residual)) / max(float(np.var(self.value_w)), 1e-9),
        )
        return fit, (np.column_stack([wider, -slope, design]), weight)

    def _with_errors(self, fit: Fit, matrix: Array, weight: Array) -> Fit:
        """Standard errors from curvature, or from the scatter of the scores over blocks if that is larger."""
        if fit.kernel == "none":
            matrix = matrix * (np.arange(matrix.shape[1]) > 0)
        spread = fit.noise_w**2 + (fit.jitter_s * matrix[:, 1]) ** 2 + LEAST_VARIANCE
        curvature = matrix.T @ (matrix * ((FREEDOM + 1.0) / (FREEDOM + 3.0) / spread)[:, None])
        curvature[np.diag_indices(len(curvature))] += np.where(
            np.arange(len(curvature)) < 4, 0.0, (SLOW_SHARE * max(float(np.ptp(fit.predicted)), 1.0)) ** -2.0
        )
        scale = np.sqrt(np.diag(curvature)) + 1e-12
        inverse = np.linalg.pinv(curvature / np.outer(scale, scale), hermitian=True) / np.outer(scale, scale)
        sandwich = block_covariance(inverse, matrix * (weight * fit.residual)[:, None], 16)
        factor, floor = ERRORS[self.metered]
        std = factor * np.sqrt(np.maximum(np.diag(inverse), np.diag(sandwich)))
        correlation = inverse[2, 3] / np.sqrt(max(inverse[2, 2] * inverse[3, 3], 1e-300))
        return replace(
            fit,
            width_std_s=np.nan if fit.kernel == "none" else float(np.hypot(std[0] * fit.width_s, floor)),
            delay_std_s=float(np.hypot(std[1], floor)),
            level_std=np.hypot(std[2:4], [OFFSET_FLOOR_W, GAIN_FLOOR * abs(fit.level[1])]),
            level_correlation=float(np.clip(correlation, -1.0, 1.0)),
        )


def block_covariance(inverse: Array, scores: Array, blocks: int) -> Array:
    """Sandwich covariance of parameters from `scores` (n, k) summed over blocks, which keeps correlations between neighbours."""
    count = int(np.clip(len(scores) // 6, 3, blocks))
    sums = np.array([part.sum(axis=0) for part in np.array_split(scores, count)])
    return np.asarray(inverse @ (sums.T @ sums) @ inverse * count / (count - 1))


def likelihood(residual: Array, spread: Array) -> Array:
    """Log-likelihood of residuals of variance `spread`, by a t distribution."""
    return -0.5 * np.log(spread) - 0.5 * (FREEDOM + 1.0) * np.log1p(residual**2 / spread / FREEDOM) - 0.9808


def noise_and_jitter(residual: Array, slope: Array) -> tuple[float, float]:
    """Reading noise [W] and jitter of the updates [s] at the greatest likelihood of residuals (n,) on slopes (n,) [W/s]."""
    usual = max(float(np.median(np.abs(residual))) * 1.2, 0.02)
    noise = usual * np.geomspace(0.15, 2.5, 10)[:, None, None]
    jitter = np.geomspace(6e-5, 6e-3, 10)[None, :, None]
    spread = noise**2 + (jitter * slope) ** 2 + LEAST_VARIANCE
    score = likelihood(residual, spread).sum(-1) - 0.5 * (np.log(jitter[..., 0] / USUAL_JITTER_S) / JITTER_LN_STD) ** 2
    i, j = np.unravel_index(int(score.argmax()), score.shape)
    return float(noise[i, 0, 0]), float(jitter[0, j, 0])


def plain_width(problem: Problem, fit: Fit) -> Fit:
    """A trailing mean's fit at the width of the least squares within a quarter of it, with the error from its uneven parts.

    A mean over a second comes in uneven parts: the t distribution adapts to some of them (sensor-method.md 1.4).
    """
    widths, delays = fit.width_s * np.arange(0.75, 1.252, 0.005), np.arange(-8e-3, 8.1e-3, 4e-3)
    best = (np.inf, fit.width_s)
    for width in widths.tolist():
        for design in columns(problem.signals, fit.kernel, width, problem.time_s - delays[:, None]):
            left = problem.value_w - design @ np.linalg.lstsq(design, problem.value_w, rcond=None)[0]
            best = min(best, (float(left @ left), width))
    # Error of a trailing mean's width: a fifth of one of its parts, which are a tenth of a second.
    return replace(fit, width_s=best[1], width_std_s=float(np.hypot(fit.width_std_s, 0.02)))
