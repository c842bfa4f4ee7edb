"""Fit of boosted trees to the equations' errors, level by level, from sums over the rows of each node and bin of an input."""

from typing import Final

import numpy as np

from estimator.model.trees import Trees
from estimator.vocabulary.quantities import Array, IntArray

COUNT: Final = 20
RATE: Final = 0.3
DEEPEST: Final = 8
"""Trees, the share of its errors that each one takes [1], and most levels of one.  On tensor-core products of L40S and B200 left out by
weight shape, 40 trees at 0.2, or 10 levels, gain less than 0.3 of 6.7 and 5.0 % and double a bundle."""

LEAF_ROWS: Final = 16
"""Rows for each leaf of the deepest trees."""

FEWEST: Final = 5
HELD_BACK: Final = 2.0
"""Least rows of a leaf, and rows without error that each leaf seems to have beside its own."""

MOST_BINS: Final = 64
"""Most bins of an input; their edges are the thresholds that a tree may choose."""

DIGITS: Final = 3
"""Decimals of stored thresholds and values."""

NEVER: Final = 999.0
"""Threshold of a node that does not divide its rows; no input exceeds it."""


def fit_trees(inputs: Array, error: Array) -> Trees:
    """Trees for rows of these inputs (n, f) and errors (n,) [ln]."""
    edges = [_edges(column) for column in inputs.T]
    codes = np.stack([np.searchsorted(own, column) for own, column in zip(edges, inputs.T, strict=True)])
    bins = max(map(len, edges)) + 1
    table = np.stack([np.pad(own, (0, bins - len(own)), constant_values=NEVER) for own in edges])
    depth = int(np.clip(np.log2(len(error) / LEAF_ROWS), 1, DEEPEST))
    left, rows, found = error.copy(), np.arange(len(error)), []
    for _ in range(COUNT):
        node, levels = np.zeros(len(error), dtype=np.int64), []
        for level in range(depth):
            feature, place = _best_splits(codes, node, left, 1 << level, bins)
            levels.append((feature, table[feature, place]))
            node = 2 * node + (codes[feature[node], rows] > place[node])
        count, total = np.bincount(node, minlength=1 << depth), np.bincount(node, left, 1 << depth)
        value = np.asarray(np.round(RATE * total / (count + HELD_BACK), DIGITS), dtype=np.float64)
        left -= value[node]
        found.append((*map(np.concatenate, zip(*levels, strict=True)), value))
    return Trees(**{name: np.stack(column) for name, column in zip(Trees.__slots__, zip(*found, strict=True), strict=True)})


def _edges(column: Array) -> Array:
    """Thresholds between the distinct values of an input, at most MOST_BINS − 1."""
    values = np.unique(column)
    if len(values) > MOST_BINS:
        values = np.unique(np.quantile(column, np.linspace(0.0, 1.0, MOST_BINS)))
    edges: Array = np.unique(np.round((values[1:] + values[:-1]) / 2.0, DIGITS))
    return edges


def _best_splits(codes: IntArray, node: IntArray, error: Array, nodes: int, bins: int) -> tuple[IntArray, IntArray]:
    """The input and the bin after which each of the nodes divides its rows, shapes (nodes,): the largest loss of squared error."""
    best, feature, place = np.zeros(nodes), np.zeros(nodes, dtype=np.int64), np.full(nodes, bins - 1)
    for number, code in enumerate(codes):
        if not code.any():
            continue  # one value of this input
        key = node * bins + code
        total = np.bincount(key, error, nodes * bins).reshape(nodes, bins).cumsum(axis=1)
        count = np.bincount(key, minlength=nodes * bins).reshape(nodes, bins).cumsum(axis=1)
        low, few, all_rows = total[:, :-1], count[:, :-1], count[:, -1:]
        high, many = total[:, -1:] - low, all_rows - few
        gain = low**2 / (few + HELD_BACK) + high**2 / (many + HELD_BACK) - total[:, -1:] ** 2 / (all_rows + HELD_BACK)
        gain[(few < FEWEST) | (many < FEWEST)] = 0.0
        bin_after = gain.argmax(axis=1)
        most = gain.max(axis=1)
        better = most > best
        best[better], feature[better], place[better] = most[better], number, bin_after[better]
    return feature, place
