"""Phases: the ideal times that form the time of every kernel, and the events that cost energy.

A kernel's phases are columns. *Overlapped* phases run in parallel and combine by a p-norm (p → ∞ is the maximum of a roofline, p = 1
their sum); *serial* phases add; the *ceiling* is the shortest time of all. A phase that the SM clock drives is stored in SM clocks, any
other in seconds, so that one set of columns serves every clock.

Classes of columns are not compared as a whole (`eq=False`, here and elsewhere): arrays have no single truth value.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from estimator.vocabulary.quantities import MODULES, Array, IntArray
from estimator.vocabulary.values import Columns, arrays

OVERLAPPED: Final = ("math", "l2", "dram", "dram_activations", "issue", "loop", "sfu", "wait")
"""Columns of overlapped phases; `dram` and `dram_activations` are one term of the norm, with a lambda each, and so are
`loop` and `wait`: the parts of a latency that follow the SM clock and the memory."""

OVERLAPPED_TERM: Final = (0, 1, 2, 2, 3, 4, 5, 4)
"""The term of the p-norm to which each overlapped column belongs."""

OVERLAPPED_CLOCKED: Final = (True, True, False, False, True, True, True, False)
"""Whether the SM clock drives the column (then it is in SM clocks, else in seconds)."""

SERIAL: Final = (
    "prologue", "epilogue", "reduce", "reduce_launch", "reduce_start", "quantise", "waves", "rows", "row_length", "start", "store", "link",
    "chunks",
)  # fmt: skip
SERIAL_CLOCKED: Final = (True, False, True, False, True, False, True, True, True, True, True, False, False)

START_CLOCKS: Final = 1000.0
"""Ideal cost of starting and ending a kernel: the part of its fixed cost that the SM clock drives [SM clock] (assumed)."""

EVENTS: Final = MODULES
"""Counted events by module: DRAM, L2 and shared-memory bytes; tensor flop (flop of 16-bit operands that take the same time); CUDA-core
lane instructions; special functions."""


@arrays
class Phases(Columns):
    """Ideal phases and events of kernels.

    overlapped   (..., 8)  OVERLAPPED columns, [SM clock] or [s]
    serial       (..., 13)  SERIAL columns, [SM clock] or [s]
    even_math    (...,)    math clocks if blocks were spread evenly over the SMs (no wave quantisation)
    tile_area    (...,)    elements of an output tile; 0 without a tile
    events       (..., 6)  EVENTS counted
    ideal_math   (...,)    useful work at the peak rate [SM clock]
    ceiling      (...,)    a product's on tensor cores at the highest clock [s], else 0
    occupied     (...,)    share of the SMs that have a block, mean over the kernel's time; affects only power
    """

    overlapped: Array
    serial: Array
    even_math: Array
    tile_area: Array
    events: Array
    ideal_math: Array
    ceiling: Array
    occupied: Array

    def take(self, choice: IntArray) -> "Phases":
        """The chosen candidate of each row of (n, c, …): phases of shape (n, …)."""
        return self.select((np.arange(len(choice)), choice))

    def lifted(self) -> "Phases":
        """The same kernels with one candidate each: phases of shape (n, 1, …)."""
        return self.select((slice(None), None))


def make_phases(
    times: Mapping[str, Array | float],
    events: Mapping[str, Array],
    shape: tuple[int, ...],
    *,
    occupied: Array,
    even_math: Array | float = 0.0,
    tile_area: Array | float = 0.0,
    ideal_math: Array | float = 0.0,
    ceiling: Array | float = 0.0,
) -> Phases:
    """Phases of this shape from columns by name: times of OVERLAPPED and SERIAL, EVENTS; absent columns are 0."""
    return Phases(
        overlapped=_table(OVERLAPPED, times, shape),
        serial=_table(SERIAL, {"start": START_CLOCKS, **times}, shape),
        events=_table(EVENTS, events, shape),
        even_math=np.full(shape, even_math),
        tile_area=np.full(shape, tile_area),
        ideal_math=np.full(shape, ideal_math),
        ceiling=np.full(shape, ceiling),
        occupied=np.full(shape, occupied),
    )


def _table(names: Sequence[str], columns: Mapping[str, Array | float], shape: tuple[int, ...]) -> Array:
    found = np.zeros((*shape, len(names)))
    for place, name in enumerate(names):
        if name in columns:
            found[..., place] = columns[name]
    return found


Label = TypeVar("Label", bound=Hashable)


def members(labels: Iterable[Label]) -> dict[Label, IntArray]:
    """Positions of each label, in first-seen order."""
    found: dict[Label, list[int]] = {}
    for i, label in enumerate(labels):
        found.setdefault(label, []).append(i)
    return {label: np.array(index, dtype=np.int64) for label, index in found.items()}


def join_phases(parts: Sequence[Phases], index: Sequence[IntArray], count: int) -> Phases:
    """Phases of `count` kernels from parts, each with the rows of its kernels; every row is in exactly one part."""
    if len(parts) == 1 and (index[0][1:] > index[0][:-1]).all():
        return parts[0]  # all rows in their order
    joined = {name: np.empty((count, *getattr(parts[0], name).shape[1:])) for name in Phases.__slots__}
    for part, rows in zip(parts, index, strict=True):
        for name, column in joined.items():
            column[rows] = getattr(part, name)
    return Phases(**joined)
