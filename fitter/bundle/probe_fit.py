"""A fit of the few most informative kernels of a data set, tested on all its other kernels."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from estimator.bundle.content import Bundle
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BoolArray
from fitter.bundle.calibration import Calibration
from fitter.errors import CalibrationError
from fitter.rows.columns import Dataset, KernelRows, Selection
from fitter.rows.selection import in_own_order
from fitter.transfer.prior_bundle import transfer_source
from fitter.transfer.probes import Candidates, choose_probes
from fitter.validate.predictions import compared, error_rows, fit_warnings, predict_kernel_rows


def calibrate_probes(
    selection: Selection, gpu: GpuSpec, count: int, prior: Bundle | None, calibrate: Callable[[Selection, GpuSpec], Calibration]
) -> Calibration:
    """The calibration from `count` kernels; its held-out errors are those of all other kernels of the selection.

    Raises CalibrationError if the selection has no kernels measured alone.
    """
    if selection.kernels is None:
        raise CalibrationError("--probes chooses among kernels measured one by one, and these data hold none; leave it away")
    selection = in_own_order(selection)
    assert selection.kernels is not None
    probes = probe_rows(selection.kernels, gpu, count, prior)
    found = calibrate(replace(selection, kernels=selection.kernels.select(probes), datasets=_with_used(selection, probes)), gpu)
    others = selection.kernels.select(~probes)
    if not len(others):
        return found
    held_out = {**found.held_out, "kernels": predict_kernel_rows(found.bundle, others)}
    errors = tuple(row for rows in held_out.values() for row in error_rows(compared(rows)))
    of_probes = fit_warnings(found.errors)
    warnings = (*fit_warnings(errors), *(line for line in found.warnings if line not in of_probes))
    kept = [note for note in found.bundle.notes if note not in of_probes]
    bundle = replace(
        found.bundle,
        errors=tuple(row.document() for row in errors),
        notes=(f"fitted on {count} chosen kernels; errors are those of the other {len(others)} rows", *kept, *fit_warnings(errors)),
    )
    return replace(found, bundle=bundle, errors=errors, held_out=held_out, warnings=warnings)


def _with_used(selection: Selection, probes: BoolArray) -> tuple[Dataset, ...]:
    """The data sets with their number of used rows set to their probes."""
    rows = selection.kernels
    assert rows is not None
    left = np.bincount(rows.source_index[~probes], minlength=len(rows.sources))
    fewer = dict(zip(rows.sources, left.tolist(), strict=True))
    return tuple(replace(dataset, used=max(dataset.used - fewer.get(dataset.name, 0), 0)) for dataset in selection.datasets)


def probe_rows(rows: KernelRows, gpu: GpuSpec, count: int, prior: Bundle | None) -> BoolArray:
    """Mask of the rows of the `count` most informative kernels, at all their measured clocks, shape (n,)."""
    _, first = np.unique(rows.operator_index, return_index=True)
    one_each = rows.select(first)
    candidates = Candidates(operators=tuple(one_each.row_operators()), sm_clock_mhz=one_each.clock_mhz(gpu), warm=one_each.l2_warm)
    values = {} if prior is None else transfer_source(prior, gpu).values
    chosen = choose_probes(candidates, gpu, values, count)
    return np.isin(rows.operator_index, one_each.operator_index[chosen])
