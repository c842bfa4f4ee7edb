"""What does not fit into a board's memory: its time is a number, but the board cannot run it."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, Array, IntArray
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import Footprint, Operator, Workload

GIB: Final = 2.0**30

LEAST_TRAFFIC_SHARE: Final = 0.1
"""A kernel moves at least this share of the bytes of its tensors: strided and windowed ones leave some out."""


def memory_warnings(workload: Workload, moved_byte: Array, gpu: GpuSpec) -> tuple[str, ...]:
    """A line where the tensors of single operators need more memory than the board has, and one where the model as a whole does.

    moved_byte (n,): what a launch of each operator moves to and from DRAM.
    """
    single = _single_operators(workload.operators, moved_byte, gpu)
    if workload.footprint is not None:
        return (*single, *_too_large_footprint(workload.footprint, gpu))
    return (*single, *_kept_together(workload, moved_byte, gpu, alone=bool(single)))


def _too_large_footprint(footprint: Footprint, gpu: GpuSpec) -> tuple[str, ...]:
    if footprint.total_byte <= gpu.dram_bytes:
        return ()
    parts = ", ".join(f"{name} {size / GIB:.4g}" for name, size in footprint_parts(footprint).items() if size)
    return (
        f"the model needs at least {footprint.total_byte / GIB:.4g} GiB ({parts}), "
        f"more than the {gpu.dram_bytes / GIB:.4g} GiB of {gpu.name}: it does not fit",
    )


def footprint_parts(footprint: Footprint) -> dict[str, float]:
    """Bytes by what holds them, in words."""
    return {
        "weights": footprint.weights_byte,
        "optimizer": footprint.optimizer_byte,
        "cache": footprint.cache_byte,
        "passing tensors": footprint.passing_byte,
    }


def kept_byte(operator: Operator) -> float:
    """What one layer of this kind keeps from one iteration to the next [byte]: weights, and the cache of a decoding step.

    Batched products and a prefill's attention keep nothing that their shapes tell, so that this is a least value.  Products that make
    gradients look like layers: what a training step holds is known from its trace alone.
    """
    width = BYTES_PER_ELEMENT[operator.precision]
    if operator.operator == "linear":
        return operator["batch"] * operator["n"] * operator["k"] * width
    if operator.family == "conv":
        return operator["filters"] * operator["channels"] / operator["groups"] * operator["kernel_h"] * operator["kernel_w"] * width
    if operator.family == "attention" and operator.operator == "decode":
        visible = min(operator["context"], operator["window"] or operator["context"])
        cached = operator["batch"] * visible * operator["kv_heads"] * operator["head_dim"]
        return 2.0 * cached * BYTES_PER_ELEMENT[operator.precision_kv or operator.precision]
    return 0.0


def _single_operators(operators: Sequence[Operator], moved_byte: Array, gpu: GpuSpec) -> tuple[str, ...]:
    suspects: IntArray = np.flatnonzero(moved_byte > LEAST_TRAFFIC_SHARE * gpu.dram_bytes)
    sizes = {i: work.read_byte + work.write_byte for i in suspects.tolist() for work in (operator_work(operators[i]),)}
    large = [i for i, size in sizes.items() if size > gpu.dram_bytes]
    if not large:
        return ()
    largest = max(large, key=sizes.__getitem__)
    others = f" (so do {len(large) - 1} more operators)" if len(large) > 1 else ""
    return (
        f"the tensors of {operators[largest].label} need {sizes[largest] / GIB:.4g} GiB{others}, "
        f"more than the {gpu.dram_bytes / GIB:.4g} GiB of {gpu.name}: it cannot run there as a whole",
    )


def _kept_together(workload: Workload, moved_byte: Array, gpu: GpuSpec, alone: bool) -> tuple[str, ...]:
    """Every layer has its own weights and cache: they stay in memory together, beside what the operator that runs reads and writes.

    alone: leave that operator out; it has its own warning.
    """
    counts = np.array(workload.counts)
    if not counts @ moved_byte > LEAST_TRAFFIC_SHARE * gpu.dram_bytes:  # each of these bytes is read once in an iteration
        return ()
    kept = sum(count * kept_byte(operator) for count, operator in zip(workload.counts, workload.operators, strict=True))
    passing = 0.0 if alone else _largest_passing(workload.operators, moved_byte, gpu.dram_bytes - kept)
    if kept + passing <= gpu.dram_bytes:
        return ()
    running = " and what the largest operator reads and writes" if passing else ""
    return (
        f"weights and cached keys and values{running} need at least {(kept + passing) / GIB:.4g} GiB where every layer has its own, "
        f"more than the {gpu.dram_bytes / GIB:.4g} GiB of {gpu.name}: the model does not fit",
    )


def _largest_passing(operators: Sequence[Operator], moved_byte: Array, room_byte: float) -> float:
    """The most that one operator reads and writes beside what its layer keeps [byte]; 0 where none can fill the room."""
    if room_byte <= 0.0:
        return 0.0
    suspects: IntArray = np.flatnonzero(moved_byte > LEAST_TRAFFIC_SHARE * room_byte)
    works = [(operator_work(operators[i]), operators[i]) for i in suspects.tolist()]
    return max((work.read_byte + work.write_byte - kept_byte(operator) for work, operator in works), default=0.0)
