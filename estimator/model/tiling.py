"""Tile configurations that libraries offer, and what each makes of a matrix product.

A candidate is (tile_m, tile_n, split): the output tile along the rows (tokens) and columns (outputs) of
C[m, n], and the number of blocks that share one tile's reduction.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array

TENSOR_TILES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "ampere": (
        (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (16, 64),
    ),
    "hopper": (
        (8, 64), (16, 64), (32, 64), (64, 64), (128, 64), (256, 64),
        (16, 128), (32, 128), (64, 128), (128, 128), (256, 128), (128, 256), (192, 128), (128, 192),
    ),
    "blackwell": (
        (8, 128), (16, 128), (32, 128), (64, 128), (128, 128), (256, 128), (64, 256), (128, 256), (256, 256), (64, 64),
    ),
}  # fmt: skip
"""Tensor-core output tiles (tile_m, tile_n) by tile class; small tile_m is the swapped form used for decoding.

Source of Ampere's tiles with both edges of 64 and more: CUTLASS, generator.py (GenerateSM80_TensorOp_16816).  The smaller ones and
those of Hopper and Blackwell are assumed; an edge of 192 is in the names of cuBLAS kernels on Hopper (nvjet_…_128x192)."""

CUDA_TILES: Final = ((32, 32), (32, 64), (64, 64), (128, 32), (32, 128), (64, 128), (128, 128))
"""CUDA-core (fp32) output tiles of cuBLAS.  Source: kernel names in NeuSight's tables of A100 and V100; a name states (tile_n, tile_m),
as cuBLAS counts by columns."""

SPLITS: Final[dict[str, tuple[int, ...]]] = {
    "ampere": (1, 2, 4, 8),
    "hopper": (1, 2, 3, 4, 6, 8, 16),
    "blackwell": (1, 2, 3, 4, 6, 8, 16),
    "cuda": (1, 2, 3, 4, 6, 8, 16),
}
"""Split-K factors by tile class (assumed)."""

MOST_SPLIT_WAVES: Final[dict[str, float]] = {"ampere": 2.0, "hopper": math.inf, "blackwell": math.inf, "cuda": math.inf}
"""Libraries split a reduction to fill idle SMs: no more blocks than this many times the SMs (assumed)."""

WIDE_SPLITS: Final = (1, 2, 3, 4, 6, 8, 16, 32, 64)
"""Split-K factors of libraries that split freely, as far as a group's `widest_split` goes (assumed)."""

WIDE_TILES: Final[dict[str, tuple[tuple[int, int], ...]]] = {"ampere": ((256, 64), (64, 256), (64, 16), (32, 128))}
"""Further tensor-core tiles of such libraries, beside TENSOR_TILES; those with an edge below 64 are assumed."""

REDUCTION_STEP: Final = 64
"""Reduction steps that LOOP_STEP_CLOCKS stands for [element].  Source: CUTLASS, default_gemm_configuration.h (ThreadblockShape for
Ampere)."""

SHORTEST_SPLIT: Final = 128
"""Libraries do not split K into shares shorter than this [element] (assumed)."""

ARCHITECTURE_TILES: Final[dict[str, str]] = {"hopper": "hopper", "blackwell": "blackwell"}
"""Tile class of an architecture; all others use the Ampere set."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Tile candidates as columns of shape (c,); split candidates may not make more than `split_waves` blocks per SM."""

    tile_m: Array
    tile_n: Array
    split: Array
    split_waves: float = math.inf


def tile_candidates(gpu: GpuSpec, cuda_cores: bool, widest_split: float = 0.0) -> Candidates:
    """All (tile, split) that a library may choose on this GPU; `widest_split` is that coefficient of the group."""
    return _class_candidates("cuda" if cuda_cores else ARCHITECTURE_TILES.get(gpu.architecture, "ampere"), widest_split)


@lru_cache
def _class_candidates(kind: str, widest_split: float) -> Candidates:
    tiles = CUDA_TILES if kind == "cuda" else TENSOR_TILES[kind] + (WIDE_TILES.get(kind, ()) if widest_split else ())
    splits = tuple(s for s in WIDE_SPLITS if s <= widest_split) or SPLITS[kind]
    rows = np.array([(m, n, s) for m, n in tiles for s in splits], dtype=np.float64)
    rows.setflags(write=False)  # the same arrays are given out again and again
    waves = math.inf if widest_split else MOST_SPLIT_WAVES[kind]
    return Candidates(tile_m=rows[:, 0], tile_n=rows[:, 1], split=rows[:, 2], split_waves=waves)
