"""`fit check`: comparison of a bundle with unseen data."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle
from fitter.blocks.section import block_errors
from fitter.instructions.section import instruction_errors
from fitter.report.text import selection_document
from fitter.rows.columns import KernelRows, Selection
from fitter.validate.drift import INSIDE, Drift, drift_lines, drift_warnings, drifts, outside_reasons
from fitter.validate.predictions import (
    ErrorRow,
    by_label,
    compared,
    error_rows,
    gpu_of,
    kind_of,
    predict_rows,
    summary_row,
)
from fitter.validate.tables import error_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Errors by kind of kernel, and warnings.

    `summary` holds the errors of all kernels and of all workloads together.  `drift` is the drift of the board, from rows inside the
    fitted range; `outside` holds the errors of all other rows of its GPU, with the number of rows by reason.
    """

    rows: tuple[ErrorRow, ...]
    summary: Mapping[str, ErrorRow]
    drift: tuple[Drift, ...]
    outside: tuple[tuple[ErrorRow, Mapping[str, int]], ...]
    warnings: tuple[str, ...]

    def document(self, bundle: Bundle, selection: Selection) -> dict[str, object]:
        """Output of `fit check --json`."""
        return {
            "bundle": {"name": bundle.name, "version": bundle.version, "digest": bundle.digest, "gpu": bundle.gpu.name},
            **selection_document(selection),
            "errors": [row.document() for row in self.rows],
            "summary": {kind: row.document() for kind, row in self.summary.items()},
            "drift": [one.document() for one in self.drift],
            "outside_range": [{**row.document(), "reasons": reasons} for row, reasons in self.outside],
            "warnings": list(self.warnings),
        }

    def lines(self) -> list[str]:
        """Text output of `fit check`."""
        title = "outside the range fitted, which says nothing about drift (errors in percent):"
        reasons = {row.label: _counted(reasons) for row, reasons in self.outside}
        outside = error_table(title, [row for row, _ in self.outside], reasons)
        return [*error_table("errors in percent:", [*self.rows, *self.summary.values()]), *outside, *drift_lines(self.drift)]


def check_bundle(bundle: Bundle, selection: Selection) -> Check:
    """Errors of a bundle on a selection's rows, whatever their GPU."""
    forecast = "forecast: rows of {} are predicted from its specification, the bundle was fitted on {}"
    warnings = [forecast.format(name, bundle.gpu.name) for name in selection.gpus if name != bundle.gpu.name]
    found: dict[str, pd.DataFrame] = {}
    for table in selection.tables:
        part = found[kind_of(table)] = predict_rows(bundle, table).assign(outside=outside_reasons(bundle, table))
        unserved = int(part["predicted_latency"].isna().sum())
        if unserved:
            warnings.append(f"no coefficients for {unserved} of {len(part)} kernel rows; they are not compared")
    if selection.kernels is not None:
        warnings += limit_warnings(bundle, selection.kernels, found["kernels"])
    rows = [row for part in found.values() for row in error_rows(part)]
    for more, remarks in (
        ([], ()) if selection.instructions is None else instruction_errors(bundle, selection.instructions),
        ([], ()) if selection.blocks is None else block_errors(bundle, selection.blocks),
    ):
        rows += more
        warnings += remarks
    outside = []
    for part in found.values():
        beyond = compared(part[part["outside"] != INSIDE])
        outside += [(row, Counter(own["outside"])) for row, (_, own) in zip(error_rows(beyond), by_label(beyond), strict=True)]
    if outside:
        total = sum((reasons for _, reasons in outside), Counter[str]())
        where = f"{total.total()} of {sum(map(len, found.values()))} rows lie outside the range fitted ({_counted(total)})"
        warnings.append(f"{where}; their errors are listed apart and count for no drift")
    for kind, part in found.items():
        covered = summary_row(compared(part[part["outside"] == INSIDE]), kind).coverage
        # Share of rows inside the stated 90 % intervals below which a bundle is said not to describe the data.
        if covered < 0.7:
            warnings.append(f"the stated 90 % intervals hold {covered:.0%} of the {kind}: the bundle does not describe these data")
    moved = drifts(bundle, list(found.values()))
    warnings += drift_warnings(moved)
    seen = {record.sha256 for record in bundle.provenance.datasets}
    known = [dataset.name for dataset in selection.datasets if dataset.sha256 in seen]
    warnings += [f"{name}: the bundle was fitted on this very data; its errors here say little" for name in known]
    summary = {kind: summary_row(compared(part), kind) for kind, part in found.items()}
    return Check(rows=tuple(rows), summary=summary, drift=moved, outside=tuple(outside), warnings=tuple(warnings))


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {number}" for reason, number in reasons.items())


def limit_warnings(bundle: Bundle, rows: KernelRows, found: pd.DataFrame) -> list[str]:
    """Warnings for each GPU whose limit caps the predicted power of kernels that did not reach it when measured."""
    lines = []
    for number, name in enumerate(rows.gpus):
        limit_w = gpu_of(bundle, name).power_limit_w
        count = int(np.sum((rows.gpu_index == number) & (found["predicted_power"] >= limit_w) & ~rows.at_limit))
        if count:
            lines.append(
                f"{name}: the predicted power of {count} kernel rows is bounded by the limit of {limit_w:g} W, which they did not "
                "hold when measured; a board at its limit lowers its clock, which their predicted latency leaves out"
            )
    return lines
