"""Fit of boosted trees to the equations' errors."""

from typing import Final

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from estimator.model.trees import Trees
from estimator.vocabulary.quantities import Array

COUNT: Final = 20
RATE: Final = 0.3
DEEPEST: Final = 12
"""Trees, the share of its errors that each one takes [1], and most levels of one.  A tree has as many leaves as the root of its rows:
twice as many enlarge bundles and hardly lower errors, one for 64 rows is too few for small groups (decoding on an A100 3.2, not 2.0 %)."""

FEWEST: Final = 5
HELD_BACK: Final = 2.0
"""Least rows of a leaf, and rows without error that each leaf seems to have beside its own."""

DIGITS: Final = 3
"""Decimals of stored thresholds and values."""


BESIDE_WEIGHT: Final = 0.1
"""Weight of a kernel beside measured ones, whose error is taken as the usual one.  Tables have few numbers of rows, most of them whole
tiles; what trees learn from these misled them between.  Without, another laboratory's products (`benchmarks/boards.py`) err by 9.7 instead
of 8.3 to 9.0 % (by the draw) on an A100, by 12.3 % both ways on an H100; unseen ones of tables by 0 to 0.3 points less, up to 0.6 in small
ones."""

MOST_VALUES: Final = 255
"""Most different values of an input; others are rounded to the nearest of these quantiles.  scikit-learn's bins are as many, but for rows
with weights they take longer than the trees."""


def fit_trees(inputs: Array, error: Array, beside: Array) -> Trees:
    """Trees for rows of these inputs (n, f), rounded to 0.01, and errors (n,) [ln]; beside (q, f): inputs of kernels beside them."""
    count, mean = len(error), error.mean()
    model = HistGradientBoostingRegressor(
        max_iter=COUNT,
        learning_rate=RATE,
        max_leaf_nodes=max(2, int(count**0.5)),
        max_depth=DEEPEST,
        min_samples_leaf=FEWEST,
        l2_regularization=HELD_BACK,
        early_stopping=False,
    ).fit(
        np.apply_along_axis(_of_few, 0, np.concatenate([inputs, beside])),
        np.append(error, np.full(len(beside), mean)),
        np.repeat([1.0, BESIDE_WEIGHT], [count, len(beside)]),
    )
    trees = [tree.nodes for (tree,) in model._predictors]  # scikit-learn shows these trees nowhere else
    nodes, sizes = np.concatenate(trees), np.array([len(tree) for tree in trees])
    roots = np.cumsum(sizes) - sizes
    below = np.repeat(roots, sizes)[:, None] + np.column_stack([nodes["left"], nodes["right"]])
    levels = [roots]
    while len(levels[-1]):
        levels.append(below[levels[-1]][nodes["is_leaf"][levels[-1]] == 0].ravel())
    order = np.concatenate(levels)
    nodes = nodes[order]
    leaf = nodes["is_leaf"] > 0
    start = np.where(order < sizes[0], mean, 0.0)  # from which they start
    return Trees(
        feature=np.where(leaf, 0, nodes["feature_idx"] + 1),
        threshold=np.round(nodes["num_threshold"][~leaf], DIGITS),
        value=np.round((nodes["value"] + start)[leaf], DIGITS),
    )


def _of_few(column: Array) -> Array:
    """An input with at most MOST_VALUES values."""
    values = np.unique(np.quantile(column, np.linspace(0.0, 1.0, MOST_VALUES), method="nearest"))
    return values[np.searchsorted(0.5 * (values[1:] + values[:-1]), column)]
