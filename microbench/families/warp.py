"""Instructions of a whole warp: shuffles, votes, matches, reductions."""

from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.integer import ADDERS, ANY, LOGIC, MOVES, T
from microbench.families.rows import ANY_U32, Row, slots, start
from microbench.kernel import Support

START: Final = start("u32", *ANY_U32)
LANE: Final = (0.0, 31.0)
AMPERE: Final = Support(minimum="sm_80", feature="redux.sync")
FULL: Final = "0xffffffff"
NIBBLE: Final = (0.0, 15.0)
VOTED: Final = FrozenMapping({"t": "b32", "p": "pred"})

ROWS: Final = (
    Row(
        name="shfl_bfly",
        ptx="shfl.sync.bfly.b32",
        templates=(f"shfl.sync.bfly.b32 t, {{d}}, 13, 31, {FULL};\nadd.u32 {{d}}, t, {{x}};",),
        temporaries=T,
        start=START,
        operands=ANY,
        sass=("SHFL.BFLY",),
        companions=ADDERS,
        whole_warp=True,
        unroll=32,
    ),
    Row(
        name="shfl_idx",
        ptx="shfl.sync.idx.b32",
        templates=(f"shfl.sync.idx.b32 t, {{d}}, {{y}}, 31, {FULL};\nadd.u32 {{d}}, t, {{x}};",),
        temporaries=T,
        start=START,
        operands=slots("u32", ANY_U32, LANE, ANY_U32, LANE),
        sass=("SHFL.IDX",),
        companions=ADDERS,
        whole_warp=True,
        unroll=32,
    ),
    Row(
        name="vote_ballot",
        ptx="vote.sync.ballot.b32",
        templates=(f"setp.lt.u32 p, {{d}}, {{x}};\nvote.sync.ballot.b32 t, p, {FULL};\nmad.lo.u32 {{d}}, t, {{y}}, {{d}};",),
        temporaries=VOTED,
        start=START,
        operands=ANY,
        sass=("VOTE",),
        companions=("ISETP", "IMAD", *MOVES),
        whole_warp=True,
        unroll=32,
    ),
    Row(
        name="match_any",
        ptx="match.any.sync.b32",
        templates=(f"match.any.sync.b32 t, {{d}}, {FULL};\nlop3.b32 {{d}}, t, {{n}}, 15, 0x28;",),
        temporaries=T,
        start=start("u32", *NIBBLE),
        sass=("MATCH.ANY",),
        companions=(*LOGIC, *MOVES),
        whole_warp=True,
        unroll=16,
    ),
    Row(
        name="redux_add",
        ptx="redux.sync.add.s32",
        templates=(f"redux.sync.add.s32 t, {{d}}, {FULL};\nlop3.b32 {{d}}, t, {{d}}, {{x}}, 0x96;",),
        temporaries=T,
        start=START,
        operands=ANY,
        sass=("REDUX",),
        companions=(*LOGIC, *MOVES, *ADDERS),
        uniform=("UMOV",),
        whole_warp=True,
        support=AMPERE,
        unroll=16,
    ),
)
"""Instructions of a whole warp."""
