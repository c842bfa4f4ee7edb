"""Errors on runs that a fit has not seen → standard deviations to state for runs of model families that it has seen.

An error of ln(latency), or of ln(power), has the variance (1 − w)·σ_gpu² + w·σ_launch², w being the weight of the host's launches
(`estimator.uncertainty.sources.launch_weight`): the two are found together, so that a host's slow modes do not widen
what the GPU paces.  Normal
quantiles are then stretched, or drawn in, to the 90 % quantile of the left-out runs' |error| / deviation.  Of n runs that is the
(n + 1)·0.9-th, interpolated, below which the next run lies with a probability of 0.9 (split conformal prediction, Lei et al., J. Am.
Stat. Assoc. 113 (2018) 1094, takes the whole number above and so covers up to 1/(n + 1) more).

Families left out as wholes have errors with the means m_f, which the runs' own scatter makes uncertain by v_f.  The errors that the runs
of a family have in common then have the variance τ² = mean(m²) − mean(v); of few families mean(m²) is uncertain itself, so that Student's
t with as many degrees of freedom as families takes the place of the normal distribution:

    τ² = (t / 1.645)² · mean(m²) − mean(v), and 0 where that is negative
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import minimize
from scipy.special import stdtrit

from estimator.uncertainty.sources import launch_weight
from estimator.vocabulary.quantities import NORMAL_90, Array

PRIOR_RUNS: Final = 5.0
"""Runs that the expected spread, and a normal distribution's quantile, count for."""

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
    parts, before = _weights(launch_share), np.array(expected) ** 2

    def cost(logarithms: Array) -> tuple[float, Array]:
        own = np.exp(logarithms)
        total = own @ parts
        value = np.sum(np.log(total) + error**2 / total) + PRIOR_RUNS * np.sum(logarithms + before / own)
        slope = own * (parts @ (1.0 / total - error**2 / total**2)) + PRIOR_RUNS * (1.0 - before / own)
        return float(value), slope

    gpu, launch = np.exp(0.5 * minimize(cost, np.log(before), jac=True, method="L-BFGS-B").x).tolist()
    return gpu, launch


def interval_factor(score: Array) -> float:
    """The factor on standard deviations with which normal 90 % intervals hold nine of ten runs to come; near 1 for few.

    score: |error| / deviation of runs, shape (n,).
    """
    count = len(score)
    if not count:
        return 1.0
    seen = float(np.quantile(score, 0.9, method="weibull")) / NORMAL_90
    return (count * seen + PRIOR_RUNS) / (count + PRIOR_RUNS)


def known_spread(errors: RunErrors) -> RunSpread:
    """Of runs left out while others of their family were in the fit."""
    measured = np.isfinite(errors.power)
    return RunSpread(
        latency=_calibrated(errors.latency, errors.launch_bound, LATENCY_PRIOR),
        power=_calibrated(errors.power[measured], errors.launch_bound[measured], POWER_PRIOR),
    )


def _calibrated(error: Array, launch_share: Array, expected: tuple[float, float]) -> PacedSpread:
    gpu, launch = paced_std(error, launch_share, expected)
    spread = PacedSpread(gpu=gpu, launch=launch)
    factor = interval_factor(np.abs(error) / spread.at(launch_share))
    return PacedSpread(gpu=factor * gpu, launch=factor * launch)


FAMILY_PRIOR: Final = 0.05
FAMILY_POWER_PRIOR: Final = 0.035
"""Error of ln(latency) and of ln(power) common to a model family, stated where fewer than FEWEST_FAMILIES families can tell (assumed)."""

FEWEST_FAMILIES: Final = 3
"""Fewer families, one of them left out, say nothing about a family that the fit has not seen."""


def family_std(error: Array, known_std: Array, family: Array) -> float:
    """Standard deviation to state for what a family that the fit has not seen adds.

    error, known_std, family (n,): errors of the logarithm of families left out as wholes, what all other sources state for them, and
    their names; at least one run.
    """
    names, number = np.unique(family, return_inverse=True)
    precision = np.bincount(number, known_std**-2.0)
    mean = np.bincount(number, error * known_std**-2.0) / precision
    wide = float(stdtrit(len(names), 0.95)) / NORMAL_90
    return float(np.sqrt(max(wide**2 * float(np.mean(mean**2)) - float(np.mean(1.0 / precision)), 0.0)))


def family_spread(errors: RunErrors, names: Array, spread: RunSpread) -> tuple[float, float]:
    """What a family that the fit has not seen adds to ln(latency) and ln(power).

    errors, names: of families left out as wholes, and whose runs they are, shape (n,).  spread: of families that the fit has seen.
    """
    share, measured = errors.launch_bound, np.isfinite(errors.power)
    known = np.hypot(spread.latency.at(share), np.sqrt(1.0 - share) * errors.untested)
    enough = len(np.unique(names)) >= FEWEST_FAMILIES, len(np.unique(names[measured])) >= FEWEST_FAMILIES
    return (
        family_std(errors.latency, known, names) if enough[0] else FAMILY_PRIOR,
        family_std(errors.power[measured], spread.power.at(share[measured]), names[measured]) if enough[1] else FAMILY_POWER_PRIOR,
    )
