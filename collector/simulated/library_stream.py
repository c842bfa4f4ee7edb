"""The simulated library's memory kernels: element-wise work, copies, row reductions, depthwise convolution."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, log2
from typing import Final

from collector.devices.protocols import PreparedKernel
from collector.errors import RunnerError
from collector.simulated.cache import resident_share, streamed_traffic
from collector.simulated.plan import KernelPlan, library
from collector.simulated.profile import BoardProfile
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator, conv_output_size
from microbench.kernel import WARP_LANES
from microbench.sizing import resident_blocks

MOVE_OPS: Final = 6.0
"""Lane instructions for loading and storing one element: addresses, loads, conversion, store."""

VECTOR_THREADS, VECTOR_ELEMENTS = 128, 4
UNROLLED: Final = 4
"""Turns of a loop that the compiler joins into one; NeuSight's tables show this in layer norms of A100 and V100."""

REDUCE_THREADS: Final = 512

PLAIN_OP: Final = 0.45
"""Energy of a lane instruction over that of a multiply-add of a product, whose operands come from shared memory (campaign on an H200)."""

THREAD_OPS: Final = 100.0
"""Lane instructions of a thread for its row beyond those of its elements: start, shuffles, result (the same campaign)."""

BLOCK_REDUCTION_CLOCKS, LOOP_CLOCKS = 420.0, 90.0
"""Clocks of a reduction over a block (two rounds of shuffles, shared memory and barriers), and least clocks of one pass of a row loop."""


@frozen
class Stream:
    """A memory kernel of equal blocks: its total traffic and arithmetic.

    `fetched` bytes come from the L2 for each useful byte, `dram_fetched` of them from DRAM; `passes` over the rows may find them in
    the L2.  `hidden_ops` are lane instructions, and `scattered_bytes` traffic of the L2, that take no time of their own.  `path_factor` is
    relative to the share of the SM's port that plain element-wise kernels reach.
    """

    name: str
    library: str = "pytorch"
    blocks: int
    threads: int = VECTOR_THREADS
    registers: int
    read_bytes: float
    write_bytes: float
    ops: float
    hidden_ops: float = 0.0
    scattered_bytes: float = 0.0
    special: float = 0.0
    fetched: float = 1.0
    dram_fetched: float = 1.0
    passes: float = 0.0
    path_factor: float = 1.0
    shared_bytes_per_block: int = 0
    shared_bytes: float = 0.0
    steps: float = 1.0
    step_clocks: float = 0.0
    row_pitch_bytes: float = 0.0
    follow_up_clocks: float = 0.0
    follow_up_bytes: float = 0.0


def stream_plan(operator: Operator, profile: BoardProfile) -> KernelPlan:
    """The kernel for an operator that memory limits.  Raises RunnerError if no kernel handles the type."""
    known = library().pytorch_types
    if operator.precision not in known:
        raise RunnerError(f"{operator.family} in {operator.precision}: no such kernel; precisions: {', '.join(known)}")
    stream = STREAMS[operator.family](operator, known[operator.precision], profile.spec)
    return _lay_out(replace(stream, name=f"void {stream.name}"), operator, profile)


