"""The list of all kernels, and look-up by name."""

from typing import Final

from microbench.errors import UnsupportedError
from microbench.families.build import INSTRUCTIONS
from microbench.families.rows import ROWS, instruction_kernel
from microbench.families.templates import written_kernels
from microbench.kernel import Kernel

KERNELS: Final = (
    *written_kernels("baselines.toml"),
    *(instruction_kernel(row) for row in ROWS),
    *written_kernels("matrices.toml"),
    *written_kernels("shared_memory.toml"),
    *written_kernels("global_memory.toml"),
    *written_kernels("blocks.toml"),
)
"""Every kernel at its default chains and unroll."""

SWEPT: Final = ("iadd3", "imad", "lop3_xor", "fadd", "fmul", "ffma", "dfma", "hfma2", "ex2")
"""Instructions whose loop overhead a regression over bodies of several lengths determines."""

SWEEP: Final = tuple(
    instruction_kernel(row, unroll=unroll)
    for row in ROWS
    if row["name"] in SWEPT
    for unroll in (16, 64, 256)  # GPUJoule uses 256
    if unroll != row.get("unroll", INSTRUCTIONS["defaults"]["unroll"])
) + tuple(instruction_kernel(row, chains=1) for row in ROWS if row["name"] in SWEPT)
"""Kernels at other unroll factors, and as one dependent chain, which shows latency and stalls."""

EVERY_KERNEL: Final = (*KERNELS, *SWEEP)

_BY_NAME: Final = {kernel.name: kernel for kernel in EVERY_KERNEL}


def kernel_named(name: str) -> Kernel:
    """The kernel of this name.  Raises UnsupportedError for an unknown name."""
    kernel = _BY_NAME.get(name)
    if kernel is None:
        raise UnsupportedError(f"there is no kernel {name!r}; microbench.families lists {len(_BY_NAME)}")
    return kernel
