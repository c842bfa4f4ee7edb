"""Kernels that stream through memory: element-wise work, copies, softmax, norms, reductions, depthwise convolution.

    dram    bytes / BW                                    what misses L2
    dram_activations  bytes read again / BW               what a second look at a row no longer finds in L2
    l2      bytes · passes / (STREAM_BYTES_PER_CLOCK · S) what an SM sustains, whatever the level
    issue   instructions / (lanes · S)                    element instructions
    loop    (rounds of resident blocks · steps − 1) · STEP_CLOCKS   one memory latency after the other: its way to L2 and back,
    wait    the same · MEMORY_LATENCY_S                   and what DRAM adds
    waves   rounds after the first · ROUND_CLOCKS / resident blocks, and once more for the last round, which nothing hides
    rows, row_length                                      per-row latencies of normalisations, an SM at a time

The second and third make memory kernels follow the SM clock, as they do on real boards (docs/model.md).
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.model.phases import EVENTS, OVERLAPPED, SERIAL, Phases, empty_phases
from estimator.model.power import warm_dram_share
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array

STREAM_BYTES_PER_CLOCK: Final = 16.0
"""Memory traffic that one SM sustains [byte/clock]; found alike on A100 and A10."""

INSTRUCTIONS_PER_ELEMENT: Final = 8.0
"""Lane instructions of one simple element operation: load, convert, compute, store, addresses."""

ELEMENTS_PER_BLOCK: Final = 512.0
"""Elements of a block: 128 threads with four each.  Source: PyTorch, aten/src/ATen/native/cuda/thread_constants.h (num_threads,
thread_work_size), and the grids in NeuSight's tables of A100 and V100; later versions have eight or more (CUDALoops.cuh,
elems_per_thread)."""

ROW_CLOCKS: Final = 100.0
"""Ideal latency of one row of a normalisation on an SM [SM clock]."""

ROW_ELEMENT_CLOCKS: Final = 0.1
"""Ideal latency of one element of a row [SM clock]."""

STEP_CLOCKS: Final = 600.0
"""Ideal latency of one step of a block, along its row: a load from L2 and what depends on it [SM clock]."""

MEMORY_LATENCY_S: Final = 3.0e-7
"""What a load that goes on to DRAM takes longer, under load [s]; no figure of a vendor."""

BLOCK_THREADS: Final = 128.0
BLOCK_REGISTERS: Final = 32.0
COPY_REGISTERS: Final = 40.0
"""Threads of a block of element-wise work, and registers of each; copies that work out addresses have more.
Source of the threads: PyTorch, thread_constants.h (num_threads), and for copies CUDALoops.cuh (launch_legacy_kernel, 128 threads
with four elements each, two if they have 4 bytes or more).  Registers are assumed; only for reductions 32 follow from the source:
Reduce.cuh bounds a launch to 512 threads and four blocks an SM."""

ROUND_CLOCKS: Final = 1000.0
"""Ideal latency of a block from its start to its end, when nothing runs beside it [SM clock]."""

ELEMENT_WEIGHT: Final[dict[str, float]] = {
    "scalar_pow": 1.3,
    "scalar_div": 1.3,
    "div": 1.3,
    "pow": 2.5,
    "batchnorm": 1.5,
    "softmax": 2.0,
    "layernorm": 2.0,
    "rmsnorm": 2.0,
    "tanh": 2.5,
    "silu": 2.5,
    "sigmoid": 2.5,
    "exp": 1.5,
    "gelu": 3.0,
    "depthwise": 18.0,
}
"""Element instructions relative to an addition; operators that are not named have 1."""

EVENT_WEIGHT: Final[dict[str, float]] = {"silu": 2.0, "rmsnorm": 1.5, "sum": 0.625, "mean": 0.625, "max": 0.625}
"""Lane instructions that are executed, relative to an addition, where they differ from ELEMENT_WEIGHT, which also covers
latencies: a reduction stores next to nothing, an RMS norm has no mean to subtract."""

TAP_INSTRUCTIONS: Final = 2.5
"""Lane instructions of one tap of a depthwise filter: load, multiply-add, its share of a bounds check (assumed)."""

ROW_REFETCH: Final = 0.5
"""Share of the rows of a depthwise filter that neighbouring rows of outputs have in common, which their blocks fetch from L2 again:
outputs of a block span about two rows (assumed)."""

SPECIAL_PER_ELEMENT: Final[dict[str, float]] = {
    "softmax": 1.0, "gelu": 1.0, "tanh": 1.0, "silu": 2.0, "sigmoid": 2.0, "exp": 1.0, "pow": 2.0, "scalar_pow": 0.0, "div": 1.0,
}  # fmt: skip
"""Special functions (exponential, reciprocal, logarithm) per element."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamColumns:
    """Memory kernels as columns of shape (n,): bytes in all, elements computed, weights, rows (0: none) and their length.

    `weight` is the issue time of an element and `event_weight` the instructions executed for it, both relative to an addition;
    `passes` how often the input comes from L2.  `blocks` have a row each, or several; `resident` of them share an SM, and each
    makes `steps` dependent loads.
    """

    read_byte: Array
    write_byte: Array
    elements: Array
    weight: Array
    special: Array
    shared_byte: Array
    rows: Array
    dim: Array
    blocks: Array
    resident: Array
    steps: Array
    event_weight: Array
    passes: Array


