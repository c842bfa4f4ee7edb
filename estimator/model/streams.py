"""Kernels that stream through memory: element-wise work, copies, softmax, norms, reductions, depthwise convolution.

    dram    bytes / BW                                    traffic that misses L2
    dram_activations  bytes read again / BW               second reads of a row that has left L2
    l2      bytes · passes / (BYTES_PER_CLOCK · S) traffic at the sustained rate of an SM, for any level
    issue   instructions / (lanes · S)                    of elements, and of threads that reduce; lanes of fp32, of depthwise convolutions
            SCHEDULED_LANES
    loop    (rounds of resident blocks · steps − 1) · STEP_CLOCKS   serial memory latencies: transfer to L2 and back,
    wait    the same · MEMORY_LATENCY_S                   and the additional latency of DRAM
    waves   rounds after the first · ROUND_CLOCKS / resident blocks, and once more for the last round and for a second kernel, which no
            work hides
    rows, row_length                                      per-row latencies of normalisations, an SM at a time

The second and third make memory kernels follow the SM clock, as they do on real boards (docs/model.md).
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.model.phases import Phases, make_phases
from estimator.model.power import warm_dram_share
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, Array
from estimator.vocabulary.values import Columns, arrays
from estimator.vocabulary.workload import Operator, conv_output_size, repeats_operand


class Stream:
    """Parameters of kernels that stream through memory.

    Source of named files: PyTorch, aten/src/ATen/native/cuda; NeuSight's tables of A100 and V100 show the launch sizes.
    """

    BYTES_PER_CLOCK = 16.0
    """Memory traffic that one SM sustains [byte/clock]; equal on A100 and A10."""

    INSTRUCTIONS = 8.0
    """Lane instructions of one simple element operation: load, convert, compute, store, addresses."""

    INSTRUCTION_SHARE = 0.45
    """Energy of a lane instruction of a memory kernel, in units of those that the power of whole models shows [1].  On an H200 integer and
    floating-point instructions alone take 4 to 6 pJ at its reference voltage, multiply-adds of products 11 (`bundles/data/h200-sxm`)."""

    THREAD_INSTRUCTIONS, NORM_REDUCTIONS = 100.0, {"layernorm": 2.0}
    """Lane instructions of each thread of a row besides its elements', for the reductions and the row's start and end; a layer norm reduces
    mean and variance.  Chosen on an H200's power: softmax 500, sums 500, RMS norm 430 and layer norm 890 pJ a thread."""

    SECTOR_BYTES = 32.0
    """Least traffic of L2 for one element [byte]: neighbouring elements of a transposed tensor lie in different sectors."""

    BROADCAST_INSTRUCTIONS = 16.0
    """Further instructions of an element where an operand is repeated along a dimension [1]: PyTorch then takes a kernel that computes
    every address and moves single elements (CUDALoops.cuh, gpu_kernel_impl; OffsetCalculator.cuh).  Two dimensions, each with a division
    by multiplication and its remainder (five) and an address in three tensors.  On an H200 PyTorch adds a bias at 0.62 and equal tensors
    at 1.39 TB/s (tile-ai/TileOPs, pull request 537).  Without them halves of the A100's runs err by 4.9 instead of 4.7 %, and the A10's
    runs by the A100's fit by 4.1 instead of 3.4 %."""

    BLOCK_ELEMENTS = 512.0
    """Elements of a block: 128 threads with four each (thread_constants.h: num_threads, thread_work_size); later versions have eight or
    more (CUDALoops.cuh, elems_per_thread)."""

    ROW_CLOCKS, ROW_ELEMENT_CLOCKS = 100.0, 0.1
    """Ideal latency of one row of a normalisation on an SM, and of one element of a row [SM clock]."""

    STEP_CLOCKS = 600.0
    """Ideal latency of one step of a block along its row: a load from L2 and the dependent instructions [SM clock]."""

    MEMORY_LATENCY_S = 3.0e-7
    """Additional latency of a load that misses L2, under load [s]; vendors publish no such figure."""

    ROUND_CLOCKS = 1000.0
    """Ideal latency of a block from its start to its end, when no other block runs [SM clock]."""

    THREADS, REGISTERS, COPY_REGISTERS = 128.0, 32.0, 40.0
    """Threads of a block of element-wise work, and registers of each; copies that compute addresses have more.  Threads: num_threads,
    and for copies CUDALoops.cuh (launch_legacy_kernel).  Registers are assumed; only the 32 of reductions follow from the source:
    Reduce.cuh bounds a launch to 512 threads and four blocks an SM."""

    DEPTHWISE_THREADS, DEPTHWISE_REGISTERS = 256.0, 48.0
    """Threads of a block of a depthwise convolution, and registers of each (assumed).  PyTorch's own kernel has 1,024 threads with one
    output each and thus at most 64 registers (DepthwiseConv2d.cu); half precision and channels-last layouts mostly use cuDNN
    (Convolution.cpp, use_cudnn_depthwise), whose blocks are not published."""

    DEPTHWISE_FIXED, DEPTHWISE_TAP = 4.5, 1.5
    """Element instructions of a depthwise convolution relative to an addition: addresses and result, and each tap; 18 for 3 × 3
    (assumed)."""

    SCHEDULED_LANES = 128.0
    """Lane instructions that an SM starts in a clock: four schedulers, a warp each, from Volta on (NVIDIA V100, A100 and GA102
    whitepapers).  Of a depthwise convolution's instructions less than half are multiply-adds, so the schedulers limit it, not the fp32
    lanes (V100 and A100: 64)."""

    TAP_INSTRUCTIONS = 2.5
    """Lane instructions of one tap of a depthwise filter: load, multiply-add, its share of a bounds check (assumed)."""

    ROW_REFETCH = 0.5
    """Share of a depthwise filter's rows that neighbouring output rows have in common and that their blocks fetch from L2 again: outputs
    of a block span about two rows (assumed)."""

    WARP_LANES = 32.0

    WARP_ROW, VOLTA_WARP_ROW, SHARED_WARP_ROW, WARP_ROWS = 2048.0, 1024.0, 128.0, 4.0
    """Softmax: longest row that stays in the registers of a warp (from PyTorch 2.7 on: pytorch/pytorch, pull request 144679), the same of
    versions before, longest row for which two share a warp (batches_per_warp), and warps of such a block (128 threads) [element].
    Source: PersistentSoftmax.cuh (dispatch_softmax_forward)."""

    SHARED_ROW_BYTES, ROW_PASSES = 48.0 * 1024.0, 3.0
    """Longest row of a softmax that a block keeps in shared memory, CUDA's default of 48 KiB, with one write and two reads [byte]; longer
    ones are read from memory three times: maximum, sum, result (SoftMax.cu: host_softmax, cunn_SoftMaxForwardSmem and
    cunn_SoftMaxForward).  The version in NeuSight's tables has only cunn_SoftMaxForward."""

    ROW_SHARED_BYTES = 256.0
    """Shared-memory traffic of one row's reduction [byte] (assumed)."""

    ROW_THREADS, ROW_VECTOR, ROW_REGISTERS = 1024.0, 8.0, 40.0
    """Softmax of longer rows: threads of a block (SoftMax.cu, SoftMaxForward_getBlockSize), elements that one loads in a step, or had in
    versions before 2.7 (two vectors of 16 bytes, so 8 in fp32), and registers of a thread (assumed)."""

    NORM_THREADS, NORM_VECTOR, UNROLLED, NORM_WALKS = 128.0, 4.0, 4.0, 2.0
    """Layer and RMS norm: threads of a block and elements of each vector load (layer_norm_kernel.cu: num_threads, vec_size), loads of
    an unrolled loop that are issued together (nvcc's usual choice; `norm_loads`), and passes over a row: statistics, result."""

    PLAIN_THREADS = (512.0, 256.0)
    """Threads of a row in the two kernels of a norm whose rows are no multiple of a vector: statistics, result.  The first reduces mean and
    variance of any norm.  A thread loads one element after the other: the first kernel divides at each (Welford), and a store of the second
    might change what its next load brings.  Source: layer_norm_kernel.cu (LayerNormKernelImplInternal, RowwiseMomentsCUDAKernel,
    LayerNormForwardCUDAKernel).  Two such norms of an H200, left out of the fit, err by −9 and 1 %, in place of −80 and −69."""

    ROWS_UNDER_WAY = 16.0
    """Rows of a norm that an SM processes at once, a block of 128 threads each: 2,048 threads, independent of registers (assumed).  Data
    that do not fit into the SM's own cache come from L2 again for the second pass."""

    REDUCTION_THREADS, REDUCTION_LOADS, REDUCTION_LEAST, REDUCTION_MOST = 512.0, 4.0, 16.0, 256.0
    """Reduction: threads of a block, loads of each that are issued together, and elements of one, least and most (Reduce.cuh:
    MAX_NUM_THREADS, vt0, min_values_per_thread, max_values_per_thread)."""

    REDUCTION_VECTOR_ROW, REDUCTION_VECTOR = 128.0, 16.0
    """Reduction: shortest row that is loaded as vectors, and their size [byte] (Reduce.cuh: setReduceConfig, input_vec_size).  Vectors of
    eight 16-bit elements are as new as pull request 165055 of pytorch/pytorch, before there were four."""


