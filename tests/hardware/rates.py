"""Which generated kernels fill their unit, and what share of the published rate they can have.

Published rates count a multiply-add as two: an addition or a product alone has half of it.  On Hopper and the Blackwell of data centres the
matrix units are filled by products of warpgroups and beyond alone; those of a warp have about six tenths (Luo et al., arXiv 2402.13499).
"""

from typing import Final

from microbench.families.catalogue import KERNELS

MULTIPLY_ADDS: Final = ("ffma", "dfma", "hfma2", "bfma2")
SINGLES: Final = ("fadd", "fsub", "fmul", "dadd", "dsub", "dmul", "hadd2", "hsub2", "hmul2", "badd2", "bsub2", "bmul2")
WARP_PRODUCTS: Final = ("mma_f16", "mma_bf16", "mma_tf32", "mma_s8")
GROUP_PRODUCTS: Final = ("wgmma_f16_n256", "wgmma_bf16_n256", "wgmma_tf32_n256", "wgmma_e4m3_n256")
PRODUCTS: Final[dict[str, tuple[str, ...]]] = {
    "7.5": ("mma_f16_k8",),
    "8.0": (*WARP_PRODUCTS, "mma_f64"),
    "8.6": WARP_PRODUCTS,
    "8.9": (*WARP_PRODUCTS, "mma_e4m3"),
    "9.0": (*GROUP_PRODUCTS, "mma_f64_k16"),
}
"""Matrix products that fill the units, by compute capability."""

_EVERY_PRODUCT: Final = frozenset(name for names in PRODUCTS.values() for name in names)
SATURATING: Final = tuple(kernel for kernel in KERNELS if kernel.family in (*MULTIPLY_ADDS, *SINGLES) or kernel.name in _EVERY_PRODUCT)
"""Kernels that fill a unit of some GPU."""


def reachable_share(kernel, gpu):
    """The share of the published rate that a kernel can have on a GPU; 0 where it is not there to fill a unit."""
    if kernel.family in MULTIPLY_ADDS:
        return 1.0
    if kernel.family in SINGLES:
        return 0.5
    return 1.0 if kernel.name in PRODUCTS.get(gpu.compute_capability, ()) else 0.0
