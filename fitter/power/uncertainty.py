"""Uncertainty of the power coefficients: scatter of rows, of kinds of kernels, and common errors of counts."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from estimator.vocabulary.quantities import Array, BoolArray
from fitter.latency.objective import symmetric
from fitter.power.solver import PRIOR_WEIGHT, TERMS, PowerPriors, prior_rows

MOST_BLOCKS: Final = 40
"""Blocks of neighbouring rows for the sandwich covariance."""

COUNT_STD: Final[dict[str, float]] = {
    "dram": 0.02, "dram_path": 0.02, "l2": 0.10, "shared": 0.10, "tensor": 0.03, "cuda": 0.05, "sfu": 0.10, "busy": 0.05, "active": 0.0,
}  # fmt: skip
"""Relative standard deviation of counts, common to all kernels (assumed).  Tensor flop and DRAM bytes follow from shapes, up to
padding and caching.  Traffic through L2 and shared memory, other instructions, special functions and the active share of the SMs
are taken from published kernels."""


def block_covariance(design: Array, residual: Array, weight: Array, priors: PowerPriors) -> Array:
    """Sandwich covariance of the coefficients, with the priors as further data, shape (c, c).

    design (n, c) and residual (n,) relative to power.  The scatter of the rows counts in blocks of neighbours: rows of one
    kernel or workload have similar errors.
    """
    prior, _ = prior_rows(len(residual), priors)
    variance = max(float(np.average(residual**2, weights=weight)), LEAST_VARIANCE)
    hessian = design.T @ (design * weight[:, None]) / variance + prior.T @ prior / PRIOR_WEIGHT**2
    inverse = np.linalg.pinv(hessian)
    scores = design * (weight * residual)[:, None] / variance
    blocks = np.array_split(np.arange(len(residual)), min(len(residual), MOST_BLOCKS))
    sums = np.array([scores[block].sum(axis=0) for block in blocks])
    middle = sums.T @ sums + prior.T @ prior / PRIOR_WEIGHT**2
    return symmetric(inverse @ middle @ inverse)


LEAST_VARIANCE: Final = 1e-8
"""Keeps a fit without error from being infinitely certain [1]."""


def kind_covariance(kind: NDArray[np.str_], values: Array, refit: Callable[[BoolArray], Array]) -> Array | None:
    """Covariance of the coefficients by a jackknife over kinds of kernels, shape (c, c).

    None if there are few kinds.  kind (n,) of each row; values (c,) of all rows; refit: coefficients (c,) of the remaining rows.
    Source: B. Efron, The Jackknife, the Bootstrap and Other Resampling Plans (1982), eq. 3.13.
    """
    kinds = np.unique(kind)
    # Leaving out one after the other tells how far the coefficients can be trusted, from 8 kinds of kernels on.
    if len(kinds) < 8:
        return None
    moved = np.array([refit(kind != one) for one in kinds]) - values
    return symmetric((len(kinds) - 1.0) / len(kinds) * moved.T @ moved)


def count_covariance(values: Array) -> Array:
    """Covariance of the coefficients of TERMS caused by errors of the counts, shape (9, 9)."""
    relative = np.array([COUNT_STD[term] for term in TERMS])
    return np.diag((relative * values) ** 2)
