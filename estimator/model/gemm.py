"""Matrix products: GEMM, batched GEMM and, with its own footprint, convolution.

Phases of one candidate tile (units as in `estimator.model.phases`):

    math      waves · 2·tile_m·tile_n·kk / R                   blocks in whole waves of filled SMs
    l2        blocks · (tile_m + tile_n)·kk·bytes / B_L2       what blocks load from L2, rows beyond the matrix aside; an SM's
              own blocks at SM_PORT_BYTES where few SMs work
    dram      weights / BW,  dram_activations  activations / BW
    loop      rounds of resident blocks · kk/64 · LOOP_STEP_CLOCKS   the serial reduction loop; without tensor cores a
              block's math at the rate of its own warps, which are fewer than an SM has sub-partitions where tiles are small,
              or the latency of its loads
    prologue  waves · PIPELINE_FILL · 2·tile_m·tile_n / R      filling and draining the pipeline, waves counted as those of math
    quantise  √(bytes² / BW² + l²) − l                         8-bit activations, l = QUANTISE_LATENCY_S
    epilogue  output / BW, of persistent blocks in part among dram_activations,
              reduce, reduce_launch, reduce_start   output and split-K reduction
    store     the output's way from an SM, as far as no other block on it hides that
    waves     rounds · ROUND_CLOCKS / resident blocks, and the last round's own

Without tensor cores a block has an SM to itself in the count of waves, and K is padded to 8.  `padded_k` of a convolution counts the
channels that a library adds to those of its operands.

Sources: EnergAIzer (arXiv 2604.20105) for the three parts of a block's life; wave counting in filled SMs, the
geometric mixture of waves and the split-K terms were found on published A100, H100 and H200 measurements
(docs/model.md).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.model.phases import EVENTS, OVERLAPPED, SERIAL, Phases, empty_phases
from estimator.model.power import tensor_rate
from estimator.model.tiling import REDUCTION_STEP, SHORTEST_SPLIT, Candidates
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array

SM_FILL_AREA: Final = 256.0 * 128.0
"""Output elements whose accumulators fill an SM's registers; smaller tiles share an SM [element] (assumed).  It is CUTLASS' largest
tile on Ampere, generator.py (GenerateSM80_TensorOp_16816): 256 threads with 128 accumulators each and, at most, as many registers
for the rest."""

BLOCKS_FILLING_AN_SM: Final = 4.0
"""Most blocks of a matrix product that share an SM (assumed)."""

LOOP_STEP_CLOCKS: Final = 160.0
"""Ideal latency of 64 reduction steps of one block [SM clock]."""

CUDA_STEP_CLOCKS: Final = 300.0
"""Without tensor cores: ideal latency of one step of a block's reduction, which has one load from L2 under way while it works on the
one before [SM clock] (assumed: some 200 clocks of an L2 hit, its way into shared memory and a barrier)."""

REDUCE_START_CLOCKS: Final = 1000.0
"""Ideal cost of the pass that adds the shares of a split reduction, as far as the SM clock drives it [SM clock] (assumed)."""

PIPELINE_FILL: Final = 80.0
"""Filling and draining a block's pipeline, in reduction steps of its tile."""

ROUND_CLOCKS: Final = 1000.0
"""Ideal latency of a block beside its reduction: from its start to the first operands, and from the last product to its end [SM clock]."""

PARTIAL_BYTES: Final = 4.0
"""Partial results are fp32 [byte]."""

SPLIT_TRAFFIC_BYTES: Final = 8.0
"""A split's partial result is written and read back in fp32 [byte/element]."""

LARGEST_WARP_TILE: Final = 64.0
"""Largest edge of a warp's share of the tile: each element from shared memory serves that many products.  Source: CUTLASS,
default_gemm_configuration.h (WarpShape)."""

SMALLEST_WARP_TILE: Final = 16.0
"""Smallest edge of a warp's share: the longest of one matrix instruction's.  Source: CUTLASS, default_gemm_configuration.h
(InstructionShape, 16 × 8 × 16 on Ampere)."""

CUDA_WARP_TILE: Final = (64.0, 32.0)
"""A warp's share without tensor cores: 8 × 4 threads with 8 × 8 products each.  Source: CUTLASS, default_gemm_configuration.h
(OpClassSimt, there 32 × 64) and default_mma_core_simt.h (simt_get_warp_threads_m); cuBLAS assumed alike."""

