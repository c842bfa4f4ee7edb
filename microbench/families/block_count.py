"""The kernels from which time and energy per thread block are learnt: vector sum, matrix product, option prices.

One block does the same work whatever the grid; `iterations` repeats it on the next part of the block's region, so that a round of
blocks lasts long enough for a sensor.  Source: Boughzala et al.; the programs are those of the CUDA samples and of Rodinia
(Che et al., 2009), written anew.
"""

from typing import Final

from microbench.families.block_frame import BlockKernel, real, result, store_result, stream
from microbench.families.frames import WORD_BYTES
from microbench.kernel import Kernel

VECTOR_BLOCKS: Final = (256, 512, 1024)

TILES: Final = (16, 32)

OPTIONS_BLOCK: Final = 128

RISK_FREE: Final = 0.02

VOLATILITY: Final = 0.30
"""Of the CUDA sample BlackScholes, a year."""

NORMAL_SLOPE: Final = 0.2316419

NORMAL_TERMS: Final = (0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429)
"""The cumulative normal distribution as a polynomial (Abramowitz and Stegun, 26.2.17)."""

INVERSE_ROOT_TWO_PI: Final = 0.39894228040143267794
LOG2_OF_E: Final = 1.4426950408889634
LN_2: Final = 0.6931471805599453

HALF: Final = 0.5


def _vector_add(threads: int) -> Kernel:
    """c = a + b, one element a thread."""
    return BlockKernel(
        name=f"vector_add_{threads}",
        threads=threads,
        buffers=(stream("a", -1.0, 1.0), stream("b", -1.0, 1.0), stream("c", 0.0, 0.0, written=True)),
        floats=("x", "y"),
        body=["ld.global.b32 x, [at_a];", "ld.global.b32 y, [at_b];", "add.rn.f32 x, x, y;", "st.global.b32 [at_c], x;"],
        fewest=4,
        most=4,
        flop=1.0,
        moved=3.0 * WORD_BYTES,
    ).kernel()


def _matrix_product(side: int) -> Kernel:
    """One tile of C: tiles of A and B through shared memory, one pair a turn."""
    tile = side * side * WORD_BYTES
    products = []
    for k in range(side):
        products += [
            f"ld.shared.b32 x, [row+{k * WORD_BYTES}];",
            f"ld.shared.b32 y, [column+{tile + k * side * WORD_BYTES}];",
            "fma.rn.f32 sum, x, y, sum;",
        ]
    return BlockKernel(
        name=f"matrix_mul_{side}",
        threads=side * side,
        buffers=(stream("a", -1.0, 1.0), stream("b", -1.0, 1.0), result("c", "sum")),
        floats=("x", "y", "sum"),
        integers=("row", "column", "cell"),
        shared=f".shared .align 16 .b8 tiles[{2 * tile}];",
        before=[
            "mov.u32 cell, tiles;",
            f"shr.u32 row, local, {side.bit_length() - 1};",
            f"mad.lo.u32 row, row, {side * WORD_BYTES}, cell;",
            f"and.b32 column, local, {side - 1};",
            f"mad.lo.u32 column, column, {WORD_BYTES}, cell;",
            f"mad.lo.u32 cell, local, {WORD_BYTES}, cell;",
            f"mov.b32 sum, {real(0.0)};",
        ],
        body=[
            "ld.global.b32 x, [at_a];",
            "ld.global.b32 y, [at_b];",
            "st.shared.b32 [cell], x;",
            f"st.shared.b32 [cell+{tile}], y;",
            "bar.sync 0;",
            *products,
            "bar.sync 0;",
        ],
        after=store_result("c", "sum"),
        fewest=side + 6,
        most=3 * side + 8,
        flop=2.0 * side,
        moved=2.0 * WORD_BYTES,
        shared_bytes=(2.0 * side + 2.0) * WORD_BYTES,
    ).kernel()


