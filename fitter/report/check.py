"""`fit check`: comparison of a bundle with unseen data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle, HeldOut
from estimator.uncertainty.laboratory import is_known
from estimator.vocabulary.values import frozen
from fitter.blocks.section import predict_blocks
from fitter.instructions.section import predict_instructions
from fitter.release.versions import identity
from fitter.report.page import selection_document
from fitter.report.verdict import error_table
from fitter.rows.columns import Selection, sensor_gain_std
from fitter.validate.drift import Drift, drift_lines, drifts, outside_range
from fitter.validate.predictions import compared, error_rows, kind_of, predict_rows, summary_row

LEAST_COVERAGE: Final = 0.7
"""Least share of rows inside the stated 90 % intervals for which a bundle describes the data [1]."""


@frozen
class CollectionCheck:
    """Rows of one collection: the laboratory for which their intervals are stated, and the share of them inside (None: none stated)."""

    name: str
    rows: int
    laboratory: Literal["this", "another"]
    coverage: float | None

    def text(self) -> str:
        """For people."""
        which = "this laboratory (named in the bundle)" if self.laboratory == "this" else "another laboratory (not in the bundle)"
        held = "none is stated" if self.coverage is None else f"which hold {self.coverage:.0%}"
        return f"collection {self.name}: {self.rows} rows, 90 % intervals for {which}, {held}"


def _collection_checks(bundle: Bundle, found: Iterable[pd.DataFrame], known: Sequence[str]) -> tuple[CollectionCheck, ...]:
    """The checks by collection; known: names of data sets that are in the bundle, whatever it calls their laboratory."""
    rows = pd.concat([compared(part) for part in found], ignore_index=True)
    return tuple(
        CollectionCheck(
            name=str(name),
            rows=len(own),
            laboratory="this" if name in known or is_known(bundle, str(name)) else "another",
            coverage=summary_row(own, "all")["coverage"],
        )
        for name, own in rows.groupby("collection", sort=False)
    )


@frozen
class Check:
    """Errors by kind of kernel, and warnings.

    `summary` holds the errors of all rows of a kind ("kernels", "workloads", "instructions", "blocks").  `drift` is the drift of the board,
    from rows inside the fitted range; `outside` holds the errors of all other rows of its GPU.  `collections`: interval and coverage by
    collection.
    `refuted`: the board drifted, or too few rows lie inside the stated intervals.
    """

    rows: tuple[HeldOut, ...]
    summary: Mapping[str, HeldOut]
    drift: tuple[Drift, ...]
    collections: tuple[CollectionCheck, ...]
    outside: tuple[HeldOut, ...]
    warnings: tuple[str, ...]
    refuted: bool

    def document(self, bundle: Bundle, selection: Selection) -> dict[str, object]:
        """Output of `fit check --json`."""
        return {
            "bundle": identity(bundle),
            **selection_document(selection),
            "errors": self.rows,
            "summary": dict(self.summary),
            "drift": [one.document() for one in self.drift],
            "collections": self.collections,
            "outside_range": self.outside,
            "warnings": self.warnings,
        }

    def lines(self) -> list[str]:
        """Text output of `fit check`."""
        inside = error_table("errors in percent:", [*self.rows, *self.summary.values()])
        outside = error_table("outside the range fitted, which says nothing about drift (errors in percent):", self.outside)
        return [*inside.lines(), *outside.lines(), *drift_lines(self.drift), *(one.text() for one in self.collections)]


def check_bundle(bundle: Bundle, selection: Selection) -> Check:
    """Errors of a bundle on a selection's rows, whatever their GPU."""
    forecast = "forecast: rows of {} are predicted from its specification, the bundle was fitted on {}"
    warnings = [forecast.format(name, bundle.gpu.name) for name in selection.rows_by_gpu if name != bundle.gpu.name]
    if selection.tables and not bundle.collections:
        warnings.append(f"bundle {bundle.name} names no collection: all rows count as another laboratory's")
    found: dict[str, pd.DataFrame] = {}
    for table in selection.tables:
        part = found[kind_of(table)] = predict_rows(bundle, table).assign(outside=outside_range(bundle, table))
        unserved = int(part["predicted_latency"].isna().sum())
        if unserved:
            warnings.append(f"no coefficients for {unserved} of {len(part)} kernel rows; they are not compared")
    # A meter on one side alone: the gain that it measured tells the other side's only as boards differ.
    gain_std, judged = abs(selection.gain_std - sensor_gain_std(bundle.sensor)), dict(found)
    for kind, predicted in (("instructions", predict_instructions), ("blocks", predict_blocks)):
        if (table := getattr(selection, kind)) is not None:
            part, remarks = predicted(bundle, table)
            judged[kind] = part.assign(outside=False, std_power=np.hypot(part["std_power"], gain_std))
            warnings += remarks
    beyond = sum(int(part["outside"].sum()) for part in found.values())
    if beyond:
        where = f"{beyond} of {sum(map(len, found.values()))} rows lie outside the range fitted"
        warnings.append(f"{where} (kind, precision, shape or clock); their errors are listed apart and count for no drift")
    uncovered = False
    for kind, part in judged.items():
        covered = summary_row(compared(part[~part["outside"]]), kind)["coverage"]
        if covered is not None and covered < LEAST_COVERAGE:
            uncovered = True
            warnings.append(f"the stated 90 % intervals hold {covered:.0%} of the {kind}: the bundle does not describe these data")
    moved = drifts(bundle, list(found.values()), gain_std)
    drifted = ", ".join(one.text() for one in moved if one.drifted)
    warnings += [f"drift: {drifted}; the board, its cooling or its sensor changed: measure again, or fit anew"] if drifted else []
    seen = {record.sha256 for record in bundle.provenance.datasets}
    known = [dataset.name for dataset in selection.datasets if dataset.sha256 in seen]
    warnings += [f"{name}: the bundle was fitted on this very data; its errors here say little" for name in known]
    return Check(
        rows=tuple(row for part in judged.values() for row in error_rows(part)),
        summary={kind: summary_row(compared(part), kind) for kind, part in judged.items() if len(part)},
        drift=moved,
        collections=_collection_checks(bundle, found.values(), known) if found else (),
        outside=tuple(row for part in found.values() for row in error_rows(compared(part[part["outside"]]))),
        warnings=tuple(warnings),
        refuted=uncovered or bool(drifted),
    )
