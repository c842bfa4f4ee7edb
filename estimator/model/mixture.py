"""Percentiles of a nonlinear function of a normally distributed error, by a mixture of narrow normals.

A standard normal u is a mixture of normals of width NODE_STEP at NODES.  A quantity q(u) is almost linear within each of them, so q is a
mixture too: normals around q(NODES) whose widths follow the slope of q there and its other errors.
"""

import math
from typing import Final

import numpy as np

from estimator.vocabulary.quantities import NORMAL_90, Array

NODE_STEP: Final = 0.2
NODES: Final = np.arange(-20.0, 21.0) * NODE_STEP
"""Centres of the normals of width NODE_STEP that form a standard normal distribution."""

NODE_WEIGHTS: Final = np.exp(-0.5 * NODES**2 / (1.0 - NODE_STEP**2)) / np.sum(np.exp(-0.5 * NODES**2 / (1.0 - NODE_STEP**2)))
"""Weights of the normals at NODES: the mixture equals the standard normal distribution to four digits of its tail probabilities."""

TAILS: Final = np.array([[0.05], [0.95]])
"""Probabilities below the limits of a 90 % interval."""

LEAST_STD: Final = 1e-6
"""The least width of a part of the mixture, in logarithms."""

_DENSITY: Final = 1.0 / math.sqrt(2.0 * math.pi)


def mixture_limits(mean: Array, std: Array) -> Array:
    """5th and 95th percentile, shape (2, q), of quantities with values `mean` (q, nodes) at NODES and an additional error `std` (q,).

    The error is a few 1e-9 of the narrowest part's width, in addition to the error of `normal_cdf`.
    """
    change = np.gradient(mean, axis=1)  # over one step
    width = np.maximum(np.hypot(change, std[:, None]), LEAST_STD)
    lowest, highest = mean - NORMAL_90 * width, mean + NORMAL_90 * width
    low = np.array([lowest.min(axis=1), highest.min(axis=1)])
    high = np.array([lowest.max(axis=1), highest.max(axis=1)])
    middle = mean @ NODE_WEIGHTS
    scatter = NORMAL_90 * np.sqrt(((mean - middle[:, None]) ** 2 + width**2) @ NODE_WEIGHTS)
    found: Array = np.minimum(np.maximum(np.array([middle - scatter, middle + scatter]), low), high)
    # Convergence is at least quadratic: after a step of a hundredth of the narrowest part's width the next one is below 1e-4 of it.
    last, moves = 1e-2 * width.min(axis=1), np.full(found.shape, True)
    for _ in range(40):  # Halley's steps, at most twice Newton's; bisection if these leave the interval
        score = (found[..., None] - mean) / width
        below, bell = _below_and_bell(score)
        excess = below @ NODE_WEIGHTS - TAILS
        over = excess >= 0.0
        low, high = np.where(over, low, found), np.where(over, found, high)
        density = np.maximum((bell / width) @ NODE_WEIGHTS * _DENSITY, LEAST_STD)
        fall = (bell * score / width**2) @ NODE_WEIGHTS * _DENSITY  # of the density
        step = excess / density
        tried = found - step / np.maximum(1.0 + 0.5 * step * fall / density, 0.5)
        tried = np.where((tried >= low) & (tried <= high), tried, 0.5 * (low + high))
        long = moves & (np.abs(tried - found) > last)  # False for unknown quantities
        found = np.where(moves, tried, found)
        moves = long  # each quantity converges independently of the others
        if not moves.any():
            break
    return found


def _below_and_bell(score: Array) -> tuple[Array, Array]:
    """Share of a standard normal distribution below scores, to 1e-7, and exp(−score²/2).  Source: Abramowitz and Stegun, 7.1.26."""
    t = 1.0 / (1.0 + 0.3275911 / math.sqrt(2.0) * np.abs(score))
    bell = np.exp(-0.5 * score * score)
    tail = np.polyval([0.5 * a for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.0)], t) * bell
    return (score >= 0.0) - np.copysign(tail, score), bell
