"""Operators → phases, family by family, with the tile that a library would choose."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.model.attention import AttentionColumns, decode_phases, prefill_phases
from estimator.model.coefficients import COLUMN
from estimator.model.gemm import MatrixColumns, candidate_phases, count_events, matrix_phases
from estimator.model.phases import Phases, empty_phases, join_phases
from estimator.model.streams import (
    BLOCK_REGISTERS,
    BLOCK_THREADS,
    COPY_REGISTERS,
    ELEMENT_WEIGHT,
    ELEMENTS_PER_BLOCK,
    EVENT_WEIGHT,
    INSTRUCTIONS_PER_ELEMENT,
    ROW_REFETCH,
    SPECIAL_PER_ELEMENT,
    TAP_INSTRUCTIONS,
    StreamColumns,
    block_residency,
    reduction_blocks,
    row_blocks,
    stream_phases,
)
from estimator.model.tiling import Candidates, tile_candidates
from estimator.model.timeline import kernel_seconds
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, HZ_PER_MHZ, Array, BoolArray, IntArray
from estimator.vocabulary.workload import FAMILY_FIELDS, Operator

ROW_SHARED_BYTES: Final = 256.0
"""Shared memory that one row's reduction passes through [byte] (assumed)."""

WARP_ROW_LIMIT: Final = 1024
"""Longest row of a softmax that stays in the registers of a warp [element].  Source: PyTorch, aten/src/ATen/native/cuda/SoftMax.cu
(host_softmax) and PersistentSoftmax.cuh; NeuSight's tables switch kernels there."""

SHARED_ROW_BYTES: Final = 48 * 1024
"""Longest row of a softmax that a block keeps in shared memory, which it writes once and reads twice; longer ones come
from memory three times [byte].  Source: PyTorch, SoftMax.cu (host_softmax, cunn_SoftMaxForwardSmem and cunn_SoftMaxForward), with
the 48 KiB that CUDA grants a block unasked.  The version in NeuSight's tables has cunn_SoftMaxForward alone."""

ROW_PASSES: Final = 3.0
"""Passes of a softmax over its row: maximum, sum, result.  Source: PyTorch, SoftMax.cu (cunn_SoftMaxForward)."""

DEPTHWISE_FIXED: Final = 4.5
DEPTHWISE_TAP: Final = 1.5
"""Element instructions of a depthwise convolution relative to an addition: addresses and result, and each tap; 18 for 3 × 3
(assumed)."""

DEPTHWISE_THREADS: Final = 256.0
DEPTHWISE_REGISTERS: Final = 48.0
"""Threads of a block of such a kernel, and registers of each (assumed).  PyTorch's own kernel has 1,024 threads with one output each
and so at most 64 registers (aten/src/ATen/native/cuda/DepthwiseConv2d.cu, CUDA_NUM_THREADS of KernelUtils.h); half precision and
channels-last layouts mostly go to cuDNN (Convolution.cpp, use_cudnn_depthwise), whose blocks are not published."""

CHANNEL_BYTES: Final = 16.0
FIRST_LAYER_CHANNELS: Final = 4.0
FIRST_LAYER_STRIDE: Final = 2.0
"""On tensor cores a library pads the channels of a convolution to 16 bytes (8 of 16 bit, 4 of tf32), the few of a first layer with
stride 2 to 4.  Source: NVIDIA, Convolutional Layers User's Guide (checklist; Channels In And Out)."""

ROWS_UNDER_WAY: Final = 16.0
"""Rows of a norm that an SM works on at once, a block of 128 threads each: 2,048 threads, whatever their registers (assumed).  A
norm reads its row for the statistics and again for the result; what the SM's own cache cannot hold meanwhile comes from L2 again.
Source: PyTorch, aten/src/ATen/native/cuda/layer_norm_kernel.cu (launch_vectorized_layer_norm_kernel, compute_stats)."""

EIGHT_BIT: Final = frozenset({"fp8", "int8", "nvfp4"})
"""Operand precisions into which linear layers first convert their activations."""


