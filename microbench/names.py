"""Kernel name → tile, reduction step, stages, split-K.

The reading itself is `estimator.kernel_names`: the fit needs it for tables that hold names only.
"""

from estimator.kernel_names import NO_TILE, KernelTile, NamedTile, named_tile, tile_from_name

__all__ = ["NO_TILE", "KernelTile", "NamedTile", "named_tile", "tile_from_name"]
