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
