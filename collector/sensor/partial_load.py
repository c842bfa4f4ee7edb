"""Loads that keep a chosen share of the board's SMs busy, by the size of their grid."""

from dataclasses import dataclass
from math import prod
from typing import Final

from collector.bench import Bench
from collector.devices.protocols import PreparedKernel
from collector.errors import RunnerError
from estimator.workload import make_operator

ROW_LENGTHS: Final = (65536, 16384, 4096)
"""Numbers in a row of a softmax, longest first: libraries give a row to one block, and a long one lasts against its launch."""
PRECISIONS: Final = ("fp32", "fp16", "bf16")
CLOSE: Final = 0.02
"""A grid within this share of the SMs of what was asked is that share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialLoad:
    """A kernel with so many blocks that `share` of the SMs have one."""

    prepared: PreparedKernel
    share: float


def partial_load(bench: Bench, share: float) -> PartialLoad | None:
    """A softmax with as many rows as SMs are to be busy; None where the board runs none whose grid covers about that share.

    The grid is what the runner says it launches, so the share is known, not assumed.
    """
    sms = bench.gpu_spec.num_sms
    for length in ROW_LENGTHS:
        for precision in PRECISIONS:
            operator = make_operator("softmax", "softmax", precision, rows=max(1, round(share * sms)), dim=length)
            if not bench.runner.supports(operator):
                continue
            try:
                prepared = bench.runner.prepare(operator)
            except RunnerError:
                continue
            covered = min(1.0, prod(prepared.grid) / sms)
            if abs(covered - share) < CLOSE + 1.0 / sms:
                return PartialLoad(prepared=prepared, share=covered)
    return None
