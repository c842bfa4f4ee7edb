"""Calibration: a selection of rows → a bundle, and its errors on rows left out of the fit.

Rows are split into folds by kernel and by workload; each fold is predicted by a fit of the others, which gives the
held-out errors and the stated uncertainty.  The bundle's coefficients then come from all rows.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle, HeldOut
from estimator.model.coefficients import group_key, longest_prefix
from estimator.model.power import BoardTables
from estimator.uncertainty.forecast import FORECAST_POWER_STD, forecast_std
from estimator.uncertainty.laboratory import ELSEWHERE_STD
from estimator.uncertainty.sources import ENOUGH_FAMILIES
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90, Array
from estimator.vocabulary.values import frozen
from fitter.blocks.section import block_section
from fitter.bundle.data_facts import (
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
from fitter.bundle.drafts import Draft, draft_from_rows
from fitter.bundle.runs import stated_uncertainty
from fitter.bundle.sections import prior_bundle, with_gain_std
from fitter.instructions.section import instruction_section
from fitter.latency.groups import NO_SIBLINGS, OUTLIER_FACTOR, expected_error
from fitter.latency.intervals import FEWEST_LOCAL, few_errors_half
from fitter.latency.residual_tier import FEWEST_POINTS
from fitter.priors import EQUATION_ERROR
from fitter.rows.columns import KernelRows, Selection, WorkloadRows, with_rejected
from fitter.rows.selection import in_own_order
from fitter.transfer.anchor import anchored
from fitter.transfer.prior_bundle import TransferSource, transfer_notes, transfer_source
from fitter.validate.predictions import (
    FEWEST_ROWS,
    QUANTITIES,
    FramesByKind,
    compared,
    error_rows,
    fit_warnings,
    grouped_folds,
    kind_of,
    label_of,
    predict_rows,
    same_numbers,
    served_groups,
    single_kinds,
    summary_row,
)

GROUP_PRIOR: Final = {"latency": 0.08, "power": 0.06}
"""Prior of the error of a group of kernels [relative]."""

PRIOR_KERNELS: Final = 5.0
"""Kernels that this prior counts for."""

FIRST_VERSION: Final = "0.1.0"
"""Version of an unreleased bundle."""


@frozen
class Calibration:
    """A bundle ready to be saved, its held-out errors, the predictions behind them, and warnings for the user.

    `selection` holds the fitted rows; its rejected rows include those that the fit rejected.  `held_out` holds, by kind of row ("kernels",
    "workloads"), predictions of left-out rows as from `predict_kernel_rows`; the index is the number of the row.
    """

    bundle: Bundle
    selection: Selection
    errors: tuple[HeldOut, ...]
    held_out: FramesByKind
    warnings: tuple[str, ...]

    def summary(self) -> dict[str, HeldOut]:
        """Errors of all held-out kernels and of all held-out workloads."""
        return {kind: summary_row(compared(found), kind) for kind, found in self.held_out.items()}


def calibrate(
    selection: Selection,
    gpu: GpuSpec,
    *,
    name: str = "",
    seed: int = 0,
    holdout: float = 0.2,
    priors: Sequence[Bundle] = (),
    lender: Bundle | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Fit all rows of a selection of one GPU.

    holdout: share of the kernels and of the workloads in each fold; 0 leaves errors and uncertainty unstated.
    priors: a bundle of another GPU, or an older bundle of this GPU, from which the fit starts; further ones, for power.
    lender: a bundle that lends its power coefficients to a selection that `lacks_power`.
    Raises CalibrationError for a selection of generated kernels, or of grids, that determine nothing.
    """
    selection = in_own_order(selection)
    board = board_knowledge(selection, gpu)
    energies, remarks = instruction_section(selection, board)
    blocks, unfit = block_section(selection, gpu)
    source = _source(selection, gpu, priors, lender)
    progress("fitting all rows")
    draft = partial(draft_from_rows, gpu=gpu, tables=board, seed=seed, source=source)
    found = draft(selection.kernels, selection.workloads) if selection.tables else Draft(bundle=prior_bundle(gpu), kernel_fit=None)
    held_out = _held_out(selection, found, draft, seed, holdout, progress)
    if found.kernel_fit is not None:
        selection = with_rejected(selection, found.kernel_fit.rejected)
    progress("stating uncertainty")
    stated = _uncertainty(selection, held_out, found, source)
    if "workloads" in held_out and selection.workloads is not None:
        _add_runs(stated, stated_uncertainty(selection.workloads, gpu, board, seed, found.bundle), found, powered_rows(selection))
    bundle = replace(
        _with_origin(found.bundle, selection, board, seed),
        name=name or default_name(selection, gpu),
        instruction_energies=energies,
        block_models=blocks,
        uncertainty=stated,
    )
    held_out = {kind: _with_stated(left_out, bundle, getattr(selection, kind)) for kind, left_out in held_out.items()}
    errors = tuple(row for rows in held_out.values() for row in error_rows(compared(rows)))
    few = few_power_warnings(selection, bundle) if selection.tables and source is None else ()
    warnings = (*_poor(selection, bundle, held_out, errors), *_far_runs(held_out), *far_laboratories(bundle), *few, *remarks, *unfit)
    notes = (*transfer_notes(source, found.bundle), *selection.notes, *warnings)
    return Calibration(
        bundle=replace(bundle, errors=errors, notes=notes),
        selection=selection,
        errors=errors,
        held_out=held_out,
        warnings=warnings,
    )


