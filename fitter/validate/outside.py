"""Rows outside what a bundle was fitted on: which they are, why, and how wrong its forecasts of them are.

The bounds are those at which `estimate` warns: a kernel that no fitted row was like, in kind, precision or shape, or a clock beyond the
fitted ones.  A run of a whole model is outside where one of its kernels is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.model.coefficients import group_key, longest_prefix
from estimator.uncertainty.sources import unfitted_groups
from estimator.uncertainty.unseen import unseen_precisions
from estimator.uncertainty.validity import TOLERATED_FACTOR, clock_warning, shape_excess
from estimator.vocabulary.workload import Operator
from fitter.rows.columns import KernelRows, Selection, WorkloadRows
from fitter.validate.predictions import ErrorRow, Errors, Prediction, error_rows, label_of

INSIDE: Final = ""
REASONS: Final = ("kind", "precision", "shape", "clock")
"""What of a row the fit has not seen, the gravest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideErrors:
    """Errors of the rows of one kind that lie outside; reasons: what of them the fit has not seen → rows."""

    gpu: str
    family: str
    operator: str
    precision: str
    n: int
    reasons: Mapping[str, int]
    latency: Errors | None
    power: Errors | None


def outside_reasons(bundle: Bundle, selection: Selection) -> dict[str, tuple[str, ...]]:
    """Why each row lies outside what its bundle was fitted on, INSIDE where it does not: "kernels", "workloads" → a reason for every row.

    Rows of another GPU than the bundle's are forecasts whatever their shape, and none of these.
    """
    found: dict[str, tuple[str, ...]] = {}
    kernels, runs = selection.kernels, selection.workloads
    if kernels is not None:
        own = _of_operators(bundle, kernels.operators)
        found["kernels"] = _of_rows(bundle, kernels, [own[i] for i in kernels.operator_index])
    if runs is not None:
        sets = [set(_of_operators(bundle, workload.operators)) for workload in runs.workloads]
        gravest = [next((reason for reason in REASONS if reason in own), INSIDE) for own in sets]
        found["workloads"] = _of_rows(bundle, runs, [gravest[i] for i in runs.workload_index])
    return found


def _of_operators(bundle: Bundle, operators: Sequence[Operator]) -> list[str]:
    groups = [longest_prefix(group_key(operator), bundle.groups) for operator in operators]
    unfitted = set(unfitted_groups(bundle, groups))
    reasons = []
    for operator, group, unseen in zip(operators, groups, unseen_precisions(bundle, operators, groups), strict=True):
        if group is None or group in unfitted:
            reasons.append("kind")
        elif unseen is not None:
            reasons.append("precision")
        else:
            reasons.append("shape" if shape_excess(operator, group, bundle.domain)[0] > TOLERATED_FACTOR else INSIDE)
    return reasons


def _of_rows(bundle: Bundle, rows: KernelRows | WorkloadRows, reasons: Sequence[str]) -> tuple[str, ...]:
    """The reasons with those of clocks; INSIDE for rows of another GPU."""
    clocks = rows.clock_mhz(bundle.gpu).tolist()
    outside = {clock: bool(clock_warning(bundle.clocks_mhz, clock)) for clock in set(clocks)}
    own = [rows.gpus[i] == bundle.gpu.name for i in rows.gpu_index]
    found = ((reason or ("clock" if outside[clock] else INSIDE)) for reason, clock in zip(reasons, clocks, strict=True))
    return tuple(reason if same else INSIDE for reason, same in zip(found, own, strict=True))


def outside_errors(prediction: Prediction, reasons: Sequence[str]) -> tuple[OutsideErrors, ...]:
    """Errors of rows with a forecast that lie outside, by GPU, family, operator and precision in first-seen order."""
    found = []
    beyond = np.array([reason != INSIDE for reason in reasons], dtype=np.bool_) & np.isfinite(prediction.predicted_s)
    for row in error_rows(prediction.select(beyond)):
        label = label_of(row)
        own = [reasons[i] for i in np.flatnonzero(beyond).tolist() if prediction.labels[i] == label]
        counts: dict[str, int] = {reason: own.count(reason) for reason in REASONS if reason in own}
        columns = {name: getattr(row, name) for name in ErrorRow.__slots__}
        found.append(OutsideErrors(reasons=counts, **columns))
    return tuple(found)


def outside_lines(found: Sequence[OutsideErrors]) -> list[str]:
    """What `fit check` says of rows outside the range fitted, for people."""
    if not found:
        return []
    lines = [
        f"outside the range fitted, {sum(one.n for one in found):,} rows, which say nothing about drift (error in percent: mean / bias):"
    ]
    for one in found:
        kind = " ".join(part for part in (one.gpu, one.family, one.operator, one.precision) if part)
        errors = [
            f"{name} {errors.mape:.2f} / {errors.bias:+.1f}" for name, errors in (("latency", one.latency), ("power", one.power)) if errors
        ]
        rows = f"{one.n:,} rows" if one.n > 1 else "1 row"
        lines.append(f"  {kind}  {rows} ({_reasons(one.reasons)})  {', '.join(errors) or 'nothing to compare'}")
    return lines


def outside_warnings(found: Sequence[OutsideErrors], rows: int) -> list[str]:
    """One line where rows lie outside the range fitted."""
    count = sum(one.n for one in found)
    if not count:
        return []
    total = {reason: sum(one.reasons.get(reason, 0) for one in found) for reason in REASONS}
    reasons = _reasons({reason: number for reason, number in total.items() if number})
    return [f"{count} of {rows} rows lie outside the range fitted ({reasons}); their errors are listed apart and count for no drift"]


def _reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {number}" for reason, number in reasons.items())
