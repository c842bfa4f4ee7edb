"""Fused (flash) attention: prefill and decode.

Prefill: the matrix work of the causal (or windowed) triangle in whole tiles, exponentials on the special-function
units, Q, K, V and O across DRAM once, one wave of blocks after another, rows.  Decode: the cache across DRAM once,
the padded matrix work, waves, rows.  The parts add (exponent 1): fitted norms fell below 1, phases do not overlap.
Source: FlashAttention-2 (arXiv 2307.08691) for the block structure; terms kept by ablation (docs/model.md).  Launch parameters
were read in Dao-AILab/flash-attention: csrc/flash_attn (FlashAttention-2) and hopper (FlashAttention-3).  Serving libraries have
kernels of their own, so the parameters stand for them by assumption.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.model.gemm import PADDED_FLOP_SHARE, SHARING_ARCHITECTURES, SM_PORT_BYTES
from estimator.model.phases import EVENTS, OVERLAPPED, SERIAL, Phases, empty_phases
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array

QUERY_TILE: Final = 128.0
"""Query rows of a block.  Source: FlashAttention-2, flash_fwd_launch_template.h (run_mha_fwd_hdim32 to 256), for compute capability
8.0; FlashAttention-3, tile_size.h (tile_size_fwd_sm90), two warp groups of 64, from heads of 128 on.  Others have 64 or 192."""

KEY_TILE: Final = 64.0
"""Keys that a block takes at a time; cached contexts are padded to it.  Source: FlashAttention-2, flash_fwd_launch_template.h, for
prefill with heads of 96 and more on compute capability 8.0.  Assumed elsewhere: heads of 64 have 128 there, cached keys 256, 128
and 64 for heads up to 64, up to 128 and larger (run_mha_fwd_splitkv_dispatch), FlashAttention-3 mostly 128 and more."""

DECODE_QUERY_TILE: Final = 64.0
"""Decode: query heads that share a key head are padded to this many rows.  Source: FlashAttention-2, flash_fwd_launch_template.h
(run_mha_fwd_splitkv_dispatch) and flash_api.cpp (seqlenq_ngroups_swapped)."""

KEY_STEP_CLOCKS: Final = 600.0
"""Decode: ideal latency of one tile of cached keys: load, scores, maximum, exponentials, product, one after the other [SM clock]."""

RESIDENT_BLOCKS: Final = 2.0
LARGE_HEAD: Final = 128.0
"""Blocks that share an SM, by their registers (128 threads of up to 255); those of larger heads have it to themselves, by their
shared memory.  Source: FlashAttention-2, kernel_traits.h (kSmemSize: 64 KiB for heads of 128, 96 and 128 KiB for 192 and 256, of an
A100's 164) and flash_api.cpp (set_params_splitkv plans for two blocks an SM, there whatever the head)."""

LARGEST_QUANTISATION: Final = 1.3
"""Where persistent blocks share out the work, a partly filled last wave costs at most this factor (assumed)."""

UNEQUAL_TAIL: Final = 0.5
"""Blocks of a triangle end this share of the longest block after the even share of their work (assumed).  FlashAttention-3 hands
out the longest first (tile_scheduler.hpp, DynamicPersistentTileScheduler), FlashAttention-2 starts them in the order of rows."""

EQUAL_LENGTHS: Final = 1.01
"""Blocks whose longest is within this factor of their mean are equal."""

COMBINE_CLOCKS: Final = 2000.0
"""Decode: ideal cost of the kernel that joins the shares of a split cache [SM clock] (assumed).  Source of the kernel:
FlashAttention-2, flash_fwd_launch_template.h (flash_fwd_splitkv_combine_kernel)."""

PARTIAL_BYTES: Final = 4.0
"""Such shares are kept in fp32 [byte].  Source: FlashAttention-2, flash_api.cpp (set_params_splitkv, out_accum)."""

MEMORY_LATENCY_S: Final = 3.0e-7
"""What a step that waits for DRAM takes longer, under load [s]; no figure of a vendor."""

WAVE_CLOCKS: Final = 1400.0
"""Ideal cost of starting one wave of blocks [SM clock], 1 µs at 1.4 GHz."""

ROW_UNIT_CLOCKS: Final = 10.0
"""Ideal cost of a query row's bookkeeping on an SM [SM clock]."""


DEFAULT_SHARED_PASSES: Final = 5.0
"""Shared-memory passes over a block's keys and values: one write, and one read by each of four warps, which have query rows of their
own.  Source: FlashAttention-2, kernel_traits.h (TiledMma)."""

NARROW_HEAD: Final = 128.0
WIDE_SHARED_PASSES: Final = 9.0
"""Heads wider than this have eight warps a block, and so many passes.  Source: FlashAttention-2, flash_fwd_launch_template.h
(run_mha_fwd_hdim192; run_mha_fwd_hdim256 where, as on compute capability 8.0, 128 KiB of shared memory fit)."""

SHARED_PASSES: Final[dict[str, float]] = {"hopper": 3.0, "blackwell": 3.0}
"""The same where matrix units read shared memory themselves: one write, and one read by each of two warp groups.  Source:
FlashAttention-3, tile_size.h (128 rows from heads of 128 on; three groups below); Blackwell assumed alike."""

CUDA_PER_EXPONENTIAL: Final = 6.0
"""Lane instructions for each score: scale, running maximum, subtraction, sum, rescaling, conversion (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionColumns:
    """Attention kernels as columns of shape (n,); bytes per element of operands and of cached keys and values."""

    batch: Array
    queries: Array
    context: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    window: Array
    causal: Array
    element_byte: Array
    kv_byte: Array
    flop_per_clock: Array


def prefill_phases(columns: AttentionColumns, gpu: GpuSpec) -> Phases:
    """Phases of prefill kernels, shape (n, ·)."""
    c = columns
    query_tiles = np.ceil(c.queries / QUERY_TILE)
    key_tiles = np.ceil(c.context / KEY_TILE)
    per_tile = QUERY_TILE / KEY_TILE
    past = np.maximum(key_tiles - query_tiles * per_tile, 0.0)
    seen = np.where(c.causal > 0, query_tiles * past + per_tile * query_tiles * (query_tiles + 1.0) / 2.0, query_tiles * key_tiles)
    seen = np.minimum(seen, query_tiles * key_tiles)
    window_tiles = np.where(c.window > 0, np.ceil(c.window / KEY_TILE) + per_tile, np.inf)
    seen = np.minimum(seen, query_tiles * window_tiles)
    longest = np.minimum(key_tiles, window_tiles)
    tile_flop = 4.0 * QUERY_TILE * KEY_TILE * c.head_dim
    heads = c.batch * c.heads
    blocks = heads * query_tiles
    resident = np.where(c.head_dim > LARGE_HEAD, 1.0, 1.0 if gpu.architecture in SHARING_ARCHITECTURES else RESIDENT_BLOCKS)
    tiles = seen / query_tiles
    side_by_side = np.minimum(resident, np.ceil(blocks / gpu.num_sms))
    rounds = blocks / (resident * gpu.num_sms)
    unequal = np.maximum(longest, rounds * tiles + UNEQUAL_TAIL * longest * (rounds > 1.0))
    chain = np.where(longest > tiles * EQUAL_LENGTHS, unequal, np.ceil(rounds) * tiles)
    if gpu.architecture in SHARING_ARCHITECTURES:
        chain = np.maximum(longest, np.minimum(np.ceil(rounds), rounds * LARGEST_QUANTISATION) * tiles)
    even = heads * seen * tile_flop / (c.flop_per_clock * gpu.num_sms)
    busiest = chain * side_by_side
    math = busiest * tile_flop / c.flop_per_clock
    exponentials = heads * seen * QUERY_TILE * KEY_TILE
    busiest_exponentials = busiest * QUERY_TILE * KEY_TILE
    query_byte = 2.0 * heads * c.queries * c.head_dim * c.element_byte
    cache_byte = 2.0 * c.batch * c.kv_heads * c.context * c.head_dim * c.kv_byte
    reload_byte = heads * seen * KEY_TILE * 2.0 * c.head_dim * c.kv_byte

    phases = empty_phases(blocks.shape)
    moved = query_byte + cache_byte
    _fill(phases, gpu, math=math, even=even, sfu=busiest_exponentials, byte=moved, waves=np.ceil(rounds))
    port = busiest * KEY_TILE * 2.0 * c.head_dim * c.kv_byte / SM_PORT_BYTES
    phases.overlapped[..., OVERLAPPED.index("l2")] = np.maximum(port, (reload_byte + query_byte) / gpu.l2_bytes_per_clock)
    phases.overlapped[..., OVERLAPPED.index("issue")] = CUDA_PER_EXPONENTIAL * busiest_exponentials / gpu.fp32_lanes
    phases.overlapped[..., OVERLAPPED.index("loop")] = chain * KEY_STEP_CLOCKS
    phases.serial[..., SERIAL.index("rows")] = heads * c.queries / gpu.num_sms * ROW_UNIT_CLOCKS
    phases.occupied[...] = np.minimum(even / math, 1.0)
    filled = c.queries / (query_tiles * QUERY_TILE)
    filled += PADDED_FLOP_SHARE * (1.0 - filled)
    flop = filled * heads * seen * tile_flop
    _count(phases, byte=query_byte + cache_byte, reload=reload_byte, flop=flop, exponentials=exponentials)
    wide = np.where(c.head_dim > NARROW_HEAD, WIDE_SHARED_PASSES, DEFAULT_SHARED_PASSES)
    phases.events[..., EVENTS.index("shared")] = reload_byte * SHARED_PASSES.get(gpu.architecture, wide)
    return phases


def decode_phases(columns: AttentionColumns, gpu: GpuSpec) -> Phases:
    """Phases of decode kernels (one or few new tokens against a cache), shape (n, ·)."""
    c = columns
    visible = np.where(c.window > 0, np.minimum(c.context, c.window), c.context)
    group = np.ceil(c.queries * c.heads / c.kv_heads / DECODE_QUERY_TILE) * DECODE_QUERY_TILE
    padded = np.ceil(visible / KEY_TILE) * KEY_TILE
    cache_byte = 2.0 * c.batch * c.kv_heads * visible * c.head_dim * c.kv_byte
    query_byte = 2.0 * c.batch * c.heads * c.queries * c.head_dim * c.element_byte
    flop = 4.0 * c.batch * c.kv_heads * group * padded * c.head_dim
    even = flop / (c.flop_per_clock * gpu.num_sms)
    exponentials = c.batch * c.heads * c.queries * visible
    heads = c.batch * c.kv_heads
    key_tiles = np.ceil(visible / KEY_TILE)
    resident = np.where(c.head_dim > LARGE_HEAD, 1.0, RESIDENT_BLOCKS)
    walk = np.ceil(key_tiles / np.clip(np.floor(resident * gpu.num_sms / heads), 1.0, key_tiles))
    splits = np.ceil(key_tiles / walk)
    blocks = heads * splits
    rounds = np.ceil(blocks / (resident * gpu.num_sms))
    side_by_side = np.minimum(resident, np.ceil(blocks / gpu.num_sms))
    busiest = rounds * side_by_side * walk
    partial_byte = np.where(splits > 1.0, blocks * PARTIAL_BYTES * c.queries * c.heads / c.kv_heads * c.head_dim, 0.0)

    phases = empty_phases(even.shape)
    busiest_math = busiest * 4.0 * group * KEY_TILE * c.head_dim / c.flop_per_clock
    busiest_exponentials = busiest * group * KEY_TILE
    if gpu.architecture in SHARING_ARCHITECTURES:  # blocks share out the work: it is even
        busiest_math, busiest_exponentials = even, exponentials / gpu.num_sms
    waves = np.ceil(heads / gpu.num_sms)
    _fill(phases, gpu, math=busiest_math, even=even, sfu=busiest_exponentials, byte=cache_byte + query_byte, waves=waves)
    phases.overlapped[..., OVERLAPPED.index("l2")] = busiest * KEY_TILE * 2.0 * c.head_dim * c.kv_byte / SM_PORT_BYTES
    phases.overlapped[..., OVERLAPPED.index("issue")] = CUDA_PER_EXPONENTIAL * busiest_exponentials / gpu.fp32_lanes
    phases.overlapped[..., OVERLAPPED.index("wait")] = rounds * walk * MEMORY_LATENCY_S
    combine = COMBINE_CLOCKS + 2.0 * partial_byte / gpu.l2_bytes_per_clock
    phases.serial[..., SERIAL.index("reduce")] = np.where(splits > 1.0, combine, 0.0)
    phases.serial[..., SERIAL.index("rows")] = c.batch * c.heads * c.queries * ROW_UNIT_CLOCKS / gpu.num_sms
    phases.overlapped[..., OVERLAPPED.index("loop")] = rounds * walk * KEY_STEP_CLOCKS
    phases.serial[..., SERIAL.index("row_length")] = np.minimum(visible, LONGEST_SERIAL_CONTEXT)
    phases.occupied[...] = np.minimum(c.batch * c.kv_heads * padded / (KEY_TILE * gpu.num_sms), 1.0)
    useful = 4.0 * c.batch * c.heads * c.queries * visible * c.head_dim
    useful += PADDED_FLOP_SHARE * np.maximum(flop - useful, 0.0)
    _count(phases, byte=cache_byte + query_byte, reload=np.zeros_like(cache_byte), flop=useful, exponentials=exponentials)
    phases.events[..., EVENTS.index("shared")] = 2.0 * cache_byte
    return phases


LONGEST_SERIAL_CONTEXT: Final = 1024.0
"""Longer contexts are split among blocks; up to here one block walks along them [token] (assumed).  FlashAttention-2 splits whenever
that fills idle SMs, FlashAttention-3 from five tiles of keys on (heuristics.h, num_splits_heuristic)."""


def _fill(phases: Phases, gpu: GpuSpec, *, math: Array, even: Array, sfu: Array, byte: Array, waves: Array) -> None:
    phases.overlapped[..., OVERLAPPED.index("math")] = math
    phases.overlapped[..., OVERLAPPED.index("sfu")] = sfu / gpu.sfu_op_per_clock
    phases.overlapped[..., OVERLAPPED.index("dram")] = byte / gpu.dram_bytes_per_s
    phases.serial[..., SERIAL.index("waves")] = waves * WAVE_CLOCKS
    phases.even_math[...] = math
    phases.ideal_math[...] = even
    phases.ideal_math_s[...] = even / (gpu.sm_clock_max_mhz * HZ_PER_MHZ)


def _count(phases: Phases, *, byte: Array, reload: Array, flop: Array, exponentials: Array) -> None:
    phases.events[..., EVENTS.index("dram")] = byte
    phases.events[..., EVENTS.index("l2")] = reload + byte
    phases.events[..., EVENTS.index("tensor")] = flop
    phases.events[..., EVENTS.index("cuda")] = CUDA_PER_EXPONENTIAL * exponentials
    phases.events[..., EVENTS.index("sfu")] = exponentials
