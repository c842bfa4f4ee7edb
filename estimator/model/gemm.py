"""Matrix products: GEMM, batched GEMM and, with its own footprint, convolution.

Phases of one candidate tile (units as in `estimator.model.phases`):

    math      waves · (2·tile_m·tile_n·kk / R + narrow)        blocks in whole waves of filled SMs; narrow loads (below)
    l2        blocks · (tile_m + tile_n)·kk·bytes / B_L2       loads of blocks from L2 without rows beyond the matrix; limited to
              PORT_BYTES for each SM if few SMs work
    dram      weights / BW,  dram_activations  activations / BW
    loop      rounds of resident blocks · kk · STEP_CLOCKS   the serial reduction loop; without tensor cores a
              block's math or the latency of its loads
    prologue  waves · PIPELINE_FILL · 2·tile_m·tile_n / R      filling and draining the pipeline, waves counted as for math
    quantise  √(bytes² / BW² + l²) − l                         8-bit activations, l = QUANTISE_LATENCY_S
    epilogue  output / BW, of persistent blocks in part among dram_activations,
              reduce, reduce_launch, reduce_start   output and split-K reduction
    store     output transfer from an SM that no other block on it hides
    waves     rounds · ROUND_CLOCKS / resident blocks, and once more for the last round

Without tensor cores the count of waves assumes one block an SM, and K is padded to 8.  `padded_k` of a convolution includes the
channels that a library adds.

Narrow loads: a lane loads 16 bytes at once only where every row starts at a multiple of 16 bytes.  Else libraries run kernels whose lanes
load less, down to one element (`cutlass_75_…_align1`); the warps that multiply also load:

    narrow    (tile_m + tile_n)·kk·bytes / access / 32 · NARROW_CLOCKS     without rows beyond the matrix

Sources: EnergAIzer (arXiv 2604.20105) for the three parts of a block's life; wave counting in filled SMs, the
geometric mixture of waves and the split-K terms were found on published A100, H100 and H200 measurements
(docs/model.md).
"""

from typing import Final

import numpy as np

from estimator.model.phases import OVERLAPPED, Phases, make_phases
from estimator.model.power import tensor_rate
from estimator.model.tiling import Candidates
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array
from estimator.vocabulary.values import Columns, arrays


