"""The list of all kernels and loads, and how one is found."""

from typing import Final

from microbench.errors import UnsupportedError
from microbench.families import (
    asynchronous,
    atomics,
    baseline,
    block_count,
    constant_local,
    global_memory,
    rodinia,
    shared_memory,
    stall,
    tensor,
    warpgroup,
)
from microbench.families.rows import UNROLL_SWEEP, instruction_kernel
from microbench.families.table import ROWS
from microbench.kernel import HostLoad, Kernel

KERNELS: Final[tuple[Kernel, ...]] = (
    *baseline.KERNELS,
    *(instruction_kernel(row) for row in ROWS),
    *tensor.KERNELS,
    *warpgroup.KERNELS,
    *shared_memory.KERNELS,
    *global_memory.KERNELS,
    *constant_local.KERNELS,
    *asynchronous.KERNELS,
    *atomics.KERNELS,
    *stall.KERNELS,
    *block_count.KERNELS,
    *rodinia.KERNELS,
)
"""Every kernel at its default chains and unroll."""

SWEPT: Final = ("iadd3", "imad", "lop3_xor", "fadd", "fmul", "ffma", "dfma", "hfma2", "ex2")
"""Instructions whose loop overhead is told apart by regression over bodies of several lengths."""

SWEEP: Final[tuple[Kernel, ...]] = tuple(
    instruction_kernel(row, chains=chains, unroll=unroll)
    for row in ROWS
    if row.name in SWEPT
    for chains, unroll in ((row.chains, size) for size in UNROLL_SWEEP)
    if unroll != row.unroll
) + tuple(instruction_kernel(row, chains=1) for row in ROWS if row.name in SWEPT)
"""The same at other unroll factors, and as one dependent chain, which shows latency and stalls."""

HOST_LOADS: Final[tuple[HostLoad, ...]] = baseline.HOST_LOADS

_BY_NAME: Final = {kernel.name: kernel for kernel in (*KERNELS, *SWEEP)}


def kernel_named(name: str) -> Kernel:
    """The kernel of this name.  Raises UnsupportedError where there is none."""
    kernel = _BY_NAME.get(name)
    if kernel is None:
        raise UnsupportedError(f"there is no kernel {name!r}; microbench.families lists {len(_BY_NAME)}")
    return kernel


def kernels_for(architecture: str) -> tuple[tuple[Kernel, ...], tuple[str, ...]]:
    """The kernels of the catalogue that an architecture can run, and for each of the others the reason, by name."""
    refusals = {kernel.name: kernel.refusal(architecture) for kernel in KERNELS}
    return tuple(kernel for kernel in KERNELS if not refusals[kernel.name]), tuple(reason for reason in refusals.values() if reason)
