"""Finding the maximum of a function of few variables, and its curvature there."""

from collections.abc import Callable
from typing import Final

import numpy as np

from estimator.quantities import Array

REFLECT: Final = 1.0
EXPAND: Final = 2.0
CONTRACT: Final = 0.5
SHRINK: Final = 0.5
"""The moves of a simplex.  Source: Nelder and Mead, Computer Journal 7 (1965)."""


def simplex_maximum(
    function: Callable[[Array], float], start: Array, step: Array, *, evaluations: int, spread: float = 1e-2
) -> tuple[Array, float]:
    """The best point near a start and the function's value there, by a simplex that walks and shrinks.

    `start` and `step` have shape (d,); a step of 0 holds its variable.  Stops after so many `evaluations`, or where the
    simplex's values differ by less than `spread`.  A value that is not finite is a wall.
    """
    free = np.flatnonzero(step)
    points = np.repeat(start[None, :].astype(np.float64), len(free) + 1, axis=0)
    points[np.arange(1, len(free) + 1), free] += step[free]
    values = np.array([_walled(function(point)) for point in points])
    used = len(values)
    while used < evaluations and len(free):
        order = np.argsort(-values)
        points, values = points[order], values[order]
        if values[0] - values[-1] < spread:
            break
        centre = points[:-1].mean(axis=0)
        away = centre - points[-1]
        moved = centre + REFLECT * away
        value = _walled(function(moved))
        used += 1
        if value > values[0]:
            further = centre + EXPAND * away
            better = _walled(function(further))
            used += 1
            points[-1], values[-1] = (further, better) if better > value else (moved, value)
        elif value > values[-2]:
            points[-1], values[-1] = moved, value
        else:
            nearer = centre + (CONTRACT if value > values[-1] else -CONTRACT) * away
            better = _walled(function(nearer))
            used += 1
            if better > max(value, values[-1]):
                points[-1], values[-1] = nearer, better
            else:
                points[1:] = points[0] + SHRINK * (points[1:] - points[0])
                values[1:] = [_walled(function(point)) for point in points[1:]]
                used += len(points) - 1
    best = int(np.argmax(values))
    return points[best], float(values[best])


def _walled(value: float) -> float:
    return value if np.isfinite(value) else -1e300


def curvature_covariance(function: Callable[[Array], float], point: Array, step: Array) -> Array:
    """Inverse of minus the Hessian of a log-likelihood at its maximum, shape (d, d); nan where it is no maximum.

    `step` (d,) are the finite differences.
    """
    size = len(point)
    eye = np.diag(step)
    middle = function(point)
    hessian = np.empty((size, size))
    for i in range(size):
        hessian[i, i] = (function(point + eye[i]) - 2.0 * middle + function(point - eye[i])) / step[i] ** 2
        for j in range(i):
            both = function(point + eye[i] + eye[j]) + function(point - eye[i] - eye[j])
            mixed = both - function(point + eye[i] - eye[j]) - function(point - eye[i] + eye[j])
            hessian[i, j] = hessian[j, i] = mixed / (4.0 * step[i] * step[j])
    nothing = np.full((size, size), np.nan)
    if not np.all(np.isfinite(hessian)):
        return nothing
    try:
        covariance: Array = np.linalg.inv(-hessian).astype(np.float64)
    except np.linalg.LinAlgError:
        return nothing
    return covariance if np.all(np.diag(covariance) > 0) else nothing
