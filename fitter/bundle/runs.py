"""Runs of whole workloads: fit, prediction, errors on held-out runs, and from them the spread of runs of seen and unseen families.

An error of ln(latency), or of ln(power), has the variance (1 − w)·σ_gpu² + w·σ_launch², where w is the weight of the host's launches
(`estimator.uncertainty.sources.launch_weight`).  Both deviations are fitted together, so that slow modes of a host do not widen the
errors of runs that the GPU limits.

The mean error m_f of a family that is left out as a whole has the variance v_f from the scatter of its runs.  The common error of a
family's runs then has the variance τ² = mean(m²) − mean(v).  For few families mean(m²) is uncertain itself, so Student's t with as many
degrees of freedom as families replaces the normal distribution:

    τ² = (t / 1.645)² · mean(m²) − mean(v), and 0 where that is negative
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from scipy.optimize import minimize
from scipy.special import stdtrit

from estimator.bundle.content import Bundle
from estimator.engine.board import open_board
from estimator.engine.prediction import predict
from estimator.model.power import BoardTables
from estimator.model.power_limit import UNLIMITED_W
from estimator.questions.estimates import estimate
from estimator.uncertainty.laboratory import is_known
from estimator.uncertainty.sources import UNTESTED_STD, group_shares, joined, launch_weight
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90, Array, BoolArray
from estimator.vocabulary.values import frozen
from fitter.bundle.sections import collection_records, runs_bundle
from fitter.latency.runs import STREAM_GROUPS, fit_latency
from fitter.power.coefficients import fit_power
from fitter.power.rows import join_power_rows, workload_power_rows
from fitter.power.solver import PowerPriors, PowerRows
from fitter.priors import Coefficients, Scales
from fitter.rows.columns import WorkloadRows
from fitter.validate.predictions import grouped_folds

PRIOR_RUNS: Final = 5.0
"""Weight of the prior spread, as a number of runs."""

EXPECTED: Final = {"latency": (0.04, 0.12), "power": (0.04, 0.06)}
"""Prior of the error of GPU-bound and of launch-bound runs [relative].  About half of the power of a launch-bound run is kernel energy over
time: half the latency's error."""

OF_ONE: Final = (0.08, 0.12)
"""Error of GPU-bound and of launch-bound runs, stated if all runs are of one workload (assumed) [relative]."""

FAMILY_EXPECTED: Final = {"latency": 0.05, "power": 0.035}
"""Error common to a model family, stated if there are fewer than FEWEST_FAMILIES families (assumed) [ln]."""

FEWEST_FAMILIES: Final = 3
"""Least families for an estimate of the error of an unseen family."""

Spread = tuple[float, float]
"""Standard deviations of a logarithm for GPU-bound and for launch-bound runs."""


def spread_at(spread: Spread, launch_share: Array) -> Array:
    """Standard deviation at a share of the host's launches in the latency, shape (n,)."""
    return np.sqrt(np.square(spread) @ _weights(launch_share))


def _weights(launch_share: Array) -> Array:
    """Weights of the GPU-bound and of the launch-bound part in the variance, shape (2, n)."""
    host = launch_weight(launch_share)
    return np.array([1.0 - host, host])


def paced_std(error: Array, launch_share: Array, expected: Spread) -> Spread:
    """Standard deviations of a logarithm for GPU-bound and for launch-bound runs.

    error, launch_share (n,): of held-out runs of known families, nan for an unknown error.  expected: the prior of both.  Maximises the
    likelihood with PRIOR_RUNS runs of either kind that have the expected error.
    """
    measured = np.isfinite(error)
    error, parts, before = error[measured], _weights(launch_share[measured]), np.array(expected) ** 2

    def cost(logarithms: Array) -> tuple[float, Array]:
        own = np.exp(logarithms)
        total = own @ parts
        value = np.sum(np.log(total) + error**2 / total) + PRIOR_RUNS * np.sum(logarithms + before / own)
        slope = own * (parts @ (1.0 / total - error**2 / total**2)) + PRIOR_RUNS * (1.0 - before / own)
        return float(value), slope

    gpu, launch = np.exp(0.5 * minimize(cost, np.log(before), jac=True, method="L-BFGS-B").x).tolist()
    return gpu, launch


def family_spread(error: Array, known_std: Array, family: Array, expected: float) -> float:
    """Standard deviation that an unseen family adds; the expected one if there are too few families.

    error, known_std, family (n,): errors of the logarithm of families left out as wholes (nan: unknown), their standard deviation from all
    other sources, and their names.
    """
    measured = np.isfinite(error)
    names, number = np.unique(family[measured], return_inverse=True)
    if len(names) < FEWEST_FAMILIES:
        return expected
    weight = known_std[measured] ** -2.0
    precision = np.bincount(number, weight)
    mean = np.bincount(number, error[measured] * weight) / precision
    wide = float(stdtrit(len(names), 0.95)) / NORMAL_90
    return float(np.sqrt(max(wide**2 * float(np.mean(mean**2)) - float(np.mean(1.0 / precision)), 0.0)))


