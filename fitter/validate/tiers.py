"""Where a forecast comes from: a measured kernel, its neighbours, the equations of a fitted group, or a specification alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from estimator.bundles.content import Bundle
from estimator.residuals import nearest, tier_from_document, tier_points
from estimator.workload import Operator
from fitter.rows.columns import KernelRows
from fitter.validate.predictions import Errors, Prediction, errors_of, served_groups

TIERS: Final[dict[str, str]] = {
    "measured": "a kernel of this very shape was measured",
    "residual": "kernels near by correct the equations",
    "fit": "the equations with coefficients of measured kernels of its kind",
    "specification": "the specification and priors: nothing of its kind was measured on this GPU",
}
"""Tiers from the surest to the least sure, and what each means."""

SAME_SHAPE: Final = 1e-6
"""Shapes closer than this are one [octave]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierErrors:
    """Errors of the rows whose forecast comes from one tier; None where nothing could be compared."""

    tier: str
    n: int
    latency: Errors | None
    power: Errors | None

    def document(self) -> dict[str, Any]:
        """As plain data."""
        latency, power = (None if errors is None else errors.document() for errors in (self.latency, self.power))
        return {"tier": self.tier, "n": self.n, "latency": latency, "power": power}


def kernel_tiers(bundle: Bundle, rows: KernelRows) -> NDArray[np.str_]:
    """The tier of every row's forecast by a bundle, shape (n,); "" for rows that no group serves."""
    served = served_groups(bundle, rows)
    operators = rows.row_operators()
    tiers = np.full(len(rows), "fit", dtype="<U13")
    members: dict[str, list[int]] = {}
    for i, group in enumerate(served):
        if group is None:
            tiers[i] = ""
        elif rows.gpus[rows.gpu_index[i]] != bundle.gpu.name or bundle.groups[group].rows == 0:
            tiers[i] = "specification"
        elif group in bundle.residuals:
            members.setdefault(group, []).append(i)
    for group, index in members.items():
        tiers[index] = _by_distance(bundle, group, [operators[i] for i in index])
    return tiers


def _by_distance(bundle: Bundle, group: str, operators: Sequence[Operator]) -> NDArray[np.str_]:
    tier = tier_from_document(bundle.residuals[group])
    distance, _ = nearest(tier.points, tier_points(tier, operators), 1)
    used = bool(np.any(tier.predicted.ln_error))
    near = np.where(used & (distance[:, 0] <= tier.predicted.fading.reach), "residual", "fit")
    return np.where(distance[:, 0] <= SAME_SHAPE, "measured", near)


def tier_errors(prediction: Prediction, tiers: NDArray[np.str_]) -> tuple[TierErrors, ...]:
    """Errors by tier, the surest first; tiers without rows are left out."""
    found = []
    for tier in TIERS:
        own = np.flatnonzero(tiers == tier)
        if len(own):
            part = prediction.select(own)
            latency = errors_of(part.measured_s, part.predicted_s, part.latency_ln_std)
            power = errors_of(part.measured_w, part.predicted_w, part.power_ln_std)
            found.append(TierErrors(tier=tier, n=len(own), latency=latency, power=power))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCount:
    """How many rows of one kind of kernel have their forecast from each tier."""

    gpu: str
    family: str
    operator: str
    precision: str
    rows: Mapping[str, int]

    def document(self) -> dict[str, Any]:
        """As plain data."""
        names = ("gpu", "family", "operator", "precision")
        return {**{name: getattr(self, name) for name in names}, "rows": dict(self.rows)}


def tier_counts(prediction: Prediction, tiers: NDArray[np.str_]) -> tuple[TierCount, ...]:
    """Rows of each tier by kind of kernel, in first-seen order."""
    counts: dict[tuple[str, str, str, str], dict[str, int]] = {}
    for label, tier in zip(prediction.labels, tiers.tolist(), strict=True):
        own = counts.setdefault(label, {})
        if tier:
            own[tier] = own.get(tier, 0) + 1
    return tuple(
        TierCount(gpu=gpu, family=family, operator=operator, precision=precision, rows=rows)
        for (gpu, family, operator, precision), rows in counts.items()
    )


def tier_lines(errors: Sequence[TierErrors]) -> list[str]:
    """Errors by tier, for people."""
    lines = []
    for one in errors:
        parts = [
            f"{name} {e.mape:.2f} / {e.median:.2f} / {e.p95:.1f}"
            for name, e in (("latency", one.latency), ("power", one.power))
            if e is not None
        ]
        lines.append(f"  {one.tier:13} {one.n:6,} rows  {', '.join(parts) or 'nothing to compare'}")
    return [] if not lines else ["by where the forecast comes from (error in percent: mean / median / p95):", *lines]