def _normal(target: str, source: str) -> list[str]:
    """The cumulative normal distribution of `source`."""
    lines = [
        f"abs.f32 size, {source};",
        f"fma.rn.f32 k, size, {real(NORMAL_SLOPE)}, {real(1.0)};",
        "rcp.approx.ftz.f32 k, k;",
        f"mul.rn.f32 e, {source}, {source};",
        f"mul.rn.f32 e, e, {real(-HALF * LOG2_OF_E)};",
        "ex2.approx.ftz.f32 e, e;",
        f"mul.rn.f32 e, e, {real(INVERSE_ROOT_TWO_PI)};",
        f"mov.b32 p, {real(NORMAL_TERMS[-1])};",
    ]
    lines += [f"fma.rn.f32 p, p, k, {real(term)};" for term in reversed(NORMAL_TERMS[:-1])]
    return [
        *lines,
        "mul.rn.f32 p, p, k;",
        "mul.rn.f32 p, p, e;",
        f"sub.rn.f32 e, {real(1.0)}, p;",
        f"setp.gt.f32 positive, {source}, {real(0.0)};",
        f"selp.b32 {target}, e, p, positive;",
    ]


def _black_scholes() -> Kernel:
    """Prices of a call and a put, one pair a thread."""
    body = [
        "ld.global.b32 price, [at_prices];",
        "ld.global.b32 strike, [at_strikes];",
        "ld.global.b32 years, [at_terms];",
        "sqrt.approx.ftz.f32 root, years;",
        "rcp.approx.ftz.f32 k, strike;",
        "mul.rn.f32 p, price, k;",
        "lg2.approx.ftz.f32 p, p;",
        f"mul.rn.f32 p, p, {real(LN_2)};",
        f"fma.rn.f32 p, years, {real(RISK_FREE + HALF * VOLATILITY * VOLATILITY)}, p;",
        f"mul.rn.f32 e, root, {real(VOLATILITY)};",
        "rcp.approx.ftz.f32 k, e;",
        "mul.rn.f32 one, p, k;",
        "sub.rn.f32 two, one, e;",
        *_normal("n_one", "one"),
        *_normal("n_two", "two"),
        f"mul.rn.f32 e, years, {real(-RISK_FREE * LOG2_OF_E)};",
        "ex2.approx.ftz.f32 e, e;",
        "mul.rn.f32 e, e, strike;",
        "mul.rn.f32 p, e, n_two;",
        "mul.rn.f32 k, price, n_one;",
        "sub.rn.f32 call, k, p;",
        "sub.rn.f32 put, e, price;",
        "add.rn.f32 put, put, call;",
        "st.global.b32 [at_calls], call;",
        "st.global.b32 [at_puts], put;",
    ]
    return BlockKernel(
        name=f"black_scholes_{OPTIONS_BLOCK}",
        threads=OPTIONS_BLOCK,
        buffers=(
            stream("prices", 5.0, 30.0),
            stream("strikes", 1.0, 100.0),
            stream("terms", 0.25, 10.0),
            stream("calls", 0.0, 0.0, written=True),
            stream("puts", 0.0, 0.0, written=True),
        ),
        floats=("price", "strike", "years", "root", "k", "p", "e", "one", "two", "size", "n_one", "n_two", "call", "put"),
        predicates=("positive",),
        body=body,
        fewest=45,
        most=60,
        flop=float(sum(line.split()[0].split(".")[0] in ("mul", "add", "sub", "rcp", "ex2", "lg2", "sqrt") for line in body))
        + 2.0 * sum(line.startswith("fma") for line in body),
        moved=5.0 * WORD_BYTES,
        tolerance=2.0**-14,
    ).kernel()


KERNELS: Final = (
    *(_vector_add(threads) for threads in VECTOR_BLOCKS),
    *(_matrix_product(side) for side in TILES),
    _black_scholes(),
)
"""Kernels of the CUDA samples in the block-count model."""