FOLD: Final = 0.05
"""Share of the workloads in each fold.  A fit of 95 % of the runs errs like a fit of all."""

ONE_KIND: Final = frozenset(STREAM_GROUPS) - {"conv.depthwise"}
"""Groups whose coefficients runs fit together: a family that uses one of them tests all.  Depthwise convolutions are apart, because their
reuse of neighbours depends on the library."""


def fit_runs(
    rows: WorkloadRows,
    gpu: GpuSpec,
    tables: BoardTables,
    *,
    kernel_power: PowerRows | None = None,
    measured_groups: Coefficients | None = None,
    power_priors: PowerPriors | None = None,
    scales: Scales | None = None,
) -> Bundle:
    """A bundle from runs: latency, then power at the predicted latency; `kernel_power` rows join the power fit.

    scales: of the collections of kernels behind `measured_groups`.
    """
    latency = fit_latency(rows, gpu, measured_groups, scales)
    parts = [] if kernel_power is None else [kernel_power]
    if np.isfinite(rows.energy_j).any():
        parts.append(workload_power_rows(rows, gpu, latency))
    power = fit_power(join_power_rows(parts), tables, power_priors) if parts else None
    clocks = rows.clock_mhz(gpu)
    bundle = runs_bundle(gpu, latency, power, clocks_mhz=(float(clocks.min()), float(clocks.max())), rows=len(rows))
    return replace(bundle, collections=collection_records(latency.scales, [rows]))


@frozen
class RunErrors:
    """Errors on runs left out of the fit, columns of shape (n,).

    error          ln(measured / predicted) by quantity; nan: not measured
    launch_bound   share of the host's launches in the latency
    untested       standard deviation of ln(GPU time) for kernels that too few model families in the fit used
    """

    error: Mapping[str, Array]
    launch_bound: Array
    untested: Array


def held_out_errors(
    rows: WorkloadRows, gpu: GpuSpec, tables: BoardTables, folds: list[BoolArray], use: Sequence[Mapping[str, float]]
) -> RunErrors:
    """Errors of every fold, predicted by a fit of the others; the folds hold each run once.

    use: as from `group_use`.  Errors are those of the equations at the measured clock; `estimator.model.power_limit` adds the effect of a
    power limit.
    """
    found = np.empty((len(rows), 4))
    for held in folds:
        rest, test = rows.select(~held), rows.select(held)
        bundle, counts = fit_runs(rest, gpu, tables), family_counts(use, rest)
        clocks_mhz = np.clip(test.clock_mhz(gpu), gpu.sm_clock_min_mhz, gpu.sm_clock_limit_mhz)
        answers = [
            estimate(
                workload,
                bundle,
                sm_clock_mhz=float(clock),
                gpu=gpu,
                power_cap_w=UNLIMITED_W,
                collection=one if is_known(bundle, one) else None,
            )[0]
            for workload, clock, one in zip(test.row_workloads(), clocks_mhz, test.row_collections(), strict=True)
        ]
        untested = [untested_std(use[i], counts) for i in test.workload_index]
        found[held] = [(a.latency_s, a.power_w, a.launch_bound_share, std) for a, std in zip(answers, untested, strict=True)]
    latency_s, power_w, launch_bound, untested_ln = found.T
    error = {"latency": np.log(rows.latency_s / latency_s), "power": np.log(rows.power_w / power_w)}
    return RunErrors(error=error, launch_bound=launch_bound, untested=untested_ln)


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


def stated_uncertainty(rows: WorkloadRows, gpu: GpuSpec, tables: BoardTables, seed: int, bundle: Bundle) -> dict[str, dict[str, object]]:
    """The `uncertainty` section of a bundle, from held-out runs and never from residuals of the fit.

    bundle: the fit of all rows, used to count the model families of each group of kernels.
    """
    use = group_use(bundle, rows, gpu)
    names = np.array([rows.workloads[i].model_family for i in rows.workload_index])
    families = np.unique(names).tolist()
    folds = grouped_folds(rows.workload_index, FOLD, seed)
    known = held_out_errors(rows, gpu, tables, folds, use) if folds else None
    wholes = None
    if known is not None and len(families) >= FEWEST_FAMILIES:
        wholes = held_out_errors(rows, gpu, tables, [names == family for family in families], use)
    stated: dict[str, dict[str, object]] = {}
    for quantity, expected in EXPECTED.items():
        spread = OF_ONE if known is None else paced_std(known.error[quantity], known.launch_bound, expected)
        added = FAMILY_EXPECTED[quantity]
        if wholes is not None:
            untested = np.sqrt(1.0 - wholes.launch_bound) * wholes.untested if quantity == "latency" else 0.0
            known_std = np.hypot(spread_at(spread, wholes.launch_bound), untested)
            added = family_spread(wholes.error[quantity], known_std, names, added)
        stated[quantity] = {"gpu": spread[0], "launch": spread[1], "family": added, "families": families}
    stated["latency"]["families_by_group"] = family_counts(use, rows)
    return stated
