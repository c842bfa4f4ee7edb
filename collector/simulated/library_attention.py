"""The simulated library's fused attention: prefill in query tiles, decode in shares of the cache."""

from math import ceil, prod
from typing import Final

import numpy as np

from collector.devices.protocols import PreparedKernel
from collector.errors import RunnerError
from collector.simulated.cache import replayed_traffic
from collector.simulated.plan import KernelPlan, library, rounds_of_unequal
from collector.simulated.profile import BoardProfile
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, Array
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator
from microbench.kernel import WARP_LANES
from microbench.sizing import resident_blocks

SOFTMAX_OPS: Final = 6.0
"""Lane instructions of one score: scale, mask, maximum, subtract, sum, convert."""

LARGEST_HEAD: Final = 256


@frozen
class Shape:
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


@frozen
class Tiling:
    """A kernel whose blocks walk over tiles of `keys` keys, each with `rows` queries, padded to `padded_rows`.

    `lengths` are the key tiles of blocks in launch order.  A block loads `query_bytes`, and `key_bytes` of the keys and values of `tokens`
    tokens, the same as `sharing` blocks in a row.  It stores `store_bytes`.  `scores` of the
    launch are not padding.
    """

    grid: tuple[int, int, int]
    rows: int
    padded_rows: int
    keys: int
    threads: int
    registers: int
    lengths: Array
    splits: int
    tokens: int
    sharing: int
    scores: float
    key_bytes: float
    query_bytes: float
    store_bytes: float
    step_clocks: float
    path_share: float
    row_pitch_bytes: float


def attention_plan(operator: Operator, profile: BoardProfile) -> KernelPlan:
    """The kernel for fused attention.  Raises RunnerError if the library has none."""
    gpu, precision = profile.spec, operator.precision
    if precision not in gpu.tensor_flop_per_clock or precision not in library().cutlass_types:
        raise RunnerError(f"attention in {precision}: no such kernel on {gpu.name}")
    if operator["head_dim"] > LARGEST_HEAD:
        raise RunnerError(f"attention with head_dim {operator['head_dim']:.0f}: the largest is {LARGEST_HEAD}")
    if operator["heads"] % operator["kv_heads"]:
        raise RunnerError(f"attention: {operator['heads']:.0f} heads cannot share {operator['kv_heads']:.0f} key heads evenly")
    width, kv_width = (BYTES_PER_ELEMENT[one] for one in (precision, operator.kv_precision))
    shape = Shape(width=width, kv_width=kv_width, **{name: int(value) for name, value in operator.named_shape().items()})
    tiled = _prefill if operator.operator == "prefill" else _decode
    return _lay_out(tiled(shape, profile), shape, operator, profile)


