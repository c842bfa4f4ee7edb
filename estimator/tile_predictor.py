"""Which tile a library takes for a matrix product: a decision tree learnt from kernel names, as plain arrays.

Features are base-2 logarithms of the shape and of the work per SM.  A node tests `feature` against `threshold` (at most:
`left`, else `right`); a leaf has feature −1 and names its tile and split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from estimator.coefficients import group_key, longest_prefix
from estimator.gpu import GpuSpec
from estimator.kernels.registry import KnownTiles, is_matrix, matrix_columns
from estimator.quantities import Array, IntArray
from estimator.workload import Operator

FEATURES: Final = ("batch", "m", "n", "k", "outputs_per_sm", "aspect")
"""log2 of the batch, of C's rows and columns, of the reduction, of batch·m·n / SMs, and of m / n."""

LEAF: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
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


def tree_from_document(document: Mapping[str, Any]) -> TilePredictor:
    """The tree in a bundle."""
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


def predicted_tiles(operators: Sequence[Operator], gpu: GpuSpec, predictors: Mapping[str, Mapping[str, Any]]) -> KnownTiles | None:
    """Tiles of matrix products whose group has a tree, nan elsewhere; None where no group has one.

    predictors: trees by group, looked up by the longest prefix of an operator's group.
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
    for group, index in members.items():
        tree = tree_from_document(predictors[group])
        leaf = tree_leaves(tree, tile_features([operators[i] for i in index], gpu))
        tiles.tile_m[index], tiles.tile_n[index], tiles.split[index] = tree.tile_m[leaf], tree.tile_n[leaf], tree.split[leaf]
    return tiles
