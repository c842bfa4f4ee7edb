"""Many operating points at once: workloads × bundles × GPUs × clocks as arrays, in pieces of bounded memory.

Kernels of many workloads are stacked into one table (`estimator.questions.stacking`), so that a point costs little more than its kernels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from estimator.arguments import require
from estimator.bundles.content import Bundle
from estimator.bundles.labels import told_apart
from estimator.calibration import board_tables, power_model
from estimator.clock_spread import FarClock, far_clock
from estimator.domain import no_rate_warning, step_warning, validity_of
from estimator.forecast import forecast_lines, limit_notes
from estimator.forms.variation import Variant
from estimator.gpu import GpuSpec
from estimator.memory import memory_warnings
from estimator.phases import EVENTS
from estimator.power_limit import (
    BoardCurve,
    Ranges,
    Settled,
    clock_grid,
    held_power_w,
    near_limit,
    ranges,
    std_of,
)
from estimator.prediction import Prepared
from estimator.quantities import Array, IntArray
from estimator.questions.points import Case, Sweep, joined_sweeps
from estimator.questions.stacking import (
    KEPT,
    MOST_NUMBERS,
    Board,
    Stack,
    StackedPoints,
    points_in_pieces,
    stacked,
    stacked_points,
    stacked_power_w,
    summed_energy_j,
)
from estimator.reckoning import workload_warnings
from estimator.settings import asked_clocks, host_launch, power_limit
from estimator.spread import group_shares, joined, latency_sources, power_sources
from estimator.timeline import launch_bound_share, workload_seconds
from estimator.unseen import Kind, SharedLines, unseen_lines, unseen_shares
from estimator.untried import untried_shares
from estimator.workload import Workload


def sweep(
    workloads: Workload | Variant | Sequence[Workload | Variant],
    bundle: Bundle | Sequence[Bundle],
    *,
    sm_clock_mhz: float | Sequence[float] | Array | None = None,
    gpu: GpuSpec | Sequence[GpuSpec] | None = None,
    power_cap_w: float | None = None,
    host_launch_s: float | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> Sweep:
    """Every workload with every bundle, on every GPU, at every clock; clocks fastest, then workloads, GPUs, bundles.

    Arguments mean what they mean for `estimate`; gpu None: each bundle's own, sm_clock_mhz None: each GPU's published clock.
    For points that do not fit into memory, see `sweep_chunks`.

    Raises OperatingPointError for a clock outside a GPU's range and for settings that cannot be.
    """
    pieces = sweep_chunks(
        workloads, bundle, sm_clock_mhz=sm_clock_mhz, gpu=gpu, power_cap_w=power_cap_w, host_launch_s=host_launch_s, efficiency=efficiency
    )
    return joined_sweeps(list(pieces))


def sweep_chunks(
    workloads: Workload | Variant | Sequence[Workload | Variant],
    bundle: Bundle | Sequence[Bundle],
    *,
    sm_clock_mhz: float | Sequence[float] | Array | None = None,
    gpu: GpuSpec | Sequence[GpuSpec] | None = None,
    power_cap_w: float | None = None,
    host_launch_s: float | None = None,
    efficiency: Mapping[str, float] | None = None,
    most_numbers: int = MOST_NUMBERS,
) -> Iterator[Sweep]:
    """The same piece by piece, in the same order: as many workloads at a time as keep kernels × clocks below `most_numbers`."""
    chosen = [_variant(item) for item in _several(workloads, (Workload, Variant), "workloads", "read_workload")]
    bundles = told_apart(_several(bundle, (Bundle,), "bundle", "load_bundle"))
    for one in bundles:
        gpus: list[GpuSpec] = [one.gpu] if gpu is None else _several(gpu, (GpuSpec,), "gpu", "load_gpu")
        launch = one.host.launch_s if host_launch_s is None else host_launch(host_launch_s)
        for spec in gpus:
            point = Board(
                bundle=one,
                gpu=spec,
                asked_mhz=asked_clocks(_plain(sm_clock_mhz), spec),
                limit_w=power_limit(power_cap_w, spec),
                launch_s=launch,
                model=power_model(one),
                chosen=sm_clock_mhz is not None,
            )
            for part in _parts(chosen, len(point.asked_mhz), most_numbers):
                with np.errstate(all="ignore"):  # what is not finite is for the caller to see
                    yield _swept(part, point, efficiency or {})


def _several(given: Any, kinds: tuple[type, ...], name: str, source: str) -> list[Any]:
    """One thing or several as a list.  Raises ArgumentError for what is of another kind."""
    wanted = f"a {kinds[0].__name__}, as {source} gives it, or several"
    if isinstance(given, kinds):
        return [given]
    require(given, Iterable, name, wanted)
    found = list(given)
    for one in found:
        require(one, kinds, name, wanted)
    return found


def _variant(item: Workload | Variant) -> Variant:
    return item if isinstance(item, Variant) else Variant(workload=item)


def _plain(clocks: float | Sequence[float] | Array | None) -> float | Sequence[float] | None:
    return clocks.tolist() if isinstance(clocks, np.ndarray) else clocks


def _parts(chosen: Sequence[Variant], clocks: int, most: int) -> Iterator[list[Variant]]:
    part: list[Variant] = []
    kernels = 0
    for variant in chosen:
        own = len(variant.workload.operators)
        if part and (kernels + own) * clocks > most:
            yield part
            part, kernels = [], 0
        part.append(variant)
        kernels += own
    if part:
        yield part


def _swept(part: Sequence[Variant], board: Board, efficiency: Mapping[str, float]) -> Sweep:
    stack = stacked(part, board, efficiency)
    asked = board.asked_mhz
    free = points = stacked_points(stack, board, asked[None, :])
    settled = np.broadcast_to(asked, points.gpu_s.shape)
    curves: list[BoardCurve] | None = None
    over = np.flatnonzero(np.any(points.power_w > board.limit_w, axis=1))
    if len(over):
        curves = _curves(stack, board)
        points, settled = held_points(stack, board, curves, free, over)
    return _table(part, stack, board, points, _Clocks(free_w=free.power_w, settled_mhz=settled, curves=curves))


class _Clocks(NamedTuple):
    """Power without a limit at asked clocks, and the clocks that run, shapes (v, c); curves of v workloads, None where none is near it."""

    free_w: Array
    settled_mhz: Array
    curves: list[BoardCurve] | None


def _curves(stack: Stack, board: Board) -> list[BoardCurve]:
    """Each workload over all clocks that can be locked, and those asked for; as `estimate` takes them."""
    grid = clock_grid(board.gpu, board.asked_mhz)
    clocks = grid.clock_mhz[None, :]
    if board.model is None:
        found = points_in_pieces(stack, board, clocks)
        latency_s, power_w = found.latency_s, found.power_w
    else:
        gpu_s = grid.over_clocks(points_in_pieces(stack, board, grid.curve_clocks_mhz()[None, :]).gpu_s)
        latency_s = workload_seconds(gpu_s, np.broadcast_to(stack.host_s[:, None], gpu_s.shape), stack.prepared.overlap_exponent)
        energy_j = summed_energy_j(stack, board, board.model, clocks)
        power_w = stacked_power_w(board, board.model, clocks, gpu_s, latency_s, energy_j)
    return [
        BoardCurve(clock_mhz=grid.clock_mhz, latency_s=latency, power_w=power, lockable=grid.lockable)
        for latency, power in zip(latency_s, power_w, strict=True)
    ]


def held_points(
    stack: Stack, board: Board, curves: Sequence[BoardCurve], free: StackedPoints, over: IntArray
) -> tuple[StackedPoints, Array]:
    """The `free` points with the workloads `over` at the clocks to which the power limit lowers them, and all clocks (v, c).

    However many clocks are asked for above the one at which a workload settles, it settles there: few clocks are left to be computed.
    """
    settled = np.tile(board.asked_mhz, (len(stack.starts), 1))
    column = np.full(settled.shape, KEPT)
    lowered: list[Array] = []
    for i in over.tolist():
        settled[i] = curves[i].settled_mhz(board.limit_w, board.asked_mhz)
        changed = np.flatnonzero(settled[i] != board.asked_mhz)
        clocks, column[i, changed] = np.unique(settled[i, changed], return_inverse=True)
        lowered.append(clocks)
    own = np.full((len(settled), max(1, *map(len, lowered))), board.asked_mhz[0])
    for i, clocks in zip(over.tolist(), lowered, strict=True):
        own[i, : len(clocks)] = clocks
    return free.replaced(points_in_pieces(stack, board, own), column, stack.block_case), settled


def _table(part: Sequence[Variant], stack: Stack, board: Board, points: StackedPoints, clocks: _Clocks) -> Sweep:
    share = launch_bound_share(points.gpu_s, np.broadcast_to(stack.host_s[:, None], points.gpu_s.shape), stack.prepared.overlap_exponent)
    held = [_held_shares(stack, points, i) for i in range(len(part))]
    far = far_clock(board.bundle, board_tables(board.bundle, board.gpu), clocks.settled_mhz, points.power_w)
    latency_ln, power_ln = _log_stds(part, stack, board, held, share, far)
    held_w, above = held_power_w(points.power_w, clocks.settled_mhz, board.asked_mhz, board.gpu.sm_clock_min_mhz, board.limit_w)
    shape = points.gpu_s.shape
    ends = np.append(stack.starts, len(stack.order))
    columns: dict[str, Any] = {
        "case": np.broadcast_to(np.arange(shape[0])[:, None], shape),
        "asked_clock_mhz": np.broadcast_to(board.asked_mhz, shape),
        "sm_clock_mhz": clocks.settled_mhz,
        "latency_s": points.latency_s,
        "power_w": held_w,
        "energy_j": held_w * points.latency_s,
        "gpu_s": points.gpu_s,
        "launch_bound_share": share,
        "above_limit": above,
    }
    columns |= _limits(stack, board, clocks, columns, latency_ln, power_ln)
    unseen = [_unseen(variant, board, stack.prepared, slice(ends[i], ends[i + 1]), held[i]) for i, variant in enumerate(part)]
    columns["unseen"] = np.array([of_clock for _, of_clock in unseen])
    cases = tuple(_case(variant, board, stack.prepared, slice(ends[i], ends[i + 1]), unseen[i][0]) for i, variant in enumerate(part))
    return Sweep(cases=cases, **{name: np.ascontiguousarray(column).ravel() for name, column in columns.items()})


def _limits(
    stack: Stack, board: Board, clocks: _Clocks, columns: Mapping[str, Array], latency_ln: Array, power_ln: Array
) -> dict[str, Array]:
    """Limits of the 90 % intervals and the deviations that stand for them, shapes (v · c,)."""
    curves = clocks.curves
    if curves is None and board.model is not None and np.any(near_limit(clocks.free_w, board.limit_w, power_ln)):
        curves = _curves(stack, board)
    point = Settled(
        asked_mhz=columns["asked_clock_mhz"].ravel(),
        free_w=clocks.free_w.ravel(),
        clock_mhz=columns["sm_clock_mhz"].ravel(),
        latency_s=columns["latency_s"].ravel(),
        power_w=columns["power_w"].ravel(),
    )
    limits = ranges(point, curves, board.limit_w, latency_ln.ravel(), power_ln.ravel())
    found: dict[str, Array] = {}
    for name in Ranges.__slots__:
        ends = getattr(limits, name)
        found |= {f"{name}_low": ends[0], f"{name}_high": ends[1]}
        if name in ("latency_s", "power_w", "energy_j"):
            found[f"{name}_std"] = std_of(columns[name].ravel(), ends)
    return found


class _Held(NamedTuple):
    """Shares of a workload's GPU time by kind of kernels, block by block, each of shape (c,)."""

    kinds: tuple[Kind, ...]
    shares: Array


