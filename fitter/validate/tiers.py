"""Where a forecast comes from: a measured kernel, its neighbours, the equations of a fitted group, or a specification alone."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.model.residuals import nearest, tier_from_document, tier_points
from fitter.rows.columns import KernelRows
from fitter.validate.predictions import Errors, Prediction, served_groups, summary_row

TIERS: Final = ("measured", "residual", "fit", "specification")
"""From the surest to the least sure: a kernel of this very shape was measured; kernels near by correct the equations; the equations
with coefficients of measured kernels of its kind; the specification and priors."""

SAME_SHAPE: Final = 1e-6
"""Shapes closer than this are one [octave]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierErrors:
    """Errors of the rows whose forecast comes from one tier; None where nothing could be compared."""

    tier: str
    n: int
    latency: Errors | None
    power: Errors | None


def kernel_tiers(bundle: Bundle, rows: KernelRows) -> list[str]:
    """The tier of every row's forecast by a bundle; "" for rows that no group serves."""
    operators, tiers = rows.row_operators(), []
    members: dict[str, list[int]] = {}
    for i, group in enumerate(served_groups(bundle, rows)):
        foreign = rows.gpus[rows.gpu_index[i]] != bundle.gpu.name
        tiers.append("" if group is None else "specification" if foreign or bundle.groups[group].rows == 0 else "fit")
        if tiers[-1] == "fit" and group in bundle.residuals:
            members.setdefault(str(group), []).append(i)
    for group, index in members.items():
        tier = tier_from_document(bundle.residuals[group])
        distance = nearest(tier.points, tier_points(tier, [operators[i] for i in index]), 1)[0][:, 0]
        used = bool(np.any(tier.predicted.ln_error))
        for i, away in zip(index, distance.tolist(), strict=True):
            near = used and away <= tier.predicted.fading.reach
            tiers[i] = "measured" if away <= SAME_SHAPE else "residual" if near else "fit"
    return tiers


def tier_errors(prediction: Prediction, tiers: list[str]) -> tuple[TierErrors, ...]:
    """Errors by tier, the surest first; tiers without rows are left out."""
    found = []
    for tier in (tier for tier in TIERS if tier in tiers):
        errors = summary_row(prediction.select(np.array([one == tier for one in tiers], dtype=np.bool_)), tier)
        found.append(TierErrors(tier=tier, n=errors.n, latency=errors.latency, power=errors.power))
    return tuple(found)
