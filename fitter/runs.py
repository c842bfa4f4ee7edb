"""Runs of whole workloads: fit, predict, and how wrong the prediction is on runs that the fit has not seen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.gpu import GpuSpec
from estimator.power import BoardTables
from estimator.prediction import Estimate, estimate
from estimator.quantities import Array, BoolArray
from estimator.spread import group_shares
from fitter.latency import LatencyFit, fit_latency
from fitter.power.coefficients import PowerFit, fit_power
from fitter.power.rows import join_power_rows, workload_power_rows
from fitter.power.solver import PRIOR, PowerPriors, PowerRows
from fitter.rows import WorkloadRows
from fitter.sections import draft_bundle

FOLDS: Final = 5

GPU_PRIOR: Final = 0.04
LAUNCH_PRIOR: Final = 0.12
POWER_PRIOR: Final = 0.04
PRIOR_RUNS: Final = 5.0
"""Errors of GPU-bound and launch-bound runs expected before any is seen [relative], counted as so many runs."""

FAMILY_PRIOR: Final = 0.05
FAMILY_POWER_PRIOR: Final = 0.035
"""Error common to a model family that the fit has not seen: five families cannot estimate it [relative]."""

FAMILY_PRIOR_WEIGHT: Final = 3.0
"""Families that the prior of the family error counts for."""

NORMAL_90: Final = 1.645
"""Standard deviations on each side of a normal 90 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsFit:
    """Fitted coefficients and the bundle that predicts with them."""

    latency: LatencyFit
    power: PowerFit | None
    bundle: Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class RunErrors:
    """Errors on runs left out of the fit: ln(measured / predicted) of latency and power (nan: no power), and the launch-bound share."""

    latency: Array
    power: Array
    launch_bound: Array


def fit_runs(
    rows: WorkloadRows,
    gpu: GpuSpec,
    tables: BoardTables,
    *,
    kernel_power: PowerRows | None = None,
    measured_groups: Mapping[str, Mapping[str, float]] | None = None,
    power_priors: PowerPriors = PRIOR,
) -> RunsFit:
    """Latency, then power at the predicted latency; `kernel_power` rows join the power fit."""
    latency = fit_latency(rows, gpu, measured_groups)
    parts = [] if kernel_power is None else [kernel_power]
    if np.isfinite(rows.energy_j).any():
        parts.append(workload_power_rows(rows, gpu, latency.groups, latency.host_launch_s))
    power = fit_power(join_power_rows(parts), tables, tables.reference_clock_mhz, power_priors) if parts else None
    clocks = rows.clock_mhz(gpu)
    bundle = draft_bundle(gpu, latency, power, clocks_mhz=(float(clocks.min()), float(clocks.max())), rows=len(rows))
    return RunsFit(latency=latency, power=power, bundle=bundle)


