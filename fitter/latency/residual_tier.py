"""The residual tier of a group: measured shapes, residuals of the equations at these shapes, and prediction errors."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial import cKDTree

from estimator.model.kriging import NOISE, SHARES, Kriging, PhaseFeatures, covariance
from estimator.model.residuals import (
    FIELD_WEIGHT,
    LARGEST_CORRECTION,
    NEIGHBOURS,
    UNFILLED_WEIGHT,
    Pattern,
    neighbour_error,
    patterned,
    points_of,
    shape_points,
    work_of,
)
from estimator.model.trees import tree_inputs
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.values import Columns, arrays, frozen
from estimator.vocabulary.workload import FAMILY_FIELDS, Operator
from fitter.latency.trees import fit_trees
from fitter.rows.screening import numbered

Documents = dict[str, FrozenMapping[Any]]
"""Parts of a bundle by group, in the form that it stores."""

MOST_POINTS: Final = 4000
"""Most shapes of a group; more would enlarge a bundle without a similar gain."""

MOST_SPREAD_POINTS: Final = 1000
"""Most shapes of a group with trees, where they only tell the spread."""

FEWEST_POINTS: Final = 12
"""Least shapes for a correction by neighbours."""

ERROR_DIGITS: Final = 4
"""Decimals of stored errors."""

NOWHERE: Final = 1e3
"""Distance of the nearest shape if there are too few shapes [octave]."""


@frozen
class ShapeErrors:
    """Errors by shape, columns of shape (n,); rows of equal shape (several clocks, repeated measurements) are merged.

    operators; index (rows,) of each row's shape; points (n, f) as in `estimator.model.residuals`; work (n,).
    """

    operators: tuple[Operator, ...]
    index: IntArray
    points: Array
    work: Array

    def mean(self, values: Array) -> Array:
        """Mean over the rows of each shape, (rows,) → (n,)."""
        counts = np.bincount(self.index, minlength=len(self.operators))
        return np.bincount(self.index, values, len(self.operators)) / np.maximum(counts, 1)

    def of(self, rows: IntArray) -> "ShapeErrors":
        """The shapes of some of the rows."""
        kept, index = np.unique(self.index[rows], return_inverse=True)
        return ShapeErrors(operators=tuple(self.operators[i] for i in kept), index=index, points=self.points[kept], work=self.work[kept])


def shape_errors(operators: Sequence[Operator]) -> ShapeErrors:
    """Rows gathered by shape."""
    _, index = numbered(operator.shape for operator in operators)
    first = np.unique(index, return_index=True)[1]
    unique = tuple(operators[i] for i in first)
    return ShapeErrors(operators=unique, index=index, points=shape_points(unique), work=work_of(unique))


def neighbours(points: Array, queries: Array, count: int) -> tuple[Array, IntArray]:
    """`estimator.model.residuals.nearest` with a search tree, for thousands of queries."""
    distance, index = cKDTree(points).query(queries, k=list(range(1, min(count, len(points)) + 1)))
    return np.asarray(distance), np.asarray(index, dtype=np.int64)


@arrays
class Forecast(Columns):
    """Rows forecast by a fit of other rows, columns of shape (n,).

    bare        ln(measured / equations)
    neighbours  that error by the nearest shapes in the fit
    distance    distance of the nearest of them [octave]
    excess      how far the work lies beyond the largest in the fit [octave]
    pattern     the error by a pattern of the rows in the fit, or `neighbours`
    """

    bare: Array
    neighbours: Array
    distance: Array
    excess: Array
    pattern: Array

    def set_rows(self, index: IntArray, found: "Forecast") -> None:
        """Set the rows `index`."""
        for name in Forecast.__annotations__:
            getattr(self, name)[index] = getattr(found, name)

    def patterned(self) -> "Forecast":
        """The same rows with the pattern in place of neighbours."""
        return replace(self, neighbours=self.pattern)

    def errors(self, corrected: bool) -> Array:
        """ln(measured / prediction), shape (n,), with the correction by neighbours, or without."""
        return self.bare - corrected * np.clip(self.neighbours, -LARGEST_CORRECTION, LARGEST_CORRECTION)


def no_forecast(count: int) -> Forecast:
    """Rows without a forecast."""
    return Forecast(**{name: np.full(count, np.nan) for name in Forecast.__annotations__})


def forecast(shapes: ShapeErrors, ln_error: Array, train: IntArray, test: IntArray, features: PhaseFeatures | None = None) -> Forecast:
    """The rows `test` of a group, forecast from its rows `train`.

    ln_error (rows,): by equations fitted to `train`.  features: of all rows by the same equations, for a pattern.
    """
    own = np.unique(shapes.index[train])
    asked, where = np.unique(shapes.index[test], return_inverse=True)
    near, distance, excess = np.zeros(len(test)), np.full(len(test), NOWHERE), np.zeros(len(test))
    if len(own) >= FEWEST_POINTS:
        mean = replace(shapes, index=shapes.index[train]).mean(ln_error[train])
        apart, place = neighbours(shapes.points[own], shapes.points[asked], NEIGHBOURS)
        near, distance = neighbour_error(apart, mean[own][place])[where], apart[where, 0]
        excess = np.log2(shapes.work[asked] / shapes.work[own].max())[where]
    pattern = near
    if features is not None and len(train):
        known = fit_pattern(shapes, train, features, ln_error)
        pattern = patterned(known, shapes.points[shapes.index[test]], features.select(test))
    return Forecast(bare=ln_error[test], neighbours=near, distance=distance, excess=excess, pattern=pattern)


def helps(left_out: Forecast) -> bool:
    """Whether the correction by neighbours makes forecasts of rows that were left out better."""
    return bool(np.nanmean(np.abs(left_out.errors(True))) < np.nanmean(np.abs(left_out.bare)))


@frozen
class GroupErrors:
    """Errors of a group's rows, with tiles from one source; columns of shape (rows,).

    ln_error   ln(measured / equations) of the fit
    left_out   |ln(measured / prediction)| when left out of it; nan: not forecast
    corrected  whether neighbours correct the equations
    quantiles  near, far, beyond, as in `estimator.model.residuals.TierErrors`
    pattern    in place of neighbours where phases are known; None: neighbours only
    """

    ln_error: Array
    left_out: Array
    corrected: bool
    quantiles: tuple[float, float, float]
    pattern: Pattern | None = None


def tier_document(shapes: ShapeErrors, predicted: GroupErrors, named: GroupErrors | None, *, seed: int) -> FrozenMapping[Any]:
    """The tier in the form that a bundle stores; `named`: errors with tiles from kernel names."""
    keep = np.flatnonzero(np.isfinite(shapes.mean(predicted.left_out)))
    most = MOST_POINTS if predicted.pattern is None else MOST_SPREAD_POINTS
    if len(keep) > most:
        keep = np.sort(np.random.default_rng(seed).choice(keep, most, replace=False))
    family = shapes.operators[0].family
    sizes = np.array([operator.shape for operator in shapes.operators])[keep]
    names = FAMILY_FIELDS[family]
    weights = FIELD_WEIGHT.get(family, {})
    document = {
        "fields": names,
        "weights": tuple(weights.get(name, 1.0) for name in names),
        "points": FrozenMapping({name: _compact(sizes[:, i]) for i, name in enumerate(names)}),
        "largest_work": float(shapes.work.max()),
        **({"unfilled": UNFILLED_WEIGHT[family]} if family in UNFILLED_WEIGHT else {}),
        **_error_document(shapes, predicted, keep),
    }
    if named is not None:
        document["named"] = FrozenMapping(_error_document(shapes, named, keep))
    return FrozenMapping(document)


def _error_document(shapes: ShapeErrors, errors: GroupErrors, keep: IntArray) -> dict[str, object]:
    ln_error = shapes.mean(errors.ln_error)[keep] * errors.corrected
    names = ("near", "far", "beyond")
    return {
        **({} if errors.pattern is None else pattern_document(errors.pattern, shapes.index)),
        "ln_error": tuple(np.round(ln_error, ERROR_DIGITS).tolist()),
        "left_out": tuple(np.round(shapes.mean(errors.left_out)[keep], ERROR_DIGITS).tolist()),
        "beyond_share": 1.0,
        **{name: round(value, ERROR_DIGITS) for name, value in zip(names, errors.quantiles, strict=True)},
    }


def _compact(sizes: Array) -> tuple[float, ...]:
    """Sizes in compact form: whole sizes as integers, which JSON writes shorter, and a common size once."""
    if np.ptp(sizes) == 0:
        sizes = sizes[:1]
    if np.all(sizes == np.round(sizes)):
        return tuple(sizes.astype(np.int64).tolist())
    return tuple(sizes.tolist())


MOST_KRIGED: Final = 400
"""Most rows of a group for kriging; more rows cost seconds and a large bundle, and suffice for trees."""


def fit_pattern(shapes: ShapeErrors, train: IntArray, features: PhaseFeatures, ln_error: Array) -> Pattern:
    """A pattern of the rows `train`: kriging of few at several clocks, else trees, which do not ask for the clock.

    features, ln_error (rows,): of all rows.  At one clock trees err less: by 3.8 instead of 4.8 % on decodes of an H200, 4.1 instead of
    4.7 % on prefills of an A100.
    """
    place, features, error = shapes.index[train], features.select(train), ln_error[train]
    if len(train) <= MOST_KRIGED and np.ptp(features.log_clock) > 0.0:
        return fit_kriging(shapes.points[place], features, error)
    measured = tree_inputs(shapes.points[place], features)
    beside = tree_inputs(_beside(shapes.operators)[place], features) if shapes.operators[0].family == "gemm" else measured[:0]
    return fit_trees(measured, np.clip(error, -LARGEST_CORRECTION, LARGEST_CORRECTION), beside)


MOVED: Final = 0.5
"""Largest distance of a product's other number of rows [octave]."""


