"""Intervals for kernels, from prediction errors on held-out kernels.

Rows are left out fold by fold, the whole chain (equations, tiles, residual tier) is fitted to the rest, and the errors
on the fold set the scale around each shape.  Quantiles of the normalised errors hold inside the measured shapes.  Errors
for larger work come from forecasts of the largest quarter from the rest.
Source: split conformal prediction normalised by a local scale (Lei et al., J. Am. Stat. Assoc. 113 (2018) 1094).

Few shapes (probes of a GPU, a rarely measured kind of kernel) have no scale around each shape, and their 90 % quantile is mostly chance.
For them |error| is assumed exponential: on published tables its 90 % quantile is 2.0 to 2.4 times its mean; it is 2.30 times for an
exponential and 2.06 for a normal distribution.  The mean has an inverse gamma prior with the weight of EXPECTED_ERRORS errors and the size
of the known residuals of the equations (those of the other GPU in a transfer).  The predictive distribution is then Lomax's, and the half
width that holds 90 % of it

    h = (Σ |e_i| + m · b) · (10^(1 / (n + m)) − 1)

already contains the uncertainty of few errors (Bernardo and Smith, Bayesian Theory (1994), appendix A: gamma-gamma).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.model.residuals import BEYOND_OCTAVES, FAR, SPREAD_NEIGHBOURS, SPREAD_OFFSET
from estimator.vocabulary.quantities import Array, IntArray
from fitter.latency.residual_tier import Forecast, ShapeErrors, neighbours
from fitter.priors import EQUATION_ERROR
from fitter.rows.screening import numbered

FOLDS: Final = 4
FOLDS_OF_MANY: Final = 2
"""Folds of the shapes, each predicted from the others, and how many of them tell enough errors of thousands of rows."""

SITES: Final = {
    "gemm": ("n", "k"),
    "attention": ("heads", "kv_heads"),
    "mla": ("heads",),
    "moe": ("hidden", "inter", "topk", "experts"),
    "quantise": ("dim",),
}
"""Fields that one layer of a model has in common.  Kernels with the same values are left out together, since a model that is asked for
mostly has others, however few layers there are: 90 % intervals of a table of decodes held 81 % of unseen heads with folds of shapes."""

LEVEL: Final = 0.9
"""Share of kernels inside their interval."""

FEWEST_FAR: Final = 30
"""With fewer far kernels the far quantile is 1.3 times the near one."""

FEWEST_NEAR: Final = 9
"""Fewer errors have no 90 % quantile: the largest of n lies above the next one with probability n / (n + 1).  Probes are chosen to differ
and have few neighbours, so all their errors count, near and far."""

FEWEST_LOCAL: Final = SPREAD_NEIGHBOURS + 1
"""With fewer shapes the nearest shapes are all shapes, and no kernel has a local scale."""

EXPECTED_ERRORS: Final = 7.0
"""Weight of the expected error, as a number of errors.  Mean residuals of fitted equations differ from GPU to GPU by a factor of e^0.38
(eight kinds of kernels on two or three GPUs each, each from its own fit), as the mean of 7 exponential errors does."""

EXTRAPOLATED_SHARE: Final = 0.25
"""Share of the largest kernels that is forecast from the rest.  Largest tenths of 87 published tables, left out of their fits, then lie
inside their intervals by 93 % on average; those of conversions to fp8 on three boards by 35 to 70 %."""

ROW_FAMILIES: Final = ("softmax", "norm")
LONGEST_SHARE: Final = 0.25
"""Share of the longest rows that is also forecast from the rest, for families whose time depends more on the row length than on work."""


def folds_of(shapes: ShapeErrors, seed: int) -> IntArray:
    """The fold of each row; rows of one layer share theirs, or rows of one shape where no layer or only one is known."""
    fields = SITES.get(shapes.operators[0].family, ())
    _, place = numbered(tuple(operator[name] for name in fields) for operator in shapes.operators)
    if place.max() == 0:
        place = np.arange(len(shapes.operators))
    return (np.random.default_rng(seed).permutation(place.max() + 1) % FOLDS)[place][shapes.index]


def largest_rows(shapes: ShapeErrors) -> IntArray:
    """The rows of the largest work, EXTRAPOLATED_SHARE of all shapes; empty if all shapes have equal work."""
    bound = np.quantile(shapes.work, 1.0 - EXTRAPOLATED_SHARE)
    return np.flatnonzero(shapes.work[shapes.index] > bound)


def longest_rows(shapes: ShapeErrors) -> IntArray:
    """The kernels of the longest rows, a share of all shapes; empty if a family has no rows or all have equal length."""
    if shapes.operators[0].family not in ROW_FAMILIES:
        return np.zeros(0, dtype=np.int64)
    length = np.array([operator["dim"] for operator in shapes.operators])
    return np.flatnonzero(length[shapes.index] > np.quantile(length, 1.0 - LONGEST_SHARE))


def interval_quantiles(
    shapes: ShapeErrors, left_out: Forecast, largest: Sequence[Forecast], corrected: bool, expected: float = EQUATION_ERROR
) -> tuple[float, float, float]:
    """(near, far, beyond) of `estimator.model.residuals.TierErrors`.

    left_out (rows,): every row forecast without its fold; largest: the largest rows, and the longest ones, forecast from the rest,
    empty without such a test.  expected: prior standard deviation of the residuals of the equations [ln];
    it matters if there are few shapes.
    """
    error = np.abs(left_out.errors(corrected))
    mean = shapes.mean(error)
    _, index = neighbours(shapes.points, shapes.points, SPREAD_NEIGHBOURS + 1)
    sigma = SPREAD_OFFSET + (mean[index[:, 1:]].mean(axis=1) if index.shape[1] > 1 else mean)
    ratio = error / sigma[shapes.index]
    near_rows = left_out.distance <= FAR
    half = _quantile(error)
    if len(mean) < FEWEST_LOCAL:
        half = few_errors_half(mean, expected)
        near = far = half / (SPREAD_OFFSET + float(mean.mean()))
    elif near_rows.sum() >= FEWEST_NEAR:
        near = _quantile(ratio[near_rows])
        far = _quantile(ratio[~near_rows]) if (~near_rows).sum() >= FEWEST_FAR else 1.3 * near
    else:
        near = far = _quantile(ratio)
    walked = [rows.errors(corrected) / np.sqrt(np.maximum(rows.excess / BEYOND_OCTAVES, 1.0)) for rows in largest if len(rows.bare)]
    return near, max(far, near), max((_quantile(np.abs(error)) for error in walked), default=half)


def few_errors_half(error: Array, expected: float) -> float:
    """The half width that holds 90 % of future errors, from few observed errors [ln].

    error: magnitudes of the errors of left-out shapes, shape (n,).  expected: prior of their standard deviation.
    """
    count = len(error) + EXPECTED_ERRORS
    total = float(error.sum()) + EXPECTED_ERRORS * expected / np.sqrt(2.0)  # of a two-sided exponential: deviation √2 times the mean
    return float(total * ((1.0 - LEVEL) ** (-1.0 / count) - 1.0))


def _quantile(values: Array) -> float:
    """The quantile below which the next value lies with a probability of LEVEL: the (n + 1) · LEVEL-th, interpolated."""
    return float(np.quantile(values, LEVEL, method="weibull"))
