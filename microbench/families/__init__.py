"""All kernels, one file a family."""

from microbench.families.catalogue import KERNELS, SWEEP, kernel_named

__all__ = ["KERNELS", "SWEEP", "kernel_named"]
