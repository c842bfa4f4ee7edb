"""Residual tiers of power: residuals of the power equation for kinds of kernels and at measured shapes, with their uncertainty.

The equation has few coefficients for all kernels together, so leaving out a few kernels hardly changes it.  Errors of left-out kernels
therefore use the same equation, corrected by the other kernels only.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.model.phases import members
from estimator.model.residuals import LARGEST_COMMON, POWER_TIER
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array, IntArray
from fitter.latency.intervals import FOLDS, folds_of, largest_rows
from fitter.latency.refinement import group_errors
from fitter.latency.residual_tier import (
    ERROR_DIGITS,
    FEWEST_POINTS,
    Forecast,
    ShapeErrors,
    forecast,
    no_forecast,
    shape_errors,
    tier_document,
)
from fitter.priors import EQUATION_ERROR
from fitter.rows.columns import KernelRows
from fitter.validate.predictions import predict_kernel_rows, served_groups

COMMON_ROWS: Final = 5.0
"""Weight of the prior 0 of a group's common error, as a number of rows."""


def with_power_tiers(bundle: Bundle, rows: KernelRows, seed: int) -> Bundle:
    """Add power tiers to the bundle's residual tiers, which have none, with rows that have a power.

    A power tier holds the common error of the group's rows, its slope over power and the correction by neighbours.
    Slope and neighbours are kept only if they reduce errors of left-out kernels.
    """
    if bundle.power is None or not bundle.residuals:
        return bundle
    rows = rows.select(np.isfinite(rows.power_w))
    measured_w, predicted_w = predict_kernel_rows(bundle, rows)[["measured_power", "predicted_power"]].to_numpy().T
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.log(measured_w / predicted_w)
    operators = rows.row_operators()
    served = [group if np.isfinite(one) else None for group, one in zip(served_groups(bundle, rows), error, strict=True)]
    tiers = dict(bundle.residuals)
    for group, index in members(served).items():
        if group is None or group not in bundle.residuals:
            continue
        chosen = [operators[i] for i in index]
        shapes = shape_errors(chosen)
        trend, left_over = _trend(shapes, np.log(predicted_w[index]), error[index], seed)
        power = {**_tier(shapes, left_over, seed), **trend}
        tiers[group] = FrozenMapping({**tiers[group], POWER_TIER: FrozenMapping(power)})
    return replace(bundle, residuals=FrozenMapping(tiers))


def _trend(shapes: ShapeErrors, equation: Array, error: Array, seed: int) -> tuple[dict[str, float], Array]:
    """The trend of one group's ln(measured / equation), shape (n,), over ln(equation), as a bundle stores it, and the errors without it.

    ln(measured / equation) = common + slope · ln(equation / middle), between the least and the largest of these powers.  It has a slope if
    that improves forecasts of left-out kernels.  A board with a free clock lowers clock and voltage under load, at a different load for
    each kind of kernel, so power grows more slowly than activity.
    """
    middle = float(equation.mean())
    place = equation - middle
    fold, many = folds_of(shapes, seed), len(shapes.operators) >= FEWEST_POINTS
    losses = np.zeros(2)
    for number in range(FOLDS):
        test = fold == number
        if test.any() and not test.all():
            common, tried = _line(place[~test], error[~test])
            flat = _common(error[~test])
            losses += np.abs(error[test] - flat).sum(), np.abs(error[test] - common - tried * place[test]).sum()
    # A slope must lower the error of kernels left out by 5 %.
    slope = round(_line(place, error)[1], ERROR_DIGITS) if many and losses[1] < 0.95 * losses[0] else 0.0
    common = round(_common(error - slope * place), ERROR_DIGITS)
    low_w, middle_w, high_w = (float(f"{np.exp(value):.6g}") for value in (equation.min(), middle, equation.max()))
    ends = {"low_w": min(low_w, middle_w), "high_w": max(high_w, middle_w), "middle_w": middle_w}
    return {"common": common, "slope": slope, **ends}, error - common - slope * place


def _common(error: Array) -> float:
    """Common error of the rows of a group, shrunk to 0 [ln]."""
    return float(np.clip(np.median(error), -LARGEST_COMMON, LARGEST_COMMON)) * len(error) / (len(error) + COMMON_ROWS)


def _line(place: Array, error: Array) -> tuple[float, float]:
    """Intercept and slope of errors over their place, both shrunk to 0 with the weight of COMMON_ROWS rows of usual place."""
    scatter = max(float(np.median(np.abs(error - np.median(error)))), LEAST_SCATTER)
    design = np.column_stack([np.ones(len(error)), place])
    # Slopes usually differ from 0 by 0.3 (assumed).
    pull = np.diag([COMMON_ROWS, COMMON_ROWS * (scatter / 0.3) ** 2])
    weight = np.ones(len(error))
    values: Array = np.zeros(2)
    for _ in range(8):
        weighted = design * weight[:, None]
        values = np.asarray(np.linalg.solve(weighted.T @ design + pull, weighted.T @ error), dtype=np.float64)
        weight = 1.0 / np.sqrt(1.0 + ((error - design @ values) / scatter) ** 2)
    return float(values[0]), float(np.clip(values[1], -STEEPEST, STEEPEST))


STEEPEST: Final = 0.7
"""Largest magnitude of a slope [1]."""

LEAST_SCATTER: Final = 0.01
"""Least scatter of repeated power measurements [ln]."""


def _tier(shapes: ShapeErrors, error: Array, seed: int) -> FrozenMapping[Any]:
    """The tier of one group from ln(measured / equation) of its rows, shape (n,)."""
    everything = np.arange(len(error))

    def left_out(parts: Iterable[IntArray]) -> Forecast:
        found = no_forecast(len(error))
        for test in parts:
            if len(test):
                found.set_rows(test, forecast(shapes, error, np.setdiff1d(everything, test), test))
        return found.select(np.isfinite(found.bare))

    fold = folds_of(shapes, seed)
    rows = left_out(np.flatnonzero(fold == number) for number in range(FOLDS))
    largest = left_out([largest_rows(shapes)])
    errors = group_errors(shapes, error, [rows, largest], None, EQUATION_ERROR)
    return tier_document(shapes, errors, None, seed=seed)
