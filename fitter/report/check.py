"""`fit check`: a bundle against data that it has not seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from estimator.bundle.content import Bundle
from fitter.blocks.section import block_errors
from fitter.instructions.section import instruction_errors
from fitter.report.text import selection_document
from fitter.rows.columns import KernelRows, Selection
from fitter.validate.drift import Drift, drift_warnings, drifts
from fitter.validate.notes import note_documents
from fitter.validate.outside import INSIDE, OutsideErrors, outside_errors, outside_reasons, outside_warnings
from fitter.validate.predictions import (
    ErrorRow,
    Prediction,
    error_rows,
    gpu_of,
    plain,
    predict_kernel_rows,
    predict_workload_rows,
    summary_row,
)
from fitter.validate.tiers import TierErrors, kernel_tiers, tier_errors

LEAST_COVERAGE: Final = 0.7
"""Share of rows inside the stated 90 % intervals below which a bundle is said not to describe the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Errors by kind of kernel, and warnings.

    `summary` holds the errors of all kernels and of all workloads together, `tiers` those of kernels by where their
    forecast comes from.  `drift` tells how far the board moved, from rows inside what the bundle was fitted on; `outside` holds the
    errors of all others of its GPU.
    """

    rows: tuple[ErrorRow, ...]
    summary: Mapping[str, ErrorRow]
    tiers: tuple[TierErrors, ...]
    drift: tuple[Drift, ...]
    outside: tuple[OutsideErrors, ...]
    warnings: tuple[str, ...]

    def document(self, bundle: Bundle, selection: Selection) -> dict[str, Any]:
        """What `fit check --json` says."""
        return {
            "bundle": {"name": bundle.name, "version": bundle.version, "digest": bundle.digest, "gpu": bundle.gpu.name},
            **selection_document(selection),
            "errors": [row.document() for row in self.rows],
            "error_notes": note_documents(self.rows),
            "summary": {kind: row.document() for kind, row in self.summary.items()},
            "tiers": plain(self.tiers),
            "drift": [one.document() for one in self.drift],
            "outside_range": plain(self.outside),
            "warnings": list(self.warnings),
        }


def check_bundle(bundle: Bundle, selection: Selection) -> Check:
    """Errors of a bundle on a selection's rows, whatever their GPU."""
    forecast = "forecast: rows of {} are predicted from its specification, the bundle was fitted on {}"
    warnings = [forecast.format(name, bundle.gpu.name) for name in selection.gpus if name != bundle.gpu.name]
    predictions: dict[str, Prediction] = {}
    tiers: tuple[TierErrors, ...] = ()
    if selection.kernels is not None:
        kernels = predictions["kernels"] = predict_kernel_rows(bundle, selection.kernels)
        tiers = tier_errors(kernels, kernel_tiers(bundle, selection.kernels))
        unserved = int(np.isnan(kernels.predicted_s).sum())
        if unserved:
            warnings.append(f"no coefficients for {unserved} of {len(kernels)} kernel rows; they are not compared")
        warnings += limit_warnings(bundle, selection.kernels, kernels)
    if selection.workloads is not None:
        predictions["workloads"] = predict_workload_rows(bundle, selection.workloads)
    rows = [row for prediction in predictions.values() for row in error_rows(prediction)]
    for found in (
        None if selection.instructions is None else instruction_errors(bundle, selection.instructions),
        None if selection.blocks is None else block_errors(bundle, selection.blocks),
    ):
        if found is not None:
            rows += found[0]
            warnings += found[1]
    reasons = outside_reasons(bundle, selection)
    outside = tuple(one for kind, prediction in predictions.items() for one in outside_errors(prediction, reasons[kind]))
    warnings += outside_warnings(outside, sum(map(len, predictions.values())))
    warnings += _coverage_warnings(predictions, reasons)
    moved = drifts(bundle, selection, predictions, reasons)
    warnings += drift_warnings(moved)
    seen = {record.sha256 for record in bundle.provenance.datasets}
    known = [dataset.name for dataset in selection.datasets if dataset.sha256 in seen]
    warnings += [f"{name}: the bundle was fitted on this very data; its errors here say little" for name in known]
    summary = {kind: summary_row(prediction.known(), kind) for kind, prediction in predictions.items()}
    return Check(rows=tuple(rows), summary=summary, tiers=tiers, drift=moved, outside=outside, warnings=tuple(warnings))


def _coverage_warnings(predictions: Mapping[str, Prediction], reasons: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each kind of row of which too few lie inside the stated intervals; rows outside the fitted range do not count."""
    lines = []
    for kind, prediction in predictions.items():
        inside = np.array([reason == INSIDE for reason in reasons[kind]], dtype=np.bool_)
        covered = summary_row(prediction.select(inside).known(), kind).coverage
        if covered < LEAST_COVERAGE:
            lines.append(f"the stated 90 % intervals hold {covered:.0%} of the {kind}: the bundle does not describe these data")
    return lines


def limit_warnings(bundle: Bundle, rows: KernelRows, found: Prediction) -> list[str]:
    """A line for each GPU whose limit bounds the predicted power of kernels that did not hold it when they were measured."""
    lines = []
    for number, name in enumerate(rows.gpus):
        limit_w = gpu_of(bundle, name).power_limit_w
        own = (rows.gpu_index == number) & (found.predicted_w >= limit_w) & ~rows.at_limit
        if own.any():
            lines.append(
                f"{name}: the predicted power of {int(own.sum())} kernel rows is bounded by the limit of {limit_w:g} W, which they did not "
                "hold when measured; a board at its limit lowers its clock, which their predicted latency leaves out"
            )
    return lines