def _poor(selection: Selection, bundle: Bundle, held_out: Collection[str], errors: Sequence[HeldOut]) -> tuple[str, ...]:
    """Warnings for rows that the fit describes poorly: left out of it, or so few that none of their kind was left out."""
    alone = single_kinds(selection)
    few = [rows for rows in selection.tables if kind_of(rows) not in held_out and len(rows) < FEWEST_ROWS]
    own = [row for rows in few for row in error_rows(compared(predict_rows(bundle, rows)))]
    return (*fit_warnings([row for row in errors if label_of(row) not in alone]), *fit_warnings(own, "the fitted rows themselves"))


def _far_runs(held_out: FramesByKind) -> tuple[str, ...]:
    """Warning for runs that contradict all others; such kernels are rejected as OUTLIER."""
    if (runs := held_out.get("workloads")) is None:
        return ()
    far = np.abs(np.log(runs["measured_latency"] / runs["predicted_latency"])) > math.log(OUTLIER_FACTOR)
    named = ", ".join(runs["origin"][far].head(5))
    text = f"{far.sum()} of {len(far)} runs are off by more than a factor of {OUTLIER_FACTOR:g}; did their measurement fail? {named}"
    return (text,) if named else ()


def far_laboratories(bundle: Bundle) -> tuple[str, ...]:
    """Warnings for laboratories beyond four usual deviations from their mean; those of public tables lie within 2.5."""
    far = 4.0 * ELSEWHERE_STD["latency"] / math.sqrt(2.0)
    return tuple(
        f"times of {one.name} are {one.scale:.2f} times those of the mean laboratory, for which answers hold: check units, clocks and limit"
        for one in bundle.collections
        if abs(math.log(one.scale)) > far
    )


def _source(selection: Selection, gpu: GpuSpec, priors: Sequence[Bundle], lender: Bundle | None) -> TransferSource | None:
    """What the fit starts from: the priors, else the lender's power where no row has any."""
    if priors:
        return transfer_source(*priors, target=gpu)
    if lender is None or not lacks_power(selection):
        return None
    return replace(transfer_source(lender, target=gpu), siblings=NO_SIBLINGS)


def calibrate_anchored(selection: Selection, gpu: GpuSpec, source: Bundle, *, name: str, seed: int) -> Calibration:
    """A bundle for a board with a few anchors only, on top of another board's bundle.  Raises CalibrationError as `anchored`."""
    found, warnings = anchored(source, selection, gpu)
    draft, used = _with_origin(found, selection, board_knowledge(selection, gpu), seed), sum(one.rows for one in found.collections)
    origin = f"forecast from {source.name} {source.version} ({source.gpu.name}), corrected by anchors ({used})"
    bundle = replace(
        draft,
        domain=source.domain,
        name=name or f"{default_name(selection, gpu)}-anchored",
        notes=(*selection.notes, *warnings),
        environment={**draft.environment, "anchored": origin},
    )
    return Calibration(bundle=bundle, selection=selection, errors=(), held_out={}, warnings=warnings)


