"""Launch modes of a kernel: the whole GPU, some SMs, some lanes, the published single thread, or grids of several sizes.

Only a full GPU gives a signal well above a sensor's error.  The sweep over SMs separates the power of active SMs from that of idle
ones; the sweep over lanes shows the savings of divergence.
"""

from collections.abc import Sequence
from typing import Final

from estimator.vocabulary.gpu import GpuSpec
from microbench.errors import LaunchError
from microbench.kernel import WARP_LANES, Kernel, Launch, Mode, Pattern
from microbench.sizing import resident_blocks
from microbench.toolchain.inspect import InspectedEntry

GRID_SHARES: Final = (0.5, 2.0, 3.5, 9.0, 20.5, 40.0)
"""Grids of a sweep over blocks, in rounds of all blocks that the GPU holds at once (0.5 to 40), in addition to one block an SM."""

SM_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the SMs in a sweep over them, as in AccelWattch's idle-SM benchmarks; 0 is a single one."""

MOST_ITERATIONS: Final = 2**32 - 1
"""Largest count of the loop's 32-bit counter."""

MAX_REGION_BYTES: Final = 1 << 31
"""Largest region [byte], since offsets are 32-bit numbers."""


def plan_launches(
    kernel: Kernel,
    gpu: GpuSpec,
    entry: InspectedEntry,
    mode: Mode,
    pattern: Pattern = "random",
    seed: int = 0,
    sm_shares: Sequence[float] = SM_SHARES,
) -> tuple[Launch, ...]:
    """The launches of a mode: one for "full" and "single", several for the sweeps, in ascending order; each of one turn.

    Raises LaunchError for a block that does not fit an SM, and for a region that does not fit its cache.
    """
    threads = kernel.block_threads
    resident = resident_blocks(gpu, threads, entry.registers, entry.shared_bytes)
    if not resident:
        raise LaunchError(
            f"a block of {threads} threads with {entry.registers} registers and {entry.shared_bytes} bytes of shared memory "
            f"does not fit an SM of {gpu.name}"
        )

    def launch(blocks: int, *, lanes: int = WARP_LANES, threads: int = threads, region: int = 0, regions: int = 0) -> Launch:
        return Launch(
            mode=mode,
            blocks=blocks,
            threads_per_block=threads,
            iterations=1,
            active_lanes=lanes,
            region_bytes=region or region_bytes(kernel, gpu, blocks, resident),
            regions=regions,
            pattern=pattern,
            seed=seed,
        )

    full = gpu.num_sms * _blocks_an_sm(kernel, gpu, resident)
    match mode:
        case "full":
            return (launch(full),)
        case "sm_sweep":
            return tuple(launch(count) for count in sorted({max(1, round(share * gpu.num_sms)) for share in sm_shares}))
        case "lane_sweep":
            # AccelWattch's static-power benchmarks use the same steps.
            return tuple(launch(full, lanes=lanes) for lanes in (1, 8, 16, 24, 32))
        case "block_sweep":
            # One block an SM walks twice L2, rounded down to a power of two: the smallest grid must miss it as the largest does.
            walked, regions = gpu.l2_bytes * 2.0 / gpu.num_sms, _power_of_two(gpu.num_sms * resident, upwards=True)
            region = min(max(_power_of_two(walked, upwards=False), kernel.min_region_bytes), MAX_REGION_BYTES)
            rounds = {round(share * gpu.num_sms * resident) for share in GRID_SHARES}
            grids = sorted({gpu.num_sms, *rounds} - {round(0.5 * gpu.num_sms)})
            return tuple(launch(count, region=region, regions=regions) for count in grids)
        case _:
            return (launch(1, lanes=1, threads=threads if kernel.fixed else 1),)


def region_bytes(kernel: Kernel, gpu: GpuSpec, blocks: int, resident: int) -> int:
    """The region of each block, or of all blocks if they share it: a power of two that makes the total fit, or well exceed, a cache [byte].

    L1 uses the size of the common store of L1 and shared memory.  0 for kernels that walk no memory.  Raises LaunchError if even
    the smallest region is too large for the cache.
    """
    if not kernel.min_region_bytes or kernel.residence is None:
        return 0
    cache, share = kernel.residence
    if shares_region(kernel):
        blocks = 1
    on_an_sm = min(resident, -(-blocks // gpu.num_sms))
    budget = gpu.shared_bytes_per_sm * share / on_an_sm if cache == "l1" else gpu.l2_bytes * share / blocks
    region = _power_of_two(budget, upwards=share > 1.0)
    if share > 1.0:
        return min(max(region, kernel.min_region_bytes), MAX_REGION_BYTES)
    if region < kernel.min_region_bytes:
        raise LaunchError(
            f"{blocks} blocks leave each {budget:.0f} bytes of {cache.upper()}, {kernel.min_region_bytes} is the least; use fewer blocks"
        )
    return region


def shares_region(kernel: Kernel) -> bool:
    """Whether all blocks use one region."""
    return any(buffer.per == "common" for buffer in kernel.buffers)


def _blocks_an_sm(kernel: Kernel, gpu: GpuSpec, resident: int) -> int:
    """Resident blocks, or fewer if more regions would not fit into the cache."""
    if kernel.residence is None or kernel.residence[1] > 1.0 or shares_region(kernel):
        return resident
    cache, share = kernel.residence
    room = share * (gpu.shared_bytes_per_sm if cache == "l1" else gpu.l2_bytes / gpu.num_sms)
    return max(1, min(resident, int(room // kernel.min_region_bytes)))


def _power_of_two(size: float, *, upwards: bool) -> int:
    whole = max(1, int(size))
    below = 1 << (whole.bit_length() - 1)
    return below << 1 if upwards and below < size else below
