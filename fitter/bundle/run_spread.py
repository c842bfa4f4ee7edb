"""Errors on held-out runs → standard deviations for runs of seen and unseen model families.

An error of ln(latency), or of ln(power), has the variance (1 − w)·σ_gpu² + w·σ_launch², where w is the weight of the host's launches
(`estimator.uncertainty.sources.launch_weight`).  Both deviations are fitted together, so that slow modes of a host do not widen the
errors of runs that the GPU limits.  Normal quantiles are then scaled to the 90 % quantile of the left-out runs' |error| / deviation.
For n runs this is the (n + 1)·0.9-th value, interpolated; the next run lies below it with a probability of 0.9 (split conformal
prediction, Lei et al., J. Am. Stat. Assoc. 113 (2018) 1094, takes the next whole number and so covers up to 1/(n + 1) more).

The mean error m_f of a family that is left out as a whole has the variance v_f from the scatter of its runs.  The common error of a
family's runs then has the variance τ² = mean(m²) − mean(v).  For few families mean(m²) is uncertain itself, so Student's t with as many
degrees of freedom as families replaces the normal distribution:

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
"""Weight of the prior spread, and of a normal distribution's quantile, as a number of runs."""

LATENCY_PRIOR: Final = (0.04, 0.12)
"""Prior of the latency error of GPU-bound and of launch-bound runs [relative]."""

POWER_PRIOR: Final = (0.04, 0.06)
"""Prior of the power error.  About half of the power of a launch-bound run is kernel energy over time: half the latency's error."""


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
    """Standard deviations of a logarithm for GPU-bound and for launch-bound runs."""

    gpu: float
    launch: float

    def at(self, launch_share: Array) -> Array:
        """Standard deviation at a share of the host's launches in the latency, shape (n,)."""
        result: Array = np.sqrt(np.array([self.gpu**2, self.launch**2]) @ _weights(launch_share))
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpread:
    """Stated uncertainty of runs of seen model families."""

    latency: PacedSpread
    power: PacedSpread


def _weights(launch_share: Array) -> Array:
    """Weights of the GPU-bound and of the launch-bound part in the variance, shape (2, n)."""
    host = launch_weight(launch_share)
    return np.array([1.0 - host, host])


def paced_std(error: Array, launch_share: Array, expected: tuple[float, float]) -> tuple[float, float]:
    """Standard deviations of a logarithm for GPU-bound and for launch-bound runs.

    error, launch_share (n,): of held-out runs.  expected: the prior of both.  Maximises the likelihood with PRIOR_RUNS runs of either kind
    that have the expected error.
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
    """Factor on standard deviations with which normal 90 % intervals hold for nine of ten future runs; near 1 for few runs.

    score: |error| / deviation of runs, shape (n,).
    """
    count = len(score)
    if not count:
        return 1.0
    seen = float(np.quantile(score, 0.9, method="weibull")) / NORMAL_90
    return (count * seen + PRIOR_RUNS) / (count + PRIOR_RUNS)


def known_spread(errors: RunErrors) -> RunSpread:
    """Spread of runs left out of a fit that has other runs of their family."""
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
"""Error of ln(latency) and of ln(power) common to a model family, stated if there are fewer than FEWEST_FAMILIES families (assumed)."""

FEWEST_FAMILIES: Final = 3
"""Least families for an estimate of the error of an unseen family."""


def family_std(error: Array, known_std: Array, family: Array) -> float:
    """Standard deviation that an unseen family adds.

    error, known_std, family (n,): errors of the logarithm of families left out as wholes, their standard deviation from all other
    sources, and their names; at least one run.
    """
    names, number = np.unique(family, return_inverse=True)
    precision = np.bincount(number, known_std**-2.0)
    mean = np.bincount(number, error * known_std**-2.0) / precision
    wide = float(stdtrit(len(names), 0.95)) / NORMAL_90
    return float(np.sqrt(max(wide**2 * float(np.mean(mean**2)) - float(np.mean(1.0 / precision)), 0.0)))


def family_spread(errors: RunErrors, names: Array, spread: RunSpread) -> tuple[float, float]:
    """Standard deviations that an unseen family adds to ln(latency) and ln(power).

    errors, names: errors on families left out as wholes, and the family of each run, shape (n,).  spread: of seen families.
    """
    share, measured = errors.launch_bound, np.isfinite(errors.power)
    known = np.hypot(spread.latency.at(share), np.sqrt(1.0 - share) * errors.untested)
    enough = len(np.unique(names)) >= FEWEST_FAMILIES, len(np.unique(names[measured])) >= FEWEST_FAMILIES
    return (
        family_std(errors.latency, known, names) if enough[0] else FAMILY_PRIOR,
        family_std(errors.power[measured], spread.power.at(share[measured]), names[measured]) if enough[1] else FAMILY_POWER_PRIOR,
    )