def _with_origin(draft: Bundle, selection: Selection, board: BoardTables, seed: int) -> Bundle:
    """Add the metadata of the data sets to a draft: board, sensor, environment, ranges."""
    return replace(
        draft,
        version=FIRST_VERSION,
        gpu_uuid=board_uuid(selection),
        environment=environment_of(selection),
        sensor=sensor_of(selection),
        completion=completion_of(selection),
        power=None if draft.power is None else with_gain_std(draft.power, selection.gain_std),
        provenance=provenance_of(selection, seed),
        voltage=board.voltage_v or draft.voltage,
        idle=board.idle_w or draft.idle,
        domain=domain_of(selection, draft.groups),
        clocks_mhz=clock_range_mhz(selection, draft.gpu),
    )


def _held_out(
    selection: Selection,
    whole: Draft,
    draft: Callable[..., Draft],
    seed: int,
    share: float,
    progress: Callable[[str], None],
) -> dict[str, pd.DataFrame]:
    """Rows predicted by a fit without their fold, by kind; empty if there are too few kernels or workloads."""
    folds = {kind_of(rows): grouped_folds(same_numbers(rows), share, seed) for rows in selection.tables}
    # Larger tables have one fold left out, not every fold in turn: it shows enough, and fits take seconds.
    if selection.kernels is not None and len(selection.kernels) > 3000:
        folds["kernels"] = folds["kernels"][:1]
    found: dict[str, list[pd.DataFrame]] = {kind: [] for kind, own in folds.items() if own}
    count = max(map(len, folds.values()), default=0)
    for number in range(count):
        progress(f"fitting fold {number + 1} of {count}")
        held = {kind: own[number] for kind, own in folds.items() if number < len(own)}
        rest, test = (
            replace(selection, **{kind: getattr(selection, kind).select(fold == out) for kind, fold in held.items()})
            for out in (False, True)
        )
        fitted = draft(rest.kernels, rest.workloads, kernel_fit=None if "kernels" in held else whole.kernel_fit, whole=whole.kernel_fit)
        for kind, fold in held.items():
            found[kind].append(predict_rows(fitted.bundle, getattr(test, kind)).set_index(np.flatnonzero(fold)))
    return {kind: pd.concat(parts).sort_index() for kind, parts in found.items()}


def _with_stated(left_out: pd.DataFrame, bundle: Bundle, rows: KernelRows | WorkloadRows) -> pd.DataFrame:
    """Held-out predictions of some of `rows` with standard deviations from the fit without them, else from the finished bundle."""
    stated = predict_rows(bundle, rows.select(left_out.index.to_numpy())).set_index(left_out.index)
    return left_out.assign(std_latency=left_out["std_latency"].fillna(stated["std_latency"]), std_power=stated["std_power"])


def _uncertainty(selection: Selection, held_out: FramesByKind, draft: Draft, source: TransferSource | None) -> dict[str, dict[str, Any]]:
    """The `uncertainty` section of groups of kernels, from held-out rows."""
    expected = {"latency": {} if source is None else source.siblings.error, "power": {}}
    stated: dict[str, dict[str, Any]] = {"latency": {}, "power": {}}
    if draft.kernel_fit is not None and selection.kernels is not None:
        used = Counter(group_key(selection.kernels.operators[i]) for i in np.unique(selection.kernels.operator_index))
        stated["latency"]["groups"] = {
            key: _of_few(std, sum(used[own] for own in used if longest_prefix(own, {key})), expected_error(key, expected["latency"]))
            for key, std in draft.kernel_fit.group_std.items()
        }
    if selection.kernels is not None and "kernels" in held_out:
        rows = held_out["kernels"]
        groups = pd.Series(served_groups(draft.bundle, selection.kernels)).loc[rows.index]
        for quantity in QUANTITIES:
            error = (rows[f"measured_{quantity}"] / rows[f"predicted_{quantity}"]).dropna().map(math.log).abs()
            scales = {
                group: _group_scale(group, own.to_numpy(), GROUP_PRIOR[quantity], expected[quantity])
                for group, own in error.groupby(groups, sort=False)
            }
            stated[quantity]["groups"] = {**stated[quantity].get("groups", {}), **scales}
    if source is not None and draft.bundle.power is not None and draft.bundle.power is source.power:
        std = forecast_std(source.gpu, draft.bundle.gpu)[1]  # one error of all kernels, of runs as of those measured alone
        stated["power"] |= {"gpu": std, "launch": std, "groups": dict.fromkeys(draft.bundle.groups, std)}
    return stated