ELEMENT_WORK: Final[dict[str, tuple[float, float, float]]] = {
    "scalar_pow": (1.3, 10.0, 0.0), "scalar_div": (1.3, 10.0, 0.0), "div": (1.3, 16.0, 1.0), "pow": (2.5, 24.0, 2.0),
    "batchnorm": (1.5, 12.0, 0.0), "softmax": (2.0, 47.0, 1.0), "layernorm": (2.0, 46.0, 0.0), "rmsnorm": (2.0, 21.0, 0.0),
    "tanh": (2.5, 24.0, 1.0), "silu": (2.5, 24.0, 2.0), "sigmoid": (2.5, 24.0, 2.0), "exp": (1.5, 14.0, 1.0), "gelu": (3.0, 27.0, 1.0),
    "sum": (1.0, 3.0, 0.0), "mean": (1.0, 3.0, 0.0), "max": (1.0, 3.0, 0.0), "moments": (2.0, 21.0, 0.0),
    "contiguous": (1.0, 47.0, 0.0), "transpose": (1.0, 47.0, 0.0),
}  # fmt: skip
"""Work of an element by operator: its issue time relative to an addition, the lane instructions executed, and special functions
(exponential, reciprocal, logarithm); an operator that is not named is an addition.  The issue time also covers latencies: a reduction
stores almost nothing, an RMS norm has no mean to subtract.  Instructions of softmax, norms, sums, gelu and copies follow from an H200's
power at 4.7 pJ an instruction, the others are assumed.  With them the energy of an instruction that whole models show is equal on A100,
A10 and H100 within 10 % (before 50)."""

