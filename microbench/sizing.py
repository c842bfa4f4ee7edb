"""Sizes of runs: launches in a window, launches in a graph, copies of operands, and resident blocks."""

import math
from typing import Final

from estimator.vocabulary.gpu import GpuSpec
from microbench.kernel import WARP_LANES

GRAPH_S: Final = 2e-3
"""Device time of one graph [s]: long compared with its own launch (about 10 µs), short compared with the windows of sensors."""

LONG_LAUNCH: Final = 20.0
"""Time of a launch, as a multiple of the host's, from which on it needs no graph [1]: a busy host may lag without a gap on the device."""

SMALLEST_GRAPH: Final = 8
"""Least launches in a graph; launching a graph costs the host about as much as one or two kernels."""

MOST_GRAPH_NODES: Final = 4096
"""Most launches in one graph; instantiating a node costs the host about as much as launching it."""

DISPLACING_L2_SIZES: Final = 2.0
"""Size of all cold operands as a multiple of the L2, so that an old line is displaced before its next use."""

MOST_BUFFER_SETS: Final = 4096
"""Most copies of the operands in a run; this many of less than 30 kB do not displace an L2 of 60 MB."""

REGISTERS_PER_ALLOCATION: Final = 256
"""Allocation unit of a warp's registers.  Source: CUDA occupancy calculator, compute capability 3.0 on."""

SUB_PARTITIONS: Final = 4
"""Schedulers of an SM, each with a quarter of its registers and warps.  Source: CUDA occupancy calculator."""


def launches_for(window_s: float, launch_s: float) -> int:
    """Launches of `launch_s` each that last at least `window_s`; both are positive and finite."""
    return min(50_000_000, max(3, math.ceil(window_s / launch_s)))  # fewer launches do not show their scatter


def graph_launches(launch_s: float, host_launch_s: float, buffer_sets: int) -> int:
    """Launches in one graph for a kernel of `launch_s`; 1 if it is long enough for single launches.

    The number is a multiple of `buffer_sets`, so that a graph rotates through all of them.
    """
    if launch_s >= LONG_LAUNCH * host_launch_s:
        return 1
    wanted = min(MOST_GRAPH_NODES, max(1, math.ceil(GRAPH_S / max(launch_s, GRAPH_S / MOST_GRAPH_NODES))))
    return -(-wanted // buffer_sets) * buffer_sets


def graph_ladder(launches: int, buffer_sets: int) -> tuple[int, ...]:
    """Sizes of the graphs that together form any number of launches, descending: `launches` and smaller ones.

    Each is a multiple of `buffer_sets`.  Empty for a kernel that is launched one by one.
    """
    if launches < 2:
        return ()
    smallest = -(-SMALLEST_GRAPH // buffer_sets) * buffer_sets
    sizes = [launches]
    while sizes[-1] > smallest:
        smaller = -(-(sizes[-1] // 16) // buffer_sets) * buffer_sets  # each smaller graph has 16 times fewer launches
        sizes.append(max(smallest, smaller))
    return tuple(sizes)


def segment_launches(launches: int, segments: int, buffer_sets: int) -> tuple[int, ...]:
    """`launches` divided into at most `segments` parts, none of them empty, that differ by `buffer_sets` at most.

    All but the last are multiples of `buffer_sets`, so that each begins with the first set; the last takes the remainder.
    """
    turns, rest = divmod(launches, buffer_sets)
    if not turns:
        return (launches,)
    parts = min(segments, turns)
    whole, more = divmod(turns, parts)
    counts = [(whole + 1) * buffer_sets] * more + [whole * buffer_sets] * (parts - more)
    counts[-1] += rest
    return tuple(counts)


def displacing_sets(working_set_bytes: float, l2_bytes: float) -> int:
    """Copies of the operands that displace the L2 between two uses; MOST_BUFFER_SETS + 1 or more: too many."""
    return 1 + math.ceil(DISPLACING_L2_SIZES * l2_bytes / max(working_set_bytes, 1.0))


def resident_blocks(gpu: GpuSpec, threads: int, registers_per_thread: int, shared_bytes: int) -> int:
    """Blocks of `threads` (1 to 1024) that an SM holds at once; 0 if not even one fits.

    `shared_bytes` of a block is static and dynamic memory without the system's reserve.  A register count of 0 is unknown and no limit.
    """
    major, minor = (int(part) for part in gpu.compute_capability.split(".")[:2])
    modern = (major, minor) >= (8, 0)
    warps = -(-threads // WARP_LANES)
    limits = [gpu.blocks_per_sm, gpu.warps_per_sm // warps]
    if registers_per_thread:
        per_warp = -(-registers_per_thread * WARP_LANES // REGISTERS_PER_ALLOCATION) * REGISTERS_PER_ALLOCATION
        warps_held = SUB_PARTITIONS * (gpu.registers_per_sm // SUB_PARTITIONS // per_warp)
        limits.append(warps_held // warps)
    if shared_bytes or modern:
        # Unit in which shared memory is handed out, and what the system keeps for each block [byte].  Source: CUDA occupancy calculator and
        # programming guide.
        unit = 128 if modern else 256
        per_block = -(-(shared_bytes + (1024 if modern else 0)) // unit) * unit
        limits.append(int(gpu.shared_bytes_per_sm // per_block))
    return min(limits)
