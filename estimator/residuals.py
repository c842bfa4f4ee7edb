"""What the equations leave over: the error of the nearest measured kernels, carried to a kernel nearby.

    r(q) = Σ w_i e_i / Σ w_i · exp(−(d₁ / reach)²),   w_i = 1 / (d_i + softening)³,   over the 8 nearest

e = ln(measured / equations) of the fit's own rows, d the distance in base-2 logarithms of the shape.  |r| is bounded,
more tightly for work beyond the largest that was measured: there a neighbour's error says little.

The same neighbours give the uncertainty: σ(q) from the errors that the 25 nearest had when they were left out of the fit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from estimator.quantities import Array, BoolArray
from estimator.workload import FAMILY_FIELDS, ZERO_ALLOWED, Operator

NEIGHBOURS: Final = 8
SPREAD_NEIGHBOURS: Final = 25

SOFTENING: Final = 0.25
"""Distance at which a neighbour's weight has fallen to an eighth of that of an equal shape [octave]."""

REACH: Final = 2.0
"""Distance of the nearest neighbour at which the correction has faded to 1/e [octave]."""

LARGEST_CORRECTION: Final = 0.35
LARGEST_CORRECTION_BEYOND: Final = 0.1
"""Bounds of |r|, and the bound for work beyond the largest measured [ln]."""

SPREAD_OFFSET: Final = 0.01
"""Added to the mean error of the neighbours: measurements repeat no better [ln]."""

FAR: Final = 1.0
"""Kernels whose nearest neighbour is farther than this have their own quantile [octave]."""

NORMAL_90: Final = 1.6448536269514722
"""Half width of a 90 % interval in standard deviations of a normal distribution."""

FIELD_WEIGHT: Final[dict[str, dict[str, float]]] = {
    "attention": {"batch": 0.7, "queries": 0.5, "context": 0.5, "window": 0.5, "causal": 10.0},
    "conv": {"stride": 3.0, "padding": 0.5, "kernel_h": 1.5, "kernel_w": 1.5},
}
"""Octaves of distance for one octave of a shape field; fields that are not named count 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualTier:
    """Measured kernels of one group, columns of shape (n,).

    fields       shape fields, each with its weight
    points       (n, f) weighted log2 of these fields
    ln_error     ln(measured / equations)
    left_out     |ln(measured / prediction)| when the kernel was left out of the fit
    largest_work the largest work among them
    near, far    quantiles of left_out / σ that give 90 % intervals, by the distance of the nearest neighbour
    beyond       90 % half width for work beyond the largest [ln]
    """

    fields: tuple[tuple[str, float], ...]
    points: Array
    ln_error: Array
    left_out: Array
    largest_work: float
    near: float
    far: float
    beyond: float


def shape_points(operators: Sequence[Operator]) -> Array:
    """Weighted log2 of the shape fields of operators of one family, shape (n, f)."""
    family = operators[0].family
    weights = FIELD_WEIGHT.get(family, {})
    shapes = np.array([operator.shape for operator in operators], dtype=np.float64)
    return _weighted_log(shapes, [(name, weights.get(name, 1.0)) for name in FAMILY_FIELDS[family]])


def tier_points(tier: ResidualTier, operators: Sequence[Operator]) -> Array:
    """Weighted log2 of the fields that a tier compares, shape (n, f)."""
    shapes = np.array([[operator[name] for name, _ in tier.fields] for operator in operators], dtype=np.float64)
    return _weighted_log(shapes, tier.fields)


def _weighted_log(shapes: Array, fields: Sequence[tuple[str, float]]) -> Array:
    shift = np.array([1.0 if name in ZERO_ALLOWED else 0.0 for name, _ in fields])
    points: Array = np.log2(shapes + shift) * np.array([weight for _, weight in fields])
    return points


def operator_work(operators: Sequence[Operator]) -> Array:
    """A measure of each operator's work that grows with every size, shape (n,); comparable within a group."""
    return np.array([_work(operator) for operator in operators], dtype=np.float64)


