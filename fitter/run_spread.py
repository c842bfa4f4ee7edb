"""Errors on runs that a fit has not seen → standard deviations to state for runs to come.

An error of ln(latency) has the variance (1 − p)·σ_gpu² + p·σ_launch², p being the share of the host's launches: the two are found
together, so that a host's slow modes do not widen what the GPU paces.  Normal quantiles are then stretched until nine of ten
left-out runs lie inside (split conformal prediction, Lei et al., J. Am. Stat. Assoc. 113 (2018) 1094).

A family that the fit has not seen adds σ_family².  It is what errors on whole families, left out one after the other, show beyond
what the other sources already state for them: runs of known families have a part of a family's own error in theirs, and kernels that
too few families had used are counted by themselves.  Families are few, so their spread is a posterior mean, not a maximum.
"""

from typing import Final

import numpy as np
from scipy.optimize import minimize

from estimator.quantities import Array

LEVEL: Final = 0.9
"""Share of runs inside their interval."""

NORMAL_90: Final = 1.6448536269514722
"""Standard deviations on each side of a normal 90 % interval."""

PRIOR_RUNS: Final = 5.0
"""Runs that the expected spread, and a normal distribution's quantile, count for."""

PRIOR_FAMILIES: Final = 3.0
"""Families that the expected spread between families counts for: the posterior mean is then that of 3 families more."""

WIDEST_FAMILY: Final = 0.4
NARROWEST_FAMILY: Final = 1e-3
FAMILY_STEPS: Final = 800
"""Spreads between families that are weighed against each other [ln]."""


def paced_std(error: Array, launch_share: Array, expected: tuple[float, float]) -> tuple[float, float]:
    """Standard deviations of ln(latency) where the GPU, and where the host's launches, pace a run.

    error, launch_share (n,): of runs left out of the fit.  expected: both, before any run is seen.  Maximum of the likelihood with
    PRIOR_RUNS runs of either kind that err as expected.
    """

    def cost(logarithms: Array) -> float:
        gpu, launch = np.exp(2.0 * logarithms)
        variance = (1.0 - launch_share) * gpu + launch_share * launch
        prior = sum(np.log(own) + before**2 / own for own, before in zip((gpu, launch), expected, strict=True))
        return float(np.sum(np.log(variance) + error**2 / variance) + PRIOR_RUNS * prior)

    gpu, launch = np.exp(minimize(cost, np.log(expected), method="Nelder-Mead").x)
    return float(gpu), float(launch)


def single_std(error: Array, expected: float) -> float:
    """Standard deviation of errors of one kind, shape (n,), with PRIOR_RUNS runs that err as expected."""
    return float(np.sqrt((PRIOR_RUNS * expected**2 + error @ error) / (PRIOR_RUNS + len(error))))


def interval_factor(error: Array, std: Array) -> float:
    """The factor on standard deviations, shapes (n,), with which normal 90 % intervals hold nine of ten errors; near 1 for few."""
    count = len(error)
    if not count:
        return 1.0
    share = min(np.ceil((count + 1) * LEVEL) / count, 1.0)
    seen = float(np.quantile(np.abs(error) / std, share)) / NORMAL_90
    return (count * seen + PRIOR_RUNS) / (count + PRIOR_RUNS)


def family_std(error: Array, known_std: Array, family: Array, expected: float) -> float:
    """Standard deviation that a family which the fit has not seen adds.

    error, known_std, family (n,): errors of families left out as wholes, what all other sources state for them, and their names.
    expected: the deviation before any family is seen.  Runs of one family count as one: they err alike.
    """
    variance = np.linspace(NARROWEST_FAMILY, WIDEST_FAMILY, FAMILY_STEPS) ** 2
    degrees = PRIOR_FAMILIES + 2.0
    log_weight = -(degrees / 2.0 + 1.0) * np.log(variance) - PRIOR_FAMILIES * expected**2 / (2.0 * variance)
    for name in np.unique(family):
        own = family == name
        total = known_std[own, None] ** 2 + variance
        log_weight -= 0.5 * np.mean(np.log(total) + error[own, None] ** 2 / total, axis=0)
    weight = np.exp(log_weight - log_weight.max()) * np.gradient(variance)
    return float(np.sqrt(weight @ variance / weight.sum()))
