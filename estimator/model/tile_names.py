"""Properties of a matrix kernel from its name and grid: output tile, reduction step, stages, split-K.

Libraries write the tile as FIRSTxSECOND.  cuBLAS computes the column-major product, so its first number runs along
the outputs (n) and the second along the tokens (m): `ampere_sgemm_128x64_tn`,
`ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn`, `nvjet_tst_128x64_64x6_2x1_v_bz_TNT`.  XMMA and CUTLASS
kernels name them the other way round: `…_tilesize128x64x8_stage3_…`, `cutlass_80_tensorop_…_256x128_32x3_tn_align8`.
Names also contain other numbers: instruction shapes (16x8x16, s64x128x16gemm), warps (1x2x1), slices (sliced1x4),
clusters.  If the grid is known, it must cover the product, and it decides between the two orders; persistent kernels
(nvjet, warp-specialised CUTLASS and XMMA of sm_90 on) have fewer blocks than tiles and are read only by name.
"""

import re
from dataclasses import replace
from math import ceil, isfinite
from typing import Final

from estimator.vocabulary.values import frozen

NO_TILE_WORDS: Final = re.compile(
    r"(?:tensor|warpsize|warpgroupsize|sliced|cluster|instruction|cga)_?\d+x\d+(?:x\d+)?|[a-z]\d+x\d+x\d+(?=gemm|fprop|dgrad|wgrad)"
)
"""Pattern of the parts of a name that look like a tile."""

PERSISTENT: Final = re.compile(r"nvjet|warpspecialized|warpgroupsize|cutlass3x|persistent", re.IGNORECASE)
"""Pattern of kernels whose blocks may each process several tiles."""

SPLIT_WORD: Final = re.compile(r"split_?k(?!reduce)|stream_?k", re.IGNORECASE)
"""Pattern of names that indicate that blocks share a tile's reduction, without their number."""

TILE: Final = re.compile(r"(?<![0-9x])(?:tilesize)?(\d{1,3})x(\d{1,3})(?:x(\d{1,3}))?(?![0-9x])")
"""A tile such as 128x64 or 128x128x8."""

STAGES_AFTER_TILE: Final = re.compile(r"_(?:stages_)?(\d{1,3})x(\d{1,2})(?:_|$)")
"""Reduction step and stages after the tile: `_stages_64x3_`, `_32x3_`."""

STAGES: Final = re.compile(r"stages?_?(\d{1,2})(?![0-9x])")
"""The number of stages by itself: `_stage3_`."""

STAGES_ALONE: Final = re.compile(r"_(\d{1,2})_\d+x")
"""Stages between the tiles of block and warp: `_mma_64x64x128_3_32x32x128_` (nvjet on sm_120)."""

FIRST_ALONG_M: Final = ("xmma", "cutlass")
"""Libraries whose first number runs along the rows of C[m, n]."""

MOST_SPLITS: Final = 1024
"""Largest ratio of grid to tiles that is a split of the reduction."""

UNKNOWN: Final = float("nan")


@frozen
class NamedTile:
    """Tile from a name alone: the two numbers in the name's order, whether the first runs along m; 0 if not named."""

    first: int
    second: int
    first_along_m: bool
    tile_k: int
    stages: int


@frozen
class KernelTile:
    """Output tile along m (tokens) and n (outputs) and the number of blocks that share one, nan if unknown.

    tile_k (reduction step) and stages are 0 if the name does not contain them.
    """

    tile_m: float
    tile_n: float
    split_k: float
    tile_k: int = 0
    stages: int = 0


NO_TILE: Final = KernelTile(tile_m=UNKNOWN, tile_n=UNKNOWN, split_k=UNKNOWN)


def named_tile(kernel_name: str) -> NamedTile | None:
    """The tile in a kernel's name, None without one; only the first letters of a long template are read."""
    kernel_name = kernel_name[: 1 << 14]
    cleaned = NO_TILE_WORDS.sub("", kernel_name)
    for match in TILE.finditer(cleaned):
        first, second = int(match.group(1)), int(match.group(2))
        if not (min(first, second) >= 8 and max(first, second) <= 512):  # edges that an output tile can have [element]
            continue
        rest = cleaned[match.end() :]
        step, stages = int(match.group(3) or 0), 0
        after = STAGES_AFTER_TILE.search(rest)
        alone = STAGES_ALONE.match(rest) or STAGES.search(rest)
        if after is not None and int(after.group(2)) <= 16 and int(after.group(1)) >= 8:
            step, stages = step or int(after.group(1)), int(after.group(2))
        elif alone is not None:
            stages = int(alone.group(1))
        along_m = any(maker in kernel_name for maker in FIRST_ALONG_M)
        return NamedTile(first=first, second=second, first_along_m=along_m, tile_k=step, stages=stages)
    return None


def tile_from_name(kernel_name: str, batch: float, m: float, n: float, grid: tuple[float, float, float]) -> KernelTile:
    """The tile and split of one launch of a matrix kernel that computes `batch` products C[m, n].

    grid: blocks along x, y and z, nan if not recorded; then the split is unknown.  All values are nan if the tile's grid
    cannot cover the product, or if a size of the product is not finite and positive.
    """
    named = named_tile(kernel_name)
    if named is None or not (isfinite(batch * m * n) and min(batch, m, n) > 0):
        return NO_TILE
    as_named = (float(named.first), float(named.second))
    choices = (as_named, as_named[::-1]) if named.first_along_m else (as_named[::-1], as_named)
    unsplit = KernelTile(tile_m=choices[0][0], tile_n=choices[0][1], split_k=UNKNOWN, tile_k=named.tile_k, stages=named.stages)
    plane = grid[0] * grid[1]
    if not (isfinite(plane * grid[2]) and plane * grid[2] > 0):
        return unsplit
    for tile_m, tile_n in choices:
        if ceil(m / tile_m) * ceil(n / tile_n) == plane:
            split = max(grid[2] / batch, 1.0)
            whole = split == round(split) and split <= MOST_SPLITS
            return replace(unsplit, tile_m=tile_m, tile_n=tile_n, split_k=split if whole else UNKNOWN)
    # A swizzled grid is rounded up, to less than twice the tiles, and may hold splits and batches in any direction.
    for tile_m, tile_n in choices:
        ratio = plane * grid[2] / (batch * ceil(m / tile_m) * ceil(n / tile_n))
        if 1.0 <= ratio <= MOST_SPLITS:
            return replace(unsplit, tile_m=tile_m, tile_n=tile_n, split_k=float(int(ratio)))
    if PERSISTENT.search(kernel_name):
        return unsplit if SPLIT_WORD.search(kernel_name) else replace(unsplit, split_k=1.0)
    return NO_TILE
