"""Integer arithmetic: additions, products, quotients, extremes."""

from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.rows import ANY_U32, ANY_U64, Row, slots, start

TOP_U32: Final = (0.9 * 2.0**32, 2.0**32 - 1)
ANY_S32: Final = (-(2.0**31), 2.0**31 - 1)
LOW_S32: Final = (-(2.0**31), -(2.0**30))
HIGH_S32: Final = (2.0**30, 2.0**31 - 1)
SMALL_U32: Final = (3.0, 1000.0)
LARGE_U32: Final = (2.0**30, 2.0**31 - 1)

T: Final = FrozenMapping({"t": "b32"})
ADDERS: Final = ("IADD3", "IADD", "IMAD.IADD", "VIADD", "IADD.64")
PRODUCTS: Final = ("IMAD",)
LOGIC: Final = ("LOP3", "PLOP3")
MOVES: Final = ("MOV", "IMAD.MOV", "IMAD.U32", "IMAD.SHL", "CS2R", "HFMA2", "SEL")
QUOTIENT: Final = (
    "I2F",
    "I2FP",
    "F2I",
    "MUFU.RCP",
    "IMAD",
    "IADD3",
    "VIADD",
    "IADD",
    "ISETP",
    "IABS",
    "LOP3",
    "SEL",
    "SHF",
    "MOV",
    "VIADDMNMX",
)
"""What division by a number that changes is made of: a reciprocal in floating point and two corrections."""

ANY: Final = slots("u32", ANY_U32, ANY_U32, ANY_U32, ANY_U32)
ANY_ODD: Final = slots("u32", ANY_U32, ANY_U32, ANY_U32, ANY_U32, odd=True)
DIVIDENDS: Final = slots("u32", LARGE_U32, SMALL_U32, LARGE_U32, SMALL_U32, never_zero=True)


MASKED: Final = "0xea"
"""(a & b) | c: keeps some bits of a quotient, which is large."""

FLIPPED: Final = "0xbe"
"""(a ^ b) | c: changes some bits of a remainder, which is small."""


def _division(name: str, ptx: str, per_operation: tuple[float, float], table: str) -> Row:
    """x / d, mixed with a small operand by `table` and made odd, is the next divisor: small, never 0, never the same."""
    return Row(
        name=name,
        ptx=ptx,
        templates=(
            f"{ptx} t, {{x}}, {{d}};\nlop3.b32 {{d}}, t, {{y}}, 1, {table};",
            f"{ptx} t, {{w}}, {{d}};\nlop3.b32 {{d}}, t, {{z}}, 1, {table};",
        ),
        temporaries=T,
        start=start("u32", *SMALL_U32, odd=True, never_zero=True),
        operands=DIVIDENDS,
        sass=QUOTIENT,
        per_operation=per_operation,
        companions=MOVES,
        unroll=16,
    )