class Gemm:
    """Parameters of a matrix product's blocks.

    Sources of named items: CUTLASS, generator.py (GenerateSM80_TensorOp_16816) and default_gemm_configuration.h; cuBLAS assumed equal.
    """

    FILL_AREA = 256.0 * 128.0
    """Output elements whose accumulators fill an SM's registers; smaller tiles share an SM [element] (assumed).  It is CUTLASS' largest
    tile on Ampere: 256 threads with 128 accumulators each and at most 128 other registers."""

    MOST_SHARING = 4.0
    """Most blocks of a matrix product that share an SM (assumed)."""

    STEP_CLOCKS = 160.0 / 64.0
    """Ideal latency of one reduction step of one block [SM clock]; CUTLASS takes 64 at a time (ThreadblockShape)."""

    CUDA_STEP_CLOCKS = 300.0
    """Without tensor cores: ideal latency of one step of a block's reduction, which loads one step from L2 while it computes the previous
    one [SM clock] (assumed: about 200 clocks of an L2 hit, the transfer into shared memory and a barrier)."""

    REDUCE_START_CLOCKS = 1000.0
    """Ideal cost of the pass that adds the shares of a split reduction: the part that follows the SM clock [SM clock] (assumed)."""

    PIPELINE_FILL, CUDA_PIPELINE_FILL = 80.0, 8.0
    """Filling and draining a block's pipeline, in reduction steps of its tile, with and without tensor cores."""

    ROUND_CLOCKS = 1000.0
    """Ideal latency of a block without its reduction: from its start to the first operands, and from the last product to its end
    [SM clock]."""

    PARTIAL_BYTES = 4.0
    """Partial results are fp32, written and read back [byte/element]."""

    WARP_TILE = (16.0, 64.0)
    """Smallest and largest edge of a warp's share of the tile, which is the number of products for each element from shared memory: the
    longest edge of one matrix instruction (InstructionShape, 16 × 8 × 16 on Ampere), and WarpShape."""

    CUDA_WARP_TILE = (64.0, 32.0)
    """A warp's share without tensor cores: 8 × 4 threads with 8 × 8 products each (OpClassSimt, there 32 × 64; simt_get_warp_threads_m)."""

    STEP_BYTES, CUDA_STEP = 64.0, 8.0
    """Smallest reduction step of a block: with tensor cores 32 or 64 elements of 16 bit [byte], without them the length to which its
    share of K is padded [element] (OpClassSimt, ThreadblockShape)."""

    PADDED_SHARE, CUDA_PADDED_SHARE = 0.2, 0.5
    """Energy of a product with a padded zero relative to a useful one, with and without tensor cores: the unit is clocked, but few bits
    toggle; of an instruction at least its issue remains (assumed)."""

    MULTIPLY_ADD = 0.6
    """Energy of a multiply-add without tensor cores, in units of the lane instructions that the power of whole models shows.  Chosen on
    V100s under power limits (Zeus) and on published fp32 rates of A40, L4, T4 at their limits, which say 0.5 to 0.75; an H200's own
    power says 1 (`bundles/data/h200-sxm`)."""

    WIDEN = 1.0
    """Energy of widening a weight in registers, in units of the lane instructions that the power of whole models shows: four instructions
    for four weights and two for their scales (IST-DASLab/marlin, marlin_cuda_kernel.cu: dequant, scale), each a MULTIPLY_ADD; rounded."""

    OUTPUT_INSTRUCTIONS = 4.0
    """Lane instructions of one output element: scale, add, convert, store (assumed)."""

    QUANTISE_LATENCY_S = 2.0e-6
    """Latency of the kernels that convert activations; it hides part of their transfer and is part of epsilon [s]."""

    PORT_BYTES = 64.0
    """Largest rate of an SM's loads from L2 [byte/clock].  Assumed equal for all boards; vendors publish no such figure."""

    ACCESS_BYTES, WARP_LANES, NARROW_CLOCKS = 16.0, 32.0, 6.0
    """Widest load of a lane [byte], lanes of a warp, and time in which an SM serves a warp's load of less by each lane [SM clock].  A lane
    of CUTLASS brings 16 neighbouring bytes, if necessary element by element; four lanes share a row of 32 elements along k, eight one of 64
    elements along n (default_mma_core_sm75.h: PitchLinearWarpRakedThreadMap).  So a load touches eight or four lines of 128 bytes; one line
    a clock, and the mean of both, are assumed.  Published times of such products check it (docs/model.md)."""

    OUTPUT_IN_THE_OPEN = -0.5
    """Exponent of the blocks of an SM in the share of output that no other block hides: a persistent block stores its output while it
    multiplies the next tile.  With −1 only the last block's output is exposed, with 0 all.  Chosen on published products of H100 and
    H200."""

    SHORTEST_SPLIT = 128
    """Shortest share of a split K in libraries [element] (assumed)."""

    IMPOSSIBLE_CLOCKS = 1e60
    """Time of a candidate that a library would not offer [SM clock]."""


LANE_RATE: Final[dict[str, float]] = dict.fromkeys(("8.6", "8.9", "12.0"), 0.75)
"""Share of the fp32 rate that products without tensor cores can reach, by compute capability: one of the two fp32 datapaths of an SM is
also its integer datapath (NVIDIA Ampere GA102 architecture whitepaper; Ada, RTX Blackwell).  Chosen on published fp32 products of six
such boards, which reach 0.53 to 0.65 of the rate at the clocks that they run at (`benchmarks/published.py`)."""

SHARING_ARCHITECTURES: Final = frozenset({"hopper", "blackwell"})
"""Architectures whose persistent blocks share the last wave; elsewhere a block stays on its SM.  Source for attention: FlashAttention-3,
flash_fwd_launch_template.h (UsePersistentScheduler); for matrix products `wave_exponent` on H100 and H200 (docs/model.md)."""

WARP_RATE: Final[dict[str, float]] = {"hopper": 0.63}
"""Share of the tensor cores' rate that instructions of a warp (mma.sync) can reach, by architecture [1]: 62.9 % of the rate of warp groups
(wgmma) on Hopper.  Source: Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture (arXiv 2402.13499).
FlashAttention-2 has no others: on an H20 it reaches 0.65 times the rate of -3 (Dao-AILab/flash-attention, issue 1310).  Half of cuDNN's
convolutions on an H200 have warp groups, yet with their rate Stable Diffusion on a busy H100 errs by 16 instead of 10 %."""


