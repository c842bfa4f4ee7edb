"""Kernels measured or asked for one by one, as a table: operators, each at its own clock → latency and power.

Unlike an estimate of a workload this includes what a measuring host adds (the launch floor) and what repeated
launches of one kernel save (operands that stay in L2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.calibration import board_tables, power_model
from estimator.coefficients import coefficient_rows, group_key
from estimator.gpu import GpuSpec
from estimator.kernel_times import kernel_times, merged_tiles
from estimator.kernels.registry import KnownTiles, lower
from estimator.phases import Phases
from estimator.power import (
    POWER_TERMS,
    busy_share,
    leakage_power_w,
    power_events,
    static_power_w,
    term_scale,
    warm_dram_share,
)
from estimator.power_residuals import log_power_corrections
from estimator.quantities import HZ_PER_MHZ, Array, BoolArray
from estimator.tiles.predictor import predicted_tiles
from estimator.timeline import kernel_seconds, measured_seconds, warm_ratio
from estimator.workload import Operator

DRAM_TERMS: Final = [POWER_TERMS.index("dram"), POWER_TERMS.index("dram_path")]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Predictions for kernels, columns of shape (n,).

    One launch's latency with the standard deviation of its logarithm (nan: unknown), power while it runs (nan: none) with that
    of its own, group (None: none).  limited: power would be more than the board's limit, and is stated as the limit; such a board
    lowers its clock, which the latency here leaves out.
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
    warm: BoolArray,
    known: KnownTiles | None = None,
    temperature_c: Array | None = None,
) -> KernelTable:
    """Latency and power of kernels, each launched over and over by itself at its own clock.

    sm_clock_mhz, warm (n,): SM clock, and whether operands stay in L2 from launch to launch as far as they fit.
    temperature_c (n,): of the die, nan where unknown; without it, as warm as the bundle's boards were at such power.
    """
    groups = {name: group.coefficients for name, group in bundle.groups.items()}
    times = kernel_times(
        operators,
        gpu,
        groups,
        sm_clock_mhz=sm_clock_mhz,
        warm=warm,
        known=known,
        tile_predictors=bundle.tile_predictors,
        residuals=bundle.residuals,
    )
    coefficients, _ = coefficient_rows(groups, [group_key(o) for o in operators])
    phases = lower(
        operators, gpu, coefficients, merged_tiles(known, predicted_tiles(operators, gpu, bundle.tile_predictors, coefficients))
    ).phases
    load = kernel_load(phases, gpu, coefficients, sm_clock_mhz, warm, times.latency_s)
    power_w, paced_share = _power_w(bundle, gpu, load, temperature_c)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLoad:
    """What kernels launched by themselves ask of the board, columns of shape (n,).

    sm_clock_mhz, latency_s   as given
    events                    (n, 7) of POWER_TERMS per launch, operands cold
    warm_ratio                working set in L2 sizes, infinite for cold operands
    busy                      share of the busy power that flows
    """

    sm_clock_mhz: Array
    latency_s: Array
    events: Array
    warm_ratio: Array
    busy: Array


def kernel_load(phases: Phases, gpu: GpuSpec, coefficients: Array, sm_clock_mhz: Array, warm: BoolArray, latency_s: Array) -> KernelLoad:
    """The load of kernels, of their phases and coefficients, that take `latency_s` from launch to launch."""
    ratio = warm_ratio(phases, gpu, warm)
    gpu_s = kernel_seconds(phases, coefficients, sm_clock_mhz * HZ_PER_MHZ, ratio)
    gpu_share = np.minimum(gpu_s / measured_seconds(gpu_s, coefficients), 1.0)
    return KernelLoad(
        sm_clock_mhz=sm_clock_mhz,
        latency_s=latency_s,
        events=power_events(phases, gpu, 0.0),
        warm_ratio=ratio,
        busy=busy_share(latency_s, phases.occupied, gpu_share, sm_clock_mhz * HZ_PER_MHZ),
    )


def warm_events(events: Array, ratio: Array, knee: float, sharpness: float) -> Array:
    """Events of kernels launched by themselves, shape (n, 7): warm operands that fit into L2 do not cross DRAM."""
    result = events.copy()
    result[:, DRAM_TERMS] *= warm_dram_share(ratio, knee, sharpness)[:, None]
    return result


def _power_w(bundle: Bundle, gpu: GpuSpec, load: KernelLoad, temperature_c: Array | None) -> tuple[Array, Array]:
    """Power [W], and the share of it that is energy per launch over the latency, which a wrong latency moves; shapes (n,)."""
    model = power_model(bundle)
    if model is None:
        return np.full(len(load.latency_s), np.nan), np.zeros(len(load.latency_s))
    point = board_tables(bundle, gpu).at(load.sm_clock_mhz)
    rate = warm_events(load.events, load.warm_ratio, model.warm_knee, model.warm_sharpness) / load.latency_s[:, None]
    paced_w = (rate * model.event_energy_j * term_scale(model, point)).sum(axis=1)
    other_w = static_power_w(model, point, load.busy) + paced_w
    power_w: Array = np.minimum(other_w + leakage_power_w(model, point, other_w, temperature_c), gpu.power_limit_w)
    return power_w, np.minimum(paced_w / power_w, 1.0)