def stream_phases(columns: StreamColumns, gpu: GpuSpec) -> Phases:
    """Phases of memory kernels, shape (n, ·), for data that come from DRAM."""
    total = columns.read_byte + columns.write_byte
    instructions = INSTRUCTIONS_PER_ELEMENT * columns.elements * columns.weight
    phases = empty_phases(total.shape)
    phases.overlapped[..., OVERLAPPED.index("dram")] = total / gpu.dram_bytes_per_s
    fetched = columns.read_byte * columns.passes + columns.write_byte
    even = columns.blocks / gpu.num_sms
    working = gpu.num_sms * np.minimum(even, 1.0)
    phases.overlapped[..., OVERLAPPED.index("l2")] = fetched / (STREAM_BYTES_PER_CLOCK * working)
    phases.overlapped[..., OVERLAPPED.index("issue")] = instructions / (gpu.fp32_lanes * gpu.num_sms)
    rounds = np.ceil(even / columns.resident)
    further = rounds * columns.steps - 1.0  # the first is part of the kernel's start
    phases.overlapped[..., OVERLAPPED.index("loop")] = further * STEP_CLOCKS
    phases.overlapped[..., OVERLAPPED.index("wait")] = further * MEMORY_LATENCY_S
    phases.serial[..., SERIAL.index("waves")] = ROUND_CLOCKS * ((rounds - 1.0) / columns.resident + (rounds > 1.0))
    turns = np.ceil(columns.rows / gpu.num_sms)
    phases.serial[..., SERIAL.index("rows")] = turns * ROW_CLOCKS
    phases.serial[..., SERIAL.index("row_length")] = turns * columns.dim * ROW_ELEMENT_CLOCKS
    phases.occupied[...] = np.minimum(even, 1.0)
    again = _read_again(columns, gpu)
    phases.overlapped[..., OVERLAPPED.index("dram_activations")] = again / gpu.dram_bytes_per_s
    phases.events[..., EVENTS.index("dram")] = total + again
    phases.events[..., EVENTS.index("l2")] = fetched
    phases.events[..., EVENTS.index("shared")] = columns.shared_byte
    phases.events[..., EVENTS.index("cuda")] = INSTRUCTIONS_PER_ELEMENT * columns.elements * columns.event_weight
    phases.events[..., EVENTS.index("sfu")] = columns.special * columns.elements
    return phases


def _read_again(columns: StreamColumns, gpu: GpuSpec) -> Array | float:
    """Bytes that cross DRAM a second time, shape (n,): later passes over rows that meanwhile left L2."""
    if (columns.passes == 1.0).all():
        return 0.0
    under_way = np.minimum(columns.blocks, columns.resident * gpu.num_sms) * columns.read_byte / columns.blocks
    under_way = np.where(columns.rows > 0, under_way, 0.0)
    held = under_way * L2_COPIES.get(gpu.compute_capability, 1.0)
    again: Array = columns.read_byte * (columns.passes - 1.0) * warm_dram_share(held / gpu.l2_bytes)
    return again


def block_residency(gpu: GpuSpec, threads: float, registers: float) -> float:
    """Blocks of `threads` threads with `registers` registers each that an SM holds at once, at least one."""
    by_threads = gpu.warps_per_sm * WARP_LANES / threads
    return max(1.0, float(math.floor(min(gpu.blocks_per_sm, by_threads, gpu.registers_per_sm / (registers * threads)))))


def row_blocks(operator: str, rows: float, dim: float, gpu: GpuSpec) -> tuple[float, float, float]:
    """Blocks of a kernel over rows, how many an SM works on at once, and dependent loads of one.

    Softmax keeps short rows in the registers of a warp, four warps a block; longer ones have a block each, its threads a power of two.
    Layer and RMS norm walk along a row with 128 threads, first for its statistics, then for the result.
    Source: PyTorch, aten/src/ATen/native/cuda: PersistentSoftmax.cuh (dispatch_softmax_forward), SoftMax.cu (SoftMax_getBlockSize,
    cunn_SoftMaxForward), layer_norm_kernel.cu (launch_vectorized_layer_norm_kernel, compute_stats), and the launch sizes in
    NeuSight's tables.  Later versions give long rows of a softmax 1,024 threads always (SoftMaxForward_getBlockSize), and have
    an RMS norm of one kernel, that of the layer norm; in others its operators are launched one by one.
    """
    if operator == "softmax" and dim <= WARP_ROW:
        each = 2.0 if dim <= SHARED_WARP_ROW else 1.0
        registers = ROW_REGISTERS - 8.0 + each * 2.0 ** np.ceil(np.log2(max(dim, WARP_LANES))) / WARP_LANES
        return float(np.ceil(rows / (WARP_ROWS * each))), block_residency(gpu, NORM_THREADS, registers), 1.0
    if operator == "softmax":
        threads = min(LARGEST_BLOCK, 2.0 ** np.ceil(np.log2(dim / ROW_VECTOR)))
        return rows, block_residency(gpu, threads, ROW_REGISTERS), ROW_WALKS * float(np.ceil(dim / (threads * ROW_VECTOR)))
    return rows, block_residency(gpu, NORM_THREADS, ROW_REGISTERS), NORM_WALKS * norm_loads(dim)


