"""Which tile a library takes for a matrix product, learnt from kernel names: a decision tree, or a choice by time and liking.

A choice is described in `estimator.model.tile_choice`; a tree is a table of plain arrays.

Features are base-2 logarithms of the shape and of the work per SM.  A node tests `feature` against `threshold` (at most:
`left`, else `right`); a leaf has feature −1 and names its tile and split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict

import numpy as np

from estimator.model.coefficients import group_key, longest_prefix
from estimator.model.lowering import PRODUCTS_AT_ONCE, KnownTiles, is_matrix, matrix_columns
from estimator.model.tile_choice import ChoiceRecord, Tiles, choice_from_document, chosen_tiles
from estimator.vocabulary.frozen import remembered
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.reader import LEAST_ONE, Count, FaultError, Span, check_lengths
from estimator.vocabulary.workload import Operator

FEATURES: Final = ("batch", "m", "n", "k", "outputs_per_sm", "aspect")
"""log2 of the batch, of C's rows and columns, of the reduction, of batch·m·n / SMs, and of m / n."""

LEAF: Final = -1


class TreeRecord(TypedDict):
    """A decision tree over base-2 logarithms of the shape, a column by node."""

    feature: Annotated[tuple[Annotated[int, Span(LEAF, len(FEATURES) - 1)], ...], LEAST_ONE, "feature that a node tests; -1 at a leaf"]
    threshold: Annotated[tuple[Annotated[float, Span(-1e4, 1e4)], ...], LEAST_ONE, "at most this: left, else right [octave]"]
    left: Annotated[tuple[Count, ...], LEAST_ONE, "node to go to"]
    right: Annotated[tuple[Count, ...], LEAST_ONE, "node to go to"]
    tile_m: Annotated[Tiles, "rows of the output tile"]
    tile_n: Annotated[Tiles, "its columns"]
    split: Annotated[Tiles, "parts of the reduction"]


def _check_predictor(record: Any) -> None:
    """Refuse columns of unequal length, and nodes that are not there."""
    count = len(record["tile_m"])
    check_lengths({name: column for name, column in record.items() if isinstance(column, tuple)}, count)
    if "left" in record and max(record["left"] + record["right"]) >= count:
        raise FaultError(f"or right points to none of the {count} nodes", "left")


if TYPE_CHECKING:
    PredictorRecord = Any
else:
    PredictorRecord = Annotated[TreeRecord | ChoiceRecord, _check_predictor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TilePredictor:
    """A decision tree as columns of shape (nodes,); node 0 is the root."""

    feature: IntArray
    threshold: Array
    left: IntArray
    right: IntArray
    tile_m: Array
    tile_n: Array
    split: Array


def tile_features(operators: Sequence[Operator], gpu: GpuSpec) -> Array:
    """Features of matrix products, shape (n, len(FEATURES))."""
    columns = matrix_columns(operators, gpu)
    outputs = columns.batch * columns.m * columns.n / gpu.num_sms
    return np.log2(np.stack([columns.batch, columns.m, columns.n, columns.k, outputs, columns.m / columns.n], axis=1))


@remembered
def tree_from_document(document: TreeRecord) -> TilePredictor:
    """The tree in a bundle; its arrays are built once."""
    columns: dict[str, Any] = {name: np.array(document[name], dtype=np.int64) for name in ("feature", "left", "right")}
    columns |= {name: np.array(document[name], dtype=np.float64) for name in ("threshold", "tile_m", "tile_n", "split")}
    return TilePredictor(**columns)


def tree_leaves(tree: TilePredictor, features: Array) -> IntArray:
    """The leaf at which each row of features ends, shape (n,)."""
    node = np.zeros(len(features), dtype=np.int64)
    rows = np.arange(len(features))
    for _ in range(len(tree.feature)):
        test = tree.feature[node]
        inner = test != LEAF
        if not inner.any():
            break
        lower = features[rows, np.where(inner, test, 0)] <= tree.threshold[node]
        node = np.where(inner, np.where(lower, tree.left[node], tree.right[node]), node)
    return node


def predicted_tiles(
    operators: Sequence[Operator], gpu: GpuSpec, predictors: Mapping[str, PredictorRecord], coefficients: Array
) -> KnownTiles | None:
    """Tiles of matrix products whose group has a predictor, nan elsewhere; None where no group has one.

    predictors: by group, looked up by the longest prefix of an operator's group; coefficients (n, ·): rows as from
    `coefficient_rows`, by which a choice compares times.
    """
    if not predictors:
        return None
    count = len(operators)
    tiles = KnownTiles(tile_m=np.full(count, np.nan), tile_n=np.full(count, np.nan), split=np.full(count, np.nan))
    members: dict[str, list[int]] = {}
    for i in np.flatnonzero(is_matrix(operators)).tolist():
        group = longest_prefix(group_key(operators[i]), predictors)
        if group is not None:
            members.setdefault(group, []).append(i)
    for group, every in members.items():
        for first in range(0, len(every), PRODUCTS_AT_ONCE):
            index = every[first : first + PRODUCTS_AT_ONCE]
            found = group_tiles([operators[i] for i in index], gpu, predictors[group], coefficients[index])
            tiles.tile_m[index], tiles.tile_n[index], tiles.split[index] = found.tile_m, found.tile_n, found.split
    return tiles


def group_tiles(operators: Sequence[Operator], gpu: GpuSpec, predictor: PredictorRecord, coefficients: Array) -> KnownTiles:
    """Tiles of matrix products by the predictor of their group, columns of shape (n,).  coefficients: (n, ·) rows, or one for all."""
    if "kind" in predictor:
        taken = chosen_tiles(matrix_columns(operators, gpu), choice_from_document(predictor), gpu, coefficients)
        return KnownTiles(tile_m=taken.tile_m, tile_n=taken.tile_n, split=taken.split)
    tree = tree_from_document(predictor)
    leaf = tree_leaves(tree, tile_features(operators, gpu))
    return KnownTiles(tile_m=tree.tile_m[leaf], tile_n=tree.tile_n[leaf], split=tree.split[leaf])
