"""Signs that the model lacks something that the data contain."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from fitter.validation import Errors, ErrorRow

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
    """One line for each kind of kernel, or quantity of whole workloads, that the fit describes poorly on held-out rows."""
    found = []
    for quantity, limit in LARGEST_ERROR.items():
        kinds = [(row, errors) for row in rows if (errors := _of(row, quantity)) is not None and errors.n >= FEWEST_ROWS]
        typical = float(np.median([errors.mape for _, errors in kinds])) if len(kinds) >= FEWEST_KINDS else float("inf")
        for row, errors in kinds:
            if errors.mape > limit or (errors.mape > NOTABLE_ERROR and errors.mape > STANDS_OUT * typical):
                what = " ".join(part for part in (row.family, row.operator, row.precision) if part)
                compared = f", {errors.mape / typical:.1f} times the usual error" if errors.mape > STANDS_OUT * typical else ""
                found.append(
                    f"{quantity} of {what} is off by {errors.mape:.1f} % on rows left out of the fit{compared} (bias {errors.bias:+.1f} %): "
                    "the model may lack what these kernels use"
                )
    return tuple(found)


def _of(row: ErrorRow, quantity: str) -> Errors | None:
    return row.latency if quantity == "latency" else row.power
