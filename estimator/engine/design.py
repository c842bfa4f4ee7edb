"""Selection of the most informative measurements: a greedy I-optimal design that includes the errors of fitted equations.

The errors of ln(time) of two kernels have the covariance

    V = J diag(σ²) Jᵀ + E

J = ∂ ln t / ∂ ln θ, σ are the prior widths of the coefficients, and E is the covariance of the errors of fitted equations, which are
correlated for similar kernels.  A measurement of kernel j with error s lowers V by V_j V_jᵀ / (V_jj + s²).  Measurements are selected one
after the other; each one lowers the summed variance of all kernels most for its time.  A D-optimal design, which narrows only θ, selects
kernels at the edges, where the equations err most: on published tables it predicted the other kernels worse than a random selection.
Source: A. C. Atkinson, A. N. Donev, R. D. Tobias, Optimum Experimental Designs, with SAS (Oxford, 2007), chapters 10 and 18;
C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning (2006), equation 2.24.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from estimator.vocabulary.quantities import Array, BoolArray

EQUATION_ERROR: Final = 0.08
"""Standard deviation of the fitted equations' error from kernel to kernel [ln], from published tables."""

MEASURING_ERROR: Final = 0.02
"""Scatter of a repeated measurement [ln]."""


def error_covariance(points: Array) -> Array:
    """Covariance of the fitted equations' errors [ln²], shape (n, n): e² · exp(−d² / 2 r²) for points of shape (n, f) in octaves."""
    lengths = (points**2).sum(axis=1)
    squared = np.maximum(lengths[:, None] + lengths[None, :] - 2.0 * points @ points.T, 0.0)
    # At two octaves the correlation of two kernels' errors is e^-1/2.
    result: Array = EQUATION_ERROR**2 * np.exp(-squared / (2.0 * 2.0**2))
    return result


class Design:
    """n candidates of one section, with the covariance of their unknown errors."""

    def __init__(self, moved: Array, errors: Array) -> None:
        """moved: J · σ (n, p); errors: E (n, n) [ln²]."""
        self.covariance: Array = moved @ moved.T + errors
        self.free: BoolArray = np.ones(len(errors), dtype=np.bool_)

    @property
    def variance(self) -> float:
        """Summed variance of ln(time) of all kernels that the candidates represent [ln²]."""
        return float(np.trace(self.covariance))

    def gains(self) -> Array:
        """Decrease of the variance by a measurement of each candidate, shape (n,); −∞ for taken candidates."""
        gain = (self.covariance**2).sum(axis=0) / (MEASURING_ERROR**2 + np.diag(self.covariance))
        return np.where(self.free, gain, -np.inf)

    def take(self, place: int) -> None:
        """Note that a candidate will be measured."""
        row = self.covariance[place].copy()
        self.covariance -= np.outer(row / (MEASURING_ERROR**2 + row[place]), row)
        self.free[place] = False


def greedy_choices(designs: Sequence[Design]) -> Iterator[tuple[int, int]]:
    """(section, candidate) pairs, the most informative first, until none is left; skips candidates that were closed meanwhile.

    The caller closes candidates by setting `free` to False.
    """
    best = [design.gains() for design in designs]
    while best:
        section = int(np.argmax([gains.max() for gains in best]))
        place = int(np.argmax(best[section]))
        if not np.isfinite(best[section][place]):
            return
        designs[section].take(place)
        yield section, place
        best[section] = designs[section].gains()
