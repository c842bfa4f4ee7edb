"""Residuals of the equations: errors of the nearest measured kernels, applied to a similar kernel.

    r(q) = s · Σ w_i e_i / Σ w_i · exp(−(d₁ / REACH)²),   w_i = 1 / (d_i + softening)³,   over the 8 nearest

e = ln(measured / equations) of the fit's own rows, d the distance in base-2 logarithms of the shape.  |r| is bounded.
s, for work beyond the largest that was measured (elsewhere 1), is chosen for the best forecast of a group's largest kernels from its
smaller ones.

Where phases are known, r of small groups comes from kriging (`estimator.model.kriging`), of large ones from boosted trees
(`estimator.model.trees`), with the same bound.

The same neighbours give the uncertainty: σ(q) from the held-out errors of the 25 nearest.  If kernel names determine the
tiles, errors are stored twice: with predicted tiles and with the named ones.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from estimator.model.kriging import SHARES, Kriging, PhaseFeatures, kriged
from estimator.model.phases import members
from estimator.model.tier_records import ErrorRecord, KrigingRecord, Tier, TierRecord, TreesRecord
from estimator.model.trees import Trees, grown, tree_inputs
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.quantities import HZ_PER_MHZ, NORMAL_90, TINY, Array, BoolArray, IntArray
from estimator.vocabulary.values import arrays
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import FAMILY_FIELDS, ZERO_ALLOWED, Operator

NEIGHBOURS: Final = 8
"""Nearest measured kernels whose errors correct a kernel."""
SPREAD_NEIGHBOURS: Final = 25
"""Nearest measured kernels whose errors give a kernel's spread."""

REACH: Final = 2.0
"""Distance of the nearest neighbour at which the correction decays to 1/e [octave]."""

BEYOND_OCTAVES: Final = 0.5
"""Distance beyond the largest work up to which errors are constant [octave].  Beyond it they grow with the root of the distance, like a
random walk, as in the test forecasts.  One constant width would be too wide at the edge and too narrow far from it."""

LARGEST_CORRECTION: Final = 0.35
"""Bound of |r| [ln]."""

SPREAD_OFFSET: Final = 0.01
"""Repeatability of measurements, added to the mean error of the neighbours [ln]."""

FAR: Final = 1.0
"""Distance of the nearest neighbour beyond which kernels have their own quantile [octave]."""

FIELD_WEIGHT: Final[dict[str, dict[str, float]]] = {
    "attention": {"batch": 0.7, "queries": 0.5, "context": 0.5, "window": 0.5, "causal": 10.0},
    "conv": {"stride": 3.0, "padding": 0.5, "kernel_h": 1.5, "kernel_w": 1.5},
}
"""Octaves of distance for one octave of a shape field; other fields count 1."""


TILE_ROWS: Final = (128.0, 64.0)
"""Rows of tiles whose empty shares are further coordinates of matrix products: the largest edges that all libraries have [element]."""

UNFILLED_WEIGHT: Final[dict[str, float]] = {"gemm": 4.0}
"""Octaves of distance for the share of the first, half of it for the next.  Block-scaled fp8 of H200: a product of 129 rows takes twice
the time of 128; unseen shapes err by 6.3 % without, by 4.4 % with the first and by 4.1 % with both."""


Pattern = Kriging | Trees
"""A function of sizes and phases that gives a kernel's error."""


def patterned(known: Pattern, points: Array, features: PhaseFeatures) -> Array:
    """ln of the factor on the equations' time of kernels, shape (q,)."""
    return grown(known, tree_inputs(points, features)) if isinstance(known, Trees) else kriged(known, points, features)


