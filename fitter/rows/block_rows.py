"""Measurements of kernels over their number of blocks, as columns."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from estimator.quantities import Array, BoolArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    """Rows of one or several kernels; every column has shape (n,), numbers that are unknown are nan.

    kernel, gpu        names
    block_threads      threads of a block
    blocks_per_sm      blocks that fit on an SM at once
    blocks             of the grid
    latency_s          of one launch [s]
    power_w, idle_w    of the board during it, and at rest before it [W]
    power_std_w        standard error of the first [W]
    sm_clock_mhz       of the run [MHz]
    flop_per_block     work [flop]
    source, row        where they come from
    """

    kernel: Array
    gpu: Array
    block_threads: Array
    blocks_per_sm: Array
    blocks: Array
    latency_s: Array
    power_w: Array
    power_std_w: Array
    idle_w: Array
    sm_clock_mhz: Array
    flop_per_block: Array
    source: Array
    row: Array

    def __len__(self) -> int:
        return len(self.kernel)

    def select(self, chosen: BoolArray | IntArray) -> "BlockRows":
        """Some of the rows."""
        return replace(self, **{one.name: getattr(self, one.name)[chosen] for one in fields(self)})

    @staticmethod
    def of(columns: dict[str, list[Any]]) -> "BlockRows":
        """Rows from lists of equal length."""
        texts = {"kernel", "gpu", "source"}
        return BlockRows(
            **{name: np.array(values, dtype=object if name in texts else np.float64) for name, values in columns.items()},
        )


def join_block_rows(parts: list[BlockRows]) -> BlockRows | None:
    """All rows of several, None where there are none."""
    if not parts:
        return None
    return BlockRows(**{one.name: np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(BlockRows)})
