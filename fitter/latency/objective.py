"""The objective of every latency fit: relative errors, robust beyond a few percent, with physical priors.

    Σ w·ρ((ln t̂ − ln t)/scale) + Σ ((ln θ − ln θ₀)/σ)²,   ρ(z) = 4(√(1 + z²/2) − 1)

ρ is quadratic for small errors and linear beyond, so that a failed run cannot bend a fit.  Parameters are fitted as
logarithms, which keeps them positive and gives all the same scale.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from scipy.optimize import least_squares

from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

INSIDE: Final = 1e-2
"""Least distance of a start from a limit [ln] (assumed; 0.001 gives the same fits of an H200's kernels to 0.04 points)."""


@frozen
class Solution:
    """Result of a fit: ln θ − ln θ₀ of shape (p,), its covariance (p, p), and the objective (half of the sum above)."""

    log_shift: Array
    covariance: Array
    cost: float


def robust_residual(error: Array, scale: Array | float) -> tuple[Array, Array]:
    """Signed residual whose square is ρ(error/scale), and its derivative by the error, shapes of `error`."""
    z = error / scale
    bend = np.sqrt(1.0 + z * z / 2.0)
    share = np.sqrt((1.0 + bend) / 2.0)
    return z / share, share / bend / scale


def solve(
    model: Callable[[Array], tuple[Array, Array | None]],
    log_target: Array,
    prior_width: Array,
    *,
    scale: Array | float,
    weight: Array | float = 1.0,
    start: Array | None = None,
    evaluations: int = 40,
    limits: tuple[Array | float, Array | float] = (-np.inf, np.inf),
) -> Solution:
    """Least squares in ln θ.

    model maps ln θ − ln θ₀, shape (p,), to ln t̂, shape (n,), and ∂ ln t̂ / ∂ ln θ, shape (n, p), or None; log_target
    is ln t; prior_width holds the standard deviations of ln θ, shape (p,); scale is the size of an ordinary error; weight multiplies a
    row's squared residual; limits bound ln θ − ln θ₀.
    The covariance is a sandwich estimate, so correlated errors do not count as independent information.
    """
    root_weight = np.sqrt(weight)
    at = lru_cache(maxsize=1)(lambda shift: model(np.frombuffer(shift)))

    def residuals(shift: Array) -> Array:
        error = at(shift.tobytes())[0] - log_target
        return np.concatenate([root_weight * robust_residual(error, scale)[0], shift / prior_width])

    def jacobian(shift: Array) -> Array:
        prediction, derivatives = at(shift.tobytes())
        assert derivatives is not None
        slope = root_weight * robust_residual(prediction - log_target, scale)[1]
        return np.concatenate([slope[:, None] * derivatives, np.diag(1.0 / prior_width)])

    # From a start at a limit least_squares may make no step at all.
    first = np.clip(np.zeros(len(prior_width)) if start is None else start, limits[0] + INSIDE, limits[1] - INSIDE)
    jac = "2-point" if at(first.tobytes())[1] is None else jacobian
    # Predictions are smooth in ln θ to about 1e-8.
    found = least_squares(residuals, first, bounds=limits, max_nfev=evaluations, diff_step=1e-4, jac=jac)
    return Solution(
        log_shift=found.x,
        covariance=_sandwich(found.jac, found.fun, len(log_target)),
        cost=float(found.cost),
    )


def _sandwich(jacobian: Array, residual: Array, rows: int) -> Array:
    """Covariance H⁻¹ J H⁻¹ with H from data and priors and J from the priors and the data's own scatter."""
    hessian = jacobian.T @ jacobian
    inverse = np.linalg.pinv(hessian)
    scores = jacobian[:rows] * residual[:rows, None]
    prior = jacobian[rows:]
    middle = scores.T @ scores + prior.T @ prior
    return symmetric(inverse @ middle @ inverse)


def symmetric(covariance: Array) -> Array:
    """The symmetric part of a covariance; removes rounding errors, which matter for few rows."""
    return (covariance + covariance.T) / 2.0
