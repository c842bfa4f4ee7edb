"""Intervals for kernels: how wrong predictions were for kernels that the fit had not seen.

Rows are left out fold by fold, the whole chain (equations, tiles, residual tier) is fitted to the rest, and the errors
on the fold set the scale around each shape.  Normalised by it they have quantiles that hold inside the measured shapes;
work beyond the largest is judged by forecasting the largest tenth from the rest.
Source: split conformal prediction normalised by a local scale (Lei et al., J. Am. Stat. Assoc. 113 (2018) 1094).
"""

from typing import Final

import numpy as np

from estimator.quantities import Array, IntArray
from estimator.residuals import FAR, NORMAL_90, SPREAD_NEIGHBOURS, SPREAD_OFFSET
from fitter.residual_tier import ShapeErrors, neighbours

FOLDS: Final = 4

LEVEL: Final = 0.9
"""Share of kernels inside their interval."""

FEWEST_FAR: Final = 30
FAR_WIDENING: Final = 1.3
"""With fewer far kernels than that their quantile is the near one times this."""

EXTRAPOLATED_SHARE: Final = 0.1
"""Share of the largest kernels that is forecast from the rest."""


def folds_of(shapes: ShapeErrors, seed: int) -> IntArray:
    """The fold of each row; rows of one shape share theirs."""
    fold: IntArray = np.random.default_rng(seed).integers(0, FOLDS, len(shapes.operators))[shapes.index]
    return fold


def largest_rows(shapes: ShapeErrors) -> IntArray:
    """The rows of the largest work, a tenth of all shapes; none where the shapes do not differ."""
    bound = np.quantile(shapes.work, 1.0 - EXTRAPOLATED_SHARE)
    return np.flatnonzero(shapes.work[shapes.index] > bound)


def interval_quantiles(shapes: ShapeErrors, left_out: Array, distance: Array, forecast: Array) -> tuple[float, float, float]:
    """(near, far, beyond) of `estimator.residuals.ResidualTier`.

    left_out, distance (rows,): |ln error| when left out, and the distance of the nearest shape in the fit then;
    forecast: |ln error| of the largest rows when forecast from the rest, empty where there was no such test.
    """
    error = shapes.mean(left_out)
    _, index = neighbours(shapes.points, shapes.points, SPREAD_NEIGHBOURS + 1)
    sigma = SPREAD_OFFSET + error[index[:, 1:]].mean(axis=1) if index.shape[1] > 1 else SPREAD_OFFSET + error
    ratio = left_out / sigma[shapes.index]
    near_rows = distance <= FAR
    near = _quantile(ratio[near_rows]) if near_rows.any() else _quantile(ratio)
    far = _quantile(ratio[~near_rows]) if (~near_rows).sum() >= FEWEST_FAR else FAR_WIDENING * near
    return near, max(far, near), _quantile(forecast) if len(forecast) else NORMAL_90 * float(np.sqrt(np.mean(left_out**2)))


def _quantile(values: Array) -> float:
    """The finite-sample quantile: as many as (n + 1) · LEVEL of the values lie below."""
    share = min(np.ceil((len(values) + 1) * LEVEL) / len(values), 1.0)
    return float(np.quantile(values, share))
