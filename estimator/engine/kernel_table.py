"""Kernels measured or requested one by one, as a table: operators, each at its own clock → latency and power.

Unlike an estimate of a workload, this includes the time that a measuring host adds (the launch floor) and the time that
repeated launches of one kernel save (operands that stay in L2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle, group_coefficients, same_kernels
from estimator.engine.board import board_tables, held_limit, power_model
from estimator.model.coefficients import CoefficientTable, group_key
from estimator.model.kriging import phase_features
from estimator.model.lowering import KnownTiles, lower
from estimator.model.phases import Phases
from estimator.model.power import POWER_TERMS, busy_share, power_events, power_parts_w, term_scale, warm_dram_share
from estimator.model.power_limit import Held, held_power_w, highest_clock_mhz
from estimator.model.residuals import log_corrections, log_power_corrections
from estimator.model.tier_records import Tier
from estimator.model.tile_choice import PredictorRecord, predicted_tiles
from estimator.model.timeline import kernel_seconds, measured_seconds, warm_ratio
from estimator.uncertainty.laboratory import scale_of
from estimator.vocabulary.frozen import EMPTY
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, NORMAL_90, Array, BoolArray, IntArray
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator

DRAM_TERMS: Final = [POWER_TERMS.index("dram"), POWER_TERMS.index("dram_path")]


@frozen
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

    def scaled(self, factor: Array | float) -> "KernelTimes":
        """The same kernels where all times are larger by a factor, a number or shape (n,)."""
        return replace(self, equations_s=self.equations_s * factor, latency_s=self.latency_s * factor)

    def select(self, index: IntArray) -> "KernelTimes":
        """The kernels `index`."""
        columns = {name: getattr(self, name)[index] for name in ("equations_s", "latency_s", "log_std", "coefficients")}
        return replace(self, **columns, phases=self.phases.select(index), groups=tuple(self.groups[i] for i in index.tolist()))


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
    coefficients, served = CoefficientTable(groups).rows(map(group_key, operators))
    only_predicted = [group is not None and group in residuals and "named" not in residuals[group] for group in served]
    unnamed = np.array(only_predicted, dtype=np.bool_)
    tiles = _merged_tiles(known, unnamed, predicted_tiles(operators, gpu, tile_predictors, coefficients, served))
    phases = lower(operators, gpu, coefficients, tiles)
    clock_hz, ratio = sm_clock_mhz * HZ_PER_MHZ, warm_ratio(phases, gpu, warm)
    equations_s = measured_seconds(kernel_seconds(phases, coefficients, clock_hz, ratio), coefficients)
    features = phase_features(phases, coefficients, clock_hz, ratio) if residuals else None
    named = None if known is None else np.isfinite(known.tile_m) & ~unnamed
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


@frozen
class KernelTable:
    """Predictions for kernels, columns of shape (n,).

    Latency of one launch and power while it runs (nan: none), each with the standard deviation of its logarithm (nan: unknown), the actual
    clock (a board at its power limit lowers that of sustained kernels), and group (None: none).
    """

    latency_s: Array
    latency_ln_std: Array
    power_w: Array
    power_ln_std: Array
    sm_clock_mhz: Array
    groups: tuple[str | None, ...]


def predict_kernels(
    operators: Sequence[Operator],
    bundle: Bundle,
    gpu: GpuSpec,
    *,
    sm_clock_mhz: Array,
    warm: Array | BoolArray,
    known: KnownTiles | None = None,
    sustained: BoolArray | None = None,
    scale: Array | None = None,
) -> KernelTable:
    """Latency and power of kernels, each launched repeatedly by itself at its own clock.

    sm_clock_mhz, warm (n,): SM clock, and as in `warm_ratio` what launches use in turn: operands that fit stay in L2 between them.
    sustained (n,): kernels that ran long enough for the power limit to lower their clock, which is not known; default: all.
    scale (n,): of the collection of each kernel; default: the mean of the bundle's collections (`estimator.uncertainty.laboratory`).
    """
    times = bundle_times(operators, bundle, gpu, sm_clock_mhz=sm_clock_mhz, warm=warm, known=known)
    times = times.scaled(scale_of(bundle, None) if scale is None else scale)
    parts = alone_parts_w(times, bundle, gpu, sm_clock_mhz, warm)
    free_w = sum(parts.values()) if parts else np.full(len(operators), np.nan)
    paced_share = np.zeros(len(operators))
    if parts:
        paced_share = np.minimum(sum(watt for name, watt in parts.items() if name not in AT_ANY_PACE) / free_w, 1.0)
    correction, tier_ln_std = log_power_corrections(operators, times.groups, bundle.residuals, np.minimum(free_w, gpu.power_limit_w))
    paced_std = paced_share * np.nan_to_num(times.log_std)
    power_ln_std = np.where(np.isfinite(tier_ln_std), np.hypot(tier_ln_std, paced_std), _group_std(bundle, times.groups, "power"))
    wanted_w, held = free_w * np.exp(correction), held_limit(bundle, gpu, gpu.power_limit_w)
    table = KernelTable(
        latency_s=times.latency_s,
        latency_ln_std=np.where(np.isfinite(times.log_std), times.log_std, _group_std(bundle, times.groups, "latency")),
        power_w=np.minimum(wanted_w, gpu.power_limit_w),
        power_ln_std=power_ln_std,
        sm_clock_mhz=sm_clock_mhz,
        groups=times.groups,
    )
    near = wanted_w * np.exp(NORMAL_90 * np.hypot(np.nan_to_num(power_ln_std, nan=UNTESTED_POWER_STD), held.ln_std)) >= held.power_w
    slowed = np.flatnonzero(near if sustained is None else near & sustained)
    return _limited(table, times, correction, slowed, bundle, gpu, warm, held) if len(slowed) else table


UNTESTED_POWER_STD: Final = 0.15
"""Standard deviation of ln(power) of kernels alone at the limit, if none was measured alone: fits to the powers of two tables (H200, GB200)
err by 12 and 13 % themselves."""


def _group_std(bundle: Bundle, groups: Sequence[str | None], quantity: str) -> Array:
    """Stated standard deviation of ln of a quantity for kernels of these groups, shape (n,); nan if unknown."""
    stated = bundle.uncertainty.get(quantity, {}).get("groups", {})
    return np.array([float(stated.get(group, np.nan)) for group in groups])


def _limited(
    table: KernelTable,
    times: KernelTimes,
    correction: Array,
    slowed: IntArray,
    bundle: Bundle,
    gpu: GpuSpec,
    warm: Array | BoolArray,
    held: Held,
) -> KernelTable:
    """The table with the rows `slowed` at the clock at which the board holds its limit, and the effect of its error on their latency."""
    asked_mhz, own, warm = table.sm_clock_mhz[slowed], times.select(slowed), warm[slowed]
    ratio = warm_ratio(own.phases, gpu, warm)
    factor = np.exp(correction[slowed])
    std = np.hypot(np.nan_to_num(table.power_ln_std[slowed], nan=UNTESTED_POWER_STD), held.ln_std)

    def equations_s(clock_mhz: Array) -> Array:
        return measured_seconds(kernel_seconds(own.phases, own.coefficients, clock_mhz * HZ_PER_MHZ, ratio), own.coefficients)

    def at(clock_mhz: Array) -> KernelTimes:  # with the same tiles and residuals
        return own.scaled(equations_s(clock_mhz) / equations_s(asked_mhz))

    def power_w(clock_mhz: Array) -> Array:
        return factor * sum(alone_parts_w(at(clock_mhz), bundle, gpu, clock_mhz, warm).values())

    clock, lower, upper = (
        highest_clock_mhz(power_w, held.power_w * np.exp(shift), gpu.sm_clock_min_mhz, asked_mhz) for shift in (0.0 * std, -std, std)
    )
    own_std = 0.5 * np.log(at(lower).latency_s / at(upper).latency_s)
    changed = {name: getattr(table, name).copy() for name in ("latency_s", "latency_ln_std", "power_w", "sm_clock_mhz")}
    changed["sm_clock_mhz"][slowed] = clock
    changed["latency_s"][slowed] = at(clock).latency_s
    changed["latency_ln_std"][slowed] = np.hypot(changed["latency_ln_std"][slowed], own_std)
    changed["power_w"][slowed], _ = held_power_w(power_w(clock), clock, asked_mhz, gpu.sm_clock_min_mhz, held.power_w)
    return replace(table, **changed)


AT_ANY_PACE: Final = frozenset({"idle", "active", "busy", "leakage"})
"""Parts of power that do not depend on the latency of a launch."""


def bundle_times(
    operators: Sequence[Operator], bundle: Bundle, gpu: GpuSpec, *, sm_clock_mhz: Array, warm: Array | BoolArray, known: KnownTiles | None
) -> KernelTimes:
    """`kernel_times` with the coefficients, tiers and predictors of a bundle.

    A tier's corrections of a kernel on the fitted GPU belong to the same kernel on another; not to other kernels (`same_kernels`: fp32
    products of a V100 from an A100 err by 13.2 instead of 8.3 %), for which only their deviation counts.
    """
    on = partial(kernel_times, operators, sm_clock_mhz=sm_clock_mhz, warm=warm, known=known, tile_predictors=bundle.tile_predictors)
    own = on(bundle.gpu, group_coefficients(bundle, bundle.gpu), residuals=bundle.residuals)
    if gpu == bundle.gpu:
        return own
    times = on(gpu, group_coefficients(bundle, gpu))
    correction = own.latency_s / own.equations_s if same_kernels(bundle, gpu) else 1.0
    return replace(times, latency_s=times.equations_s * correction, log_std=own.log_std)


def alone_parts_w(times: KernelTimes, bundle: Bundle, gpu: GpuSpec, sm_clock_mhz: Array, warm: Array | BoolArray) -> dict[str, Array]:
    """Power of kernels by `estimator.model.power.PARTS` without a limit [W], each of shape (n,); empty for a bundle without power."""
    model = power_model(bundle, gpu)
    if model is None:
        return {}
    load = kernel_load(times.phases, gpu, times.coefficients, sm_clock_mhz, warm, times.latency_s)
    point = board_tables(bundle, gpu).at(sm_clock_mhz)
    rate = warm_events(load.events, load.warm_ratio) / times.latency_s[:, None]
    return power_parts_w(model, point, load.busy, rate * model.event_energy_j * term_scale(model, point))


@frozen
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