PRODUCTS_AT_ONCE: Final = 512
"""Matrix products whose candidate tiles are compared together: dozens of candidates each, with dozens of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lowered:
    """Kernels on a GPU: phases of shape (n, ·), and tile_m, tile_n, split of shape (n,) (nan where there is no tile)."""

    phases: Phases
    tile_m: Array
    tile_n: Array
    split: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownTiles:
    """Tiles known from kernel names or a predictor, shape (n,); nan where unknown (then the fastest candidate is taken)."""

    tile_m: Array
    tile_n: Array
    split: Array


def lower(operators: Sequence[Operator], gpu: GpuSpec, coefficients: Array, known: KnownTiles | None = None) -> Lowered:
    """Phases of operators on a GPU.

    coefficients: (n, ·) rows as from `coefficient_rows`; they decide the tile: the candidate that is fastest at the
    clock for which the vendor quotes its rates, as libraries choose without knowing the current clock.
    """
    count = len(operators)
    tiles = Lowered(phases=empty_phases((0,)), tile_m=np.full(count, np.nan), tile_n=np.full(count, np.nan), split=np.full(count, np.nan))
    kinds: dict[str, list[int]] = {}
    for i, operator in enumerate(operators):
        kinds.setdefault(phase_kind(operator), []).append(i)
    parts, order = [], []
    for kind, members in kinds.items():
        index = np.array(members, dtype=np.int64)
        chosen = [operators[i] for i in members]
        if kind == "matrix":
            parts.append(_matrix(chosen, index, gpu, coefficients, known, tiles))
        else:
            parts.append(STREAM_KINDS[kind](chosen, gpu))
        order.append(index)
    if not parts:
        return tiles
    return Lowered(phases=join_phases(parts, order, count), tile_m=tiles.tile_m, tile_n=tiles.tile_n, split=tiles.split)


def phase_kind(operator: Operator) -> str:
    """Which equations describe an operator: "matrix", or a key of STREAM_KINDS."""
    if operator.family == "gemm" or (operator.family == "conv" and operator.operator == "conv2d"):
        return "matrix"
    if operator.family == "attention":
        return operator.operator
    return "stream"


def matrix_columns(operators: Sequence[Operator], gpu: GpuSpec) -> MatrixColumns:
    """GEMMs and convolutions as matrix products with their own memory footprints."""
    rows = [_matrix_row(operator, gpu) for operator in operators]
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 12)
    return MatrixColumns(**{name: table[:, i] for i, name in enumerate(MatrixColumns.__slots__)})


def _matrix_row(operator: Operator, gpu: GpuSpec) -> tuple[float, ...]:
    width = BYTES_PER_ELEMENT[operator.precision]
    out_width = BYTES_PER_ELEMENT[operator.precision_out] if operator.precision_out else max(width, 2.0)
    tensor = float(not operator.cuda_cores and operator.precision in gpu.tensor_flop_per_clock)
    if operator.family == "gemm":
        batch, m, n, k = operator.shape
        weight, activation = batch * n * k * width, batch * m * k * width
        padded = k
    else:
        b, channels, height, width_px, filters, kernel_h, kernel_w, stride, padding, groups = operator.shape
        out_h = np.floor((height + 2.0 * padding - kernel_h) / stride) + 1.0
        out_w = np.floor((width_px + 2.0 * padding - kernel_w) / stride) + 1.0
        batch, m, n, k = groups, b * out_h * out_w, filters / groups, channels / groups * kernel_h * kernel_w
        weight, activation = filters * k * width, b * channels * height * width_px * width
        padded = k if not tensor else _padded_channels(channels / groups, stride, width) * kernel_h * kernel_w
    rate = gpu.matrix_flop_per_clock(operator.precision, operator.cuda_cores)
    quantised = float(operator.precision in EIGHT_BIT and operator.operator == "linear")
    return (batch, m, n, k, padded, weight, activation, batch * m * n * out_width, width, rate, tensor, quantised)


def _padded_channels(channels: float, stride: float, width: float) -> float:
    """Channels of a convolution on tensor cores as its library pads them."""
    granule = FIRST_LAYER_CHANNELS if channels <= FIRST_LAYER_CHANNELS and stride == FIRST_LAYER_STRIDE else CHANNEL_BYTES / width
    return float(np.ceil(channels / granule) * granule)


def _matrix(
    operators: list[Operator], index: IntArray, gpu: GpuSpec, coefficients: Array, known: KnownTiles | None, tiles: Lowered
) -> Phases:
    """Phases of matrix products with their tiles; writes the tiles into `tiles` at `index`."""
    columns = matrix_columns(operators, gpu)
    searched = list(range(len(index)))
    told = np.zeros(len(index), dtype=np.bool_)
    if known is not None:
        fields = np.stack([getattr(known, name)[index] for name in KnownTiles.__slots__])
        told = np.isfinite(fields).any(axis=0)
        searched = np.flatnonzero(~np.isfinite(fields).all(axis=0)).tolist()
    kinds: dict[tuple[bool, float], list[int]] = {}
    on_cuda, widest_split = (columns.tensor == 0.0).tolist(), coefficients[index, COLUMN["widest_split"]].tolist()
    for row in searched:
        kinds.setdefault((on_cuda[row], widest_split[row]), []).append(row)
    parts, order = [], []
    for (cuda_cores, widest), members in kinds.items():
        for first in range(0, len(members), PRODUCTS_AT_ONCE):
            rows = np.array(members[first : first + PRODUCTS_AT_ONCE], dtype=np.int64)
            chosen, phases = _fastest(_rows(columns, rows), tile_candidates(gpu, cuda_cores, widest), gpu, coefficients[index[rows]])
            for name in KnownTiles.__slots__:
                getattr(tiles, name)[index[rows]] = getattr(chosen, name)
            parts.append(phases)
            order.append(rows)
    rows = np.flatnonzero(told)
    if rows.size and known is not None:
        for name in KnownTiles.__slots__:
            given = getattr(known, name)[index[rows]]
            getattr(tiles, name)[index[rows]] = np.where(np.isnan(given), getattr(tiles, name)[index[rows]], given)
        final = Candidates(**{name: getattr(tiles, name)[index[rows]] for name in KnownTiles.__slots__})
        parts.append(matrix_phases(_rows(columns, rows), final, gpu))
        order.append(rows)
    return join_phases(parts, order, len(index))


def candidates_of(
    operators: Sequence[Operator], gpu: GpuSpec, known: KnownTiles | None = None, widest_split: float = 0.0
) -> tuple[Phases, BoolArray]:
    """Phases of every tile that kernels of one kind may have, shape (n, c, ·), and where the tile is known, shape (n,).

    A known tile is its row's first candidate.  Kernels without tiles have one candidate.  The operators must be of
    one phase kind, and matrix products all with or all without tensor cores.
    """
    count = len(operators)
    settled = np.zeros(count, dtype=np.bool_)
    kind = phase_kind(operators[0])
    if kind != "matrix":
        return STREAM_KINDS[kind](operators, gpu).lifted(), ~settled
    columns = matrix_columns(operators, gpu)
    if known is not None:
        settled = np.isfinite(known.tile_m) & np.isfinite(known.tile_n)
    rows = np.flatnonzero(settled)
    given = None
    if known is not None and len(rows):
        split = np.where(np.isfinite(known.split[rows]), known.split[rows], 1.0)
        given = matrix_phases(_rows(columns, rows), Candidates(tile_m=known.tile_m[rows], tile_n=known.tile_n[rows], split=split), gpu)
        if settled.all():
            return given.lifted(), settled
    phases = candidate_phases(columns, tile_candidates(gpu, bool(columns.tensor[0] == 0.0), widest_split), gpu)
    if given is not None:
        phases.put(rows, given)
    return phases, settled


def _fastest(columns: MatrixColumns, tiles: Candidates, gpu: GpuSpec, coefficients: Array) -> tuple[Candidates, Phases]:
    """The candidate of least predicted time for every product, shape (n,), and its phases."""
    every = candidate_phases(columns, tiles, gpu, counted=False)
    seconds = kernel_seconds(every, coefficients[:, None, :], gpu.sm_clock_max_mhz * HZ_PER_MHZ)
    best = seconds.argmin(axis=1)
    chosen = Candidates(tile_m=tiles.tile_m[best], tile_n=tiles.tile_n[best], split=tiles.split[best])
    phases = every.take(best)
    count_events(phases.events, columns, chosen, gpu)
    return chosen, phases


def _rows(columns: MatrixColumns, rows: IntArray) -> MatrixColumns:
    if len(rows) == len(columns.batch) and (rows[1:] > rows[:-1]).all():
        return columns  # all of them
    return MatrixColumns(**{name: getattr(columns, name)[rows] for name in MatrixColumns.__slots__})


def _attention_columns(operators: Sequence[Operator], gpu: GpuSpec) -> AttentionColumns:
    shape = np.array([operator.shape for operator in operators], dtype=np.float64)
    named = {name: shape[:, i] for i, name in enumerate(FAMILY_FIELDS["attention"])}
    return AttentionColumns(
        **named,
        element_byte=np.array([BYTES_PER_ELEMENT[o.precision] for o in operators]),
        kv_byte=np.array([BYTES_PER_ELEMENT[o.precision_kv or o.precision] for o in operators]),
        flop_per_clock=np.array([gpu.matrix_flop_per_clock(o.precision, o.cuda_cores) for o in operators]),
    )


def _stream_row(operator: Operator, gpu: GpuSpec) -> tuple[float, ...]:
    width = BYTES_PER_ELEMENT[operator.precision]
    out_width = BYTES_PER_ELEMENT[operator.precision_out] if operator.precision_out else width
    weight = ELEMENT_WEIGHT.get(operator.operator, 1.0)
    special = SPECIAL_PER_ELEMENT.get(operator.operator, 0.0)
    event_weight = EVENT_WEIGHT.get(operator.operator, weight)
    shared = rows = dim = 0.0
    steps = passes = 1.0
    resident = block_residency(gpu, BLOCK_THREADS, COPY_REGISTERS if operator.family == "copy" else BLOCK_REGISTERS)
    blocks = 0.0
    if operator.family == "conv":  # depthwise: one filter a channel, no reuse worth a matrix unit
        b, channels, height, width_px, filters, kernel_h, kernel_w, stride, padding, _ = operator.shape
        out_h = np.floor((height + 2.0 * padding - kernel_h) / stride) + 1.0
        out_w = np.floor((width_px + 2.0 * padding - kernel_w) / stride) + 1.0
        read, elements = b * channels * height * width_px, b * filters * out_h * out_w
        weight = DEPTHWISE_FIXED + DEPTHWISE_TAP * kernel_h * kernel_w
        event_weight = 1.0 + TAP_INSTRUCTIONS * kernel_h * kernel_w / INSTRUCTIONS_PER_ELEMENT
        passes = 1.0 + ROW_REFETCH * max(kernel_h - stride, 0.0)
        resident = block_residency(gpu, DEPTHWISE_THREADS, DEPTHWISE_REGISTERS)
    elif operator.family in ("softmax", "norm", "reduction"):
        rows, dim = operator.shape
        read = rows * dim
        elements = read
        shared = rows * ROW_SHARED_BYTES
        if operator.family == "reduction":
            blocks, resident, steps = reduction_blocks(rows, dim, gpu)
            return (read * width, rows * out_width, read, weight, special, shared, rows, dim, blocks, resident, steps, event_weight, passes)
        if operator.family == "softmax":
            in_shared = dim * width <= SHARED_ROW_BYTES
            shared = 0.0 if dim <= WARP_ROW_LIMIT else shared + ROW_PASSES * read * width * in_shared
            passes = 1.0 if in_shared else ROW_PASSES
        if operator.family == "norm":
            passes = 1.0 + min(1.0, ROWS_UNDER_WAY * dim * width / gpu.shared_bytes_per_sm)
        if operator.operator == "batchnorm":  # inference: a channel-wise scale and shift, no row to reduce
            rows = dim = shared = 0.0
            passes = 1.0
            resident = block_residency(gpu, BLOCK_THREADS, COPY_REGISTERS)
        else:
            blocks, resident, steps = row_blocks(operator.operator, rows, dim, gpu)
    else:
        elements, read = operator.shape
    blocks = blocks or max(elements / ELEMENTS_PER_BLOCK, 1.0)
    return (
        read * width, elements * out_width, elements, weight, special, shared, rows, dim, blocks, resident, steps, event_weight, passes,
    )  # fmt: skip


def _streams(operators: Sequence[Operator], gpu: GpuSpec) -> Phases:
    table = np.array([_stream_row(operator, gpu) for operator in operators], dtype=np.float64)
    return stream_phases(StreamColumns(**{name: table[:, i] for i, name in enumerate(StreamColumns.__slots__)}), gpu)


STREAM_KINDS: Final[dict[str, Callable[[Sequence[Operator], GpuSpec], Phases]]] = {
    "stream": _streams,
    "prefill": lambda operators, gpu: prefill_phases(_attention_columns(operators, gpu), gpu),
    "decode": lambda operators, gpu: decode_phases(_attention_columns(operators, gpu), gpu),
}
"""Equations of the families without tiles to choose."""


def is_matrix(operators: Sequence[Operator]) -> BoolArray:
    """Which operators are matrix products with tiles, shape (n,)."""
    return np.array([phase_kind(operator) == "matrix" for operator in operators], dtype=np.bool_)