@arrays
class TierErrors:
    """Errors of the measured kernels of a group, with one source of tiles; columns of shape (n,).

    ln_error     ln(measured / equations)
    left_out     |ln(measured / prediction)| of the held-out kernel
    beyond_share    share of the correction that holds for work beyond the largest measured [1]
    near, far    quantiles of left_out / σ that give 90 % intervals, by the distance of the nearest neighbour
    beyond       90 % half width for work, or a size, beyond the largest [ln]
    pattern      replaces the neighbours' errors if phases are known, with its share that holds for work beyond the largest measured
    """

    ln_error: Array
    left_out: Array
    beyond_share: float
    near: float
    far: float
    beyond: float
    pattern: tuple[Pattern, float] | None


@arrays
class ResidualTier:
    """Measured kernels of one group.

    fields       shape fields, each with its weight
    unfilled     weight of the empty share of a product's last tile
    points       (n, f) weighted log2 of these fields, and those shares if they have a weight
    largest      (f,) largest value of every size; infinite for fields that are no sizes, and if few shapes span no range
    largest_work the largest work of these kernels
    predicted    errors with predicted tiles
    named        errors with the tiles from kernel names; None if these were not used
    """

    fields: tuple[tuple[str, float], ...]
    unfilled: float
    points: Array
    largest: Array
    largest_work: float
    predicted: TierErrors
    named: TierErrors | None


def shape_points(operators: Sequence[Operator]) -> Array:
    """Weighted log2 of the shape fields of operators of one family, shape (n, f)."""
    return points_of(operators[0].family, np.array([operator.shape for operator in operators], dtype=np.float64))


def points_of(family: str, shapes: Array) -> Array:
    """The same for shapes (n, s) of a family."""
    weights = FIELD_WEIGHT.get(family, {})
    return _weighted_log(shapes, [(name, weights.get(name, 1.0)) for name in FAMILY_FIELDS[family]], UNFILLED_WEIGHT.get(family, 0.0))


def tier_points(tier: ResidualTier, operators: Sequence[Operator]) -> Array:
    """Weighted log2 of the fields that a tier compares, shape (n, f)."""
    try:
        shapes = np.array([[operator[name] for name, _ in tier.fields] for operator in operators], dtype=np.float64)
    except (KeyError, ValueError) as error:
        raise BundleError(f"the bundle's residuals name a field that kernels of {operators[0].family} lack ({error}); fit again") from error
    return _weighted_log(shapes, tier.fields, tier.unfilled)


def _weighted_log(shapes: Array, fields: Sequence[tuple[str, float]], unfilled: float) -> Array:
    shift = np.array([1.0 if name in ZERO_ALLOWED else 0.0 for name, _ in fields])
    points: Array = np.log2(shapes + shift) * np.array([weight for _, weight in fields])
    if unfilled:
        rows = shapes[:, [name for name, _ in fields].index("m")]
        shares = [(np.ceil(rows / tile) - rows / tile) * tile / TILE_ROWS[0] for tile in TILE_ROWS]
        points = np.column_stack([points, *(unfilled * share for share in shares)])
    return points


def work_of(operators: Sequence[Operator]) -> Array:
    """A measure of each operator's work that grows with every size, shape (n,): flop, or bytes of memory kernels."""
    works = map(operator_work, operators)
    return np.array([work.flop or work.read_byte + work.write_byte for work in works], dtype=np.float64)


@lru_cache(maxsize=256)
def tier_from_document(document: TierRecord) -> ResidualTier:
    """The tier in a bundle; its arrays are built once."""
    fields = tuple(zip(document["fields"], document["weights"], strict=True))
    count = len(document["ln_error"])
    sizes = (np.array(document["points"][name], dtype=np.float64) for name in document["fields"])
    shapes = np.stack([np.broadcast_to(size, count) for size in sizes], axis=1)  # a size that all rows share is stored once
    named = document.get("named")
    unfilled = document.get("unfilled", 0.0)
    points = _weighted_log(np.maximum(shapes, TINY), fields, unfilled)
    unbounded = [name in ZERO_ALLOWED or count <= SPREAD_NEIGHBOURS for name, _ in fields] + [True] * (points.shape[1] - len(fields))
    return ResidualTier(
        fields=fields,
        unfilled=unfilled,
        points=points,
        largest=np.where(unbounded, np.inf, points.max(axis=0)),
        largest_work=max(document["largest_work"], TINY),
        predicted=_errors(document, points),
        named=None if named is None else _errors(named, points),
    )


