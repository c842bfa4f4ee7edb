"""Thinning: a bundle in a smaller file.  Its residual tiers are packed; if that is not enough they lose points.

Points of a tier are kept farthest first, and each takes the mean error of the points nearest to it.  The tier whose prediction of all its
rows suffers least per byte is halved first, or loses its kriging, which has a weight for every row.  A group counts by its rows to the
power IMPORTANCE.
Where trees predict, points only tell widths of intervals: most go first, then the last trees.  Intervals widen by what is lost.
"""

import bz2
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from estimator.bundle.content import Bundle, Covariance, GroupCoefficients
from estimator.bundle.files import document_of, layout
from estimator.model.residuals import NEIGHBOURS, neighbour_error, tier_from_document
from estimator.model.tier_records import PackedTier
from estimator.vocabulary.frozen import EMPTY, FrozenMapping
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.reader import plain
from fitter.errors import ReleaseError
from fitter.latency.residual_tier import FEWEST_POINTS, neighbours
from fitter.latency.trees import RATE

Tier = Mapping[str, Any]


def thinned(bundle: Bundle, most_bytes: int) -> Bundle:
    """The bundle in a file of at most so many bytes, with a note of lost points.  Raises ReleaseError if others are large."""
    chains = {group: _shrinking(_halvings(tier)) for group, tier in bundle.residuals.items()}
    tiers = {group: chain[0][0] for group, chain in chains.items()}
    groups = FrozenMapping({name: _rounded(group) for name, group in bundle.groups.items()})
    bundle = replace(bundle, groups=groups, uncertainty=_short(bundle.uncertainty), latency_parameters=_of_runs(bundle))
    excess = len(layout(document_of(replace(bundle, residuals=FrozenMapping(tiers))))) + 1 + NOTE_BYTES - most_bytes
    steps = []
    for group, chain in chains.items():
        cost, weight = 0.0, bundle.groups[group].rows ** IMPORTANCE
        for (large, before), (small, after) in pairwise(chain):
            saved = len(large.packed) - len(small.packed)
            cost = max(cost, weight * (after - before) / saved)  # halvings of one tier stay in their order
            steps.append((cost, group, saved, small))
    for _, group, saved, small in sorted(steps, key=lambda step: step[0]):
        if excess > 0:
            tiers[group] = small
            excess -= saved
    if excess > 0:
        raise ReleaseError(f"{bundle.name}: {excess} byte too large even with few of its measured points; allow more than {most_bytes}")
    kept, all_points = (sum(len(tier["ln_error"]) for tier in own.values()) for own in (tiers, bundle.residuals))
    notes = (f"residual tier thinned from {all_points} to {kept} points for {most_bytes} byte",) if kept < all_points else ()
    return replace(bundle, residuals=FrozenMapping(tiers), notes=(*bundle.notes, *notes))


IMPORTANCE: Final = 0.75
"""With 1 a few hundred rows lose too much (latent attention on an L40S errs by 22 instead of 19 %), with 0.5 tens of thousands do (products
in bf16 on a B200 by 5.5 instead of 5.3 %)."""

NOTE_BYTES: Final = 200
"""Room for the note on thinning and the digest [byte]."""


def _of_runs(bundle: Bundle) -> Covariance:
    """The covariance of parameters that runs share; that within a kernel group would be most of the file, and its deviations stay."""
    names, rows = bundle.latency_parameters.names, bundle.latency_parameters.covariance
    kept = [i for i, name in enumerate(names) if name.rpartition(".")[0] not in bundle.groups]
    return Covariance(names=tuple(names[i] for i in kept), covariance=tuple(tuple(rows[i][j] for j in kept) for i in kept))


def _rounded(group: GroupCoefficients) -> GroupCoefficients:
    """The group with five digits of its coefficients and two of their deviations, which also tell what the data determined."""
    digits = ((group.coefficients, 5), (group.ln_std, 2))
    values, std = (FrozenMapping({name: float(f"{value:.{count}g}") for name, value in own.items()}) for own, count in digits)
    return replace(group, coefficients=values, ln_std=std, identified=EMPTY)


def packed(tier: Tier) -> PackedTier:
    """The tier as the text that packs it."""
    text = json.dumps(plain(tier), separators=(",", ":"), allow_nan=False)
    return PackedTier(b64encode(bz2.compress(text.encode("ascii"))).decode("ascii"))


def _shrinking(chain: list[tuple[PackedTier, float]]) -> list[tuple[PackedTier, float]]:
    """The members of a chain that are smaller than all before."""
    sizes = [len(tier.packed) for tier, _ in chain]
    return [one for i, one in enumerate(chain) if sizes[i] < min(sizes[:i], default=sizes[i] + 1)]


