"""Matrix products of a warp: mma.sync, dense and sparse.

Accumulators are loaded and all different; odd steps take the negative of A, so that sums come back and never grow.  After the loop one
product more is added: the result would not show otherwise that the products are right.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.rows import ARGUMENTS, WIDTH_BITS, offsets, record_bytes
from microbench.families.table import opcodes
from microbench.kernel import EVERYWHERE, WARP_LANES, Buffer, Check, Expectation, Kernel, Slot, Support, Work
from microbench.toolchain.ptx import entry_text, loop_operations

TENSOR_CHAINS: Final = 4
STEPS: Final = 4
TENSOR_THREADS: Final = 256
TOLERANCE: Final = 2.0**-7
"""Agreement asked of sums of products of halves [1]: their order and the rounding inside a tensor core are not documented."""

FIRST_TWO_OF_FOUR: Final = "0x44444444"
"""Metadata of a sparse A whose numbers stand in columns 0 and 1 of every four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """One shape and precision: registers that a thread holds of A, B and C, the slots' kinds, and what the product becomes."""

    name: str
    shape: str
    types: str
    a: int
    b: int
    c: int
    kind: str
    sum_kind: str
    precision: str
    flop: float
    sass: tuple[str, ...]
    per_operation: tuple[float, float] = (1.0, 1.0)
    support: Support = EVERYWHERE
    sparse: bool = False
    uniform: tuple[str, ...] = ()
    """Opcodes of the uniform datapath that some assemblers put between products (ptxas 13.0 for fp8 on sm_89)."""
    tolerance: float = TOLERANCE


AMPERE: Final = Support(minimum="sm_80", feature="this shape of mma.sync")
FP8: Final = Support(only=("sm_89", "sm_120"), feature="mma.sync of fp8 without emulation")
INT4: Final = Support(only=("sm_80", "sm_86", "sm_89"), feature="mma.sync of s4 without emulation")
BITS: Final = Support(only=("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"), feature="mma.sync of single bits without emulation")
HOPPER_DOUBLE: Final = Support(minimum="sm_90", feature="mma.sync m16n8k16 of f64")

