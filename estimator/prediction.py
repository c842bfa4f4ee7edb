"""Workload + bundle + operating point → Estimate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from estimator.arguments import require
from estimator.bundles.content import Bundle, group_table
from estimator.calibration import board_tables, power_model
from estimator.clock_spread import FarClock, far_clock
from estimator.coefficients import group_key
from estimator.domain import (
    Validity,
    clock_warning,
    lockable,
    no_rate_warning,
    simulated_notes,
    step_warning,
    validity_of,
)
from estimator.forecast import Forecast, forecast_lines, forecast_of, limit_notes
from estimator.gpu import GpuSpec
from estimator.kernel_estimates import KernelColumns, KernelEstimate
from estimator.kernels.registry import lower
from estimator.memory import memory_warnings
from estimator.phases import EVENTS, Phases
from estimator.power import (
    BoardTables,
    PowerModel,
    leakage_power_w,
    power_events,
    static_power_w,
    term_scale,
    workload_power_w,
)
from estimator.power_limit import (
    LIMIT_TOLERANCE,
    STAYS_ABOVE,
    BoardCurve,
    Ranges,
    Settled,
    clock_grid,
    held_power_w,
    near_limit,
    ranges,
    std_of,
)
from estimator.quantities import HZ_PER_MHZ, Array
from estimator.reckoning import workload_warnings
from estimator.residuals import mean_log_corrections
from estimator.settings import asked_clocks, host_launch, power_limit, with_efficiency
from estimator.spread import group_shares, joined, latency_sources, power_sources, unfitted_groups
from estimator.tiles.predictor import predicted_tiles
from estimator.timeline import SweepParts, launch_bound_share, sweep_parts, sweep_seconds, workload_seconds
from estimator.unseen import Kind, shape_excesses, unseen_lines, unseen_shares
from estimator.untried import Loading, Untried, untried_precisions, untried_shares
from estimator.workload import COMPLETED, Workload

LAUNCH_BOUND_NOTE: Final = 0.3
"""Share of host launches in the latency above which the host, not the GPU, decides: say so."""

COMPLETED_NOTE: Final = 0.25
"""Share of GPU time in operators that the workload file did not list above which the user should know."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Prediction for one workload at one clock.

    latency_s, power_w, energy_j of one iteration with standard deviations (nan where the bundle cannot tell) and the limits `…_low` and
    `…_high` of their 90 % intervals, which are lopsided near a power limit.  `sm_clock_mhz` is the clock that runs: below
    `asked_clock_mhz` where the power limit lowers it, by an amount that is uncertain too.  `warnings` say how the
    request leaves what the bundle was fitted on; `notes` what is worth knowing about an answer that holds.  `validity`: whether it does:
    "inside", "outside" (kernels, shapes or precisions that the fit has not seen take 1 % of the GPU time or more, or it has not seen the
    clock), or "forecast" (another or a changed board).
    """

    workload: str
    bundle: str
    gpu: str
    asked_clock_mhz: float
    sm_clock_mhz: float
    latency_s: float
    latency_s_std: float
    power_w: float
    power_w_std: float
    energy_j: float
    energy_j_std: float
    sm_clock_mhz_low: float
    sm_clock_mhz_high: float
    latency_s_low: float
    latency_s_high: float
    power_w_low: float
    power_w_high: float
    energy_j_low: float
    energy_j_high: float
    gpu_s: float
    host_s: float
    launch_bound_share: float
    completed_share: float
    validity: Validity
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    _kernels: "KernelColumns" = field(repr=False, compare=False)

    @cached_property
    def kernels(self) -> tuple[KernelEstimate, ...]:
        """The operators, in the workload's order."""
        return self._kernels.rows()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A workload lowered onto a GPU with a bundle's coefficients, for any number of clocks.

    excesses as from `shape_excesses`; kinds of the operators; priors: their groups of which the fit has seen no kernel.
    """

    workload: Workload
    gpu: GpuSpec
    phases: Phases
    parts: SweepParts
    coefficients: Array
    groups: tuple[str | None, ...]
    counts: Array
    host_share: float
    overlap_exponent: float
    log_correction: Array
    completed: Array
    untried: tuple[Untried | None, ...]
    excesses: tuple[float, ...]
    kinds: tuple[Kind, ...]
    priors: frozenset[str]
    forecast: Forecast | None


def estimate(
    workload: Workload,
    bundle: Bundle,
    *,
    sm_clock_mhz: float | Sequence[float] | None = None,
    gpu: GpuSpec | None = None,
    power_cap_w: float | None = None,
    host_launch_s: float | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> list[Estimate]:
    """Latency, power and energy of one iteration of a workload, at one or several SM clocks.

    sm_clock_mhz: asked clocks [MHz]; None asks for the clock of the published peak rates.  gpu: another GPU than the bundle's (a forecast).
    power_cap_w: power limit [W], the GPU's own if None.  host_launch_s: host cost of one framework operator [s].
    efficiency: module → share of its published rate that is reached, in place of the fitted coefficient.

    Raises OperatingPointError for a clock outside the GPU's range and for settings that cannot be, ArgumentError for those of another kind.
    """
    require(workload, Workload, "workload", "a Workload, as read_workload gives it")
    require(bundle, Bundle, "bundle", "a Bundle, as load_bundle gives it")
    require(gpu, (GpuSpec, type(None)), "gpu", "a GpuSpec, as load_gpu gives it")
    spec = gpu or bundle.gpu
    asked, limit = asked_clocks(sm_clock_mhz, spec), power_limit(power_cap_w, spec)
    prepared = prepare(workload, bundle, spec, efficiency or {})
    launch = bundle.host.launch_s if host_launch_s is None else host_launch(host_launch_s)
    model, tables = power_model(bundle), board_tables(bundle, spec)
    columns = _evaluate(prepared, tables, model, asked, launch)
    free_w, settled, curve = columns.power_w, asked, None
    if model is not None and np.any(free_w > limit):
        curve = _curve(prepared, tables, model, asked, launch)
        settled = curve.settled_mhz(limit, asked)
        columns = _evaluate(prepared, tables, model, settled, launch)
    spreads = _spreads(prepared, bundle, columns, far_clock(bundle, tables, settled, columns.power_w))
    if model is not None and curve is None and np.any(near_limit(free_w, limit, spreads.power_ln)):
        curve = _curve(prepared, tables, model, asked, launch)
    held_w, _ = held_power_w(columns.power_w, settled, asked, spec.sm_clock_min_mhz, limit)
    point = Settled(asked_mhz=asked, free_w=free_w, clock_mhz=settled, latency_s=columns.latency_s, power_w=held_w)
    numbers = _numbers(point, ranges(point, None if curve is None else [curve], limit, spreads.latency_ln, spreads.power_ln))
    moved = prepared.phases.events[:, EVENTS.index("dram")]
    stuck, large = no_rate_warning(workload.operators, prepared.phases.ideal_math, spec), memory_warnings(workload, moved, spec)
    shares = unseen_shares(prepared.kinds, prepared.priors, spreads.kernels)
    unseen, of_clock = unseen_lines(workload, bundle, prepared.groups, prepared.excesses, prepared.priors, shares, len(asked))
    outside = [(*stuck, *large, *unseen[number]) for number in of_clock.tolist()]
    locked = sm_clock_mhz is None or bool(lockable(spec, asked).all())
    return [
        _estimate(prepared, bundle, columns, spreads, numbers, i, limit, outside[i], () if locked else step_warning(spec, [f]))
        for i, f in enumerate(asked.tolist())
    ]


def prepare(workload: Workload, bundle: Bundle, gpu: GpuSpec, efficiency: Mapping[str, float]) -> Prepared:
    """The clock-independent part of an estimate."""
    operators = workload.operators
    coefficients, served = bundle.once(group_table).rows([group_key(o) for o in operators])
    fitted, coefficients = coefficients, with_efficiency(coefficients, efficiency)
    lowered = lower(operators, gpu, coefficients, predicted_tiles(operators, gpu, bundle.tile_predictors, coefficients))
    counts = np.array(workload.counts)
    untried = untried_precisions(bundle, operators, served)
    excesses = shape_excesses(operators, served, bundle.domain)
    return Prepared(
        workload=workload,
        gpu=gpu,
        phases=lowered.phases,
        parts=sweep_parts(lowered.phases, coefficients),
        coefficients=coefficients,
        groups=tuple(served),
        counts=counts,
        host_share=float(counts @ np.array([o.host_share for o in operators])) if len(operators) else 0.0,
        overlap_exponent=bundle.host.overlap_exponent,
        log_correction=mean_log_corrections(operators, served, bundle.residuals),
        completed=np.array([o.origin.startswith(COMPLETED) for o in operators], dtype=np.float64),
        untried=untried,
        excesses=excesses,
        kinds=tuple(Kind(group, odd, excess > 0.0) for group, odd, excess in zip(served, untried, excesses, strict=True)),
        priors=frozenset(unfitted_groups(bundle, served)),
        forecast=forecast_of(bundle.gpu, gpu, efficiency, fitted),
    )


class _Columns(NamedTuple):
    """Predictions over the clocks of a grid.

    seconds, kernel_w (n, c) of one launch; gpu_s, latency_s, power_w (c,) of an iteration; host_s its launch time.
    """

    seconds: Array
    kernel_w: Array
    gpu_s: Array
    latency_s: Array
    power_w: Array
    host_s: float


def _evaluate(prepared: Prepared, tables: BoardTables, model: PowerModel | None, grid_mhz: Array, launch_s: float) -> _Columns:
    """Latency and power at every clock of a grid."""
    clock_hz = grid_mhz * HZ_PER_MHZ
    seconds = sweep_seconds(prepared.parts, clock_hz) * np.exp(prepared.log_correction)[:, None]
    gpu_s: Array = prepared.counts @ seconds
    host_s = launch_s * prepared.host_share
    latency_s = workload_seconds(gpu_s, np.full_like(gpu_s, host_s), prepared.overlap_exponent)
    if model is None:
        nothing = np.full_like(gpu_s, np.nan)
        return _Columns(
            seconds=seconds, kernel_w=np.full_like(seconds, np.nan), gpu_s=gpu_s, latency_s=latency_s, power_w=nothing, host_s=host_s
        )
    point = tables.at(grid_mhz)
    events = power_events(prepared.phases, prepared.gpu, model.l2_credit)
    dynamic = (events @ (model.event_energy_j * term_scale(model, point)).T) / seconds
    other_w = static_power_w(model, point, np.minimum(gpu_s / latency_s, 1.0)) + prepared.counts @ (dynamic * seconds) / latency_s
    leakage_w = leakage_power_w(model, point, other_w)
    power_w = other_w + leakage_w
    kernel_w = static_power_w(model, point, np.ones_like(gpu_s)) + leakage_w + dynamic
    return _Columns(seconds=seconds, kernel_w=kernel_w, gpu_s=gpu_s, latency_s=latency_s, power_w=power_w, host_s=host_s)


def _curve(prepared: Prepared, tables: BoardTables, model: PowerModel, asked_mhz: Array, launch_s: float) -> BoardCurve:
    """The workload over all clocks that can be locked, and those asked for."""
    grid = clock_grid(prepared.gpu, asked_mhz)
    seconds = sweep_seconds(prepared.parts, grid.curve_clocks_mhz() * HZ_PER_MHZ)
    gpu_s = grid.over_clocks((prepared.counts * np.exp(prepared.log_correction)) @ seconds)
    latency_s = workload_seconds(gpu_s, np.full_like(gpu_s, launch_s * prepared.host_share), prepared.overlap_exponent)
    point = tables.at(grid.clock_mhz)
    events = prepared.counts @ power_events(prepared.phases, prepared.gpu, model.l2_credit)
    energy_j = term_scale(model, point) @ (events * model.event_energy_j)
    power_w = workload_power_w(model, point, gpu_s, latency_s, energy_j)
    return BoardCurve(clock_mhz=grid.clock_mhz, latency_s=latency_s, power_w=power_w, lockable=grid.lockable)


class _Spreads(NamedTuple):
    """At c clocks: host's share of the latency (c,), kernels' of the GPU time (n, c), deviations of ln(latency) and ln(power) (c,).

    untried: share of the GPU time by untried precision, as `untried_shares`.
    """

    launch: Array
    kernels: Array
    untried: Mapping[Untried, Loading]
    latency_ln: Array
    power_ln: Array


def _spreads(prepared: Prepared, bundle: Bundle, columns: _Columns, far: FarClock) -> _Spreads:
    launch = launch_bound_share(columns.gpu_s, np.full_like(columns.gpu_s, columns.host_s), prepared.overlap_exponent)
    kernels = prepared.counts[:, None] * columns.seconds / np.maximum(columns.gpu_s, 1e-300)
    single = len(launch) == 1  # numbers add several times faster than arrays of one
    paced: Loading = float(launch[0]) if single else launch
    weights: Array | Sequence[Loading] = kernels[:, 0].tolist() if single else kernels
    shares, untried = group_shares(prepared.groups, weights), untried_shares(prepared.untried, weights)
    family, forecast = prepared.workload.model_family, prepared.forecast
    latency = joined(latency_sources(bundle, family, paced, shares, forecast=forecast, untried=untried, far_clock=far.latency).values())
    power = joined(power_sources(bundle, family, paced, shares, forecast=forecast, untried=untried, far_clock=far.power).values())
    nothing = np.zeros_like(launch)
    return _Spreads(launch=launch, kernels=kernels, untried=untried, latency_ln=nothing + latency, power_ln=nothing + power)


def _numbers(point: Settled, found: Ranges) -> dict[str, list[float]]:
    """Columns of the answers over the clocks: clocks, predictions with their standard deviations, and limits of intervals."""
    predicted = {"latency_s": point.latency_s, "power_w": point.power_w, "energy_j": point.power_w * point.latency_s}
    columns = {"asked_clock_mhz": point.asked_mhz, "sm_clock_mhz": point.clock_mhz, **predicted}
    columns |= {f"{name}_std": std_of(value, getattr(found, name)) for name, value in predicted.items()}
    for name in Ranges.__slots__:
        columns[f"{name}_low"], columns[f"{name}_high"] = getattr(found, name)
    return {name: column.tolist() for name, column in columns.items()}


def _estimate(
    prepared: Prepared,
    bundle: Bundle,
    columns: _Columns,
    spreads: _Spreads,
    numbers: Mapping[str, Sequence[float]],
    i: int,
    limit_w: float,
    outside: tuple[str, ...],
    between: tuple[str, ...],
) -> Estimate:
    """Row i of the answer; outside: lines on how the workload leaves what was fitted, between: on a clock that cannot be locked."""
    values: dict[str, Any] = {name: column[i] for name, column in numbers.items()}
    share, seconds = float(spreads.launch[i]), columns.seconds[:, i]
    completed = float(spreads.kernels[:, i] @ prepared.completed)
    over = values["power_w"] > limit_w * LIMIT_TOLERANCE
    outside = (*outside, *clock_warning(bundle.clocks_mhz, values["asked_clock_mhz"], values["sm_clock_mhz"]))
    warnings = (*workload_warnings(prepared.workload), *forecast_lines(prepared.forecast), *outside, *between)
    return Estimate(
        workload=prepared.workload.name,
        bundle=f"{bundle.name} {bundle.version}",
        gpu=prepared.gpu.name,
        **values,
        gpu_s=float(columns.gpu_s[i]),
        host_s=columns.host_s,
        launch_bound_share=share,
        completed_share=completed,
        validity=validity_of(prepared.forecast, outside),
        warnings=(*warnings, STAYS_ABOVE.format(limit_w)) if over else warnings,
        notes=(
            *simulated_notes(bundle),
            *limit_notes(bundle.gpu, prepared.gpu),
            *_notes(prepared, share, float(columns.gpu_s[i]), completed, over, values, limit_w),
        ),
        _kernels=KernelColumns(
            operators=prepared.workload.operators,
            counts=prepared.workload.counts,
            latency_s=seconds,
            power_w=columns.kernel_w[:, i],
            phases=prepared.phases,
            gpu=prepared.gpu,
            sm_clock_mhz=values["sm_clock_mhz"],
            kinds=prepared.kinds,
            priors=prepared.priors,
        ),
    )


def _notes(
    prepared: Prepared, share: float, gpu_s: float, completed: float, over: bool, values: Mapping[str, float], limit_w: float
) -> tuple[str, ...]:
    """Remarks that depend on the operating point."""
    found = list(prepared.workload.notes)
    asked_mhz, settled_mhz = values["asked_clock_mhz"], values["sm_clock_mhz"]
    if share > LAUNCH_BOUND_NOTE:
        waits = max(1.0 - gpu_s / values["latency_s"], 0.0)
        found.append(f"launch-bound: the GPU waits {waits:.0%} of the time for the host's launches; give --host-launch-us for another host")
    if completed > COMPLETED_NOTE:
        by = f" (completed by {prepared.workload.completion})" if prepared.workload.completion else ""
        found.append(f"{completed:.0%} of the GPU time lies in operators that the workload file leaves out{by}")
    if settled_mhz < asked_mhz and not over:
        found.append(f"the power limit of {limit_w:g} W lowers the SM clock from {asked_mhz:g} to {settled_mhz:.0f} MHz")
    return tuple(found)
