"""All kernels, one file a family."""

from microbench.families.catalogue import HOST_LOADS, KERNELS, SWEEP, kernel_named, kernels_for

__all__ = ["HOST_LOADS", "KERNELS", "SWEEP", "kernel_named", "kernels_for"]
