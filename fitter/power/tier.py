"""Residual tiers of power: what the power equation leaves over at measured shapes, and how far it can be trusted.

The equation has a handful of coefficients for all kernels together, so leaving a few kernels out hardly moves it: their errors are
judged as those of the same equation, corrected by their neighbours without them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.frozen import FrozenMapping
from estimator.quantities import Array, IntArray
from estimator.residuals import LARGEST_COMMON, POWER_TIER
from estimator.workload import Operator
from fitter.kernels.intervals import EXTRAPOLATED_SHARES, FOLDS, folds_of, interval_quantiles, largest_rows
from fitter.kernels.residual_tier import (
    ERROR_DIGITS,
    FEWEST_POINTS,
    Forecast,
    GroupErrors,
    best_fading,
    forecast,
    shape_errors,
    tier_document,
)
from fitter.rows import KernelRows
from fitter.validation import predict_kernel_rows, served_groups

COMMON_ROWS: Final = 5.0
"""So many rows without an error of their own stand beside those of a group when what they have in common is taken."""


def with_power_tiers(bundle: Bundle, rows: KernelRows, seed: int) -> Bundle:
    """The bundle with a power tier in the residual tier of every group that has one.

    It holds what the group's rows have in common and, of enough shapes, what neighbours tell, where that helps kernels left out.
    """
    if bundle.power is None or not bundle.residuals:
        return bundle
    bare = replace(bundle, residuals={key: _without_power(tier) for key, tier in bundle.residuals.items()})
    prediction = predict_kernel_rows(bare, rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.log(prediction.measured_w / prediction.predicted_w)
    operators = rows.row_operators()
    members: dict[str, list[int]] = {}
    for i, group in enumerate(served_groups(bundle, rows)):
        if group is not None and group in bundle.residuals and np.isfinite(error[i]):
            members.setdefault(group, []).append(i)
    tiers = dict(bare.residuals)
    for group, index in members.items():
        own = error[index]
        common = float(np.clip(np.median(own), -LARGEST_COMMON, LARGEST_COMMON)) * len(own) / (len(own) + COMMON_ROWS)
        document: Mapping[str, Any] = _tier([operators[i] for i in index], own - common, seed) or {}
        tiers[group] = FrozenMapping({**tiers[group], POWER_TIER: FrozenMapping({**document, "common": round(common, ERROR_DIGITS)})})
    return replace(bundle, residuals=FrozenMapping(tiers))


def _without_power(tier: Mapping[str, Any]) -> FrozenMapping[Any]:
    return FrozenMapping({name: value for name, value in tier.items() if name != POWER_TIER})


def _tier(operators: list[Operator], error: Array, seed: int) -> FrozenMapping[Any] | None:
    """The tier of one group from ln(measured / equation) of its rows, shape (n,)."""
    shapes = shape_errors(operators)
    if len(shapes.operators) < FEWEST_POINTS:
        return None
    everything = np.arange(len(operators))
    left_out = {name: np.zeros(len(operators)) for name in Forecast.__slots__}
    fold = folds_of(shapes, seed)
    for number in range(FOLDS):
        test = np.flatnonzero(fold == number)
        if len(test):
            one = forecast(shapes, error, np.flatnonzero(fold != number), test)
            for name, column in left_out.items():
                column[test] = getattr(one, name)
    rows = Forecast(**left_out)
    largest = [_largest(largest_rows(shapes, share), everything, operators, error) for share in EXTRAPOLATED_SHARES]
    fading = best_fading([rows, *(part for part in largest if part is not None)])
    quantiles = interval_quantiles(shapes, rows, [part for part in largest if part is not None], fading)
    errors = GroupErrors(ln_error=error, left_out=np.abs(rows.errors(fading)), fading=fading, quantiles=quantiles)
    return tier_document(shapes, errors, None, seed=seed)


def _largest(beyond: IntArray, everything: IntArray, operators: list[Operator], error: Array) -> Forecast | None:
    """The largest kernels as forecast from the rest; None where there is no such test."""
    rest = np.setdiff1d(everything, beyond)
    if not len(beyond) or not len(rest):
        return None
    return forecast(shape_errors(operators), error, rest, beyond)
