"""Many operating points at once: workloads × bundles × GPUs × clocks as arrays, in pieces of bounded memory.

The equations are those of `estimator.prediction`; here the kernels of many workloads are stacked into one table, so that a
point costs little more than its kernels.  A test holds both to the same numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from estimator.arguments import require
from estimator.bundles.content import Bundle
from estimator.domain import domain_warnings, step_warning, validity_of
from estimator.forecast import forecast_lines, limit_notes
from estimator.forms.variation import Variant
from estimator.gpu import GpuSpec
from estimator.power import (
    OperatingPoint,
    PowerModel,
    dynamic_power_w,
    events_per_second,
    leakage_power_w,
    power_events,
    settled_clock_mhz,
    static_power_w,
    tensor_rate,
    term_scale,
)
from estimator.prediction import LIMIT_TOLERANCE, Prepared, board_tables, power_model, prepare
from estimator.quantities import HZ_PER_MHZ, Array, IntArray
from estimator.questions.points import Case, Sweep, joined_sweeps
from estimator.reckoning import workload_warnings
from estimator.settings import asked_clocks, host_launch, power_limit
from estimator.spread import joined, latency_sources, power_sources
from estimator.timeline import kernel_seconds, launch_bound_share, sweep_seconds, workload_seconds
from estimator.untried import Loading, Untried
from estimator.workload import Workload

MOST_NUMBERS: Final = 1_000_000
"""Kernels times clocks that are computed at once: about twenty such tables live at a time, 160 MB."""


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
    bundles: list[Bundle] = _several(bundle, (Bundle,), "bundle", "load_bundle")
    for one in bundles:
        gpus: list[GpuSpec] = [one.gpu] if gpu is None else _several(gpu, (GpuSpec,), "gpu", "load_gpu")
        launch = one.host.launch_s if host_launch_s is None else host_launch(host_launch_s)
        for spec in gpus:
            point = _Board(
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
    """One thing or several as a list.  Raises TypeError for what is of another kind."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Board:
    """A GPU with a bundle, the clocks asked of it, and what limits it; `chosen`: the clocks were asked for, not taken as usual."""

    bundle: Bundle
    gpu: GpuSpec
    asked_mhz: Array
    limit_w: float
    launch_s: float
    model: PowerModel | None
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """Kernels of v workloads one below the other: `prepared` (n kernels), where each workload starts, what its host launches take.

    order, blocks, block_case, block_group: kernels sorted by workload, group and untried precision, where each such block starts, and
    whose it is.
    """

    prepared: Prepared
    starts: IntArray
    host_s: Array
    order: IntArray
    blocks: IntArray
    block_case: IntArray
    block_group: tuple[tuple[str, Untried | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Points:
    """Predictions of v workloads at c clocks, shapes (v, c); `group_s` (b, c) by block of the stack."""

    gpu_s: Array
    latency_s: Array
    power_w: Array
    group_s: Array


def _swept(part: Sequence[Variant], board: _Board, efficiency: Mapping[str, float]) -> Sweep:
    stack = _stack(part, board, efficiency)
    asked = board.asked_mhz
    points = _points(stack, board, asked[None, :])
    settled = np.broadcast_to(asked, points.gpu_s.shape)
    over = np.flatnonzero(np.any(points.power_w > board.limit_w, axis=1))
    if len(over):
        points, settled = _held(stack, board, over)
    return _table(part, stack, board, points, settled)


def _stack(part: Sequence[Variant], board: _Board, efficiency: Mapping[str, float]) -> _Stack:
    lengths = np.array([len(variant.workload.operators) for variant in part])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    joint = Workload(
        name="",
        operators=tuple(operator for variant in part for operator in variant.workload.operators),
        counts=tuple(count for variant in part for count in variant.workload.counts),
    )
    prepared = prepare(joint, board.bundle, board.gpu, efficiency)
    shares = prepared.counts * np.array([operator.host_share for operator in joint.operators])
    names = {name: number for number, name in enumerate(dict.fromkeys((group or "", odd) for group, odd in _kinds(prepared)))}
    number = np.array([names[(group or "", odd)] for group, odd in _kinds(prepared)], dtype=np.int64)
    owner = np.repeat(np.arange(len(part)), lengths)
    order = np.lexsort((number, owner))
    key = owner[order] * len(names) + number[order]
    blocks = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    kinds = list(names)
    return _Stack(
        prepared=prepared,
        starts=starts,
        host_s=board.launch_s * np.add.reduceat(shares, starts),
        order=order,
        blocks=blocks,
        block_case=owner[order][blocks],
        block_group=tuple(kinds[number[order][i]] for i in blocks),
    )


def _kinds(prepared: Prepared) -> Iterator[tuple[str | None, Untried | None]]:
    """Group and untried precision of every kernel."""
    return zip(prepared.groups, prepared.untried, strict=True)


def _points(stack: _Stack, board: _Board, clock_mhz: Array) -> _Points:
    """Predictions at clocks of shape (1, c), the same for all workloads, or (v, c)."""
    prepared = stack.prepared
    correction = np.exp(prepared.log_correction)[:, None]
    if len(clock_mhz) == 1:
        seconds = sweep_seconds(prepared.phases, prepared.coefficients, clock_mhz[0] * HZ_PER_MHZ) * correction
    else:
        own = clock_mhz[_owners(stack)] * HZ_PER_MHZ
        seconds = kernel_seconds(prepared.phases.lifted(), prepared.coefficients[:, None, :], own) * correction
    group_s = np.add.reduceat((prepared.counts[:, None] * seconds)[stack.order], stack.blocks)
    case_blocks = np.flatnonzero(np.concatenate([[True], stack.block_case[1:] != stack.block_case[:-1]]))
    gpu_s = np.add.reduceat(group_s, case_blocks)
    latency_s = workload_seconds(gpu_s, np.broadcast_to(stack.host_s[:, None], gpu_s.shape))
    power_w = np.full_like(gpu_s, np.nan)
    if board.model is not None:
        power_w = _power_w(stack, board, board.model, clock_mhz, seconds, gpu_s, latency_s)
    return _Points(gpu_s=gpu_s, latency_s=latency_s, power_w=power_w, group_s=group_s)


def _owners(stack: _Stack) -> IntArray:
    lengths = np.diff(np.append(stack.starts, len(stack.order)))
    return np.repeat(np.arange(len(stack.starts)), lengths)


def _power_w(stack: _Stack, board: _Board, model: PowerModel, clock_mhz: Array, seconds: Array, gpu_s: Array, latency_s: Array) -> Array:
    prepared, gpu = stack.prepared, board.gpu
    flat = board_tables(board.bundle, gpu).at(clock_mhz.ravel())
    events = power_events(prepared.phases, gpu, model.l2_credit)
    if model.concavity == 1.0:  # energy per event: kernels can be summed first
        sums = np.add.reduceat(prepared.counts[:, None] * events, stack.starts) * model.event_energy_j
        scale = term_scale(model, flat).reshape(*clock_mhz.shape, -1)
        energy_j = (sums[:, None, :] * scale).sum(axis=-1)
    else:
        energy_j = _bent_energy_j(stack, board, model, clock_mhz, seconds, events)
    point = OperatingPoint(**{name: getattr(flat, name).reshape(clock_mhz.shape) for name in OperatingPoint.__slots__})
    other_w = static_power_w(model, point, np.minimum(gpu_s / latency_s, 1.0)) + energy_j / latency_s
    power_w: Array = other_w + leakage_power_w(model, point, other_w)
    return power_w


def _bent_energy_j(stack: _Stack, board: _Board, model: PowerModel, clock_mhz: Array, seconds: Array, events: Array) -> Array:
    """Dynamic energy where power is no sum over events [J], shape (v, c): workload by workload."""
    ends = np.append(stack.starts, len(stack.order))
    tables, counts = board_tables(board.bundle, board.gpu), stack.prepared.counts
    rows = []
    for i in range(len(stack.starts)):
        own = slice(ends[i], ends[i + 1])
        clock = clock_mhz[min(i, len(clock_mhz) - 1)]
        full = events_per_second(board.gpu, clock * HZ_PER_MHZ, tensor_rate(board.gpu))
        dynamic_w = dynamic_power_w(model, events[own], seconds[own], full, tables.at(clock)).sum(axis=-1)
        rows.append(counts[own] @ (dynamic_w * seconds[own]))
    return np.array(rows)


def _held(stack: _Stack, board: _Board, over: IntArray) -> tuple[_Points, Array]:
    """Points with the workloads `over` at the clocks to which the power limit lowers them, and all clocks (v, c)."""
    grid = np.union1d(board.gpu.clocks_mhz(), board.asked_mhz)
    power = _in_pieces(stack, board, grid[None, :]).power_w
    settled = np.tile(board.asked_mhz, (len(stack.starts), 1))
    for i in over.tolist():
        settled[i] = settled_clock_mhz(power[i], grid, board.limit_w, board.asked_mhz)
    return _in_pieces(stack, board, settled), settled


def _in_pieces(stack: _Stack, board: _Board, clock_mhz: Array) -> _Points:
    """`_points`, a few clocks at a time."""
    step = max(1, MOST_NUMBERS // (PIECE_TABLES * len(stack.order)))
    pieces = [_points(stack, board, clock_mhz[:, i : i + step]) for i in range(0, clock_mhz.shape[1], step)]
    return _Points(**{name: np.concatenate([getattr(piece, name) for piece in pieces], axis=1) for name in _Points.__slots__})


PIECE_TABLES: Final = 4
"""Kernels at clocks of their own need several numbers each at once."""


def _table(part: Sequence[Variant], stack: _Stack, board: _Board, points: _Points, settled: Array) -> Sweep:
    share = launch_bound_share(points.gpu_s, np.broadcast_to(stack.host_s[:, None], points.gpu_s.shape))
    held = [_held_shares(stack, points, i) for i in range(len(part))]
    latency_ln, power_ln = _log_stds(part, stack, board, held, share)
    above = points.power_w > board.limit_w * LIMIT_TOLERANCE
    held_w = np.where(above, points.power_w, np.minimum(points.power_w, board.limit_w))
    shape = points.gpu_s.shape
    ends = np.append(stack.starts, len(stack.order))
    columns = {
        "case": np.broadcast_to(np.arange(shape[0])[:, None], shape),
        "asked_clock_mhz": np.broadcast_to(board.asked_mhz, shape),
        "sm_clock_mhz": settled,
        "latency_s": points.latency_s,
        "latency_s_std": points.latency_s * latency_ln,
        "power_w": held_w,
        "power_w_std": points.power_w * power_ln,
        "energy_j": held_w * points.latency_s,
        "energy_j_std": points.power_w * points.latency_s * np.hypot(latency_ln, power_ln),
        "gpu_s": points.gpu_s,
        "launch_bound_share": share,
        "above_limit": above,
    }
    cases = tuple(_case(variant, board, stack.prepared, slice(ends[i], ends[i + 1]), held[i][1]) for i, variant in enumerate(part))
    return Sweep(cases=cases, **{name: np.ascontiguousarray(column).ravel() for name, column in columns.items()})


def _held_shares(stack: _Stack, points: _Points, i: int) -> tuple[dict[str, Loading], dict[Untried, Loading]]:
    """Shares of the GPU time of workload i by group of kernels and by untried precision, each of shape (c,)."""
    groups: dict[str, Loading] = {}
    untried: dict[Untried, Loading] = {}
    start, stop = np.searchsorted(stack.block_case, (i, i + 1)).tolist()
    for block in range(start, stop):
        group, odd = stack.block_group[block]
        weight = points.group_s[block] / points.gpu_s[i]
        groups[group] = groups.get(group, 0.0) + weight
        if odd is not None:
            untried[odd] = untried.get(odd, 0.0) + weight
    return groups, untried


def _log_stds(
    part: Sequence[Variant],
    stack: _Stack,
    board: _Board,
    held: Sequence[tuple[dict[str, Loading], dict[Untried, Loading]]],
    share: Array,
) -> tuple[Array, Array]:
    """Standard deviations of ln(latency) and ln(power), shapes (v, c); held: as `_held_shares` of each workload."""
    latency_ln, power_ln = np.empty_like(share), np.empty_like(share)
    forecast = stack.prepared.forecast
    for i, (variant, (groups, untried)) in enumerate(zip(part, held, strict=True)):
        family = variant.workload.model_family
        latency_ln[i] = joined(latency_sources(board.bundle, family, share[i], groups, forecast=forecast, untried=untried).values())
        power_ln[i] = joined(power_sources(board.bundle, family, share[i], groups, forecast=forecast, untried=untried).values())
    return latency_ln, power_ln


def _case(variant: Variant, board: _Board, prepared: Prepared, own: slice, untried: Mapping[Untried, Loading]) -> Case:
    workload, bundle = variant.workload, board.bundle
    outside = domain_warnings(workload, bundle, prepared.groups[own], {odd: float(np.max(share)) for odd, share in untried.items()})
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
    )