VOLTA: Final = "volta"


@arrays
class StreamColumns(Columns):
    """Memory kernels as columns of shape (n,): total bytes, elements computed, weights, rows (0: none) and their length.

    `weight` is the issue time of an element relative to an addition, `instructions` are those that all lanes execute, `scattered_byte`
    traffic of L2 for elements that are fetched one by one;
    `lanes` is the number of lane instructions that an SM issues in a clock, `passes` that of reads of the input from L2.  `blocks` have
    one or more rows each; `resident` of them share an SM, and each makes `steps` dependent loads.  `plain`: whether a norm
    loads element by element, in two kernels.
    """

    read_byte: Array
    write_byte: Array
    elements: Array
    weight: Array
    instructions: Array
    scattered_byte: Array
    special: Array
    shared_byte: Array
    rows: Array
    dim: Array
    blocks: Array
    resident: Array
    steps: Array
    plain: Array
    passes: Array
    lanes: Array


def stream_phases(operators: Sequence[Operator], gpu: GpuSpec) -> Phases:
    """Phases of memory kernels, shape (n, ·), for data that come from DRAM."""
    table = np.array([_row(operator, gpu) for operator in operators], dtype=np.float64)
    c = StreamColumns(**dict(zip(StreamColumns.__slots__, table.T, strict=True)))
    total, fetched = c.read_byte + c.write_byte, c.read_byte * c.passes + c.write_byte
    even = c.blocks / gpu.num_sms
    occupied = np.minimum(even, 1.0)
    rounds = np.ceil(even / c.resident)
    further = rounds * c.steps - 1.0  # the first step is part of the kernel's start
    turns = np.ceil(c.rows / gpu.num_sms)
    again = _read_again(c, gpu)
    return make_phases(
        {
            "dram": total / gpu.dram_bytes_per_s,
            "dram_activations": again / gpu.dram_bytes_per_s,
            "l2": fetched / (Stream.BYTES_PER_CLOCK * (gpu.num_sms * occupied)),
            "issue": Stream.INSTRUCTIONS * c.elements * c.weight / (c.lanes * gpu.num_sms),
            "loop": further * Stream.STEP_CLOCKS,
            "wait": further * Stream.MEMORY_LATENCY_S,
            "waves": Stream.ROUND_CLOCKS * ((rounds - 1.0) / c.resident + (rounds > 1.0) + c.plain),
            "rows": turns * Stream.ROW_CLOCKS,
            "row_length": turns * c.dim * Stream.ROW_ELEMENT_CLOCKS,
        },
        {
            "dram": total + again,
            "l2": fetched + c.scattered_byte,
            "shared": c.shared_byte,
            "cuda": Stream.INSTRUCTION_SHARE * c.instructions,
            "sfu": c.special * c.elements,
        },
        total.shape,
        occupied=occupied,
    )


