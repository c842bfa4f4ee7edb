"""Signs that the model lacks something that the data contain."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from fitter.validation import ErrorRow, Errors

LARGEST_ERROR: Final = {"latency": 15.0, "power": 10.0}
"""Mean held-out error above which a kind of kernel is not described [percent]."""

NOTABLE_ERROR: Final = 5.0
"""Below this an error is unremarkable, whatever the others are [percent]."""

STANDS_OUT: Final = 2.5
"""A kind of kernel stands out with an error this many times the median over all kinds [1]."""

FEWEST_ROWS: Final = 5
"""Kinds of fewer held-out rows show nothing."""

FEWEST_KINDS: Final = 4
"""Fewer kinds have no common error from which one could stand out."""


def fit_warnings(rows: Sequence[ErrorRow]) -> tuple[str, ...]:
    """One line for each quantity with the kinds of kernel, or whole workloads, that the fit describes poorly on held-out rows."""
    found = []
    for quantity, limit in LARGEST_ERROR.items():
        kinds = [(row, errors) for row in rows if (errors := _of(row, quantity)) is not None and errors.n >= FEWEST_ROWS]
        usual = float(np.median([errors.mape for _, errors in kinds])) if len(kinds) >= FEWEST_KINDS else float("inf")
        poor = [(row, e) for row, e in kinds if e.mape > limit or (e.mape > NOTABLE_ERROR and e.mape > STANDS_OUT * usual)]
        poor.sort(key=lambda pair: -pair[1].mape)
        if poor:
            listed = ", ".join(_described(row, errors, usual) for row, errors in poor)
            found.append(f"{quantity} of rows left out of the fit is poorly described, the model may lack something: {listed}")
    return tuple(found)


def _described(row: ErrorRow, errors: Errors, usual: float) -> str:
    what = " ".join(part for part in (row.family, row.operator, row.precision) if part)
    compared = f", {errors.mape / usual:.1f} times the usual" if errors.mape > STANDS_OUT * usual else ""
    return f"{what} {errors.mape:.1f} % (bias {errors.bias:+.1f} %{compared})"


def _of(row: ErrorRow, quantity: str) -> Errors | None:
    return row.latency if quantity == "latency" else row.power
