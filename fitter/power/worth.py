"""Whether the power equation says more about measured kernels than their mean would: else its coefficients are no capacitances."""

from dataclasses import replace
from typing import Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.frozen import FrozenMapping
from estimator.quantities import Array
from fitter.rows import KernelRows
from fitter.validation import PERCENT, predict_kernel_rows

LEAST_EXPLAINED: Final = 0.7
"""An equation that errs by more than this share of what a constant errs by does not tell terms apart [1]."""

MOST_ROWS: Final = 2000
"""Of more rows every n-th is looked at."""

FEWEST_ROWS: Final = 50
"""Fewer rows do not tell."""


def power_notes(bundle: Bundle, rows: KernelRows | None) -> tuple[str, ...]:
    """A line where the equation alone describes the kernels it was fitted to little better than a constant; else nothing."""
    if bundle.power is None or rows is None:
        return ()
    known = np.flatnonzero(np.isfinite(rows.power_w) & ~rows.at_limit)
    if len(known) < FEWEST_ROWS:
        return ()
    part = rows.select(known[:: -(-len(known) // MOST_ROWS)])
    found = predict_kernel_rows(replace(bundle, residuals=FrozenMapping({})), part)
    told = np.isfinite(found.predicted_w)
    if told.sum() < FEWEST_ROWS:
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
