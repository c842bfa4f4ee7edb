"""Whole families, and whole clocks, left out of a fit: how well it forecasts what it has seen nothing of.

Rows left out at random have neighbours in the fit; a kind of kernel that nobody measured, a model of another family and a clock between
the measured ones have none.  These fits are without residual tiers, which say nothing so far away, and of large tables take a choice
of kernels: one figure to a few per cent of itself is what is asked.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.display.pages import table_html
from estimator.gpu import GpuSpec
from estimator.power import BoardTables
from estimator.quantities import Array, BoolArray
from fitter.bundle.drafts import draft_from_rows
from fitter.latency.groups import KernelFit, fit_kernel_groups
from fitter.report.errors import in_percent
from fitter.rows.columns import KernelRows, Selection, WorkloadRows
from fitter.transfer.prior_bundle import transfer_source
from fitter.validate.predictions import Errors, Prediction, errors_of, predict_kernel_rows, predict_workload_rows

MOST_KERNELS: Final = 300
MOST_ROWS: Final = 900
"""Of more kernels, and of more rows of these, a random choice of this many is fitted."""

MOST_CLOCKS: Final = 3
"""Of more clocks the lowest, the middle and the highest are left out."""

SAME_CLOCK_MHZ: Final = 1.0
"""Clocks are told apart in steps of this [MHz]."""


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

    def document(self) -> dict[str, Any]:
        """As plain data."""
        parts = {"latency": self.latency, "power": self.power}
        errors = {name: None if part is None else part.document() for name, part in parts.items()}
        return {"kind": self.kind, "by": self.by, "name": self.name, "n": self.n, **errors}


def leave_out(
    selection: Selection,
    gpu: GpuSpec,
    tables: BoardTables,
    *,
    seed: int = 0,
    prior: Bundle | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[LeftOut, ...]:
    """Every family, and up to MOST_CLOCKS clocks, left out in turn; nothing where there is only one of them."""
    rows = selection.kernels
    kernels = None if rows is None else _fewer_kernels(rows, seed)
    source = None if prior is None else transfer_source(prior, gpu)
    sibling = None if source is None else source.values

    def fitted(part: KernelRows) -> KernelFit:
        return fit_kernel_groups(part, gpu, seed=seed, sibling=sibling, refine=False)

    def forecast(
        rest: KernelRows | None, runs: WorkloadRows | None, known: KernelFit | None, test: KernelRows | WorkloadRows
    ) -> Prediction:
        bundle = draft_from_rows(rest, runs, gpu, tables, seed, known, source).bundle
        return predict_kernel_rows(bundle, test) if isinstance(test, KernelRows) else predict_workload_rows(bundle, test)

    found = []
    whole = None
    if kernels is not None:
        progress("leaving out families and clocks: all kernels")
        whole = fitted(kernels)
        families = [operator.family for operator in kernels.row_operators()]
        for name, own in _each(families):
            progress(f"leaving out {name} kernels")
            known = _without_family(whole, name)
            found.append(_errors("kernels", "family", name, forecast(kernels.select(~own), None, known, kernels.select(own))))
        for name, own in _each(_clock_names(kernels.sm_clock_asked_mhz, kernels.sm_clock_mhz), MOST_CLOCKS):
            progress(f"leaving out kernels at {name} MHz")
            rest = kernels.select(~own)
            found.append(_errors("kernels", "clock", name, forecast(rest, None, fitted(rest), kernels.select(own))))
    runs = selection.workloads
    if runs is not None:
        models = [workload.model_family for workload in runs.row_workloads()]
        clocks = _clock_names(runs.sm_clock_asked_mhz, runs.sm_clock_measured_mhz)
        for by, names, most in (("family", models, len(models)), ("clock", clocks, MOST_CLOCKS)):
            for name, own in _each(names, most):
                progress(f"leaving out workloads of {by} {name}")
                found.append(_errors("workloads", by, name, forecast(kernels, runs.select(~own), whole, runs.select(own))))
    return tuple(found)


def left_out_html(found: Sequence[LeftOut]) -> str:
    """Both tables; "" where nothing could be left out."""
    parts = ""
    for by, what in (("family", "A family left out whole"), ("clock", "A clock left out whole")):
        rows = [[one.kind, one.name, one.n, *_figures(one.latency), *_figures(one.power)] for one in found if one.by == by]
        head = (
            "rows of",
            by if by == "family" else "SM clock [MHz]",
            "rows",
            *(f"{q}, {f}" for q in ("latency", "power") for f in FIGURES),
        )
        parts += table_html(f"{what}: errors in percent on its rows, by a fit of all others", head, rows) if rows else ""
    lead = "<p>Rows left out at random have neighbours in the fit; these have none. Fits without residual tiers.</p>"
    return lead + parts if parts else ""


FIGURES: Final = ("mean", "median", "bias")


def _figures(errors: Errors | None) -> list[float]:
    return [float("nan")] * len(FIGURES) if errors is None else [*map(in_percent, (errors.mape, errors.median, errors.bias))]


def _errors(kind: str, by: str, name: str, prediction: Prediction) -> LeftOut:
    return LeftOut(
        kind=kind,
        by=by,
        name=name,
        n=len(prediction),
        latency=errors_of(prediction.measured_s, prediction.predicted_s, prediction.latency_ln_std),
        power=errors_of(prediction.measured_w, prediction.predicted_w, prediction.power_ln_std),
    )


def _each(names: Sequence[str], most: int = 10**6) -> Iterator[tuple[str, BoolArray]]:
    """Every name with its rows; of more than `most` names these, spread over their order; none where all rows have one name."""
    column = np.array(names, dtype=np.str_)
    known = sorted({name for name in names if name}, key=lambda name: (len(name), name))
    if len(set(names)) < 2:
        return
    if len(known) > most:
        known = [known[i] for i in np.unique(np.linspace(0, len(known) - 1, most).astype(np.int64)).tolist()]
    for name in known:
        yield name, column == name


def _clock_names(asked_mhz: Array, measured_mhz: Array) -> list[str]:
    """The locked clock of each row [MHz]; "" where it ran free."""
    clock = np.where(np.isfinite(asked_mhz), asked_mhz, measured_mhz)
    rounded = np.round(clock / SAME_CLOCK_MHZ) * SAME_CLOCK_MHZ
    return ["" if np.isnan(value) else f"{value:g}" for value in rounded.tolist()]


def _fewer_kernels(rows: KernelRows, seed: int) -> KernelRows:
    """At most MOST_ROWS rows of at most MOST_KERNELS kernels."""
    random = np.random.default_rng(seed)
    used = np.unique(rows.operator_index)
    if len(used) > MOST_KERNELS:
        rows = rows.select(np.isin(rows.operator_index, random.choice(used, MOST_KERNELS, replace=False)))
    return rows if len(rows) <= MOST_ROWS else rows.select(np.sort(random.choice(len(rows), MOST_ROWS, replace=False)))


def _without_family(fit: KernelFit, family: str) -> KernelFit:
    """The fit without the groups of one family; what families share, floor and knee of L2, stays."""

    def others(group: str) -> bool:
        return group.partition(".")[0] != family

    return replace(
        fit,
        groups={group: one for group, one in fit.groups.items() if others(group)},
        tile_predictors={group: one for group, one in fit.tile_predictors.items() if others(group)},
        group_std={group: one for group, one in fit.group_std.items() if others(group)},
    )
