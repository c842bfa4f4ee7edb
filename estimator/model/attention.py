"""Fused (flash) attention: prefill and decode.

Prefill: the matrix work of the causal (or windowed) triangle in whole tiles, exponentials on the special-function
units, Q, K, V and O across DRAM once, one wave of blocks after another, rows.  Decode: the cache across DRAM once,
the padded matrix work, waves, rows.  The norm that joins the parts is fitted; of prefill inside whole models it is 1, the parts add.
Source: FlashAttention-2 (arXiv 2307.08691) for the block structure.  Launch parameters
were read in Dao-AILab/flash-attention: csrc/flash_attn (FlashAttention-2) and hopper (FlashAttention-3).  Serving libraries have
their own kernels; the parameters are assumed to hold for them too.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.model.gemm import SHARING_ARCHITECTURES, WARP_RATE, Gemm
from estimator.model.phases import Phases, make_phases
from estimator.model.power import tensor_rate
from estimator.model.streams import Stream
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, Array, BoolArray
from estimator.vocabulary.values import arrays
from estimator.vocabulary.work import attention_shape
from estimator.vocabulary.workload import CUDNN_HEADS, FAMILY_FIELDS, FLASH_ATTENTION, Operator


class Flash:
    """Parameters of fused attention.  Source of named files: FlashAttention-2, else FlashAttention-3."""

    QUERY_TILE = 128.0
    """Query rows of a block: FlashAttention-2, flash_fwd_launch_template.h (run_mha_fwd_hdim32 to 256), for compute capability 8.0;
    FlashAttention-3, tile_size.h (tile_size_fwd_sm90), two warp groups of 64, from heads of 128 on.  Others have 64 or 192.  Blocks of B200
    and B300 take two such tiles by turns: flash_attn/cute/flash_fwd_sm100.py, q_stage; not for larger heads, as tables show."""

    KEY_TILE = 64.0
    """Keys that a block takes at a time; cached contexts are padded to it: flash_fwd_launch_template.h, for prefill with heads of 96 and
    more on compute capability 8.0.  Assumed elsewhere: heads of 64 have 128 there, cached keys 256, 128 and 64 for heads up to 64, up
    to 128 and larger (run_mha_fwd_splitkv_dispatch), FlashAttention-3 mostly 128 and more."""

    WIDE_KEY_TILE, MOST_SPLITS = 128.0, 16.0
    """Decode on Hopper and Blackwell: keys of a tile (tile_size_fwd_sm90: mostly 128 and more), and most blocks that share a sequence's
    keys: vLLM's default with CUDA graphs, 32 in newer versions (flash_attn_max_num_splits_for_cuda_graph); tables show 8 to 16."""

    NARROW_QUERY_TILE = 64.0
    """Decode: query heads that share a key head are padded to this many rows: run_mha_fwd_splitkv_dispatch and flash_api.cpp
    (seqlenq_ngroups_swapped).  Also the query rows of the largest heads where shared memory has room (run_mha_fwd_hdim256)."""

    KEY_STEP_CLOCKS = 600.0
    """Ideal latency of one tile of keys: load, scores, maximum, exponentials, product, one after the other [SM clock]."""

    HEAD_SIZES = np.array((32.0, 64.0, 96.0, 128.0, 192.0, 256.0))
    """Heads of other sizes are computed as the next of these: static_switch.h (HEADDIM_SWITCH)."""

    RESIDENT_BLOCKS = 2.0
    LARGE_HEAD, WIDE_HEAD, SHARED_BYTES = 128.0, 192.0, 768.0
    """Blocks that share an SM, limited by registers (128 threads of up to 255).  Blocks of larger heads do not share one, limited by
    shared memory: kernel_traits.h (kSmemSize: 64 KiB for heads of 128, 96 and 128 KiB for 192 and 256, of an A100's 164) and
    flash_api.cpp (set_params_splitkv plans for two blocks an SM, for every head).  From 768 byte of shared memory per element of a head on
    (Hopper) FlashAttention-2 has two again, with NARROW_QUERY_TILE rows for heads beyond 192 (run_mha_fwd_hdim256)."""

    COMBINE_CLOCKS = 2000.0
    """Decode: ideal cost of the kernel that joins the shares of a split cache, kept in fp32 (set_params_splitkv, out_accum) [SM clock]
    (assumed).  Source of the kernel: flash_fwd_launch_template.h (flash_fwd_splitkv_combine_kernel)."""

    WAVE_CLOCKS = 1400.0
    """Ideal cost of starting one wave of blocks [SM clock], 1 µs at 1.4 GHz."""

    ROW_UNIT_CLOCKS = 10.0
    """Ideal cost of a query row's bookkeeping on an SM [SM clock]."""

    CUDA_PER_EXPONENTIAL = 6.0
    """Lane instructions for each score: scale, running maximum, subtraction, sum, rescaling, conversion (assumed)."""

    SERIAL_CONTEXT = 1024.0
    """Decode: longest context that one block processes; longer ones are split among blocks [token] (assumed).  FlashAttention-2 splits
    whenever that fills idle SMs, FlashAttention-3 from five tiles of keys on (heuristics.h, num_splits_heuristic)."""

    SHARED_PASSES, WIDE_SHARED_PASSES, SHARING_SHARED_PASSES = 5.0, 9.0, 3.0
    """Shared-memory passes over a block's keys and values: one write, and one read by each of four warps, which have separate query rows
    (kernel_traits.h, TiledMma); large heads have eight warps a block (run_mha_fwd_hdim192; run_mha_fwd_hdim256 if 128 KiB of shared
    memory fit); matrix units of Hopper read shared memory directly, for each of two warp groups (tile_size.h; Blackwell assumed equal)."""


