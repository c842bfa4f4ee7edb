"""The simulated library's fused attention: prefill in query tiles, decode in shares of the cache."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.errors import RunnerError
from collector.simulated.cache import replayed_blocks, replayed_traffic, streamed_traffic
from collector.simulated.plan import BlockDemand, KernelPlan, LaunchEvents, Traffic, library, resident_blocks, rounds_of_unequal
from collector.simulated.profile import BoardProfile
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, Array
from estimator.vocabulary.workload import Operator

SOFTMAX_OPS: Final = 6.0
"""Lane instructions of one score: scale, mask, maximum, subtract, sum, convert."""

DECODE_ROWS = DECODE_KEYS = 64
"""Tile of decode: the query heads of one key head are padded to its rows."""

LARGEST_HEAD: Final = 256


def attention_plan(operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The kernel for fused attention.  Raises RunnerError if the library has none."""
    if operator.precision not in gpu.tensor_flop_per_clock or operator.precision not in library().cutlass_types:
        raise RunnerError(f"attention in {operator.precision}: no such kernel on {gpu.name}")
    if operator["head_dim"] > LARGEST_HEAD:
        raise RunnerError(f"attention with head_dim {operator['head_dim']:.0f}: the largest is {LARGEST_HEAD}")
    if operator["heads"] % operator["kv_heads"]:
        raise RunnerError(f"attention: {operator['heads']:.0f} heads cannot share {operator['kv_heads']:.0f} key heads evenly")
    return _prefill(operator, profile, gpu) if operator.operator == "prefill" else _decode(operator, profile, gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The shape of an attention operator in whole numbers, and the bytes of its elements."""

    batch: int
    queries: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    causal: int
    width: float
    kv_width: float

    @property
    def query_bytes(self) -> float:
        """Queries, or results, of the whole operator."""
        return self.batch * self.heads * self.queries * self.head_dim * self.width

    def cache_bytes(self, tokens: float) -> float:
        """Keys and values of `tokens` tokens for all heads."""
        return 2.0 * self.batch * self.kv_heads * tokens * self.head_dim * self.kv_width


def _shape(operator: Operator) -> AttentionShape:
    numbers = {name: int(value) for name, value in operator.named_shape().items()}
    width = BYTES_PER_ELEMENT[operator.precision]
    kv_width = BYTES_PER_ELEMENT[operator.precision_kv or operator.precision]
    return AttentionShape(width=width, kv_width=kv_width, **numbers)


def _prefill(operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The plan of prefill: one block for each tile of queries of each head; it walks over the keys visible to them."""
    shape, generation = _shape(operator), profile.library.generation
    rows = 128 if shape.queries > 64 else 64
    keys = 128 if shape.head_dim <= 64 else 64 if shape.head_dim <= 128 else 32
    threads = 384 if generation == "hopper" else 128 if shape.head_dim <= 128 else 256
    registers = 168 if generation == "hopper" else 255 if shape.head_dim <= 128 else 224
    shared_size = int((rows + 2 * keys) * shape.head_dim * shape.width)
    resident = max(1, resident_blocks(gpu, threads, registers, shared_size))
    lengths = _key_tiles(shape, rows, keys)
    blocks, slots = shape.batch * shape.heads * len(lengths), resident * gpu.num_sms
    tiles = float(lengths.mean())
    cells = tiles * rows * keys
    flop = 4.0 * cells * shape.head_dim
    warps = threads // 32
    key_bytes = 2.0 * tiles * keys * shape.head_dim * shape.kv_width
    tile_bytes = rows * shape.head_dim * shape.width
    # hopper: warp groups that each read a key tile from shared memory; elsewhere every warp does
    shared = key_bytes * (1.0 + (2.0 if generation == "hopper" else warps)) + 2.0 * tile_bytes
    lengths = lengths + 0.6  # loading the queries and writing the result, in key tiles
    relative = lengths / float(lengths.mean())
    uneven = float(np.ptp(relative)) > 0.0
    return KernelPlan(
        kernel_name=_prefill_name(profile, _traits(operator, rows, keys, warps), rows, keys, shape.causal),
        library="flash-attention",
        grid=(len(lengths), shape.batch, shape.heads),
        threads=threads,
        registers=registers,
        shared_bytes_per_block=shared_size,
        blocks_per_sm=resident,
        blocks=blocks,
        demand=BlockDemand(
            **_unit_clocks(operator, profile, gpu, flop, cells),
            shared_clocks=shared / gpu.shared_bytes_per_clock,
            steps=tiles,
            step_clocks=900.0,  # scores, maximum, exponentials and product of one key tile, one after the other
            load_bytes=key_bytes + tile_bytes,
            store_bytes=tile_bytes,
            in_flight_bytes=2.0 * keys * shape.head_dim * shape.kv_width,
            asynchronous=generation != "volta",
            epilogue_clocks=600.0,
        ),
        events=LaunchEvents(
            tensor_flop=flop * blocks,
            cuda_ops=SOFTMAX_OPS * cells * blocks,
            sfu_ops=cells * blocks,
            shared_bytes=shared * blocks,
            l2_bytes=(key_bytes + 2.0 * tile_bytes) * blocks,
        ),
        traffic=_prefill_traffic(shape, profile, gpu, len(lengths), blocks, slots, key_bytes + tile_bytes),
        working_set_bytes=2.0 * shape.query_bytes + shape.cache_bytes(shape.context),
        row_pitch_bytes=shape.heads * shape.head_dim * shape.width,
        tile_m=rows,
        tile_n=keys,
        tile_k=shape.head_dim,
        stages=2,
        precision=operator.precision,
        longest_block=float(relative.max()) if uneven else 0.0,
        placed_rounds=rounds_of_unequal(relative, blocks, slots) if uneven else 0.0,
    )


def _prefill_traffic(
    shape: AttentionShape, profile: BoardProfile, gpu: GpuSpec, tiles_of_head: int, blocks: int, slots: int, loaded_bytes: float
) -> Traffic:
    """DRAM bytes: the blocks of heads with a shared key head may find its keys in the L2."""
    head = np.arange(replayed_blocks(blocks, slots)) // tiles_of_head
    cache = shape.cache_bytes(shape.context)
    return replayed_traffic(
        profile.memory,
        gpu,
        panels=((head // (shape.heads // shape.kv_heads), cache / (shape.batch * shape.kv_heads)),),
        compulsory_bytes=shape.query_bytes + cache,
        loaded_bytes=blocks * loaded_bytes,
        write_bytes=shape.query_bytes,
        blocks=blocks,
        slots=slots,
    )


def _prefill_name(profile: BoardProfile, traits: str, rows: int, keys: int, causal: int) -> str:
    """A name in the style of the libraries with such kernels for a generation."""
    if profile.library.generation == "volta":
        return f"fmha_cutlassF_f16_aligned_{rows}x{keys}_rf_sm70(PyTorchMemEffAttention::AttentionKernel<{causal}>::Params)"
    return f"void flash_fwd_kernel<{traits}, {causal}>(Flash_fwd_params)"


def _unit_clocks(operator: Operator, profile: BoardProfile, gpu: GpuSpec, flop: float, cells: float) -> dict[str, float]:
    """Clocks of the units for the products and the scores of one block."""
    efficiency = library().attention_efficiency[profile.library.generation]
    return {
        "tensor_clocks": flop / (gpu.tensor_flop_per_clock[operator.precision] * efficiency),
        "lane_clocks": SOFTMAX_OPS * cells / gpu.fp32_lanes,
        "special_clocks": cells / gpu.sfu_op_per_clock,
    }


def _traits(operator: Operator, rows: int, keys: int, warps: int) -> str:
    """The part of a kernel name that encodes its tile."""
    kind = library().cutlass_types[operator.precision]
    return f"Flash_fwd_kernel_traits<{operator['head_dim']:.0f}, {rows}, {keys}, {warps}, false, false, {kind}>"


def _key_tiles(shape: AttentionShape, rows: int, keys: int) -> Array:
    """Key tiles that each query tile of a head visits, in launch order (the last queries first), shape (tiles,)."""
    first = np.arange(0, shape.queries, rows, dtype=np.float64) + (shape.context - shape.queries)
    last = np.minimum(first + rows, shape.context)
    end = np.ceil((last if shape.causal else np.full(first.shape, float(shape.context))) / keys)
    begin = np.maximum(0.0, np.floor((first - shape.window) / keys)) if shape.window else np.zeros(first.shape)
    return np.maximum(end - begin, 1.0)[::-1].copy()


def _decode(operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The plan of decode: blocks for each key head and share of its cache; the query heads that use it are rows of one tile."""
    shape, generation = _shape(operator), profile.library.generation
    visible = min(shape.context, shape.window) if shape.window else shape.context
    rows = shape.queries * (shape.heads // shape.kv_heads)
    padded_rows = math.ceil(rows / DECODE_ROWS) * DECODE_ROWS
    shared_size = int((DECODE_ROWS + 2 * DECODE_KEYS) * shape.head_dim * shape.width)
    resident = max(1, resident_blocks(gpu, 128, 200, shared_size))
    heads = shape.batch * shape.kv_heads
    key_tiles = math.ceil(visible / DECODE_KEYS)
    tiles = math.ceil(key_tiles / max(1, min(key_tiles, resident * gpu.num_sms // heads)))
    splits = math.ceil(key_tiles / tiles)
    blocks = heads * splits
    cache, operands, cells = shape.cache_bytes(visible), shape.query_bytes, padded_rows * tiles * DECODE_KEYS
    flop = 4.0 * cells * shape.head_dim
    useful = 4.0 * heads * rows * visible * shape.head_dim
    partial = blocks * rows * shape.head_dim * 4.0 if splits > 1 else 0.0
    shared = 3.0 * cache + 2.0 * operands
    traits = _traits(operator, DECODE_ROWS, DECODE_KEYS, 4)
    return KernelPlan(
        kernel_name=f"void flash_fwd_splitkv_kernel<{traits}>(Flash_fwd_params)",
        library="flash-attention",
        grid=(1, splits, heads),
        threads=128,
        registers=200,
        shared_bytes_per_block=shared_size,
        blocks_per_sm=resident,
        blocks=blocks,
        demand=BlockDemand(
            **_unit_clocks(operator, profile, gpu, flop, cells),
            shared_clocks=shared / blocks / gpu.shared_bytes_per_clock,
            steps=tiles,
            step_clocks=540.0,  # the same for a tile of cached keys
            load_bytes=(cache + operands * splits) / blocks,
            store_bytes=(partial or operands) / blocks,
            in_flight_bytes=2.0 * DECODE_KEYS * shape.head_dim * shape.kv_width,
            path_share=0.55,
            asynchronous=generation != "volta",
            epilogue_clocks=500.0,
        ),
        events=LaunchEvents(
            tensor_flop=useful,
            padded_flop=max(0.0, flop * blocks - useful),
            cuda_ops=SOFTMAX_OPS * heads * rows * visible,
            sfu_ops=heads * rows * visible,
            shared_bytes=shared,
            l2_bytes=cache + operands * (splits + 1.0) + 2.0 * partial,
        ),
        traffic=streamed_traffic(profile.memory, gpu, cache + operands, operands),
        working_set_bytes=cache + 2.0 * operands,
        row_pitch_bytes=shape.kv_heads * shape.head_dim * shape.kv_width,
        tile_m=DECODE_ROWS,
        tile_n=DECODE_KEYS,
        tile_k=shape.head_dim,
        stages=2,
        precision=operator.precision,
        split_k=splits,
        follow_up_clocks=2500.0 if splits > 1 else 0.0,  # starting the kernel that combines the shares
        follow_up_bytes=2.0 * partial,
    )
