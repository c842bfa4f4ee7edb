"""Kernels of Rodinia for the block-count model: heat on a plate, and the two of a neural layer.

Sources: Boughzala et al.; Che et al., "Rodinia" (2009).  Written anew.
"""

from typing import Final

from microbench.families.block_frame import BlockKernel, real, result, store_result, stream
from microbench.families.frames import WORD_BYTES
from microbench.kernel import Kernel

SIDE: Final = 16

AREA: Final = SIDE * SIDE

HEAT_RATE: Final = 0.1
"""Share of the difference to a neighbour that moves in one step: below a quarter, so that it stays stable."""

AMBIENT: Final = 80.0

AMBIENT_RATE: Final = 0.01

LEARNING_RATE: Final = 0.3

MOMENTUM: Final = 0.3
"""Of Rodinia's backprop."""

STEPS_OF_SUM: Final = 4
"""Halvings that add up sixteen rows."""

ADDING: Final = 1.0 - 2.0**-STEPS_OF_SUM
"""Additions of a thread in that sum, on average: half, a quarter… of the threads add."""


def _hotspot() -> Kernel:
    """Heat on a 16 × 16 tile that keeps its own border: one step a turn, two barriers."""
    row = SIDE * WORD_BYTES
    body = ["ld.global.b32 power, [at_powers];"]
    for side in ("north", "south", "west", "east"):
        body.append(f"ld.shared.b32 {side}, [to_{side}];")
    body += [
        "add.rn.f32 x, north, south;",
        "add.rn.f32 y, west, east;",
        "add.rn.f32 x, x, y;",
        f"fma.rn.f32 x, heat, {real(-4.0)}, x;",
        f"fma.rn.f32 x, x, {real(HEAT_RATE)}, heat;",
        f"sub.rn.f32 y, {real(AMBIENT)}, heat;",
        f"fma.rn.f32 x, y, {real(AMBIENT_RATE)}, x;",
        "add.rn.f32 heat, x, power;",
        "bar.sync 0;",
        "st.shared.b32 [cell], heat;",
        "bar.sync 0;",
    ]
    return BlockKernel(
        name="hotspot_16",
        threads=AREA,
        buffers=(stream("powers", 0.0, 1.0), stream("heats", 70.0, 90.0), result("result", "heat")),
        floats=("power", "heat", "north", "south", "west", "east", "x", "y"),
        integers=("cell", "column", "row", "to_north", "to_south", "to_west", "to_east"),
        predicates=("border",),
        shared=f".shared .align 16 .b8 plate[{AREA * WORD_BYTES}];",
        before=[
            "ld.global.b32 heat, [at_heats];",
            "mov.u32 cell, plate;",
            f"mad.lo.u32 cell, local, {WORD_BYTES}, cell;",
            "st.shared.b32 [cell], heat;",
            f"and.b32 column, local, {SIDE - 1};",
            "shr.u32 row, local, 4;",
            *_neighbour("to_north", "row", 0, f"sub.u32 to_north, cell, {row};"),
            *_neighbour("to_south", "row", SIDE - 1, f"add.u32 to_south, cell, {row};"),
            *_neighbour("to_west", "column", 0, f"sub.u32 to_west, cell, {WORD_BYTES};"),
            *_neighbour("to_east", "column", SIDE - 1, f"add.u32 to_east, cell, {WORD_BYTES};"),
            "bar.sync 0;",
        ],
        body=body,
        after=store_result("result", "heat"),
        fewest=14,
        most=17,
        flop=12.0,
        moved=float(WORD_BYTES),
        shared_bytes=5.0 * WORD_BYTES,
    ).kernel()


def _neighbour(register: str, along: str, edge: int, step: str) -> list[str]:
    """The address of a neighbour; at the edge, the cell's own."""
    return [step, f"setp.eq.u32 border, {along}, {edge};", f"selp.b32 {register}, cell, {register}, border;"]


def _layer_forward() -> Kernel:
    """Backprop's first kernel: weights times inputs, added up over sixteen rows by halving."""
    body = [
        "ld.global.b32 weight, [at_weights];",
        "mul.rn.f32 x, weight, input;",
        "st.shared.b32 [cell], x;",
        "bar.sync 0;",
    ]
    for step in range(STEPS_OF_SUM):
        reach = 1 << step
        body += [
            f"@adds{step} ld.shared.b32 x, [cell];",
            f"@adds{step} ld.shared.b32 y, [cell+{reach * SIDE * WORD_BYTES}];",
            f"@adds{step} add.rn.f32 x, x, y;",
            f"@adds{step} st.shared.b32 [cell], x;",
            "bar.sync 0;",
        ]
    body += ["ld.shared.b32 y, [top];", "add.rn.f32 sum, sum, y;", "bar.sync 0;"]
    masks = [
        line for step in range(STEPS_OF_SUM) for line in (f"and.b32 column, row, {(2 << step) - 1};", f"setp.eq.u32 adds{step}, column, 0;")
    ]
    return BlockKernel(
        name="backprop_forward_16",
        threads=AREA,
        buffers=(stream("weights", -1.0, 1.0), stream("inputs", -1.0, 1.0), result("result", "sum")),
        floats=("weight", "input", "x", "y", "sum"),
        integers=("cell", "row", "column", "top"),
        predicates=tuple(f"adds{step}" for step in range(STEPS_OF_SUM)),
        shared=f".shared .align 16 .b8 layer[{AREA * WORD_BYTES}];",
        before=[
            "ld.global.b32 input, [at_inputs];",
            "mov.u32 top, layer;",
            f"mad.lo.u32 cell, local, {WORD_BYTES}, top;",
            "shr.u32 row, local, 4;",
            *masks,
            f"and.b32 column, local, {SIDE - 1};",
            f"mad.lo.u32 top, column, {WORD_BYTES}, top;",
            f"mov.b32 sum, {real(0.0)};",
        ],
        body=body,
        after=store_result("result", "sum"),
        fewest=18,
        most=32,
        flop=2.0 + ADDING,
        moved=float(WORD_BYTES),
        shared_bytes=(2.0 + 3.0 * ADDING) * WORD_BYTES,
        guarded={"ld.shared.b32": 2.0 * ADDING, "add.rn.f32": ADDING, "st.shared.b32": ADDING},
    ).kernel()


def _adjust_weights() -> Kernel:
    """Backprop's second kernel: weights moved along the gradient, with momentum."""
    return BlockKernel(
        name="backprop_adjust_16",
        threads=AREA,
        buffers=(
            stream("weights", -1.0, 1.0, written=True),
            stream("earlier", -0.1, 0.1, written=True),
            stream("delta", -0.1, 0.1),
            stream("layer", -1.0, 1.0),
        ),
        floats=("weight", "old", "change", "slope", "input"),
        before=["ld.global.b32 slope, [at_delta];", "ld.global.b32 input, [at_layer];"],
        body=[
            "ld.global.b32 weight, [at_weights];",
            "ld.global.b32 old, [at_earlier];",
            f"mul.rn.f32 change, slope, {real(LEARNING_RATE)};",
            "mul.rn.f32 change, change, input;",
            f"fma.rn.f32 change, old, {real(MOMENTUM)}, change;",
            "add.rn.f32 weight, weight, change;",
            "st.global.b32 [at_weights], weight;",
            "st.global.b32 [at_earlier], change;",
        ],
        fewest=6,
        most=8,
        flop=5.0,
        moved=4.0 * WORD_BYTES,
    ).kernel()


KERNELS: Final = (_hotspot(), _layer_forward(), _adjust_weights())
"""Kernels of Rodinia in the block-count model."""