WARP_ENERGY: Final[dict[str, float]] = {"hopper": 1.3}
"""Energy of a flop by instructions of a warp over one by those of warp groups, by architecture [1]: 1.23 (fp16) and 1.32 (bf16) on an H200
(mma and wgmma in `bundles/data/h200-sxm/instructions-3.parquet`, their rates as WARP_RATE)."""

FRAMEWORK_RATE: Final = {**WARP_RATE, "blackwell": 0.31}
"""Share of the tensor cores' rate that FlashAttention-2 can reach, by architecture [1].  Its instructions of a warp have the rate of a
Hopper's SM on a B200: it reaches 308 to 379 TFLOP/s there (Dao-AILab/flash-attention, issue 1589), on an H100 as much."""


GROUPING: Final = ("trtllm", "sglang")
"""Engines whose decoding kernels, XQA and FlashInfer's, group query heads with a window, too.  Source: on an L40S FlashInfer's with a
window beyond the context take 1.00 to 1.03 times what those without one take (AIConfigurator); TensorRT-LLM's are assumed alike."""


@arrays
class AttentionColumns:
    """Attention kernels as columns of shape (n,); `cached` numbers for a token and key head; bytes per element of operands and of those.

    framework: FlashAttention-2, PyTorch's own unless it prefers cuDNN; padded: it pads query rows with what lies in shared memory
    (flash_fwd_kernel.h), so that they cost as others, as do kernels of vLLM and SGLang before Hopper; grouped: a block of a decoding
    kernel takes all query heads of a key head in spite of a window, as in TensorRT-LLM and FlashInfer; flop_per_clock: rate of an SM;
    tensor: flop of 16-bit operands with the energy of one flop, 0 on CUDA cores; roomy: shared memory holds two blocks of
    FlashAttention-2 with the largest heads; window: most keys that a query sees, all without one.
    """

    batch: Array
    queries: Array
    context: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    window: Array
    causal: Array
    cached: Array
    element_byte: Array
    kv_byte: Array
    framework: BoolArray
    padded: BoolArray
    grouped: BoolArray
    flop_per_clock: Array
    tensor: Array
    roomy: BoolArray


