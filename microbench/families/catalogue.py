"""The list of all kernels and loads, and look-up by name."""

from typing import Final

from microbench.errors import UnsupportedError
from microbench.families.rows import ROWS, instruction_kernel
from microbench.families.templates import written_kernels
from microbench.kernel import HostLoad, Kernel

KERNELS: Final[tuple[Kernel, ...]] = (
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

SWEEP: Final[tuple[Kernel, ...]] = tuple(
    instruction_kernel(row, chains=chains, unroll=unroll)
    for row in ROWS
    if row.name in SWEPT
    for chains, unroll in ((row.chains, size) for size in (16, 64, 256))  # GPUJoule uses 256
    if unroll != row.unroll
) + tuple(instruction_kernel(row, chains=1) for row in ROWS if row.name in SWEPT)
"""Kernels at other unroll factors, and as one dependent chain, which shows latency and stalls."""

COPY_BYTES: Final = 1 << 30
"""Size of one copy: 1 GiB, 20 ms over a 50 GB/s link, so that its launch time is negligible."""

HOST_LOADS: Final = (
    HostLoad(name="idle", family="idle"),
    HostLoad(name="copy_host_to_device", family="copy", origin="host", target="device", bytes_moved=COPY_BYTES),
    HostLoad(name="copy_device_to_host", family="copy", origin="device", target="host", bytes_moved=COPY_BYTES),
    HostLoad(name="copy_device_to_device", family="copy", origin="device", target="device", bytes_moved=COPY_BYTES),
    HostLoad(name="copy_peer", family="copy", origin="device", target="peer", bytes_moved=COPY_BYTES),
)
"""Loads without a kernel: idle (a context held, clocks locked), and copies by the copy engines."""

EVERY_KERNEL: Final = (*KERNELS, *SWEEP)

_BY_NAME: Final = {kernel.name: kernel for kernel in EVERY_KERNEL}


def kernel_named(name: str) -> Kernel:
    """The kernel of this name.  Raises UnsupportedError for an unknown name."""
    kernel = _BY_NAME.get(name)
    if kernel is None:
        raise UnsupportedError(f"there is no kernel {name!r}; microbench.families lists {len(_BY_NAME)}")
    return kernel


def kernels_for(architecture: str) -> tuple[tuple[Kernel, ...], tuple[str, ...]]:
    """The kernels of the catalogue that an architecture can run, and the reasons for the others by name."""
    refusals = {kernel.name: kernel.refusal(architecture) for kernel in KERNELS}
    return tuple(kernel for kernel in KERNELS if not refusals[kernel.name]), tuple(reason for reason in refusals.values() if reason)
