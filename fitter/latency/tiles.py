"""Learning which tile a library takes, from products whose kernel names are known."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from sklearn.tree import DecisionTreeClassifier

from estimator.frozen import FrozenMapping
from estimator.gpu import GpuSpec
from estimator.kernels.registry import KnownTiles
from estimator.quantities import Array, IntArray
from estimator.tiles.predictor import LEAF, tile_features
from estimator.workload import Operator

DEPTH: Final = 8
"""Deeper trees name more tiles right in training and no more on products left out."""

SMALLEST_LEAF: Final = 3
"""Products in a leaf: fewer would be learnt by heart."""

FEWEST_PRODUCTS: Final = 30
"""Fewer products with names say too little about a library."""

SPLIT_CLASSES: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
"""Split-K factors that the tree tells apart; others count as the nearest."""

THRESHOLD_DIGITS: Final = 5


def fit_tiles(operators: Sequence[Operator], gpu: GpuSpec, known: KnownTiles, *, seed: int) -> FrozenMapping[Any] | None:
    """A tree as a bundle holds it, from products with known tiles; None where too few are known."""
    rows = np.flatnonzero(np.isfinite(known.tile_m) & np.isfinite(known.tile_n))
    if len(rows) < FEWEST_PRODUCTS:
        return None
    tiles, tile_class = np.unique(np.stack([known.tile_m[rows], known.tile_n[rows]], axis=1), axis=0, return_inverse=True)
    classes = split_class(np.where(np.isfinite(known.split[rows]), known.split[rows], 1.0))
    features = tile_features([operators[i] for i in rows.tolist()], gpu)
    learner = DecisionTreeClassifier(max_depth=DEPTH, min_samples_leaf=SMALLEST_LEAF, random_state=seed)
    learner.fit(features, np.stack([tile_class.reshape(-1), classes], axis=1))
    return _document(learner, tiles)


def split_class(split: Array) -> IntArray:
    """Index into SPLIT_CLASSES of the nearest split-K factor, shape of `split`."""
    classes = np.log(np.array(SPLIT_CLASSES))
    nearest: IntArray = np.abs(np.log(split)[:, None] - classes).argmin(axis=1).astype(np.int64)
    return nearest


def _document(learner: DecisionTreeClassifier, tiles: Array) -> FrozenMapping[Any]:
    """Plain arrays of a fitted tree; the value of a node is its most frequent tile and split."""
    tree = learner.tree_
    leaf = tree.children_left < 0
    tile = learner.classes_[0][tree.value[:, 0, : len(learner.classes_[0])].argmax(axis=1)]
    split = learner.classes_[1][tree.value[:, 1, : len(learner.classes_[1])].argmax(axis=1)]
    return FrozenMapping(
        {
            "feature": tuple(np.where(leaf, LEAF, tree.feature).tolist()),
            "threshold": tuple(np.where(leaf, 0.0, np.round(tree.threshold, THRESHOLD_DIGITS)).tolist()),
            "left": tuple(np.where(leaf, 0, tree.children_left).tolist()),
            "right": tuple(np.where(leaf, 0, tree.children_right).tolist()),
            "tile_m": tuple(tiles[tile, 0].astype(np.int64).tolist()),
            "tile_n": tuple(tiles[tile, 1].astype(np.int64).tolist()),
            "split": tuple(np.array(SPLIT_CLASSES)[split].tolist()),
        }
    )