def attention_columns(operators: Sequence[Operator], gpu: GpuSpec) -> AttentionColumns:
    """Fused attention as columns.

    A window that holds all keys is none (flash_api.cpp, `window_size_left >= seqlen_k`).
    """
    rate = np.array([gpu.matrix_flop_per_clock(o.precision, o.cuda_cores) for o in operators])
    tensor = np.array([gpu.on_tensor_cores(o.precision) and not o.cuda_cores for o in operators])
    flash = (FLASH_ATTENTION,) if gpu.compute_capability in CUDNN_HEADS else (FLASH_ATTENTION, "")
    framework = np.array([o.family == "attention" and o.library in flash for o in operators], dtype=np.bool_)
    early = gpu.architecture not in SHARING_ARCHITECTURES
    shape = dict(
        zip((*FAMILY_FIELDS["attention"], "cached"), np.array([attention_shape(o) for o in operators], dtype=np.float64).T, strict=True)
    )
    shape["window"] = np.minimum(np.where(shape["window"] > 0, shape["window"], np.inf), shape["context"])
    return AttentionColumns(
        **shape,
        element_byte=np.array([BYTES_PER_ELEMENT[o.precision] for o in operators]),
        kv_byte=np.array([BYTES_PER_ELEMENT[o.kv_precision] for o in operators]),
        framework=framework,
        padded=framework | np.array([early and o.library != "trtllm" for o in operators]),
        grouped=np.array([o.library in GROUPING for o in operators]),
        flop_per_clock=rate * np.where(tensor & framework, FRAMEWORK_RATE.get(gpu.architecture, 1.0), 1.0),
        tensor=tensor * tensor_rate(gpu) / rate * np.where(framework, WARP_ENERGY.get(gpu.architecture, 1.0), 1.0),
        roomy=framework & (gpu.shared_bytes_per_sm >= Flash.SHARED_BYTES * shape["head_dim"]),
    )


def prefill_phases(operators: Sequence[Operator], gpu: GpuSpec) -> Phases:
    """Phases of prefill kernels, shape (n, ·)."""
    c = attention_columns(operators, gpu)
    sharing = ~c.framework & (gpu.architecture in SHARING_ARCHITECTURES)
    joined = ~sharing & ((c.kv_byte != c.element_byte) | ((c.queries == 1) & (c.window == c.context)))
    query_heads = np.where(joined, c.heads / c.kv_heads, 1.0)
    large = c.head_dim > Flash.LARGE_HEAD
    narrow = c.roomy & (c.head_dim > Flash.WIDE_HEAD)
    query_tile = np.where(narrow, Flash.NARROW_QUERY_TILE, Flash.QUERY_TILE)
    paired = sharing & (gpu.architecture == "blackwell") & ~large & (c.queries > Flash.QUERY_TILE)
    query_tile = np.where(paired, 2.0 * Flash.QUERY_TILE, query_tile)
    query_tiles, key_tiles = np.ceil(c.queries * query_heads / query_tile), np.ceil(c.context / Flash.KEY_TILE)
    per_tile = query_tile / Flash.KEY_TILE / query_heads
    past = np.maximum(key_tiles - query_tiles * per_tile, 0.0)
    longest = np.minimum(key_tiles, np.ceil(c.window / Flash.KEY_TILE) + per_tile)
    triangle = np.where(c.causal > 0, query_tiles * past + per_tile * query_tiles * (query_tiles + 1.0) / 2.0, np.inf)
    seen = np.minimum(np.maximum(triangle, query_tiles), query_tiles * longest)
    tile_scores = query_tile * Flash.KEY_TILE
    tile_flop = 4.0 * tile_scores * np.maximum(Flash.HEAD_SIZES[np.searchsorted(Flash.HEAD_SIZES[:-1], c.head_dim)], c.head_dim)
    heads = c.batch * c.heads / query_heads
    blocks = heads * query_tiles
    resident = np.where((large & ~narrow) | sharing, 1.0, Flash.RESIDENT_BLOCKS)
    tiles = seen / query_tiles
    rounds = np.ceil(blocks / (resident * gpu.num_sms))
    # SMs take the unequal blocks of a triangle by turns, not as they get free: the last one ends a standard deviation after the mean.
    late = np.where(sharing, (longest - tiles) * np.sqrt(rounds / 3.0), 0.0)
    chain = np.maximum(longest, rounds * tiles + late)
    even = heads * seen * tile_flop / (c.flop_per_clock * gpu.num_sms)
    sharers = np.minimum(resident, np.ceil(blocks / gpu.num_sms))
    # Beside the longest block of a triangle runs an average one.
    busiest = np.maximum(longest + (sharers - 1.0) * tiles, sharers * rounds * tiles + late)
    math = busiest * tile_flop / c.flop_per_clock
    rows = c.batch * c.heads * c.queries
    query_byte = 2.0 * rows * c.head_dim * c.element_byte
    keys = np.minimum(c.context, c.window + c.queries - 1.0)  # that any query sees
    moved = query_byte + c.batch * c.kv_heads * keys * c.cached * c.kv_byte
    tile_byte = Flash.KEY_TILE * c.cached * c.kv_byte
    reload_byte = heads * seen * tile_byte
    filled = c.queries * query_heads / (query_tiles * query_tile)
    filled = np.where(c.padded, 1.0, filled + Gemm.PADDED_SHARE * (1.0 - filled))
    passes = np.where(large & ~narrow, Flash.WIDE_SHARED_PASSES, Flash.SHARED_PASSES)
    return make_phases(
        {
            "math": math,
            "l2": np.maximum(busiest * tile_byte / Gemm.PORT_BYTES, (reload_byte + query_byte) / gpu.l2_bytes_per_clock),
            "issue": Flash.CUDA_PER_EXPONENTIAL * busiest * tile_scores / gpu.fp32_lanes,
            "loop": chain * Flash.KEY_STEP_CLOCKS,
            "sfu": busiest * tile_scores / gpu.sfu_op_per_clock,
            "dram": moved / gpu.dram_bytes_per_s,
            "waves": rounds * Flash.WAVE_CLOCKS,
            "rows": rows / gpu.num_sms * Flash.ROW_UNIT_CLOCKS,
        },
        _events(c, moved, reload_byte, filled * heads * seen * tile_flop, heads * seen * tile_scores)
        | {"shared": reload_byte * np.where(sharing, Flash.SHARING_SHARED_PASSES, passes)},
        even.shape,
        occupied=np.minimum(even / math, 1.0),
        even_math=math,
        ideal_math=even,
    )


