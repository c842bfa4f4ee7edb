"""Output tiles from the names of matrix-product kernels, checked against the launch grid.

cuBLAS computes the column-major product, so the first number of its tile runs along the outputs (n) and the second
along the tokens (m); xmma kernels name them the other way round.  Where the grid is known it decides.
"""

import re
from dataclasses import dataclass
from math import ceil
from typing import Final

TILE: Final = re.compile(r"(?<![0-9x])(\d{1,3})x(\d{1,3})(?:x\d{1,3})?(?![0-9])")
"""A tile such as 128x64 or 128x128x8 in a kernel name; "sliced1x4" is skipped by its size."""

SMALLEST_TILE: Final = 8
LARGEST_TILE: Final = 512
"""Edges that an output tile can have [element]."""

MOST_SPLITS: Final = 1024
"""A larger ratio of grid to tiles is not a split of the reduction."""

UNKNOWN: Final = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Output tile along m (tokens) and n (outputs) and the number of blocks that share one; nan where unknown."""

    tile_m: float
    tile_n: float
    split_k: float


NO_TILE: Final = Tile(tile_m=UNKNOWN, tile_n=UNKNOWN, split_k=UNKNOWN)


def tile_from_name(kernel_name: str, batch: float, m: float, n: float, grid: tuple[float, float, float]) -> Tile:
    """The tile that a matrix-product kernel's name states.

    grid: blocks along x, y and z, nan where not recorded.  Without a tile in the name: all nan.  The split is the
    number of blocks over the number of tiles; without a grid it is unknown.
    """
    pair = _named_tile(kernel_name)
    if pair is None:
        return NO_TILE
    first, second = pair
    row_major = "xmma" in kernel_name or "cutlass" in kernel_name
    choices = ((first, second), (second, first)) if row_major else ((second, first), (first, second))
    blocks = grid[0] * grid[1] * grid[2]
    if not blocks > 0:
        return Tile(tile_m=choices[0][0], tile_n=choices[0][1], split_k=UNKNOWN)
    plane = grid[0] * grid[1]
    for tile_m, tile_n in choices:
        tiles = ceil(m / tile_m) * ceil(n / tile_n)
        if tiles == plane:
            split = max(grid[2] / batch, 1.0)
            return Tile(tile_m=tile_m, tile_n=tile_n, split_k=split if split <= MOST_SPLITS and split == round(split) else UNKNOWN)
    tile_m, tile_n = choices[0]  # a swizzled grid: the ratio is all that can be told
    split = blocks / (batch * ceil(m / tile_m) * ceil(n / tile_n))
    return Tile(tile_m=tile_m, tile_n=tile_n, split_k=float(round(split)) if 1.0 <= split <= MOST_SPLITS else 1.0)


def _named_tile(kernel_name: str) -> tuple[float, float] | None:
    for match in TILE.finditer(kernel_name):
        first, second = int(match.group(1)), int(match.group(2))
        if SMALLEST_TILE <= first <= LARGEST_TILE and SMALLEST_TILE <= second <= LARGEST_TILE:
            return float(first), float(second)
    return None
