"""Fit of boosted trees to the equations' errors, level by level, from sums over the rows of each node and bin of an input."""

from typing import Final

import numpy as np

from estimator.model.trees import Trees
from estimator.vocabulary.quantities import Array, IntArray

COUNT: Final = 20
RATE: Final = 0.3
DEEPEST: Final = 7
"""Trees, the share of its errors that each one takes [1], and most levels of one.  Products left out by weight shape err by 7.5 % (L40S
bf16) and 3.5 % (H100 block-scaled fp8); with 8 levels, which double a bundle, by 7.4 and 3.3 %; with 10 trees at 0.5 of 8 levels by 7.7 and
3.5 %."""

LEAF_ROWS: Final = 16
"""Rows for each leaf of the deepest trees."""

FEWEST: Final = 5
HELD_BACK: Final = 2.0
"""Least rows of a leaf, and rows without error that each leaf seems to have beside its own."""

MOST_BINS: Final = 32
"""Most bins of an input; their edges are the thresholds that a tree may choose."""

DIGITS: Final = 3
"""Decimals of stored thresholds and values."""

NEVER: Final = 999.0
"""Threshold of a node that does not divide its rows; no input exceeds it."""


def fit_trees(inputs: Array, error: Array) -> Trees:
    """Trees for rows of these inputs (n, f) and errors (n,) [ln], which are far below 1."""
    edges = [_edges(column) for column in inputs.T]
    codes = np.stack([np.searchsorted(own, column) for own, column in zip(edges, inputs.T, strict=True)])
    useful = np.unique(codes, axis=0, return_index=True)[1]  # sizes that all rows share make products alike
    codes, bins = codes[useful], max(map(len, edges)) + 1
    table = np.stack([np.pad(edges[i], (0, bins - len(edges[i])), constant_values=NEVER) for i in useful])
    depth = int(np.clip(np.log2(len(error) / LEAF_ROWS), 1, DEEPEST))
    left, rows, found = error.copy(), np.arange(len(error)), []
    for _ in range(COUNT):
        node, levels = np.zeros(len(error), dtype=np.int64), []
        weight = np.tile(ROW + left, len(codes))
        for level in range(depth):
            feature, place = _best_splits(codes, node, weight, 1 << level, bins)
            levels.append((useful[feature], table[feature, place]))
            node = 2 * node + (codes[feature[node], rows] > place[node])
        count, total = np.bincount(node, minlength=1 << depth), np.bincount(node, left, 1 << depth)
        value = np.asarray(np.round(RATE * total / (count + HELD_BACK), DIGITS), dtype=np.float64)
        left -= value[node]
        found.append((*map(np.concatenate, zip(*levels, strict=True)), value))
    return Trees(**{name: np.stack(column) for name, column in zip(Trees.__slots__, zip(*found, strict=True), strict=True)})


ROW: Final = 2.0**20
"""Added to the error of each row, so that one sum holds the number of rows and the sum of their errors, to about 1e-5 for 10⁵ rows."""


def _edges(column: Array) -> Array:
    """Thresholds between the distinct values of an input, at most MOST_BINS − 1."""
    values = np.unique(column)
    if len(values) > MOST_BINS:
        values = np.unique(np.quantile(column, np.linspace(0.0, 1.0, MOST_BINS)))
    edges: Array = np.unique(np.round((values[1:] + values[:-1]) / 2.0, DIGITS))
    return edges


def _best_splits(codes: IntArray, node: IntArray, weight: Array, nodes: int, bins: int) -> tuple[IntArray, IntArray]:
    """The input and the bin after which each of the nodes divides its rows, shapes (nodes,): the largest loss of squared error.

    codes (f, n): bins of the rows; weight (f · n,): ROW + error of each.
    """
    inputs = len(codes)
    key = (node * bins + codes + (nodes * bins * np.arange(inputs))[:, None]).ravel()
    joint = np.bincount(key, weight, inputs * nodes * bins).reshape(inputs, nodes, bins).cumsum(axis=2)
    count = np.rint(joint / ROW)
    total = joint - ROW * count
    few, low, many, high = count[..., :-1], total[..., :-1], count[..., -1:] - count[..., :-1], total[..., -1:] - total[..., :-1]
    kept = low**2 / (few + HELD_BACK) + high**2 / (many + HELD_BACK)
    kept[(few < FEWEST) | (many < FEWEST)] = 0.0
    kept = kept.transpose(1, 0, 2).reshape(nodes, -1)
    best = kept.argmax(axis=1)
    better = kept.max(axis=1) > total[0, :, -1] ** 2 / (count[0, :, -1] + HELD_BACK)
    return np.where(better, best // (bins - 1), 0), np.where(better, best % (bins - 1), bins - 1)
