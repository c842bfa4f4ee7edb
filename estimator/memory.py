"""Operators whose tensors do not fit into a board's memory: their time is a number, but no board can run them."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.gpu import GpuSpec
from estimator.kernel_estimates import operator_label
from estimator.quantities import Array, IntArray
from estimator.reckoning import operator_work
from estimator.workload import Operator

GIB: Final = 2.0**30

LEAST_TRAFFIC_SHARE: Final = 0.1
"""A kernel moves at least this share of the bytes of its tensors: strided and windowed ones leave some out."""


def memory_warnings(operators: Sequence[Operator], moved_byte: Array, gpu: GpuSpec) -> tuple[str, ...]:
    """A line where the inputs, weights and outputs of single operators need more memory than the board has; none where all fit.

    moved_byte (n,): what a launch of each moves to and from DRAM.  Operators are looked at one by one: what a whole model keeps
    beside them is not known from a list of operators.
    """
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