STEP_BYTES: Final = 64.0
"""Smallest piece of a reduction that a block takes at a time with tensor cores [byte].  Source: CUTLASS, generator.py
(GenerateSM80_TensorOp_16816): 32 or 64 elements of 16 bit; cuBLAS assumed alike."""

PADDED_FLOP_SHARE: Final = 0.2
"""Energy of a product with a padded zero relative to a useful one: the unit is clocked, but few bits toggle (assumed)."""

OUTPUT_INSTRUCTIONS: Final = 4.0
"""Lane instructions of one output element: scale, add, convert, store (assumed)."""

QUANTISE_BYTES: Final = 3.0
"""fp8 operands: activations are read in 16 bit and written in 8 [byte/element]."""

QUANTISE_LATENCY_S: Final = 2.0e-6
"""Traffic of the quantising kernels that hides behind their own latency, which is part of epsilon [s]."""

SM_PORT_BYTES: Final = 64.0
"""What an SM takes from L2 at most [byte/clock].  Assumed alike for all boards; vendors publish no such figure."""

SM_PARTITIONS: Final = 4.0
"""Sub-partitions of an SM, each with its own warps: fewer warps leave units idle (CUDA programming guide)."""

TWO_WARP_EDGE: Final = 64.0
TWO_WARPS: Final = 2.0
"""Without tensor cores the square tile of this edge has two warps; all others have one for each sub-partition at least.
Source: launch sizes in NeuSight's tables of A100 and V100 (sgemm_64x64: 64 threads; all others: 128 or 256)."""

SHARING_ARCHITECTURES: Final = frozenset({"hopper", "blackwell"})
"""Here persistent blocks share out the last wave; elsewhere a block stays on its SM.  Source for attention: FlashAttention-3,
flash_fwd_launch_template.h (UsePersistentScheduler); for matrix products `wave_exponent` on H100 and H200 (docs/model.md)."""

OUTPUT_IN_THE_OPEN: Final = -0.5
"""Share of the output that no other block hides, as this power of the blocks of an SM: a persistent block's output is on its way while
the next tile is multiplied.  −1 would leave the last block's alone, 0 all.  Chosen on published products of H100 and H200
(docs/model.md)."""

CUDA_REDUCTION_STEP: Final = 8.0
"""Reduction length to which kernels without tensor cores pad a block's share of K [element].  Source: CUTLASS,
default_gemm_configuration.h (OpClassSimt, ThreadblockShape); cuBLAS assumed alike."""

CUDA_PIPELINE_FILL: Final = 8.0
"""Filling and draining a block's pipeline without tensor cores, in reduction steps of its tile."""

