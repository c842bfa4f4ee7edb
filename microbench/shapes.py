"""Kernels to run: seeded, stratified draws from ranges of shapes.

Every field of a group is stratified separately (a Latin hypercube in the logarithm), so that a group of n kernels
has one value in each n-th part of every range.
"""

import math
from collections.abc import Mapping
from typing import Annotated

import numpy as np

from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, Array
from estimator.vocabulary.reader import LEAST_ONE, FaultError, Span, Words, read
from estimator.vocabulary.values import frozen
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import FAMILY_FIELDS, FAMILY_OPERATORS, TABLED, Operator, make_operator
from microbench.layouts import LAYOUTS


@frozen
class LogRange:
    """Values from `low` to `high`, uniform in the logarithm, rounded to `multiple` except for a share `ragged` of the draws."""

    low: Annotated[float, Span(1e-9, 1e18)]
    high: float
    multiple: Annotated[int, Span(1, 1e9)] = 1
    ragged: Annotated[float, Span(0, 1)] = 0.0

    def __post_init__(self) -> None:
        """Raises FaultError for an empty range."""
        if self.high < self.low:
            raise FaultError("needs low <= high")


@frozen
class Choice:
    """One of several values, equally often."""

    values: Annotated[tuple[float, ...], LEAST_ONE]


@frozen
class Derived:
    """Value of a field that is not derived itself, times one of `times`, divided by one of `divide`, rounded down, at least `least`."""

    of: str
    times: Annotated[tuple[float, ...], LEAST_ONE] = (1.0,)
    divide: Annotated[tuple[Annotated[float, Span(1e-9, 1e18)], ...], LEAST_ONE] = (1.0,)
    least: float = 0.0


Precision = Annotated[str, Words(tuple(BYTES_PER_ELEMENT))]
ShapeRule = LogRange | Choice | Derived
"""Rule for the draws of a shape field."""


@frozen
class KernelGroup:
    """Kernels of one operator and precision: their number, L2 state and shapes.

    Each matrix product of a group runs in all layouts of `transpose` (`microbench.layouts`), in the natural one if it is empty.
    `precision` may list alternatives joined by "|"; the first one that the board supports is used.  `max_bytes` and `max_flop`
    limit a kernel; `min_bytes` excludes kernels that launch time dominates.
    """

    family: Annotated[str, Words(tuple(family for family in FAMILY_FIELDS if family not in TABLED))]
    operator: str
    precision: str
    count: Annotated[int, Span(1, 100_000, "kernels")]
    shape: Mapping[str, ShapeRule]
    l2_state: Annotated[str, Words(("warm", "cold"))] = "warm"
    cuda_cores: bool = False
    precision_out: str = ""
    min_bytes: Annotated[float, Span(0, 1e13, "byte")] = 0.0
    max_bytes: Annotated[float, Span(1, 1e13, "byte")] = 4e9
    max_flop: Annotated[float, Span(1, 1e17, "flop")] = 4e12
    transpose: tuple[Annotated[str, Words(tuple(LAYOUTS))], ...] = ()

    def __post_init__(self) -> None:
        """Raises FaultError for fields that do not fit each other."""
        read(Annotated[str, Words(tuple(FAMILY_OPERATORS[self.family]))], self.operator, "operator")
        for precision in (*self.precisions, *filter(None, [self.precision_out])):
            read(Precision, precision, "precision")
        if set(self.shape) != set(FAMILY_FIELDS[self.family]):
            raise FaultError(f"must give exactly {', '.join(FAMILY_FIELDS[self.family])}", "shape")
        if self.transpose and self.family != "gemm":
            raise FaultError(f"is for matrix products (family gemm); {self.family} has no layout, leave it out", "transpose")
        drawn = [name for name, rule in self.shape.items() if not isinstance(rule, Derived)]
        for name, rule in self.shape.items():
            if isinstance(rule, Derived) and rule.of not in drawn:
                raise FaultError(f"needs another field as `of`, which does not derive itself: {', '.join(drawn)}", "shape", name)

    @property
    def precisions(self) -> tuple[str, ...]:
        """The alternatives, the first choice first."""
        return tuple(self.precision.split("|"))


def draw_operators(group: KernelGroup, precision: str, random: np.random.Generator) -> list[Operator]:
    """`count` different operators of a group, in random order.

    Raises WorkloadError for a group whose rules give no operator, or whose limits leave fewer than `count`.
    """
    dimensions = 2 * len(FAMILY_FIELDS[group.family])
    drawn: dict[Operator, None] = {}
    for place in _latin_hypercube(group.count, dimensions, random):
        operator = _operator(group, precision, place)
        barren = 0
        while operator is None or operator in drawn:
            barren += 1
            if barren > 500:
                raise WorkloadError(
                    f"{group.family}.{group.operator}.{precision}: only {len(drawn)} of {group.count} kernels lie within its ranges and "
                    f"limits; widen them or ask for fewer"
                )
            operator = _operator(group, precision, random.random(dimensions))
        drawn[operator] = None
    return list(drawn)


def _latin_hypercube(count: int, dimensions: int, random: np.random.Generator) -> Array:
    """Points in the unit cube, one in each of `count` slices along every axis; shape (count, dimensions)."""
    slices = np.stack([random.permutation(count) for _ in range(dimensions)], axis=1)
    return (slices + random.random((count, dimensions))) / max(count, 1)


def _operator(group: KernelGroup, precision: str, place: Array) -> Operator | None:
    """The operator at a place of the unit cube; None if the limits exclude it."""
    fields = FAMILY_FIELDS[group.family]
    values: dict[str, float] = {}
    for name in sorted(group.shape, key=lambda name: isinstance(group.shape[name], Derived)):  # each after the one that it derives from
        main, fine = place[2 * fields.index(name) :][:2]
        values[name] = _value(group.shape[name], float(main), float(fine), values)
    details = {name: getattr(group, name) for name in ("precision_out", "cuda_cores")}
    try:
        operator = make_operator(group.family, group.operator, precision, **values, **details)
    except WorkloadError:
        return None
    flop, *moved = operator_work(operator)
    return operator if group.min_bytes <= sum(moved) <= group.max_bytes and flop <= group.max_flop else None


def _value(rule: ShapeRule, place: float, fine: float, values: Mapping[str, float]) -> float:
    """A field's value; `place` stratifies it, `fine` is its random part."""
    match rule:
        case LogRange():
            raw = rule.low * (rule.high / rule.low) ** place
            multiple = 1 if fine < rule.ragged else rule.multiple
            rounded = multiple * max(1, round(raw / multiple))
            return float(min(max(rounded, math.ceil(rule.low)), math.floor(rule.high)))
        case Choice():
            return _picked(rule.values, place)
        case Derived():
            value = values[rule.of] * _picked(rule.times, place) / _picked(rule.divide, fine)
            return float(max(rule.least, math.floor(value)))


def _picked(values: tuple[float, ...], place: float) -> float:
    """The value at a place from 0 to 1."""
    return float(values[min(int(place * len(values)), len(values) - 1)])
