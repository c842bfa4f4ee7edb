"""How many measurements the power of a bundle rests on, what to say of few, and how wide their intervals must be."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.frozen import FrozenMapping
from estimator.quantities import Array
from fitter.rows.columns import KernelRows, Selection
from fitter.rows.rejected import count_power_only
from fitter.transfer.prior_bundle import LENT_POWER_STD
from fitter.validate.predictions import PERCENT, predict_kernel_rows

FEWEST_ROWS: Final = 5
"""Fewer rows with a power show neither the coefficients nor how far these can be trusted."""


def powered_rows(selection: Selection) -> int:
    """Accepted kernels and runs that have a power."""
    powers = [rows.power_w for rows in (selection.kernels, selection.workloads) if rows is not None]
    return sum(int(np.isfinite(power).sum()) for power in powers)


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


def power_rejection_notes(selection: Selection) -> tuple[str, ...]:
    """A line with the rows whose power alone was rejected, by reason."""
    counts = count_power_only(selection.rejected)
    listed = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
    return (f"power rejected, latency used: {listed}",) if counts else ()


def widened_for_few(stated: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The stated uncertainty of the power of runs, with what so few rows leave open; that of FEWEST_ROWS and more as it is.

    One row says less than another board's coefficients (LENT_POWER_STD) do; n rows leave 1/√n of that.
    """
    if not 0 < count < FEWEST_ROWS:
        return dict(stated)
    open_std = LENT_POWER_STD / np.sqrt(count)
    return {**stated, **{name: float(np.hypot(stated[name], open_std)) for name in ("gpu", "launch") if name in stated}}


LEAST_EXPLAINED: Final = 0.7
"""An equation that errs by more than this share of what a constant errs by does not tell terms apart [1]."""

MOST_ROWS: Final = 2000
"""Of more rows every n-th is looked at."""

FEWEST_COMPARED: Final = 50
"""Fewer rows do not tell."""


def power_notes(bundle: Bundle, rows: KernelRows | None) -> tuple[str, ...]:
    """A line where the equation alone describes the kernels it was fitted to little better than a constant; else nothing."""
    if bundle.power is None or rows is None:
        return ()
    known = np.flatnonzero(np.isfinite(rows.power_w) & ~rows.at_limit)
    if len(known) < FEWEST_COMPARED:
        return ()
    part = rows.select(known[:: -(-len(known) // MOST_ROWS)])
    found = predict_kernel_rows(replace(bundle, residuals=FrozenMapping({})), part)
    told = np.isfinite(found.predicted_w)
    if told.sum() < FEWEST_COMPARED:
        return ()
    measured = found.measured_w[told]
    equation, constant = _mean_error(found.predicted_w[told], measured), _mean_error(np.full(len(measured), np.median(measured)), measured)
    if equation <= LEAST_EXPLAINED * constant:
        return ()
    return (
        f"the power equation alone errs by {equation:.1f} % on these kernels, a constant power by {constant:.1f} %: its energies and "
        "capacitances carry little and should not be quoted; more clocks, idle power and kinds of kernels would tell them",
    )


def _mean_error(predicted: Array, measured: Array) -> float:
    return float(np.abs(predicted / measured - 1.0).mean()) * PERCENT