def _lay_out(stream: Stream, operator: Operator, profile: BoardProfile) -> KernelPlan:
    """The plan of equal blocks that each move a piece of the operands; reads and writes share the path."""
    gpu, blocks, read = profile.spec, stream.blocks, stream.read_bytes
    resident = resident_blocks(gpu, stream.threads, stream.registers, stream.shared_bytes_per_block)
    if not resident:
        raise RunnerError(f"{stream.name}: {stream.shared_bytes_per_block} byte of shared memory do not fit on an SM of {gpu.name}")
    under_way = min(blocks, resident * gpu.num_sms) * stream.row_pitch_bytes
    missed = stream.passes * read * (1.0 - resident_share(profile, under_way))
    return KernelPlan(
        kernel=PreparedKernel(
            operator=operator,
            l2_state="warm",
            library=stream.library,
            kernel_name=stream.name,
            grid=(blocks, 1, 1),
            block=(stream.threads, 1, 1),
            registers_per_thread=stream.registers,
            shared_bytes_per_block=stream.shared_bytes_per_block,
            blocks_per_sm=resident,
            split_k=1,
            working_set_bytes=int(read + stream.write_bytes),
        ),
        lane_ops=stream.ops,
        switched_ops=PLAIN_OP * (stream.ops + stream.hidden_ops),
        scattered_bytes=stream.scattered_bytes,
        sfu_ops=stream.special,
        shared_bytes=stream.shared_bytes,
        traffic=streamed_traffic(profile, read * stream.dram_fetched, stream.write_bytes, missed),
        steps=stream.steps,
        step_clocks=stream.step_clocks,
        load_bytes=(read * stream.fetched + stream.write_bytes) / blocks,
        # smallest piece that the memory path moves
        in_flight_bytes=max(32.0, read * stream.fetched / blocks / stream.steps),
        path_share=min(1.0, profile.library.stream_path_share * stream.path_factor),
        row_pitch_bytes=stream.row_pitch_bytes,
        follow_up_clocks=stream.follow_up_clocks,
        follow_up_bytes=stream.follow_up_bytes,
    )


def _flat(operator: Operator, name: str, reads: float, elements: float, ops: float) -> Stream:
    """One pass over numbers without rows, in vectors; `ops` are the lane instructions of an element beyond moving it."""
    return Stream(
        name=name,
        blocks=max(1, ceil(elements / (VECTOR_THREADS * VECTOR_ELEMENTS))),
        registers=32,
        read_bytes=reads * BYTES_PER_ELEMENT[operator.precision],
        write_bytes=elements * BYTES_PER_ELEMENT[operator.out_precision],
        ops=(MOVE_OPS + ops) * elements,
    )


def _elementwise(operator: Operator, kind: str, _: GpuSpec) -> Stream:
    elements, reads = operator["elements"], operator["reads"]
    ops, special = library().elementwise[operator.operator]
    name = f"at::native::vectorized_elementwise_kernel<{VECTOR_ELEMENTS}, at::native::{operator.operator}_functor<{kind}>>(int, ...)"
    return replace(_flat(operator, name, reads, elements, ops), special=special * elements)


def _copy(operator: Operator, _kind: str, _gpu: GpuSpec) -> Stream:
    share, ops, fetched, hidden = library().copy[operator.operator]
    kernel = "at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    flat = _flat(operator, f"at::native::elementwise_kernel<128, 2, {kernel}>(int, ...)", operator["reads"], operator["elements"], ops)
    # at most this much of a copy's over-fetch misses the L2
    elements, width = operator["elements"], BYTES_PER_ELEMENT[operator.precision]
    return replace(
        flat,
        registers=40,
        hidden_ops=hidden * elements,
        scattered_bytes=elements * (32.0 - width) if operator.operator == "transpose" else 0.0,
        fetched=fetched,
        dram_fetched=min(fetched, 1.08),
        path_factor=share,
    )


def _rows(operator: Operator, ops: float) -> tuple[int, int, Stream]:
    """Rows, their length, and a kernel that passes once over them."""
    rows, dim = int(operator["rows"]), int(operator["dim"])
    flat = _flat(operator, "", rows * dim, rows * dim, ops)
    return rows, dim, replace(flat, row_pitch_bytes=dim * BYTES_PER_ELEMENT[operator.precision])


