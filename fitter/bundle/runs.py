"""Runs of whole workloads: fit, prediction, and errors on held-out runs."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.engine.board import open_board
from estimator.engine.prediction import predict
from estimator.model.power import BoardTables
from estimator.model.power_limit import UNLIMITED_W
from estimator.questions.estimates import estimate
from estimator.uncertainty.sources import UNTESTED_STD, group_shares, joined
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, BoolArray
from fitter.bundle.run_spread import (
    FAMILY_POWER_PRIOR,
    FAMILY_PRIOR,
    FEWEST_FAMILIES,
    LATENCY_PRIOR,
    POWER_PRIOR,
    PacedSpread,
    RunErrors,
    RunSpread,
    family_spread,
    known_spread,
)
from fitter.bundle.sections import runs_bundle
from fitter.latency.runs import STREAM_GROUPS, fit_latency
from fitter.power.coefficients import fit_power
from fitter.power.rows import join_power_rows, workload_power_rows
from fitter.power.solver import PowerPriors, PowerRows
from fitter.rows.columns import WorkloadRows

MOST_FOLDS: Final = 20
"""Most folds over workloads; beyond this number several workloads share a fold.  A fit of 95 % of the runs errs like a fit of all."""

ONE_KIND: Final = frozenset(STREAM_GROUPS) - {"conv.depthwise"}
"""Groups whose coefficients runs fit together: a family that uses one of them tests all.  Depthwise convolutions are apart, because their
reuse of neighbours depends on the library."""


def fit_runs(
    rows: WorkloadRows,
    gpu: GpuSpec,
    tables: BoardTables,
    *,
    kernel_power: PowerRows | None = None,
    measured_groups: Mapping[str, Mapping[str, float]] | None = None,
    power_priors: PowerPriors | None = None,
) -> Bundle:
    """A bundle from runs: latency, then power at the predicted latency; `kernel_power` rows join the power fit."""
    latency = fit_latency(rows, gpu, measured_groups)
    parts = [] if kernel_power is None else [kernel_power]
    if np.isfinite(rows.energy_j).any():
        parts.append(workload_power_rows(rows, gpu, latency))
    power = fit_power(join_power_rows(parts), tables, power_priors) if parts else None
    clocks = rows.clock_mhz(gpu)
    return runs_bundle(gpu, latency, power, clocks_mhz=(float(clocks.min()), float(clocks.max())), rows=len(rows))


def _predict_unlimited(bundle: Bundle, rows: WorkloadRows, gpu: GpuSpec) -> tuple[Array, Array, Array]:
    """Latency [s], power [W] and launch-bound share of each run at the clock that ran, without a power limit; shapes (n,)."""
    clocks_mhz = np.clip(rows.clock_mhz(gpu), gpu.sm_clock_min_mhz, gpu.sm_clock_limit_mhz)
    answers = [
        estimate(workload, bundle, sm_clock_mhz=float(clock), gpu=gpu, power_cap_w=UNLIMITED_W)[0]
        for workload, clock in zip(rows.row_workloads(), clocks_mhz, strict=True)
    ]
    columns = np.array([(a.latency_s, a.power_w, a.launch_bound_share) for a in answers]).reshape(len(answers), 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def held_out_errors(
    rows: WorkloadRows, gpu: GpuSpec, tables: BoardTables, folds: list[BoolArray], use: Sequence[Mapping[str, float]] = ()
) -> RunErrors:
    """Errors of every fold, predicted by a fit of the others; runs in no fold have nan.

    use: as from `group_use`; without it no run is untested.  Errors are those of the equations at the measured clock;
    `estimator.model.power_limit` adds the effect of a power limit.
    """
    latency, power, share = (np.full(len(rows), np.nan) for _ in range(3))
    untested = np.zeros(len(rows))
    for held in folds:
        rest, test = rows.select(~held), rows.select(held)
        predicted_s, predicted_w, bound = _predict_unlimited(fit_runs(rest, gpu, tables), test, gpu)
        latency[held] = np.log(test.latency_s / predicted_s)
        power[held] = np.log(test.power_w / predicted_w)
        share[held] = bound
        if use:
            counts = family_counts(use, rest)
            untested[held] = [untested_std(use[i], counts) for i in test.workload_index]
    return RunErrors(latency=latency, power=power, launch_bound=share, untested=untested)


def workload_folds(rows: WorkloadRows, seed: int) -> list[BoolArray]:
    """Random folds over workloads, one fold a workload while these are few.  Runs of one workload stay together."""
    unique = np.unique(rows.workload_index)
    shuffled = np.random.default_rng(seed).permutation(unique)
    return [np.isin(rows.workload_index, part) for part in np.array_split(shuffled, min(MOST_FOLDS, len(shuffled))) if len(part)]


def family_folds(rows: WorkloadRows) -> list[BoolArray]:
    """One fold a model family."""
    families = np.array([rows.workloads[i].model_family for i in rows.workload_index])
    return [families == family for family in np.unique(families)]


def group_use(bundle: Bundle, rows: WorkloadRows, gpu: GpuSpec) -> list[dict[str, float]]:
    """Share of the GPU time by group of kernels of each workload; empty for workloads without a row."""
    used = set(rows.workload_index.tolist())
    found: list[dict[str, float]] = []
    for i, workload in enumerate(rows.workloads):
        shares: dict[str, float] = {}
        if i in used:
            prediction = predict([workload], open_board(bundle, gpu=gpu))
            _, kinds = prediction.prepared.blocks_of(0)
            shares = {group: float(share) for group, share in group_shares([kind.group for kind in kinds], prediction.shares[:, 0]).items()}
        found.append(shares)
    return found


def family_counts(use: Sequence[Mapping[str, float]], rows: WorkloadRows) -> dict[str, int]:
    """Number of model families that spend a notable share of their GPU time in each group of kernels or in a related group.

    use: as from `group_use`.
    """
    found: dict[str, set[str]] = {}
    for i in np.unique(rows.workload_index).tolist():
        common = sum(share for group, share in use[i].items() if group in ONE_KIND)
        for group, share in use[i].items():
            # A group with less of the GPU time leaves no trace in the latency of a run that anything could be learnt from.
            if (common if group in ONE_KIND else share) >= 0.1:
                found.setdefault(group, set()).add(rows.workloads[i].model_family)
    alike = set().union(*(families for group, families in found.items() if group in ONE_KIND))
    return {group: len(alike if group in ONE_KIND else families) for group, families in sorted(found.items())}


def untested_std(shares: Mapping[str, float], counts: Mapping[str, int]) -> float:
    """Standard deviation of ln(GPU time) for kernels that too few families use, as in `estimator.uncertainty.sources`."""
    return float(joined(share * UNTESTED_STD.get(counts.get(group, 0), 0.0) for group, share in shares.items()))


def stated_uncertainty(
    rows: WorkloadRows, gpu: GpuSpec, tables: BoardTables, seed: int, bundle: Bundle | None = None
) -> dict[str, dict[str, object]]:
    """The `uncertainty` section of a bundle, from held-out runs and never from residuals of the fit.

    bundle: the fit of all rows, used to count the model families of each group of kernels.
    """
    names = np.array([rows.workloads[i].model_family for i in rows.workload_index])
    families = sorted(set(names.tolist()))
    folds, between = workload_folds(rows, seed), (FAMILY_PRIOR, FAMILY_POWER_PRIOR)
    if len(folds) < 2:
        spread = RunSpread(
            latency=PacedSpread(gpu=2.0 * LATENCY_PRIOR[0], launch=LATENCY_PRIOR[1]),
            power=PacedSpread(gpu=2.0 * POWER_PRIOR[0], launch=2.0 * POWER_PRIOR[1]),
        )
    else:
        spread = known_spread(held_out_errors(rows, gpu, tables, folds))
        if len(families) >= FEWEST_FAMILIES:
            use = group_use(fit_runs(rows, gpu, tables), rows, gpu)
            between = family_spread(held_out_errors(rows, gpu, tables, family_folds(rows), use), names, spread)
    stated: dict[str, dict[str, object]] = {
        quantity: {"gpu": known.gpu, "launch": known.launch, "family": added, "families": families}
        for quantity, known, added in zip(("latency", "power"), (spread.latency, spread.power), between, strict=True)
    }
    if bundle is not None:
        stated["latency"]["families_by_group"] = family_counts(group_use(bundle, rows, gpu), rows)
    return stated