def _halvings(tier: Tier) -> list[tuple[PackedTier, float]]:
    """The packed tier, without kriging, then with half of its points each time; and by how much its mean error grows [ln]."""
    found = [(packed(_short(tier)), 0.0)]
    points = tier_from_document(tier).points
    if "trees" in tier:
        return found + [(packed(_short(one)), left) for one, left in _pruned(tier, points)]
    order, count = _farthest_first(points), len(points) if "kriging" in tier else len(points) // 2
    while count >= FEWEST_POINTS:
        made = _with_points(tier, points, order[:count])
        left = np.abs(np.array(made["left_out"])).mean() - np.abs(tier["left_out"]).mean()
        found.append((packed(_short(made)), left))
        count //= 2
    return found


def _short(value: Any) -> Any:
    """Data of a tier with three decimals, and without the points of whole numbers."""
    if isinstance(value, Mapping):
        kept = {name: _short(item) for name, item in value.items()}
        return kept | ({"sm_clock_mhz": kept["sm_clock_mhz"][:1]} if len(set(kept.get("sm_clock_mhz", ()))) == 1 else {})
    if isinstance(value, tuple):
        return [_short(item) for item in value]
    return (int(value) if value % 1 == 0 else round(value, 3)) if isinstance(value, float) else value


def _pruned(tier: Tier, points: Array) -> Iterator[tuple[Tier, float]]:
    """The tier with SPREAD_POINTS of its points, then without a third of its trees each time, the last first: they correct least.

    Each tree took RATE of what those before had left, so the first ones take the part of all: with 3 of 20 trees products of a B200 err by
    5.3 instead of 5.8 % (bf16), by 2.4 instead of 3.1 % (nvfp4).  The squares of errors grow by that of RATE times the lost values.
    """
    kept, left, error = _farthest_first(points)[:SPREAD_POINTS], 0.0, np.array(tier["left_out"])
    yield _with_points(tier, points, kept, left), left
    feature, threshold, value = (np.array(tier["trees"][name]) for name in ("feature", "threshold", "value"))
    divides = feature > 0
    count = most = len(value) - len(threshold)
    tree = np.arange(len(feature))  # of each node: its own place for a root, that of its parent for a child
    children = count + 2 * np.arange(len(threshold))
    for node, child in zip(np.flatnonzero(divides), children, strict=True):
        tree[child : child + 2] = tree[node]
    while count > 1:
        fewer = count - (count + 2) // 3
        left += sum(float(np.abs(value[tree[~divides] == lost]).mean()) for lost in range(fewer, count))
        count, stays = fewer, tree < fewer
        scale = (1.0 - (1.0 - RATE) ** most) / (1.0 - (1.0 - RATE) ** fewer)
        columns = {"feature": feature[stays], "threshold": threshold[stays[divides]], "value": scale * value[stays[~divides]]}
        trees = {**tier["trees"], **{name: tuple(column.tolist()) for name, column in columns.items()}}
        grown = float((np.hypot(error, RATE * left) - error).mean())
        yield {**_with_points(tier, points, kept, RATE * left), "trees": trees}, grown


SPREAD_POINTS: Final = 50
"""Points that a tier with trees keeps: the 25 nearest of them give a kernel's interval."""


def _farthest_first(points: Array) -> IntArray:
    """Places of the points (n, f), each the farthest from all before it."""
    order = [int(np.argmin(((points - points.mean(axis=0)) ** 2).sum(axis=1)))]
    apart = np.full(len(points), np.inf)
    for _ in range(len(points) - 1):
        apart = np.minimum(apart, ((points - points[order[-1]]) ** 2).sum(axis=1))
        order.append(int(np.argmax(apart)))
    return np.array(order)


def _with_points(tier: Tier, points: Array, kept: IntArray, lost: float | None = None) -> Tier:
    """The tier with the kept ones (k,) of its points (n, f): each has the mean errors of the points to which it is nearest.

    lost: error in addition to those left out [ln]; None: neighbours predict, and no point is its own.
    """
    kept = kept[np.lexsort(points[kept].T[::-1])]  # columns that ascend pack well
    apart, place = neighbours(points[kept], points, NEIGHBOURS + 1)
    nearest, itself = place[:, 0], apart[:, :1] == 0.0
    apart, place = (np.where(itself, column[:, 1:], column[:, :-1]) for column in (apart, place))

    def mean(values: Array) -> Array:
        return np.bincount(nearest, np.broadcast_to(values, len(points)), len(kept)) / np.bincount(nearest, minlength=len(kept))

    def means(record: Tier) -> dict[str, Any]:
        error, left_out = np.array(record["ln_error"]), np.array(record["left_out"])
        own = np.abs(error - neighbour_error(apart, mean(error)[place]))
        wide = np.maximum(left_out, own) if lost is None else np.hypot(left_out, lost)
        found = {name: record[name] for name in record if name != "kriging"}
        return found | {"ln_error": tuple(mean(error).tolist()), "left_out": tuple(mean(wide).tolist())}

    sizes = {name: tuple(np.array(column)[kept].tolist()) if len(column) > 1 else column for name, column in tier["points"].items()}
    named = {"named": means(tier["named"])} if "named" in tier else {}
    return {**means(tier), "points": sizes, **named}