@arrays
class MatrixColumns(Columns):
    """Matrix products as columns of shape (n,).

    `batch` products C[m, n] = A[m, k]·B[k, n], their reduction padded to `padded_k`; bytes are totals over the batch;
    `flop_per_clock` is the peak rate per SM; `element_byte` and `weight_element_byte` are the widths of an activation and of a weight;
    `tensor` is 1 if tensor cores do the work; `converted_byte` is the traffic that converts the activations first; `access_byte` is what
    one lane loads at once.
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
    weight_element_byte: Array
    flop_per_clock: Array
    tensor: Array
    converted_byte: Array
    access_byte: Array


def candidate_phases(columns: MatrixColumns, tiles: Candidates, gpu: GpuSpec) -> Phases:
    """Phases of every candidate tile of every product, shape (n, c, ·).

    Candidates that a library would not offer (a split that leaves too short a reduction or too many blocks) get IMPOSSIBLE_CLOCKS.
    """
    lifted = columns.select((slice(None), None))
    phases = matrix_phases(lifted, tiles, gpu)
    too_many = matrix_blocks(lifted, tiles) > tiles.split_waves * gpu.num_sms
    impossible = (tiles.split > 1) & ((lifted.k / tiles.split < Gemm.SHORTEST_SPLIT) | too_many)
    phases.overlapped[..., OVERLAPPED.index("math")][impossible] = Gemm.IMPOSSIBLE_CLOCKS
    phases.even_math[impossible] = Gemm.IMPOSSIBLE_CLOCKS
    return phases


def matrix_blocks(columns: MatrixColumns, tiles: Candidates) -> Array:
    """Thread blocks of products with given tiles; all columns broadcast against each other."""
    return columns.batch * np.ceil(columns.m / tiles.tile_m) * np.ceil(columns.n / tiles.tile_n) * tiles.split


def matrix_phases(columns: MatrixColumns, tiles: Candidates, gpu: GpuSpec) -> Phases:
    """Phases of products with given tiles; all columns broadcast against each other."""
    c, sms, dram = columns, gpu.num_sms, 1.0 / gpu.dram_bytes_per_s
    blocks, area = matrix_blocks(c, tiles), tiles.tile_m * tiles.tile_n
    on_tensor, is_split = c.tensor > 0.0, tiles.split > 1
    step = np.where(on_tensor, 2.0 ** np.round(np.log2(Gemm.STEP_BYTES / c.element_byte)), Gemm.CUDA_STEP)
    steps = np.ceil(c.padded_k / (step * tiles.split))
    reduction = step * steps
    sharing = np.where(on_tensor, np.minimum(np.maximum(np.floor(Gemm.FILL_AREA / area), 1.0), Gemm.MOST_SHARING), 1.0)
    rounds = np.ceil(blocks / (sms * sharing))
    waves = sharing * rounds
    busiest = np.ceil(blocks / sms)
    block_clocks = 2.0 * area * reduction / c.flop_per_clock + _narrow_clocks(c, tiles, reduction)
    loaded_byte = reduction * (np.minimum(tiles.tile_m, c.m) * c.element_byte + np.minimum(tiles.tile_n, c.n) * c.weight_element_byte)
    outputs, output_s = c.batch * c.m * c.n, c.output_byte * dram
    even, hidden = busiest, np.zeros(1)
    if gpu.architecture in SHARING_ARCHITECTURES:
        even = np.maximum(blocks / sms, 1.0)
        hidden = np.where(on_tensor & ~is_split, 1.0 - even**Gemm.OUTPUT_IN_THE_OPEN, 0.0)
    cuda_loop = np.ceil(blocks / (sms * Gemm.MOST_SHARING)) * np.maximum(block_clocks, steps * Gemm.CUDA_STEP_CLOCKS)
    beside = np.where(on_tensor, sharing, Gemm.MOST_SHARING)
    stored_byte = outputs * np.where(is_split, Gemm.PARTIAL_BYTES, c.output_byte / outputs) * tiles.split / blocks
    partial_byte = np.where(is_split, 2.0 * Gemm.PARTIAL_BYTES * tiles.split * outputs, 0.0)
    ideal_math = 2.0 * outputs * c.k / (c.flop_per_clock * sms)
    slots = sms * sharing
    return make_phases(
        {
            "math": waves * block_clocks,
            "l2": np.maximum(blocks / gpu.l2_bytes_per_clock, busiest / Gemm.PORT_BYTES) * loaded_byte,
            "dram": c.weight_byte * dram,
            "dram_activations": c.activation_byte * dram + hidden * output_s,
            "loop": np.where(on_tensor, rounds * reduction * Gemm.STEP_CLOCKS, cuda_loop),
            "prologue": waves * np.where(on_tensor, Gemm.PIPELINE_FILL, Gemm.CUDA_PIPELINE_FILL) * 2.0 * area / c.flop_per_clock,
            "epilogue": (1.0 - hidden) * output_s,
            "waves": Gemm.ROUND_CLOCKS * ((rounds - 1.0) / sharing + (rounds > 1.0)),
            "store": np.maximum(busiest / beside, 1.0) * stored_byte / Gemm.PORT_BYTES,
            "reduce": partial_byte / gpu.l2_bytes_per_clock,
            "reduce_launch": np.where(is_split, 1e-6, 0.0),
            "reduce_start": np.where(is_split, Gemm.REDUCE_START_CLOCKS, 0.0),
            "quantise": np.hypot(c.converted_byte * dram, Gemm.QUANTISE_LATENCY_S) - Gemm.QUANTISE_LATENCY_S,
        },
        _events(c, tiles, gpu, blocks, reduction, partial_byte),
        np.broadcast_shapes(blocks.shape, area.shape),
        even_math=even * block_clocks,
        tile_area=area,
        ideal_math=ideal_math,
        ceiling=np.where(on_tensor, ideal_math / (gpu.sm_clock_limit_mhz * HZ_PER_MHZ), 0.0),
        occupied=np.where(blocks <= slots, np.minimum(blocks / sms, 1.0), blocks / (slots * np.ceil(blocks / slots))),
    )


def _narrow_clocks(c: MatrixColumns, tiles: Candidates, reduction: Array) -> Array:
    """Time of a block's loads where lanes load less than 16 bytes at once, else 0 [SM clock]."""
    edges = c.m / np.ceil(c.m / tiles.tile_m) + c.n / np.ceil(c.n / tiles.tile_n)
    loads = reduction * edges * c.element_byte / c.access_byte / Gemm.WARP_LANES
    return np.where(c.access_byte < Gemm.ACCESS_BYTES, loads * Gemm.NARROW_CLOCKS, 0.0)


