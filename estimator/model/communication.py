"""Collective operations among the GPUs of one node.

    link    bytes that leave a GPU / published bandwidth of its links in one direction
    chunks  √(n · HOP_S · link)       what is best for a message that n GPUs pass on piece by piece: many chunks fill the pipeline early,
            few pay the latency of a hop seldom
    start   of the kernels, with the fixed cost of finding the other GPUs in epsilon

The bytes are those of the best algorithm: 2 (n − 1) / n of a message for a sum that all receive, (n − 1) / n for the others.  Sums inside
a switch, and one step in place of two for short messages, are in the coefficients of each number of GPUs, and in the residual tier.
Source: nccl-tests, PERFORMANCE.md (bus bandwidth).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.model.phases import Phases, make_phases
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, TINY
from estimator.vocabulary.workload import Operator

HOP_S: Final = 1e-6
"""Ideal latency of passing a chunk on to the next GPU [s] (assumed)."""

CHANNELS: Final = 16.0
"""Blocks of a collective kernel, one for each channel (assumed); it affects only power."""


def communication_phases(operators: Sequence[Operator], gpu: GpuSpec) -> Phases:
    """Phases of collectives, shape (n, ·); not finite if the GPU's specification has no bandwidth of links."""
    message, gpus = np.array([operator.shape for operator in operators], dtype=np.float64).T
    sums = np.array(["reduce" in operator.operator for operator in operators], dtype=np.float64)
    steps = np.array([2.0 if operator.operator == "all_reduce" else 1.0 for operator in operators])
    width = np.array([BYTES_PER_ELEMENT[operator.precision] for operator in operators])
    sent = steps * (gpus - 1.0) / gpus * message
    link_s = sent / gpu.link_bytes_per_s if gpu.link_bytes_per_s else np.full(len(sent), np.nan)
    return make_phases(
        {"link": link_s, "chunks": np.sqrt(gpus * HOP_S * link_s)},
        {"dram": 2.0 * sent, "l2": 2.0 * sent, "cuda": sums * sent / np.maximum(width, TINY)},
        sent.shape,
        occupied=np.full(len(sent), min(CHANNELS / gpu.num_sms, 1.0)),
        ideal_math=0.0 * link_s,
    )
