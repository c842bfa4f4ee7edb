"""What the kernels of the block-count model share: regions that all buffers walk together, results, float constants."""

import struct
from collections.abc import Iterable, Mapping
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


def block_kernel(
    name: str,
    family: str,
    threads: int,
    buffers: tuple[Buffer, ...],
    *,
    floats: Iterable[str],
    integers: Iterable[str] = (),
    before: list[str],
    body: list[str],
    after: list[str] | None = None,
    shared: str = "",
    predicates: Iterable[str] = (),
    fewest: int,
    most: int,
    flop: float,
    moved: float,
    shared_bytes: float = 0.0,
    tolerance: float = 0.0,
    guarded: Mapping[str, float] = NONE_GUARDED,
) -> Kernel:
    """A kernel of fixed blocks.

    `moved` and `shared_bytes` are bytes a thread and turn, `guarded` what only some threads execute, on average.
    """
    streamed = [buffer.name for buffer in buffers if buffer.per == "region"]
    arguments = (*(Argument(pointer=buffer.name) for buffer in buffers), ITERATIONS, LANES, REGION, REGION_MASK)
    text = entry_text(
        name=name,
        arguments=arguments,
        registers={
            "b32": ("mask", "offset", "region_number", *floats, *integers),
            "b64": ("wide", "target", *(f"{kind}_{buffer}" for kind in ("region", "at") for buffer in streamed)),
            "pred": tuple(predicates),
        },
        shared=shared,
        before=[*_places(streamed), *before],
        body=[*body, *_onwards(streamed, threads * WORD_BYTES)],
        after=after or (),
        max_threads=threads,
        lanes_may_idle=False,
    )
    return Kernel(
        name=name,
        family=family,
        instruction=family,
        module="cuda",
        level="dram",
        text=text,
        buffers=buffers,
        arguments=arguments,
        work=Work(
            operations=_with_guarded(loop_operations(text), guarded),
            bytes_moved=FrozenMapping({"dram": moved, **({"shared": shared_bytes} if shared_bytes else {})}),
            transactions=FrozenMapping({"dram": moved / SECTOR_BYTES}),
            flop=FrozenMapping({"fp32": flop}),
        ),
        expectation=Expectation(opcodes=WORK_OPCODES, fewest=fewest, most=most, companions=GLUE, uniform=(*UNIFORM_ADDRESSES, "UISETP")),
        check=Check(relative_tolerance=tolerance),
        modes=("full", "sm_sweep", "block_sweep"),
        block_threads=threads,
        fixed_block=(threads, 1, 1),
        min_region_bytes=4 * threads * WORD_BYTES,
        residence=("l2", 16.0),
    )


def result(name: str, slot: str) -> Buffer:
    """One float32 for each thread."""
    return Buffer(name=name, slots=(Slot(name=slot, kind="f32", low=0.0, high=0.0),), written=True)


def store_result(buffer: str, register: str) -> list[str]:
    """Puts a register there."""
    return [f"mad.wide.u32 target, thread, {WORD_BYTES}, {buffer};", f"st.global.b32 [target], {register};"]
