"""Errors of fits without a whole family, or without a whole clock.

Rows held out at random have neighbours in the fit; an unmeasured kind of kernel, a model of another family and a clock between
the measured ones have none.  These fits have no residual tiers, which do not reach so far, and use a sample of large tables, since a few
per cent of relative accuracy suffice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.model.power import BoardTables
from estimator.vocabulary.gpu import GpuSpec
from fitter.bundle.drafts import draft_from_rows
from fitter.latency.groups import NO_SIBLINGS, Siblings, fit_kernel_groups
from fitter.rows.columns import KernelRows, Selection, WorkloadRows
from fitter.rows.screening import first_known
from fitter.transfer.prior_bundle import transfer_source
from fitter.validate.predictions import ErrorRow, kind_of, predict_rows, summary_row

MOST_ROWS: Final = 900
"""Most rows of these fits; of more rows, a random sample is fitted."""

MOST_CLOCKS: Final = 3
"""Most clocks held out; of more clocks, the lowest, the middle and the highest are held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Errors on the rows of one family or clock, by a fit of all other rows; `by` is "family" or "clock", which the errors name."""

    by: str
    errors: ErrorRow


def hold_out(
    selection: Selection,
    gpu: GpuSpec,
    tables: BoardTables,
    *,
    seed: int = 0,
    prior: Bundle | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[HeldOut, ...]:
    """Every family, and up to MOST_CLOCKS clocks, held out in turn; empty if there is only one of them."""
    kernels = selection.kernels
    if kernels is not None and len(kernels) > MOST_ROWS:
        kernels = kernels.select(np.sort(np.random.default_rng(seed).choice(len(kernels), MOST_ROWS, replace=False)))
    source = None if prior is None else transfer_source(prior, gpu)
    siblings = NO_SIBLINGS if source is None else Siblings(values=source.siblings.values)
    found = []
    for rows in replace(selection, kernels=kernels).tables:
        for by, names in _divisions(rows).items():
            for name in _chosen(names, MOST_CLOCKS if by == "clock" else len(names)):
                progress(f"holding out {by} {name}")
                own = np.array([one == name for one in names], dtype=np.bool_)
                rest, runs = (rows.select(~own), None) if isinstance(rows, KernelRows) else (kernels, rows.select(~own))
                fit = None if rest is None else fit_kernel_groups(rest, gpu, seed=seed, siblings=siblings, refine=False)
                bundle = draft_from_rows(rest, runs, gpu, tables, seed, fit, source).bundle
                errors = summary_row(predict_rows(bundle, rows.select(own)), kind_of(rows))
                found.append(HeldOut(by=by, errors=replace(errors, operator=name)))
    return tuple(found)


def _divisions(rows: KernelRows | WorkloadRows) -> dict[str, list[str]]:
    """The family and the locked clock of each row; "" where the clock ran free."""
    if isinstance(rows, KernelRows):
        families, measured = [operator.family for operator in rows.row_operators()], rows.sm_clock_mhz
    else:
        families, measured = [workload.model_family for workload in rows.row_workloads()], rows.sm_clock_measured_mhz
    clock = np.round(first_known(rows.sm_clock_asked_mhz, measured))
    return {"family": families, "clock": ["" if np.isnan(value) else f"{value:g}" for value in clock.tolist()]}


def _chosen(names: Sequence[str], most: int) -> list[str]:
    """Distinct names, at most `most`, spread evenly over their order; empty if all rows have one name."""
    known = sorted(set(names) - {""}, key=lambda name: (len(name), name))
    if len(set(names)) < 2:
        return []
    return [known[i] for i in np.unique(np.linspace(0, len(known) - 1, min(most, len(known))).astype(np.int64)).tolist()]
