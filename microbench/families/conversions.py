"""Conversions between kinds of numbers."""

from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.double import PADDING
from microbench.families.integer import ANY, LOGIC, MOVES
from microbench.families.rows import ANY_U32, Row, slots, start
from microbench.families.single import ONE_TO_TWO
from microbench.kernel import EVERYWHERE, Support

T: Final = FrozenMapping({"t": "b32"})
HUGE_F32: Final = (2.0**20, 2.0**30)
WIDE_F32: Final = (0.01, 400.0)
SINGLE_FRACTION: Final = float(0x007FFFFF)
"""The bits of a float32 that are not its exponent."""

DOUBLE_FRACTION: Final = float(0x000FFFFF)
"""The same in the upper word of a float64."""

DOUBLE_ONE_TO_TWO: Final = (float(0x3FF00000), float(0x3FFFFFFF))
"""Upper words of float64 numbers between 1 and 2."""

START: Final = start("u32", *ANY_U32)
AMPERE: Final = Support(minimum="sm_80", feature="cvt of two numbers into halves")
ADA: Final = Support(minimum="sm_89", feature="cvt to e4m3")


def _conversion(
    name: str,
    ptx: str,
    convert: str,
    *,
    values: tuple[float, float] = ONE_TO_TWO,
    kind: str = "f32",
    fraction: float = SINGLE_FRACTION,
    temporaries: FrozenMapping[str] = T,
    sass: tuple[str, ...],
    companions: tuple[str, ...] = LOGIC,
    support: Support = EVERYWHERE,
) -> Row:
    """A conversion into t, whose bits then change the fraction of the next accumulator's number: it never becomes infinite."""
    return Row(
        name=name,
        ptx=ptx,
        templates=(f"{convert}\nlop3.b32 {{d}}, t, {{x}}, {{n}}, 0x6a;",),
        temporaries=temporaries,
        start=start(kind, *values),
        operands=slots("u32", (fraction, fraction), never_zero=True),
        sass=sass,
        companions=companions,
        support=support,
        unroll=32,
    )


ROWS: Final = (
    Row(
        name="cvt_f32_s32",
        ptx="cvt.rn.f32.s32",
        templates=("cvt.rn.f32.s32 t, {d};\nxor.b32 {d}, t, {x};",),
        temporaries=T,
        start=START,
        operands=ANY,
        sass=("I2F", "I2FP"),
        companions=LOGIC,
        unroll=32,
    ),
    _conversion(
        "cvt_s32_f32",
        "cvt.rzi.s32.f32",
        "cvt.rzi.s32.f32 t, {d};",
        values=HUGE_F32,
        sass=("F2I",),
        companions=(*LOGIC, "FADD", "FRND", *MOVES),
    ),
    _conversion("cvt_f16x2_f32", "cvt.rn.f16x2.f32", "cvt.rn.f16x2.f32 t, {d}, {n};", sass=("F2FP", "F2F"), support=AMPERE),
    _conversion("cvt_bf16x2_f32", "cvt.rn.bf16x2.f32", "cvt.rn.bf16x2.f32 t, {d}, {n};", sass=("F2FP", "F2F"), support=AMPERE),
    _conversion(
        "cvt_e4m3x2_f32",
        "cvt.rn.satfinite.e4m3x2.f32",
        "cvt.rn.satfinite.e4m3x2.f32 h, {d}, {n};\ncvt.u32.u16 t, h;",
        values=WIDE_F32,
        temporaries=FrozenMapping({"t": "b32", "h": "b16"}),
        sass=("F2FP",),
        companions=("LOP3", "PRMT"),
        support=ADA,
    ),
    _conversion(
        "cvt_f64_f32",
        "cvt.f64.f32",
        "cvt.f64.f32 q, {d};\nmov.b64 {{s, t}}, q;",
        temporaries=FrozenMapping({"q": "b64", "t": "b32", "s": "b32"}),
        sass=("F2F",),
        companions=(*LOGIC, *PADDING),
    ),
    _conversion(
        "cvt_f32_f64",
        "cvt.rn.f32.f64",
        "mov.b64 q, {{{n}, {d}}};\ncvt.rn.f32.f64 t, q;",
        values=DOUBLE_ONE_TO_TWO,
        kind="u32",
        fraction=DOUBLE_FRACTION,
        temporaries=FrozenMapping({"q": "b64", "t": "b32"}),
        sass=("F2F",),
        companions=(*LOGIC, *MOVES, *PADDING),
    ),
)
"""Conversions."""
