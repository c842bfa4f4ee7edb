"""Workloads whose operators state how their sizes grow: every size is a sum of terms constant · batchⁱ · sequenceʲ."""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from math import prod

from estimator.errors import WorkloadError
from estimator.workload import FAMILY_FIELDS, Growth, Operator, Resizing, Term, Workload, merge_counts

FRACTIONAL = frozenset({"reads"})
"""Fields that need not be whole: bytes of several tensors, in elements of one of them."""


def without_growth(workload: Workload) -> Workload:
    """The workload without what its operators state of growth; those that differ by it alone are merged."""
    if workload.resizing is None:
        return workload
    operators, counts = merge_counts((replace(operator, growth=()) for operator in workload.operators), workload.counts)
    return replace(workload, operators=operators, counts=counts, resizing=None)


def check_range(name: str, resizing: Resizing, batch: int, sequence: int) -> None:
    """Raises WorkloadError for sizes beyond those between which the law was seen."""
    wanted = {"batch": batch, "sequence": sequence}
    for size, value in wanted.items():
        least, most = getattr(resizing, f"{size}_least"), getattr(resizing, f"{size}_most")
        if not least <= value <= most:
            raise WorkloadError(
                f"{name}: its growth was seen from {size} {least} to {most}, so that it is not rescaled to {size} {value}; "
                "trace the model at the sizes wanted"
            )


def size_ratio(growth: Growth, at: tuple[int, int], to: tuple[int, int]) -> Fraction:
    """How much larger a size of this growth is at batch and sequence `to` than `at`."""
    return prod((Fraction(new or 1, old or 1) ** power for new, old, power in zip(to, at, growth, strict=True)), start=Fraction(1))


def grown_operators(operators: Iterable[Operator], at: tuple[int, int], to: tuple[int, int]) -> list[Operator]:
    """Operators, which were written down for batch and sequence `at`, at the sizes `to`, with their growth.

    Raises WorkloadError where a size would not stay whole.
    """
    ratios: dict[Growth, Fraction] = {}
    return [_grown(operator, ratios, at, to) if operator.growth else operator for operator in operators]


def _grown(operator: Operator, ratios: dict[Growth, Fraction], at: tuple[int, int], to: tuple[int, int]) -> Operator:
    shape, growth = operator.named_shape(), []
    for name, terms in operator.growth:
        parts = []
        for size, power in terms:
            if power not in ratios:
                ratios[power] = size_ratio(power, at, to)
            parts.append(Term(float(Fraction(size) * ratios[power]), power))
        before, shape[name] = shape[name], sum(part.size for part in parts)
        if name not in FRACTIONAL and not shape[name].is_integer():
            raise WorkloadError(f"{operator.family}.{operator.operator}: {name} = {before:g} would become {shape[name]:g}")
        growth.append((name, tuple(parts)))
    ordered = tuple(shape[name] for name in FAMILY_FIELDS[operator.family])
    return replace(operator, shape=ordered, growth=tuple(growth))
