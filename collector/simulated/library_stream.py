"""The simulated library's memory kernels: element-wise work, copies, row reductions, depthwise convolution."""

import math
from dataclasses import dataclass, replace
from typing import Final

from collector.errors import RunnerError
from collector.simulated.cache import resident_share, streamed_traffic
from collector.simulated.plan import BlockDemand, KernelPlan, LaunchEvents, library, resident_blocks
from collector.simulated.profile import BoardProfile
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.workload import Operator

MOVE_OPS: Final = 6.0
"""Lane instructions for loading and storing one element: addresses, loads, conversion, store."""

VECTOR_THREADS, VECTOR_ELEMENTS = 128, 4
WARP, UNROLLED = 32, 4
"""Lanes of a warp, and turns of a loop that the compiler joins into one; NeuSight's tables show this in layer norms of A100 and V100."""

REDUCE_THREADS: Final = 512

BLOCK_REDUCTION_CLOCKS, LOOP_CLOCKS = 420.0, 90.0
"""Clocks of a reduction over a block (two rounds of shuffles, shared memory and barriers), and least clocks of one pass of a row loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A memory kernel of equal blocks: its total traffic and arithmetic.

    `fetched` bytes come from the L2 for each useful byte, at most `dram_fetched` of them from DRAM; `path_factor`
    is relative to the share of the SM's port that plain element-wise kernels reach.
    """

    name: str
    precision: str
    blocks: int
    threads: int
    registers: int
    read_bytes: float
    write_bytes: float
    ops: float
    special: float = 0.0
    fetched: float = 1.0
    dram_fetched: float = 1.0
    path_factor: float = 1.0
    shared_bytes_per_block: int = 0
    shared_bytes: float = 0.0
    steps: float = 1.0
    step_clocks: float = 0.0
    row_pitch_bytes: float = 0.0
    library: str = "pytorch"


def _element_width(operator: Operator) -> tuple[float, float]:
    """Bytes of an input and of an output element.  Raises RunnerError if no kernel handles the type."""
    if operator.precision not in library().pytorch_types:
        raise RunnerError(f"{operator.family} in {operator.precision}: no such kernel; precisions: {', '.join(library().pytorch_types)}")
    width = BYTES_PER_ELEMENT[operator.precision]
    return width, BYTES_PER_ELEMENT[operator.precision_out] if operator.precision_out else width


