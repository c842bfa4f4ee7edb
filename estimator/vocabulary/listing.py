"""Listing: operators in the order in which they run, before they are merged into a Workload.

Neighbours say what a single operator cannot: that an addition between two products masks attention scores, or
that a 3×3 convolution after an expanding one is depthwise.  Repeats share one Operator, so that a list of a
thousand entries is a thousand small integers.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from estimator.vocabulary.quantities import IntArray
from estimator.vocabulary.workload import Operator, UnknownOperator


def index_array(order: Sequence[int]) -> IntArray:
    """Small integers as an array, shape (n,); by way of the standard library's arrays, which is several times faster."""
    return np.frombuffer(array("q", order), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """`operators`, each once, `order`: indices into them, in execution order, and `counts`: how often each stands there.

    `unknown` entries are left out of `order`.
    """

    operators: tuple[Operator, ...]
    order: tuple[int, ...]
    counts: tuple[float, ...]
    unknown: tuple[UnknownOperator, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def places(self, numbers: Collection[int]) -> list[int]:
        """Where in `order` one of some operators stands, ascending."""
        wanted = np.zeros(len(self.operators), dtype=np.bool_)
        wanted[list(numbers)] = True
        found: list[int] = np.flatnonzero(wanted[self._order]).tolist()
        return found

    @cached_property
    def _order(self) -> IntArray:
        return index_array(self.order)


def main_precision(operators: Sequence[Operator], counts: Sequence[float]) -> str:
    """The precision of most matrix products, or of most operators where there are none; "" where there is no operator."""
    products: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for operator, count in zip(operators, counts, strict=True):
        tally = products if operator.family in ("gemm", "conv", "attention") else others
        tally[operator.precision] += int(count)
    ranked = (products or others).most_common(1)
    return ranked[0][0] if ranked else ""
