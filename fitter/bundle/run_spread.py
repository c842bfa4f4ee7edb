"""Errors on runs that a fit has not seen → standard deviations to state for runs of model families that it has seen.

An error of ln(latency), or of ln(power), has the variance (1 − w)·σ_gpu² + w·σ_launch², w being the weight of the host's launches
(`estimator.spread.launch_weight`): the two are found together, so that a host's slow modes do not widen what the GPU paces.  Normal
quantiles are then stretched, or drawn in, to the 90 % quantile of the left-out runs' |error| / deviation, each run's deviation told by the
others.  Of n runs that is the (n + 1)·0.9-th, interpolated, below which the next run lies with a probability of 0.9 (split conformal
prediction, Lei et al., J. Am. Stat. Assoc. 113 (2018) 1094, takes the whole number above and so covers up to 1/(n + 1) more).

What is stated for other families stands in `fitter.bundle.family_spread`.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.quantities import NORMAL_90, Array
from estimator.spread import launch_weight

LEVEL: Final = 0.9
"""Share of runs inside their interval."""

PRIOR_RUNS: Final = 5.0
"""Runs that the expected spread, and a normal distribution's quantile, count for."""

MOST_PARTS: Final = 128
"""More runs than these are left out some at a time: the spreads of so many hardly depend on any of them."""

MOST_STEPS: Final = 200
LARGEST_STEP: Final = 0.5
SMALLEST_STEP: Final = 1e-7
"""Steps of the search for two spreads, and how far one goes in the logarithm of a variance."""

LATENCY_PRIOR: Final = (0.04, 0.12)
"""Errors of GPU-bound and of launch-bound runs' latency, expected before any is seen [relative]."""

POWER_PRIOR: Final = (0.04, 0.06)
"""The same of power.  Where the host paces a run, about half of its power is kernels' energy over the time: half the latency's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunErrors:
    """Errors on runs left out of the fit, columns of shape (n,).

    latency, power   ln(measured / predicted); nan: no power
    launch_bound     share of the host's launches in the latency
    untested         standard deviation of ln(GPU time) for kernels that too few model families in the fit used
    """

    latency: Array
    power: Array
    launch_bound: Array
    untested: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedSpread:
    """Standard deviations of a logarithm where the GPU, and where the host, paces a run."""

    gpu: float
    launch: float

    def at(self, launch_share: Array) -> Array:
        """At a share of the host's launches in the latency, shape (n,)."""
        result: Array = np.sqrt(np.array([self.gpu**2, self.launch**2]) @ _weights(launch_share))
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpread:
    """What to state for runs of model families that the fit has seen."""

    latency: PacedSpread
    power: PacedSpread


def _weights(launch_share: Array) -> Array:
    """Weights of what the GPU and of what the host paces in the variance, shape (2, n)."""
    host = launch_weight(launch_share)
    return np.array([1.0 - host, host])


def paced_std(error: Array, launch_share: Array, expected: tuple[float, float]) -> tuple[float, float]:
    """Standard deviations of a logarithm where the GPU, and where the host's launches, pace a run.

    error, launch_share (n,): of runs left out of the fit.  expected: both, before any run is seen.  Maximum of the likelihood with
    PRIOR_RUNS runs of either kind that err as expected.
    """
    gpu, launch = _likeliest(error, launch_share, expected, np.ones((1, len(error))))[0]
    return float(gpu), float(launch)


def _likeliest(error: Array, launch_share: Array, expected: tuple[float, float], counted: Array) -> Array:
    """As `paced_std` for several choices of runs at once, shape (m, 2); counted (m, n): 1 for those that count, else 0.

    Fisher scoring in the logarithms of both variances: the expected curvature is positive, so a step descends if it is short enough.
    """
    parts = _weights(launch_share)
    before = np.array(expected) ** 2

    def cost(of_kinds: Array) -> Array:
        total = of_kinds @ parts
        of_runs, of_prior = np.log(total) + error**2 / total, np.log(of_kinds) + before / of_kinds
        result: Array = np.sum(counted * of_runs, axis=1) + PRIOR_RUNS * np.sum(of_prior, axis=1)
        return result

    variance = np.tile(before, (len(counted), 1))
    reached = cost(variance)
    stretch = np.ones(len(counted))
    for _ in range(MOST_STEPS):
        total = variance @ parts
        slope = variance * ((counted * (1.0 / total - error**2 / total**2)) @ parts.T) + PRIOR_RUNS * (1.0 - before / variance)
        of_variance = variance[:, :, None] * parts / total[:, None, :]
        curvature = np.einsum("mn,mkn,mln->mkl", counted, of_variance, of_variance) + PRIOR_RUNS * np.eye(2)
        step = np.clip(np.linalg.solve(curvature, -slope[:, :, None])[:, :, 0], -LARGEST_STEP, LARGEST_STEP) * stretch[:, None]
        tried = variance * np.exp(step)
        found = cost(tried)
        better = found <= reached
        variance, reached = np.where(better[:, None], tried, variance), np.where(better, found, reached)
        stretch = np.where(better, np.minimum(2.0 * stretch, 1.0), 0.5 * stretch)
        if np.abs(step).max(initial=0.0) < SMALLEST_STEP:
            break
    result: Array = np.sqrt(variance)
    return result


def interval_factor(score: Array) -> float:
    """The factor on standard deviations with which normal 90 % intervals hold nine of ten runs to come; near 1 for few.

    score: |error| / deviation of runs that the deviations have not seen, shape (n,).
    """
    count = len(score)
    if not count:
        return 1.0
    seen = float(np.quantile(score, LEVEL, method="weibull")) / NORMAL_90
    return (count * seen + PRIOR_RUNS) / (count + PRIOR_RUNS)


def left_out_scores(error: Array, launch_share: Array, expected: tuple[float, float]) -> Array:
    """|error| / deviation of each run, the deviation told by all others; arguments as those of `paced_std`.

    Scores by deviations that were fitted to the same runs are too small, and intervals made from them too narrow.
    """
    part = np.arange(len(error)) % MOST_PARTS
    others = (part != np.arange(min(len(error), MOST_PARTS))[:, None]).astype(np.float64)
    variance = _likeliest(error, launch_share, expected, others)[part] ** 2
    result: Array = np.abs(error) / np.sqrt(np.einsum("nk,kn->n", variance, _weights(launch_share)))
    return result


def known_spread(errors: RunErrors) -> RunSpread:
    """Of runs left out while others of their family were in the fit."""
    measured = np.isfinite(errors.power)
    return RunSpread(
        latency=_calibrated(errors.latency, errors.launch_bound, LATENCY_PRIOR),
        power=_calibrated(errors.power[measured], errors.launch_bound[measured], POWER_PRIOR),
    )


def _calibrated(error: Array, launch_share: Array, expected: tuple[float, float]) -> PacedSpread:
    gpu, launch = paced_std(error, launch_share, expected)
    factor = interval_factor(left_out_scores(error, launch_share, expected))
    return PacedSpread(gpu=factor * gpu, launch=factor * launch)
