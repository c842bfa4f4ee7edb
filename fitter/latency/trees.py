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


def fit_trees(inputs: Array, error: Array, beside: Array) -> Trees:
    """Trees for rows of these inputs (n, f), rounded to 0.01, and errors (n,) [ln]; beside (q, f): of kernels with the usual error."""
    count, mean = len(error), error.mean()
    model = HistGradientBoostingRegressor(
        max_iter=COUNT,
        learning_rate=RATE,
        max_leaf_nodes=max(2, int(count**0.5)),
        max_depth=DEEPEST,
        min_samples_leaf=FEWEST,
        l2_regularization=HELD_BACK,
        early_stopping=False,
    ).fit(np.concatenate([inputs, beside]), np.append(error, np.full(len(beside), mean)))
    trees = [tree.nodes for (tree,) in model._predictors]  # scikit-learn shows these trees nowhere else
    order = [(tree, 0) for tree in range(len(trees))]
    for tree, place in order:  # which grows
        node = trees[tree][place]
        order += [] if node["is_leaf"] else [(tree, node["left"]), (tree, node["right"])]
    nodes = np.array([trees[tree][place] for tree, place in order])
    leaf = nodes["is_leaf"] > 0
    start = np.where([tree == 0 for tree, _ in order], mean, 0.0)  # from which they start
    return Trees(
        feature=np.where(leaf, 0, nodes["feature_idx"] + 1),
        threshold=np.round(nodes["num_threshold"][~leaf], DIGITS),
        value=np.round((nodes["value"] + start)[leaf], DIGITS),
    )
