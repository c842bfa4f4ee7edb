"""Errors of fits without a whole family, or without a whole clock.

Rows left out at random have neighbours in the fit; an unmeasured kind of kernel, a model of another family and a clock between
the measured ones have none.  These fits have no residual tiers, which do not reach so far, and use a sample of large tables, since a few
per cent of relative accuracy suffice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.display.pages import table_html
from estimator.model.power import BoardTables
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array
from fitter.bundle.drafts import draft_from_rows
from fitter.latency.groups import fit_kernel_groups
from fitter.rows.columns import KernelRows, Selection, WorkloadRows
from fitter.rows.screening import first_known
from fitter.transfer.prior_bundle import transfer_source
from fitter.validate.predictions import QUANTITIES, Errors, kind_of, predict_rows, summary_row

MOST_ROWS: Final = 900
"""Most rows of these fits; of more rows, a random sample is fitted."""

MOST_CLOCKS: Final = 3
"""Most clocks left out; of more clocks, the lowest, the middle and the highest are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Errors on the rows of one family or clock, by a fit of all other rows.

    kind       "kernels" or "workloads"
    by, name   what was left out: "family" and its name, "clock" and its value in MHz
    """

    kind: str
    by: str
    name: str
    n: int
    latency: Errors | None
    power: Errors | None


def leave_out(
    selection: Selection,
    gpu: GpuSpec,
    tables: BoardTables,
    *,
    seed: int = 0,
    prior: Bundle | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[LeftOut, ...]:
    """Every family, and up to MOST_CLOCKS clocks, left out in turn; empty if there is only one of them."""
    kernels = None if selection.kernels is None else _fewer_rows(selection.kernels, seed)
    source = None if prior is None else transfer_source(prior, gpu)

    found = []
    for rows in replace(selection, kernels=kernels).tables:
        for by, names in _divisions(rows).items():
            for name in _chosen(names, MOST_CLOCKS if by == "clock" else len(names)):
                progress(f"leaving out {by} {name}")
                own = np.array([one == name for one in names], dtype=np.bool_)
                rest, runs = (rows.select(~own), None) if isinstance(rows, KernelRows) else (kernels, rows.select(~own))
                sibling = None if source is None else source.values
                fit = None if rest is None else fit_kernel_groups(rest, gpu, seed=seed, sibling=sibling, refine=False)
                bundle = draft_from_rows(rest, runs, gpu, tables, seed, fit, source).bundle
                errors = summary_row(predict_rows(bundle, rows.select(own)), kind_of(rows))
                found.append(LeftOut(kind=errors.family, by=by, name=name, n=errors.n, latency=errors.latency, power=errors.power))
    return tuple(found)


def _divisions(rows: KernelRows | WorkloadRows) -> dict[str, list[str]]:
    """The family and the locked clock of each row; "" where the clock ran free."""
    if isinstance(rows, KernelRows):
        families, measured = [operator.family for operator in rows.row_operators()], rows.sm_clock_mhz
    else:
        families, measured = [workload.model_family for workload in rows.row_workloads()], rows.sm_clock_measured_mhz
    clock: Array = np.round(first_known(rows.sm_clock_asked_mhz, measured))
    return {"family": families, "clock": ["" if np.isnan(value) else f"{value:g}" for value in clock.tolist()]}


def _chosen(names: Sequence[str], most: int) -> list[str]:
    """Distinct names, at most `most`, spread evenly over their order; empty if all rows have one name."""
    known = sorted(set(names) - {""}, key=lambda name: (len(name), name))
    if len(set(names)) < 2:
        return []
    return [known[i] for i in np.unique(np.linspace(0, len(known) - 1, min(most, len(known))).astype(np.int64)).tolist()]


def _fewer_rows(rows: KernelRows, seed: int) -> KernelRows:
    if len(rows) <= MOST_ROWS:
        return rows
    return rows.select(np.sort(np.random.default_rng(seed).choice(len(rows), MOST_ROWS, replace=False)))


def left_out_html(found: Sequence[LeftOut]) -> str:
    """Both tables; "" if nothing could be left out."""
    parts, figures = "", ("mape", "median", "bias")
    for by in ("family", "clock"):
        rows: list[list[object]] = []
        for one in (one for one in found if one.by == by):
            errors = [np.nan if e is None else round(getattr(e, name), 2) for e in (one.latency, one.power) for name in figures]
            rows.append([one.kind, one.name, one.n, *errors])
        head = ("rows of", by, "rows", *(f"{quantity}, {name}" for quantity in QUANTITIES for name in ("mean", "median", "bias")))
        parts += table_html(f"A {by} left out whole: errors in percent on its rows, by a fit of all others", head, rows)
    lead = "<p>Rows left out at random have neighbours in the fit; these have none. Fits without residual tiers.</p>"
    return lead + parts if parts else ""
