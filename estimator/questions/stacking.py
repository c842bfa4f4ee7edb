"""Kernels of many workloads in one table: their times and power at many clocks at once.

The equations are those of `estimator.prediction`; a test holds both to the same numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.calibration import board_tables
from estimator.forms.variation import Variant
from estimator.gpu import GpuSpec
from estimator.power import OperatingPoint, PowerModel, power_events, term_scale, workload_power_w
from estimator.prediction import Prepared, prepare
from estimator.quantities import HZ_PER_MHZ, Array, IntArray
from estimator.timeline import kernel_seconds, sweep_seconds, workload_seconds
from estimator.unseen import Kind
from estimator.workload import Workload

MOST_NUMBERS: Final = 1_000_000
"""Kernels times clocks that are computed at once: about twenty such tables live at a time, 160 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A GPU with a bundle, the clocks asked of it, and what limits it; `chosen`: the clocks were asked for, not taken as usual."""

    bundle: Bundle
    gpu: GpuSpec
    asked_mhz: Array
    limit_w: float
    launch_s: float
    model: PowerModel | None
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Kernels of v workloads one below the other: `prepared` (n kernels), where each workload starts, what its host launches take.

    order, blocks, block_case, block_kind: kernels sorted by workload and kind, where each such block starts, and whose it is.
    """

    prepared: Prepared
    starts: IntArray
    host_s: Array
    order: IntArray
    blocks: IntArray
    block_case: IntArray
    block_kind: tuple[Kind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedPoints:
    """Predictions of v workloads at c clocks, shapes (v, c); `group_s` (b, c) by block of the stack."""

    gpu_s: Array
    latency_s: Array
    power_w: Array
    group_s: Array

    def replaced(self, other: "StackedPoints", column: IntArray, block_case: IntArray) -> "StackedPoints":
        """These points, with `other` ones where `column` (v, c) names a column of theirs, not KEPT; block_case: as that of the stack."""
        kept, taken = column == KEPT, np.maximum(column, 0)
        return StackedPoints(
            group_s=np.where(kept[block_case], self.group_s, np.take_along_axis(other.group_s, taken[block_case], axis=1)),
            **{
                name: np.where(kept, getattr(self, name), np.take_along_axis(getattr(other, name), taken, axis=1))
                for name in ("gpu_s", "latency_s", "power_w")
            },
        )


KEPT: Final = -1
"""Stands for a point that is not replaced."""


def stacked(part: Sequence[Variant], board: Board, efficiency: Mapping[str, float]) -> Stack:
    """Kernels of workloads on a board, lowered together."""
    lengths = np.array([len(variant.workload.operators) for variant in part])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    joint = Workload(
        name="",
        operators=tuple(operator for variant in part for operator in variant.workload.operators),
        counts=tuple(count for variant in part for count in variant.workload.counts),
    )
    prepared = prepare(joint, board.bundle, board.gpu, efficiency)
    shares = prepared.counts * np.array([operator.host_share for operator in joint.operators])
    names = {kind: number for number, kind in enumerate(dict.fromkeys(prepared.kinds))}
    number = np.array([names[kind] for kind in prepared.kinds], dtype=np.int64)
    owner = np.repeat(np.arange(len(part)), lengths)
    order = np.lexsort((number, owner))
    key = owner[order] * len(names) + number[order]
    blocks = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    kinds = list(names)
    return Stack(
        prepared=prepared,
        starts=starts,
        host_s=board.launch_s * np.add.reduceat(shares, starts),
        order=order,
        blocks=blocks,
        block_case=owner[order][blocks],
        block_kind=tuple(kinds[number[order][i]] for i in blocks),
    )


def stacked_points(stack: Stack, board: Board, clock_mhz: Array) -> StackedPoints:
    """Predictions at clocks of shape (1, c), the same for all workloads, or (v, c)."""
    prepared = stack.prepared
    correction = np.exp(prepared.log_correction)[:, None]
    if len(clock_mhz) == 1:
        seconds = sweep_seconds(prepared.parts, clock_mhz[0] * HZ_PER_MHZ) * correction
    else:
        own = clock_mhz[_owners(stack)] * HZ_PER_MHZ
        seconds = kernel_seconds(prepared.phases.lifted(), prepared.coefficients[:, None, :], own) * correction
    group_s = np.add.reduceat((prepared.counts[:, None] * seconds)[stack.order], stack.blocks)
    case_blocks = np.flatnonzero(np.concatenate([[True], stack.block_case[1:] != stack.block_case[:-1]]))
    gpu_s = np.add.reduceat(group_s, case_blocks)
    latency_s = workload_seconds(gpu_s, np.broadcast_to(stack.host_s[:, None], gpu_s.shape), prepared.overlap_exponent)
    power_w = np.full_like(gpu_s, np.nan)
    if board.model is not None:
        energy_j = summed_energy_j(stack, board, board.model, clock_mhz)
        power_w = stacked_power_w(board, board.model, clock_mhz, gpu_s, latency_s, energy_j)
    return StackedPoints(gpu_s=gpu_s, latency_s=latency_s, power_w=power_w, group_s=group_s)


def _owners(stack: Stack) -> IntArray:
    lengths = np.diff(np.append(stack.starts, len(stack.order)))
    return np.repeat(np.arange(len(stack.starts)), lengths)


def stacked_power_w(board: Board, model: PowerModel, clock_mhz: Array, gpu_s: Array, latency_s: Array, energy_j: Array) -> Array:
    """Power without a limit [W], shape (v, c), at clocks (1, c) or (v, c); energy_j (v, c): what the events of an iteration cost."""
    flat = board_tables(board.bundle, board.gpu).at(clock_mhz.ravel())
    point = OperatingPoint(**{name: getattr(flat, name).reshape(clock_mhz.shape) for name in OperatingPoint.__slots__})
    return workload_power_w(model, point, gpu_s, latency_s, energy_j)


def summed_energy_j(stack: Stack, board: Board, model: PowerModel, clock_mhz: Array) -> Array:
    """What the events of an iteration cost [J], shape (v, c)."""
    flat = board_tables(board.bundle, board.gpu).at(clock_mhz.ravel())
    events = power_events(stack.prepared.phases, board.gpu, model.l2_credit)
    sums = np.add.reduceat(stack.prepared.counts[:, None] * events, stack.starts) * model.event_energy_j
    scale = term_scale(model, flat).reshape(*clock_mhz.shape, -1)
    energy_j: Array = (sums[:, None, :] * scale).sum(axis=-1)
    return energy_j


def points_in_pieces(stack: Stack, board: Board, clock_mhz: Array) -> StackedPoints:
    """`_points`, a few clocks at a time."""
    step = max(1, MOST_NUMBERS // (PIECE_TABLES * len(stack.order)))
    pieces = [stacked_points(stack, board, clock_mhz[:, i : i + step]) for i in range(0, clock_mhz.shape[1], step)]
    return StackedPoints(**{name: np.concatenate([getattr(piece, name) for piece in pieces], axis=1) for name in StackedPoints.__slots__})


PIECE_TABLES: Final = 4
"""Kernels at clocks of their own need several numbers each at once."""
