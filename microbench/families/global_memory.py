"""Caches and DRAM: chases, streams, stores, copies; sectors and lines of one access; other GPUs and the host.

Every block walks a region of its own, a power of two of bytes; for L2, whose share of an SM may be small, reads walk one region common
to all.  Which level answers is decided by the size of all regions together and by the cache operator: .ca keeps lines in L1, .cg in
L2 alone, .cs in neither for long.
"""

from typing import Any, Final, Literal

from microbench.families.frames import (
    ANY_PATTERN,
    ANY_WORD,
    ITERATIONS,
    LANES,
    LINE_BYTES,
    MEMORY_THREADS,
    REGION,
    RESULTS,
    SECTOR_BYTES,
    VECTOR_BYTES,
    WORD_BYTES,
    WORDS,
    MemoryKernel,
    next_place,
    place,
    region_start,
    spread,
    store_word,
)
from microbench.kernel import WARP_LANES, Argument, Buffer, Chase, Kernel, Level, Module, Slot

LINK_BYTES: Final = 8
CHASE_STEPS: Final = 16
ROW_BYTES: Final = MEMORY_THREADS * VECTOR_BYTES
"""What one vector load of a block covers."""

SWEEP_LOADS: Final[dict[str, int]] = {"l1": 8, "l2": 16}
"""Loads of a sweep over sectors and lines; fewer for L1, for which 32 lines a load are much."""
SECTORS: Final = (1, 2, 3, 4)
LINES: Final = (1, 2, 4, 8, 16, 32)

OPERATOR: Final[dict[str, str]] = {"l1": "ca", "l2": "cg", "dram": "cs", "peer": "cv", "host": "cv"}
"""The cache operator of loads by the level that is to answer."""

STORE_OPERATOR: Final[dict[str, str]] = {"l2": "cg", "dram": "cs", "peer": "wt", "host": "wt"}
"""The cache operator of stores by the level that is to take them."""

MODULE: Final[dict[str, Module]] = {"l1": "shared", "l2": "l2", "dram": "dram", "peer": "none", "host": "none"}
"""The module that does the work of a level; the L1 cache and shared memory are one."""

RESIDENCE: Final[dict[str, tuple[Literal["l1", "l2"], float] | None]] = {
    "l1": ("l1", 0.5),
    "l2": ("l2", 1.0 / 3.0),
    "dram": ("l2", 16.0),
    "peer": ("l2", 16.0),
    "host": ("l2", 4.0),
}
"""Sizes walked: half of L1, a third of L2, sixteen times L2 (microbenchmark notes, section 2.4)."""

STORES: Final[dict[str, int]] = {"l2": 4, "dram": 8, "peer": 8, "host": 8}
"""Vector stores in the loop's body; blocks may not share what they write, so that the regions of L2 must stay small."""

LOADS: Final[dict[str, int]] = {"l1": 4, "l2": 8, "dram": 8, "peer": 8, "host": 8}
"""Vector loads in the loop's body; fewer for L1, where a block's region must stay small."""

ARGUMENTS: Final = (Argument(pointer="data"), RESULTS, ITERATIONS, LANES, REGION)
REGISTERS: Final = {"b64": ("region", "wide", "place", "target"), "b32": ("mask", "offset")}


def _location(level: Level) -> Literal["device", "peer", "host"]:
    return level if level in ("peer", "host") else "device"


def _kernel(level: Level, count: int, bytes_each: int, transactions_each: float | None = None, **fields: Any) -> Kernel:
    """`count` accesses of `bytes_each` a thread and turn to a level, each so many transactions; `fields` are those of a `MemoryKernel`.

    Without `transactions_each` every byte that is moved is asked for.
    """
    each = bytes_each / _unit(level) if transactions_each is None else transactions_each
    return MemoryKernel(
        module=MODULE[level],
        level=level,
        count=count,
        moved={level: float(bytes_each * count)},
        transactions={level: count * each},
        residence=RESIDENCE[level],
        **{"arguments": ARGUMENTS, "patterns": ANY_PATTERN, **fields},
    ).kernel()


def _common(level: Level) -> bool:
    """Whether blocks that read at a level share one region."""
    return level == "l2"


def _share(level: Level) -> Literal["region", "common"]:
    return "common" if _common(level) else "region"


def _start(level: Level, step_bytes: int, stride_bytes: int) -> list[str]:
    """The region, and the thread's first address in it, as `place`."""
    own = region_start("data", step_bytes, common=_common(level))
    return [*own, *(spread(stride_bytes) if _common(level) else []), *place()]


def _unit(level: Level) -> int:
    """What a transfer at a level is counted in [byte]."""
    return LINE_BYTES if level == "l1" else SECTOR_BYTES


