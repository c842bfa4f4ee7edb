"""Coverage of stated 90 % intervals for a left-out model family, with errors drawn from a planted distribution.

The design is that of the published runs: five families of 25, 12, 12, 4 and 4 runs, a third of each launch-bound.  The error of a run is
b + s·z: b is common to its family, with the planted ratio times the deviation s of GPU-bound runs.  A fit with a family includes b; a fit
without it has the error b.  Every family is left out in turn: only the four others determine the stated intervals.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr

from estimator.vocabulary.quantities import NORMAL_90, Array
from fitter.bundle.runs import EXPECTED, FAMILY_EXPECTED, Spread, family_spread, paced_std, spread_at

RUNS: Final = (25, 12, 12, 4, 4)
"""Runs of each family, as in the published lists of the A100."""

RATIOS: Final = (0.0, 0.5, 1.0, 2.0)
"""Planted spread between families over that of GPU-bound runs within them [1]."""

WITHIN: Final[Spread] = (0.035, 0.1)
"""Planted deviation of runs of one family; different from the fit's prior [ln]."""

HOST_PACED: Final = 3
"""Period of launch-bound runs: each third run is launch-bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedCoverage:
    """Coverage of stated 90 % intervals under the planted distribution, one number for each draw of all families, shape (d,).

    known    probability that a further run of fitted families lies inside
    unseen   probability that a run of a further family lies inside
    inside   share of the drawn left-out runs inside
    """

    known: Array
    unseen: Array
    inside: Array


def planted_coverage(ratio: float, draws: int, *, seed: int = 0, runs: tuple[int, ...] = RUNS, within: Spread = WITHIN) -> PlantedCoverage:
    """Draw all families `draws` times, leave out each, state intervals, and compute their coverage."""
    rng = np.random.default_rng(seed)
    family = np.repeat(np.arange(len(runs)), runs)
    share = np.where(np.arange(len(family)) % HOST_PACED == 0, rng.uniform(0.5, 1.0, len(family)), rng.uniform(0.0, 0.1, len(family)))
    between, scatter = ratio * within[0], spread_at(within, share)
    found = np.empty((draws, 3))
    for draw in range(draws):
        own = scatter * rng.standard_normal(len(family))
        foreign = own + between * rng.standard_normal(len(runs))[family]
        known, unseen = np.empty(len(family)), np.empty(len(family))
        for out in (family == name for name in range(len(runs))):
            known[out], unseen[out] = _half_widths(own[~out], foreign[~out], share[~out], family[~out], share[out])
        chances = (2.0 * ndtr(half / std) - 1.0 for half, std in ((known, scatter), (unseen, np.hypot(scatter, between))))
        found[draw] = *(float(np.mean(chance)) for chance in chances), float(np.mean(np.abs(foreign) <= unseen))
    return PlantedCoverage(known=found[:, 0], unseen=found[:, 1], inside=found[:, 2])


def _half_widths(own: Array, foreign: Array, share: Array, family: Array, at: Array) -> tuple[Array, Array]:
    """Half widths stated for runs of known and of unseen families at launch shares `at`, from errors of the others."""
    spread = paced_std(own, share, EXPECTED["latency"])
    added = family_spread(foreign, spread_at(spread, share), family, FAMILY_EXPECTED["latency"])
    stated = spread_at(spread, at)
    return NORMAL_90 * stated, NORMAL_90 * np.hypot(stated, added)
