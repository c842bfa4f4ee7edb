"""The shortest time that a GPU's peak rates allow, to find impossible measurements.

Only limits that hold for any state of the caches count: useful arithmetic at the peak rate of the highest clock, the
compulsory traffic beyond the size of L2 (for cold caches all weights, cached keys and values, and inputs of memory kernels)
at the published DRAM bandwidth, and all compulsory traffic at twice the assumed L2 bandwidth, since no vendor publishes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.model.lowering import STREAM_KINDS, matrix_columns, phase_kind
from estimator.model.phases import EVENTS
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, HZ_PER_MHZ, Array, BoolArray, IntArray
from estimator.vocabulary.workload import Operator

ROOF_TOLERANCE: Final = 1.05
"""Largest ratio of the roof to a valid time [1]; published rates and timers have errors of some per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimalWork:
    """Least work of kernels, shape (n,): useful flop, their peak rate [flop / (clock · SM)], compulsory traffic [byte].

    `cold_byte` is the part of the traffic that comes from DRAM if the operands were not in L2, without activations of
    matrix products, since benchmarks with cold weights still reuse them.
    """

    flop: Array
    flop_per_clock: Array
    byte: Array
    cold_byte: Array

    def take(self, index: IntArray) -> "MinimalWork":
        """The rows `index`, repeats allowed."""
        return MinimalWork(**{name: getattr(self, name)[index] for name in MinimalWork.__slots__})


def minimal_work(operators: Sequence[Operator], gpu: GpuSpec) -> MinimalWork:
    """Least work of each operator; the rate is nan if the GPU does not support the operator's number format."""
    count = len(operators)
    flop, rate, byte, cold = np.zeros(count), np.ones(count), np.zeros(count), np.zeros(count)
    kinds: dict[str, list[int]] = {}
    for i, operator in enumerate(operators):
        kinds.setdefault(phase_kind(operator), []).append(i)
    for kind, members in kinds.items():
        chosen = [operators[i] for i in members]
        if kind == "matrix":
            columns = matrix_columns(chosen, gpu)
            flop[members] = 2.0 * columns.batch * columns.m * columns.n * columns.k
            rate[members] = columns.flop_per_clock
            byte[members] = columns.weight_byte + columns.activation_byte + columns.output_byte
            cold[members] = columns.weight_byte
        elif kind == "stream":
            byte[members] = STREAM_KINDS[kind](chosen, gpu).events[:, EVENTS.index("dram")]
            cold[members] = [_input_byte(operator) for operator in chosen]
        else:
            work = np.array([_attention_work(operator) for operator in chosen])
            flop[members], byte[members], cold[members] = work.T
            rate[members] = [gpu.matrix_flop_per_clock(operator.precision, operator.cuda_cores) for operator in chosen]
    return MinimalWork(flop=flop, flop_per_clock=rate, byte=byte, cold_byte=cold)


def roof_seconds(work: MinimalWork, gpu: GpuSpec, sm_clock_mhz: Array, cold: BoolArray) -> Array:
    """The shortest time that the peak rates allow [s], shape (n,).

    sm_clock_mhz: nan where unknown, then the highest clock of the GPU.  cold: operands were not in L2 before.
    """
    clock_hz = np.where(np.isfinite(sm_clock_mhz), sm_clock_mhz, gpu.sm_clock_limit_mhz) * HZ_PER_MHZ
    compute = np.where(work.flop > 0, work.flop / (work.flop_per_clock * gpu.num_sms * clock_hz), 0.0)
    beyond_l2 = np.maximum(work.byte - gpu.l2_bytes, 0.0)
    dram = np.maximum(beyond_l2, np.where(cold, work.cold_byte, 0.0)) / gpu.dram_bytes_per_s
    # The L2 bandwidths of specifications are estimates; real ones were found up to twice as high.
    l2 = work.byte / (2.0 * gpu.l2_bytes_per_clock * clock_hz)
    result: Array = np.maximum(np.maximum(np.nan_to_num(compute), dram), l2)
    return result


def _input_byte(operator: Operator) -> float:
    """Bytes that a memory kernel reads."""
    width = BYTES_PER_ELEMENT[operator.precision]
    if operator.family == "conv":
        return operator["batch"] * operator["channels"] * operator["height"] * operator["width"] * width
    if operator.family in ("elementwise", "copy"):
        return operator["reads"] * width
    return operator["rows"] * operator["dim"] * width


def _attention_work(operator: Operator) -> tuple[float, float, float]:
    """Useful flop, compulsory bytes and bytes of keys and values of fused attention."""
    batch, queries, context, heads, kv_heads, head_dim, window, causal = operator.shape
    reach = window if window > 0 else float("inf")
    past = max(context - queries, 0.0)
    pairs = _visible(past + queries, reach) - _visible(past, reach) if causal else queries * min(context, reach)
    keys = min(context, reach + queries)
    width = BYTES_PER_ELEMENT[operator.precision]
    kv_width = BYTES_PER_ELEMENT[operator.precision_kv or operator.precision]
    # Outputs of 8-bit attention are 16 bit or wider; counting them at operand width keeps the roof a lower bound.
    query_byte = 2.0 * batch * heads * queries * head_dim * width
    cache_byte = 2.0 * batch * kv_heads * keys * head_dim * kv_width
    return 4.0 * batch * heads * pairs * head_dim, query_byte + cache_byte, cache_byte


def _visible(position: float, reach: float) -> float:
    """Total number of keys that queries 1 … position see, each its own position and at most `reach` keys back."""
    inside = min(position, reach)
    return inside * (inside + 1.0) / 2.0 + max(position - inside, 0.0) * inside