def _lay_out(tiling: Tiling, shape: Shape, operator: Operator, profile: BoardProfile) -> KernelPlan:
    gpu, generation, blocks = profile.spec, profile.library.generation, prod(tiling.grid)
    keys, head_dim, shared_size = tiling.keys, shape.head_dim, _shared_size(shape, tiling.rows, tiling.keys)
    resident = max(1, resident_blocks(gpu, tiling.threads, tiling.registers, shared_size))
    tiles, slots, cache_bytes = float(tiling.lengths.mean()), resident * gpu.num_sms, shape.cache_bytes(tiling.tokens)
    flop = 4.0 * tiling.padded_rows * tiles * keys * head_dim
    scores, computed = _scores(tiling, generation)
    useful, loaded = 4.0 * computed * head_dim, tiling.key_bytes + tiling.query_bytes
    readers = 2 if generation == "hopper" else tiling.threads // WARP_LANES  # of a key tile in shared memory: warp groups, or warps
    lengths = tiling.lengths + 0.6  # loading the queries and writing the result, in key tiles
    relative = lengths / float(lengths.mean())
    uneven = float(np.ptp(relative)) > 0.0
    return KernelPlan(
        kernel=PreparedKernel(
            operator=operator,
            l2_state="warm",
            library=library().attention_library.get(generation, "flash-attention"),
            kernel_name=_kernel_name(tiling, shape, operator, generation),
            grid=tiling.grid,
            block=(tiling.threads, 1, 1),
            registers_per_thread=tiling.registers,
            shared_bytes_per_block=shared_size,
            blocks_per_sm=resident,
            tile_m=tiling.rows,
            tile_n=keys,
            tile_k=head_dim,
            stages=2,
            split_k=tiling.splits,
            working_set_bytes=int(2.0 * shape.query_bytes + cache_bytes),
        ),
        product_flop=useful,
        padded_flop=max(0.0, flop * blocks - useful),
        lane_ops=SOFTMAX_OPS * scores,
        switched_ops=SOFTMAX_OPS * computed,
        sfu_ops=scores,
        shared_bytes=(tiling.key_bytes * (1.0 + readers) + 2.0 * tiling.query_bytes) * blocks,
        traffic=replayed_traffic(
            profile,
            panels=((lambda block: block // tiling.sharing, cache_bytes / (blocks / tiling.sharing)),),
            compulsory_bytes=shape.query_bytes + cache_bytes,
            loaded_bytes=blocks * loaded,
            write_bytes=shape.query_bytes,
            blocks=blocks,
            slots=slots,
        ),
        product_clocks=flop / (gpu.tensor_flop_per_clock[operator.precision] * library().attention_efficiency[generation]),
        steps=tiles,
        step_clocks=tiling.step_clocks,
        load_bytes=loaded,
        store_bytes=tiling.store_bytes,
        in_flight_bytes=2.0 * keys * head_dim * shape.kv_width,
        path_share=tiling.path_share,
        asynchronous=generation != "volta",
        epilogue_clocks=600.0,
        row_pitch_bytes=tiling.row_pitch_bytes,
        follow_up_clocks=2500.0 if tiling.splits > 1 else 0.0,  # starting the kernel that combines the shares
        follow_up_bytes=tiling.store_bytes * blocks + shape.query_bytes if tiling.splits > 1 else 0.0,
        longest_block=float(relative.max()) if uneven else 0.0,
        placed_rounds=rounds_of_unequal(relative, blocks, slots) if uneven else 0.0,
    )


def _scores(tiling: Tiling, generation: str) -> tuple[float, float]:
    """Scores that take time, and those that cost energy.

    Before Hopper's kernels padded rows hold what lay in shared memory before, and cost what others do; a cache that is not split takes the
    tiles of prefill.
    """
    if generation == "hopper":
        return tiling.scores, tiling.scores
    padded = tiling.padded_rows * float(tiling.lengths.mean()) * tiling.keys * prod(tiling.grid)
    return padded, padded * (2.0 if tiling.splits == 1 and tiling.padded_rows == 64 else 1.0)


def _kernel_name(tiling: Tiling, shape: Shape, operator: Operator, generation: str) -> str:
    names = library().attention_names
    return names.get(f"{operator.operator} {generation}", names[operator.operator]).format(
        head_dim=shape.head_dim,
        rows=tiling.rows,
        keys=tiling.keys,
        warps=tiling.threads // WARP_LANES,
        causal=shape.causal,
        kind=library().cutlass_types[operator.precision],
    )


def _prefill(shape: Shape, profile: BoardProfile) -> Tiling:
    """One block for each tile of queries of each head; it walks over the keys visible to them."""
    hopper, head_dim = profile.library.generation == "hopper", shape.head_dim
    heads, narrow = shape.heads, head_dim <= 128
    rows = 64 if hopper and shape.queries <= 64 else 128
    keys = 128 if head_dim <= 64 else 64 if narrow else 32
    threads = 384 if hopper else 128 if narrow else 256
    lengths = _key_tiles(shape, rows, keys)
    walked, tile_bytes = float(lengths.mean()) * keys, rows * head_dim * shape.width
    return Tiling(
        grid=(len(lengths), shape.batch, heads),
        rows=rows,
        padded_rows=rows,
        keys=keys,
        threads=threads,
        registers=168 if hopper else 255 if narrow else 224,
        lengths=lengths,
        splits=1,
        tokens=shape.context,
        sharing=len(lengths) * (heads // shape.kv_heads),
        scores=walked * rows * len(lengths) * shape.batch * heads,
        key_bytes=2.0 * walked * head_dim * shape.kv_width,
        query_bytes=tile_bytes,
        store_bytes=tile_bytes,
        step_clocks=900.0,  # scores, maximum, exponentials and product of one key tile, one after the other
        path_share=1.0,
        row_pitch_bytes=heads * head_dim * shape.width,
    )


def _key_tiles(shape: Shape, rows: int, keys: int) -> Array:
    """Key tiles that each query tile of a head visits, in launch order (the last queries first), shape (tiles,)."""
    first = np.arange(0, shape.queries, rows, dtype=np.float64) + (shape.context - shape.queries)
    last = np.minimum(first + rows, shape.context)
    end = np.ceil((last if shape.causal else np.full(first.shape, float(shape.context))) / keys)
    begin = np.maximum(0.0, np.floor((first - shape.window) / keys)) if shape.window else np.zeros(first.shape)
    return np.maximum(end - begin, 1.0)[::-1].copy()


def _decode(shape: Shape, profile: BoardProfile) -> Tiling:
    """Blocks for each key head and share of its cache; the query heads that use it are rows of one tile."""
    rows, keys, threads, registers = 64, 64, 128, 200
    visible = min(shape.context, shape.window or shape.context)
    queries, heads = shape.queries * (shape.heads // shape.kv_heads), shape.batch * shape.kv_heads
    key_tiles = ceil(visible / keys)
    resident = max(1, resident_blocks(profile.spec, threads, registers, _shared_size(shape, rows, keys)))
    tiles = ceil(key_tiles / max(1, min(key_tiles, resident * profile.spec.num_sms // heads)))
    splits = ceil(key_tiles / tiles)
    return Tiling(
        grid=(1, splits, heads),
        rows=rows,
        padded_rows=ceil(queries / rows) * rows,
        keys=keys,
        threads=threads,
        registers=registers,
        lengths=np.full(1, float(tiles)),
        splits=splits,
        tokens=visible,
        sharing=1,
        scores=heads * queries * visible,
        key_bytes=shape.cache_bytes(visible) / (heads * splits),
        query_bytes=shape.query_bytes / heads,
        store_bytes=queries * shape.head_dim * (4.0 if splits > 1 else shape.width),
        step_clocks=540.0,  # the same for a tile of cached keys
        path_share=0.55,
        row_pitch_bytes=shape.kv_heads * shape.head_dim * shape.kv_width,
    )


def _shared_size(shape: Shape, rows: int, keys: int) -> int:
    """Shared memory of a block: a tile of queries, and of keys and values [byte]."""
    return int((rows + 2 * keys) * shape.head_dim * shape.width)
