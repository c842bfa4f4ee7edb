"""Kernels measured or requested one by one, as a table: operators, each at its own clock → latency and power.

Unlike an estimate of a workload, this includes the time that a measuring host adds (the launch floor) and the time that
repeated launches of one kernel save (operands that stay in L2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle, group_coefficients
from estimator.engine.board import board_tables, power_model
from estimator.model.coefficients import coefficient_rows, group_key
from estimator.model.kriging import phase_features
from estimator.model.lowering import KnownTiles, lower
from estimator.model.phases import Phases
from estimator.model.power import POWER_TERMS, busy_share, power_events, power_parts_w, term_scale, warm_dram_share
from estimator.model.residuals import log_corrections, log_power_corrections
from estimator.model.tier_records import Tier
from estimator.model.tile_choice import PredictorRecord, predicted_tiles
from estimator.model.timeline import kernel_seconds, measured_seconds, warm_ratio
from estimator.vocabulary.frozen import EMPTY
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array, BoolArray
from estimator.vocabulary.workload import Operator

DRAM_TERMS: Final = [POWER_TERMS.index("dram"), POWER_TERMS.index("dram_path")]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Times of n kernels, columns of shape (n,).

    equations_s, latency_s   by the equations alone, and with the residual tier [s]
    log_std                  standard deviation of ln(latency), nan if the tier does not determine it
    groups                   the group of each kernel's coefficients; None: no group
    phases, coefficients     input of the equations
    """

    equations_s: Array
    latency_s: Array
    log_std: Array
    groups: tuple[str | None, ...]
    phases: Phases
    coefficients: Array


def kernel_times(
    operators: Sequence[Operator],
    gpu: GpuSpec,
    groups: Mapping[str, Mapping[str, float]],
    *,
    sm_clock_mhz: Array,
    warm: Array | BoolArray,
    known: KnownTiles | None = None,
    tile_predictors: Mapping[str, PredictorRecord] = EMPTY,
    residuals: Mapping[str, Tier] = EMPTY,
) -> KernelTimes:
    """Times that a host would measure for each kernel, launched repeatedly by itself at its own clock.

    sm_clock_mhz, warm (n,): SM clock, and as in `warm_ratio` what launches use in turn: operands that fit stay in L2 between them.
    known: tiles from kernel names; without them from `tile_predictors`, else the fastest candidate.  A residual tier
    that holds only residuals of predicted tiles needs these, so its kernels always use predicted tiles.
    """
    coefficients, served = coefficient_rows(groups, [group_key(operator) for operator in operators])
    unnamed = [group is not None and group in residuals and "named" not in residuals[group] for group in served]
    tiles = _merged_tiles(known, np.array(unnamed, dtype=np.bool_), predicted_tiles(operators, gpu, tile_predictors, coefficients))
    phases = lower(operators, gpu, coefficients, tiles)
    clock_hz, ratio = sm_clock_mhz * HZ_PER_MHZ, warm_ratio(phases, gpu, warm)
    equations_s = measured_seconds(kernel_seconds(phases, coefficients, clock_hz, ratio), coefficients)
    features = phase_features(phases, coefficients, clock_hz, ratio) if residuals else None
    named = None if known is None else np.isfinite(known.tile_m) & ~np.array(unnamed, dtype=np.bool_)
    correction, log_std = log_corrections(operators, served, residuals, named, features)
    return KernelTimes(
        equations_s=equations_s,
        latency_s=equations_s * np.exp(correction),
        log_std=log_std,
        groups=tuple(served),
        phases=phases,
        coefficients=coefficients,
    )