def _add_runs(stated: Mapping[str, dict[str, Any]], of_runs: Mapping[str, Mapping[str, Any]], draft: Draft, powered: int) -> None:
    """Add the uncertainty of whole workloads; `powered` rows have a power.

    One row determines power less well than another board's coefficients (FORECAST_POWER_STD); n rows reduce that deviation by 1/√n.
    """
    for quantity, values in of_runs.items():
        stated[quantity].update(values)
    if 0 < powered < FEWEST_POWERED:
        for name in ("gpu", "launch"):
            stated["power"][name] = float(np.hypot(stated["power"][name], FORECAST_POWER_STD["usual"] / np.sqrt(powered)))
    if draft.kernel_fit is not None:  # the time of measured kernels does not depend on the model that uses them
        stated["latency"]["families_by_group"] |= dict.fromkeys(draft.kernel_fit.groups, ENOUGH_FAMILIES)


FEWEST_POWERED: Final = 5
"""Fewer rows with a power determine neither the coefficients nor their uncertainty."""


def powered_rows(selection: Selection) -> int:
    """Accepted kernels and runs that have a power."""
    return sum(int(np.isfinite(rows.power_w).sum()) for rows in selection.tables)


def lacks_power(selection: Selection) -> bool:
    """Whether another bundle's power suits the fit: no row has a power, and no kernel may have run at an unknown clock at the limit."""
    kernels = selection.kernels
    return not powered_rows(selection) and kernels is not None and bool(np.all(kernels.burst | np.isfinite(kernels.sm_clock_mhz)))


def few_power_warnings(selection: Selection, bundle: Bundle) -> tuple[str, ...]:
    """Warnings for runs that were fitted without any energy, and for power fitted to very few rows.

    Kernel tables with latencies only are usual and cause no warning.
    """
    count = powered_rows(selection)
    if bundle.power is None:
        return ("no row has an energy: the bundle has no power",) if not count and selection.workloads is not None else ()
    return (f"power rests on {count} rows: its intervals are wide; measure the energy of more",) if 0 < count < FEWEST_POWERED else ()


def _group_scale(group: str, seen: Array, usual: float, expected: Mapping[str, float]) -> float:
    """Standard deviation of ln whose normal 90 % interval holds for a group, shrunk to the expected one if rows are few.

    seen: magnitudes of the errors of its rows [ln].  expected: by group, from another GPU's fit; `usual` for the other groups.
    """
    prior = expected_error(group, expected, usual)
    root = float(np.sqrt((PRIOR_KERNELS * prior**2 + seen @ seen) / (PRIOR_KERNELS + len(seen))))
    if len(seen) < PRIOR_KERNELS:
        return _of_few(root, len(seen), expected_error(group, expected))
    if len(seen) < FEWEST_LOCAL:
        return few_errors_half(seen, prior) / NORMAL_90
    return 0.5 * (root + float(np.quantile(seen, 0.9)) / NORMAL_90)


def _of_few(std: float, count: int, expected: float) -> float:
    """Standard deviation seen on few kernels, widened for the unseen ones; unchanged for many kernels.

    expected: standard deviation of the residuals of the fitted equations of such kernels [ln].
    """
    # What one product leaves open about the others of its group [ln]; 20 of published tables left 8 to 12 %, as 1/√n says, and fitted
    # equations EQUATION_ERROR.  Where equations are known to leave over less, or more, so do few kernels.
    open_std = 0.35 * expected / EQUATION_ERROR / np.sqrt(max(count, 1))
    return float(np.hypot(std, open_std)) if count < FEWEST_POINTS else std
