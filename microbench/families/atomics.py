"""Atomic operations on global memory: each thread its own word, or all threads of a block the same.

The distance between threads' words is loaded: where the assembler can prove that all lanes meet at one word, it lets one
lane do the work of all.
"""

from typing import Final

from microbench.families.frames import (
    ANY_WORD,
    ITERATIONS,
    LANES,
    MEMORY_THREADS,
    RESULTS,
    SECTOR_BYTES,
    WORD_BYTES,
    WORDS,
    MemoryKernel,
    store_word,
)
from microbench.kernel import WARP_LANES, Argument, Buffer, Kernel, Slot

OPERATIONS: Final = 8
ARGUMENTS: Final = (Argument(pointer="counters"), Argument(pointer="spacing"), RESULTS, ITERATIONS, LANES)
COUNTERS: Final = Buffer(name="counters", slots=(ANY_WORD,), records=OPERATIONS, written=True, filled=True)
FROM_ZERO: Final = Buffer(name="counters", slots=(ANY_WORD,), records=OPERATIONS, written=True)
APART: Final = Buffer(name="spacing", slots=(Slot(name="spacing", kind="u32", low=WORD_BYTES, high=WORD_BYTES),), per="launch")
TOGETHER: Final = Buffer(name="spacing", slots=(Slot(name="spacing", kind="u32", low=0.0, high=0.0),), per="launch")


def _kernel(name: str, instruction: str, line: str, opcodes: tuple[str, ...], *, same: bool = False, returns: bool = True) -> Kernel:
    """`line` is one operation: {place} its address, `word` what is given, `old` what comes back."""
    body = []
    for operation in range(OPERATIONS):
        place = f"place+{operation * (1 if same else MEMORY_THREADS) * WORD_BYTES}"
        body += [
            line.format(place=place),
            *(["add.u32 word, word, old;"] if returns else ["add.u32 word, word, lane;"] if operation == 0 else []),
        ]
    owner = "block_number" if same else "thread"
    start = [
        f"mad.wide.u32 place, block_number, {OPERATIONS * MEMORY_THREADS * WORD_BYTES}, counters;",
        "ld.global.b32 apart, [spacing];",
        "mad.wide.u32 place, local, apart, place;",
        f"add.u32 word, {owner}, 1;",
        "mov.b32 old, 0;",
    ]
    return MemoryKernel(
        name=name,
        instruction=instruction,
        module="l2",
        level="l2",
        arguments=ARGUMENTS,
        buffers=(FROM_ZERO if same else COUNTERS, TOGETHER if same else APART, WORDS),
        registers={"b64": ("place", "target"), "b32": ("word", "old", "apart")},
        before=start,
        body=body,
        after=store_word("word"),
        count=OPERATIONS,
        opcodes=opcodes,
        moved={"l2": float(WORD_BYTES * OPERATIONS)},
        transactions={"l2": OPERATIONS / WARP_LANES if same else OPERATIONS * WORD_BYTES / SECTOR_BYTES},
    ).kernel()


KERNELS: Final = (
    _kernel("red_add", "red.global.add.u32", "red.global.add.u32 [{place}], word;", ("RED", "REDG"), returns=False),
    _kernel("red_max_same", "red.global.max.u32", "red.global.max.u32 [{place}], word;", ("RED", "REDG"), same=True, returns=False),
    _kernel("atom_add", "atom.global.add.u32", "atom.global.add.u32 old, [{place}], word;", ("ATOMG",)),
    _kernel("atom_exch", "atom.global.exch.b32", "atom.global.exch.b32 old, [{place}], word;", ("ATOMG",)),
    _kernel("atom_cas", "atom.global.cas.b32", "atom.global.cas.b32 old, [{place}], old, word;", ("ATOMG",)),
)
"""Atomic operations."""