IMPOSSIBLE_CLOCKS: Final = 1e15
"""Marks a candidate that a library would not offer [SM clock]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatrixColumns:
    """Matrix products as columns of shape (n,).

    `batch` products C[m, n] = A[m, k]·B[k, n], their reduction padded to `padded_k`; bytes are totals over the batch;
    `flop_per_clock` is the peak rate per SM; `element_byte` the operands' width; `tensor` 1 where tensor cores do the work;
    `quantised` 1 where the activations are first converted to 8 bit.
    """

    batch: Array
    m: Array
    n: Array
    k: Array
    padded_k: Array
    weight_byte: Array
    activation_byte: Array
    output_byte: Array
    element_byte: Array
    flop_per_clock: Array
    tensor: Array
    quantised: Array

    def lifted(self) -> "MatrixColumns":
        """The same columns with shape (n, 1), to be broadcast against candidates."""
        return MatrixColumns(**{name: getattr(self, name)[:, None] for name in self.__slots__})


def candidate_phases(columns: MatrixColumns, tiles: Candidates, gpu: GpuSpec, *, counted: bool = True) -> Phases:
    """Phases of every candidate tile of every product, shape (n, c, ·); `counted` False leaves out their events.

    Candidates that a library would not offer (a split that leaves too short a reduction or too many blocks) get IMPOSSIBLE_CLOCKS.
    """
    row = Candidates(tile_m=tiles.tile_m[None, :], tile_n=tiles.tile_n[None, :], split=tiles.split[None, :])
    lifted = columns.lifted()
    blocks = matrix_blocks(lifted, row)
    phases = _timed_phases(lifted, row, gpu, blocks)
    if counted:
        count_events(phases.events, lifted, row, gpu)
    too_many = blocks > tiles.split_waves * gpu.num_sms
    impossible = (row.split > 1) & ((lifted.k / row.split < SHORTEST_SPLIT) | too_many)
    phases.overlapped[..., OVERLAPPED.index("math")][impossible] = IMPOSSIBLE_CLOCKS
    phases.even_math[impossible] = IMPOSSIBLE_CLOCKS
    return phases


def matrix_blocks(columns: MatrixColumns, tiles: Candidates) -> Array:
    """Thread blocks of products with given tiles; all columns broadcast against each other."""
    blocks: Array = columns.batch * np.ceil(columns.m / tiles.tile_m) * np.ceil(columns.n / tiles.tile_n) * tiles.split
    return blocks


def matrix_phases(columns: MatrixColumns, tiles: Candidates, gpu: GpuSpec) -> Phases:
    """Phases of products with given tiles; all columns broadcast against each other."""
    phases = _timed_phases(columns, tiles, gpu, matrix_blocks(columns, tiles))
    count_events(phases.events, columns, tiles, gpu)
    return phases


def _timed_phases(columns: MatrixColumns, tiles: Candidates, gpu: GpuSpec, blocks: Array) -> Phases:
    """The same without events, which are 0.

    A workload has few distinct products, so that each operation on columns costs its call: what holds for none of them is left out.
    """
    dram = 1.0 / gpu.dram_bytes_per_s
    area = tiles.tile_m * tiles.tile_n
    on_tensor = columns.tensor > 0.0
    step = np.where(on_tensor, STEP_BYTES / columns.element_byte, CUDA_REDUCTION_STEP)
    steps = np.ceil(columns.padded_k / (step * tiles.split))
    reduction = step * steps
    sharing = np.where(on_tensor, np.minimum(np.maximum(np.floor(SM_FILL_AREA / area), 1.0), BLOCKS_FILLING_AN_SM), 1.0)
    rounds = np.ceil(blocks / (gpu.num_sms * sharing))
    waves = sharing * rounds
    busiest = np.ceil(blocks / gpu.num_sms)
    block_clocks = 2.0 * area * reduction / columns.flop_per_clock
    loaded_byte = (np.minimum(tiles.tile_m, columns.m) + np.minimum(tiles.tile_n, columns.n)) * reduction * columns.element_byte
    useful_flop = 2.0 * columns.batch * columns.m * columns.n * columns.k

    phases = empty_phases(np.broadcast_shapes(blocks.shape, area.shape))
    overlapped = phases.overlapped
    overlapped[..., OVERLAPPED.index("math")] = waves * block_clocks
    l2_clocks = np.maximum(blocks / gpu.l2_bytes_per_clock, busiest / SM_PORT_BYTES) * loaded_byte
    overlapped[..., OVERLAPPED.index("l2")] = l2_clocks
    overlapped[..., OVERLAPPED.index("dram")] = columns.weight_byte * dram
    persistent = gpu.architecture in SHARING_ARCHITECTURES
    even = np.maximum(blocks / gpu.num_sms, 1.0) if persistent else busiest
    output_s = columns.output_byte * dram
    hidden = np.where(on_tensor & (tiles.split == 1), 1.0 - np.maximum(even, 1.0) ** OUTPUT_IN_THE_OPEN, 0.0) if persistent else 0.0
    overlapped[..., OVERLAPPED.index("dram_activations")] = columns.activation_byte * dram + hidden * output_s
    loop = rounds * reduction / REDUCTION_STEP * LOOP_STEP_CLOCKS
    if not on_tensor.all():
        own_share = np.where((tiles.tile_m == TWO_WARP_EDGE) & (tiles.tile_n == TWO_WARP_EDGE), TWO_WARPS / SM_PARTITIONS, 1.0)
        own_rounds = np.ceil(blocks / (gpu.num_sms * BLOCKS_FILLING_AN_SM))
        loop = np.where(on_tensor, loop, own_rounds * np.maximum(block_clocks / own_share, steps * CUDA_STEP_CLOCKS))
    overlapped[..., OVERLAPPED.index("loop")] = loop
    serial = phases.serial
    fill = np.where(on_tensor, PIPELINE_FILL, CUDA_PIPELINE_FILL)
    serial[..., SERIAL.index("prologue")] = waves * fill * 2.0 * area / columns.flop_per_clock
    serial[..., SERIAL.index("epilogue")] = (1.0 - hidden) * output_s
    slots = gpu.num_sms * sharing
    serial[..., SERIAL.index("waves")] = ROUND_CLOCKS * ((rounds - 1.0) / sharing + (rounds > 1.0))
    outputs = columns.batch * columns.m * columns.n
    beside = np.where(on_tensor, sharing, BLOCKS_FILLING_AN_SM)
    is_split = tiles.split > 1
    stored_byte = outputs * np.where(is_split, PARTIAL_BYTES, columns.output_byte / outputs) * tiles.split / blocks
    serial[..., SERIAL.index("store")] = np.maximum(busiest / beside, 1.0) * stored_byte / SM_PORT_BYTES
    if is_split.any():
        serial[..., SERIAL.index("reduce")] = np.where(is_split, SPLIT_TRAFFIC_BYTES * tiles.split * outputs / gpu.l2_bytes_per_clock, 0.0)
        serial[..., SERIAL.index("reduce_launch")] = is_split * 1e-6
        serial[..., SERIAL.index("reduce_start")] = is_split * REDUCE_START_CLOCKS
    if columns.quantised.any():
        converted_s = columns.quantised * QUANTISE_BYTES * columns.batch * columns.m * columns.k * dram
        serial[..., SERIAL.index("quantise")] = np.hypot(converted_s, QUANTISE_LATENCY_S) - QUANTISE_LATENCY_S
    phases.even_math[...] = even * block_clocks
    phases.tile_area[...] = area
    phases.ideal_math[...] = useful_flop / (columns.flop_per_clock * gpu.num_sms)
    phases.ideal_math_s[...] = phases.ideal_math / (gpu.sm_clock_max_mhz * HZ_PER_MHZ)
    phases.occupied[...] = np.where(blocks <= slots, np.minimum(blocks / gpu.num_sms, 1.0), blocks / (slots * np.ceil(blocks / slots)))
    return phases


def count_events(events: Array, columns: MatrixColumns, tiles: Candidates, gpu: GpuSpec) -> None:
    """What costs energy, written into `events` of shape (..., 6).

    Blocks fetch no elements beyond the matrix's edge, but multiply zeros there.  Tensor flop are those of 16-bit operands that
    keep the units busy as long: a unit's power hardly depends on the format that it works on.
    """
    on_tensor = columns.tensor > 0.0
    area = tiles.tile_m * tiles.tile_n
    blocks = matrix_blocks(columns, tiles)
    step = np.where(on_tensor, STEP_BYTES / columns.element_byte, CUDA_REDUCTION_STEP)
    reduction = step * np.ceil(columns.padded_k / (step * tiles.split))
    edge = columns.m / np.ceil(columns.m / tiles.tile_m) + columns.n / np.ceil(columns.n / tiles.tile_n)
    loaded = blocks * edge * np.minimum(reduction, columns.padded_k / tiles.split) * columns.element_byte
    outputs = columns.batch * columns.m * columns.n
    partial = np.where(tiles.split > 1, SPLIT_TRAFFIC_BYTES * tiles.split * outputs, 0.0)
    warp_m = np.where(on_tensor, _warp_edge(tiles.tile_m), np.minimum(tiles.tile_m, CUDA_WARP_TILE[0]))
    warp_n = np.where(on_tensor, _warp_edge(tiles.tile_n), np.minimum(tiles.tile_n, CUDA_WARP_TILE[1]))
    passed = tiles.tile_m + tiles.tile_n + area / warp_m + area / warp_n
    useful_flop = 2.0 * outputs * columns.k
    padded_flop = np.maximum(2.0 * blocks * area * reduction - useful_flop, 0.0)
    flop = (useful_flop + PADDED_FLOP_SHARE * padded_flop) * tensor_rate(gpu) / columns.flop_per_clock
    events[..., EVENTS.index("dram")] = columns.weight_byte + columns.activation_byte + columns.output_byte
    events[..., EVENTS.index("l2")] = loaded + columns.output_byte + partial
    events[..., EVENTS.index("shared")] = blocks * passed * reduction * columns.element_byte
    events[..., EVENTS.index("tensor")] = columns.tensor * flop
    events[..., EVENTS.index("cuda")] = (1.0 - columns.tensor) * useful_flop / 2.0 + OUTPUT_INSTRUCTIONS * outputs * tiles.split


def _warp_edge(tile: Array) -> Array:
    """Edge of a warp's share of a tensor-core tile: blocks have two warps along each edge, or more.

    Source: CUTLASS, generator.py (GenerateSM80_TensorOp_16816); 256 × 64 is the exception, with four warps along one edge.
    """
    edge: Array = np.minimum(np.maximum(tile / 2.0, SMALLEST_WARP_TILE), LARGEST_WARP_TILE)
    return edge
