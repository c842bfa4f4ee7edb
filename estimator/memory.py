"""What does not fit into a board's memory: its time is a number, but the board cannot run it."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.gpu import GpuSpec
from estimator.kernel_estimates import operator_label
from estimator.quantities import BYTES_PER_ELEMENT, Array, IntArray
from estimator.reckoning import operator_work
from estimator.workload import Operator, Workload

GIB: Final = 2.0**30

LEAST_TRAFFIC_SHARE: Final = 0.1
"""A kernel moves at least this share of the bytes of its tensors: strided and windowed ones leave some out."""


def memory_warnings(workload: Workload, moved_byte: Array, gpu: GpuSpec) -> tuple[str, ...]:
    """A line where the tensors of single operators need more memory than the board has, and one where what layers keep does.

    moved_byte (n,): what a launch of each operator moves to and from DRAM.
    """
    return (*_single_operators(workload.operators, moved_byte, gpu), *_kept_together(workload, moved_byte, gpu))


def kept_byte(operator: Operator) -> float:
    """What one layer of this kind keeps from one iteration to the next [byte]: weights, and the cache of a decoding step.

    Batched products and a prefill's attention keep nothing that their shapes tell; nor do optimizers, so that this is a least value.
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
        f"the tensors of {operator_label(operators[largest])} need {sizes[largest] / GIB:.4g} GiB{others}, "
        f"more than the {gpu.dram_bytes / GIB:.4g} GiB of {gpu.name}: it cannot run there as a whole",
    )


def _kept_together(workload: Workload, moved_byte: Array, gpu: GpuSpec) -> tuple[str, ...]:
    """Every layer has its own weights and cache: what they keep stays in memory together, whoever runs."""
    counts = np.array(workload.counts)
    if not counts @ moved_byte > LEAST_TRAFFIC_SHARE * gpu.dram_bytes:  # each of these bytes is read once in an iteration
        return ()
    kept = sum(count * kept_byte(operator) for count, operator in zip(workload.counts, workload.operators, strict=True))
    if kept <= gpu.dram_bytes:
        return ()
    return (
        f"weights and cached keys and values need at least {kept / GIB:.4g} GiB where every layer has its own, "
        f"more than the {gpu.dram_bytes / GIB:.4g} GiB of {gpu.name}: the model does not fit",
    )