def _chase(level: Level) -> Kernel:
    """Every load gives the address of the next: each thread goes down its own column of the block's region."""
    name = f"{level}_chase"
    instruction = f"ld.global.{OPERATOR[level]}.u64"
    link = Slot(name="link", kind="u64", low=0.0, high=0.0)
    data = Buffer(name="data", slots=(link,), per=_share(level), chase=Chase(stride_entries=MEMORY_THREADS), location=_location(level))
    return _kernel(
        level,
        name=name,
        instruction=instruction,
        registers={**REGISTERS, "b64": (*REGISTERS["b64"], "link"), "b32": (*REGISTERS["b32"], "word")},
        before=[*_start(level, LINK_BYTES, MEMORY_THREADS * LINK_BYTES), "mov.b64 link, place;"],
        body=[f"{instruction} link, [link];"] * CHASE_STEPS,
        after=["sub.u64 link, link, region;", "cvt.u32.u64 word, link;", *store_word("word")],
        buffers=(data, WORDS),
        count=CHASE_STEPS,
        bytes_each=LINK_BYTES,
        opcodes=("LDG",),
        min_region_bytes=CHASE_STEPS * MEMORY_THREADS * LINK_BYTES,
        patterns=("random",),
    )


def _data(level: Level, name: str = "data") -> Buffer:
    return Buffer(name=name, slots=(ANY_WORD,), per=_share(level), location=_location(level))


def _stream(level: Level) -> Kernel:
    """Independent loads of 16 bytes a thread; every byte of the region in turn."""
    name = f"{level}_read" if level in ("dram", "peer", "host") else f"{level}_stream"
    instruction = f"ld.global.{OPERATOR[level]}.v4.u32"
    loads = LOADS[level]
    words = [f"w{load}_{part}" for load in range(loads) for part in range(4)]
    body = [f"{instruction} {{{', '.join(f'w{load}_{part}' for part in range(4))}}}, [place+{load * ROW_BYTES}];" for load in range(loads)]
    body += [
        f"lop3.b32 sum{part % 2}, sum{part % 2}, w{load}_{part}, w{load + 1}_{part}, 0x96;"
        for load in range(0, loads, 2)
        for part in range(4)
    ]
    return _kernel(
        level,
        name=name,
        instruction=instruction,
        registers={**REGISTERS, "b32": (*REGISTERS["b32"], *words, "sum0", "sum1")},
        before=[*_start(level, VECTOR_BYTES, loads * ROW_BYTES), "mov.b32 sum0, thread;", "mov.b32 sum1, local;"],
        body=[*body, *next_place(loads * ROW_BYTES)],
        after=["add.u32 sum0, sum0, sum1;", *store_word("sum0")],
        buffers=(_data(level), WORDS),
        count=loads,
        bytes_each=VECTOR_BYTES,
        opcodes=("LDG",),
        min_region_bytes=loads * ROW_BYTES,
    )


def _store(level: Level) -> Kernel:
    """Stores of 16 bytes a thread; every byte of the region in turn."""
    name = f"{level}_write" if level in ("dram", "peer", "host") else f"{level}_store"
    instruction = f"st.global.{STORE_OPERATOR[level]}.v4.u32"
    arguments = (Argument(pointer="words"), Argument(pointer="data"), ITERATIONS, LANES, REGION)
    values = [f"v{part}" for part in range(4)]
    stores = STORES[level]
    body = [
        f"{instruction} [place+{place_ * ROW_BYTES}], {{{', '.join(values[place_ % 4 :] + values[: place_ % 4])}}};"
        for place_ in range(stores)
    ]
    words = Buffer(name="words", slots=tuple(Slot(name=value, kind="u32", low=0.0, high=2.0**32 - 1) for value in values))
    data = Buffer(name="data", slots=(ANY_WORD,), per="region", location=_location(level), written=True)
    return _kernel(
        level,
        name=name,
        instruction=instruction,
        arguments=arguments,
        registers={**REGISTERS, "b32": (*REGISTERS["b32"], *values)},
        before=[
            f"mad.wide.u32 target, thread, {VECTOR_BYTES}, words;",
            f"ld.global.v4.u32 {{{', '.join(values)}}}, [target];",
            *region_start("data", VECTOR_BYTES),
            *place(),
        ],
        body=[*body, *next_place(stores * ROW_BYTES)],
        buffers=(words, data),
        count=stores,
        bytes_each=VECTOR_BYTES,
        opcodes=("STG",),
        min_region_bytes=stores * ROW_BYTES,
    )


