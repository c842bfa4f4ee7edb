"""Weights of kriging: how much each measured kernel's error counts (`estimator.kriging`)."""

from typing import Any, Final

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from estimator.frozen import FrozenMapping
from estimator.kriging import NOISE, SHARES, Kriging, PhaseFeatures, covariance
from estimator.quantities import Array, IntArray
from estimator.residuals import LARGEST_CORRECTION

MOST_KRIGED: Final = 400
"""Rows of a group up to which kriging is tried; more cost seconds and a large bundle, and have near neighbours anyway."""

SHARE_DIGITS: Final = 4
WEIGHT_DIGITS: Final = 5


def fit_kriging(points: Array, features: PhaseFeatures, ln_error: Array) -> Kriging:
    """Kriging over rows with these errors, shape (n,); errors beyond LARGEST_CORRECTION count as that."""
    matrix = covariance(points, features, points, features)
    matrix[np.diag_indices_from(matrix)] += NOISE**2
    weight = cho_solve(cho_factor(matrix, lower=True), np.clip(ln_error, -LARGEST_CORRECTION, LARGEST_CORRECTION))
    return Kriging(points=points, features=features, weight=weight)


def kriging_document(known: Kriging, shape: IntArray, beyond_share: float) -> FrozenMapping[Any]:
    """Kriging as a bundle holds it; shape (n,): the place of each row's shape among the tier's points."""
    features = known.features
    shares = {name: features.shares[:, i] for i, name in enumerate(SHARES)}
    return FrozenMapping(
        {
            "shape": tuple(shape.tolist()),
            "sm_clock_mhz": tuple(np.round(np.exp2(features.log_clock) / 1e6, 3).tolist()),
            "tile_area": tuple(features.tile_area.tolist()) if features.tile_area.any() else (0.0,),
            "shares": FrozenMapping(
                {name: tuple(np.round(column, SHARE_DIGITS).tolist()) for name, column in shares.items() if column.any()}
            ),
            "weight": tuple(np.round(known.weight, WEIGHT_DIGITS).tolist()),
            "beyond_share": beyond_share,
        }
    )