def _read_again(c: StreamColumns, gpu: GpuSpec) -> Array:
    """Bytes that cross DRAM a second time, shape (n,): later passes over rows that meanwhile left L2."""
    under_way = np.where(c.rows > 0, np.minimum(c.blocks, c.resident * gpu.num_sms) * c.read_byte / c.blocks, 0.0)
    return c.read_byte * (c.passes - 1.0) * warm_dram_share(under_way / gpu.l2_bytes)


def _row(operator: Operator, gpu: GpuSpec) -> tuple[float, ...]:
    """One kernel's row of StreamColumns."""
    name, width = operator.operator, BYTES_PER_ELEMENT[operator.precision]
    weight, instructions, special = ELEMENT_WORK.get(name, (1.0, Stream.INSTRUCTIONS, 0.0))
    rows = dim = shared = blocks = threads = 0.0
    steps = passes = 1.0
    lanes, plain = gpu.fp32_lanes, _is_plain(operator)
    resident = block_residency(gpu, Stream.THREADS, Stream.COPY_REGISTERS if operator.family in ("copy", "norm") else Stream.REGISTERS)
    if operator.family == "conv":  # depthwise: one filter a channel, too little reuse for a matrix unit
        b, channels, height, width_px, filters, kernel_h, kernel_w, stride, _, _ = operator.shape
        out_h, out_w = conv_output_size(operator)
        read, written = b * channels * height * width_px, b * filters * out_h * out_w
        weight = Stream.DEPTHWISE_FIXED + Stream.DEPTHWISE_TAP * kernel_h * kernel_w
        instructions += Stream.TAP_INSTRUCTIONS * kernel_h * kernel_w
        passes = 1.0 + Stream.ROW_REFETCH * max(kernel_h - stride, 0.0)
        lanes = Stream.SCHEDULED_LANES
        resident = block_residency(gpu, Stream.DEPTHWISE_THREADS, Stream.DEPTHWISE_REGISTERS)
    elif operator.family in ("elementwise", "copy"):
        written, read = operator.shape
        if repeats_operand(operator):
            weight += Stream.BROADCAST_INSTRUCTIONS / Stream.INSTRUCTIONS
            instructions += Stream.BROADCAST_INSTRUCTIONS
    else:
        read = written = operator.shape[0] * operator.shape[1]
        if name not in ("batchnorm", "quantise_static"):  # inference: a channel-wise scale and shift, no row to reduce
            rows, dim = operator.shape
            blocks, resident, steps, threads = (reduction_blocks if operator.family == "reduction" else row_blocks)(operator, gpu)
            shared = rows * Stream.ROW_SHARED_BYTES
    elements = written
    if plain or operator.family == "reduction":
        weight += Stream.THREAD_INSTRUCTIONS * threads / (Stream.INSTRUCTIONS * dim)  # `rows` has those of norms with vectors
    if operator.family == "reduction":
        written = rows
    elif name == "softmax":
        in_shared = dim * width <= Stream.SHARED_ROW_BYTES
        shared = 0.0 if dim <= _warp_row(gpu) else shared + Stream.ROW_PASSES * read * width * in_shared
        passes = 1.0 if in_shared else Stream.ROW_PASSES
    elif rows:
        passes = 1.0 + min(1.0, Stream.ROWS_UNDER_WAY * dim * width / gpu.shared_bytes_per_sm)
    return (
        read * width, written * BYTES_PER_ELEMENT[operator.out_precision], elements, weight,
        instructions * elements + Stream.THREAD_INSTRUCTIONS * threads * rows,
        elements * (Stream.SECTOR_BYTES - width) * (name == "transpose"), special, shared, rows, dim,
        blocks or max(elements / Stream.BLOCK_ELEMENTS, 1.0), resident, steps, plain, passes, lanes,
    )  # fmt: skip