def decode_phases(operators: Sequence[Operator], gpu: GpuSpec) -> Phases:
    """Phases of decode kernels (one or few new tokens against a cache), shape (n, ·).

    A block takes all query heads of a key head.  With a window FlashAttention-2, PyTorch's and vLLM's, gives each query head its own block
    (flash_api.cpp, seqlenq_ngroups_swapped); it has no 8-bit caches.
    """
    c = attention_columns(operators, gpu)
    sharing = ~c.framework & (gpu.architecture in SHARING_ARCHITECTURES)
    joined = (c.window == c.context) | (c.kv_byte != c.element_byte) | c.grouped | sharing
    query_heads = np.where(joined, c.heads / c.kv_heads, 1.0)
    key_tile, most = np.where(sharing, [[Flash.WIDE_KEY_TILE], [Flash.MOST_SPLITS]], [[Flash.KEY_TILE], [np.inf]])
    key_tiles = np.ceil(c.window / key_tile)
    cache_byte = c.batch * c.kv_heads * c.window * c.cached * c.kv_byte
    rows, heads = c.batch * c.heads * c.queries, c.batch * c.heads / query_heads
    moved, scores = cache_byte + 2.0 * rows * c.head_dim * c.element_byte, rows * c.window
    resident = np.where((c.head_dim > Flash.LARGE_HEAD) & ~c.roomy, 1.0, Flash.RESIDENT_BLOCKS)
    # Kernels for latent attention split no context among blocks of boards before Hopper.
    whole = (c.cached < 2.0 * c.head_dim) & (gpu.architecture not in SHARING_ARCHITECTURES)
    walk = np.ceil(key_tiles / np.clip(np.floor(resident * gpu.num_sms / heads), 1.0, np.minimum(key_tiles, most)))
    walk = np.where(whole, key_tiles, walk)
    walk[c.framework] = framework_walk(heads[c.framework], c.window[c.framework], c.head_dim[c.framework], gpu)
    splits = np.ceil(key_tiles / walk)
    # Without a split FlashAttention-2 runs the kernel of prefill, whose largest heads have smaller tiles.
    unsplit = c.framework & (splits == 1.0) & (c.head_dim <= Flash.WIDE_HEAD)
    tile = np.where(unsplit, Flash.QUERY_TILE, Flash.NARROW_QUERY_TILE)
    group = np.ceil(c.queries * query_heads / tile) * tile
    flop = 4.0 * heads * group * (key_tiles * key_tile) * c.head_dim
    even = flop / (c.flop_per_clock * gpu.num_sms)
    blocks = heads * splits
    rounds = np.ceil(blocks / (resident * gpu.num_sms))
    busiest = rounds * np.minimum(resident, np.ceil(blocks / gpu.num_sms)) * walk
    partial_byte = blocks * Gemm.PARTIAL_BYTES * c.queries * query_heads * c.head_dim
    busiest_math = busiest * 4.0 * group * key_tile * c.head_dim / c.flop_per_clock
    busiest_scores = busiest * group * key_tile
    busiest_math = np.where(sharing, even, busiest_math)  # blocks distribute the work evenly
    busiest_scores = np.where(sharing, scores / gpu.num_sms, busiest_scores)
    useful = 4.0 * scores * c.head_dim
    done = np.where(c.padded, flop, useful + Gemm.PADDED_SHARE * np.maximum(flop - useful, 0.0))
    done_scores = np.where(c.padded, heads * group * key_tiles * key_tile, scores)
    return make_phases(
        {
            "math": busiest_math,
            "l2": busiest * key_tile * c.cached * c.kv_byte / Gemm.PORT_BYTES,
            "issue": Flash.CUDA_PER_EXPONENTIAL * busiest_scores / gpu.fp32_lanes,
            "loop": rounds * walk * Flash.KEY_STEP_CLOCKS,
            "wait": rounds * walk * Stream.MEMORY_LATENCY_S,
            "sfu": busiest_scores / gpu.sfu_op_per_clock,
            "dram": moved / gpu.dram_bytes_per_s,
            "waves": np.ceil(heads / gpu.num_sms) * Flash.WAVE_CLOCKS,
            "reduce": np.where(splits > 1.0, Flash.COMBINE_CLOCKS + 2.0 * partial_byte / gpu.l2_bytes_per_clock, 0.0),
            "rows": rows * Flash.ROW_UNIT_CLOCKS / gpu.num_sms,
            "row_length": np.minimum(c.window, Flash.SERIAL_CONTEXT),
        },
        _events(c, moved, 0.0, done, done_scores) | {"shared": np.where(c.padded, Flash.SHARED_PASSES, 2.0) * cache_byte},
        even.shape,
        occupied=np.minimum(heads * key_tiles / gpu.num_sms, 1.0),
        even_math=busiest_math,
        ideal_math=even,
    )


