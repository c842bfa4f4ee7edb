"""Microbenchmarks in PTX: a table a family; kernels of libraries (products, norms, attention) are measured in `microbench.runners`."""

from microbench.families.catalogue import KERNELS, SWEEP, kernel_named

__all__ = ["KERNELS", "SWEEP", "kernel_named"]
