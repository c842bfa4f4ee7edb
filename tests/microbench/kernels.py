"""Kernels by name for tests."""

from microbench.families.catalogue import EVERY_KERNEL


def kernel_named(name):
    """The kernel of this name."""
    return next(kernel for kernel in EVERY_KERNEL if kernel.name == name)
