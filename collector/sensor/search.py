"""Finding the maximum of a function of few variables on grids that shrink."""

from collections.abc import Callable
from typing import Final

import numpy as np

from estimator.quantities import Array

POINTS: Final = 7
"""Grid points along each variable; odd, so that the centre is one of them."""

SHRINK: Final = 0.45
"""Factor by which the grid shrinks each round; above 2 / (POINTS − 1), so that neighbours stay inside."""


def zoom_maximum(function: Callable[[Array], Array], centre: Array, half_width: Array, rounds: int) -> tuple[Array, float]:
    """The best point near a centre and the function's value there.

    `function` takes points of shape (g, d) and returns values of shape (g,).  `centre` and `half_width` have
    shape (d,).  The grid follows the best point, so that a maximum somewhat outside the first grid is reached.
    """
    offsets = np.stack(np.meshgrid(*[np.linspace(-1.0, 1.0, POINTS)] * len(centre), indexing="ij"), axis=-1).reshape(-1, len(centre))
    best, best_value, width = centre, -np.inf, half_width
    for _ in range(rounds):
        points = best + offsets * width
        values = np.where(np.isfinite(values := function(points)), values, -np.inf)
        index = int(np.argmax(values))
        at_edge = np.any(np.abs(offsets[index]) == 1.0)
        if values[index] > best_value:
            best, best_value = points[index], float(values[index])
        width = width if at_edge else width * SHRINK
    return best, best_value


def curvature_covariance(function: Callable[[Array], Array], point: Array, step: Array) -> Array:
    """Inverse of minus the Hessian of a log-likelihood at its maximum, shape (d, d); nan where it is no maximum.

    `step` (d,) are the finite differences.
    """
    size = len(point)
    eye = np.diag(step)
    points, places = [point], []
    for i in range(size):
        for j in range(i, size):
            for sign_i, sign_j in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
                points.append(point + sign_i * eye[i] + sign_j * eye[j])
            places.append((i, j))
    values = function(np.array(points))
    nothing = np.full((size, size), np.nan)
    if not np.all(np.isfinite(values)):
        return nothing
    hessian = np.empty((size, size))
    for index, (i, j) in enumerate(places):
        plus, mixed_1, mixed_2, minus = values[1 + 4 * index : 5 + 4 * index]
        hessian[i, j] = hessian[j, i] = (plus - mixed_1 - mixed_2 + minus) / (4.0 * step[i] * step[j])
    try:
        covariance: Array = np.linalg.inv(-hessian).astype(np.float64)
    except np.linalg.LinAlgError:
        return nothing
    return covariance if np.all(np.diag(covariance) > 0) else nothing