def _errors(document: ErrorRecord, points: Array) -> TierErrors:
    count = len(points)
    kriging, trees = document.get("kriging"), document.get("trees")
    return TierErrors(
        ln_error=_column(document["ln_error"], count),
        left_out=_column(document["left_out"], count),
        beyond_share=document.get("beyond_share", 1.0),
        near=document["near"],
        far=document["far"],
        beyond=document["beyond"],
        pattern=_trees(trees) if trees else _kriging(kriging, points) if kriging else None,
    )


def _kriging(document: KrigingRecord, points: Array) -> tuple[Kriging, float]:
    shape = np.array(document["shape"], dtype=np.int64)
    count = len(shape)
    shares = np.stack([_column(document["shares"].get(name, (0.0,)), count) for name in SHARES], axis=1)
    features = PhaseFeatures(
        log_clock=np.log2(_column(document["sm_clock_mhz"], count) * HZ_PER_MHZ),
        tile_area=_column(document["tile_area"], count),
        shares=shares,
    )
    return Kriging(points=points[shape], features=features, weight=_column(document["weight"], count)), document["beyond_share"]


def _trees(document: TreesRecord) -> tuple[Trees, float]:
    feature, threshold, value = (np.array(document[name]) for name in ("feature", "threshold", "value"))
    return Trees(feature=feature, threshold=threshold, value=value), document["beyond_share"]


def _column(values: Sequence[float], count: int) -> Array:
    """A column of `count` entries; a single value is repeated."""
    return np.broadcast_to(np.array(values, dtype=np.float64), count)


def corrections(
    tier: ResidualTier, points: Array, work: Array, named: BoolArray | None = None, features: PhaseFeatures | None = None
) -> tuple[Array, Array]:
    """ln of the factor on the equations' time, and the standard deviation of ln of the corrected time, shapes (q,).

    named (q,): kernels whose tile comes from a name; None: none.  features: features of these kernels, if their phases are known.  No
    held-out test covers a row longer than all measured ones, even with few rows: beyond the edge its error grows like the error of work
    beyond the largest.
    """
    distance, index = nearest(tier.points, points, SPREAD_NEIGHBOURS)
    excess = np.log2(work) - np.log2(tier.largest_work)
    longer = np.maximum((points - tier.largest).max(axis=1), 0.0)
    own = np.zeros(len(points), dtype=np.bool_) if named is None or tier.named is None else named
    correction, deviation = np.zeros(len(points)), np.zeros(len(points))
    for errors, rows in ((tier.predicted, np.flatnonzero(~own)), (tier.named, np.flatnonzero(own))):
        if errors is None or not len(rows):
            continue
        near, beyond = distance[rows, 0], excess[rows]
        if features is not None and errors.pattern is not None:
            known, share = errors.pattern
            error = patterned(known, points[rows], features.select(rows))
            if len(tier.points) <= SPREAD_NEIGHBOURS:  # they tell nothing of other shapes
                error *= np.exp(-((near / REACH) ** 2))
        else:
            error, share = neighbour_error(distance[rows], errors.ln_error[index[rows]]), errors.beyond_share
        correction[rows] = bounded(error, beyond, share)
        half = np.where(near <= FAR, errors.near, errors.far) * (SPREAD_OFFSET + errors.left_out[index[rows]].mean(axis=1))
        walked = np.maximum(np.where(beyond > 0.0, np.maximum(beyond / BEYOND_OCTAVES, 1.0), 0.0), longer[rows] / BEYOND_OCTAVES)
        deviation[rows] = np.maximum(half, errors.beyond * np.sqrt(walked)) / NORMAL_90
    return correction, deviation


