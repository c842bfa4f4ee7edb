"""Extended precision: chains of carries through all accumulators of a thread.

The carry is a hidden flag: whoever reads it follows at once on who sets it.  Each chain begins with an instruction that sets it.
"""

from typing import Final

from microbench.families.integer import ADDERS, ANY, ANY_ODD, MOVES
from microbench.families.rows import ANY_U32, Row, start

CARRIED: Final = (*ADDERS, "IADD3.X", "IMAD.X", "IADD.X", "LOP3", "VIADD")
START: Final = start("u32", *ANY_U32)

ROWS: Final = (
    Row(
        name="addc",
        ptx="addc.cc.u32",
        templates=("addc.cc.u32 {d}, {d}, {x};",),
        first="add.cc.u32 {d}, {d}, {x};",
        last="addc.u32 {d}, {d}, {x};",
        start=START,
        operands=ANY,
        sass=CARRIED,
        per_operation=(0.93, 1.25),
    ),
    Row(
        name="subc",
        ptx="subc.cc.u32",
        templates=("subc.cc.u32 {d}, {d}, {x};",),
        first="sub.cc.u32 {d}, {d}, {x};",
        last="subc.u32 {d}, {d}, {x};",
        start=START,
        operands=ANY,
        sass=CARRIED,
        per_operation=(0.93, 2.0),
    ),
    Row(
        name="madc",
        ptx="madc.lo.cc.u32",
        templates=("madc.lo.cc.u32 {d}, {n}, {x}, {d};", "madc.hi.cc.u32 {d}, {n}, {x}, {d};"),
        first="mad.lo.cc.u32 {d}, {n}, {x}, {d};",
        last="madc.hi.u32 {d}, {n}, {x}, {d};",
        start=START,
        operands=ANY_ODD,
        sass=(*CARRIED, "IMAD"),
        per_operation=(0.5, 4.0),
    ),
    Row(
        name="madc_hi",
        ptx="madc.hi.cc.u32",
        templates=("madc.hi.cc.u32 {d}, {n}, {x}, {d};",),
        first="mad.hi.cc.u32 {d}, {n}, {x}, {d};",
        last="madc.hi.u32 {d}, {n}, {x}, {d};",
        start=START,
        operands=ANY_ODD,
        sass=(*CARRIED, "IMAD"),
        per_operation=(1.5, 2.5),
        companions=MOVES,
    ),
)
"""Extended precision."""
