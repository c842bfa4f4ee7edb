"""Sums of a group → its coefficients: non-negative least squares with priors, as a fit of the rows themselves would find them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import nnls

from estimator.coefficients import Prior, longest_prefix
from estimator.quantities import Array
from fitter.kernels.latency import ERROR_SCALE, IDENTIFIED_SHRINKAGE, INFORMATIVE_ROWS
from fitter.priors import GROUP_PRIORS

OTHER_PRIOR: Final = Prior(centre=1.0, width=1.0)
"""Prior of a phase that the priors of a family do not name: its ideal time, give or take a factor of e."""

SOLVED: Final = 1e-13
"""Directions of a scaled Gram matrix weaker than this are rounding [1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSolution:
    """Coefficients of one group, shape (p,), their covariance, and the root mean square of relative errors.

    identified (p,): whether the rows, not the prior, decided.
    """

    values: Array
    covariance: Array
    identified: tuple[bool, ...]
    rows: int
    rms: float


def design_priors(group: str, names: Sequence[str], epsilon_unit_s: float) -> tuple[Array, Array]:
    """Centres and standard deviations of the coefficients of a group, the fixed cost last and in its unit; shapes (p,)."""
    known: Mapping[str, Prior] = GROUP_PRIORS.get(longest_prefix(group, GROUP_PRIORS) or "", {})
    priors = [known.get(name, OTHER_PRIOR) for name in names]
    epsilon = known.get("epsilon_s", Prior(centre=EPSILON_S, width=1.0))
    centres = np.array([*(prior.centre for prior in priors), epsilon.centre / epsilon_unit_s])
    return centres, centres * np.array([*(prior.width for prior in priors), epsilon.width])


EPSILON_S: Final = 1.5e-6
"""Centre of the prior of a kernel's fixed cost in families that state none [s]."""


def data_weight(rows: float) -> float:
    """Weight of one row against the priors: however many rows there are, they count as fewer than INFORMATIVE_ROWS."""
    return INFORMATIVE_ROWS / (INFORMATIVE_ROWS + rows) / ERROR_SCALE**2


def solve_group(matrix: Array, rows: int, centre: Array, std: Array, mean_weight: float = 1.0) -> GroupSolution:
    """Least squares of the rows behind `matrix`, Σ w·z·zᵀ with the target last, shape (p+1, p+1), and of the priors.

    Minimises k · Σ w (Σ λ_j z_j − z_y)² + Σ ((λ_j − centre_j) / std_j)² over λ ≥ 0, with k as `data_weight` has it over the mean
    of the rows' own weights.
    """
    gram, moment, square = matrix[:-1, :-1], matrix[:-1, -1], float(matrix[-1, -1])
    weight = data_weight(rows) / mean_weight
    pull = std**-2.0
    hessian = weight * gram + np.diag(pull)
    right = weight * moment + pull * centre
    values = non_negative(hessian, right)
    error = max(square - 2.0 * float(moment @ values) + float(values @ gram @ values), 0.0)
    mean_square = error / square if square > 0.0 else 0.0
    inverse = np.linalg.inv(hessian)
    covariance = inverse @ (weight**2 * mean_weight * mean_square * gram + np.diag(pull)) @ inverse  # Σ w²e²·zzᵀ where w ∝ 1/E[e²]
    covariance = (covariance + covariance.T) / 2.0
    spread = np.sqrt(np.diag(covariance))
    return GroupSolution(
        values=values,
        covariance=covariance,
        identified=tuple(bool(s < IDENTIFIED_SHRINKAGE * w) for s, w in zip(spread, std, strict=True)),
        rows=rows,
        rms=float(np.sqrt(mean_square)),
    )


def mean_square_error(matrix: Array, values: Array) -> float:
    """Mean square of (Σ λ_j z_j − z_y) over the rows behind `matrix`; the target's own square is 1 in every row."""
    gram, moment, square = matrix[:-1, :-1], matrix[:-1, -1], float(matrix[-1, -1])
    if square <= 0.0:
        return float("nan")
    return max(square - 2.0 * float(moment @ values) + float(values @ gram @ values), 0.0) / square


def non_negative(hessian: Array, right: Array) -> Array:
    """The λ ≥ 0 of least ½·λᵀHλ − bᵀλ, from a factor of the scaled matrix; the free ones then by the normal equations."""
    scale = 1.0 / np.sqrt(np.diag(hessian))
    scaled = hessian * np.outer(scale, scale)
    strength, direction = np.linalg.eigh(scaled)
    strength = np.maximum(strength, SOLVED)
    factor = np.sqrt(strength)[:, None] * direction.T
    values, _ = nnls(factor, (direction.T @ (right * scale)) / np.sqrt(strength))
    free = values > 0.0
    values[free] = np.linalg.solve(scaled[np.ix_(free, free)], (right * scale)[free])
    result: Array = np.maximum(values, 0.0) * scale
    return result
