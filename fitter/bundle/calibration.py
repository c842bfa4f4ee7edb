"""Calibration: a selection of rows → a bundle, and what it is worth on rows left out of its fit.

Rows are split into folds by kernel and by workload; each fold is predicted by a fit of the others, which gives the
held-out errors and the stated uncertainty.  The bundle's coefficients then come from all rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.engine.design import EQUATION_ERROR
from estimator.model.coefficients import group_key, longest_prefix
from estimator.model.power import BoardTables
from estimator.uncertainty.sources import ENOUGH_FAMILIES
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90, Array, BoolArray
from fitter.blocks.section import block_section
from fitter.bundle.drafts import Draft, draft_from_rows, prior_bundle
from fitter.bundle.export import (
    BoardKnowledge,
    board_knowledge,
    board_uuid,
    clock_range_mhz,
    completion_of,
    default_name,
    domain_of,
    environment_of,
    provenance_of,
    sensor_of,
)
from fitter.bundle.power_evidence import few_power_warnings, powered_rows, widened_for_few
from fitter.bundle.runs import stated_uncertainty
from fitter.bundle.sections import idle_section, voltage_section, with_gain_std
from fitter.errors import CalibrationError
from fitter.instructions.section import instruction_notes, instruction_section
from fitter.latency.intervals import FEWEST_LOCAL, few_errors_half
from fitter.latency.residual_tier import FEWEST_POINTS
from fitter.rows.columns import Selection, with_rejected
from fitter.rows.selection import in_own_order
from fitter.transfer.prior_bundle import LENT_POWER_STD, TransferSource, transfer_notes, transfer_source, with_strengths
from fitter.validate.notes import fit_warnings, held_out_notes
from fitter.validate.predictions import (
    ErrorRow,
    Prediction,
    error_rows,
    filled_prediction,
    grouped_folds,
    label_of,
    predict_kernel_rows,
    predict_workload_rows,
    served_groups,
    summary_row,
)

GROUP_PRIOR: Final = {"latency": 0.08, "power": 0.06}
"""Error of a group of kernels expected before any is seen [relative]."""

PRIOR_KERNELS: Final = 5.0
"""Kernels that this prior counts for."""

MOST_FOLD_ROWS: Final = 3000
"""Larger tables have one fold left out, not every fold in turn: it shows enough, and fits take seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A bundle ready to be saved, its held-out errors, the predictions behind them, and warnings for the user.

    `selection` is what was fitted, with the rows that the fit itself rejected among the rejected ones.
    """

    bundle: Bundle
    selection: Selection
    errors: tuple[ErrorRow, ...]
    held_out: Mapping[str, Prediction]
    warnings: tuple[str, ...]

    def summary(self) -> dict[str, ErrorRow]:
        """Errors of all kernels and of all workloads that were left out of the fit."""
        return {kind: summary_row(prediction.known(), kind) for kind, prediction in self.held_out.items()}


def calibrate(
    selection: Selection,
    gpu: GpuSpec,
    *,
    name: str = "",
    version: str = "0.1.0",
    seed: int = 0,
    holdout: float = 0.2,
    prior: Bundle | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Fit all rows of a selection, which must be of one GPU.

    holdout: share of the kernels and of the workloads in each fold; 0 leaves errors and uncertainty unstated.
    prior: a bundle of another GPU, or an older one of this, from which the fit starts.
    Raises CalibrationError where there is nothing to fit.
    """
    selection = in_own_order(selection)
    only_sections = selection.kernels is None and selection.workloads is None
    if only_sections and selection.instructions is None and selection.blocks is None:
        raise CalibrationError("no rows to fit")
    energies, remarks = instruction_section(selection, gpu)
    blocks, unfit = block_section(selection, gpu)
    selection = replace(selection, notes=(*selection.notes, *instruction_notes(selection, gpu)))
    board = board_knowledge(selection, gpu)
    source = None if prior is None else transfer_source(prior, gpu)
    if source is not None and selection.kernels is not None:
        progress("weighing the prior bundle")
        source = with_strengths(source, selection.kernels, gpu, seed)
    progress("fitting all rows")
    if only_sections:
        found = Draft(bundle=prior_bundle(gpu), kernel_fit=None)
    else:
        found = draft_from_rows(selection.kernels, selection.workloads, gpu, board.tables, seed, source=source)
    held_out = _held_out(selection, gpu, board.tables, found, seed, holdout, progress, source)
    selection = with_rejected(selection, found.rejected)
    progress("stating uncertainty")
    bundle = replace(
        _with_origin(found.bundle, selection, board, seed),
        name=name or default_name(selection, gpu),
        version=version,
        instruction_energies=energies,
        block_models=blocks,
        uncertainty=_uncertainty(selection, gpu, board.tables, held_out, found, seed, source),
    )
    held_out = {kind: _with_stated(kind, prediction, bundle, selection) for kind, prediction in held_out.items()}
    errors = tuple(row for prediction in held_out.values() for row in error_rows(prediction.known()))
    alone = held_out_notes(selection, held_out)  # a kind of a single kernel is forecast from others: that shows nothing about the model
    few = () if only_sections else few_power_warnings(selection, bundle, lent=source is not None)
    warnings = (*fit_warnings([row for row in errors if label_of(row) not in alone]), *few, *remarks, *unfit)
    documents = tuple(row.document() for row in errors)
    notes = (*transfer_notes(source, found.bundle), *_prior_notes(bundle, source))
    return Calibration(
        bundle=replace(bundle, errors=documents, notes=(*notes, *selection.notes, *warnings)),
        selection=selection,
        errors=errors,
        held_out=held_out,
        warnings=warnings,
    )


