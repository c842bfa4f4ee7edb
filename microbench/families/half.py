"""Half precision, one and two numbers to a register."""

from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.rows import Row, slots, start
from microbench.families.single import BELOW, ONE_TO_TWO, there_and_back
from microbench.kernel import Support

CONTRACTING: Final = (0.5, 0.9)
SUMMAND: Final = (0.5, 1.5)
AFFINE_F16: Final = slots("f16x2", CONTRACTING, SUMMAND, CONTRACTING, (-1.5, -0.5))
AFFINE_BF16: Final = slots("bf16x2", CONTRACTING, SUMMAND, CONTRACTING, (-1.5, -0.5))
ADD2: Final = FrozenMapping({"fp16": 2.0})
FMA2: Final = FrozenMapping({"fp16": 4.0})
FMA2_BF16: Final = FrozenMapping({"bf16": 4.0})
ADD2_BF16: Final = FrozenMapping({"bf16": 2.0})
START: Final = start("f16x2", 1.0, 2.0)
START_BF16: Final = start("bf16x2", 1.0, 2.0)
HOPPER: Final = Support(minimum="sm_90", feature="bf16x2 addition")
AMPERE: Final = Support(minimum="sm_80", feature="bf16x2 arithmetic")
AMPERE_EXTREMES: Final = Support(minimum="sm_80", feature="min and max of halves")

ROWS: Final = (
    Row(
        name="hadd",
        ptx="add.rn.f16",
        templates=("add.rn.f16 {d}, {d}, {x};",),
        start=start("f16", 1.0, 2.0),
        operands=there_and_back("f16", 0.5, 1.5),
        sass=("HADD2", "HFMA2"),
        per_operation=(0.5, 1.0),
        companions=("PRMT",),
        flop=FrozenMapping({"fp16": 1.0}),
    ),
    Row(
        name="hsub",
        ptx="sub.rn.f16",
        templates=("sub.rn.f16 {d}, {x}, {d};", "sub.rn.f16 {d}, {w}, {d};"),
        start=start("f16", 1.0, 2.0),
        operands=slots("f16", ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO),
        sass=("HADD2", "HFMA2"),
        per_operation=(0.5, 1.0),
        companions=("PRMT",),
        flop=FrozenMapping({"fp16": 1.0}),
    ),
    Row(
        name="hmul",
        ptx="mul.rn.f16",
        templates=("mul.rn.f16 {d}, {d}, {x};",),
        start=start("f16", 1.0, 2.0),
        operands=slots("f16", CONTRACTING, SUMMAND, CONTRACTING, CONTRACTING),
        breaker="add.rn.f16 {d}, {d}, {x};",
        every=4,
        sass=("HMUL2", "HFMA2"),
        per_operation=(0.5, 1.25),
        companions=("HADD2", "PRMT"),
        flop=FrozenMapping({"fp16": 1.0}),
    ),
    Row(
        name="hfma",
        ptx="fma.rn.f16",
        templates=("fma.rn.f16 {d}, {d}, {x}, {y};", "fma.rn.f16 {d}, {d}, {w}, {z};"),
        start=start("f16", 1.0, 2.0),
        operands=slots("f16", CONTRACTING, SUMMAND, CONTRACTING, (-1.5, -0.5)),
        sass=("HFMA2",),
        per_operation=(0.5, 1.0),
        companions=("PRMT",),
        flop=FrozenMapping({"fp16": 2.0}),
    ),
    Row(
        name="hadd2",
        ptx="add.rn.f16x2",
        templates=("add.rn.f16x2 {d}, {d}, {x};",),
        start=START,
        operands=there_and_back("f16x2", 0.5, 1.5),
        sass=("HADD2", "HFMA2"),
        flop=ADD2,
    ),
    Row(
        name="hsub2",
        ptx="sub.rn.f16x2",
        templates=("sub.rn.f16x2 {d}, {x}, {d};", "sub.rn.f16x2 {d}, {w}, {d};"),
        start=START,
        operands=slots("f16x2", ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO),
        sass=("HADD2", "HFMA2"),
        flop=ADD2,
    ),
    Row(
        name="hmul2",
        ptx="mul.rn.f16x2",
        templates=("mul.rn.f16x2 {d}, {d}, {x};", "mul.rn.f16x2 {d}, {d}, {x};"),
        start=START,
        operands=slots("f16x2", CONTRACTING, SUMMAND, CONTRACTING, CONTRACTING),
        breaker="add.rn.f16x2 {d}, {d}, {x};",
        every=4,
        sass=("HMUL2", "HFMA2"),
        per_operation=(1.0, 1.25),
        companions=("HADD2",),
        flop=ADD2,
    ),
    Row(
        name="hfma2",
        ptx="fma.rn.f16x2",
        templates=("fma.rn.f16x2 {d}, {d}, {x}, {y};", "fma.rn.f16x2 {d}, {d}, {w}, {z};"),
        start=START,
        operands=AFFINE_F16,
        sass=("HFMA2",),
        flop=FMA2,
    ),
    Row(
        name="hminmax2",
        ptx="min.f16x2",
        templates=("min.f16x2 {d}, {d}, {x};", "max.f16x2 {d}, {d}, {x};"),
        start=START,
        operands=slots("f16x2", BELOW, ONE_TO_TWO, BELOW, ONE_TO_TWO),
        sass=("HMNMX2", "VHMNMX"),
        flop=ADD2,
        support=AMPERE_EXTREMES,
    ),
    Row(
        name="bfma2",
        ptx="fma.rn.bf16x2",
        templates=("fma.rn.bf16x2 {d}, {d}, {x}, {y};", "fma.rn.bf16x2 {d}, {d}, {w}, {z};"),
        start=START_BF16,
        operands=AFFINE_BF16,
        sass=("HFMA2",),
        flop=FMA2_BF16,
        support=AMPERE,
    ),
    Row(
        name="badd2",
        ptx="add.rn.bf16x2",
        templates=("add.rn.bf16x2 {d}, {d}, {x};",),
        start=START_BF16,
        operands=there_and_back("bf16x2", 0.5, 1.5),
        sass=("HADD2", "HFMA2"),
        flop=ADD2_BF16,
        support=HOPPER,
    ),
    Row(
        name="bsub2",
        ptx="sub.rn.bf16x2",
        templates=("sub.rn.bf16x2 {d}, {x}, {d};", "sub.rn.bf16x2 {d}, {w}, {d};"),
        start=START_BF16,
        operands=slots("bf16x2", ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO),
        sass=("HADD2", "HFMA2"),
        flop=ADD2_BF16,
        support=HOPPER,
    ),
    Row(
        name="bmul2",
        ptx="mul.rn.bf16x2",
        templates=("mul.rn.bf16x2 {d}, {d}, {x};",),
        start=START_BF16,
        operands=slots("bf16x2", CONTRACTING, SUMMAND, CONTRACTING, CONTRACTING),
        breaker="add.rn.bf16x2 {d}, {d}, {x};",
        every=4,
        sass=("HMUL2", "HFMA2"),
        per_operation=(1.0, 1.25),
        companions=("HADD2",),
        flop=ADD2_BF16,
        support=HOPPER,
    ),
)
"""Half precision."""
