"""Kernels that stream through memory: element-wise work, copies, softmax, norms, reductions, depthwise convolution.

    dram    bytes / BW                                    what misses L2
    l2      bytes / (STREAM_BYTES_PER_CLOCK · S)          what an SM sustains, whatever the level
    issue   instructions / (lanes · S)                    element instructions
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

ROW_CLOCKS: Final = 100.0
"""Ideal latency of one row of a normalisation on an SM [SM clock]."""

ROW_ELEMENT_CLOCKS: Final = 0.1
"""Ideal latency of one element of a row [SM clock]."""

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

SPECIAL_PER_ELEMENT: Final[dict[str, float]] = {
    "softmax": 1.0, "gelu": 1.0, "tanh": 1.0, "silu": 2.0, "sigmoid": 2.0, "exp": 1.0, "pow": 2.0, "scalar_pow": 0.0, "div": 1.0,
}  # fmt: skip
"""Special functions (exponential, reciprocal, logarithm) per element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamColumns:
    """Memory kernels as columns of shape (n,): bytes in all, elements computed, weights, rows (0: none) and their length."""

    read_byte: Array
    write_byte: Array
    elements: Array
    weight: Array
    special: Array
    shared_byte: Array
    rows: Array
    dim: Array


def stream_phases(columns: StreamColumns, gpu: GpuSpec) -> Phases:
    """Phases of memory kernels, shape (n, ·), for data that come from DRAM."""
    total = columns.read_byte + columns.write_byte
    instructions = INSTRUCTIONS_PER_ELEMENT * columns.elements * columns.weight
    phases = empty_phases(total.shape)
    phases.overlapped[..., OVERLAPPED.index("dram")] = total / gpu.dram_bytes_per_s
    phases.overlapped[..., OVERLAPPED.index("l2")] = total / (STREAM_BYTES_PER_CLOCK * gpu.num_sms)
    phases.overlapped[..., OVERLAPPED.index("issue")] = instructions / (gpu.fp32_lanes * gpu.num_sms)
    turns = np.where(columns.rows > 0, np.ceil(columns.rows / gpu.num_sms), 0.0)
    phases.serial[..., SERIAL.index("rows")] = turns * ROW_CLOCKS
    phases.serial[..., SERIAL.index("row_length")] = turns * columns.dim * ROW_ELEMENT_CLOCKS
    phases.events[..., EVENTS.index("dram")] = total
    phases.events[..., EVENTS.index("l2")] = total
    phases.events[..., EVENTS.index("shared")] = columns.shared_byte
    phases.events[..., EVENTS.index("cuda")] = instructions
    phases.events[..., EVENTS.index("sfu")] = columns.special * columns.elements
    return phases
