"""How many blocks of a kernel fit on an SM at once, by CUDA's rules."""

from typing import Final

from estimator.vocabulary.gpu import GpuSpec

THREADS_PER_WARP: Final = 32

REGISTERS_PER_ALLOCATION: Final = 256
"""Registers are handed out to a warp in units of this many.  Source: CUDA occupancy calculator, compute capability 3.0 on."""

SUB_PARTITIONS: Final = 4
"""Schedulers of an SM, each with a quarter of its registers and warps.  Source: CUDA occupancy calculator."""

SHARED_BYTES_PER_ALLOCATION: Final[dict[bool, int]] = {False: 256, True: 128}
"""Unit in which shared memory is handed out before and from compute capability 8.0 on [byte].  Source: CUDA occupancy calculator."""

RESERVED_SHARED_BYTES: Final = 1024
"""Shared memory that the system keeps for each block from compute capability 8.0 on [byte].  Source: CUDA programming guide."""

AMPERE: Final = (8, 0)

MOST_BLOCK_THREADS: Final = 1024
"""Threads that a block can have.  Source: CUDA programming guide, technical specifications, compute capability 2.0 on."""


def resident_blocks(gpu: GpuSpec, threads: int, registers_per_thread: int, shared_bytes: int) -> int:
    """Blocks of `threads` that an SM holds at once; 0 where not even one fits.

    `shared_bytes` of a block, static and dynamic, without what the system reserves.  A register count of 0 is not known, and sets no limit.
    """
    if not 1 <= threads <= MOST_BLOCK_THREADS:
        return 0
    major, minor = (int(part) for part in gpu.compute_capability.split(".")[:2])
    modern = (major, minor) >= AMPERE
    warps = -(-threads // THREADS_PER_WARP)
    limits = [gpu.blocks_per_sm, gpu.warps_per_sm // warps]
    if registers_per_thread:
        per_warp = -(-registers_per_thread * THREADS_PER_WARP // REGISTERS_PER_ALLOCATION) * REGISTERS_PER_ALLOCATION
        warps_held = SUB_PARTITIONS * (gpu.registers_per_sm // SUB_PARTITIONS // per_warp)
        limits.append(warps_held // warps)
    if shared_bytes or modern:
        unit = SHARED_BYTES_PER_ALLOCATION[modern]
        per_block = -(-(shared_bytes + (RESERVED_SHARED_BYTES if modern else 0)) // unit) * unit
        limits.append(int(gpu.shared_bytes_per_sm // per_block))
    return min(limits)
