"""Single precision: additions, products, extremes, quotients."""

from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.rows import Row, slots, start
from microbench.kernel import Slot

CONTRACTING: Final = (0.9, 0.999)
"""Factors below 1: the orbit of d·x + y stays bounded and does not settle, since x and y change each step."""

ONE_TO_TWO: Final = (1.0, 2.0)
BELOW: Final = (-2.0, -1.0)
UNIT: Final = FrozenMapping({"fp32": 1.0})
FUSED: Final = FrozenMapping({"fp32": 2.0})
START: Final = start("f32", 1.0, 2.0, never_zero=True)
NORMAL: Final = slots("f32", ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO, never_zero=True)
MOVES: Final = ("MOV", "IMAD.MOV", "IMAD.U32", "CS2R")

DIVISION: Final = (
    "MUFU.RCP",
    "FFMA",
    "FCHK",
    "FMUL",
    "FADD",
    "MOV",
    "IMAD.MOV",
    "BSSY",
    "BSYNC",
    "BRA",
    "CALL",
    "BREAK",
    "BMOV",
    "WARPSYNC",
    "FSETP",
)
"""What an IEEE quotient is made of: a reciprocal, Newton steps, and a call for operands near the ends of the range."""


def there_and_back(kind: str, low: float, high: float) -> tuple[Slot, ...]:
    """Operands x0, −x0, x2, −x2: sums that come back and never grow."""
    return tuple(Slot(name=f"x{place}", kind=kind, low=low, high=high, negates=f"x{place - 1}" if place % 2 else "") for place in range(4))


def times_and_over(kind: str, low: float, high: float) -> tuple[Slot, ...]:
    """Operands x0, 1/x0, x2, 1/x2: products that come back and never grow."""
    return tuple(
        Slot(name=f"x{place}", kind=kind, low=low, high=high, never_zero=True, inverts=f"x{place - 1}" if place % 2 else "")
        for place in range(4)
    )


def affine(kind: str) -> tuple[Slot, ...]:
    """Factors below 1 and summands around them, in turn."""
    return slots(kind, CONTRACTING, (0.1, 0.5), CONTRACTING, (-0.5, -0.1))


def _quotient(name: str, ptx: str, sass: tuple[str, ...], per_operation: tuple[float, float], *, tolerance: float, calls: bool) -> Row:
    """x / d and x / (x / d): every operand twice, so that the value comes back."""
    return Row(
        name=name,
        ptx=ptx,
        templates=(f"{ptx} {{d}}, {{x}}, {{d}};", f"{ptx} {{d}}, {{w}}, {{d}};"),
        start=START,
        operands=NORMAL,
        sass=sass,
        per_operation=per_operation,
        flop=UNIT,
        unroll=16,
        calls=calls,
        tolerance=tolerance,
        patterns=("constant", "random"),
    )


ROWS: Final = (
    Row(
        name="fadd",
        ptx="add.rn.f32",
        templates=("add.rn.f32 {d}, {d}, {x};",),
        start=START,
        operands=there_and_back("f32", 0.5, 1.5),
        sass=("FADD",),
        flop=UNIT,
    ),
    Row(
        name="fsub",
        ptx="sub.rn.f32",
        templates=("sub.rn.f32 {d}, {x}, {d};", "sub.rn.f32 {d}, {w}, {d};"),
        start=START,
        operands=slots("f32", ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO, ONE_TO_TWO),
        sass=("FADD",),
        flop=UNIT,
    ),
    Row(
        name="fmul",
        ptx="mul.rn.f32",
        templates=("mul.rn.f32 {d}, {d}, {x};",),
        start=START,
        operands=times_and_over("f32", 0.7, 1.4),
        sass=("FMUL",),
        flop=UNIT,
    ),
    Row(
        name="ffma",
        ptx="fma.rn.f32",
        templates=("fma.rn.f32 {d}, {d}, {x}, {y};", "fma.rn.f32 {d}, {d}, {w}, {z};"),
        start=START,
        operands=affine("f32"),
        sass=("FFMA",),
        flop=FUSED,
    ),
    Row(
        name="fminmax",
        ptx="min.f32",
        templates=("min.f32 {d}, {d}, {x};", "max.f32 {d}, {d}, {x};"),
        start=START,
        operands=slots("f32", BELOW, ONE_TO_TWO, BELOW, ONE_TO_TWO),
        sass=("FMNMX",),
        flop=UNIT,
    ),
    _quotient("fdiv_rn", "div.rn.f32", DIVISION, (8.0, 20.0), tolerance=0.0, calls=True),
    _quotient(
        "fdiv_full",
        "div.full.f32",
        ("MUFU.RCP", "FMUL", "FSETP", "FFMA", "FSEL", "FADD", *MOVES),
        (2.0, 9.0),
        tolerance=2.0**-20,
        calls=False,
    ),
    _quotient("fdiv_approx", "div.approx.ftz.f32", ("MUFU.RCP", "FMUL"), (2.0, 2.0), tolerance=2.0**-20, calls=False),
    Row(
        name="copysign",
        ptx="copysign.f32",
        templates=("copysign.f32 {d}, {n}, {d};",),
        start=start("f32", -2.0, 2.0),
        sass=("LOP3",),
    ),
)
"""Single precision."""
