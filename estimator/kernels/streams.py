"""Kernels that stream through memory: element-wise work, copies, softmax, norms, reductions, depthwise convolution.

    dram    bytes / BW                                    what misses L2
    l2      bytes / (STREAM_BYTES_PER_CLOCK · S)          what an SM sustains, whatever the level
    issue   instructions / (lanes · S)                    element instructions
    loop    rounds of resident rows · steps · ROW_STEP_CLOCKS   a block's walk along its row, a memory latency at a time
    rows, row_length                                      per-row latencies of normalisations, an SM at a time

The second and third make memory kernels follow the SM clock, as they do on real boards (docs/model.md).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.gpu import GpuSpec
from estimator.phases import EVENTS, OVERLAPPED, SERIAL, Phases, empty_phases
from estimator.quantities import Array

STREAM_BYTES_PER_CLOCK: Final = 16.0
"""Memory traffic that one SM sustains [byte/clock]; found alike on A100 and A10."""

INSTRUCTIONS_PER_ELEMENT: Final = 8.0
"""Lane instructions of one simple element operation: load, convert, compute, store, addresses."""

ELEMENTS_PER_BLOCK: Final = 512.0
"""Elements of a block: 128 threads with four each.  Source: PyTorch, vectorised element-wise kernels."""

ROW_CLOCKS: Final = 100.0
"""Ideal latency of one row of a normalisation on an SM [SM clock]."""

ROW_ELEMENT_CLOCKS: Final = 0.1
"""Ideal latency of one element of a row [SM clock]."""

ROW_STEP_CLOCKS: Final = 600.0
"""Ideal latency of one step along a row: a load from memory and what depends on it [SM clock]."""

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
"""Lane instructions of one tap of a depthwise filter: load, multiply-add, its share of a bounds check."""

ROW_REFETCH: Final = 0.5
"""Share of a depthwise filter's further rows that its block has to fetch from L2 again: outputs of a block span about two rows."""

SPECIAL_PER_ELEMENT: Final[dict[str, float]] = {
    "softmax": 1.0, "gelu": 1.0, "tanh": 1.0, "silu": 2.0, "sigmoid": 2.0, "exp": 1.0, "pow": 2.0, "scalar_pow": 0.0, "div": 1.0,
}  # fmt: skip
"""Special functions (exponential, reciprocal, logarithm) per element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamColumns:
    """Memory kernels as columns of shape (n,): bytes in all, elements computed, weights, rows (0: none) and their length.

    `weight` is the issue time of an element and `event_weight` the instructions executed for it, both relative to an addition;
    `passes` how often the input comes from L2.
    """

    read_byte: Array
    write_byte: Array
    elements: Array
    weight: Array
    special: Array
    shared_byte: Array
    rows: Array
    dim: Array
    resident_rows: Array
    row_steps: Array
    event_weight: Array
    passes: Array


def stream_phases(columns: StreamColumns, gpu: GpuSpec) -> Phases:
    """Phases of memory kernels, shape (n, ·), for data that come from DRAM."""
    total = columns.read_byte + columns.write_byte
    instructions = INSTRUCTIONS_PER_ELEMENT * columns.elements * columns.weight
    phases = empty_phases(total.shape)
    phases.overlapped[..., OVERLAPPED.index("dram")] = total / gpu.dram_bytes_per_s
    phases.overlapped[..., OVERLAPPED.index("l2")] = total / (STREAM_BYTES_PER_CLOCK * gpu.num_sms)
    phases.overlapped[..., OVERLAPPED.index("issue")] = instructions / (gpu.fp32_lanes * gpu.num_sms)
    rounds = np.ceil(columns.rows / (gpu.num_sms * np.maximum(columns.resident_rows, 1.0)))
    phases.overlapped[..., OVERLAPPED.index("loop")] = rounds * columns.row_steps * ROW_STEP_CLOCKS
    turns = np.where(columns.rows > 0, np.ceil(columns.rows / gpu.num_sms), 0.0)
    phases.serial[..., SERIAL.index("rows")] = turns * ROW_CLOCKS
    phases.serial[..., SERIAL.index("row_length")] = turns * columns.dim * ROW_ELEMENT_CLOCKS
    phases.occupied[...] = np.minimum(columns.elements / (ELEMENTS_PER_BLOCK * gpu.num_sms), 1.0)
    phases.events[..., EVENTS.index("dram")] = total
    phases.events[..., EVENTS.index("l2")] = columns.read_byte * columns.passes + columns.write_byte
    phases.events[..., EVENTS.index("shared")] = columns.shared_byte
    phases.events[..., EVENTS.index("cuda")] = INSTRUCTIONS_PER_ELEMENT * columns.elements * columns.event_weight
    phases.events[..., EVENTS.index("sfu")] = columns.special * columns.elements
    return phases


def row_residency(operator: str, dim: float, gpu: GpuSpec) -> tuple[float, float]:
    """Rows that an SM works on at once, and dependent loads along one row.

    Softmax keeps short rows in the registers of a warp, four rows a block; longer ones have a block of up to 1,024 threads.
    Layer and RMS norm walk along a row with 128 threads, first for its statistics, then for the result.
    Source: launch parameters of PyTorch's kernels (aten/src/ATen/native/cuda: PersistentSoftmax, SoftMax, layer_norm_kernel).
    """
    if operator == "softmax" and dim <= WARP_ROW:
        registers = ROW_REGISTERS - 8.0 + 2.0 ** np.ceil(np.log2(max(dim, WARP_LANES))) / WARP_LANES
        return WARP_ROWS * float(np.floor(gpu.registers_per_sm / (NORM_THREADS * registers))), 1.0
    if operator == "softmax":
        threads = min(LARGEST_BLOCK, 2.0 ** np.ceil(np.log2(dim / ROW_VECTOR)))
        return max(1.0, float(gpu.registers_per_sm // (ROW_REGISTERS * threads))), 3.0 * float(np.ceil(dim / (threads * ROW_VECTOR)))
    return float(gpu.registers_per_sm // (ROW_REGISTERS * NORM_THREADS)), 2.0 * float(np.ceil(dim / (NORM_THREADS * NORM_VECTOR)))


WARP_ROW: Final = 1024.0
WARP_ROWS: Final = 4.0
WARP_LANES: Final = 32.0
LARGEST_BLOCK: Final = 1024.0
ROW_VECTOR: Final = 8.0
NORM_THREADS: Final = 128.0
NORM_VECTOR: Final = 4.0
ROW_REGISTERS: Final = 40.0
"""Longest row of a warp, rows (warps) of such a block, threads and elements a thread takes at once, registers of a thread."""
