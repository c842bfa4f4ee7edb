"""Which generated kernels fill their unit, and what share of the published rate they can have.

Published rates count a multiply-add as two: an addition or a product alone has half of it.  On Hopper and the Blackwell of data centres the
matrix units are filled by products of warpgroups and beyond alone; those of a warp have about six tenths (Luo et al., arXiv 2402.13499).
"""

from microbench.families.catalogue import KERNELS

MULTIPLY_ADDS = ("ffma", "dfma", "hfma2", "bfma2")
SINGLES = ("fadd", "fsub", "fmul", "dadd", "dsub", "dmul", "hadd2", "hsub2", "hmul2", "badd2", "bsub2", "bmul2")
WARP_PRODUCTS = ("mma_f16", "mma_bf16", "mma_tf32", "mma_s8")
GROUP_PRODUCTS = ("wgmma_f16_n256", "wgmma_bf16_n256", "wgmma_tf32_n256", "wgmma_e4m3_n256")
PACKED = ("hadd2", "hsub2", "hmul2", "hfma2", "badd2", "bsub2", "bmul2", "bfma2")
PRODUCTS = {
    "7.5": ("mma_f16_k8",),
    "8.0": (*WARP_PRODUCTS, "mma_f64"),
    "8.6": WARP_PRODUCTS,
    "8.9": (*WARP_PRODUCTS, "mma_e4m3"),
    "9.0": (*GROUP_PRODUCTS, "mma_f64_k16"),
}
"""Matrix products that fill the units, by compute capability."""

_EVERY_PRODUCT = frozenset(name for names in PRODUCTS.values() for name in names)
SATURATING = tuple(kernel for kernel in KERNELS if kernel.family in (*MULTIPLY_ADDS, *SINGLES) or kernel.name in _EVERY_PRODUCT)
"""Kernels that fill a unit of some GPU."""


def reachable_share(kernel, gpu):
    """The share of the published rate that a kernel can have on a GPU; 0 where it is not there to fill a unit.

    Instructions that only keep values finite (the additions of hmul2 and bmul2, a fifth) take their turns in the same units.
    """
    counted = kernel.unroll / sum(kernel.work.operations.values())
    if kernel.family in MULTIPLY_ADDS:
        return counted
    if kernel.family in SINGLES:
        return 0.5 * counted
    return 1.0 if kernel.name in PRODUCTS.get(gpu.compute_capability, ()) else 0.0


def least_share(kernel):
    """The part of what a kernel can have that it must reach at the clock that was measured.

    Loop control takes 3 of 67 turns.  Measured on an H200 (ptxas 13.0): hadd2 and badd2 0.81, hmul2 and bmul2 0.79, hfma2 and bfma2 0.86,
    hsub2 and bsub2 over 0.90.  The assembler sends packed operations to two pipes by turns (HFMA2.MMA; HADD2, HMUL2 or HFMA2).  hsub2 has
    the opcodes of hadd2 in the same order, so the published rate is right; why the others stay below it is not known.  It is no lack of
    chains: 16 warps a scheduler have 8 each.  wgmma_tf32_n256 had 0.88, the other formats with as many bytes and groups over 0.90.
    """
    if kernel.family in PACKED:
        return 0.75
    return 0.85 if kernel.family == "wgmma_tf32" else 0.90