def _merged_tiles(known: KnownTiles | None, unnamed: BoolArray, predicted: KnownTiles | None) -> KnownTiles | None:
    """Known tiles, except for the kernels `unnamed`, filled up with predicted tiles."""
    if known is None:
        return predicted
    found = {name: np.where(unnamed, np.nan, getattr(known, name)) for name in KnownTiles.__slots__}
    unknown = np.isnan(found["tile_m"])
    if predicted is not None:
        found = {name: np.where(unknown, getattr(predicted, name), tile) for name, tile in found.items()}
    return KnownTiles(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Predictions for kernels, columns of shape (n,).

    Latency of one launch and power while it runs (nan: none), each with the standard deviation of its logarithm (nan: unknown), and
    group (None: none).  limited: power would exceed the board's limit, and is stated as the limit; such a board lowers its clock,
    which the latency here ignores.
    """

    latency_s: Array
    latency_ln_std: Array
    power_w: Array
    power_ln_std: Array
    groups: tuple[str | None, ...]
    limited: BoolArray


def predict_kernels(
    operators: Sequence[Operator],
    bundle: Bundle,
    gpu: GpuSpec,
    *,
    sm_clock_mhz: Array,
    warm: Array | BoolArray,
    known: KnownTiles | None = None,
    temperature_c: Array | None = None,
) -> KernelTable:
    """Latency and power of kernels, each launched repeatedly by itself at its own clock.

    sm_clock_mhz, warm (n,): SM clock, and as in `warm_ratio` what launches use in turn: operands that fit stay in L2 between them.
    temperature_c (n,): temperature of the die, nan if unknown; default: the temperature of the bundle's boards at this power.
    """
    times = bundle_times(operators, bundle, gpu, sm_clock_mhz=sm_clock_mhz, warm=warm, known=known)
    power_w, paced_share = np.full(len(operators), np.nan), np.zeros(len(operators))
    parts = alone_parts_w(times, bundle, gpu, sm_clock_mhz, warm, temperature_c)
    if parts:
        power_w = np.minimum(sum(parts.values()), gpu.power_limit_w)
        paced_share = np.minimum(sum(watt for name, watt in parts.items() if name not in AT_ANY_PACE) / power_w, 1.0)
    correction, tier_ln_std = log_power_corrections(operators, times.groups, bundle.residuals, power_w)
    wanted_w = power_w * np.exp(correction)
    return KernelTable(
        latency_s=times.latency_s,
        latency_ln_std=times.log_std,
        power_w=np.minimum(wanted_w, gpu.power_limit_w),
        power_ln_std=np.hypot(tier_ln_std, paced_share * np.nan_to_num(times.log_std)),
        groups=times.groups,
        limited=wanted_w >= gpu.power_limit_w,
    )


AT_ANY_PACE: Final = frozenset({"idle", "active", "busy", "leakage"})
"""Parts of power that do not depend on the latency of a launch."""


def bundle_times(
    operators: Sequence[Operator], bundle: Bundle, gpu: GpuSpec, *, sm_clock_mhz: Array, warm: Array | BoolArray, known: KnownTiles | None
) -> KernelTimes:
    """`kernel_times` with the coefficients, tiers and predictors of a bundle.

    Libraries launch other kernels on another architecture than the fitted one: a tier's corrections then worsen forecasts (fp32 products of
    a V100 from an A100: 13.2 instead of 8.3 %), and only its deviation counts.
    """
    times = kernel_times(
        operators,
        gpu,
        group_coefficients(bundle, gpu.architecture),
        sm_clock_mhz=sm_clock_mhz,
        warm=warm,
        known=known,
        tile_predictors=bundle.tile_predictors,
        residuals=bundle.residuals,
    )
    return times if gpu.architecture == bundle.gpu.architecture else replace(times, latency_s=times.equations_s)


def alone_parts_w(
    times: KernelTimes, bundle: Bundle, gpu: GpuSpec, sm_clock_mhz: Array, warm: Array | BoolArray, temperature_c: Array | None
) -> dict[str, Array]:
    """Power of kernels by `estimator.model.power.PARTS` without a limit [W], each of shape (n,); empty for a bundle without power."""
    model = power_model(bundle, gpu)
    if model is None:
        return {}
    load = kernel_load(times.phases, gpu, times.coefficients, sm_clock_mhz, warm, times.latency_s)
    point = board_tables(bundle, gpu).at(sm_clock_mhz)
    rate = warm_events(load.events, load.warm_ratio) / times.latency_s[:, None]
    return power_parts_w(model, point, load.busy, rate * model.event_energy_j * term_scale(model, point), temperature_c)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLoad:
    """Load of the board by kernels launched by themselves, columns of shape (n,).

    events       (n, 7) of POWER_TERMS per launch, operands cold
    warm_ratio   working set in L2 sizes, infinite for cold operands
    busy         share of the busy power that is drawn
    """

    events: Array
    warm_ratio: Array
    busy: Array


def kernel_load(
    phases: Phases, gpu: GpuSpec, coefficients: Array, sm_clock_mhz: Array, warm: Array | BoolArray, latency_s: Array
) -> KernelLoad:
    """The load of kernels from their phases, coefficients and latency from launch to launch."""
    ratio = warm_ratio(phases, gpu, warm)
    gpu_s = kernel_seconds(phases, coefficients, sm_clock_mhz * HZ_PER_MHZ, ratio)
    gpu_share = np.minimum(gpu_s / measured_seconds(gpu_s, coefficients), 1.0)
    return KernelLoad(
        events=power_events(phases, gpu, 0.0),
        warm_ratio=ratio,
        busy=busy_share(latency_s, phases.occupied, gpu_share, sm_clock_mhz * HZ_PER_MHZ),
    )


def warm_events(events: Array, ratio: Array) -> Array:
    """Events of kernels launched by themselves, shape (n, 7): warm operands that fit into L2 do not cross DRAM."""
    result = events.copy()
    result[:, DRAM_TERMS] *= warm_dram_share(ratio)[:, None]
    return result
