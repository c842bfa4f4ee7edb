"""Which of several ways to fit a section forecasts best the kernels that it has not seen."""

from typing import Final

import numpy as np

from estimator.quantities import IntArray
from estimator.workload import Operator
from fitter.kernels.section import KernelSection

TEST_SHARE: Final = 0.25
"""Share of rows on which the ways to tell a tile are compared."""

FEW_SHAPES: Final = 100
"""Of fewer shapes all are compared, part after part."""


def best_section(sections: list[KernelSection], seed: int) -> KernelSection:
    """The section that predicts kernels best that it has not seen: a random part of the shapes, at all their clocks.

    Predictions with kernel names and without count alike; a section that ignores names errs alike in both.  Of few shapes every part
    is left out in turn: a handful would decide by luck.
    """
    rows = sections[0].rows
    numbers: dict[Operator, int] = {}
    shape = np.array([numbers.setdefault(operator, len(numbers)) for operator in rows.operators])
    place = np.random.default_rng(seed).random(len(numbers))[shape]
    parts = round(1.0 / TEST_SHARE) if len(numbers) < FEW_SHAPES else 1
    errors = np.zeros(len(sections))
    for number in range(parts):
        aside = (place >= number * TEST_SHARE) & (place < (number + 1) * TEST_SHARE)
        train, test = np.flatnonzero(~aside), np.flatnonzero(aside)
        if len(train) and len(test):
            errors += [_error_both_ways(section, train, test) for section in sections]
    return sections[int(np.argmin(errors))]


def _error_both_ways(section: KernelSection, train: IntArray, test: IntArray) -> float:
    """Sum of absolute errors of the rows `test`, forecast from the rows `train`, over predictions without kernel names and with them."""
    fit = section.fit(train)
    ways = (False, section.knows_names())
    return sum(float(np.abs(np.log(section.predict(fit, test, named=way) / section.rows.latency_s[test])).sum()) for way in ways)
