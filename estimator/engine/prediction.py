"""Workloads × a board × clocks → time, power, limits and named errors: the only place where workloads are evaluated.

Kernels of several workloads share one table, so that a point costs little more than its kernels.  v workloads have n kernels and c
clocks; kernels of one workload and one kind form one of b blocks.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np

from estimator.bundle.content import group_table, same_kernels
from estimator.engine.board import Board, with_efficiency
from estimator.model.coefficients import group_key
from estimator.model.kriging import phase_features
from estimator.model.lowering import lower
from estimator.model.phases import Phases
from estimator.model.power import L2_CREDIT, leakage_power_w, power_events, power_parts_w, static_power_w, term_scale, workload_power_w
from estimator.model.power_limit import LIMIT_SHARE_STD, BoardCurves, Ranges, Settled, curve_nodes, held_power_w, near_limit, ranges
from estimator.model.residuals import log_corrections
from estimator.model.tile_choice import predicted_tiles
from estimator.model.timeline import (
    SweepParts,
    ideal_seconds,
    kernel_seconds,
    launch_bound_share,
    smooth_maximum,
    sweep_parts,
    sweep_seconds,
)
from estimator.uncertainty.forecast import Forecast, forecast_of
from estimator.uncertainty.laboratory import ELSEWHERE_STD, host_elsewhere_std, scales_std
from estimator.uncertainty.sources import error_sources, far_clock, group_shares, joined, unfitted_groups
from estimator.uncertainty.unseen import (
    Kind,
    Loading,
    foreign_families,
    precision_sources,
    shape_excesses,
    unfitted_int8,
    unlike_sources,
    unseen_precisions,
)
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, TINY, Array, BoolArray, IntArray
from estimator.vocabulary.values import arrays, frozen
from estimator.vocabulary.workload import OWN_EXPERTS, Operator, Workload, workload_as_run

Sources = list[dict[str, Loading]]
"""Sources of error of ln(latency), or of ln(power), of each workload."""

QUANTITIES: Final[tuple[Literal["latency", "power"], ...]] = ("latency", "power")

MOST_NUMBERS: Final = 300_000
"""Most kernels times clocks that are computed at once: about twenty such tables exist at a time, 50 MB."""


@arrays
class Prepared:
    """Workloads lowered onto a board: the parts of an estimate that do not depend on the clock.

    operators, counts, coefficients, groups, excesses (see `shape_excesses`)   of the n kernels, workload by workload
    log_correction, kernel_events   of the n kernels: inf without a time (`unfitted_int8`), and events of a launch by POWER_TERMS (n, 7)
    host_s, events           by workload: time of its launches [s], events of POWER_TERMS (v, 7)
    edges, block_edges       (v + 1) start of the kernels, and of the blocks, of each workload
    kinds, kind              the kinds of kernels, and the index of each kernel's kind
    priors                   groups without fitted kernels
    order, blocks, block_kind   kernels sorted by workload and kind, start of each block, and its kind
    """

    workloads: Sequence[Workload]
    board: Board
    operators: tuple[Operator, ...]
    counts: Array
    phases: Phases
    parts: SweepParts
    coefficients: Array
    log_correction: Array
    kernel_events: Array
    groups: tuple[str | None, ...]
    excesses: tuple[float, ...]
    kinds: tuple[Kind, ...]
    kind: IntArray
    priors: frozenset[str]
    forecast: Forecast | None
    edges: IntArray
    block_edges: IntArray
    host_s: Array
    events: Array
    order: IntArray
    blocks: IntArray
    block_kind: IntArray

    def kernels_of(self, i: int) -> slice:
        """The kernels of workload i."""
        return slice(*self.edges[i : i + 2].tolist())

    def blocks_of(self, i: int) -> tuple[slice, list[Kind]]:
        """The blocks of workload i, and their kinds."""
        own = slice(*self.block_edges[i : i + 2].tolist())
        return own, [self.kinds[number] for number in self.block_kind[own].tolist()]


def _untabled(operators: Sequence[Operator], phases: Phases, coefficients: Array, gpu: GpuSpec, corrections: Array) -> Array:
    """Logarithmic corrections (n,), with those of experts by kernels that no table holds: from the tables' time to the geometric mean of it
    and of the least time at the published rates.
    """
    own = [one.family == "moe" and (one.library, one.precision) in OWN_EXPERTS for one in operators]
    if not any(own):
        return corrections
    clock_hz = gpu.sm_clock_max_mhz * HZ_PER_MHZ
    least_s, table_s = ideal_seconds(phases, gpu, clock_hz), kernel_seconds(phases, coefficients, clock_hz) * np.exp(corrections)
    return np.where(own, corrections + 0.5 * np.log(np.maximum(least_s, TINY) / np.maximum(table_s, TINY)), corrections)


def _events(operators: Sequence[Operator], phases: Phases, gpu: GpuSpec, coefficients: Array) -> Array:
    """Events of POWER_TERMS per launch, shape (n, 7): of divided experts those of the average GPU; the fullest one only sets the pace."""
    events = power_events(phases, gpu, L2_CREDIT)
    divided = [i for i, one in enumerate(operators) if one.family == "moe" and one["ep"] > 1.0]
    if divided:
        average = lower([operators[i] for i in divided], gpu, coefficients[divided], average=True)
        events[divided] = power_events(average, gpu, L2_CREDIT)
    return events


def prepare(workloads: Sequence[Workload], board: Board) -> Prepared:
    """Lower the kernels of workloads, as libraries run them, together.  Raises OperatingPointError for impossible efficiencies."""
    bundle, gpu = board.bundle, board.gpu
    workloads = tuple(workload_as_run(workload, gpu) for workload in workloads)
    operators = tuple(operator for workload in workloads for operator in workload.operators)
    counts = np.array([count for workload in workloads for count in workload.counts])
    lengths = np.array([len(workload.operators) for workload in workloads])
    edges = np.cumsum([0, *lengths])
    keys = [group_key(operator) for operator in operators]
    fitted, served = bundle.once(group_table, gpu).rows(keys)
    coefficients = with_efficiency(fitted, board.efficiency)
    phases = lower(operators, gpu, coefficients, predicted_tiles(operators, gpu, bundle.tile_predictors, coefficients, served))
    corrections = np.zeros(len(operators))
    if bundle.residuals and same_kernels(bundle, gpu):
        own, known = bundle.gpu, bundle.once(group_table, bundle.gpu).rows(keys)[0]
        then = (
            phases if gpu == own else lower(operators, own, known, predicted_tiles(operators, own, bundle.tile_predictors, known, served))
        )
        features = phase_features(then, known, np.full(len(keys), own.sm_clock_max_mhz * HZ_PER_MHZ), np.full(len(keys), np.inf))
        corrections = log_corrections(operators, served, bundle.residuals, features=features)[0]
        if gpu != own:  # what hides behind math on the fitted board may be all of it on a slower one
            clock_hz = gpu.sm_clock_max_mhz * HZ_PER_MHZ
            least = phases.ideal_math / clock_hz / np.maximum(kernel_seconds(phases, coefficients, clock_hz), TINY)
            corrections = np.maximum(corrections, np.minimum(np.log(np.maximum(least, TINY)), 0.0))
    unfitted = unfitted_int8(bundle, operators)
    excesses = shape_excesses(operators, served, bundle.domain)
    numbers: dict[Kind, int] = {}
    far, foreign = [excess > 0.0 for excess in excesses], foreign_families(operators, served)
    kinds = map(Kind, served, unseen_precisions(bundle, operators, served), far, foreign)
    kind = np.array([numbers.setdefault(one, len(numbers)) for one in kinds])
    owner = np.repeat(np.arange(len(workloads)), lengths)
    key = owner * len(numbers) + kind
    order = np.argsort(key, kind="stable")
    blocks = np.flatnonzero(np.diff(key[order], prepend=-1))
    starts, kernel_events = edges[:-1], _events(operators, phases, gpu, coefficients)
    return Prepared(
        workloads=workloads,
        board=board,
        operators=operators,
        counts=counts,
        phases=phases,
        parts=sweep_parts(phases, coefficients),
        coefficients=coefficients,
        log_correction=np.where(unfitted, np.inf, _untabled(operators, phases, coefficients, gpu, corrections)),
        groups=tuple(served),
        excesses=excesses,
        kinds=tuple(numbers),
        kind=kind,
        priors=frozenset(unfitted_groups(bundle, served)),
        forecast=forecast_of(bundle, gpu, board.efficiency, board.rest_known),
        edges=edges,
        block_edges=np.searchsorted(blocks, edges),
        host_s=board.launch_s * np.add.reduceat(counts * np.array([operator.host_share for operator in operators]), starts),
        kernel_events=kernel_events,
        events=np.add.reduceat(counts[:, None] * kernel_events, starts),
        order=order,
        blocks=blocks,
        block_kind=kind[order][blocks],
    )


@frozen
class Points:
    """GPU time, latency [s] and power without a limit [W], shapes (v, c); `block_s` (b, c) GPU time by block."""

    gpu_s: Array
    latency_s: Array
    power_w: Array
    block_s: Array


def evaluate(prepared: Prepared, clock_mhz: Array) -> Points:
    """Evaluate workloads at clocks of shape (1, c), the same for all, or (v, c), a few at a time."""
    step = max(1, MOST_NUMBERS // len(prepared.order))
    block_s = np.hstack([_block_seconds(prepared, clock_mhz[:, i : i + step]) for i in range(0, clock_mhz.shape[1], step)])
    gpu_s = np.add.reduceat(block_s, prepared.block_edges[:-1])
    latency_s = _latency_s(prepared, gpu_s)
    return Points(gpu_s=gpu_s, latency_s=latency_s, power_w=_power_w(prepared, clock_mhz, gpu_s, latency_s), block_s=block_s)


def _block_seconds(prepared: Prepared, clock_mhz: Array) -> Array:
    launches = prepared.counts * np.exp(prepared.log_correction) * prepared.board.scale
    own_mhz = clock_mhz[0] if len(clock_mhz) == 1 else np.repeat(clock_mhz, np.diff(prepared.edges), axis=0)
    seconds = sweep_seconds(prepared.parts, own_mhz * HZ_PER_MHZ) * launches[:, None]
    return np.add.reduceat(seconds[prepared.order], prepared.blocks)


def _shares(prepared: Prepared, block_s: Array) -> Array:
    """Share of each block in the GPU time of its workload, shape of `block_s` (b, c)."""
    shares: Array = block_s / np.repeat(np.add.reduceat(block_s, prepared.block_edges[:-1]), np.diff(prepared.block_edges), axis=0)
    return shares


def _latency_s(prepared: Prepared, gpu_s: Array) -> Array:
    return smooth_maximum(gpu_s, prepared.host_s[:, None], prepared.board.host.overlap_exponent)


def _power_w(prepared: Prepared, clock_mhz: Array, gpu_s: Array, latency_s: Array) -> Array:
    """Power without a limit [W], shape (v, c), nan for a bundle without power."""
    model = prepared.board.model
    if model is None:
        return np.full_like(gpu_s, np.nan)
    point = prepared.board.tables.at(clock_mhz)
    energy_j = ((prepared.events * model.event_energy_j)[:, None, :] * term_scale(model, point)).sum(axis=-1)
    return workload_power_w(model, point, gpu_s, latency_s, energy_j)


def curves(prepared: Prepared) -> BoardCurves:
    """Curves of the workloads over all clocks that can be locked."""
    clock_mhz = prepared.board.gpu.clocks_mhz()
    nodes_mhz, weights = curve_nodes(clock_mhz)
    gpu_s = np.exp(np.log(evaluate(prepared, nodes_mhz[None, :]).gpu_s) @ weights.T)
    latency_s = _latency_s(prepared, gpu_s)
    return BoardCurves(clock_mhz=clock_mhz, latency_s=latency_s, power_w=_power_w(prepared, clock_mhz[None, :], gpu_s, latency_s))


@arrays
class Prediction:
    """Workloads at the requested clocks under the power limit, shapes (v, c).

    sm_clock_mhz    the actual clock; above_limit: whether power stays above the limit even at the lowest clock
    gpu_s, latency_s, power_w, launch_share   at that clock; free_latency_s: without a limit
    shares          (b, c) of the GPU time by block of `prepared`; usual_shares (b,) at the clock of the published peak rates,
                    for workloads with kernels of unseen kinds
    latency, power  by workload: independent sources of error of ln(latency) and of ln(power) at that clock without a limit, each a number
                    or (c,)
    limits          of 90 % intervals in this laboratory, columns (2, v, c); limits_elsewhere: in another one
    """

    prepared: Prepared
    sm_clock_mhz: Array
    gpu_s: Array
    latency_s: Array
    power_w: Array
    free_latency_s: Array
    launch_share: Array
    above_limit: BoolArray
    shares: Array
    usual_shares: Array
    latency: Sequence[Mapping[str, Loading]]
    power: Sequence[Mapping[str, Loading]]
    limits: Ranges
    limits_elsewhere: Ranges

    def _busy(self, i: int) -> Array:
        """Share of the time of a single workload at its clock i in which the GPU computes, shape (1,)."""
        busy: Array = np.minimum(self.gpu_s[0, i : i + 1] / self.latency_s[0, i], 1.0)
        return busy

    @np.errstate(all="ignore")  # a kernel without a rate has no time
    def kernels(self, i: int) -> tuple[Array, Array]:
        """Time [s] and power [W] of one launch of each kernel of a single workload at its clock i, shapes (n,)."""
        prepared, model = self.prepared, self.prepared.board.model
        clock = self.sm_clock_mhz[0, i : i + 1]
        seconds = sweep_seconds(prepared.parts, clock * HZ_PER_MHZ)[:, 0] * np.exp(prepared.log_correction) * prepared.board.scale
        if model is None:
            return seconds, np.full_like(seconds, np.nan)
        point = prepared.board.tables.at(clock)
        own_w = prepared.kernel_events @ (model.event_energy_j * term_scale(model, point))[0]
        own_w /= seconds
        waiting_w = static_power_w(model, point, self._busy(i))
        leakage_w = leakage_power_w(model, point, waiting_w + prepared.counts @ (own_w * seconds) / self.latency_s[0, i])
        return seconds, static_power_w(model, point, np.ones(1)) + leakage_w + own_w

    def power_parts_w(self, i: int) -> dict[str, float]:
        """Power of a single workload at its clock i by the equation and by PARTS [W]; empty for a bundle without power."""
        board = self.prepared.board
        if board.model is None:
            return {}
        point = board.tables.at(self.sm_clock_mhz[0, i : i + 1])
        term_w = self.prepared.events * board.model.event_energy_j * term_scale(board.model, point) / self.latency_s[0, i]
        return {name: float(watt[0]) for name, watt in power_parts_w(board.model, point, self._busy(i), term_w).items()}


@np.errstate(all="ignore")
def predict(workloads: Sequence[Workload], board: Board) -> Prediction:
    """Predict workloads at the requested clocks of a board.  Values without a rate of the GPU or coefficients of the bundle are not finite.

    Raises OperatingPointError for impossible efficiencies.
    """
    prepared = prepare(workloads, board)
    asked = board.asked_mhz
    free = points = evaluate(prepared, asked[None, :])
    settled, board_curves = np.broadcast_to(asked, free.gpu_s.shape), None
    if np.any(free.power_w > board.held.power_w):
        board_curves = curves(prepared)
        settled = board_curves.settled_mhz(np.arange(len(free.power_w))[:, None], board.held.power_w, asked, free.power_w)
        points = evaluate(prepared, settled)
    launch_share = launch_bound_share(points.gpu_s, prepared.host_s[:, None], board.host.overlap_exponent)
    shares = _shares(prepared, points.block_s)
    unseen = any(kind.unseen(prepared.priors) for kind in prepared.kinds)  # most workloads have none, and need no other clock
    usual_s = _block_seconds(prepared, np.array([[board.gpu.sm_clock_max_mhz]])) if unseen else points.block_s[:, :1]
    latency, power = _sources(prepared, settled, points.power_w, launch_share, shares)
    latency_ln, power_ln = (
        np.array([np.broadcast_to(joined(one.values()), asked.shape) for one in sources]) for sources in (latency, power)
    )
    host_ln = np.zeros(settled.shape) if board.own_host else host_elsewhere_std(board.host, board.gpu, launch_share)
    latency_ln_far = np.hypot(np.hypot(latency_ln, ELSEWHERE_STD["latency"] * np.sqrt(1.0 - launch_share)), host_ln)
    running = np.clip(1.0 - board.tables.rest_w(settled) / points.power_w, 0.0, 1.0)  # a waiting board draws its rest power
    power_ln_far = np.hypot(np.hypot(power_ln, ELSEWHERE_STD["power"]), host_ln * running)
    held_far = board.held._replace(ln_std=max(board.held.ln_std, LIMIT_SHARE_STD))
    if board_curves is None and np.any(near_limit(free.power_w, held_far, power_ln_far)):
        board_curves = curves(prepared)
    power_w, above = held_power_w(points.power_w, settled, asked, board.gpu.sm_clock_min_mhz, board.held.power_w)
    point = Settled(
        asked_mhz=np.broadcast_to(asked, settled.shape),
        free_s=free.latency_s,
        free_w=free.power_w,
        clock_mhz=settled,
        latency_s=points.latency_s,
        power_w=power_w,
    )
    return Prediction(
        prepared=prepared,
        sm_clock_mhz=settled,
        gpu_s=points.gpu_s,
        latency_s=points.latency_s,
        power_w=power_w,
        free_latency_s=free.latency_s,
        launch_share=launch_share,
        above_limit=above,
        shares=shares,
        usual_shares=_shares(prepared, usual_s)[:, 0],
        latency=latency,
        power=power,
        limits=ranges(point, board_curves, board.held, latency_ln, power_ln),
        limits_elsewhere=ranges(point, board_curves, held_far, latency_ln_far, power_ln_far),
    )


def _sources(prepared: Prepared, clock_mhz: Array, power_w: Array, launch_share: Array, shares: Array) -> tuple[Sources, Sources]:
    """Those of ln(latency) and those of ln(power), as in Prediction."""
    bundle = prepared.board.bundle
    scale_std = bundle.once(scales_std) if prepared.board.collection is None else 0.0
    assumed = prepared.board.launch_ln_std
    far = far_clock(bundle, prepared.board.tables, clock_mhz, power_w)
    found: tuple[Sources, Sources] = ([], [])
    for i, workload in enumerate(prepared.workloads):
        own, kinds = prepared.blocks_of(i)
        single = shares.shape[1] == 1  # scalars add several times faster than arrays of length 1
        weights: Sequence[Loading] | Array = shares[own, 0].tolist() if single else shares[own]
        paced: Loading = float(launch_share[i, 0]) if single else launch_share[i]
        groups = group_shares([kind.group for kind in kinds], weights)
        precisions, unlike = precision_sources(kinds, weights), unlike_sources(kinds, weights)
        for place, quantity in enumerate(QUANTITIES):
            outside = precisions | {name: loading[i] for name, loading in far[place].items()}
            if quantity == "latency":
                outside |= unlike | ({"collections": scale_std} if scale_std else {})
            if prepared.forecast is not None:
                outside[prepared.forecast.name] = prepared.forecast.ln_std[place]
            found[place].append(error_sources(bundle, quantity, workload.model_family, paced, groups, outside, launch_ln_std=assumed))
    return found
