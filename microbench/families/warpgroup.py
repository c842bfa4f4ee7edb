"""Matrix products of a warpgroup (wgmma, sm_90a): both factors in shared memory, the sums in registers.

Tiles lie there without swizzle: core matrices of 8 rows × 16 bytes, 128 bytes each, one after the other along the rows first.
Source: PTX ISA, "Asynchronous warpgroup level matrix instructions".
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from estimator.frozen import FrozenMapping
from microbench.families.frames import WORD_BYTES
from microbench.families.table import opcodes
from microbench.kernel import Argument, Buffer, Buffers, Check, Expectation, Kernel, Launch, Slot, Support, Work
from microbench.numbers import decode
from microbench.toolchain.ptx import entry_text, loop_operations

GROUP_THREADS: Final = 128
ROWS_A: Final = 64
COLUMNS: Final = (64, 128, 256)
STEPS: Final = 4
STEP_BYTES: Final = 32
"""What one product takes of a row of A or of a column of B, in every precision."""

CORE_ROWS: Final = 8
CORE_ROW_BYTES: Final = 16
CORE_BYTES: Final = CORE_ROWS * CORE_ROW_BYTES
CORES_OF_A_STEP: Final = STEP_BYTES // CORE_ROW_BYTES
HOPPER: Final = Support(only=("sm_90a",), feature="wgmma")
ARGUMENTS: Final = (Argument(pointer="tiles"), Argument(pointer="results"), Argument(scalar="iterations"), Argument(scalar="active_lanes"))
TOLERANCE: Final = 2.0**-7
COMPANIONS: Final = opcodes(
    *("moves", "adders", "logic", "WARPGROUP", "WARPSYNC", "R2UR", "DEPBAR", "SHF", "NOP", "WARPGROUPSET", "BAR", "S2R")
)
UNIFORM: Final = ("UMOV", "UIADD3", "ULOP3", "USHF", "USGXT", "UPLOP3", "UP2UR")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A precision: PTX's types, the depth of one product, the tiles' slot kind, and the opcode's stem and ending."""

    name: str
    types: str
    depth: int
    kind: str
    precision: str
    stem: str
    ending: str
    transposes: str


ROWS: Final = (
    GroupRow(name="f16", types="f32.f16.f16", depth=16, kind="f16x2", precision="fp16", stem="HGMMA", ending="F32", transposes=", 0, 0"),
    GroupRow(
        name="bf16", types="f32.bf16.bf16", depth=16, kind="bf16x2", precision="bf16", stem="HGMMA", ending="F32.BF16", transposes=", 0, 0"
    ),
    GroupRow(name="tf32", types="f32.tf32.tf32", depth=8, kind="f32", precision="tf32", stem="HGMMA", ending="F32.TF32", transposes=""),
    GroupRow(
        name="e4m3", types="f32.e4m3.e4m3", depth=32, kind="e4m3x4", precision="fp8", stem="QGMMA", ending="F32.E4M3.E4M3", transposes=""
    ),
)