def block_residency(gpu: GpuSpec, threads: float, registers: float) -> float:
    """Blocks of `threads` threads with `registers` registers each that an SM holds at once, at least one."""
    by_threads = gpu.warps_per_sm * Stream.WARP_LANES / threads
    return max(1.0, math.floor(min(gpu.blocks_per_sm, by_threads, gpu.registers_per_sm / (registers * threads))))


def row_blocks(operator: Operator, gpu: GpuSpec) -> tuple[float, float, float, float]:
    """Blocks of a kernel over rows, the number that an SM processes at once, dependent loads of one, and threads that reduce a row.

    Softmax keeps short rows in the registers of a warp, four warps a block; each longer row has a block of 1,024 threads, which reads it
    once if registers or shared memory hold it (of 16 bits an element), and reduces twice; two such blocks fit an SM (by their registers,
    assumed).  Layer and RMS norm pass over a row with 128 threads, first for its statistics, then for the result, or if the row is no
    multiple of a vector in two kernels.
    Source: PersistentSoftmax.cuh (dispatch_softmax_forward), SoftMax.cu (SoftMaxForward_getBlockSize), layer_norm_kernel.cu
    (launch_vectorized_layer_norm_kernel, compute_stats).  Before PyTorch 2.7 a warp kept 1,024 elements, and blocks for longer rows had a
    thread for 8, and read them three times.  Volta keeps that: PyTorch's builds for CUDA 13 lack it, and NeuSight's rows are older.  With
    the later rule the H200's softmax, held out, errs by 13 in place of 16 %, rows of 2,300 to 3,600 by 3 in place of 32, and halves of the
    H100's runs by 4.5 in place of 4.8 %.
    """
    name, (rows, dim) = operator.operator, operator.shape
    if _is_plain(operator):
        loads = sum(math.ceil(dim / one) for one in Stream.PLAIN_THREADS)
        return rows, block_residency(gpu, Stream.PLAIN_THREADS[0], Stream.REGISTERS), loads, 2.0 * Stream.PLAIN_THREADS[0]
    if name != "softmax":
        resident, threads = block_residency(gpu, Stream.NORM_THREADS, Stream.ROW_REGISTERS), Stream.NORM_THREADS
        return rows, resident, Stream.NORM_WALKS * norm_loads(dim), threads * Stream.NORM_REDUCTIONS.get(name, 1.0)
    if dim <= _warp_row(gpu):
        each = 2.0 if dim <= Stream.SHARED_WARP_ROW else 1.0
        lanes = 2.0 ** math.ceil(math.log2(max(dim, Stream.WARP_LANES))) / Stream.WARP_LANES
        resident = block_residency(gpu, Stream.NORM_THREADS, Stream.ROW_REGISTERS - 8.0 + each * lanes)
        return math.ceil(rows / (Stream.WARP_ROWS * each)), resident, 1.0, Stream.WARP_LANES / each
    if gpu.architecture == VOLTA:
        threads = min(Stream.ROW_THREADS, 2.0 ** math.ceil(math.log2(dim / Stream.ROW_VECTOR)))
        steps = Stream.ROW_PASSES * math.ceil(dim / (threads * Stream.ROW_VECTOR))
        return rows, block_residency(gpu, threads, Stream.ROW_REGISTERS), steps, Stream.ROW_THREADS
    # A row that stays in registers or shared memory is read once; then come two reductions over the block.
    passes = 1.0 if 2.0 * dim <= Stream.SHARED_ROW_BYTES else Stream.ROW_PASSES
    steps = passes * math.ceil(dim / (Stream.ROW_THREADS * Stream.ROW_VECTOR)) + 1.0
    return rows, block_residency(gpu, Stream.ROW_THREADS, Stream.REGISTERS), steps, Stream.ROW_THREADS


