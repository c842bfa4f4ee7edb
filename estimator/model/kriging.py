"""Residuals of the equations by kriging: a weighted sum over measured kernels that resemble the requested one.

    r(q) = Σ_i w_i · k(q, i),      k = m(Δshape / 3) · exp(−(Δclock / 2)²) + (1 + [same tile area]) · m(Δshares / 0.4)

m is Matérn's covariance of order 3/2, Δshape a distance in octaves, Δclock in octaves of the SM clock, Δshares the Euclidean distance
between the phases' shares of kernel time.  Kernels with similar shares have similar errors, whatever their shape, above all with
the same tile.  The weights solve (K + 0.3² · I) w = e for the fit's own errors e = ln(measured / equations).

Scales and amplitudes are the same for all groups: a fit for each group gained nothing on simulated kernels.  Source of the method:
Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapter 2 and equation 4.17.
"""

from typing import Final

import numpy as np

from estimator.model.phases import Phases
from estimator.model.timeline import norm_parts, p_norm
from estimator.vocabulary.quantities import TINY, Array
from estimator.vocabulary.values import Columns, arrays

SHAPE_SCALE: Final = 3.0
CLOCK_SCALE: Final = 2.0
SHARE_SCALE: Final = 0.4
"""Length scales of the covariance: of the shape and the SM clock [octave], of the shares of phases [1]."""

NOISE: Final = 0.3
"""Independent error of a measured kernel, relative to each term of the covariance [1]."""

SHARES: Final = ("math", "l2", "dram", "issue", "loop", "sfu", "clocked", "fixed")
"""Parts of a kernel's time: the terms of the norm, and the serial time that the SM clock drives and does not drive."""


@arrays
class PhaseFeatures(Columns):
    """Shares of kernel time, and columns of shape (n,): log2 of the SM clock in Hz, elements of the output tile (0: none), and SHARES of
    the GPU time, shape (n, 8).
    """

    log_clock: Array
    tile_area: Array
    shares: Array


@arrays
class Kriging:
    """Measured kernels: points (n, f) of their shapes as in `estimator.model.residuals`, features, and weights (n,)."""

    points: Array
    features: PhaseFeatures
    weight: Array


def phase_features(phases: Phases, coefficients: Array, sm_clock_hz: Array, ratio: Array) -> PhaseFeatures:
    """Features of kernels at their clocks; arguments as in `kernel_seconds`, with phases of shape (n, ·)."""
    clocks, seconds, exponent, serial_clocks, serial_s = norm_parts(phases, coefficients, ratio)
    terms = clocks / sm_clock_hz[:, None] + seconds
    parts = np.column_stack([terms, serial_clocks / sm_clock_hz, serial_s])
    total = p_norm(terms, np.broadcast_to(exponent, len(terms))) + parts[:, -2] + parts[:, -1]
    return PhaseFeatures(log_clock=np.log2(sm_clock_hz), tile_area=phases.tile_area.copy(), shares=parts / np.maximum(total, TINY)[:, None])


def covariance(points: Array, features: PhaseFeatures, other_points: Array, other: PhaseFeatures) -> Array:
    """k of each kernel with each other one, shape (n, m)."""
    by_shape = _matern(_squared(points, other_points) / SHAPE_SCALE**2)
    clock = (features.log_clock[:, None] - other.log_clock[None, :]) / CLOCK_SCALE
    same = features.tile_area[:, None] == other.tile_area[None, :]
    by_share = _matern(_squared(features.shares, other.shares) / SHARE_SCALE**2)
    result: Array = by_shape * np.exp(-(clock**2)) + (1.0 + same) * by_share
    return result


def kriged(known: Kriging, points: Array, features: PhaseFeatures) -> Array:
    """ln of the factor on the equations' time of kernels, shape (q,)."""
    parts = [np.arange(first, min(first + 2000, len(points))) for first in range(0, max(len(points), 1), 2000)]  # it bounds memory
    return np.concatenate([covariance(points[part], features.select(part), known.points, known.features) @ known.weight for part in parts])


def _squared(points: Array, others: Array) -> Array:
    squared: Array = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :] - 2.0 * points @ others.T
    return np.maximum(squared, 0.0)


def _matern(squared: Array) -> Array:
    """(1 + √3 d) · exp(−√3 d) of squared distances in scales."""
    distance = np.sqrt(3.0 * squared)
    return (1.0 + distance) * np.exp(-distance)