def predict_runs(bundle: Bundle, rows: WorkloadRows, gpu: GpuSpec) -> tuple[Array, Array, Array]:
    """Latency [s], power [W] and launch-bound share of each run at its asked clock, the power limit solved; shapes (n,)."""
    answers = [
        estimate(workload, bundle, sm_clock_mhz=float(clock), gpu=gpu)[0]
        for workload, clock in zip(rows.row_workloads(), rows.asked_clock_mhz(gpu), strict=True)
    ]
    columns = np.array([(a.latency_s, a.power_w, a.launch_bound_share) for a in answers]).reshape(len(answers), 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def held_out_errors(rows: WorkloadRows, gpu: GpuSpec, tables: BoardTables, folds: list[BoolArray]) -> RunErrors:
    """Every fold predicted by a fit of the others; runs in no fold have nan."""
    latency, power, share = (np.full(len(rows), np.nan) for _ in range(3))
    for held in folds:
        fit = fit_runs(rows.select(~held), gpu, tables)
        test = rows.select(held)
        predicted_s, predicted_w, bound = predict_runs(fit.bundle, test, gpu)
        latency[held] = np.log(test.latency_s / predicted_s)
        power[held] = np.log(test.power_w / predicted_w)
        share[held] = bound
    return RunErrors(latency=latency, power=power, launch_bound=share)


def workload_folds(rows: WorkloadRows, seed: int) -> list[BoolArray]:
    """Random folds over workloads: runs of one workload stay together."""
    unique = np.unique(rows.workload_index)
    shuffled = np.random.default_rng(seed).permutation(unique)
    return [np.isin(rows.workload_index, part) for part in np.array_split(shuffled, min(FOLDS, len(shuffled))) if len(part)]


def family_folds(rows: WorkloadRows) -> list[BoolArray]:
    """One fold a model family."""
    families = np.array([rows.workloads[i].model_family for i in rows.workload_index])
    return [families == family for family in np.unique(families)]


def families_by_group(bundle: Bundle, rows: WorkloadRows, gpu: GpuSpec) -> dict[str, int]:
    """How many model families of these runs spend a notable part of their GPU time in each group of kernels."""
    found: dict[str, set[str]] = {}
    for i in np.unique(rows.workload_index).tolist():
        workload = rows.workloads[i]
        answer = estimate(workload, bundle, gpu=gpu)[0]
        for group, share in group_shares([kernel.group for kernel in answer.kernels], kernel_weights(answer)).items():
            if share >= NOTABLE_SHARE:
                found.setdefault(group, set()).add(workload.model_family)
    return {group: len(families) for group, families in sorted(found.items())}


def kernel_weights(answer: Estimate) -> Array:
    """Share of each kernel in the GPU time of an estimate, shape (n,)."""
    seconds = np.array([kernel.count * kernel.latency_s for kernel in answer.kernels])
    result: Array = seconds / max(float(seconds.sum()), 1e-300)
    return result


NOTABLE_SHARE: Final = 0.1
"""A group with less of the GPU time leaves no trace in the latency of a run that anything could be learnt from [1]."""


def stated_uncertainty(
    rows: WorkloadRows, gpu: GpuSpec, tables: BoardTables, seed: int, bundle: Bundle | None = None
) -> dict[str, dict[str, object]]:
    """The `uncertainty` section of a bundle: from runs left out of fits, never from the fit's own residuals.

    bundle: the fit of all rows, by which is counted how many model families used each group of kernels.
    """
    stated = _stated(rows, gpu, tables, seed)
    if bundle is not None:
        stated["latency"]["families_by_group"] = families_by_group(bundle, rows, gpu)
    return stated


def _stated(rows: WorkloadRows, gpu: GpuSpec, tables: BoardTables, seed: int) -> dict[str, dict[str, object]]:
    families = sorted({rows.workloads[i].model_family for i in rows.workload_index})
    folds = workload_folds(rows, seed)
    if len(folds) < 2:
        return {
            "latency": {"gpu": 2 * GPU_PRIOR, "launch": LAUNCH_PRIOR, "family": FAMILY_PRIOR, "families": families},
            "power": {"gpu": 2 * POWER_PRIOR, "family": FAMILY_POWER_PRIOR, "families": families},
        }
    errors = held_out_errors(rows, gpu, tables, folds)
    share = errors.launch_bound
    by_family = held_out_errors(rows, gpu, tables, family_folds(rows)) if len(families) > 2 else errors
    power_known = np.isfinite(errors.power)
    return {
        "latency": {
            "gpu": _scale(errors.latency, 1.0 - share, GPU_PRIOR),
            "launch": _scale(errors.latency, share, LAUNCH_PRIOR),
            "family": _family_scale(by_family.latency, rows, FAMILY_PRIOR),
            "families": families,
        },
        "power": {
            "gpu": _scale(errors.power[power_known], np.ones(int(power_known.sum())), POWER_PRIOR),
            "family": _family_scale(by_family.power, rows, FAMILY_POWER_PRIOR),
            "families": families,
        },
    }


def _scale(error: Array, weight: Array, prior: float) -> float:
    """Standard deviation such that a normal 90 % interval holds: the mean of the root mean square and the scaled 90 % quantile.

    Few runs know their own spread badly: widened by 1 + 1/n, close to what Student's t asks for.
    """
    total = PRIOR_RUNS + float(weight.sum())
    root = np.sqrt((PRIOR_RUNS * prior**2 + float(weight @ error**2)) / total)
    order = np.argsort(np.abs(error))
    cumulative = np.cumsum(weight[order])
    if cumulative.size == 0 or cumulative[-1] < PRIOR_RUNS:
        return float(root)
    index = min(int(np.searchsorted(cumulative, 0.9 * cumulative[-1])), len(order) - 1)
    quantile = float(np.abs(error)[order][index])
    return float(0.5 * (root + quantile / NORMAL_90) * (1.0 + 1.0 / cumulative[-1]))


def _family_scale(error: Array, rows: WorkloadRows, prior: float) -> float:
    """Standard deviation of the error that a family shares, shrunk to its prior."""
    families = np.array([rows.workloads[i].model_family for i in rows.workload_index])
    known = np.isfinite(error)
    means = np.array([error[known & (families == family)].mean() for family in np.unique(families[known])])
    total = FAMILY_PRIOR_WEIGHT + len(means)
    return float(np.sqrt((FAMILY_PRIOR_WEIGHT * prior**2 + float(np.sum(means**2))) / total))
