"""Pieces that the memory kernels share: who walks where, and what becomes of what was read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from estimator.frozen import FrozenMapping
from microbench.kernel import EVERYWHERE, Argument, Buffer, Check, Expectation, Kernel, Level, Module, Pattern, Slot, Support, Work
from microbench.toolchain.ptx import entry_text, loop_operations

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
WORDS: Final = Buffer(name="results", slots=(RESULT_WORD,), written=True)

ANY_PATTERN: Final[tuple[Pattern, ...]] = ("zero", "constant", "random")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKernel:
    """A kernel of blocks of MEMORY_THREADS threads around one loop over memory.

    In one turn a thread makes `count` accesses, which become as many `opcodes`; `moved` [byte] and `transactions` are those of a thread and
    turn by level, `flop` by precision.  `share` of the threads reach the loop.  Without a `family` the name is the family.
    """

    name: str
    family: str = ""
    instruction: str
    module: Module
    level: Level
    buffers: tuple[Buffer, ...]
    arguments: tuple[Argument, ...] = (RESULTS, ITERATIONS, LANES)
    registers: Mapping[str, Iterable[str]]
    declarations: str = ""
    shared: str = ""
    before: Iterable[str]
    body: Iterable[str]
    after: Iterable[str] = ()
    lanes_may_idle: bool = True
    count: int
    opcodes: tuple[str, ...]
    companions: tuple[str, ...] = ADDRESSES
    uniform: tuple[str, ...] = UNIFORM_ADDRESSES
    local: bool = False
    converges: bool = False
    moved: Mapping[str, float]
    transactions: Mapping[str, float] = FrozenMapping({})
    flop: Mapping[str, float] = FrozenMapping({})
    share: float = 1.0
    support: Support = EVERYWHERE
    patterns: tuple[Pattern, ...] = ("random",)
    min_region_bytes: int = 0
    residence: tuple[Literal["l1", "l2"], float] | None = None

    def kernel(self) -> Kernel:
        """The kernel, its text written and its operations counted."""
        text = entry_text(
            name=self.name,
            arguments=self.arguments,
            registers=self.registers,
            shared=self.shared,
            before=self.before,
            body=self.body,
            after=self.after,
            max_threads=MEMORY_THREADS,
            lanes_may_idle=self.lanes_may_idle,
        )
        return Kernel(
            name=self.name,
            family=self.family or self.name,
            instruction=self.instruction,
            module=self.module,
            level=self.level,
            declarations=self.declarations,
            text=text,
            buffers=self.buffers,
            arguments=self.arguments,
            work=Work(
                operations=loop_operations(text, self.share),
                bytes_moved=FrozenMapping(self.moved),
                transactions=FrozenMapping(self.transactions),
                flop=FrozenMapping(self.flop),
            ),
            expectation=Expectation(
                opcodes=self.opcodes,
                fewest=self.count,
                most=self.count,
                companions=self.companions,
                uniform=self.uniform,
                local=self.local,
                converges=self.converges,
            ),
            check=Check(),
            support=self.support,
            modes=("full", "sm_sweep"),
            patterns=self.patterns,
            unroll=self.count,
            block_threads=MEMORY_THREADS,
            fixed_block=(MEMORY_THREADS, 1, 1),
            min_region_bytes=self.min_region_bytes,
            residence=self.residence,
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
