"""Kernels measured or asked for one by one, as a table: operators, each at its own clock → latency and power.

Unlike an estimate of a workload this includes what a measuring host adds (the launch floor) and what repeated
launches of one kernel save (operands that stay in L2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.bundle_content import Bundle
from estimator.coefficients import COLUMN, coefficient_rows, group_key
from estimator.gpu import GpuSpec
from estimator.kernel_times import kernel_times, merged_tiles
from estimator.kernels.registry import KnownTiles, lower
from estimator.phases import Phases
from estimator.power import POWER_TERMS, busy_share, power_events, static_power_w, tensor_rate, term_scale
from estimator.power import events_per_second as full_rates
from estimator.prediction import board_tables, power_model
from estimator.quantities import HZ_PER_MHZ, Array, BoolArray
from estimator.tile_predictor import predicted_tiles
from estimator.timeline import dram_share, warm_ratio
from estimator.workload import Operator

WARM_KNEE: Final = 0.8
"""Working set, in L2 sizes, from which on repeated launches of one kernel go back to DRAM."""

WARM_SHARPNESS: Final = 4.0
"""Sharpness of that transition."""

DRAM_TERMS: Final = [POWER_TERMS.index("dram"), POWER_TERMS.index("dram_path")]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Predictions for kernels, columns of shape (n,).

    One launch's latency with the standard deviation of its logarithm (nan: unknown), power while it runs (nan: none),
    group (None: none).
    """

    latency_s: Array
    latency_ln_std: Array
    power_w: Array
    groups: tuple[str | None, ...]


def predict_kernels(
    operators: Sequence[Operator], bundle: Bundle, gpu: GpuSpec, *, sm_clock_mhz: Array, warm: BoolArray, known: KnownTiles | None = None
) -> KernelTable:
    """Latency and power of kernels, each launched over and over by itself at its own clock.

    sm_clock_mhz, warm (n,): SM clock, and whether operands stay in L2 from launch to launch as far as they fit.
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
    phases = lower(operators, gpu, coefficients, merged_tiles(known, predicted_tiles(operators, gpu, bundle.tile_predictors))).phases
    events = kernel_events(phases, gpu, coefficients, warm_ratio(phases, gpu, warm))
    return KernelTable(
        latency_s=times.latency_s,
        latency_ln_std=times.log_std,
        power_w=_power_w(bundle, gpu, events, phases.occupied, times.latency_s, sm_clock_mhz),
        groups=times.groups,
    )


def kernel_events(phases: Phases, gpu: GpuSpec, coefficients: Array, ratio: Array) -> Array:
    """Events of POWER_TERMS of kernels launched by themselves, shape (n, 7): warm operands that fit into L2 do not cross DRAM.

    ratio: as from `warm_ratio`.  The knees that a latency fit finds are softer: DRAM time shows late, where other phases hide it.
    """
    events = power_events(phases, gpu, 0.0)
    usual = np.zeros_like(coefficients)
    usual[:, COLUMN["l2_knee"]], usual[:, COLUMN["l2_knee_exponent"]] = WARM_KNEE, WARM_SHARPNESS
    events[:, DRAM_TERMS] *= dram_share(usual, ratio)[:, None]
    return events


def _power_w(bundle: Bundle, gpu: GpuSpec, events: Array, occupied: Array, latency_s: Array, sm_clock_mhz: Array) -> Array:
    model = power_model(bundle)
    if model is None:
        return np.full(len(latency_s), np.nan)
    point = board_tables(bundle, gpu).at(sm_clock_mhz)
    rate = events / latency_s[:, None]
    if model.concavity != 1.0:
        full = full_rates(gpu, sm_clock_mhz * HZ_PER_MHZ, tensor_rate(gpu))
        rate = full * (rate / full) ** model.concavity
    dynamic = (rate * model.event_energy_j * term_scale(model, point)).sum(axis=1)
    power_w: Array = np.minimum(static_power_w(model, point, busy_share(latency_s, occupied)) + dynamic, gpu.power_limit_w)
    return power_w
