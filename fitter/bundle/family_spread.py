"""What a model family that the fit has not seen adds to the uncertainty of its runs.

Families left out as wholes have errors with the means m_f, which the runs' own scatter makes uncertain by v_f.  The errors that the runs
of a family have in common then have the variance τ² = mean(m²) − mean(v); of few families mean(m²) is uncertain itself, so that Student's
t with as many degrees of freedom as families takes the place of the normal distribution:

    τ² = (t / 1.645)² · mean(m²) − mean(v), and 0 where that is negative
"""

from typing import Final

import numpy as np
from scipy.special import stdtrit

from estimator.vocabulary.quantities import NORMAL_90, Array
from fitter.bundle.run_spread import RunErrors, RunSpread

FAMILY_PRIOR: Final = 0.05
FAMILY_POWER_PRIOR: Final = 0.035
"""Error of ln(latency) and of ln(power) common to a model family, stated where fewer than FEWEST_FAMILIES families can tell (assumed)."""

FEWEST_FAMILIES: Final = 3
"""Fewer families, one of them left out, say nothing about a family that the fit has not seen."""

UPPER: Final = 0.95
"""Quantile at the upper end of a 90 % interval."""


def family_std(error: Array, known_std: Array, family: Array) -> float:
    """Standard deviation to state for what a family that the fit has not seen adds.

    error, known_std, family (n,): errors of the logarithm of families left out as wholes, what all other sources state for them, and
    their names; at least one run.
    """
    names, number = np.unique(family, return_inverse=True)
    precision = np.bincount(number, known_std**-2.0)
    mean = np.bincount(number, error * known_std**-2.0) / precision
    wide = float(stdtrit(len(names), UPPER)) / NORMAL_90
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
