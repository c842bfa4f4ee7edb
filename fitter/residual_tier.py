"""Building the residual tier of a group: measured shapes, what the equations leave over there, how wrong predictions were."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.spatial import cKDTree

from estimator.frozen import FrozenMapping
from estimator.quantities import Array, IntArray
from estimator.residuals import FIELD_WEIGHT, NEIGHBOURS, operator_work, shape_points, weighted_error
from estimator.workload import FAMILY_FIELDS, Operator

MOST_POINTS: Final = 4000
"""Shapes kept for a group; more would cost a bundle more than they add."""

FEWEST_POINTS: Final = 20
"""Fewer shapes say nothing about their neighbourhood."""

ERROR_DIGITS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeErrors:
    """Errors by shape, columns of shape (n,): rows of equal shape, at several clocks or measured twice, are one.

    operators; index (rows,) of each row's shape; points (n, f) as in `estimator.residuals`; work (n,).
    """

    operators: tuple[Operator, ...]
    index: IntArray
    points: Array
    work: Array

    def mean(self, values: Array) -> Array:
        """Mean over the rows of each shape, (rows,) → (n,)."""
        counts = np.bincount(self.index, minlength=len(self.operators))
        result: Array = np.bincount(self.index, values, len(self.operators)) / np.maximum(counts, 1)
        return result


def shape_errors(operators: Sequence[Operator]) -> ShapeErrors:
    """Rows gathered by shape."""
    known: dict[tuple[float, ...], int] = {}
    index = np.array([known.setdefault(operator.shape, len(known)) for operator in operators], dtype=np.int64)
    first = np.unique(index, return_index=True)[1]
    unique = tuple(operators[i] for i in first)
    return ShapeErrors(operators=unique, index=index, points=shape_points(unique), work=operator_work(unique))


def neighbours(points: Array, queries: Array, count: int) -> tuple[Array, IntArray]:
    """As `estimator.residuals.nearest`, by a tree: for thousands of queries."""
    distance, index = cKDTree(points).query(queries, k=list(range(1, min(count, len(points)) + 1)))
    return np.asarray(distance), np.asarray(index, dtype=np.int64)


def corrected(shapes: ShapeErrors, ln_error: Array, train: IntArray, test: IntArray) -> tuple[Array, Array]:
    """Correction of the rows `test` from those of `train`, and the distance of the nearest shape, shapes (len(test),)."""
    own = np.unique(shapes.index[train])
    counts = np.bincount(shapes.index[train], minlength=len(shapes.operators))
    mean = np.bincount(shapes.index[train], ln_error[train], len(shapes.operators)) / np.maximum(counts, 1)
    asked, where = np.unique(shapes.index[test], return_inverse=True)
    distance, near = neighbours(shapes.points[own], shapes.points[asked], NEIGHBOURS)
    beyond = shapes.work[asked] > shapes.work[own].max()
    correction = weighted_error(distance, mean[own][near], beyond)
    return correction[where], distance[where, 0]


def tier_document(
    shapes: ShapeErrors, ln_error: Array, left_out: Array, quantiles: tuple[float, float, float], *, seed: int
) -> FrozenMapping[Any]:
    """The tier as a bundle holds it.

    ln_error, left_out (rows,): ln(measured / equations), and |ln(measured / prediction)| when left out; quantiles:
    near, far, beyond.
    """
    error, spread = shapes.mean(ln_error), shapes.mean(left_out)
    keep = np.arange(len(shapes.operators))
    if len(keep) > MOST_POINTS:
        keep = np.sort(np.random.default_rng(seed).choice(keep, MOST_POINTS, replace=False))
    family = shapes.operators[0].family
    sizes = np.array([operator.shape for operator in shapes.operators])[keep]
    names = FAMILY_FIELDS[family]
    weights = FIELD_WEIGHT.get(family, {})
    near, far, beyond = quantiles
    return FrozenMapping(
        {
            "fields": tuple(names),
            "weights": tuple(weights.get(name, 1.0) for name in names),
            "points": FrozenMapping({name: _compact(sizes[:, i]) for i, name in enumerate(names)}),
            "ln_error": tuple(np.round(error[keep], ERROR_DIGITS).tolist()),
            "left_out": tuple(np.round(spread[keep], ERROR_DIGITS).tolist()),
            "largest_work": float(shapes.work.max()),
            "near": round(near, ERROR_DIGITS),
            "far": round(far, ERROR_DIGITS),
            "beyond": round(beyond, ERROR_DIGITS),
        }
    )


def _compact(sizes: Array) -> tuple[float, ...]:
    """Whole sizes as integers, which JSON writes shorter, and a size that all share once."""
    if np.ptp(sizes) == 0:
        sizes = sizes[:1]
    if np.all(sizes == np.round(sizes)):
        return tuple(sizes.astype(np.int64).tolist())
    return tuple(sizes.tolist())
