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

from typing import Final

import numpy as np
from scipy.optimize import minimize
from scipy.special import stdtrit

from estimator.uncertainty.sources import launch_weight
from estimator.vocabulary.quantities import NORMAL_90, Array

PRIOR_RUNS: Final = 5.0
"""Weight of the prior spread, and of a normal distribution's quantile, as a number of runs."""

EXPECTED: Final = {"latency": (0.04, 0.12), "power": (0.04, 0.06)}
"""Prior of the error of GPU-bound and of launch-bound runs [relative].  About half of the power of a launch-bound run is kernel energy over
time: half the latency's error."""

OF_ONE: Final = (0.08, 0.12)
"""Error of GPU-bound and of launch-bound runs, stated if all runs are of one workload (assumed) [relative]."""

FAMILY_EXPECTED: Final = {"latency": 0.05, "power": 0.035}
"""Error common to a model family, stated if there are fewer than FEWEST_FAMILIES families (assumed) [ln]."""

FEWEST_FAMILIES: Final = 3
"""Least families for an estimate of the error of an unseen family."""

Spread = tuple[float, float]
"""Standard deviations of a logarithm for GPU-bound and for launch-bound runs."""


def spread_at(spread: Spread, launch_share: Array) -> Array:
    """Standard deviation at a share of the host's launches in the latency, shape (n,)."""
    return np.sqrt(np.square(spread) @ _weights(launch_share))


def _weights(launch_share: Array) -> Array:
    """Weights of the GPU-bound and of the launch-bound part in the variance, shape (2, n)."""
    host = launch_weight(launch_share)
    return np.array([1.0 - host, host])


def paced_std(error: Array, launch_share: Array, expected: Spread) -> Spread:
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


def known_spread(error: Array, launch_share: Array, expected: Spread) -> Spread:
    """Spread of runs left out of a fit that has other runs of their family; arguments as of `paced_std`, nan for an unknown error."""
    measured = np.isfinite(error)
    error, launch_share = error[measured], launch_share[measured]
    spread = paced_std(error, launch_share, expected)
    factor = interval_factor(np.abs(error) / spread_at(spread, launch_share))
    return factor * spread[0], factor * spread[1]


def family_spread(error: Array, known_std: Array, family: Array, expected: float) -> float:
    """Standard deviation that an unseen family adds; the expected one if there are too few families.

    error, known_std, family (n,): errors of the logarithm of families left out as wholes (nan: unknown), their standard deviation from all
    other sources, and their names.
    """
    measured = np.isfinite(error)
    names, number = np.unique(family[measured], return_inverse=True)
    if len(names) < FEWEST_FAMILIES:
        return expected
    weight = known_std[measured] ** -2.0
    precision = np.bincount(number, weight)
    mean = np.bincount(number, error[measured] * weight) / precision
    wide = float(stdtrit(len(names), 0.95)) / NORMAL_90
    return float(np.sqrt(max(wide**2 * float(np.mean(mean**2)) - float(np.mean(1.0 / precision)), 0.0)))