def _held_shares(stack: Stack, points: StackedPoints, i: int) -> _Held:
    """Those of workload i."""
    own = slice(*np.searchsorted(stack.block_case, (i, i + 1)).tolist())
    return _Held(stack.block_kind[own], points.group_s[own] / points.gpu_s[i])


def _log_stds(
    part: Sequence[Variant],
    stack: Stack,
    board: Board,
    held: Sequence[_Held],
    share: Array,
    far: FarClock,
) -> tuple[Array, Array]:
    """Standard deviations of ln(latency) and ln(power), shapes (v, c).

    held: as `_held_shares` of each workload; share: of the host in the latency, (v, c); far: loadings of shape (v, c).
    """
    latency_ln, power_ln = np.empty_like(share), np.empty_like(share)
    forecast = stack.prepared.forecast
    for i, (variant, (kinds, weights)) in enumerate(zip(part, held, strict=True)):
        groups, untried = group_shares([kind.group for kind in kinds], weights), untried_shares([kind.untried for kind in kinds], weights)
        family = variant.workload.model_family
        for tell, own, ln_std in zip((latency_sources, power_sources), far.of_case(i), (latency_ln, power_ln), strict=True):
            sources = tell(board.bundle, family, share[i], groups, forecast=forecast, untried=untried, far_clock=own)
            ln_std[i] = joined(sources.values())
    return latency_ln, power_ln


