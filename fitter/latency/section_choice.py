"""Which of several ways to fit a section forecasts best the kernels that it has not seen."""

from typing import Final

import numpy as np

from estimator.quantities import Array, IntArray
from estimator.workload import Operator
from fitter.latency.section import KernelSection, Tiles

TELLING: Final = 2.0
"""Another way must forecast better by so many standard errors of the difference before a steadier one is given up: by one, a tie between
two ways was still decided by the split in a third of the fits of 70 simulated convolutions."""

TEST_SHARE: Final = 0.25
"""Share of rows on which the ways to tell a tile are compared."""

FEW_SHAPES: Final = 100
"""Of fewer shapes all are compared, part after part."""

STEADIEST: Final[tuple[Tiles, ...]] = ("chosen", "matched", "named", "free", "none")
"""Ways to tell a tile, the one first that is taken where errors do not tell them apart.  Ways that learn from kernel names forecast a
kernel whose name is known with its own tile, which "free" cannot; among them a choice by time and liking changes little with a kernel
more or less, and a decision tree, which parts few kernels into leaves, most."""


def best_section(sections: list[KernelSection], seed: int) -> KernelSection:
    """The section that predicts kernels best that it has not seen: a random part of the shapes, at all their clocks.

    Predictions with kernel names and without count alike; a section that ignores names errs alike in both.  Of few shapes every part
    is left out in turn: a handful would decide by luck.  Sections that the errors cannot tell from the best one are ranked by
    STEADIEST, so that the split, or one kernel more, does not decide.
    """
    rows = sections[0].rows
    numbers: dict[Operator, int] = {}
    shape = np.array([numbers.setdefault(operator, len(numbers)) for operator in rows.operators])
    place = np.random.default_rng(seed).random(len(numbers))[shape]
    parts = round(1.0 / TEST_SHARE) if len(numbers) < FEW_SHAPES else 1
    errors = np.full((len(sections), len(rows)), np.nan)
    for number in range(parts):
        aside = (place >= number * TEST_SHARE) & (place < (number + 1) * TEST_SHARE)
        train, test = np.flatnonzero(~aside), np.flatnonzero(aside)
        if len(train) and len(test):
            errors[:, test] = [_error_both_ways(section, train, test) for section in sections]
    tested = np.isfinite(errors[0])
    counts = np.bincount(shape[tested], minlength=len(numbers))
    sums = np.array([np.bincount(shape[tested], row[tested], len(numbers)) for row in errors])
    return sections[steadiest(sums[:, counts > 0], [section.tiles for section in sections])]


def steadiest(errors: Array, ways: list[Tiles]) -> int:
    """The way to take: of those within TELLING standard errors of the best, the first of STEADIEST, and of equal ones the best.

    errors (ways, shapes): summed errors of each shape; of none, all ways are alike.  The standard error is that of the difference to the
    best way, shape by shape, since what is hard to forecast is hard in every way (after the one-standard-error rule of Hastie, Tibshirani
    and Friedman, The Elements of Statistical Learning (2009), 7.10).
    """
    total = errors.sum(axis=1)
    lead = errors - errors[int(np.argmin(total))]
    middle = lead.sum(axis=1, keepdims=True) / max(errors.shape[1], 1)
    spread = np.sqrt(((lead - middle) ** 2).sum(axis=1))
    near = np.flatnonzero(lead.sum(axis=1) <= TELLING * spread)
    return min(near.tolist(), key=lambda i: (STEADIEST.index(ways[i]), total[i]))


def _error_both_ways(section: KernelSection, train: IntArray, test: IntArray) -> Array:
    """Absolute errors of the rows `test`, forecast from the rows `train`, added over predictions without kernel names and with them."""
    fit = section.fit(train)
    ways = (False, section.knows_names())
    measured = section.rows.latency_s[test]
    result: Array = np.sum([np.abs(np.log(section.predict(fit, test, named=way) / measured)) for way in ways], axis=0)
    return result
