"""Least squares whose weights fall to zero for outliers."""

from typing import Final

import numpy as np

from estimator.vocabulary.quantities import Array

BIWEIGHT_WIDTH: Final = 4.685
"""Tukey's constant: 95 % efficient for normal residuals."""
MAD_TO_SIGMA: Final = 1.4826
ROUNDS: Final = 20


def biweight_fit(design: Array, values: Array, penalty: Array, scatter: float, smallest_scatter: float) -> tuple[Array, Array, float]:
    """Coefficients (p,), weights (n,) and scatter of `values` (n,) about `design` (n, p), by Tukey's biweight.

    `penalty`, shape (p, p), is the inverse covariance of a prior around 0, in units of the coefficients.  `scatter` is
    taken as it is while there are too few points to show it, and as the first guess otherwise.
    """
    count, unknowns = design.shape
    weight: Array = np.ones(count)
    coefficients: Array = np.zeros(unknowns)
    for _ in range(ROUNDS):
        weighted = design * weight[:, None]
        normal: Array = weighted.T @ design / scatter**2 + penalty
        right: Array = weighted.T @ values / scatter**2
        try:
            coefficients = np.linalg.solve(normal, right).astype(np.float64)
        except np.linalg.LinAlgError:  # packets that came in few bursts, on a busy host, do not reach every knot
            coefficients = np.linalg.lstsq(normal, right, rcond=None)[0].astype(np.float64)
        residual = values - design @ coefficients
        centred = residual - np.median(residual)
        if count > 2 * unknowns:
            scatter = max(MAD_TO_SIGMA * float(np.median(np.abs(centred))), smallest_scatter)
        weight = np.maximum(1.0 - (centred / (BIWEIGHT_WIDTH * scatter)) ** 2, 0.0) ** 2
    return coefficients, weight, scatter