def elementwise_plan(operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The kernel for an element-wise operator or a copy."""
    width, out_width = _element_width(operator)
    elements, reads = operator["elements"], operator["reads"]
    if operator.family == "copy":
        share, ops, fetched = library().copy[operator.operator]
        special, kernel = 0.0, "elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    else:
        more, special = library().elementwise[operator.operator]
        share, ops, fetched = 1.0, MOVE_OPS + more, 1.0
        functor = f"at::native::{operator.operator}_functor<{library().pytorch_types[operator.precision]}>"
        kernel = f"vectorized_elementwise_kernel<{VECTOR_ELEMENTS}, {functor}"
    stream = Stream(
        name=f"void at::native::{kernel}>(int, ...)",
        precision=operator.precision,
        blocks=max(1, math.ceil(elements / (VECTOR_THREADS * VECTOR_ELEMENTS))),
        threads=VECTOR_THREADS,
        registers=32 if operator.family != "copy" else 40,
        read_bytes=reads * width,
        write_bytes=elements * out_width,
        ops=ops * elements,
        special=special * elements,
        fetched=fetched,
        dram_fetched=1.08,  # at most this much of a copy's over-fetch misses the L2
        path_factor=share,
    )
    return _lay_out(stream, profile, gpu)


def _lay_out(stream: Stream, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The plan of equal blocks that each move a piece of the operands; reads and writes share the path."""
    resident = resident_blocks(gpu, stream.threads, stream.registers, stream.shared_bytes_per_block)
    if not resident:
        raise RunnerError(f"{stream.name}: {stream.shared_bytes_per_block} byte of shared memory do not fit on an SM of {gpu.name}")
    moved = stream.read_bytes * stream.fetched + stream.write_bytes
    blocks = stream.blocks
    return KernelPlan(
        kernel_name=stream.name,
        library=stream.library,
        grid=(blocks, 1, 1),
        threads=stream.threads,
        registers=stream.registers,
        shared_bytes_per_block=stream.shared_bytes_per_block,
        blocks_per_sm=resident,
        blocks=blocks,
        demand=BlockDemand(
            lane_clocks=stream.ops / blocks / gpu.fp32_lanes,
            special_clocks=stream.special / blocks / gpu.sfu_op_per_clock,
            shared_clocks=stream.shared_bytes / blocks / gpu.shared_bytes_per_clock,
            steps=stream.steps,
            step_clocks=stream.step_clocks,
            load_bytes=moved / blocks,
            # smallest piece that the memory path moves
            in_flight_bytes=max(32.0, stream.read_bytes * stream.fetched / blocks / stream.steps),
            path_share=min(1.0, profile.library.stream_path_share * stream.path_factor),
        ),
        events=LaunchEvents(cuda_ops=stream.ops, sfu_ops=stream.special, shared_bytes=stream.shared_bytes, l2_bytes=moved),
        traffic=streamed_traffic(profile.memory, gpu, stream.read_bytes * min(stream.fetched, stream.dram_fetched), stream.write_bytes),
        working_set_bytes=stream.read_bytes + stream.write_bytes,
        row_pitch_bytes=stream.row_pitch_bytes,
        precision=stream.precision,
    )


def row_plan(operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The kernel for a softmax, a norm or a reduction over rows."""
    if operator.family == "softmax":
        return _softmax(operator, profile, gpu)
    if operator.family == "reduction":
        return _reduction(operator, profile, gpu)
    return _norm(operator, profile, gpu)


def _softmax(operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The plan of a softmax: rows in a warp's registers, in shared memory, or read three times."""
    width, out_width = _element_width(operator)
    rows, dim = int(operator["rows"]), int(operator["dim"])
    row_bytes = dim * width
    kind = library().pytorch_types[operator.precision]
    log_elements = math.ceil(math.log2(max(dim, 2)))
    rows_per_warp = 2 if dim <= 128 else 1
    in_warp = Stream(
        name=f"void (anonymous namespace)::softmax_warp_forward<{kind}, {kind}, float, {log_elements}, false, false>(...)",
        precision=operator.precision,
        blocks=math.ceil(rows / (4 * rows_per_warp)),
        threads=128,
        registers=min(128, 32 + rows_per_warp * 2**log_elements // 32),
        read_bytes=rows * row_bytes,
        write_bytes=rows * dim * out_width,
        ops=(MOVE_OPS + 8.5) * rows * max(dim, 32),
        special=1.02 * rows * dim,
        step_clocks=2.0 * 160.0 * rows_per_warp,  # five shuffles and their dependent operations
        row_pitch_bytes=row_bytes,
    )
    if dim <= 1024:  # longest row that one warp keeps in its registers (PyTorch softmax)
        return _lay_out(in_warp, profile, gpu)
    threads = min(1024, 2 ** math.ceil(math.log2(dim / 8)))
    loops = math.ceil(dim / threads / 8)
    # Longer rows are not kept in shared memory [byte].
    in_shared = row_bytes <= 48 * 1024
    in_block = replace(
        in_warp,
        name=f"void at::native::(anonymous namespace)::cunn_SoftMaxForward{'Smem' if in_shared else ''}<8, {kind}, float, {kind}>(...)",
        blocks=rows,
        threads=threads,
        registers=40,
        fetched=1.0 if in_shared else 3.0,
        ops=(MOVE_OPS + (9.0 if in_shared else 15.0)) * rows * dim,
        shared_bytes_per_block=int(row_bytes) + 256 if in_shared else 256,
        shared_bytes=rows * (256.0 + (3.0 * row_bytes if in_shared else 0.0)),
        steps=3.0 * loops,
        step_clocks=LOOP_CLOCKS + 2.0 * BLOCK_REDUCTION_CLOCKS / (3.0 * loops),
    )
    plan = _lay_out(in_block, profile, gpu)
    return plan if in_shared else _with_second_passes(plan, profile, gpu, passes=2, row_bytes=row_bytes, read_bytes=rows * row_bytes)


def _missed_in_l1(gpu: GpuSpec, under_way_bytes: float) -> float:
    """Share of a second pass that misses an SM's own cache, by the bytes in use by its blocks."""
    # share of an SM's shared memory that serves as its cache here, and the sharpness of the eviction of rows
    held = (under_way_bytes / (0.75 * gpu.shared_bytes_per_sm)) ** 3
    return held / (1.0 + held)


def _with_second_passes(
    plan: KernelPlan, profile: BoardProfile, gpu: GpuSpec, *, passes: float, row_bytes: float, read_bytes: float
) -> KernelPlan:
    """The plan with passes that may find their rows in the L2, depending on the number of rows in use at once."""
    under_way = min(plan.blocks, plan.blocks_per_sm * gpu.num_sms) * row_bytes
    missed = passes * read_bytes * (1.0 - resident_share(profile.memory, gpu, under_way))
    traffic = replace(plan.traffic, warm_read=plan.traffic.warm_read + missed, cold_read=plan.traffic.cold_read + missed)
    return replace(plan, traffic=traffic)


def _unrolled_waits(vectors: int) -> int:
    """Number of waits for memory of the slowest warp of a block, whose threads share these vectors in a loop unrolled by four.

    A warp runs the unrolled part as often as its busiest lane, and the rest of the loop as often as the lane with the longest rest.
    """
    counts = [len(range(thread, vectors, VECTOR_THREADS)) for thread in range(VECTOR_THREADS)]
    warps = [counts[first : first + WARP] for first in range(0, VECTOR_THREADS, WARP)]
    return max(max(count // UNROLLED for count in warp) + max(count % UNROLLED for count in warp) for warp in warps)


def _norm(operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The plan of a norm: one block a row, statistics first, then a second pass over the row; batch norm at inference is element-wise."""
    width, out_width = _element_width(operator)
    rows, dim = int(operator["rows"]), int(operator["dim"])
    kind = library().pytorch_types[operator.precision]
    flat = Stream(
        name=f"void at::native::batch_norm_transform_input_channels_last_kernel<{kind}, float, {kind}, 4>(...)",
        precision=operator.precision,
        blocks=max(1, math.ceil(rows * dim / (VECTOR_THREADS * VECTOR_ELEMENTS))),
        threads=VECTOR_THREADS,
        registers=36,
        read_bytes=rows * dim * width,
        write_bytes=rows * dim * out_width,
        ops=(MOVE_OPS + 5.0) * rows * dim,
    )
    if operator.operator == "batchnorm":
        return _lay_out(flat, profile, gpu)
    loops = max(1, math.ceil(dim / (VECTOR_THREADS * VECTOR_ELEMENTS)))
    waits = _unrolled_waits(math.ceil(dim / VECTOR_ELEMENTS))
    by_row = replace(
        flat,
        name=f"void at::native::(anonymous namespace)::vectorized_{operator.operator[:-4]}_norm_kernel<{kind}, float>(int, float, ...)",
        blocks=rows,
        registers=38,
        fetched=1.0 + _missed_in_l1(gpu, gpu.warps_per_sm // 4 * dim * width) if loops > 1 else 1.0,
        path_factor=1.3,
        ops=(MOVE_OPS + (10.0 if operator.operator == "layernorm" else 7.0)) * rows * max(dim, VECTOR_THREADS),
        special=2.0 * rows,
        shared_bytes_per_block=64,
        shared_bytes=rows * 256.0,
        steps=2.0 * waits,
        step_clocks=LOOP_CLOCKS + BLOCK_REDUCTION_CLOCKS / (2.0 * waits),
        row_pitch_bytes=dim * width,
    )
    plan = _lay_out(by_row, profile, gpu)
    return _with_second_passes(plan, profile, gpu, passes=by_row.fetched - 1.0, row_bytes=dim * width, read_bytes=flat.read_bytes)


def _reduction(operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The plan of a reduction: short rows share a block, long ones have several."""
    width, out_width = _element_width(operator)
    rows, dim = int(operator["rows"]), int(operator["dim"])
    by_work = math.ceil(rows * dim / (REDUCE_THREADS * 16))
    blocks = max(by_work, min(rows, 2 * gpu.num_sms) if dim >= REDUCE_THREADS else 1)
    stream = Stream(
        name=f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{library().pytorch_types[operator.precision]}, ...>>(...)",
        precision=operator.precision,
        blocks=blocks,
        threads=REDUCE_THREADS,
        registers=32,
        read_bytes=rows * dim * width,
        write_bytes=rows * out_width,
        ops=(MOVE_OPS - 1.0) * rows * dim,
        path_factor=1.2,
        shared_bytes_per_block=2048,
        shared_bytes=blocks * 4096.0,
        steps=4.0,
        step_clocks=LOOP_CLOCKS + BLOCK_REDUCTION_CLOCKS / 4.0,
        row_pitch_bytes=dim * width,
    )
    plan = _lay_out(stream, profile, gpu)
    return replace(plan, follow_up_clocks=900.0, follow_up_bytes=blocks * 8.0) if blocks > rows else plan


def depthwise_plan(operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The plan of a depthwise convolution: one filter a channel, neighbours re-read through the caches."""
    width, out_width = _element_width(operator)
    batch, channels, height, width_px, filters, kernel_h, kernel_w, stride, padding, _ = operator.shape
    out_h = (height + 2 * padding - kernel_h) // stride + 1
    out_w = (width_px + 2 * padding - kernel_w) // stride + 1
    outputs = batch * filters * out_h * out_w
    taps = kernel_h * kernel_w
    stream = Stream(
        name=f"void at::native::conv_depthwise2d_forward_kernel<{kernel_h:.0f}, {library().pytorch_types[operator.precision]}>(...)",
        precision=operator.precision,
        library="cudnn",
        blocks=max(1, math.ceil(outputs / 512)),
        threads=256,
        registers=48,
        read_bytes=batch * channels * height * width_px * width + filters * taps * width,
        write_bytes=outputs * out_width,
        ops=(MOVE_OPS + 2.2 * taps + 6.0) * outputs,
        fetched=1.0 + 0.08 * (taps - 1.0),
        path_factor=1.3,
    )
    return _lay_out(stream, profile, gpu)