def _with_origin(draft: Bundle, selection: Selection, board: BoardKnowledge, seed: int) -> Bundle:
    """A draft with what the data sets say beside their rows: board, sensor, surroundings, ranges."""
    return replace(
        draft,
        gpu_uuid=board_uuid(selection),
        environment=environment_of(selection),
        sensor=sensor_of(selection),
        completion=completion_of(selection),
        power=None if draft.power is None else with_gain_std(draft.power, selection.gain_std),
        provenance=provenance_of(selection, seed),
        voltage=voltage_section(board.tables, board.voltage_std_v) or draft.voltage,
        idle=idle_section(board.tables, board.idle_std_w, board.idle_temperature_c) or draft.idle,
        domain=domain_of(selection, draft.groups),
        clocks_mhz=clock_range_mhz(selection, draft.gpu),
    )


def _held_out(
    selection: Selection,
    gpu: GpuSpec,
    tables: BoardTables,
    whole: Draft,
    seed: int,
    holdout: float,
    progress: Callable[[str], None],
    source: TransferSource | None,
) -> dict[str, Prediction]:
    """Every row predicted by a fit without its fold, by kind of row; nothing where too few kernels or workloads can be left out."""
    kernels, workloads = selection.kernels, selection.workloads
    kernel_folds = [] if kernels is None else grouped_folds(kernels.operator_index, holdout, seed)
    workload_folds = [] if workloads is None else grouped_folds(workloads.workload_index, holdout, seed)
    if kernels is not None and len(kernels) > MOST_FOLD_ROWS:
        kernel_folds = kernel_folds[:1]
    found: dict[str, list[tuple[BoolArray, Prediction]]] = {}
    for number in range(max(len(kernel_folds), len(workload_folds))):
        progress(f"fitting fold {number + 1} of {max(len(kernel_folds), len(workload_folds))}")
        kernel_fold = kernel_folds[number] if number < len(kernel_folds) else None
        workload_fold = workload_folds[number] if number < len(workload_folds) else None
        known = whole.kernel_fit if kernel_fold is None else None
        rest = (_without(kernels, kernel_fold), _without(workloads, workload_fold))
        fitted = draft_from_rows(*rest, gpu, tables, seed, known, source)
        if kernels is not None and kernel_fold is not None:
            found.setdefault("kernels", []).append((kernel_fold, predict_kernel_rows(fitted.bundle, kernels.select(kernel_fold))))
        if workloads is not None and workload_fold is not None:
            found.setdefault("workloads", []).append((workload_fold, predict_workload_rows(fitted.bundle, workloads.select(workload_fold))))
    return {kind: filled_prediction(parts) for kind, parts in found.items()}


def _without(rows: Any, fold: BoolArray | None) -> Any:
    """Rows outside a fold; all where there is none."""
    return rows if rows is None or fold is None else rows.select(~fold)


