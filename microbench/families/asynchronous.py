"""Copies from global to shared memory that no thread waits for: cp.async, and the bulk copies of the tensor memory accelerator."""

from typing import Any, Final

from microbench.families.frames import (
    ADDRESSES,
    ANY_PATTERN,
    ANY_WORD,
    MEMORY_THREADS,
    SECTOR_BYTES,
    UNIFORM_ADDRESSES,
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
from microbench.families.global_memory import ARGUMENTS, REGISTERS, RESIDENCE
from microbench.kernel import Buffer, Kernel, Support

COPIES: Final = 8
BULK_COPIES: Final = 4
BULK_BYTES: Final = 4096
BULK_COPY: Final = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
DATA: Final = Buffer(name="data", slots=(ANY_WORD,), per="common")


def _cp_async(width: int, cache: str) -> Kernel:
    """`COPIES` copies of `width` bytes a thread, committed and waited for together."""
    name = f"cp_async_{cache}"
    instruction = f"cp.async.{cache}.shared.global"
    row = MEMORY_THREADS * width
    body = [f"{instruction} [cursor+{copy * row}], [place+{copy * row}], {width};" for copy in range(COPIES)]
    body += ["cp.async.commit_group;", "cp.async.wait_group 0;", *next_place(COPIES * row)]
    words = [f"w{copy}" for copy in range(COPIES)]
    return _kernel(
        name=name,
        registers={**REGISTERS, "b32": (*REGISTERS["b32"], "first", "cursor", "sum", *words)},
        shared=f".shared .align 16 .b8 pool_{name}[{COPIES * row}];",
        before=[
            *region_start("data", width, common=True),
            *spread(COPIES * row),
            *place(),
            f"mov.u32 first, pool_{name};",
            f"mad.lo.u32 cursor, local, {width}, first;",
        ],
        body=body,
        after=[
            *(f"ld.shared.u32 {word}, [cursor+{copy * row}];" for copy, word in enumerate(words)),
            "mov.b32 sum, thread;",
            *(f"add.u32 sum, sum, {word};" for word in words),
            *store_word("sum"),
        ],
        lanes_may_idle=False,
        instruction=instruction,
        count=COPIES,
        moved=float(width * COPIES),
        opcodes=("LDGSTS",),
        companions=(*ADDRESSES, "LDGDEPBAR", "DEPBAR", "LDS"),
        min_region_bytes=COPIES * row,
        support=Support(minimum="sm_80", feature="cp.async"),
    )


def _bulk() -> Kernel:
    """`BULK_COPIES` copies of 4 KB a block, asked for and waited for by one thread; the others sleep at a barrier to the end."""
    total = BULK_COPIES * BULK_BYTES
    issue = [f"{BULK_COPY} [cursor{copy}], [place{copy}], {BULK_BYTES}, [barrier];" for copy in range(BULK_COPIES)]
    cursors = tuple(f"cursor{copy}" for copy in range(BULK_COPIES))
    places = tuple(f"place{copy}" for copy in range(BULK_COPIES))
    scattered = [f"add.u64 {name_}, place, {copy * BULK_BYTES};" for copy, name_ in enumerate(places)]
    body = [
        f"mbarrier.arrive.expect_tx.shared.b64 state, [barrier], {total};",
        *issue,
        "WAIT:",
        "mbarrier.try_wait.parity.shared.b64 arrived, [barrier], parity;",
        "@!arrived bra WAIT;",
        "xor.b32 parity, parity, 1;",
        *next_place(total),
        *scattered,
    ]
    return _kernel(
        name="tma_bulk",
        registers={
            "b64": (*REGISTERS["b64"], "state", *places),
            "b32": (*REGISTERS["b32"], "first", "barrier", "parity", "sum", "word", *cursors),
            "pred": ("issuer", "arrived"),
        },
        shared=f".shared .align 128 .b8 pool_tma[{total}];\n.shared .align 8 .b64 pool_barrier;",
        before=[
            *region_start("data", 0, common=True),
            *spread(total),
            *place(),
            *scattered,
            "mov.u32 first, pool_tma;",
            *(f"add.u32 {cursor}, first, {copy * BULK_BYTES};" for copy, cursor in enumerate(cursors)),
            "mov.u32 barrier, pool_barrier;",
            "mov.b32 parity, 0;",
            "setp.eq.u32 issuer, local, 0;",
            "@!issuer bra DRAIN;",
            "mbarrier.init.shared.b64 [barrier], 1;",
            "fence.proxy.async;",
        ],
        body=body,
        after=[
            "DRAIN:",
            "bar.sync 0;",
            f"mad.lo.u32 cursor0, local, {VECTOR_BYTES}, first;",
            "ld.shared.u32 sum, [cursor0];",
            f"ld.shared.u32 word, [cursor0+{total - MEMORY_THREADS * VECTOR_BYTES}];",
            "add.u32 sum, sum, word;",
            *store_word("sum"),
        ],
        lanes_may_idle=False,
        instruction="cp.async.bulk",
        count=BULK_COPIES,
        moved=float(total) / MEMORY_THREADS,
        opcodes=("UBLKCP",),
        companions=(*ADDRESSES, "SYNCS", "BAR", "BRA", "ELECT", "PLOP3", "SEL", "R2UR", "S2UR", "ISETP", "WARPSYNC", "BSSY", "BSYNC"),
        uniform=(*UNIFORM_ADDRESSES, "UPLOP3", "UISETP", "UP2UR", "UR2UP"),
        min_region_bytes=total,
        support=Support(minimum="sm_90", feature="cp.async.bulk"),
        share=1.0 / MEMORY_THREADS,
    )


def _kernel(moved: float, **fields: Any) -> Kernel:
    """A copy from L2 to shared memory of `moved` bytes a thread and turn; `fields` are those of a `MemoryKernel`."""
    return MemoryKernel(
        module="l2",
        level="l2",
        buffers=(DATA, WORDS),
        arguments=ARGUMENTS,
        moved={"l2": moved, "shared": moved},
        transactions={"l2": moved / SECTOR_BYTES},
        patterns=ANY_PATTERN,
        residence=RESIDENCE["l2"],
        **fields,
    ).kernel()


KERNELS: Final = (_cp_async(VECTOR_BYTES, "cg"), _cp_async(WORD_BYTES, "ca"), _bulk())
"""Copies that no thread waits for."""
