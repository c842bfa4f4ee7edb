"""Intervals for kernels: how wrong predictions were for kernels that the fit had not seen.

Rows are left out fold by fold, the whole chain (equations, tiles, residual tier) is fitted to the rest, and the errors
on the fold set the scale around each shape.  Normalised by it they have quantiles that hold inside the measured shapes;
work beyond the largest is judged by forecasting the largest tenth, and the largest quarter, from the rest.
Source: split conformal prediction normalised by a local scale (Lei et al., J. Am. Stat. Assoc. 113 (2018) 1094).

Few shapes – probes of a GPU, a kind of kernel that is hardly measured – have no scale of their own around each shape, and their 90 %
quantile is mostly chance.  There |error| is taken to be exponential: on published tables its 90 % quantile is 2.0 to 2.4 times its mean,
that of an exponential 2.30, of a normal 2.06.  The mean has an inverse gamma prior of EXPECTED_ERRORS errors as large as equations are
known to leave over – on the other GPU, where there is one.  The predictive distribution is then Lomax's, and the half width that holds
90 % of it

    h = (Σ |e_i| + m · b) · (10^(1 / (n + m)) − 1)

says by itself how little n errors tell; nothing else widens it (Bernardo and Smith, Bayesian Theory (1994), appendix A: gamma-gamma).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.engine.design import EQUATION_ERROR
from estimator.model.residuals import FAR, SPREAD_NEIGHBOURS, SPREAD_OFFSET, Fading
from estimator.vocabulary.quantities import Array, IntArray
from fitter.latency.residual_tier import Forecast, ShapeErrors, neighbours

FOLDS: Final = 4

LEVEL: Final = 0.9
"""Share of kernels inside their interval."""

FEWEST_FAR: Final = 30
"""With fewer far kernels than that their quantile is 1.3 times the near one."""

FEWEST_NEAR: Final = 9
"""Fewer errors have no 90 % quantile: the largest of n lies above the next one with n / (n + 1).  Probes that were chosen to differ have
hardly a neighbour: all their errors count then, near and far."""

FEWEST_LOCAL: Final = SPREAD_NEIGHBOURS + 1
"""With fewer shapes the nearest ones are all of them, and no kernel has a scale of its own."""

EXPECTED_ERRORS: Final = 7.0
"""How many errors the expected one counts for: mean errors that fitted equations leave over differ from GPU to GPU by a factor of e^0.38
(eight kinds of kernels on two or three GPUs each, every one from its own fit: docs/accuracy.md), and so does the mean of so many
exponential errors."""

EXTRAPOLATED_SHARES: Final = (0.1, 0.25)
"""Shares of the largest kernels that are forecast from the rest."""

ROW_FAMILIES: Final = ("softmax", "norm")
LONGEST_SHARE: Final = 0.25
"""Families whose kernels change with the length of a row more than with their work, and the share of the longest rows that is forecast
from the rest as well."""

NEXT_GROWTH: Final = 1.43
"""Rehearsals are few, and what one of them errs all its kernels err: with two, and what tables have in common for a third, a normal
quantile gives way to that of Student's t with three degrees of freedom, 2.35 / 1.645 [1].  Over published tables of matrix, attention and
vector kernels the quantiles of the two shares differ by a factor of e^0.48, with no trend.  Their largest tenths would need 0.1 to 1.1
times the width so stated; without this factor 96 % of them would lie inside on average, but 78 % of the worst table's."""

FIRST_OCTAVES: Final = 0.5
"""Forecasts of work hardly beyond the largest err alike; from here on errors grow as a random walk does, with the root of the distance
[octave].  So they do in rehearsals, and an interval of one width would be too wide at the edge and too narrow far from it."""


def folds_of(shapes: ShapeErrors, seed: int) -> IntArray:
    """The fold of each row; rows of one shape share theirs."""
    fold: IntArray = np.random.default_rng(seed).integers(0, FOLDS, len(shapes.operators))[shapes.index]
    return fold