def _work(operator: Operator) -> float:
    shape = operator.shape
    if operator.family == "attention":
        batch, queries, context, heads, _, head_dim, window, _ = shape
        return batch * queries * (min(context, window) if window else context) * heads * head_dim
    if operator.family == "conv":
        batch, channels, height, width, filters, kernel_h, kernel_w, stride, _, groups = shape
        return batch * channels * height * width * filters * kernel_h * kernel_w / (stride * stride * groups)
    if operator.family in ("elementwise", "copy"):
        return shape[0] + shape[1]
    return float(np.prod(shape))


def tier_from_document(document: Mapping[str, Any]) -> ResidualTier:
    """The tier in a bundle; its arrays are built once."""
    try:
        return _cached_tier(document)
    except TypeError:  # plain dictionaries cannot be remembered
        return _tier(document)


def _tier(document: Mapping[str, Any]) -> ResidualTier:
    fields = tuple(zip(document["fields"], document["weights"], strict=True))
    count = len(document["ln_error"])
    sizes = (np.array(document["points"][name], dtype=np.float64) for name in document["fields"])
    shapes = np.stack([np.broadcast_to(size, count) for size in sizes], axis=1)  # a size that all share is stored once
    return ResidualTier(
        fields=fields,
        points=_weighted_log(shapes, fields),
        ln_error=np.array(document["ln_error"], dtype=np.float64),
        left_out=np.array(document["left_out"], dtype=np.float64),
        **{name: float(document[name]) for name in ("largest_work", "near", "far", "beyond")},
    )


_cached_tier = lru_cache(maxsize=256)(_tier)


def corrections(tier: ResidualTier, points: Array, work: Array) -> tuple[Array, Array]:
    """ln of the factor on the equations' time, and the standard deviation of ln of the corrected time, shapes (q,)."""
    distance, index = nearest(tier.points, points, SPREAD_NEIGHBOURS)
    beyond = work > tier.largest_work
    correction = weighted_error(distance, tier.ln_error[index], beyond)
    sigma = SPREAD_OFFSET + tier.left_out[index].mean(axis=1)
    half = np.where(distance[:, 0] <= FAR, tier.near, tier.far) * sigma
    half = np.where(beyond, np.maximum(half, tier.beyond), half)
    return correction, half / NORMAL_90


def weighted_error(distance: Array, ln_error: Array, beyond: BoolArray) -> Array:
    """r of rows of neighbours, nearest first, shape (q, k) → (q,)."""
    distance, ln_error = distance[:, :NEIGHBOURS], ln_error[:, :NEIGHBOURS]
    weight = (distance + SOFTENING) ** -3.0
    raw = (weight * ln_error).sum(axis=1) / weight.sum(axis=1) * np.exp(-((distance[:, 0] / REACH) ** 2))
    bound = np.where(beyond, LARGEST_CORRECTION_BEYOND, LARGEST_CORRECTION)
    result: Array = np.clip(raw, -bound, bound)
    return result


def nearest(points: Array, queries: Array, count: int) -> tuple[Array, Any]:
    """Distances to and indices of the `count` nearest points of each query, nearest first, shapes (q, count)."""
    count = min(count, len(points))
    squared = (points**2).sum(axis=1)[None, :] + (queries**2).sum(axis=1)[:, None] - 2.0 * queries @ points.T
    near = np.argpartition(squared, count - 1, axis=1)[:, :count]
    distance = np.sqrt(((points[near] - queries[:, None, :]) ** 2).sum(axis=2))
    order = np.argsort(distance, axis=1, kind="stable")
    return np.take_along_axis(distance, order, axis=1), np.take_along_axis(near, order, axis=1)


def log_corrections(
    operators: Sequence[Operator], groups: Sequence[str | None], residuals: Mapping[str, Mapping[str, Any]]
) -> tuple[Array, Array]:
    """Corrections and standard deviations of ln(time) of operators, shapes (n,).

    groups: the group that served each operator.  Without a tier for that very group: no correction, deviation nan.
    """
    correction = np.zeros(len(operators))
    deviation = np.full(len(operators), np.nan)
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        if group is not None and group in residuals:
            members.setdefault(group, []).append(i)
    for group, index in members.items():
        chosen = [operators[i] for i in index]
        tier = tier_from_document(residuals[group])
        correction[index], deviation[index] = corrections(tier, tier_points(tier, chosen), operator_work(chosen))
    return correction, deviation
