"""Percentiles of mixtures are those that plain bisection finds with the error function."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from estimator.model.mixture import LEAST_STD, NODE_STEP, NODE_WEIGHTS, NODES, mixture_limits


def bent(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Quantities over NODES that rise, fall and stand still in pieces, and what they err by beside."""
    random = np.random.default_rng(seed)
    slope, further = random.uniform(-0.3, 0.3, (2, count, 1))
    knee = random.uniform(-2.0, 2.0, (count, 1))
    mean = random.normal(0.0, 1.0, (count, 1)) + slope * np.minimum(NODES, knee) + further * np.maximum(NODES - knee, 0.0)
    return mean, random.choice([0.0, 0.0075, 0.1, 0.4], count)


def bisected(mean: np.ndarray, std: float, tail: float) -> float:
    """The place below which the share `tail` of one mixture lies."""
    width = np.maximum(np.hypot(std, NODE_STEP * np.gradient(mean, NODE_STEP)), LEAST_STD).tolist()
    low, high = float(np.min(mean)) - 40.0 * max(width), float(np.max(mean)) + 40.0 * max(width)
    for _ in range(200):
        middle = 0.5 * (low + high)
        parts = zip(NODE_WEIGHTS.tolist(), mean.tolist(), width, strict=True)
        below = sum(weight * 0.5 * math.erfc((place - middle) / (own * math.sqrt(2.0))) for weight, place, own in parts)
        low, high = (middle, high) if below < tail else (low, middle)
    return low


@pytest.mark.parametrize("seed", range(4))
def test_limits_are_those_of_plain_bisection(seed: int) -> None:
    mean, std = bent(seed, 12)
    found = mixture_limits(mean, std)
    expected = np.array([[bisected(row, own, tail) for row, own in zip(mean, std.tolist(), strict=True)] for tail in (0.05, 0.95)])
    assert_allclose(found, expected, atol=3e-6)


def test_an_unknown_error_makes_its_own_limits_unknown_and_no_others() -> None:
    mean, std = bent(3, 5)
    unknown = std.copy()
    unknown[2] = np.nan
    found, known = mixture_limits(mean, unknown), mixture_limits(mean, std)
    assert np.isnan(found[:, 2]).all()
    assert_array_equal(np.delete(found, 2, axis=1), np.delete(known, 2, axis=1))
