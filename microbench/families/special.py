"""Special functions: reciprocals, roots, logarithms, exponentials, angles."""

from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.rows import Row, slots, start
from microbench.families.single import MOVES, ONE_TO_TWO
from microbench.kernel import EVERYWHERE, Slot, Support

UNIT: Final = FrozenMapping({"fp32": 1.0})
POSITIVE: Final = slots("f32", ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO, never_zero=True)
TWO_TO_FOUR: Final = slots("f32", (2.0, 4.0), (2.0, 4.0), (2.0, 4.0), (2.0, 4.0), never_zero=True)
BELOW: Final = slots("f32", (-2.0, -1.0), (-2.0, -1.0), (-2.0, -1.0), (-2.0, -1.0))
START: Final = start("f32", 1.0, 2.0, never_zero=True)
NEGATIVE: Final = start("f32", -1.5, -0.5, never_zero=True)
TWICE_BELOW: Final = ((-2.0, -1.0),) * 4
BELOW_AND_FACTOR: Final = ((-2.0, -1.0), (0.5, 0.9)) * 2
APPROXIMATE: Final = 2.0**-14
"""Agreement asked of approximate functions [1]: after some steps of an orbit whose single step is good to 2^-21."""

ADD: Final = "add.ftz.f32 {d}, {d}, {x};"
ADDED: Final = ("FADD",)
SCALED: Final = ("FMUL", "FSETP", "FADD", "FSEL", *MOVES)
"""What keeps subnormal operands right around an approximate function without .ftz."""

NEWTON: Final = (
    *("MUFU.RCP", "MUFU.RSQ", "FFMA", "FMUL", "FADD", "FSETP", "IADD3", "VIADD", "IADD", "ISETP", "LOP3", "SHF"),
    *("MOV", "IMAD.MOV", "IMAD.U32", "BSSY", "BSYNC", "BRA", "CALL", "BREAK", "WARPSYNC", "BMOV"),
)
"""What a correctly rounded reciprocal or root is made of."""


def _function(
    name: str,
    ptx: str,
    sass: tuple[str, ...],
    *,
    operands: tuple[Slot, ...] = POSITIVE,
    per_operation: tuple[float, float] = (1.0, 1.0),
    companions: tuple[str, ...] = (),
    every: int = 1,
    calls: bool = False,
    tolerance: float = APPROXIMATE,
    support: Support = EVERYWHERE,
    unroll: int = 32,
    origin: Slot = START,
) -> Row:
    """d = f(d), with an operand added every so many steps: without it the orbit settles or leaves the domain."""
    return Row(
        name=name,
        ptx=ptx,
        templates=(f"{ptx} {{d}}, {{d}};",),
        start=origin,
        operands=operands,
        breaker=ADD,
        every=every,
        sass=sass,
        per_operation=per_operation,
        companions=companions + ADDED,
        calls=calls,
        module="sfu",
        flop=UNIT,
        tolerance=tolerance,
        support=support,
        unroll=unroll,
        patterns=("constant", "random"),
    )


def _pair(name: str, ptx: str, kind: str, sass: tuple[str, ...], support: Support) -> Row:
    """A function of two halves, with an operand added each step."""
    add = "add.rn.f16x2" if kind == "f16x2" else "fma.rn.bf16x2"
    summand = "{d}, {d}, {x};" if kind == "f16x2" else "{d}, {d}, {y}, {x};"
    return Row(
        name=name,
        ptx=ptx,
        templates=(f"{ptx} {{d}}, {{d}};",),
        start=start(kind, -1.0, -0.5),
        operands=slots(kind, *(TWICE_BELOW if kind == "f16x2" else BELOW_AND_FACTOR)),
        breaker=f"{add} {summand}",
        sass=sass,
        per_operation=(1.0, 2.0),
        companions=("HADD2", "HFMA2", "PRMT", "HMUL2", "FMUL"),
        module="sfu",
        flop=FrozenMapping({"fp16" if kind == "f16x2" else "bf16": 2.0}),
        tolerance=2.0**-5,
        support=support,
        unroll=32,
        patterns=("constant", "random"),
    )


ROWS: Final = (
    _function("rcp_rn", "rcp.rn.f32", NEWTON, per_operation=(6.0, 20.0), calls=True, tolerance=0.0, unroll=16),
    _function("rcp_approx", "rcp.approx.f32", ("MUFU.RCP",), companions=SCALED),
    _function("rcp", "rcp.approx.ftz.f32", ("MUFU.RCP",)),
    _function("sqrt_rn", "sqrt.rn.f32", NEWTON, per_operation=(6.0, 20.0), calls=True, tolerance=0.0, unroll=16),
    _function("sqrt_approx", "sqrt.approx.f32", ("MUFU.SQRT", "MUFU.RSQ"), companions=SCALED, every=4),
    _function("sqrt", "sqrt.approx.ftz.f32", ("MUFU.SQRT", "MUFU.RSQ"), companions=("FMUL", "FSETP", "FSEL"), every=4),
    _function("rsqrt_approx", "rsqrt.approx.f32", ("MUFU.RSQ",), companions=SCALED, every=2),
    _function("rsqrt", "rsqrt.approx.ftz.f32", ("MUFU.RSQ",), every=2),
    _function("sin_approx", "sin.approx.f32", ("MUFU.SIN",), companions=("FMUL",), every=2),
    _function("cos_approx", "cos.approx.f32", ("MUFU.COS",), companions=("FMUL",), every=2),
    _function("sin", "sin.approx.ftz.f32", ("MUFU.SIN",), companions=("FMUL",), every=2),
    _function("cos", "cos.approx.ftz.f32", ("MUFU.COS",), companions=("FMUL",), every=2),
    _function("lg2_approx", "lg2.approx.f32", ("MUFU.LG2",), operands=TWO_TO_FOUR, companions=SCALED),
    _function("lg2", "lg2.approx.ftz.f32", ("MUFU.LG2",), operands=TWO_TO_FOUR),
    _function("ex2_approx", "ex2.approx.f32", ("MUFU.EX2",), origin=NEGATIVE, operands=BELOW, companions=SCALED),
    _function("ex2", "ex2.approx.ftz.f32", ("MUFU.EX2",), origin=NEGATIVE, operands=BELOW),
    _function("tanh", "tanh.approx.f32", ("MUFU.TANH",), every=2),
    _pair("hex2", "ex2.approx.f16x2", "f16x2", ("MUFU.EX2",), EVERYWHERE),
    _pair("htanh2", "tanh.approx.f16x2", "f16x2", ("MUFU.TANH",), EVERYWHERE),
    _pair("bex2", "ex2.approx.ftz.bf16x2", "bf16x2", ("MUFU.EX2",), Support(minimum="sm_90", feature="ex2 of two bf16")),
    _pair("btanh2", "tanh.approx.bf16x2", "bf16x2", ("MUFU.TANH",), Support(minimum="sm_90", feature="tanh of two bf16")),
)
"""Special functions."""
