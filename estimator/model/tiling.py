"""Tile configurations that libraries offer for a matrix product.

A candidate is (tile_m, tile_n, split): the output tile along the rows (tokens) and columns (outputs) of
C[m, n], and the number of blocks that share one tile's reduction.
"""

import math
from functools import lru_cache
from typing import Final

import numpy as np

from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import arrays

TILES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "ampere": (
        (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (16, 64),
    ),
    "ampere wide": ((256, 64), (64, 256), (64, 16), (32, 128)),
    "hopper": (
        (8, 64), (16, 64), (32, 64), (64, 64), (128, 64), (256, 64),
        (16, 128), (32, 128), (64, 128), (128, 128), (256, 128), (128, 256), (192, 128), (128, 192),
    ),
    "blackwell": (
        (8, 128), (16, 128), (32, 128), (64, 128), (128, 128), (256, 128), (64, 256), (128, 256), (256, 256), (64, 64),
    ),
    "cuda": ((32, 32), (32, 64), (64, 64), (128, 32), (32, 128), (64, 128), (128, 128)),
}  # fmt: skip
"""Output tiles (tile_m, tile_n): of tensor cores by architecture, all others as Ampere, and of CUDA cores; small tile_m is the swapped
form used for decoding.  "ampere wide" is added if a library splits freely.

Source of Ampere's tiles with both edges of 64 and more: CUTLASS, generator.py (GenerateSM80_TensorOp_16816).  The smaller ones and
those of Hopper and Blackwell are assumed; an edge of 192 is in the names of cuBLAS kernels on Hopper (nvjet_…_128x192).  CUDA cores:
kernel names in NeuSight's tables of A100 and V100; a name states (tile_n, tile_m), as cuBLAS counts by columns."""

SPLITS: Final = (1, 2, 3, 4, 6, 8, 16, 32, 64)
"""Split-K factors of libraries that split freely, up to a group's `widest_split`, else up to 16 (assumed)."""


@arrays
class Candidates:
    """Tile candidates as columns of shape (c,); split candidates may have at most `split_waves` blocks per SM."""

    tile_m: Array
    tile_n: Array
    split: Array
    split_waves: Array | float = math.inf


def tile_candidates(gpu: GpuSpec, cuda_cores: bool, widest_split: float = 0.0) -> Candidates:
    """All (tile, split) candidates of a library on this GPU; `widest_split` is that coefficient of the group."""
    return _class_candidates("cuda" if cuda_cores else gpu.architecture if gpu.architecture in TILES else "ampere", widest_split)


@lru_cache
def _class_candidates(kind: str, widest_split: float) -> Candidates:
    few = kind == "ampere" and not widest_split
    tiles = TILES[kind] + (TILES.get(f"{kind} wide", ()) if widest_split else ())
    # Ampere's usual split-K factors, with at most two blocks an SM: libraries split a reduction to fill idle SMs (assumed).
    splits = (1, 2, 4, 8) if few else tuple(s for s in SPLITS if s <= (widest_split or 16.0))
    rows = np.array([(m, n, s) for m, n in tiles for s in splits], dtype=np.float64)
    rows.setflags(write=False)  # all callers share the arrays
    return Candidates(tile_m=rows[:, 0], tile_n=rows[:, 1], split=rows[:, 2], split_waves=2.0 if few else math.inf)