def _unseen(variant: Variant, board: Board, prepared: Prepared, own: slice, held: _Held) -> tuple[SharedLines, IntArray]:
    shares = unseen_shares(held.kinds, prepared.priors, held.shares)
    groups, excesses, clocks = prepared.groups[own], prepared.excesses[own], len(board.asked_mhz)
    return unseen_lines(variant.workload, board.bundle, groups, excesses, prepared.priors, shares, clocks)


def _case(variant: Variant, board: Board, prepared: Prepared, own: slice, unseen: SharedLines) -> Case:
    workload, bundle = variant.workload, board.bundle
    too_large = memory_warnings(workload, prepared.phases.events[own, EVENTS.index("dram")], board.gpu)
    outside = (
        *no_rate_warning(workload.operators, prepared.phases.ideal_math[own], board.gpu),
        *too_large,
    )
    between = step_warning(board.gpu, board.asked_mhz.tolist()) if board.chosen else ()
    return Case(
        workload=workload.name,
        model_family=workload.model_family,
        bundle=f"{bundle.name} {bundle.version}",
        gpu=board.gpu.name,
        simulated=bundle.simulated,
        batch=variant.batch,
        sequence=variant.sequence,
        tokens=variant.tokens,
        precision=variant.precision,
        attention=variant.attention,
        power_limit_w=board.limit_w,
        fitted_clocks_mhz=bundle.clocks_mhz,
        validity=validity_of(prepared.forecast, outside),
        warnings=(*workload_warnings(workload), *forecast_lines(prepared.forecast), *outside, *between),
        notes=(*limit_notes(bundle.gpu, board.gpu), *workload.notes),
        too_large=too_large,
        unseen=unseen,
    )
