"""What a model family that the fit has not seen adds to the uncertainty of its runs.

Families left out as wholes err by y_fi = b_f + κ·s_i·z_fi: b_f ~ N(0, τ²) is common to the runs of family f, s_i is what all other
sources state for a run, and κ tells whether runs of a foreign family scatter about their common error as those of known families do.
The likelihood of (τ, κ) has b_f integrated out; so a family counts as one draw of b_f and as n − 1 draws of its scatter, and a spread
between families is told from chance as soon as it exceeds the error of a family's mean.

Nothing is assumed of τ but the reference prior of a variance component, p(τ²) ∝ 1/√(τ²·(τ² + κ²·v)), v the variance of a family's mean
(flat in ln τ above what the data could show, flat in τ below; Box and Tiao, Bayesian Inference in Statistical Analysis (1973), chapter
5, has 1/(τ² + v), which covers more than it says at small τ); of κ that PRIOR_RUNS runs scatter as known ones do.

Few families leave τ uncertain, and a normal interval at any one value of τ would be too narrow for it.  What is stated is
therefore the deviation whose normal 90 % interval, joined with s_i, holds 90 % of the predictive distribution (the mixture of
N(0, κ²·s_i² + τ²) over the posterior): the heavy tails are counted once, and where families err as known runs do nothing is added.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from estimator.quantities import NORMAL_90, Array
from fitter.bundle.run_spread import LEVEL, PRIOR_RUNS, RunErrors, RunSpread

FAMILY_PRIOR: Final = 0.05
FAMILY_POWER_PRIOR: Final = 0.035
"""Error of ln(latency) and of ln(power) common to a model family, stated where fewer than FEWEST_FAMILIES families can tell (assumed)."""

FEWEST_FAMILIES: Final = 3
"""Fewer families, one of them left out, say nothing about a family that the fit has not seen."""

TAUS: Final = np.geomspace(1e-2, 30.0, 97)
"""Spreads between families that are weighed against each other, as multiples of the runs' own deviation [1]."""

KAPPAS: Final = np.geomspace(1.0 / 3.0, 3.0, 41)
"""Scatters within a family that are weighed against each other, as multiples of that of known families' runs [1]."""

NEGLIGIBLE: Final = 1e-6
"""Posterior weight, relative to the largest, below which a point of the grid is left out [1]."""

DEVIATIONS: Final = 7
"""Number of the runs' own deviations, from small to large, over which coverage is averaged."""

WIDEST: Final = 2.0
"""Multiple of the largest deviation of the mixture that no interval needs: the mixture is narrower than its widest part [1]."""

RELATIVE_STEP: Final = 1e-6
"""How well the stated deviation is solved for [1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyPosterior:
    """Points (τ, κ) of a grid and their posterior probability, columns of shape (m,).

    tau    deviation of the errors common to a family [ln]
    kappa  scatter of a family's runs about its common error, over that of known families' runs [1]
    """

    tau: Array
    kappa: Array
    weight: Array


def family_posterior(error: Array, known_std: Array, family: Array) -> FamilyPosterior:
    """What families left out as wholes tell; arguments as those of `family_std`."""
    typical = float(np.sqrt(np.mean(known_std**2)))
    kappa2, tau2 = KAPPAS[:, None] ** 2, (typical * TAUS[None, :]) ** 2
    log_weight = -0.5 * PRIOR_RUNS * (np.log(kappa2) + 1.0 / kappa2) + np.zeros_like(tau2)
    of_means = []
    for name in np.unique(family):
        own, precision = error[family == name], known_std[family == name] ** -2.0
        information = float(precision.sum())
        total, squares = float(precision @ own), float(precision @ own**2)
        shrunk = tau2 / (kappa2 + tau2 * information)
        log_weight -= 0.5 * (len(own) * np.log(kappa2) + np.log1p(tau2 * information / kappa2) + (squares - shrunk * total**2) / kappa2)
        of_means.append(1.0 / information)
    log_weight -= 0.5 * np.log(1.0 + kappa2 * float(np.mean(of_means)) / tau2)  # the prior, per step of ln τ
    weight = np.exp(log_weight - log_weight.max())
    kept = weight > NEGLIGIBLE
    tau, kappa = (np.sqrt(np.broadcast_to(values, weight.shape)[kept]) for values in (tau2, kappa2))
    return FamilyPosterior(tau=tau, kappa=kappa, weight=weight[kept] / weight[kept].sum())


def family_std(error: Array, known_std: Array, family: Array) -> float:
    """Standard deviation to state for what a family that the fit has not seen adds.

    error, known_std, family (n,): errors of the logarithm of families left out as wholes, what all other sources state for them, and
    their names; at least one run.
    """
    found = family_posterior(error, known_std, family)
    own = np.unique(np.quantile(known_std, np.linspace(0.0, 1.0, 2 * DEVIATIONS + 1)[1::2]))
    predicted = np.sqrt((found.kappa * own[:, None]) ** 2 + found.tau**2)

    def held(added: float) -> float:
        half = NORMAL_90 * np.hypot(own, added)
        return float(np.mean((2.0 * ndtr(half[:, None] / predicted) - 1.0) @ found.weight))

    if held(0.0) >= LEVEL:
        return 0.0
    return float(brentq(lambda added: held(added) - LEVEL, 0.0, WIDEST * float(predicted.max()), rtol=RELATIVE_STEP))


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