def neighbour_error(distance: Array, ln_error: Array) -> Array:
    """Weighted mean error of neighbours, nearest first, after its decay over the distance of the nearest, shape (q, k) → (q,)."""
    distance, ln_error = distance[:, :NEIGHBOURS], ln_error[:, :NEIGHBOURS]
    # At 0.25 octave a neighbour's weight is an eighth of the weight of an equal shape.
    weight = (distance + 0.25) ** -3.0
    mean: Array = (weight * ln_error).sum(axis=1) / weight.sum(axis=1) * np.exp(-((distance[:, 0] / REACH) ** 2))
    return mean


def bounded(error: Array, excess: Array, beyond_share: float) -> Array:
    """r, shape (q,), from the error of similar kernels; excess (q,): distance of the work beyond the largest measured [octave]."""
    return np.clip(np.where(excess > 0.0, beyond_share, 1.0) * error, -LARGEST_CORRECTION, LARGEST_CORRECTION)


def nearest(points: Array, queries: Array, count: int) -> tuple[Array, Any]:
    """Distances to and indices of the `count` nearest points of each query, nearest first, shapes (q, count)."""
    count = min(count, len(points))
    squared = (points**2).sum(axis=1)[None, :] + (queries**2).sum(axis=1)[:, None] - 2.0 * queries @ points.T
    near = np.argpartition(squared, count - 1, axis=1)[:, :count]
    distance = np.sqrt(((points[near] - queries[:, None, :]) ** 2).sum(axis=2))
    order = np.argsort(distance, axis=1, kind="stable")
    row = np.arange(len(queries))[:, None]
    return distance[row, order], near[row, order]


def log_corrections(
    operators: Sequence[Operator],
    groups: Sequence[str | None],
    residuals: Mapping[str, Tier],
    named: BoolArray | None = None,
    features: PhaseFeatures | None = None,
) -> tuple[Array, Array]:
    """Corrections and standard deviations of ln(time) of operators, shapes (n,).

    groups: the group of each operator's coefficients.  Without a tier for exactly that group: no correction, deviation nan.
    named (n,): kernels whose tile comes from a name; None: none.  features: shares of kernel time; None: unknown.
    """
    correction = np.zeros(len(operators))
    deviation = np.full(len(operators), np.nan)
    for group, index in _members(groups, residuals).items():
        chosen = [operators[i] for i in index]
        tier = tier_from_document(residuals[group])
        own = None if named is None else named[index]
        parts = None if features is None else features.select(index)
        correction[index], deviation[index] = corrections(tier, tier_points(tier, chosen), work_of(chosen), own, parts)
    return correction, deviation


def _members(groups: Sequence[str | None], residuals: Mapping[str, Tier]) -> dict[str, IntArray]:
    """Indices of operators by the group of their coefficients, for groups with a tier."""
    return {group: index for group, index in members(groups).items() if group is not None and group in residuals}


POWER_TIER: Final = "power"
"""Name of a tier's own tier of power."""


def log_power_corrections(
    operators: Sequence[Operator], groups: Sequence[str | None], residuals: Mapping[str, Tier], equation_w: Array
) -> tuple[Array, Array]:
    """Like `log_corrections`, for power: groups without a power tier have no correction and a deviation of nan.

    The common factor of a group, a line over ln(power), does not depend on distance.  equation_w (n,): power by the equation [W].
    """
    tiers = {group: residuals[group][POWER_TIER] for group in _members(groups, residuals) if POWER_TIER in residuals[group]}
    correction, deviation = log_corrections(operators, groups, tiers)
    for group, index in _members(groups, tiers).items():
        tier = tiers[group]
        at = np.log(np.clip(equation_w[index], tier["low_w"], tier["high_w"]) / tier["middle_w"])
        correction[index] += np.clip(tier["common"] + tier["slope"] * at, -LARGEST_COMMON, LARGEST_COMMON)
    return correction, deviation


LARGEST_COMMON: Final = 0.7
"""Bound of the common factor of a group's power over the equation: a factor of 2 in both directions [ln]."""