def _softmax(operator: Operator, kind: str, gpu: GpuSpec) -> Stream:
    """Rows in a warp's registers, in shared memory, or read three times."""
    rows, dim, flat = _rows(operator, 0.0)
    flat = replace(flat, special=1.02 * rows * dim)
    old = gpu.architecture == "volta"  # its last library is older
    if dim <= (1024 if old else 2048):  # longest row that one warp keeps in its registers (PyTorch softmax)
        log_elements, rows_per_warp = ceil(log2(max(dim, 2))), 2 if dim <= 128 else 1
        return replace(
            flat,
            name=f"(anonymous namespace)::softmax_warp_forward<{kind}, {kind}, float, {log_elements}, false, false>(...)",
            blocks=ceil(rows / (4 * rows_per_warp)),
            registers=min(128, 32 + rows_per_warp * 2**log_elements // 32),
            ops=(MOVE_OPS + 8.5) * rows * max(dim, WARP_LANES),
            hidden_ops=rows * (32.0 * dim + THREAD_OPS * WARP_LANES / rows_per_warp),
            step_clocks=2.0 * 160.0 * rows_per_warp,  # five shuffles and their dependent operations
        )
    threads = min(1024, 2 ** ceil(log2(dim / 8))) if old else 1024
    row_bytes = flat.row_pitch_bytes
    # Longer rows are not kept in shared memory [byte].
    in_shared = row_bytes <= 48 * 1024
    waits = (3.0 if old or not in_shared else 1.0) * ceil(dim / threads / 8)
    return replace(
        flat,
        name=f"at::native::(anonymous namespace)::cunn_SoftMaxForward{'Smem' if in_shared else ''}<8, {kind}, float, {kind}>(...)",
        blocks=rows,
        threads=threads,
        registers=40 if old else 32,
        fetched=1.0 if in_shared else 3.0,
        passes=0.0 if in_shared else 2.0,
        ops=(MOVE_OPS + (9.0 if in_shared else 15.0)) * rows * dim,
        hidden_ops=rows * (32.0 * dim + THREAD_OPS * threads),
        shared_bytes_per_block=int(row_bytes) + 256 if in_shared else 256,
        shared_bytes=rows * (256.0 + (3.0 * row_bytes if in_shared else 0.0)),
        steps=waits,
        step_clocks=LOOP_CLOCKS + 2.0 * BLOCK_REDUCTION_CLOCKS / waits,
    )


def _missed_in_l1(gpu: GpuSpec, under_way_bytes: float) -> float:
    """Share of a second pass that misses an SM's own cache, by the bytes in use by its blocks."""
    # share of an SM's shared memory that serves as its cache here, and the sharpness of the eviction of rows
    held = (under_way_bytes / (0.75 * gpu.shared_bytes_per_sm)) ** 3
    return held / (1.0 + held)


def _unrolled_waits(vectors: int) -> int:
    """Number of waits for memory of the slowest warp of a block, whose threads share these vectors in a loop unrolled by four.

    A warp runs the unrolled part as often as its busiest lane, and the rest of the loop as often as the lane with the longest rest.
    """
    counts = [len(range(thread, vectors, VECTOR_THREADS)) for thread in range(VECTOR_THREADS)]
    warps = [counts[first : first + WARP_LANES] for first in range(0, VECTOR_THREADS, WARP_LANES)]
    return max(max(count // UNROLLED for count in warp) + max(count % UNROLLED for count in warp) for warp in warps)


def _norm(operator: Operator, kind: str, gpu: GpuSpec) -> Stream:
    """One block a row, statistics first, then a second pass over the row; batch norm at inference is element-wise."""
    rows, dim, flat = _rows(operator, 5.0)
    if operator.operator == "batchnorm":
        name = f"at::native::batch_norm_transform_input_channels_last_kernel<{kind}, float, {kind}, 4>(...)"
        return replace(flat, name=name, registers=36, row_pitch_bytes=0.0)
    waits, layer = _unrolled_waits(ceil(dim / VECTOR_ELEMENTS)), operator.operator == "layernorm"
    refetched = _missed_in_l1(gpu, gpu.warps_per_sm // 4 * flat.row_pitch_bytes) if dim > VECTOR_THREADS * VECTOR_ELEMENTS else 0.0
    vectors = replace(
        flat,
        name=f"at::native::(anonymous namespace)::vectorized_{operator.operator[:-4]}_norm_kernel<{kind}, float>(int, float, ...)",
        blocks=rows,
        registers=38,
        fetched=1.0 + refetched,
        passes=refetched,
        path_factor=1.3,
        ops=(MOVE_OPS + (10.0 if layer else 7.0)) * rows * max(dim, VECTOR_THREADS),
        hidden_ops=rows * ((30.0 * dim + 2.0 * THREAD_OPS * VECTOR_THREADS) if layer else (8.0 * dim + THREAD_OPS * VECTOR_THREADS)),
        special=2.0 * rows,
        shared_bytes_per_block=64,
        shared_bytes=rows * 256.0,
        steps=2.0 * waits,
        step_clocks=LOOP_CLOCKS + BLOCK_REDUCTION_CLOCKS / (2.0 * waits),
    )
    if dim % VECTOR_ELEMENTS == 0:
        return vectors
    loads = ceil(dim / 512) + ceil(dim / 256)  # of a thread, one by one, in a kernel for the statistics and one for the result
    return replace(
        vectors,
        threads=512,
        ops=vectors.ops + 2.0 * rows * THREAD_OPS * 512,
        steps=loads,
        step_clocks=LOOP_CLOCKS + BLOCK_REDUCTION_CLOCKS / loads,
        follow_up_clocks=900.0,
    )


def _reduction(operator: Operator, kind: str, gpu: GpuSpec) -> Stream:
    """Lanes of a warp for a row, a block for rows that give each thread 16 elements, several from 256 on (PyTorch sum)."""
    rows, dim, flat = _rows(operator, -2.5)
    vector = 16.0 / BYTES_PER_ELEMENT[operator.precision] if dim >= 128 else 1.0
    lanes = min(WARP_LANES, 2 ** int(log2(dim / vector))) if dim < 16 * REDUCE_THREADS else REDUCE_THREADS
    each = dim / lanes
    several = max(ceil(each / 256), min(4 * gpu.num_sms // rows, ceil(each / 16))) if each >= 256 and lanes > WARP_LANES else 1
    blocks, waits = ceil(rows * several * lanes / REDUCE_THREADS), ceil(each / several / max(vector, 4.0))
    return replace(
        flat,
        name=f"at::native::reduce_kernel<512, 1, at::native::ReduceOp<{kind}, ...>>(...)",
        blocks=blocks,
        threads=REDUCE_THREADS,
        write_bytes=flat.write_bytes / dim,
        ops=flat.ops + rows * THREAD_OPS * lanes,
        path_factor=1.2,
        shared_bytes_per_block=2048,
        shared_bytes=blocks * 4096.0,
        steps=waits,
        step_clocks=LOOP_CLOCKS + BLOCK_REDUCTION_CLOCKS / waits,
        follow_up_clocks=900.0 if blocks > rows else 0.0,
        follow_up_bytes=blocks * 8.0 if blocks > rows else 0.0,
    )


def _depthwise(operator: Operator, kind: str, _: GpuSpec) -> Stream:
    """One filter a channel, neighbours re-read through the caches."""
    batch, channels, height, width, filters, kernel_h, kernel_w = operator.shape[:7]
    out_h, out_w = conv_output_size(operator)
    taps = kernel_h * kernel_w
    name = f"at::native::conv_depthwise2d_forward_kernel<{kernel_h:.0f}, {kind}>(...)"
    reads = batch * channels * height * width + filters * taps
    return replace(
        _flat(operator, name, reads, batch * filters * out_h * out_w, 2.2 * taps + 6.0),
        library="cudnn",
        threads=256,
        registers=48,
        fetched=1.0 + 0.08 * (taps - 1.0),
        path_factor=1.3,
    )


STREAMS: Final[dict[str, Callable[[Operator, str, GpuSpec], Stream]]] = {
    "softmax": _softmax,
    "norm": _norm,
    "reduction": _reduction,
    "elementwise": _elementwise,
    "copy": _copy,
    "conv": _depthwise,
}
"""Kernels by family, from operator, number format in kernel names and GPU; of convolutions the depthwise ones."""
