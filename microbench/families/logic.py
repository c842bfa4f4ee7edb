"""Logic, shifts and moves of bits."""

from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.integer import ADDERS, ANY, LOGIC, MOVES, T
from microbench.families.rows import ANY_U32, ANY_U64, WIDTH_BITS, Row, slots, start

SHIFT: Final = (1.0, 7.0)
"""Shift amounts: small, never 0."""

BIT: Final = (0.0, 1.0)
FIELD_START: Final = (1.0, 12.0)
SHIFTS: Final = slots("u32", SHIFT, SHIFT, SHIFT, SHIFT, never_zero=True)
ONE_SHIFT: Final = slots("u32", SHIFT, ANY_U32, SHIFT, ANY_U32, never_zero=True)
SHIFTER: Final = ("SHF", "USHF", "SHL", "IMAD.SHL")
START: Final = start("u32", *ANY_U32)


def _shift(name: str, ptx: str) -> Row:
    """A shift by a small amount; the bits lost are put back every other step."""
    return Row(
        name=name,
        ptx=ptx,
        templates=(f"{ptx} {{d}}, {{d}}, {{x}};", f"{ptx} {{d}}, {{d}}, {{y}};"),
        start=START,
        operands=ONE_SHIFT,
        breaker="xor.b32 {d}, {d}, {x};",
        every=2,
        sass=("SHF", "SHL"),
        companions=LOGIC,
    )


def _rotation(name: str, ptx: str, kind: str, values: tuple[float, float], chains: int) -> Row:
    """All accumulators go one place round in every turn.  Copies within a turn disappear by renaming; these cross the loop's end."""
    return Row(
        name=name,
        ptx=ptx,
        templates=(f"{ptx} {{d}}, {{n}};",),
        first=f"{ptx} kept, {{d}};\n{ptx} {{d}}, {{n}};",
        last=f"{ptx} {{d}}, kept;",
        temporaries=FrozenMapping({"kept": f"b{WIDTH_BITS[kind]}"}),
        start=start(kind, *values),
        sass=("MOV", "IMAD.MOV", "IMAD.U32", "CS2R"),
        per_operation=(0.95, 2.2),
        chains=chains,
        unroll=chains,
    )


ROWS: Final = (
    Row(
        name="lop3_xor",
        ptx="lop3.b32",
        templates=("lop3.b32 {d}, {d}, {n}, {x}, 0x96;",),
        start=START,
        operands=ANY,
        sass=LOGIC,
    ),
    Row(
        name="lop3_majority",
        ptx="lop3.b32",
        templates=("lop3.b32 {d}, {d}, {x}, {y}, 0xe8;",),
        start=START,
        operands=ANY,
        sass=LOGIC,
    ),
    Row(
        name="and_or",
        ptx="and.b32",
        templates=("and.b32 t, {d}, {n};\nxor.b32 {d}, t, {x};", "or.b32 t, {d}, {n};\nxor.b32 {d}, t, {x};"),
        temporaries=T,
        start=START,
        operands=ANY,
        operations=2.0,
        sass=LOGIC,
        per_operation=(0.5, 0.5),
    ),
    Row(
        name="not",
        ptx="not.b32",
        templates=("not.b32 t, {d};\nmul.lo.u32 {d}, t, {x};",),
        temporaries=T,
        start=START,
        operands=slots("u32", ANY_U32, ANY_U32, ANY_U32, ANY_U32, odd=True),
        sass=LOGIC,
        companions=("IMAD",),
        unroll=32,
    ),
    Row(
        name="cnot",
        ptx="cnot.b32",
        templates=("cnot.b32 t, {d};\nxor.b32 {d}, t, {x};",),
        temporaries=T,
        start=start("u32", *BIT),
        operands=slots("u32", BIT, BIT, BIT, BIT),
        sass=("ISETP", "SEL"),
        per_operation=(2.0, 2.0),
        companions=(*LOGIC, *MOVES, *ADDERS),
        unroll=32,
    ),
    _shift("shl", "shl.b32"),
    _shift("shr_u32", "shr.u32"),
    _shift("shr_s32", "shr.s32"),
    Row(
        name="shf_l",
        ptx="shf.l.wrap.b32",
        templates=("shf.l.wrap.b32 {d}, {d}, {n}, {x};",),
        start=START,
        operands=SHIFTS,
        sass=SHIFTER,
    ),
    Row(
        name="shf_r",
        ptx="shf.r.wrap.b32",
        templates=("shf.r.wrap.b32 {d}, {d}, {n}, {x};",),
        start=START,
        operands=SHIFTS,
        sass=SHIFTER,
    ),
    Row(
        name="brev",
        ptx="brev.b32",
        templates=("brev.b32 t, {d};\nadd.u32 {d}, t, {x};",),
        temporaries=T,
        start=START,
        operands=ANY,
        sass=("BREV",),
        companions=(*ADDERS, "SHF", "SGXT"),
        unroll=32,
    ),
    Row(
        name="bfe",
        ptx="bfe.u32",
        templates=("bfe.u32 t, {d}, {x}, {y};\nadd.u32 {d}, t, {n};",),
        temporaries=T,
        start=START,
        operands=slots("u32", FIELD_START, FIELD_START, FIELD_START, FIELD_START, never_zero=True),
        sass=("SHF", "SGXT", "PRMT", "BMSK", "LOP3", "USHF", "IMAD.SHL"),
        per_operation=(2.0, 6.0),
        companions=ADDERS,
        unroll=16,
    ),
    Row(
        name="bfi",
        ptx="bfi.b32",
        templates=("bfi.b32 {d}, {n}, {d}, {x}, {y};",),
        start=START,
        operands=slots("u32", FIELD_START, FIELD_START, FIELD_START, FIELD_START, never_zero=True),
        sass=("BMSK", "SHF", "LOP3", "PRMT", "IMAD.SHL", "SHL"),
        per_operation=(2.0, 6.0),
        unroll=16,
    ),
    Row(
        name="prmt",
        ptx="prmt.b32",
        templates=("prmt.b32 {d}, {d}, {n}, {x};",),
        start=START,
        operands=ANY,
        breaker="xor.b32 {d}, {d}, {x};",
        every=2,
        sass=("PRMT",),
        companions=LOGIC,
    ),
    Row(
        name="select",
        ptx="selp.b32",
        templates=("setp.lt.u32 p, {d}, {x};\nselp.b32 t, {y}, {z}, p;\nxor.b32 {d}, t, {d};",),
        temporaries=FrozenMapping({"p": "pred", "t": "b32"}),
        start=START,
        operands=ANY,
        sass=("SEL", "FSEL"),
        companions=("ISETP", *LOGIC),
        unroll=32,
    ),
    _rotation("mov", "mov.b32", "u32", ANY_U32, 32),
    _rotation("mov_64", "mov.b64", "u64", ANY_U64, 16),
)
"""Logic, shifts and moves of bits."""
