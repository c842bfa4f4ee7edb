"""Shared memory: chases, streams, stores, bank conflicts, matrices, atomics."""

from typing import Any, Final

from microbench.families.frames import (
    LINE_BYTES,
    MEMORY_THREADS,
    VECTOR_BYTES,
    WORD_BYTES,
    WORDS,
    MemoryKernel,
    store_word,
)
from microbench.kernel import WARP_LANES, Buffer, Kernel, Slot

POOL_BYTES: Final = 16384
"""Shared memory of a block: two thirds of a third of an SM's, so that several blocks stay resident on every architecture."""

CHASE_STEPS: Final = 16
STREAM_LOADS: Final = 8
STORES: Final = 16
CONFLICT_LOADS: Final = 16
CONFLICT_WAYS: Final = (1, 2, 4, 8, 16, 32)
ATOMICS: Final = 8
MATRIX_LOADS: Final = 8
MATRIX_BYTES: Final = 512
"""Four 8 × 8 matrices of halves: what ldmatrix.x4 brings to a warp."""

FOUR_WORDS: Final = Buffer(
    name="results", slots=tuple(Slot(name=f"sum{place}", kind="u32", low=0.0, high=0.0) for place in range(4)), written=True
)
POOL: Final = f".shared .align 16 .b8 pool[{POOL_BYTES}];"
SWIZZLE: Final = 2654435761
"""Knuth's multiplicative hash: words that look random, without a buffer to load them from."""