ROWS: Final = (
    MatrixRow(
        name="mma_f16_k8", shape="m16n8k8", types="f32.f16.f16.f32", a=2, b=1, c=4, kind="f16x2", sum_kind="f32",
        precision="fp16", flop=2.0 * 16 * 8 * 8, sass=("HMMA.1688.F32",),
    ),
    MatrixRow(
        name="mma_f16", shape="m16n8k16", types="f32.f16.f16.f32", a=4, b=2, c=4, kind="f16x2", sum_kind="f32",
        precision="fp16", flop=2.0 * 16 * 8 * 16, sass=("HMMA.16816.F32",), support=AMPERE,
    ),
    MatrixRow(
        name="mma_f16_acc16", shape="m16n8k16", types="f16.f16.f16.f16", a=4, b=2, c=2, kind="f16x2", sum_kind="f16x2",
        precision="fp16", flop=2.0 * 16 * 8 * 16, sass=("HMMA.16816.F16",), support=AMPERE, tolerance=2.0**-5,
    ),
    MatrixRow(
        name="mma_bf16", shape="m16n8k16", types="f32.bf16.bf16.f32", a=4, b=2, c=4, kind="bf16x2", sum_kind="f32",
        precision="bf16", flop=2.0 * 16 * 8 * 16, sass=("HMMA.16816.F32.BF16",), support=AMPERE,
    ),
    MatrixRow(
        name="mma_tf32", shape="m16n8k8", types="f32.tf32.tf32.f32", a=4, b=2, c=4, kind="f32", sum_kind="f32",
        precision="tf32", flop=2.0 * 16 * 8 * 8, sass=("HMMA.1688.F32.TF32",), support=AMPERE,
    ),
    MatrixRow(
        name="mma_tf32_k4", shape="m16n8k4", types="f32.tf32.tf32.f32", a=2, b=1, c=4, kind="f32", sum_kind="f32",
        precision="tf32", flop=2.0 * 16 * 8 * 4, sass=("HMMA.1684.F32.TF32",), support=AMPERE,
    ),
    MatrixRow(
        name="mma_s8_k16", shape="m8n8k16", types="s32.s8.s8.s32", a=1, b=1, c=2, kind="s8x4", sum_kind="s32",
        precision="int8", flop=2.0 * 8 * 8 * 16, sass=("IMMA.8816.S8.S8", "IMMA"), tolerance=0.0,
    ),
    MatrixRow(
        name="mma_s8", shape="m16n8k32", types="s32.s8.s8.s32", a=4, b=2, c=4, kind="s8x4", sum_kind="s32",
        precision="int8", flop=2.0 * 16 * 8 * 32, sass=("IMMA.16832.S8.S8",), support=AMPERE, tolerance=0.0,
    ),
    MatrixRow(
        name="mma_s4", shape="m16n8k64", types="s32.s4.s4.s32", a=4, b=2, c=4, kind="s4x8", sum_kind="s32",
        precision="int4", flop=2.0 * 16 * 8 * 64, sass=("IMMA.16864.S4.S4",), support=INT4, tolerance=0.0,
    ),
    MatrixRow(
        name="mma_b1", shape="m16n8k256", types="s32.b1.b1.s32.and.popc", a=4, b=2, c=4, kind="b1x32", sum_kind="s32",
        precision="b1", flop=2.0 * 16 * 8 * 256, sass=("BMMA.168256.AND.POPC",), support=BITS, tolerance=0.0,
    ),
    MatrixRow(
        name="mma_e4m3", shape="m16n8k32", types="f32.e4m3.e4m3.f32", a=4, b=2, c=4, kind="e4m3x4", sum_kind="f32",
        precision="fp8", flop=2.0 * 16 * 8 * 32, sass=("QMMA.16832.F32.E4M3.E4M3",), support=FP8,
        uniform=("UIADD3",),
    ),
    MatrixRow(
        name="mma_e5m2", shape="m16n8k32", types="f32.e5m2.e5m2.f32", a=4, b=2, c=4, kind="e5m2x4", sum_kind="f32",
        precision="fp8", flop=2.0 * 16 * 8 * 32, sass=("QMMA.16832.F32.E5M2.E5M2",), support=FP8,
        uniform=("UIADD3",),
    ),
    MatrixRow(
        name="mma_f64", shape="m8n8k4", types="f64.f64.f64.f64", a=1, b=1, c=2, kind="f64", sum_kind="f64",
        precision="fp64", flop=2.0 * 8 * 8 * 4, sass=("DMMA",), support=AMPERE, tolerance=2.0**-40,
    ),
    MatrixRow(
        name="mma_f64_k16", shape="m16n8k16", types="f64.f64.f64.f64", a=8, b=4, c=4, kind="f64", sum_kind="f64",
        precision="fp64", flop=2.0 * 16 * 8 * 16, sass=("DMMA",), per_operation=(1.0, 8.0), support=HOPPER_DOUBLE, tolerance=2.0**-40,
    ),
    MatrixRow(
        name="mma_sparse_f16", shape="m16n8k32", types="f32.f16.f16.f32", a=4, b=4, c=4, kind="f16x2", sum_kind="f32",
        precision="fp16", flop=2.0 * 16 * 8 * 32, sass=("HMMA.SP.16832.F32",), support=AMPERE, sparse=True,
    ),
    MatrixRow(
        name="mma_sparse_bf16", shape="m16n8k32", types="f32.bf16.bf16.f32", a=4, b=4, c=4, kind="bf16x2", sum_kind="f32",
        precision="bf16", flop=2.0 * 16 * 8 * 32, sass=("HMMA.SP.16832.F32.BF16",), support=AMPERE, sparse=True,
    ),
)  # fmt: skip
"""Shapes and precisions of mma.sync."""


def _instruction(row: MatrixRow) -> str:
    if row.sparse:
        return f"mma.sp::ordered_metadata.sync.aligned.{row.shape}.row.col.{row.types}"
    saturating = ".satfinite" if row.precision in ("int8", "int4") else ""
    return f"mma.sync.aligned.{row.shape}.row.col{saturating}.{row.types}"