ROWS: Final = (
    Row(
        name="iadd",
        ptx="add.u32",
        templates=("add.u32 {d}, {d}, {n};",),
        start=start("u32", *ANY_U32),
        sass=ADDERS,
    ),
    Row(
        name="iadd3",
        ptx="add.u32",
        templates=("add.u32 t, {d}, {x};\nadd.u32 {d}, t, {n};",),
        temporaries=T,
        start=start("u32", *ANY_U32),
        operands=ANY,
        operations=2.0,
        sass=ADDERS,
        per_operation=(0.5, 0.5),
    ),
    Row(name="isub", ptx="sub.s32", templates=("sub.s32 {d}, {d}, {n};",), start=start("u32", *ANY_U32), sass=ADDERS),
    Row(
        name="iadd_64",
        ptx="add.u64",
        templates=("add.u64 {d}, {d}, {n};",),
        start=start("u64", *ANY_U64),
        sass=(*ADDERS, "IADD3.X", "IMAD.X"),
        per_operation=(1.0, 2.0),
        companions=MOVES,
    ),
    Row(
        name="iminmax_s32",
        ptx="min.s32",
        templates=("min.s32 {d}, {d}, {x};", "max.s32 {d}, {d}, {x};"),
        start=start("s32", *ANY_S32),
        operands=slots("s32", LOW_S32, HIGH_S32, LOW_S32, HIGH_S32),
        sass=("IMNMX", "VIMNMX"),
    ),
    Row(
        name="iminmax_u32",
        ptx="max.u32",
        templates=("max.u32 {d}, {d}, {x};", "min.u32 {d}, {d}, {x};"),
        start=start("u32", *ANY_U32),
        operands=slots("u32", LARGE_U32, SMALL_U32, LARGE_U32, SMALL_U32),
        sass=("IMNMX", "VIMNMX"),
    ),
    Row(
        name="imul",
        ptx="mul.lo.u32",
        templates=("mul.lo.u32 {d}, {d}, {x};",),
        start=start("u32", *ANY_U32, odd=True),
        operands=ANY_ODD,
        sass=PRODUCTS,
    ),
    Row(
        name="imad",
        ptx="mad.lo.u32",
        templates=("mad.lo.u32 {d}, {d}, {x}, {y};",),
        start=start("u32", *ANY_U32),
        operands=ANY_ODD,
        sass=PRODUCTS,
    ),
    Row(
        name="imul_hi_u32",
        ptx="mul.hi.u32",
        templates=("mul.hi.u32 {d}, {d}, {x};",),
        start=start("u32", *ANY_U32),
        operands=slots("u32", TOP_U32, TOP_U32, TOP_U32, TOP_U32),
        breaker="xor.b32 {d}, {d}, {x};",
        every=4,
        sass=PRODUCTS,
        companions=LOGIC,
    ),
    Row(
        name="imul_hi_s32",
        ptx="mul.hi.s32",
        templates=("mul.hi.s32 {d}, {d}, {x};",),
        start=start("s32", *ANY_S32),
        operands=slots("s32", HIGH_S32, LOW_S32, HIGH_S32, LOW_S32),
        breaker="xor.b32 {d}, {d}, {x};",
        every=2,
        sass=PRODUCTS,
        companions=LOGIC,
    ),
    Row(
        name="imad_hi",
        ptx="mad.hi.u32",
        templates=("mad.hi.u32 {d}, {d}, {x}, {y};",),
        start=start("u32", *ANY_U32),
        operands=slots("u32", TOP_U32, TOP_U32, TOP_U32, TOP_U32),
        sass=PRODUCTS,
        companions=ADDERS + MOVES,
    ),
    Row(
        name="imul_wide",
        ptx="mul.wide.u32",
        templates=("mul.wide.u32 q, {d}, {x};\nmov.b64 {{t, s}}, q;\nlop3.b32 {d}, t, s, {y}, 0x96;",),
        temporaries=FrozenMapping({"q": "b64", "t": "b32", "s": "b32"}),
        start=start("u32", *ANY_U32, odd=True),
        operands=ANY_ODD,
        sass=("IMAD.WIDE",),
        companions=LOGIC,
        unroll=32,
    ),
    _division("idiv_s32", "div.s32", (8.0, 26.0), MASKED),
    _division("irem_s32", "rem.s32", (8.0, 26.0), FLIPPED),
    _division("idiv_u32", "div.u32", (8.0, 26.0), MASKED),
    _division("irem_u32", "rem.u32", (7.0, 24.0), FLIPPED),
    Row(
        name="iabs",
        ptx="abs.s32",
        templates=("abs.s32 t, {d};\nxor.b32 {d}, t, {x};",),
        temporaries=T,
        start=start("u32", *ANY_U32),
        operands=ANY,
        sass=("IABS",),
        companions=LOGIC + MOVES,
        unroll=32,
    ),
)
"""Integer arithmetic."""
