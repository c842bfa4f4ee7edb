"""The matrix kernels that the simulated library holds."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One kernel of the library: output tile, reduction step (for 2-byte operands), pipeline depth, warps, registers."""

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    warps: int
    registers: int
    warp_m: int
    warp_n: int


def _tile(m: int, n: int, k: int, stages: int, warps: int, registers: int, warp_m: int, warp_n: int) -> Tile:
    return Tile(tile_m=m, tile_n=n, tile_k=k, stages=stages, warps=warps, registers=registers, warp_m=warp_m, warp_n=warp_n)


TENSOR_KERNELS: Final[dict[str, tuple[Tile, ...]]] = {
    "volta": (
        _tile(256, 128, 32, 2, 8, 234, 64, 64),
        _tile(128, 256, 32, 2, 8, 234, 64, 64),
        _tile(128, 128, 32, 2, 4, 234, 64, 64),
        _tile(128, 64, 32, 2, 4, 166, 64, 32),
        _tile(64, 128, 32, 2, 4, 166, 32, 64),
        _tile(64, 64, 32, 2, 4, 122, 32, 32),
    ),
    "ampere": (
        _tile(256, 128, 32, 3, 8, 234, 64, 64),
        _tile(128, 256, 32, 3, 8, 234, 64, 64),
        _tile(128, 128, 32, 5, 4, 234, 64, 64),
        _tile(256, 64, 32, 4, 4, 226, 64, 64),
        _tile(64, 256, 32, 4, 4, 226, 64, 64),
        _tile(128, 64, 32, 6, 4, 166, 64, 32),
        _tile(64, 128, 32, 6, 4, 166, 32, 64),
        _tile(64, 64, 64, 5, 4, 122, 32, 32),
        _tile(32, 64, 64, 6, 4, 96, 16, 32),
        _tile(64, 32, 64, 6, 4, 96, 32, 16),
        _tile(64, 16, 64, 6, 4, 80, 16, 16),
    ),
    "hopper": (
        _tile(256, 128, 64, 4, 12, 168, 64, 128),
        _tile(128, 256, 64, 4, 12, 168, 64, 256),
        _tile(128, 128, 64, 6, 12, 168, 64, 128),
        _tile(256, 64, 64, 5, 12, 168, 64, 64),
        _tile(128, 64, 64, 6, 8, 168, 64, 64),
        _tile(64, 128, 64, 7, 8, 168, 64, 128),
        _tile(64, 64, 64, 8, 8, 168, 64, 64),
        _tile(32, 128, 64, 8, 8, 168, 32, 64),
        _tile(16, 128, 64, 9, 8, 168, 16, 64),
        _tile(32, 64, 64, 9, 8, 168, 32, 64),
        _tile(16, 64, 64, 9, 8, 168, 16, 64),
        _tile(8, 64, 64, 9, 8, 168, 8, 64),
    ),
}
"""Tensor-core kernels by generation."""

CUDA_KERNELS: Final = (
    _tile(128, 128, 8, 2, 8, 122, 64, 32),
    _tile(64, 128, 8, 2, 4, 122, 32, 64),
    _tile(64, 64, 8, 2, 2, 118, 64, 32),
    _tile(128, 32, 8, 2, 8, 72, 32, 16),
    _tile(32, 128, 8, 2, 8, 72, 16, 32),
    _tile(32, 64, 8, 2, 8, 72, 16, 16),
    _tile(32, 32, 8, 2, 4, 72, 16, 16),
)
"""CUDA-core kernels, common to all generations.  Tiles and warps are those of the sgemm kernels named in NeuSight's tables of
A100 and V100 (MIT licence); registers are assumed."""

STEP_CLOCKS: Final[dict[str, tuple[float, float]]] = {
    "volta": (70.0, 2.9),
    "ampere": (50.0, 2.5),
    "hopper": (40.0, 1.7),
    "cuda": (40.0, 5.0),
}
"""Latency of one reduction step: clocks for its barrier, and per element of the step."""
