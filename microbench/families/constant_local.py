"""Constant memory and a thread's local memory."""

from typing import Final

from microbench.families.frames import (
    ADDRESSES,
    ITERATIONS,
    LANES,
    RESULTS,
    WORD_BYTES,
    WORDS,
    MemoryKernel,
    store_word,
)
from microbench.kernel import WARP_LANES, Argument, Buffer, Kernel, Slot

RING_ENTRIES: Final = 512
"""2 KB: what the innermost constant cache of an SM holds (Jia et al., arXiv 1804.06826)."""

RING_STEP: Final = 33
"""Entries from one link to the next: odd, so that every entry is visited."""

CHASE_STEPS: Final = 16
WAYS: Final = (1, 2, 4, 8, 16, 32)
FRAME_BYTES: Final = 256
LOCAL_STEPS: Final = 16

RANDOM_FACTOR: Final = 1664525
RANDOM_SUMMAND: Final = 1013904223
"""A linear congruential generator (Numerical Recipes, chapter 7)."""

START: Final = Buffer(name="start", slots=(Slot(name="origin", kind="u32", low=0.0, high=0.0),))

RING: Final = (
    f".const .align 4 .u32 ring[{RING_ENTRIES}] = {{"
    + ", ".join(str((entry + RING_STEP) % RING_ENTRIES * WORD_BYTES) for entry in range(RING_ENTRIES))
    + "};"
)


def _constant(ways: int) -> Kernel:
    """A chase through a ring in constant memory; the lanes of a warp read `ways` different words."""
    return MemoryKernel(
        name=f"ldc_chase_{ways}",
        family="ldc_chase",
        instruction="ld.const.u32",
        module="none",
        level="constant",
        declarations=RING,
        buffers=(START, WORDS),
        arguments=(Argument(pointer="start"), RESULTS, ITERATIONS, LANES),
        registers={"b32": ("first", "link", "origin", "word"), "b64": ("target", "source")},
        before=[
            f"mad.wide.u32 source, thread, {WORD_BYTES}, start;",
            "ld.global.b32 origin, [source];",
            "mov.u32 first, ring;",
            f"and.b32 link, lane, {ways - 1};",
            f"mad.lo.u32 link, link, {WORD_BYTES}, origin;",
        ],
        body=["add.u32 word, first, link;", "ld.const.u32 link, [word];"] * CHASE_STEPS,
        after=store_word("link"),
        count=CHASE_STEPS,
        opcodes=("LDC",),
        uniform=(),
        moved={"constant": float(WORD_BYTES * CHASE_STEPS)},
        transactions={"constant": CHASE_STEPS * ways / WARP_LANES},
    ).kernel()


def _local(stores: bool) -> Kernel:
    """Loads from, or stores to, a frame of the thread's own at places that the compiler cannot foresee."""
    entries = FRAME_BYTES // WORD_BYTES
    prepare = ["mov.u32 first, frame;", "mov.b32 link, thread;"]
    for entry in range(entries):
        prepare += [
            f"add.u32 word, thread, {7 * entry + 1};",
            f"and.b32 word, word, {entries - 1};",
            f"mad.lo.u32 word, word, {WORD_BYTES}, first;",
            f"st.local.u32 [first+{WORD_BYTES * entry}], word;",
        ]
    prepare += [f"and.b32 link, thread, {entries - 1};", f"mad.lo.u32 link, link, {WORD_BYTES}, first;"]
    if stores:
        step = [
            "st.local.u32 [link], word;",
            f"mad.lo.u32 word, word, {RANDOM_FACTOR}, {RANDOM_SUMMAND};",
            f"and.b32 place, word, {FRAME_BYTES - WORD_BYTES};",
            "add.u32 link, place, first;",
        ]
        body = step * LOCAL_STEPS
        sums = [
            line for entry in range(entries) for line in (f"ld.local.u32 link, [first+{WORD_BYTES * entry}];", "add.u32 word, word, link;")
        ]
        after = [*sums, *store_word("word")]
    else:
        body = ["ld.local.u32 link, [link];"] * LOCAL_STEPS
        after = ["sub.u32 word, link, first;", *store_word("word")]
    return MemoryKernel(
        name="local_store" if stores else "local_load",
        instruction="st.local.u32" if stores else "ld.local.u32",
        module="shared",
        level="local",
        buffers=(WORDS,),
        registers={"b32": ("first", "link", "word", "place"), "b64": ("target",)},
        shared=f".local .align 16 .b8 frame[{FRAME_BYTES}];",
        before=prepare,
        body=body,
        after=after,
        count=LOCAL_STEPS,
        opcodes=("STL",) if stores else ("LDL",),
        companions=(*ADDRESSES, "IMAD"),
        local=True,
        moved={"local": float(WORD_BYTES * LOCAL_STEPS)},
    ).kernel()


KERNELS: Final = (*(_constant(ways) for ways in WAYS), _local(False), _local(True))
"""Constant and local memory."""
