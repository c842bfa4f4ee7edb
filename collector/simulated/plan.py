"""A kernel for the simulated GPU: the work of a launch, and the demand of each block."""

import heapq
import math
import zlib
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from collector.devices.protocols import PreparedKernel
from collector.errors import BoardProfileError
from collector.simulated.profile import ScheduleProfile
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.reader import read_file
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.values import frozen

Names = Mapping[str, str]


class Tile(NamedTuple):
    """A matrix kernel: output tile, reduction step (for 2-byte operands), pipeline depth, warps, registers of a thread, tile of a warp."""

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    warps: int
    registers: int
    warp_m: int
    warp_n: int


@frozen
class Library:
    """The simulated vendor library: `configs/simulated/library.toml` explains its tables."""

    tiles: Mapping[str, tuple[Tile, ...]]
    step_clocks: Mapping[str, tuple[float, float]]
    attention_efficiency: Mapping[str, float]
    elementwise: Mapping[str, tuple[float, float]]
    copy: Mapping[str, tuple[float, float, float, float]]
    pytorch_types: Names
    cutlass_types: Names
    matrix_names: Names
    attention_names: Names
    attention_library: Names


@cache
def library() -> Library:
    """The library of all simulated boards."""
    return read_file(Library, resource_folder("simulated") / "library.toml", "simulated library", BoardProfileError)


Traffic = Mapping[str, float]
"""Bytes that a launch moves across DRAM, with operands left in the L2 by the launch before ("warm"), and without ("cold")."""


@frozen
class KernelPlan:
    """One kernel, chosen and laid out by the simulated library; `kernel` is its description for the user.

    Of a launch: flop of matrix products and of their padding, lane instructions, special functions, bytes through shared memory, and
    `traffic` with DRAM.  Of each block: `product_clocks` of the matrix units at their full rate; `steps` of a loop run one after the other
    and take at least `step_clocks` each, even with little work; `load_bytes` come from the L2, at most `in_flight_bytes` of them at a
    time; `store_bytes` leave at the end.  `path_share` is the share of the SM's port that this access pattern reaches; `asynchronous`
    copies into shared memory need no place in the SM's queue of outstanding loads.

    If blocks differ in length, `longest_block` is relative to their mean, and `placed_rounds` the rounds of mean
    blocks until all are placed (both 0: equal blocks).  `spread_tail`: the kernel is persistent and
    divides its last wave evenly.  `switched_ops` is the energy of the lane instructions in multiply-adds of products (None: `lane_ops`),
    and `scattered_bytes` is further traffic of L2 for elements fetched one by one; both cost energy alone.
    `follow_up_clocks` and `follow_up_bytes` belong to a reduction that runs after the
    blocks.  `row_pitch_bytes` is the distance of neighbouring rows, 0 without rows.
    """

    kernel: PreparedKernel
    on_cuda_cores: bool = False
    product_flop: float = 0.0
    padded_flop: float = 0.0
    lane_ops: float
    switched_ops: float | None = None
    scattered_bytes: float = 0.0
    sfu_ops: float = 0.0
    shared_bytes: float = 0.0
    traffic: Traffic
    product_clocks: float = 0.0
    steps: float = 1.0
    step_clocks: float = 0.0
    load_bytes: float
    store_bytes: float = 0.0
    in_flight_bytes: float
    path_share: float = 1.0
    asynchronous: bool = False
    epilogue_clocks: float = 0.0
    row_pitch_bytes: float
    spread_tail: bool = False
    follow_up_clocks: float = 0.0
    follow_up_bytes: float = 0.0
    longest_block: float = 0.0
    placed_rounds: float = 0.0

    @property
    def blocks(self) -> int:
        """Blocks of a launch."""
        return math.prod(self.kernel.grid)

    @property
    def l2_bytes(self) -> float:
        """Bytes that a launch moves between SMs and L2."""
        return (self.load_bytes + self.store_bytes) * self.blocks + self.follow_up_bytes

    def has_pitch(self, pitch_bytes: float) -> bool:
        """Whether neighbouring rows are a multiple of `pitch_bytes` apart."""
        return self.row_pitch_bytes > 0 and self.row_pitch_bytes % pitch_bytes == 0


def rounds_of_unequal(relative_lengths: Array, blocks: int, slots: int) -> float:
    """Rounds of mean blocks until the last of `blocks` is over, each placed in the slot that is free first.

    relative_lengths: of the first blocks in launch order, repeated as often as needed, shape (n,), mean 1.
    """
    if blocks > 4096:  # largest number of blocks of unequal length that are placed one by one
        return blocks / slots + 0.5 * float(relative_lengths.max())
    free = [0.0] * slots
    for length in np.resize(relative_lengths, blocks).tolist():
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def stable_stream(*key: object) -> np.random.Generator:
    """Random numbers that belong to a key and never change."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def steady_noise(*key: object) -> float:
    """A number of the standard normal distribution that belongs to a key and never changes."""
    return stable_stream(*key).standard_normal()


def sm_speeds(schedule: ScheduleProfile, num_sms: int, seed: int) -> Array:
    """Relative time of a block on each SM: some sit farther from the L2, shape (num_sms,)."""
    return np.clip(1.0 + schedule.sm_spread * np.random.default_rng([seed, num_sms]).standard_normal(num_sms), 0.9, 1.1)
