"""What the kernels of the block-count model share: regions that all buffers walk together, results, float constants."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.frames import ADDRESSES, ITERATIONS, LANES, REGION, SECTOR_BYTES, UNIFORM_ADDRESSES, WORD_BYTES
from microbench.kernel import Argument, Buffer, Check, Expectation, Kernel, Slot, Work
from microbench.toolchain.ptx import entry_text, loop_operations

WORK_OPCODES: Final = ("FFMA", "FADD", "FMUL", "LDG", "STG", "LDS", "STS", "BAR", "MUFU")

GLUE: Final = (
    *ADDRESSES,
    "FSETP",
    "FSEL",
    "SEL",
    "ISETP",
    "PLOP3",
    "BRA",
    "BSSY",
    "BSYNC",
    "HFMA2",
    "CS2R",
    "FMNMX",
    "P2R",
    "NOP",
    "LDC",
    "LDCU",
    "FCHK",
    "CALL",
    "R2UR",
)


REGION_MASK: Final = Argument(scalar="region_mask")
"""A grid of many rounds walks the regions of one round again and again: all of its blocks' regions would not fit the memory."""

NONE_GUARDED: Final[Mapping[str, float]] = FrozenMapping({})


def _with_guarded(operations: Mapping[str, float], guarded: Mapping[str, float]) -> FrozenMapping[float]:
    return FrozenMapping({name: operations.get(name, 0.0) + guarded.get(name, 0.0) for name in sorted({*operations, *guarded})})


def real(number: float) -> str:
    """A float32 as PTX writes it."""
    return f"0f{struct.unpack('>I', struct.pack('>f', number))[0]:08X}"


def stream(name: str, low: float, high: float, *, written: bool = False) -> Buffer:
    """A float32 for each thread and turn, in the region of each block."""
    return Buffer(name=name, slots=(Slot(name="value", kind="f32", low=low, high=high),), per="region", written=written, filled=written)


def _places(buffers: Iterable[str]) -> list[str]:
    """The block's region of each buffer, and the thread's offset in them."""
    return [
        "and.b32 region_number, block_number, region_mask;",
        *(f"mad.wide.u32 region_{buffer}, region_number, region_bytes, {buffer};" for buffer in buffers),
        "sub.u32 mask, region_bytes, 1;",
        f"mul.lo.u32 offset, local, {WORD_BYTES};",
        "cvt.u64.u32 wide, offset;",
        *(f"add.u64 at_{buffer}, region_{buffer}, wide;" for buffer in buffers),
    ]


def _onwards(buffers: Iterable[str], step_bytes: int) -> list[str]:
    """To the next part of every region, round to its start at its end."""
    return [
        f"add.u32 offset, offset, {step_bytes};",
        "and.b32 offset, offset, mask;",
        "cvt.u64.u32 wide, offset;",
        *(f"add.u64 at_{buffer}, region_{buffer}, wide;" for buffer in buffers),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKernel:
    """A kernel of fixed blocks of `threads`; the family is its name without the last part, the size.

    `moved` and `shared_bytes` are bytes a thread and turn, `guarded` what only some threads execute, on average; `fewest` and `most`
    instructions of WORK_OPCODES do the work of a turn.
    """

    name: str
    threads: int
    buffers: tuple[Buffer, ...]
    floats: Iterable[str]
    integers: Iterable[str] = ()
    predicates: Iterable[str] = ()
    shared: str = ""
    before: Iterable[str] = ()
    body: Iterable[str]
    after: Iterable[str] = ()
    fewest: int
    most: int
    flop: float
    moved: float
    shared_bytes: float = 0.0
    tolerance: float = 0.0
    guarded: Mapping[str, float] = NONE_GUARDED

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Its buffers, and what the launch gives."""
        return (*(Argument(pointer=buffer.name) for buffer in self.buffers), ITERATIONS, LANES, REGION, REGION_MASK)

    def text(self) -> str:
        """Its entry: every region walked from its start, round at its end."""
        streamed = [buffer.name for buffer in self.buffers if buffer.per == "region"]
        return entry_text(
            name=self.name,
            arguments=self.arguments,
            registers={
                "b32": ("mask", "offset", "region_number", *self.floats, *self.integers),
                "b64": ("wide", "target", *(f"{kind}_{buffer}" for kind in ("region", "at") for buffer in streamed)),
                "pred": tuple(self.predicates),
            },
            shared=self.shared,
            before=[*_places(streamed), *self.before],
            body=[*self.body, *_onwards(streamed, self.threads * WORD_BYTES)],
            after=self.after,
            max_threads=self.threads,
            lanes_may_idle=False,
        )

    def kernel(self) -> Kernel:
        """The kernel, its operations counted."""
        text, family = self.text(), self.name.rpartition("_")[0]
        return Kernel(
            name=self.name,
            family=family,
            instruction=family,
            module="cuda",
            level="dram",
            text=text,
            buffers=self.buffers,
            arguments=self.arguments,
            work=Work(
                operations=_with_guarded(loop_operations(text), self.guarded),
                bytes_moved=FrozenMapping({"dram": self.moved, **({"shared": self.shared_bytes} if self.shared_bytes else {})}),
                transactions=FrozenMapping({"dram": self.moved / SECTOR_BYTES}),
                flop=FrozenMapping({"fp32": self.flop}),
            ),
            expectation=Expectation(
                opcodes=WORK_OPCODES, fewest=self.fewest, most=self.most, companions=GLUE, uniform=(*UNIFORM_ADDRESSES, "UISETP")
            ),
            check=Check(relative_tolerance=self.tolerance),
            modes=("full", "sm_sweep", "block_sweep"),
            block_threads=self.threads,
            fixed_block=(self.threads, 1, 1),
            min_region_bytes=4 * self.threads * WORD_BYTES,
            residence=("l2", 16.0),
        )


def result(name: str, slot: str) -> Buffer:
    """One float32 for each thread."""
    return Buffer(name=name, slots=(Slot(name=slot, kind="f32", low=0.0, high=0.0),), written=True)


def store_result(buffer: str, register: str) -> list[str]:
    """Puts a register there."""
    return [f"mad.wide.u32 target, thread, {WORD_BYTES}, {buffer};", f"st.global.b32 [target], {register};"]