def _beside(products: Sequence[Operator]) -> Array:
    """Points (n, f) of the same products with other numbers of rows."""
    moves = np.exp2(np.random.default_rng(0).uniform(-MOVED, MOVED, len(products)))
    batch, m, n, k = np.array([one.shape for one in products]).T
    return points_of("gemm", np.column_stack([batch, np.maximum(np.round(m * moves), 1.0), n, k]))


def pattern_document(known: Pattern, shape: IntArray) -> Documents:
    """A pattern in the form that a bundle stores."""
    if isinstance(known, Kriging):
        return {"kriging": kriging_document(known, shape)}
    columns = {name: tuple(getattr(known, name).tolist()) for name in ("feature", "threshold", "value")}
    return {"trees": FrozenMapping({**columns, "beyond_share": 1.0})}


def fit_kriging(points: Array, features: PhaseFeatures, ln_error: Array) -> Kriging:
    """Kriging over rows with these errors, shape (n,), clipped to LARGEST_CORRECTION."""
    matrix = covariance(points, features, points, features)
    matrix[np.diag_indices_from(matrix)] += NOISE**2
    weight = cho_solve(cho_factor(matrix, lower=True), np.clip(ln_error, -LARGEST_CORRECTION, LARGEST_CORRECTION))
    return Kriging(points=points, features=features, weight=weight)


def kriging_document(known: Kriging, shape: IntArray) -> FrozenMapping[Any]:
    """Kriging in the form that a bundle stores; shape (n,): index of each row's shape among the tier's points."""
    features = known.features
    shares = {name: features.shares[:, i] for i, name in enumerate(SHARES)}
    return FrozenMapping(
        {
            "shape": tuple(shape.tolist()),
            "sm_clock_mhz": tuple(np.round(np.exp2(features.log_clock) / 1e6, 3).tolist()),
            "tile_area": tuple(features.tile_area.tolist()) if features.tile_area.any() else (0.0,),
            "shares": FrozenMapping({name: tuple(np.round(column, 4).tolist()) for name, column in shares.items() if column.any()}),
            "weight": tuple(np.round(known.weight, 5).tolist()),
            "beyond_share": 1.0,
        }
    )
