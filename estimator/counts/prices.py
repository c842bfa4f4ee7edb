"""Price of a class of instructions: its own energy, the energy of a similar class, the shared energy of rare classes, or no price.

A matrix instruction costs hundreds of times the energy of others, so the shared energy of rare classes does not describe it.  If it was
not measured, its price is the energy of a measured one of the same unit and number formats, scaled by the number of products; a sparse
one does half of the products that its shape names.
"""

import math
import re
from collections.abc import Collection
from typing import Final

from estimator.counts.opcodes import RARE, SHAPED
from estimator.vocabulary.values import frozen

LIKE_SPREAD: Final = 0.3
"""Error of a product's energy in a matrix instruction of another shape, or in a sparse one [relative].  Assumed: operands of small
shapes are reused less often, and sparse operands are selected by an index, before a product that costs the same."""

RARE_SPREAD: Final = 0.7
"""Spread of the energies of rare classes around their shared energy [relative]: as large as the spread of measured classes."""

SPARSE: Final = "SP"
"""Word of instructions that do half of the products in their shape: two of four operands are zero and skipped (PTX ISA, mma.sp)."""

SHAPE: Final = re.compile(r"(\d+)x(\d+)x(\d+)|(16|8)(8)(4|8|16|32|64|128|256)")


@frozen
class Price:
    """The price of a class.

    name     class whose energy is used; "" if no class applies
    factor   instructions of that class whose lanes cost as much as one of this
    spread   error of the price, in addition to the error of that class's energy [relative]
    reason   why the energy is not the class's own; "" if it is
    """

    name: str
    factor: float = 1.0
    spread: float = 0.0
    reason: str = ""


def price_of(name: str, known: Collection[str]) -> Price:
    """The price of a class, given the classes with known energies."""
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
    """Products of one matrix instruction, for whole matrices: 2048 for HMMA.16816; 0 if its name has no shape."""
    words = name.split(".")
    shape = next(filter(None, map(SHAPE.fullmatch, words[1:])), None)
    return math.prod(float(edge) for edge in shape.groups() if edge) * (0.5 if SPARSE in words else 1.0) if shape else 0.0


def _kind(name: str) -> tuple[str, ...]:
    """Unit and number formats: the words of a class without its shape, sparsity and saturation."""
    return tuple(word for word in name.split(".") if word not in (SPARSE, "SAT") and not SHAPE.fullmatch(word))