def _copy() -> Kernel:
    """Loads from one buffer, stores to another."""
    loads = 4
    arguments = (Argument(pointer="data"), Argument(pointer="copied"), ITERATIONS, LANES, REGION)
    vectors = ["{" + ", ".join(f"w{load}_{part}" for part in range(4)) + "}" for load in range(loads)]
    body = [f"ld.global.cs.v4.u32 {vector}, [place+{load * ROW_BYTES}];" for load, vector in enumerate(vectors)]
    body += [f"st.global.cs.v4.u32 [there+{load * ROW_BYTES}], {vector};" for load, vector in enumerate(vectors)]
    words = [f"w{load}_{part}" for load in range(loads) for part in range(4)]
    return _kernel(
        "dram",
        name="dram_copy",
        instruction="ld.global.cs.v4.u32",
        arguments=arguments,
        registers={"b64": (*REGISTERS["b64"], "there", "gap"), "b32": (*REGISTERS["b32"], *words)},
        before=[*region_start("data", VECTOR_BYTES), *place(), "sub.u64 gap, copied, data;", "add.u64 there, place, gap;"],
        body=[*body, *next_place(loads * ROW_BYTES), "add.u64 there, place, gap;"],
        buffers=(_data("dram"), Buffer(name="copied", slots=(ANY_WORD,), per="region", written=True)),
        count=2 * loads,
        bytes_each=VECTOR_BYTES,
        opcodes=("LDG", "STG"),
        min_region_bytes=loads * ROW_BYTES,
    )


def _sweep(name: str, family: str, level: Level, lane_offset: list[str], span_bytes: int, sectors: float, lines: int) -> Kernel:
    """One word a lane, placed so that a warp's access touches so many lines and sectors."""
    instruction = f"ld.global.{OPERATOR[level]}.u32"
    together = level == "l1"  # the warps of a block read the same lines: L1 is too small for each to have its own
    step = span_bytes if together else MEMORY_THREADS // WARP_LANES * span_bytes
    loads = SWEEP_LOADS[level]
    stride = loads * step
    body = []
    for load in range(0, loads, 2):
        body += [
            f"{instruction} w0, [place+{load * step}];",
            f"{instruction} w1, [place+{(load + 1) * step}];",
            "lop3.b32 sum, sum, w0, w1, 0x96;",
        ]
    return _kernel(
        level,
        name=name,
        family=family,
        instruction=instruction,
        registers={**REGISTERS, "b32": (*REGISTERS["b32"], "w0", "w1", "sum", "warp", "part")},
        before=[
            *region_start("data", WORD_BYTES, common=_common(level)),
            f"shr.u32 warp, local, {WARP_LANES.bit_length() - 1};",
            *lane_offset,
            *([] if together else [f"mad.lo.u32 offset, warp, {span_bytes}, offset;"]),
            *(spread(stride) if _common(level) else []),
            *place(),
            "mov.b32 sum, thread;",
        ],
        body=[*body, *next_place(stride)],
        after=store_word("sum"),
        buffers=(_data(level), WORDS),
        count=loads,
        bytes_each=WORD_BYTES,
        transactions_each=(lines if level == "l1" else sectors) / WARP_LANES,
        opcodes=("LDG",),
        min_region_bytes=stride,
    )


def _sectors(count: int) -> Kernel:
    """A warp reads `count` sectors of one line."""
    words = count * SECTOR_BYTES // WORD_BYTES
    offset = [f"rem.u32 offset, lane, {words};", f"mul.lo.u32 offset, offset, {WORD_BYTES};"]
    return _sweep(f"l2_sectors_{count}", "l2_sectors", "l2", offset, LINE_BYTES, count, 1)


def _lines(level: Level, count: int) -> Kernel:
    """A warp reads 32 words from `count` lines."""
    lanes = WARP_LANES // count
    offset = [
        f"div.u32 part, lane, {lanes};",
        f"rem.u32 offset, lane, {lanes};",
        f"mul.lo.u32 part, part, {LINE_BYTES};",
        f"mad.lo.u32 offset, offset, {WORD_BYTES}, part;",
    ]
    sectors = count * max(1, lanes * WORD_BYTES // SECTOR_BYTES)
    return _sweep(f"{level}_lines_{count}", f"{level}_lines", level, offset, LINE_BYTES * count, sectors, count)


KERNELS: Final = (
    *(_chase(level) for level in ("l1", "l2", "dram", "peer")),
    *(_stream(level) for level in ("l1", "l2", "dram", "peer", "host")),
    *(_store(level) for level in ("l2", "dram", "peer", "host")),
    _copy(),
    *(_sectors(count) for count in SECTORS),
    *(_lines(level, count) for level in ("l1", "l2") for count in LINES),
)
"""Caches, DRAM, other GPUs, the host."""
