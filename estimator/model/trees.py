"""Residuals of the equations by boosted trees: a sum of small steps over a kernel's sizes and the phases' shares of its time.

Libraries choose kernels by thresholds on sizes, so errors change abruptly, and together for many shapes: on tables of thousands of rows
trees err by 5 to 40 % less than neighbours.  A tree asks 2^depth − 1 questions "input > threshold?", one for each node, and adds the value
of the leaf in which a kernel ends.  Method: Friedman, Greedy function approximation, Annals of Statistics 29 (2001) 1189.
"""

from itertools import combinations

import numpy as np

from estimator.model.kriging import SHARES, PhaseFeatures
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.values import Columns, arrays


@arrays
class Trees(Columns):
    """t trees of one depth: the input and threshold of each node, shapes (t, 2^depth − 1), and leaves' values (t, 2^depth) [ln].

    The nodes of a level follow one another; node i leads to 2 i + 1, or, if its input exceeds the threshold, to 2 i + 2.
    """

    feature: IntArray
    threshold: Array
    value: Array


def tree_inputs(points: Array, features: PhaseFeatures) -> Array:
    """Inputs of kernels, shape (n, ·): log2 of their sizes, of products and ratios of two and of the product of all; phases' shares.

    points (n, f) as in `estimator.model.residuals`.  A product of sizes is what fits into a cache, or work, or a number of blocks.
    """
    pairs = [points[:, i] + sign * points[:, j] for i, j in combinations(range(points.shape[1]), 2) for sign in (1.0, -1.0)]
    return np.column_stack([points, *pairs, points.sum(axis=1), features.shares])


def input_count(fields: int) -> int:
    """Number of inputs of kernels with so many sizes."""
    return fields**2 + 1 + len(SHARES)


def grown(known: Trees, inputs: Array) -> Array:
    """ln of the factor on the equations' time of kernels, shape (q,)."""
    rows, nodes, total = np.arange(len(inputs)), known.feature.shape[1], np.zeros(len(inputs))
    for feature, threshold, value in zip(known.feature, known.threshold, known.value, strict=True):
        node = np.zeros(len(inputs), dtype=np.int64)
        for _ in range(nodes.bit_length()):
            node = 2 * node + 1 + (inputs[rows, feature[node]] > threshold[node])
        total += value[node - nodes]
    return total
