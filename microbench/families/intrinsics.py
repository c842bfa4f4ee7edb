"""Integer intrinsics: bit counts, differences, dot products of bytes, video and dynamic-programming instructions."""

from typing import Final

from estimator.frozen import FrozenMapping
from microbench.families.integer import ADDERS, ANY, ANY_S32, LOGIC, MOVES, T
from microbench.families.rows import ANY_U32, Row, slots, start
from microbench.kernel import Support

WORD_24: Final = (0.0, 2.0**24 - 1)
START: Final = start("u32", *ANY_U32)
BYTES: Final = slots("u8x4", ANY_U32, ANY_U32, ANY_U32, ANY_U32)


def _count(name: str, ptx: str, sass: tuple[str, ...], companions: tuple[str, ...] = ()) -> Row:
    """A count of bits, spread over the word again by a product: counts alone settle at a small number."""
    return Row(
        name=name,
        ptx=ptx,
        templates=(f"{ptx} t, {{d}};\nmad.lo.u32 {{d}}, t, {{x}}, {{y}};",),
        temporaries=T,
        start=START,
        operands=ANY,
        sass=sass,
        companions=("IMAD", *companions),
        unroll=32,
    )


ROWS: Final = (
    Row(
        name="mul24",
        ptx="mul24.lo.u32",
        templates=("mul24.lo.u32 {d}, {d}, {x};",),
        start=start("u32", *WORD_24, odd=True),
        operands=slots("u32", WORD_24, WORD_24, WORD_24, WORD_24, odd=True),
        sass=("IMAD", "PRMT", "LOP3"),
        per_operation=(2.0, 3.0),
        unroll=32,
    ),
    Row(
        name="mul24_hi",
        ptx="mul24.hi.u32",
        templates=("mul24.hi.u32 {d}, {d}, {x};",),
        start=START,
        operands=ANY,
        breaker="xor.b32 {d}, {d}, {x};",
        sass=("IMAD.WIDE", "IMAD.HI", "PRMT", "LOP3", "SHF"),
        per_operation=(3.0, 6.0),
        companions=MOVES,
        unroll=32,
    ),
    Row(
        name="mad24",
        ptx="mad24.lo.u32",
        templates=("mad24.lo.u32 {d}, {d}, {x}, {y};",),
        start=start("u32", *WORD_24, odd=True),
        operands=slots("u32", WORD_24, WORD_24, WORD_24, WORD_24, odd=True),
        sass=("IMAD", "PRMT", "LOP3"),
        per_operation=(2.0, 3.0),
        unroll=32,
    ),
    Row(
        name="sad_s32",
        ptx="sad.s32",
        templates=("sad.s32 {d}, {d}, {x}, {y};",),
        start=start("s32", *ANY_S32),
        operands=ANY,
        sass=("VABSDIFF", "VIMNMX", "IADD3", "IMNMX", "VIADD", "IMAD.IADD", "IABS", "IADD", "VIADDMNMX"),
        per_operation=(1.0, 4.0),
        companions=MOVES,
    ),
    Row(
        name="sad_u32",
        ptx="sad.u32",
        templates=("sad.u32 {d}, {d}, {x}, {y};",),
        start=START,
        operands=ANY,
        sass=("VABSDIFF", "VIMNMX", "IADD3", "IMNMX", "VIADD", "IMAD.IADD", "IADD", "VIADDMNMX"),
        per_operation=(1.0, 4.0),
        companions=MOVES,
    ),
    _count("popc", "popc.b32", ("POPC",)),
    _count("clz", "clz.b32", ("FLO",), ADDERS),
    _count("bfind_u32", "bfind.u32", ("FLO",)),
    _count("bfind_s32", "bfind.s32", ("FLO",)),
    _count("bfind_shift", "bfind.shiftamt.u32", ("FLO",)),
    Row(
        name="dp4a",
        ptx="dp4a.s32.s32",
        templates=("dp4a.s32.s32 {d}, {d}, {x}, {y};",),
        start=start("u8x4", *ANY_U32),
        operands=BYTES,
        sass=("IDP.4A",),
        flop=FrozenMapping({"int8": 8.0}),
    ),
    Row(
        name="dp2a",
        ptx="dp2a.lo.s32.s32",
        templates=("dp2a.lo.s32.s32 {d}, {d}, {x}, {y};",),
        start=start("u8x4", *ANY_U32),
        operands=BYTES,
        sass=("IDP.2A",),
        flop=FrozenMapping({"int8": 4.0}),
    ),
    Row(
        name="vabsdiff4",
        ptx="vabsdiff4.u32.u32.u32.add",
        templates=("vabsdiff4.u32.u32.u32.add {d}, {d}, {x}, {y};",),
        start=start("u8x4", *ANY_U32),
        operands=BYTES,
        sass=("VABSDIFF4",),
        support=Support(lacking=FrozenMapping({"sm_120": "vabsdiff4 is emulated there"})),
        companions=MOVES,
    ),
    Row(
        name="dpx_addmax",
        ptx="max.s32",
        templates=("add.s32 t, {d}, {x};\nmax.s32 t, t, {n};\nxor.b32 {d}, t, {y};",),
        temporaries=T,
        start=start("s32", *ANY_S32),
        operands=ANY,
        sass=("IMNMX", "VIMNMX", "VIADDMNMX"),
        companions=(*ADDERS, *LOGIC),
        unroll=32,
    ),
)
"""Integer intrinsics."""
