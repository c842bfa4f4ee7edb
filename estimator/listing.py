"""Listing: operators in the order in which they run, before they are merged into a Workload.

Neighbours say what a single operator cannot: that an addition between two products masks attention scores, or
that a 3×3 convolution after an expanding one is depthwise.  Repeats share one Operator, so that a list of a
thousand entries is a thousand small integers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from estimator.workload import Operator, UnknownOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """`operators`, each once, and `order`: indices into them, in execution order.

    `unknown` entries are left out of `order`.  `sequences_hint` is the batch size that a file name states, 0
    where it states none; shapes come first.
    """

    operators: tuple[Operator, ...]
    order: tuple[int, ...]
    unknown: tuple[UnknownOperator, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sequences_hint: int = 0

    def counts(self) -> list[float]:
        """How often each of `operators` runs."""
        counter = Counter(self.order)
        return [float(counter[i]) for i in range(len(self.operators))]


def main_precision(operators: Sequence[Operator], counts: Sequence[float]) -> str:
    """The precision of most matrix products, or of most operators where there are none; "" where there is no operator."""
    products: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for operator, count in zip(operators, counts, strict=True):
        tally = products if operator.family in ("gemm", "conv", "attention") else others
        tally[operator.precision] += int(count)
    ranked = (products or others).most_common(1)
    return ranked[0][0] if ranked else ""