def _is_plain(operator: Operator) -> bool:
    """Whether a norm loads its rows element by element."""
    return operator.operator in ("layernorm", "rmsnorm") and operator["dim"] % Stream.NORM_VECTOR > 0.0


def _warp_row(gpu: GpuSpec) -> float:
    return Stream.VOLTA_WARP_ROW if gpu.architecture == VOLTA else Stream.WARP_ROW


def norm_loads(dim: float) -> float:
    """Number of dependent loads of a block in one pass over a row of a norm, for its slowest warp.

    Each thread loads every 128th vector of four elements, and the compiler unrolls that loop by four: four loads are issued together, the
    remaining ones one by one.  If some lanes of a warp have a multiple of four loads and others one less, the warp runs both branches, one
    after the other: on A100 and V100 rows of 1,540 to 2,044 and of 3,588 to 4,092 elements take 10 to 20 % longer than rows of 1,536,
    2,048 and 4,096.  Source: layer_norm_kernel.cu (compute_stats); the unrolling is inferred from these times.
    """
    fewest, rest = divmod(math.ceil(dim / Stream.NORM_VECTOR), Stream.NORM_THREADS)
    most, lanes, unrolled = fewest + (rest > 0.0), Stream.WARP_LANES, Stream.UNROLLED
    if rest % lanes and most % unrolled == 0.0:
        return most / unrolled + unrolled - 1.0
    some_have_fewer, some_have_most = Stream.NORM_THREADS - rest >= lanes, rest > 0.0
    exposed_most, exposed_fewest = (loads // unrolled + loads % unrolled for loads in (most, fewest))
    return max(exposed_most * some_have_most, exposed_fewest * some_have_fewer)


def reduction_blocks(operator: Operator, gpu: GpuSpec) -> tuple[float, float, float, float]:
    """As `row_blocks`, for sums over rows.

    A warp sums a row, 16 rows a block, or as many of its lanes as have something to load; from the length on that gives each thread of a
    whole block 16 elements, a block does.  Where that were 256 elements a thread, as many blocks share a row as an SM each has places for,
    with 16 elements or more a thread.  Mean and variance of a group norm's rows take a block each, loaded as by norms of PLAIN_THREADS.
    Source: Reduce.cuh (setReduceConfig, set_block_dimension), group_norm_kernel.cu (RowwiseMomentsCUDAKernel).
    """
    (rows, dim), threads = operator.shape, Stream.REDUCTION_THREADS
    resident = block_residency(gpu, threads, Stream.REGISTERS)
    if operator.operator == "moments":
        return rows, resident, math.ceil(dim / threads), threads
    vector = Stream.REDUCTION_VECTOR / BYTES_PER_ELEMENT[operator.precision] if dim >= Stream.REDUCTION_VECTOR_ROW else 1.0
    loads = max(vector, Stream.REDUCTION_LOADS)
    if dim < Stream.REDUCTION_LEAST * threads:
        lanes = min(2.0 ** math.floor(math.log2(dim / vector)), Stream.WARP_LANES)
        each = min(2.0 ** math.floor(math.log2(rows)), threads / lanes)
        return math.ceil(rows / each), resident, math.ceil(dim * each / (threads * loads)), lanes
    shares = 1
    if dim >= Stream.REDUCTION_MOST * threads:
        fill, own = resident * gpu.num_sms / rows, dim / threads
        shares = math.ceil(max(min(fill, own / Stream.REDUCTION_LEAST), own / Stream.REDUCTION_MOST))
    return rows * shares, resident, math.ceil(dim / (shares * threads * loads)), threads