def norm_loads(dim: float) -> float:
    """Loads of a block that wait for one another in one walk along a row of a norm: those of its slowest warp.

    Each thread takes every 128th vector of four elements, and the compiler unrolls that loop by four: four loads go out together, those
    of what is left one by one.  Where some lanes of a warp have a multiple of four to take and others one less, the warp walks both
    ways, one after the other: on A100 and V100 rows of 1,540 to 2,044 and of 3,588 to 4,092 elements take 10 to 20 % longer than those
    of 1,536, 2,048 and 4,096.  Source: PyTorch, layer_norm_kernel.cu (compute_stats); the unrolling is inferred from these times.
    """
    fewest, rest = divmod(float(np.ceil(dim / NORM_VECTOR)), NORM_THREADS)
    most = fewest + (rest > 0.0)
    if rest % WARP_LANES and most % UNROLLED == 0.0:
        return most / UNROLLED + UNROLLED - 1.0
    some_have_fewer = NORM_THREADS - rest >= WARP_LANES
    some_have_most = rest % WARP_LANES > 0.0 or rest >= WARP_LANES
    return max(_exposed(most) * some_have_most, _exposed(fewest) * some_have_fewer)


def _exposed(loads: float) -> float:
    """Loads of a loop that wait for those before: it is unrolled."""
    return loads // UNROLLED + loads % UNROLLED


def reduction_blocks(rows: float, dim: float, gpu: GpuSpec) -> tuple[float, float, float]:
    """Blocks of a sum over rows, how many an SM works on at once, and dependent loads of one.

    A block has 512 threads with 16 elements each, in four vectors of four; long rows have at least two blocks for each SM, if there
    are as many rows.  Source: PyTorch, aten/src/ATen/native/cuda/Reduce.cuh (MAX_NUM_THREADS, min_values_per_thread,
    input_vec_size).  There threads of shorter rows, 16 rows a block, have more elements each, and rows are split for four blocks
    for each SM at most: the even share and the two blocks are assumed.
    """
    blocks = float(np.ceil(rows * dim / (REDUCTION_THREADS * REDUCTION_ELEMENTS)))
    if dim >= REDUCTION_THREADS:
        blocks = max(blocks, min(rows, 2.0 * gpu.num_sms))
    return blocks, block_residency(gpu, REDUCTION_THREADS, BLOCK_REGISTERS), REDUCTION_STEPS


REDUCTION_THREADS: Final = 512.0
REDUCTION_ELEMENTS: Final = 16.0
REDUCTION_STEPS: Final = 4.0

WARP_ROW: Final = 1024.0
SHARED_WARP_ROW: Final = 128.0
WARP_ROWS: Final = 4.0
WARP_LANES: Final = 32.0
LARGEST_BLOCK: Final = 1024.0
ROW_VECTOR: Final = 8.0
UNROLLED: Final = 4.0
NORM_THREADS: Final = 128.0
NORM_VECTOR: Final = 4.0
ROW_REGISTERS: Final = 40.0
ROW_WALKS: Final = 3.0
NORM_WALKS: Final = 2.0
"""Longest row of a warp (PersistentSoftmax.cuh, dispatch_softmax_forward), longest of two rows that share one (batches_per_warp),
warps of such a block (128 threads), lanes of a warp; threads of the largest block (SoftMax.cu, max_threads; versions before
SoftMaxForward_getBlockSize took half of them) and elements of a thread for which it is sized (SoftMax_getBlockSize: two vectors of
16 bytes, so 8 in fp32, which is what NeuSight's tables show); loads of an unrolled loop that go out together (nvcc's usual choice;
`norm_loads`); threads of a norm and elements that each takes at once (layer_norm_kernel.cu, num_threads
and vec_size); registers of a thread (assumed); walks of a softmax along its row: maximum, sum, result (cunn_SoftMaxForward), and of a
norm along its own (compute_stats, layer_norm_kernel)."""

L2_COPIES: Final[dict[str, float]] = {"8.0": 1.5}
"""Copies of a line that a row's second look competes with in L2, by compute capability; elsewhere one.  A100's L2 has two partitions, and
each also caches what its own SMs read from the other's memory: of lines spread evenly over both, every second one is held twice.
Source: NVIDIA A100 Tensor Core GPU Architecture (whitepaper), L2 cache; the mean is ours."""
