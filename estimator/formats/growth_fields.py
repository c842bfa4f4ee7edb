"""`sizes` of a workload file and `growth` of its operators: how each size grows with batch and sequence."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from math import isclose
from typing import Any, Final

from estimator.errors import WorkloadError
from estimator.kinds import kind_of, shown
from estimator.workload import FAMILY_FIELDS, Growth, Operator, Resizing, Term

LARGEST_SIZE: Final = 10**7
"""More sequences or tokens than this are a mistake."""

LARGEST_POWERS: Final = (1, 2)
"""Exponents of batch and sequence: scores grow with the square of the sequence."""

TERM_PARTS: Final = 3
"""Numbers of a term: a size, the exponent of the batch, that of the sequence."""

PASSING: Final = "passing"


def read_sizes(document: Mapping[str, Any], where: str) -> Resizing | None:
    """`sizes` of a file, None where it states none.  Raises WorkloadError, naming the field, for what cannot be."""
    if "sizes" not in document:
        return None
    given = document["sizes"]
    if not isinstance(given, dict):
        raise WorkloadError(f"{where}: sizes must be an object of whole numbers, got {kind_of(given)}")
    known = [field.name for field in fields(Resizing)]
    for name in given:
        if name not in known:
            raise WorkloadError(f"{where}: sizes: unknown field {name!r}; known: {', '.join(known)}")
    values: dict[str, Any] = {name: given.get(name, 0) for name in known if name != PASSING}
    for name, value in values.items():
        low = 1 if name.startswith("batch") else 0
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= LARGEST_SIZE:
            raise WorkloadError(f"{where}: sizes.{name} = {shown(value)} must be a whole number from {low} to {LARGEST_SIZE}")
    for name in ("batch", "sequence"):
        least, own, most = (values[f"{name}{end}"] for end in ("_least", "", "_most"))
        if not least <= own <= most or bool(least) != bool(own):
            raise WorkloadError(f"{where}: sizes.{name} = {own} must be from {name}_least = {least} to {name}_most = {most}")
    values[PASSING] = _growth(given[PASSING], f"{where}: sizes.{PASSING}") if PASSING in given else None
    return Resizing(**values)


def sizes_entry(resizing: Resizing) -> dict[str, Any]:
    """`sizes` as JSON values."""
    values = {name: value for name, value in asdict(resizing).items() if name != PASSING and (value or name.startswith("batch"))}
    return values | ({PASSING: list(resizing.passing)} if resizing.passing is not None else {})


def read_growth(given: Any, operator: Operator, place: str) -> tuple[tuple[str, tuple[Term, ...]], ...]:
    """`growth` of an operator.  Raises WorkloadError, naming the field, for what cannot be or does not add up."""
    if not isinstance(given, dict):
        raise WorkloadError(f"{place}: growth must be an object, got {kind_of(given)}")
    sizes = FAMILY_FIELDS[operator.family]
    for name in given:
        if name not in sizes:
            raise WorkloadError(f"{place}: growth of {name!r}, which is no size of it; sizes: {', '.join(sizes)}")
    return tuple((name, _terms(given[name], operator[name], f"{place}: growth.{name}")) for name in sizes if name in given)


def _terms(value: Any, size: float, place: str) -> tuple[Term, ...]:
    """[i, j] for a size that grows as a whole, [[size, i, j], …] for a sum."""
    if isinstance(value, list) and value and all(isinstance(part, list) for part in value):
        terms = tuple(_term(part, place) for part in value)
    else:
        terms = (Term(size, _growth(value, place)),)
    total = sum(term.size for term in terms)
    if not isclose(total, size):
        raise WorkloadError(f"{place}: its terms add up to {total:.15g}, the size is {size:.15g}")
    return terms


def _term(value: list[Any], place: str) -> Term:
    size = value[0] if len(value) == TERM_PARTS else None
    if isinstance(size, bool) or not isinstance(size, int | float) or not size > 0:
        raise WorkloadError(f"{place} = {shown(value)} must be a size above 0 and two exponents")
    return Term(float(size), _growth(value[1:], place))


def _growth(value: Any, place: str) -> Growth:
    good = isinstance(value, list) and len(value) == len(LARGEST_POWERS)
    if not good or not all(type(i) is int and 0 <= i <= most for i, most in zip(value, LARGEST_POWERS, strict=True)):
        raise WorkloadError(f"{place} = {shown(value)} must be the exponents of batch (0 or 1) and sequence (0 to 2), such as [1, 1]")
    return Growth(*value)


def growth_entry(operator: Operator) -> dict[str, Any]:
    """`growth` of an operator as JSON values, nothing where no size grows."""
    if not operator.growth:
        return {}
    return {"growth": {name: _term_values(terms) for name, terms in operator.growth}}


def _term_values(terms: tuple[Term, ...]) -> list[Any]:
    if len(terms) == 1:
        return list(terms[0].growth)
    return [[int(size) if size.is_integer() else size, *growth] for size, growth in terms]