def _events(c: MatrixColumns, tiles: Candidates, gpu: GpuSpec, blocks: Array, reduction: Array, partial_byte: Array) -> dict[str, Array]:
    """Counts of the events that cost energy.

    Blocks fetch no elements beyond the matrix's edge, but multiply zeros there.  Tensor flop are flop of 16-bit operands that
    take the same time: a unit's power hardly depends on its number format.
    """
    on_tensor, area, outputs = c.tensor > 0.0, tiles.tile_m * tiles.tile_n, c.batch * c.m * c.n
    edge_m, edge_n = c.m / np.ceil(c.m / tiles.tile_m), c.n / np.ceil(c.n / tiles.tile_n)
    walked = blocks * np.minimum(reduction, c.padded_k / tiles.split)
    loaded = walked * (edge_m * c.element_byte + edge_n * c.weight_element_byte)
    warp_m, warp_n = (
        # Two warps along each edge, or more; 256 × 64 is the exception, with four along one.
        np.where(on_tensor, np.clip(tile / 2.0, *Gemm.WARP_TILE), np.minimum(tile, cuda))
        for tile, cuda in zip((tiles.tile_m, tiles.tile_n), Gemm.CUDA_WARP_TILE, strict=True)
    )
    passed = (tiles.tile_m + area / warp_n) * c.element_byte + (tiles.tile_n + area / warp_m) * c.weight_element_byte
    useful_flop = 2.0 * outputs * c.k
    padded_flop = np.maximum(2.0 * blocks * area * reduction - useful_flop, 0.0)
    return {
        "dram": c.weight_byte + c.activation_byte + c.output_byte,
        "l2": loaded + c.output_byte + partial_byte,
        "shared": blocks * passed * reduction,
        "tensor": c.tensor * ((useful_flop + Gemm.PADDED_SHARE * padded_flop) * tensor_rate(gpu) / c.flop_per_clock),
        "cuda": Gemm.MULTIPLY_ADD * (1.0 - c.tensor) * (useful_flop + Gemm.CUDA_PADDED_SHARE * padded_flop) / 2.0
        + Gemm.OUTPUT_INSTRUCTIONS * outputs * tiles.split
        + np.where(c.weight_element_byte < c.element_byte / 1.5, Gemm.WIDEN * walked * edge_n, 0.0),
    }