def _uncertainty(
    selection: Selection,
    gpu: GpuSpec,
    tables: BoardTables,
    held_out: Mapping[str, Prediction],
    draft: Draft,
    seed: int,
    source: TransferSource | None,
) -> dict[str, dict[str, Any]]:
    """The `uncertainty` section: of kernel groups and of whole workloads, from rows left out of fits."""
    expected = {"latency": {} if source is None else source.error, "power": {}}
    stated: dict[str, dict[str, Any]] = {"latency": {}, "power": {}}
    if selection.workloads is not None and "workloads" in held_out:
        for quantity, values in stated_uncertainty(selection.workloads, gpu, tables, seed, draft.bundle).items():
            stated[quantity].update(values)
        stated["power"] = widened_for_few(stated["power"], powered_rows(selection))
        if draft.kernel_fit is not None:  # measured kernels know their time whatever models use them
            used = stated["latency"]["families_by_group"]
            stated["latency"]["families_by_group"] = used | dict.fromkeys(draft.kernel_fit.groups, ENOUGH_FAMILIES)
    if draft.group_std and draft.kernel_fit is not None:
        other = expected["latency"]
        stated["latency"]["groups"] = {
            key: _of_few(std, _distinct(selection, key), other.get(longest_prefix(key, other) or "", EQUATION_ERROR))
            for key, std in draft.group_std.items()
        }
    if selection.kernels is not None and "kernels" in held_out:
        prediction = held_out["kernels"]
        groups = served_groups(draft.bundle, selection.kernels)
        for quantity, measured, predicted in (
            ("latency", prediction.measured_s, prediction.predicted_s),
            ("power", prediction.measured_w, prediction.predicted_w),
        ):
            known = stated[quantity].get("groups", {})
            stated[quantity]["groups"] = known | _group_scales(groups, measured, predicted, GROUP_PRIOR[quantity], expected[quantity])
    if source is not None and draft.bundle.power is not None and draft.bundle.power is source.power:
        stated["power"]["groups"] = dict.fromkeys(draft.bundle.groups, LENT_POWER_STD)
    return stated


def _group_scales(
    groups: list[str | None], measured: Array, predicted: Array, usual: float, expected: Mapping[str, float]
) -> dict[str, float]:
    """Standard deviation of ln for each group such that a normal 90 % interval holds, shrunk to the expected one where rows are few.

    expected: by group, as another GPU's fit has it; `usual` where that knows none.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(np.log(measured / predicted))
    members: dict[str, list[float]] = {}
    for group, one in zip(groups, error.tolist(), strict=True):
        if group is not None and np.isfinite(one):
            members.setdefault(group, []).append(one)
    scales = {}
    for group, values in members.items():
        seen = np.array(values)
        known = longest_prefix(group, expected)
        prior = usual if known is None else expected[known]
        root = float(np.sqrt((PRIOR_KERNELS * prior**2 + seen @ seen) / (PRIOR_KERNELS + len(seen))))
        if len(seen) < PRIOR_KERNELS:
            scales[group] = _of_few(root, len(seen), EQUATION_ERROR if known is None else prior)
        elif len(seen) < FEWEST_LOCAL:
            scales[group] = few_errors_half(seen, prior) / NORMAL_90
        else:
            scales[group] = 0.5 * (root + float(np.quantile(seen, 0.9)) / NORMAL_90)
    return scales


def _distinct(selection: Selection, group: str) -> int:
    """Different kernels among the rows of a group and its classes."""
    rows = selection.kernels
    if rows is None:
        return 0
    keys = (group_key(rows.operators[i]) for i in np.unique(rows.operator_index).tolist())
    return sum(key == group or key.startswith(f"{group}.") for key in keys)


FEW_KERNELS_STD: Final = 0.35
"""What one product leaves open about the others of its group [ln]; 20 of published tables left 8 to 12 %, as 1/√n says, and fitted
equations EQUATION_ERROR.  Where equations are known to leave over less, or more, so do few kernels."""


def _of_few(std: float, count: int, expected: float) -> float:
    """A standard deviation seen on few kernels, with what so few leave open about others; that of many as it is.

    expected: standard deviation of what the equations of such kernels leave over once they are fitted [ln].
    """
    open_std = FEW_KERNELS_STD * expected / EQUATION_ERROR / np.sqrt(max(count, 1))
    return float(np.hypot(std, open_std)) if count < FEWEST_POINTS else std


def _with_stated(kind: str, prediction: Prediction, bundle: Bundle, selection: Selection) -> Prediction:
    """Held-out predictions with standard deviations: as the fit without these rows states them, else as the finished bundle does."""
    if kind == "kernels" and selection.kernels is not None:
        own = predict_kernel_rows(bundle, selection.kernels)
    elif selection.workloads is not None:
        own = predict_workload_rows(bundle, selection.workloads)
    of_fold = prediction.latency_ln_std
    return replace(prediction, latency_ln_std=np.where(np.isfinite(of_fold), of_fold, own.latency_ln_std), power_ln_std=own.power_ln_std)


def _prior_notes(bundle: Bundle, source: TransferSource | None) -> tuple[str, ...]:
    """Groups of kernels that nothing was measured for, on this GPU or another."""
    lent = {} if source is None else source.values
    missing = [key for key, group in bundle.groups.items() if group.rows == 0 and key not in lent]
    return (f"from priors, not from data: {', '.join(missing)}",) if missing else ()
