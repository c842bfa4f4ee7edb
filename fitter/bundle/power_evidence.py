"""How many measurements the power of a bundle rests on, what to say of few, and how wide their intervals must be."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from estimator.bundle.content import Bundle
from fitter.rows.columns import Selection
from fitter.transfer.prior_bundle import LENT_POWER_STD

FEWEST_ROWS: Final = 5
"""Fewer rows with a power show neither the coefficients nor how far these can be trusted."""


def powered_rows(selection: Selection) -> int:
    """Accepted kernels and runs that have a power."""
    return sum(int(np.isfinite(rows.power_w).sum()) for rows in selection.tables)


def few_power_warnings(selection: Selection, bundle: Bundle, *, lent: bool) -> tuple[str, ...]:
    """A line where runs were fitted without any energy, or power was fitted to very few rows; lent: another bundle gave its power.

    Kernel tables of latencies alone are usual and are no cause for a warning.
    """
    count = powered_rows(selection)
    if lent or count >= FEWEST_ROWS:
        return ()
    if count and bundle.power is not None:
        said = "rows: its intervals are wide" if count > 1 else "row: how uncertain it is nothing tells"
        return (f"power rests on {count} {said}; measure the energy of more",)
    return ("no row has an energy: the bundle has no power",) if selection.workloads is not None and bundle.power is None else ()


def widened_for_few(stated: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The stated uncertainty of the power of runs, with what so few rows leave open; that of FEWEST_ROWS and more as it is.

    One row says less than another board's coefficients (LENT_POWER_STD) do; n rows leave 1/√n of that.
    """
    if not 0 < count < FEWEST_ROWS:
        return dict(stated)
    open_std = LENT_POWER_STD / np.sqrt(count)
    return {**stated, **{name: float(np.hypot(stated[name], open_std)) for name in ("gpu", "launch") if name in stated}}