def largest_rows(shapes: ShapeErrors, share: float) -> IntArray:
    """The rows of the largest work, a share of all shapes; none where the shapes do not differ."""
    bound = np.quantile(shapes.work, 1.0 - share)
    return np.flatnonzero(shapes.work[shapes.index] > bound)


def longest_rows(shapes: ShapeErrors) -> IntArray:
    """The kernels of the longest rows, a share of all shapes; none where a family has no rows or they do not differ."""
    if shapes.operators[0].family not in ROW_FAMILIES:
        return np.zeros(0, dtype=np.int64)
    length = np.array([operator["dim"] for operator in shapes.operators])
    return np.flatnonzero(length[shapes.index] > np.quantile(length, 1.0 - LONGEST_SHARE))


def interval_quantiles(
    shapes: ShapeErrors, left_out: Forecast, largest: Sequence[Forecast], fading: Fading | None, expected: float = EQUATION_ERROR
) -> tuple[float, float, float, float]:
    """(near, far, beyond, beyond_octaves) of `estimator.model.residuals.TierErrors`.

    left_out (rows,): every row forecast without its fold; largest: for each of EXTRAPOLATED_SHARES the largest rows, and the longest
    ones, forecast from the rest, empty where there was no such test.  expected: standard deviation of what equations are known to
    leave over, before any kernel is seen [ln]; it matters where there are few shapes.
    """
    error = np.abs(left_out.errors(fading))
    mean = shapes.mean(error)
    _, index = neighbours(shapes.points, shapes.points, SPREAD_NEIGHBOURS + 1)
    sigma = SPREAD_OFFSET + mean[index[:, 1:]].mean(axis=1) if index.shape[1] > 1 else SPREAD_OFFSET + mean
    ratio = error / sigma[shapes.index]
    near_rows = left_out.distance <= FAR
    half = few_errors_half(mean, expected) if len(mean) < FEWEST_LOCAL else _quantile(error)
    if len(mean) < FEWEST_LOCAL:
        near = far = half / (SPREAD_OFFSET + float(mean.mean()))
    elif near_rows.sum() >= FEWEST_NEAR:
        near = _quantile(ratio[near_rows])
        far = _quantile(ratio[~near_rows]) if (~near_rows).sum() >= FEWEST_FAR else 1.3 * near
    else:
        near = far = _quantile(ratio)
    tested = [rows for rows in largest if len(rows.bare)]
    if not tested:
        return near, max(far, near), half, 1.0
    walked = [rows.errors(fading) / np.sqrt(np.maximum(rows.excess / FIRST_OCTAVES, 1.0)) for rows in tested]
    beyond = NEXT_GROWTH * max(_quantile(np.abs(error)) for error in walked) + _drift(walked)
    return near, max(far, near), beyond, FIRST_OCTAVES


def _drift(errors: Sequence[Array]) -> float:
    """A mean error that has one sign in all of several rehearsals, shape (·,) each: it goes on growing beyond them [ln]; else 0."""
    means = np.array([error.mean() for error in errors])
    return float(np.abs(means).max()) if len(means) > 1 and abs(np.sign(means).sum()) == len(means) else 0.0


def few_errors_half(error: Array, expected: float) -> float:
    """The half width that holds 90 % of errors to come, of which few were seen [ln].

    error: magnitudes of the errors of shapes left out, shape (n,).  expected: their standard deviation before any was seen.
    """
    count = len(error) + EXPECTED_ERRORS
    total = float(error.sum()) + EXPECTED_ERRORS * expected / np.sqrt(2.0)  # of a two-sided exponential: deviation √2 times the mean
    return float(total * ((1.0 - LEVEL) ** (-1.0 / count) - 1.0))


def _quantile(values: Array) -> float:
    """The quantile below which the next value lies with a probability of LEVEL: the (n + 1) · LEVEL-th, interpolated."""
    return float(np.quantile(values, LEVEL, method="weibull"))