def _fill(value: tuple[str, ...]) -> list[str]:
    """Every thread fills its share of the pool: `value` computes `word` from the byte address `cursor`, `first` being the pool's."""
    row = MEMORY_THREADS * WORD_BYTES
    return [
        "mov.u32 first, pool;",
        f"mad.lo.u32 cursor, local, {WORD_BYTES}, first;",
        *[*value, "st.shared.b32 [cursor], word;", f"add.u32 cursor, cursor, {row};"] * (POOL_BYTES // row),
        "bar.sync 0;",
    ]


HASH: Final = ("sub.u32 word, cursor, first;", f"mul.lo.u32 word, word, {SWIZZLE};")
FILL_REGISTERS: Final = ("first", "cursor", "word")


def _kernel(fill: tuple[str, ...], count: int, bytes_each: float, transactions_each: float, **fields: Any) -> Kernel:
    """`count` accesses a thread and turn to the pool of the block, which `fill` fills first; `fields` are those of a `MemoryKernel`."""
    registers, before = fields.pop("registers"), fields.pop("before")
    return MemoryKernel(
        module="shared",
        level="shared",
        registers={"b32": (*FILL_REGISTERS, *registers), "b64": ("target",)},
        shared=POOL,
        before=[*_fill(fill), *before],
        lanes_may_idle=False,
        count=count,
        moved={"shared": bytes_each * count},
        transactions={"shared": transactions_each * count},
        **{"buffers": (WORDS,), **fields},
    ).kernel()


def _chase() -> Kernel:
    """Each lane walks down its own bank: dependent loads without a conflict."""
    return _kernel(
        name="lds_chase",
        instruction="ld.shared.u32",
        fill=(
            "sub.u32 word, cursor, first;",
            f"add.u32 word, word, {LINE_BYTES};",
            f"and.b32 word, word, {POOL_BYTES - 1};",
            "add.u32 word, word, first;",
        ),
        registers=("link",),
        before=[f"mad.lo.u32 link, local, {WORD_BYTES}, first;"],
        body=["ld.shared.u32 link, [link];"] * CHASE_STEPS,
        after=["sub.u32 link, link, first;", *store_word("link")],
        opcodes=("LDS",),
        count=CHASE_STEPS,
        bytes_each=WORD_BYTES,
        transactions_each=1 / WARP_LANES,
    )


def _stream() -> Kernel:
    """Independent loads of 16 bytes a thread: the widest that shared memory gives."""
    words = [f"w{load}_{part}" for load in range(STREAM_LOADS) for part in range(4)]
    sums = [f"sum{part}" for part in range(4)]
    rows = POOL_BYTES // (MEMORY_THREADS * VECTOR_BYTES)
    loads = [
        f"ld.volatile.shared.v4.u32 {{{', '.join(f'w{load}_{part}' for part in range(4))}}}, "
        f"[cursor+{load % rows * MEMORY_THREADS * VECTOR_BYTES}];"
        for load in range(STREAM_LOADS)
    ]
    folds = [
        f"lop3.b32 sum{part}, sum{part}, w{load}_{part}, w{load + 1}_{(part + 1) % 4}, 0x96;"
        for load in range(0, STREAM_LOADS, 2)
        for part in range(4)
    ]
    stores = [f"st.global.b32 [target+{WORD_BYTES * part}], sum{part};" for part in range(4)]
    return _kernel(
        name="lds_stream",
        instruction="ld.volatile.shared.v4.u32",
        fill=HASH,
        registers=(*words, *sums),
        before=[f"mad.lo.u32 cursor, local, {VECTOR_BYTES}, first;", *(f"mov.b32 {name}, local;" for name in sums)],
        body=loads + folds,
        after=[f"mad.wide.u32 target, thread, {VECTOR_BYTES}, results;", *stores],
        opcodes=("LDS.128", "LDS.U.128"),
        count=STREAM_LOADS,
        bytes_each=VECTOR_BYTES,
        transactions_each=VECTOR_BYTES / LINE_BYTES,
        buffers=(FOUR_WORDS,),
    )


def _store() -> Kernel:
    """Stores without a conflict, of words that change from turn to turn."""
    row = MEMORY_THREADS * WORD_BYTES
    stores = [f"st.volatile.shared.u32 [cursor+{row * (place % (POOL_BYTES // row))}], v{place % 4};" for place in range(STORES)]
    turn = ["add.u32 v0, v0, v1;", "xor.b32 v1, v1, v2;", "add.u32 v2, v2, v3;", "xor.b32 v3, v3, v0;"]
    return _kernel(
        name="sts",
        instruction="st.volatile.shared.u32",
        fill=HASH,
        registers=("v0", "v1", "v2", "v3", "back"),
        before=[
            f"mad.lo.u32 cursor, local, {WORD_BYTES}, first;",
            *(f"mad.lo.u32 v{place}, thread, {SWIZZLE}, {place + 1};" for place in range(4)),
        ],
        body=stores + turn,
        after=["bar.sync 0;", f"ld.shared.u32 back, [cursor+{POOL_BYTES - row}];", *store_word("back")],
        opcodes=("STS",),
        count=STORES,
        bytes_each=WORD_BYTES,
        transactions_each=1 / WARP_LANES,
    )


def _conflict(ways: int) -> Kernel:
    """Loads of which `ways` lanes meet in each bank."""
    loads = [f"ld.volatile.shared.u32 w{place % 2}, [cursor+{WORD_BYTES * (place % 4)}];" for place in range(CONFLICT_LOADS)]
    folds = "lop3.b32 sum, sum, w0, w1, 0x96;"
    body = [line for pair in range(0, CONFLICT_LOADS, 2) for line in (*loads[pair : pair + 2], folds)]
    return _kernel(
        name=f"lds_conflict_{ways}",
        family="lds_conflict",
        instruction="ld.volatile.shared.u32",
        fill=HASH,
        registers=("w0", "w1", "sum"),
        before=[f"mul.lo.u32 cursor, lane, {WORD_BYTES * ways};", "add.u32 cursor, cursor, first;", "mov.b32 sum, local;"],
        body=body,
        after=store_word("sum"),
        opcodes=("LDS",),
        count=CONFLICT_LOADS,
        bytes_each=WORD_BYTES,
        transactions_each=ways / WARP_LANES,
    )


def _matrices(transposed: bool) -> Kernel:
    """Four 8 × 8 matrices of halves at once, at places that move with each load."""
    trans = ".trans" if transposed else ""
    instruction = f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16"
    body = []
    for _ in range(MATRIX_LOADS):
        body += [
            f"{instruction} {{w0, w1, w2, w3}}, [cursor];",
            "lop3.b32 sum, sum, w0, w1, 0x96;",
            "lop3.b32 sum, sum, w2, w3, 0x69;",
            f"add.u32 place, place, {MATRIX_BYTES};",
            f"and.b32 place, place, {POOL_BYTES - 1};",
            "add.u32 cursor, first, place;",
        ]
    return _kernel(
        name="ldmatrix_trans" if transposed else "ldmatrix",
        family="ldmatrix",
        instruction=instruction,
        fill=HASH,
        registers=("w0", "w1", "w2", "w3", "sum", "place"),
        before=[
            f"mul.lo.u32 place, local, {VECTOR_BYTES};",
            f"and.b32 place, place, {POOL_BYTES - 1};",
            "add.u32 cursor, first, place;",
            "mov.b32 sum, local;",
        ],
        body=body,
        after=store_word("sum"),
        opcodes=("LDSM",),
        count=MATRIX_LOADS,
        bytes_each=VECTOR_BYTES,
        transactions_each=VECTOR_BYTES / LINE_BYTES,
        converges=True,
    )


def _atomic() -> Kernel:
    """Additions to words of shared memory, each thread to its own; what they return is used."""
    body = []
    for place in range(ATOMICS):
        body += [f"atom.shared.add.u32 w0, [cursor+{place * MEMORY_THREADS * WORD_BYTES}], word;", "xor.b32 sum, sum, w0;"]
    return _kernel(
        name="atoms_add",
        instruction="atom.shared.add.u32",
        fill=HASH,
        registers=("w0", "sum"),
        before=[f"mad.lo.u32 cursor, local, {WORD_BYTES}, first;", "mad.lo.u32 word, local, 7, 3;", "mov.b32 sum, local;"],
        body=body,
        after=store_word("sum"),
        opcodes=("ATOMS",),
        count=ATOMICS,
        bytes_each=WORD_BYTES,
        transactions_each=1 / WARP_LANES,
    )


KERNELS: Final = (_chase(), _stream(), _store(), *(_conflict(ways) for ways in CONFLICT_WAYS), _matrices(False), _matrices(True), _atomic())
"""Shared memory."""