def group_kernel(row: GroupRow, columns: int) -> Kernel:
    """Four products of 64 rows and so many columns to a commit; odd ones with the sign turned, one more after the loop."""
    name = f"wgmma_{row.name}_n{columns}"
    instruction = f"wgmma.mma_async.sync.aligned.m64n{columns}k{row.depth}.{row.types}"
    sums = [f"c{place}" for place in range(columns // 2)]
    tile_bytes = (ROWS_A + columns) * STEP_BYTES * STEPS
    chunks = tile_bytes // (GROUP_THREADS * CORE_ROW_BYTES)

    def product(step: int, sign: int) -> str:
        return f"{instruction} {{{', '.join(sums)}}}, left{step}, right{step}, always, {sign}, 1{row.transposes};"

    before = [
        "mov.u32 first, tile;",
        f"mad.wide.u32 source, local, {CORE_ROW_BYTES}, tiles;",
        f"mad.lo.u32 cursor, local, {CORE_ROW_BYTES}, first;",
    ]
    for chunk in range(chunks):
        step = chunk * GROUP_THREADS * CORE_ROW_BYTES
        before += [f"ld.global.v4.u32 {{w0, w1, w2, w3}}, [source+{step}];", f"st.shared.v4.u32 [cursor+{step}], {{w0, w1, w2, w3}};"]
    before += ["fence.proxy.async;", "bar.sync 0;", "setp.eq.u32 always, lane, lane;"]
    for step in range(STEPS):
        before += _descriptor(f"left{step}", step * ROWS_A * STEP_BYTES, ROWS_A)
        before += _descriptor(f"right{step}", STEPS * ROWS_A * STEP_BYTES + step * columns * STEP_BYTES, columns)
    before += [f"mov.b32 {register}, 0;" for register in sums]
    body = ["wgmma.fence.sync.aligned;", *(product(step, 1 - 2 * (step % 2)) for step in range(STEPS))]
    body += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    after = ["wgmma.fence.sync.aligned;", product(0, 1), "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    after.append(f"mad.wide.u32 target, thread, {WORD_BYTES * len(sums)}, results;")
    after += [f"st.global.b32 [target+{WORD_BYTES * place}], {register};" for place, register in enumerate(sums)]
    text = entry_text(
        name=name,
        arguments=ARGUMENTS,
        registers={
            "b32": ("first", "cursor", "w0", "w1", "w2", "w3", *sums),
            "b64": ("source", "target", "place", *(f"{side}{step}" for side in ("left", "right") for step in range(STEPS))),
            "pred": ("always",),
        },
        shared=f".shared .align 128 .b8 tile[{tile_bytes}];",
        before=before,
        body=body,
        after=after,
        max_threads=GROUP_THREADS,
        lanes_may_idle=False,
    )
    return _kernel(name, row, columns, instruction, text, tile_bytes)


def _kernel(name: str, row: GroupRow, columns: int, instruction: str, text: str, tile_bytes: int) -> Kernel:
    tiles = Buffer(
        name="tiles", slots=(Slot(name="pair", kind=row.kind, low=-1.0, high=1.0),), per="launch", records=tile_bytes // WORD_BYTES
    )
    sums = tuple(Slot(name=f"c{place}", kind="f32", low=0.0, high=0.0) for place in range(columns // 2))
    return Kernel(
        name=name,
        family=f"wgmma_{row.name}",
        instruction=instruction,
        module="tensor",
        level="shared",
        text=text,
        buffers=(tiles, Buffer(name="results", slots=sums, written=True)),
        arguments=ARGUMENTS,
        work=Work(
            operations=loop_operations(text),
            bytes_moved=FrozenMapping({"shared": (ROWS_A + columns) * STEP_BYTES * STEPS / GROUP_THREADS}),
            flop=FrozenMapping({row.precision: 2.0 * ROWS_A * columns * row.depth * STEPS / GROUP_THREADS}),
        ),
        expectation=Expectation(
            opcodes=(f"{row.stem}.64x{columns}x{row.depth}.{row.ending}",),
            fewest=STEPS,
            most=STEPS,
            companions=COMPANIONS,
            uniform=UNIFORM,
            converges=True,
        ),
        check=Check(relative_tolerance=TOLERANCE, reference=partial(_expected, row, columns)),
        support=HOPPER,
        modes=("full", "sm_sweep"),
        unroll=STEPS,
        block_threads=GROUP_THREADS,
        fixed_block=(GROUP_THREADS, 1, 1),
    )


def _descriptor(register: str, offset: int, rows: int) -> list[str]:
    """A matrix descriptor: address, distance of core matrices along the depth and along the rows, all in units of 16 bytes."""
    depth_distance = rows // CORE_ROWS * CORE_BYTES >> 4
    row_distance = CORE_BYTES >> 4
    fixed = depth_distance << 16 | row_distance << 32
    return [
        f"add.u32 cursor, first, {offset};",
        "shr.u32 cursor, cursor, 4;",
        "and.b32 cursor, cursor, 0x3fff;",
        "cvt.u64.u32 place, cursor;",
        f"or.b64 {register}, place, {fixed};",
    ]


def _expected(row: GroupRow, columns: int, launch: Launch, buffers: Buffers) -> Buffers:
    return {"results": _reference(row, columns, launch, buffers["tiles"])}


def _reference(row: GroupRow, columns: int, launch: Launch, tiles: NDArray[np.void]) -> NDArray[np.void]:
    """What every block must store: the plain sum of products, and the first once more."""
    values = decode(tiles["pair"], row.kind)
    per_core_row = CORE_ROW_BYTES * row.depth // STEP_BYTES
    numbers_a = STEPS * ROWS_A * row.depth
    left = _unpack(values[:numbers_a], ROWS_A, per_core_row)
    right = _unpack(values[numbers_a:], columns, per_core_row)
    products = np.einsum("smk,snk->smn", left, right)
    turn = sum((1.0 - 2.0 * (step % 2)) * products[step] for step in range(STEPS))
    total = launch.iterations * turn + products[0]
    group = np.arange(GROUP_THREADS)[:, None]
    place = np.arange(columns // 2)[None, :]
    lane = group % 32
    rows = group // 32 * 16 + lane // 4 + 8 * (place // 2 % 2)
    own = total[rows, place // 4 * 8 + lane % 4 * 2 + place % 2].astype(np.float32)
    stored = np.zeros(launch.threads, dtype=[(f"c{register}", np.float32) for register in range(columns // 2)])
    for register in range(columns // 2):
        stored[f"c{register}"] = np.tile(own[:, register], launch.blocks)
    return stored


def _unpack(values: NDArray[np.float64], rows: int, per_core_row: int) -> NDArray[np.float64]:
    """Numbers as they lie in memory → (step, row, depth)."""
    cores = values.reshape(STEPS, CORES_OF_A_STEP, rows // CORE_ROWS, CORE_ROWS, per_core_row)
    return cores.transpose(0, 2, 3, 1, 4).reshape(STEPS, rows, CORES_OF_A_STEP * per_core_row)


KERNELS: Final = tuple(group_kernel(row, columns) for row in ROWS for columns in COLUMNS)
"""Matrix products of a warpgroup."""
