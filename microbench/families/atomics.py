"""Atomic operations on global memory: each thread its own word, or all threads of a block the same.

The distance between threads' words is loaded: where the assembler can prove that all lanes meet at one word, it lets one
lane do the work of all.
"""

from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.frames import (
    ADDRESSES,
    ANY_WORD,
    ITERATIONS,
    LANES,
    MEMORY_THREADS,
    RESULT_WORD,
    RESULTS,
    SECTOR_BYTES,
    UNIFORM_ADDRESSES,
    WORD_BYTES,
    memory_entry,
    store_word,
)
from microbench.kernel import WARP_LANES, Argument, Buffer, Check, Expectation, Kernel, Slot, Work
from microbench.toolchain.ptx import loop_operations

OPERATIONS: Final = 8
ARGUMENTS: Final = (Argument(pointer="counters"), Argument(pointer="spacing"), RESULTS, ITERATIONS, LANES)
COUNTERS: Final = Buffer(name="counters", slots=(ANY_WORD,), records=OPERATIONS, written=True, filled=True)
FROM_ZERO: Final = Buffer(name="counters", slots=(ANY_WORD,), records=OPERATIONS, written=True)
APART: Final = Buffer(name="spacing", slots=(Slot(name="spacing", kind="u32", low=WORD_BYTES, high=WORD_BYTES),), per="launch")
TOGETHER: Final = Buffer(name="spacing", slots=(Slot(name="spacing", kind="u32", low=0.0, high=0.0),), per="launch")
WORDS: Final = Buffer(name="results", slots=(RESULT_WORD,), written=True)


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
    text = memory_entry(
        name=name,
        arguments=ARGUMENTS,
        registers={"b64": ("place", "target"), "b32": ("word", "old", "apart")},
        before=start,
        body=body,
        after=store_word("word"),
    )
    return Kernel(
        name=name,
        family=name,
        instruction=instruction,
        module="l2",
        level="l2",
        text=text,
        buffers=(FROM_ZERO if same else COUNTERS, TOGETHER if same else APART, WORDS),
        arguments=ARGUMENTS,
        work=Work(
            operations=loop_operations(text),
            bytes_moved=FrozenMapping({"l2": float(WORD_BYTES * OPERATIONS)}),
            transactions=FrozenMapping({"l2": OPERATIONS / WARP_LANES if same else OPERATIONS * WORD_BYTES / SECTOR_BYTES}),
        ),
        expectation=Expectation(opcodes=opcodes, fewest=OPERATIONS, most=OPERATIONS, companions=ADDRESSES, uniform=UNIFORM_ADDRESSES),
        check=Check(),
        modes=("full", "sm_sweep"),
        patterns=("random",),
        unroll=OPERATIONS,
        block_threads=MEMORY_THREADS,
        fixed_block=(MEMORY_THREADS, 1, 1),
    )


KERNELS: Final = (
    _kernel("red_add", "red.global.add.u32", "red.global.add.u32 [{place}], word;", ("RED", "REDG"), returns=False),
    _kernel("red_max_same", "red.global.max.u32", "red.global.max.u32 [{place}], word;", ("RED", "REDG"), same=True, returns=False),
    _kernel("atom_add", "atom.global.add.u32", "atom.global.add.u32 old, [{place}], word;", ("ATOMG",)),
    _kernel("atom_exch", "atom.global.exch.b32", "atom.global.exch.b32 old, [{place}], word;", ("ATOMG",)),
    _kernel("atom_cas", "atom.global.cas.b32", "atom.global.cas.b32 old, [{place}], old, word;", ("ATOMG",)),
)
"""Atomic operations."""
