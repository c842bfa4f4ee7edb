"""Pieces that the memory kernels share: who walks where, and what becomes of what was read."""

from collections.abc import Iterable, Mapping
from typing import Final

from microbench.kernel import Argument, Slot
from microbench.toolchain.ptx import entry_text

MEMORY_THREADS: Final = 256
"""Threads of a block that walks memory: fixed, so that the distances in its loop are constants."""

LINE_BYTES: Final = 128
"""A cache line, and what a conflict-free access of a warp to shared memory moves (CUDA C++ programming guide)."""

SECTOR_BYTES: Final = 32
"""The unit of transfer from L2 and DRAM (Nsight Compute documentation)."""

VECTOR_BYTES: Final = 16
"""The widest access of one thread."""

WORD_BYTES: Final = 4

ITERATIONS: Final = Argument(scalar="iterations")
LANES: Final = Argument(scalar="active_lanes")
REGION: Final = Argument(scalar="region_bytes")
RESULTS: Final = Argument(pointer="results")

ANY_WORD: Final = Slot(name="word", kind="u32", low=0.0, high=2.0**32 - 1)
RESULT_WORD: Final = Slot(name="word", kind="u32", low=0.0, high=0.0)

ADDRESSES: Final = (
    "IADD3",
    "IADD3.X",
    "IMAD.X",
    "LOP3",
    "LEA",
    "IMAD.IADD",
    "VIADD",
    "IADD",
    "IADD.64",
    "MOV",
    "IMAD.MOV",
    "IMAD.WIDE",
    "SHF",
    "IMAD.SHL",
    "IADD.X",
)
"""What computing an address and folding the words read come to."""

UNIFORM_ADDRESSES: Final = ("ULDC", "UIADD3", "ULOP3", "UMOV", "UIADD3.X", "USHF", "ULEA", "R2UR", "UIADD", "UIMAD", "USEL", "UIADD3.64")
"""The same where it is one for all threads: loop offsets."""


def memory_entry(
    *,
    name: str,
    arguments: tuple[Argument, ...],
    registers: Mapping[str, Iterable[str]],
    before: Iterable[str],
    body: Iterable[str],
    after: Iterable[str] = (),
    shared: str = "",
    lanes_may_idle: bool = True,
) -> str:
    """An entry for blocks of MEMORY_THREADS threads."""
    return entry_text(
        name=name,
        arguments=arguments,
        registers=registers,
        shared=shared,
        before=before,
        body=body,
        after=after,
        max_threads=MEMORY_THREADS,
        lanes_may_idle=lanes_may_idle,
    )


def region_start(buffer: str, step_bytes: int, *, common: bool = False) -> list[str]:
    """The region of a buffer that the block walks (`region`), its last byte (`mask`), and the thread's first offset in it (`offset`).

    The region is the block's own, or one `common` to all, in which `spread` lets blocks begin at different places.
    """
    begin = f"mov.b64 region, {buffer};" if common else f"mad.wide.u32 region, block_number, region_bytes, {buffer};"
    return [begin, "sub.u32 mask, region_bytes, 1;", f"mul.lo.u32 offset, local, {step_bytes};"]


def spread(stride_bytes: int) -> list[str]:
    """Lets each block begin so many bytes after the one before, round the common region."""
    return [f"mad.lo.u32 offset, block_number, {stride_bytes}, offset;", "and.b32 offset, offset, mask;"]


def next_place(step_bytes: int) -> list[str]:
    """Go on by so many bytes, and round to the region's start at its end; `place` is the address."""
    return [f"add.u32 offset, offset, {step_bytes};", "and.b32 offset, offset, mask;", *place()]


def place() -> list[str]:
    """The address at `offset` of the region."""
    return ["cvt.u64.u32 wide, offset;", "add.u64 place, region, wide;"]


def store_word(register: str) -> list[str]:
    """The thread's result: one word."""
    return [f"mad.wide.u32 target, thread, {WORD_BYTES}, results;", f"st.global.b32 [target], {register};"]