def framework_walk(blocks: Array, keys: Array, head_dim: Array, gpu: GpuSpec) -> Array:
    """Tiles of KEY_TILE keys that a block of FlashAttention-2 walks, shape (n,), for so many blocks without a split.

    The least split that fills the places for blocks to 0.85 of what any fills; none from 0.8 of the places on.
    Source: flash_api.cpp (num_splits_heuristic, set_params_splitkv), flash_fwd_launch_template.h (run_mha_fwd_splitkv_dispatch).
    """
    width = np.select([head_dim <= 64, head_dim <= Flash.LARGE_HEAD], [256.0, 128.0], 64.0)
    columns, places, tried = np.ceil(keys / width)[:, None], 2.0 * gpu.num_sms, np.arange(1.0, 129.0)
    waves = blocks[:, None] * tried / places
    walk = np.ceil(columns / tried)
    new = np.column_stack([np.ones(len(keys), dtype=np.bool_), walk[:, 1:] < walk[:, :-1]])
    filled = np.where(new & (tried <= columns), waves / np.ceil(waves), 0.0)
    first = np.argmax(filled >= 0.85 * filled.max(axis=1, keepdims=True), axis=1)
    first = np.where(blocks >= 0.8 * places, 0, first)
    found: Array = np.take_along_axis(walk, first[:, None], axis=1)[:, 0] * width / Flash.KEY_TILE
    return np.minimum(found, np.ceil(keys / Flash.KEY_TILE))


def _events(c: AttentionColumns, moved_byte: Array, reload_byte: Array | float, flop: Array, scores: Array) -> dict[str, Array]:
    lanes = Flash.CUDA_PER_EXPONENTIAL * scores + np.where(c.tensor > 0.0, 0.0, Gemm.MULTIPLY_ADD * flop / 2.0)
    return {"dram": moved_byte, "l2": reload_byte + moved_byte, "tensor": c.tensor * flop, "cuda": lanes, "sfu": scores}
