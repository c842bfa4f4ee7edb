"""A bundle from the fit of a design table."""

from dataclasses import replace
from typing import Final

import numpy as np

from estimator.bundles.content import Bundle, Covariance, GroupCoefficients
from estimator.bundles.limits import LN_STD
from estimator.gpu import GpuSpec
from fitter.collinearity import MOST_NAMED, tied_line, tied_sets
from fitter.export import provenance_of
from fitter.instructions.section import prior_bundle
from fitter.rows import Dataset, Selection
from fitter.scale.design_fit import DesignFit
from fitter.scale.partitions import PartitionedTable

KIND: Final = "design table"


def design_bundle(fit: DesignFit, table: PartitionedTable, gpu: GpuSpec, *, name: str, version: str, seed: int) -> Bundle:
    """The bundle of a design table's fit; groups that it does not hold are at their priors, their row count is 0."""
    draft = prior_bundle(gpu)
    return replace(
        draft,
        name=name or gpu.name,
        version=version,
        provenance=provenance_of(_selection(fit, table), seed),
        groups={**draft.groups, **{group: _section(fit, group) for group in fit.groups}},
        latency_parameters=_covariance(fit),
        uncertainty={"latency": {"groups": dict(fit.std)}, "power": {}},
        errors=tuple(row.document() for row in fit.errors),
        notes=fit_notes(fit, table),
    )


def _selection(fit: DesignFit, table: PartitionedTable) -> Selection:
    """What the bundle says about its data."""
    record = Dataset(
        name=table.name, sha256=table.sha256, kind=KIND, rows=fit.rows, used=fit.used, rejected=dict(fit.rejected), metadata={}
    )
    return Selection(kernels=None, workloads=None, rejected=(), startups=(), datasets=(record,), notes=())


def fit_notes(fit: DesignFit, table: PartitionedTable) -> tuple[str, ...]:
    """Remarks on how such a fit was made, and on what it cannot hold."""
    files, parts = len(table.files), len(table.partitions())
    return (
        f"{table.name}: {fit.rows:,} rows of {files:,} files streamed in {parts:,} partitions, {fit.passes} passes",
        f"{table.name}: sha256 is that of the files' names, sizes and footers, not of all their bytes",
        "phases add (exponent 1); a design table tells no tiles, no power and no range of shapes, and has no residual tier",
        *_collinearity_notes(fit),
    )


def _collinearity_notes(fit: DesignFit) -> tuple[str, ...]:
    """Coefficients of one group that only their priors tell apart, and those that the rows drove to 0."""
    tied: list[tuple[str, ...]] = []
    zero: list[str] = []
    for group in sorted(fit.groups):
        names = [f"{group}.{name}" for name in (*fit.phases, "epsilon_s")]
        tied += tied_sets(names, fit.groups[group].covariance)
        zero += [name for name, value in zip(names, fit.groups[group].values.tolist(), strict=True) if value == 0.0]
    listed = ", ".join(zero[:MOST_NAMED]) + (f" and {len(zero) - MOST_NAMED:,} more" if len(zero) > MOST_NAMED else "")
    notes = (tied_line("latency", tied),) if tied else ()
    return (*notes, f"latency coefficients that the rows drove to zero: {listed}; what they stand for is in the others") if zero else notes


def _section(fit: DesignFit, group: str) -> GroupCoefficients:
    """One group's coefficients; what is 0 has no logarithm, and so no deviation of one, and what is all but 0 the largest."""
    coefficients = fit.group_coefficients(group)
    solution = fit.groups[group]
    spread = np.sqrt(np.diag(solution.covariance))
    names = (*fit.phases, "epsilon_s")
    ln_std, identified = {}, {}
    for i, name in enumerate(names):
        if coefficients.get(name, 0.0) > 0.0:
            ln_std[name] = min(float(spread[i] / solution.values[i]), LN_STD[1])
            identified[name] = solution.identified[i]
    return GroupCoefficients(coefficients=coefficients, ln_std=ln_std, identified=identified, rows=solution.rows)


MOST_COVARIANCES: Final = 64
"""Groups whose whole covariance a bundle keeps, largest first; the others keep standard deviations."""


def _covariance(fit: DesignFit) -> Covariance:
    """Covariance of the logarithms of the coefficients: a block for each of the largest groups."""
    chosen = sorted(sorted(fit.groups, key=lambda group: (-fit.groups[group].rows, group))[:MOST_COVARIANCES])
    names: list[str] = []
    blocks = []
    for group in chosen:
        solution = fit.groups[group]
        own = np.flatnonzero(LN_STD[1] * solution.values > np.sqrt(np.diag(solution.covariance)))
        labels = (*fit.phases, "epsilon_s")
        names += [f"{group}.{labels[i]}" for i in own.tolist()]
        values = solution.values[own]
        block = solution.covariance[np.ix_(own, own)] / np.outer(values, values)
        blocks.append((block + block.T) / 2.0)
    matrix = np.zeros((len(names), len(names)))
    start = 0
    for block in blocks:
        stop = start + len(block)
        matrix[start:stop, start:stop] = block
        start = stop
    return Covariance(names=tuple(names), covariance=tuple(tuple(row) for row in matrix.tolist()))