def _slots(row: MatrixRow) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """Slots of A, −A and B; slots of the sums."""
    low, high = {"s8x4": (-4.0, 4.0), "s4x8": (-4.0, 4.0), "b1x32": (0.0, 1.0)}.get(row.kind, (-1.0, 1.0))
    sum_range: Mapping[str, tuple[float, float]] = {"s32": (-1000.0, 1000.0)}
    low_sum, high_sum = sum_range.get(row.sum_kind, (-2.0, 2.0))
    a = tuple(Slot(name=f"a{place}", kind=row.kind, low=low, high=high) for place in range(row.a))
    minus = tuple(Slot(name=f"m{place}", kind=row.kind, low=low, high=high, negates=f"a{place}") for place in range(row.a))
    b = tuple(Slot(name=f"b{place}", kind=row.kind, low=low, high=high) for place in range(row.b))
    sums = tuple(
        Slot(name=f"c{chain}_{place}", kind=row.sum_kind, low=low_sum, high=high_sum)
        for chain in range(TENSOR_CHAINS)
        for place in range(row.c)
    )
    return (*a, *minus, *b), sums


def _product(row: MatrixRow, chain: int, factor: str) -> str:
    a = ", ".join(f"{factor}{place}" for place in range(row.a))
    b = ", ".join(f"b{place}" for place in range(row.b))
    c = ", ".join(f"c{chain}_{place}" for place in range(row.c))
    tail = ", metadata, 0x0" if row.sparse else ""
    return f"{_instruction(row)} {{{c}}}, {{{a}}}, {{{b}}}, {{{c}}}{tail};"


def matrix_kernel(row: MatrixRow) -> Kernel:
    """The kernel of a shape and precision: four chains of products, four steps each."""
    factors, sums = _slots(row)
    operands = Buffer(name="operands", slots=(*factors, *sums))
    results = Buffer(name="results", slots=sums, written=True)
    registers: dict[str, list[str]] = {"b64": ["operand_address", "result_address"], "b32": ["metadata"]}
    for slot in operands.slots:
        registers.setdefault(f"b{WIDTH_BITS[slot.kind]}", []).append(slot.name)
    before = [f"mad.wide.u32 operand_address, thread, {record_bytes(operands)}, operands;", f"mov.b32 metadata, {FIRST_TWO_OF_FOUR};"]
    before += [
        f"ld.global.b{WIDTH_BITS[slot.kind]} {slot.name}, [operand_address+{offset}];"
        for slot, offset in zip(operands.slots, offsets(operands), strict=True)
    ]
    body = [_product(row, chain, "m" if step % 2 else "a") for step in range(STEPS) for chain in range(TENSOR_CHAINS)]
    after = [_product(row, chain, "a") for chain in range(TENSOR_CHAINS)]
    after.append(f"mad.wide.u32 result_address, thread, {record_bytes(results)}, results;")
    after += [
        f"st.global.b{WIDTH_BITS[slot.kind]} [result_address+{offset}], {slot.name};"
        for slot, offset in zip(results.slots, offsets(results), strict=True)
    ]
    count = STEPS * TENSOR_CHAINS
    instruction = _instruction(row)
    text = entry_text(
        name=row.name,
        arguments=ARGUMENTS,
        registers=registers,
        before=before,
        body=body,
        after=after,
        max_threads=TENSOR_THREADS,
        lanes_may_idle=False,
    )
    return Kernel(
        name=row.name,
        family=row.name,
        instruction=instruction,
        module="tensor",
        level="register",
        text=text,
        buffers=(operands, results),
        arguments=ARGUMENTS,
        work=Work(
            operations=loop_operations(text),
            flop=FrozenMapping({row.precision: row.flop * count / WARP_LANES}),
        ),
        expectation=Expectation(
            opcodes=row.sass,
            fewest=int(count * row.per_operation[0]),
            most=round(count * row.per_operation[1]),
            companions=opcodes("moves", "padding"),
            uniform=row.uniform,
            converges=True,
        ),
        check=Check(relative_tolerance=row.tolerance),
        support=row.support,
        modes=("full", "sm_sweep"),
        chains=TENSOR_CHAINS,
        unroll=count,
        block_threads=TENSOR_THREADS,
    )


KERNELS: Final = tuple(matrix_kernel(row) for row in ROWS)
"""Matrix products of a warp."""
