"""Double precision."""

from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.rows import Row, slots, start
from microbench.families.single import BELOW, ONE_TO_TWO, affine, there_and_back, times_and_over

UNIT: Final = FrozenMapping({"fp64": 1.0})
PADDING: Final = ("NOP",)
"""What the assembler puts after double-precision instructions where their unit is narrow (seen on sm_120)."""

FUSED: Final = FrozenMapping({"fp64": 2.0})
START: Final = start("f64", 1.0, 2.0, never_zero=True)
NORMAL: Final = slots("f64", ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO, never_zero=True)
QUOTIENT: Final = (
    *("MUFU.RCP64H", "MUFU.RSQ64H", "DFMA", "DMUL", "DADD", "DSETP", "FSETP", "FFMA", "FADD"),
    *("BSSY", "BSYNC", "BRA", "CALL", "BREAK", "WARPSYNC", "BMOV", "ISETP", "PLOP3", "LOP3", "IADD3", "VIADD", "IADD"),
    *("MOV", "IMAD.MOV", "IMAD.U32", "CS2R", "HFMA2"),
)
"""What an IEEE quotient or root is made of: a rough value, Newton steps, and a call for operands near the ends of the range."""

ROWS: Final = (
    Row(
        name="dadd",
        ptx="add.rn.f64",
        templates=("add.rn.f64 {d}, {d}, {x};",),
        start=START,
        operands=there_and_back("f64", 0.5, 1.5),
        sass=("DADD",),
        companions=PADDING,
        flop=UNIT,
    ),
    Row(
        name="dsub",
        ptx="sub.rn.f64",
        templates=("sub.rn.f64 {d}, {x}, {d};", "sub.rn.f64 {d}, {w}, {d};"),
        start=START,
        operands=NORMAL,
        sass=("DADD",),
        companions=PADDING,
        flop=UNIT,
    ),
    Row(
        name="dmul",
        ptx="mul.rn.f64",
        templates=("mul.rn.f64 {d}, {d}, {x};",),
        start=START,
        operands=times_and_over("f64", 0.7, 1.4),
        sass=("DMUL",),
        companions=PADDING,
        flop=UNIT,
    ),
    Row(
        name="dfma",
        ptx="fma.rn.f64",
        templates=("fma.rn.f64 {d}, {d}, {x}, {y};", "fma.rn.f64 {d}, {d}, {w}, {z};"),
        start=START,
        operands=affine("f64"),
        sass=("DFMA",),
        companions=PADDING,
        flop=FUSED,
    ),
    Row(
        name="dminmax",
        ptx="min.f64",
        templates=("min.f64 {d}, {d}, {x};", "max.f64 {d}, {d}, {x};"),
        start=START,
        operands=slots("f64", BELOW, ONE_TO_TWO, BELOW, ONE_TO_TWO),
        sass=("DSETP", "FSEL", "SEL", "LOP3", "MOV", "IMAD.MOV"),
        per_operation=(3.0, 10.0),
        companions=PADDING,
        flop=UNIT,
        unroll=16,
    ),
    Row(
        name="ddiv",
        ptx="div.rn.f64",
        templates=("div.rn.f64 {d}, {x}, {d};", "div.rn.f64 {d}, {w}, {d};"),
        start=START,
        operands=NORMAL,
        sass=QUOTIENT,
        per_operation=(12.0, 44.0),
        calls=True,
        companions=PADDING,
        flop=UNIT,
        unroll=8,
        chains=4,
        patterns=("constant", "random"),
    ),
    Row(
        name="dsqrt",
        ptx="sqrt.rn.f64",
        templates=("sqrt.rn.f64 {d}, {d};\nadd.rn.f64 {d}, {d}, {x};",),
        start=START,
        operands=NORMAL,
        sass=QUOTIENT,
        per_operation=(12.0, 44.0),
        calls=True,
        companions=PADDING,
        flop=UNIT,
        unroll=8,
        chains=4,
        patterns=("constant", "random"),
    ),
)
"""Double precision."""
