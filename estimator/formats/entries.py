"""Entries of an EnergAIzer list: each distinct one once, and its fields checked on the way out."""

import marshal
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from estimator.errors import WorkloadError
from estimator.quantities import canonical_precision

LARGEST_DIMENSION: Final = 1e15
"""Above this a dimension is a mistake: 10^15 elements of one byte are a petabyte."""

MARSHAL_VERSION: Final = 2
"""The last version without references between objects: equal entries give equal bytes."""

LONGEST_QUOTE: Final = 60
"""Characters of a wrong value that a message repeats."""


class Entry(NamedTuple):
    """One distinct entry of a list, and the place of its first occurrence for messages."""

    kind: str
    query: dict[str, Any]
    place: str


def distinct_values(document: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The distinct items of a list, and for each place of the list the number of its item."""
    numbers: dict[bytes, int] = {}
    order = [numbers.setdefault(marshal.dumps(raw, MARSHAL_VERSION), len(numbers)) for raw in document]
    first = dict(zip(reversed(order), reversed(document), strict=True))
    return [first[number] for number in range(len(numbers))], order


def checked_entries(values: Sequence[Any], order: Sequence[int], where: str) -> list[Entry]:
    """Entries from distinct items; `where` names the file in messages."""
    entries, place = [], -1
    for number, raw in enumerate(values):
        place = order.index(number, place + 1)  # numbers are given in the order in which items are first seen
        entries.append(_checked_entry(raw, f"{where}: entry {place}"))
    return entries


def _checked_entry(raw: Any, place: str) -> Entry:
    if not isinstance(raw, list) or len(raw) != 2:
        raise WorkloadError(f"{place} must be a pair [query, types], got {short(raw)}")
    query, types = raw
    if not isinstance(query, dict):
        raise WorkloadError(f"{place}: the query must be an object of named fields, got {short(query)}")
    if isinstance(types, list) and types:
        types = types[0]
    if not isinstance(types, str) or not types:
        raise WorkloadError(f"{place}: the types must be a list of names such as ['softmax', 'bf16'], got {short(raw[1])}")
    kind = types.lower()
    return Entry(kind=kind, query=query, place=f"{place} ({kind})")


def short(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"


def whole(entry: Entry, field: str, low: int = 1) -> int:
    """A whole number from a query."""
    if field not in entry.query:
        raise WorkloadError(f"{entry.place}: field {field!r} is missing; it must be a whole number of at least {low}")
    value = entry.query[field]
    if type(value) is int and low <= value < LARGEST_DIMENSION:
        return value
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]  # stride and padding may be written per axis
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value < LARGEST_DIMENSION and value == int(value)
    if not good:
        limits = f"a whole number from {low} to {LARGEST_DIMENSION:.0e}"
        raise WorkloadError(f"{entry.place}: {field} = {short(value)} must be {limits}; correct it or trace the model again")
    return int(value)


def precision_of(entry: Entry, field: str) -> str:
    """A precision from a query, by its own name."""
    value = entry.query.get(field)
    precision = canonical_precision(value) if isinstance(value, str) else None
    if precision is None:
        raise WorkloadError(f"{entry.place}: {field} = {short(value)} is not a known precision; write bf16, fp16, fp32, …")
    return precision
