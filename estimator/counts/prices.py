"""What a class of instructions is priced at: its own energy, that of a like one, that which rare ones share, or none.

A matrix instruction costs hundreds of times what others cost, so that what rare classes share says nothing about it.  Without an energy of
its own it takes that of a measured one of the same unit and number formats, by the products that both do; a sparse one does half of
the products that its shape names.
"""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from estimator.counts.opcodes import RARE, SHAPED

LIKE_SPREAD: Final = 0.3
"""How much a product may cost more or less in a matrix instruction of another shape, or in a sparse one [relative].  Assumed: operands of
small shapes are used less often, and sparse ones are chosen by an index, before a product that costs the same."""

RARE_SPREAD: Final = 0.7
"""How much the energies of rare classes differ from their common one [relative]: as much as those of the others do."""

SPARSE: Final = "SP"
"""Word of instructions that do half of the products that their shape names: two of four operands are zero and left out (PTX ISA,
mma.sp)."""

SHAPE: Final = re.compile(r"(\d+)x(\d+)x(\d+)|(16|8)(8)(4|8|16|32|64|128|256)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """How a class is priced.

    name     class whose energy is taken; "" where there is none that says anything about it
    factor   instructions of that class whose lanes cost as much as one of this
    spread   how far the price may be off, beyond the error of that class's energy [relative]
    reason   why the energy is not the class's own; "" where it is
    """

    name: str
    factor: float = 1.0
    spread: float = 0.0
    reason: str = ""


def price_of(name: str, known: Collection[str]) -> Price:
    """The price of a class where energies of `known` classes are there."""
    if name in known:
        return Price(name=name)
    if is_matrix(name):
        return _like(name, known)
    if RARE in known:
        return Price(name=RARE, spread=RARE_SPREAD, reason="no run is made of it; at the energy that rare classes share")
    return Price(name="", reason="not measured")


def is_matrix(name: str) -> bool:
    """Whether a class is one of matrix instructions."""
    return name.partition(".")[0] in SHAPED


def _like(name: str, known: Collection[str]) -> Price:
    """The price of a matrix instruction by the nearest measured one of its unit and formats."""
    products, kind = products_of(name), _kind(name)
    alike = {other: products_of(other) for other in known if is_matrix(other) and _kind(other) == kind}
    ratios = {other: products / count for other, count in alike.items() if products > 0 and count > 0}
    if not ratios:
        return Price(name="", reason=f"no run is made of it, nor of another {'.'.join(kind)} instruction that could stand for it")
    nearest = min(sorted(ratios), key=lambda other: (abs(math.log(ratios[other])), SPARSE in other.split(".")))
    factor = ratios[nearest]
    times = "" if factor == 1.0 else f" times {factor:.3g}"
    return Price(name=nearest, factor=factor, spread=LIKE_SPREAD, reason=f"no run is made of it; at the energy of {nearest}{times}")


def products_of(name: str) -> float:
    """Products of one matrix instruction, of whole matrices: 2048 for HMMA.16816; 0 where its name does not say its shape."""
    words = name.split(".")
    shape = next(filter(None, map(SHAPE.fullmatch, words[1:])), None)
    return math.prod(float(edge) for edge in shape.groups() if edge) * (0.5 if SPARSE in words else 1.0) if shape else 0.0


def _kind(name: str) -> tuple[str, ...]:
    """Unit and number formats: the words of a class without its shape, sparsity, and whether its sums stop at the largest number."""
    return tuple(word for word in name.split(".") if word not in (SPARSE, "SAT") and not SHAPE.fullmatch(word))
