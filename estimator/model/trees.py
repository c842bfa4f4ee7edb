"""Residuals of the equations by boosted trees: a sum of small steps over a kernel's sizes and the phases' shares of its time.

Libraries choose kernels by thresholds on sizes, so errors change abruptly, and together for many shapes: on tables of thousands of rows
trees err by 5 to 40 % less than neighbours.  A node asks "input > threshold?" and sends a kernel to one of two others; the leaf in which it
ends adds its value.  Method: Friedman, Greedy function approximation, Annals of Statistics 29 (2001) 1189.
"""

from itertools import combinations

import numpy as np

from estimator.model.kriging import SHARES, PhaseFeatures
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.values import arrays


@arrays
class Trees:
    """Trees as one list of n nodes: their roots, then the two children of each node that divides, in the order of these nodes.

    feature (n,): the input that a node compares, counted from 1; 0: a leaf.  threshold: of each node that divides, in their order; kernels
    above it go to the second child.  value: of each leaf, in their order [ln].
    """

    feature: IntArray
    threshold: Array
    value: Array


def tree_inputs(points: Array, features: PhaseFeatures) -> Array:
    """Inputs of kernels, shape (n, ·): log2 of their sizes, of products and ratios of two and of the product of all; phases' shares.

    points (n, f) as in `estimator.model.residuals`.  A product of sizes is what fits into a cache, or work, or a number of blocks.  Inputs
    are rounded to 0.01, which makes thresholds short: trees err no more, and a bundle holds more of them.
    """
    pairs = [points[:, i] + sign * points[:, j] for i, j in combinations(range(points.shape[1]), 2) for sign in (1.0, -1.0)]
    return np.round(np.column_stack([points, *pairs, points.sum(axis=1), features.shares]), 2)


def input_count(fields: int) -> int:
    """Number of inputs of kernels with so many sizes."""
    return fields**2 + 1 + len(SHARES)


def grown(known: Trees, inputs: Array) -> Array:
    """ln of the factor on the equations' time of kernels, shape (q,)."""
    divides = known.feature > 0
    child, threshold, value = np.arange(len(divides)), np.full(len(divides), np.inf), np.zeros(len(divides))
    roots = len(divides) - 2 * len(known.threshold)
    child[divides], threshold[divides] = roots + 2 * np.arange(len(known.threshold)), known.threshold
    value[~divides] = known.value
    rows, node = np.arange(len(inputs))[:, None], np.tile(np.arange(roots), (len(inputs), 1))
    while divides[node].any():
        node = child[node] + (inputs[rows, known.feature[node] - 1] > threshold[node])
    total: Array = value[node].sum(axis=1)
    return total
