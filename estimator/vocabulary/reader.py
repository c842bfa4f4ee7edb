"""Reader of declared data: from plain JSON or TOML to values with fields declared once, by type, limits, unit and meaning.

A declaration is a dataclass or a TypedDict.  Types of fields:

    float, int, bool, str         a number (becomes a float), a whole number, true or false, a text
    X | None                      null for an unknown value
    A | B                         the one of several objects whose fields fit best
    Literal["a", "b"]             one of some words
    tuple[X, ...], tuple[X, Y]    a list of any length, or of this length; a NamedTuple, too
    Mapping[K, X]                 an object of similar items, under names of kind K
    a dataclass, a TypedDict      an object of known fields; fields with a default, or NotRequired, may be left out
    Array                         numbers as an array, with its Shape
    Any                           any JSON
    Annotated[X, …]               X with a Span, Words, a Pattern or LEAST_ONE; with a text, its meaning; with a function, a further check

Every result is frozen: lists as tuples, objects as their dataclass or as FrozenMapping.  A check raises FaultError, and
`__post_init__` of a dataclass may too.  `scripts/schemas.py` makes JSON Schemas from the same declarations.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sized
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

from estimator.vocabulary.documents import LARGEST, kind_of, parse_json, parse_toml, shown
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.regular_files import read_regular

T = TypeVar("T")
Reader = Callable[[Any], Any]
Metas = tuple[Any, ...]
"""What a declaration says of a type: limits, words, a meaning, checks."""

MAX_FILE_BYTES: Final = 1 << 20
"""Largest size of settings and specifications [byte]; files that people write are far smaller."""

MOST_LEVELS: Final = 32
"""Most levels of data without a declaration; no known document has ten."""


class FaultError(ValueError):
    """A fault of a value (`what` follows the name of its place), and the place, by its keys from the outside."""

    def __init__(self, what: str, *place: str | int) -> None:
        super().__init__(what, *place)
        self.what, self.place = what, place

    def inside(self, key: str | int) -> "FaultError":
        """The same fault, with the key of one more outer level."""
        return FaultError(self.what, key, *self.place)

    def __str__(self) -> str:
        path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.place)
        return f"{path.removeprefix('.') or 'the document'} {self.what}"


class Span(NamedTuple):
    """Limits of a number and its unit.  `nan`: null (unknown) becomes nan."""

    low: float = -LARGEST
    high: float = LARGEST
    unit: str = ""
    nan: bool = False

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g} {self.unit}".rstrip()


class Words(NamedTuple):
    """The allowed texts of a field."""

    known: tuple[str, ...]


class Pattern(NamedTuple):
    """A regular expression that a text matches as a whole, and its description."""

    pattern: str
    says: str


class Shape(NamedTuple):
    """The shape of an array."""

    counts: tuple[int, ...]


def refuse_empty(value: Any) -> None:
    """Refuse an empty text, list or object."""
    if not value:
        raise FaultError("must not be empty")


LEAST_ONE: Final = refuse_empty
"""Annotation of a text, a list or an object that must not be empty."""

WHEN_GIVEN: Final = {"when_given": True}
"""Metadata of a field that is written only if it differs from its default."""

Text = Annotated[str, LEAST_ONE]
Count = Annotated[int, Span(0, 2**53)]
"""A count; values up to the limit are exact in every program that reads JSON."""


@overload
def read(kind: type[T], value: Any, *place: str | int) -> T: ...


@overload
def read(kind: Any, value: Any, *place: str | int) -> Any: ...


def read(kind: Any, value: Any, *place: str | int) -> Any:
    """A value as declared.  Raises FaultError, a ValueError in one line that names the place of the fault."""
    try:
        return reader_of(kind)(value)
    except FaultError as fault:
        raise FaultError(fault.what, *place, *fault.place) from None


def read_file(kind: type[T], path: Path, what: str, error: type[Exception]) -> T:
    """Content of a JSON file (`.json`) or a TOML file, as declared; `what` names the kind of file.  Raises `error`."""
    where = f"{what} {path}"
    try:
        content = read_regular(path, MAX_FILE_BYTES)
        return read(kind, parse_json(content) if path.suffix == ".json" else parse_toml(content))
    except OSError as fault:
        raise error(f"{where}: cannot be read ({fault.strerror}); name another file") from fault
    except ValueError as fault:
        raise error(f"{where}: {fault}") from fault


def plain(value: Any) -> Any:
    """Plain data of a read value, with null for nan; omits fields that are None by default, and WHEN_GIVEN fields with their default."""
    if dataclasses.is_dataclass(value):
        own = ((one, getattr(value, one.name)) for one in dataclasses.fields(value) if one.init)
        return {one.name: plain(item) for one, item in own if not _left_out(one, item)}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "packed"):
        return value.packed
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def _left_out(one: dataclasses.Field[Any], value: Any) -> bool:
    return (value is None and one.default is None) or ("when_given" in one.metadata and value == one.default)


# Checks of several fields together --------------------------------------------------------------------------------------------------


def check_lengths(columns: Mapping[str, Sized], count: int, *, shared: bool = False) -> None:
    """Refuse columns that are not `count` long; `shared`: a column of equal entries may have one entry."""
    for name, column in columns.items():
        own = len(column)
        if own != count and not (shared and own == 1):
            raise FaultError(f"has {own} values where {count} are needed", name)


def check_ascending(column: tuple[float, ...], name: str) -> None:
    """Refuse a column that does not ascend."""
    if any(left >= right for left, right in pairwise(column)):
        raise FaultError("must ascend", name)


def check_known(names: Iterable[str], known: Collection[str], place: str) -> None:
    """Refuse names that are not among `known`."""
    for name in names:
        if name not in known:
            raise FaultError(f"has an unknown name {name[:60]!r}; known: {', '.join(known)}", place)


def check_covariance(rows: Any, name: str) -> None:
    """Refuse a matrix that is not a covariance: not square, not symmetric, or with a negative variance beyond rounding."""
    import numpy as np  # the clock helper reads its settings without numpy

    count = len(rows)
    for i, row in enumerate(rows):
        if len(row) != count:
            raise FaultError(f"has {len(row)} values where {count} are needed", name, i)
        if row[i] < 0.0:
            raise FaultError(f"= {row[i]!r}: a variance must not be negative", name, i, i)
    values = np.array(rows, dtype=np.float64).reshape(count, count)
    deviation = np.sqrt(np.diag(values))
    wrong = np.abs(values - values.T) > ROUNDING * np.outer(deviation, deviation)
    wrong |= (values != 0.0) & ~(deviation > 0.0)[:, None]
    if wrong.any():
        i, j = sorted(np.argwhere(wrong)[0].tolist(), reverse=True)
        raise FaultError("is no covariance: not symmetric, or beside a variance of 0", name, i, j)
    scale = np.where(deviation > 0.0, deviation, 1.0)
    rest = values / scale[:, None] / scale + np.diag(np.where(deviation > 0.0, ROUNDING * count, 1.0))
    for i in range(count):  # Cholesky's, column by column: the threads of a library need up to 100 ms to meet on busy cores
        if not rest[i, i] > 0.0:
            raise FaultError("is no covariance: a combination of its terms has a variance below 0", name)
        column = rest[i + 1 :, i]
        rest[i + 1 :, i + 1 :] -= column[:, None] * (column / rest[i, i])


ROUNDING: Final = 1e-6
"""Largest difference of mirrored entries relative to their diagonal, and largest negative eigenvalue of a correlation matrix relative to
its size [1]: rounding of an inverse and of fits with nearly collinear columns."""


# From a declaration to a function that reads --------------------------------------------------------------------------------------


@cache
def reader_of(hint: Any) -> Reader:
    """The function that reads a declared type; it raises FaultError."""
    metas: Metas = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        metas = tuple(rest)
    checks = [meta for meta in metas if callable(meta)]
    read_value = _reader(hint, metas)
    if not checks:
        return read_value

    def read_checked(value: Any) -> Any:
        found = read_value(value)
        for check in checks:
            check(found)
        return found

    return read_checked


def _reader(hint: Any, metas: Metas) -> Reader:
    origin, args = get_origin(hint), get_args(hint)
    if hint in (float, int):
        return _number(_span(metas), hint is int)
    if hint is str:
        return _text(next((meta for meta in metas if isinstance(meta, Words | Pattern)), None))
    if hint is bool:
        return lambda value: _of_kind(value, bool, "true or false")
    if origin is Literal:
        return _text(Words(args))
    if origin is tuple:
        return _column(args[0]) if args[-1] is Ellipsis else _row(args)
    if origin in (Union, UnionType):
        return _union(args, metas)
    if origin is Mapping:
        return _mapping(*args)
    if origin is NotRequired:
        return reader_of(args[0])
    if any(isinstance(meta, Shape) for meta in metas):
        return _array(metas)
    if isinstance(hint, type) and issubclass(hint, tuple):
        read_row = _row(tuple(get_type_hints(hint).values()))
        return lambda value: hint(*read_row(value))
    return _free if hint in (Any, object) else _object(hint)


def _span(metas: Metas) -> Span:
    """The limits among annotations."""
    return next((meta for meta in metas if isinstance(meta, Span)), Span())


def _of_kind(value: Any, kind: Any, named: str) -> Any:
    """A value of this kind.  Raises FaultError, naming the kind, for any other."""
    if not isinstance(value, kind):
        raise FaultError(f"must be {named}, got {kind_of(value)}")
    return value


def _number(span: Span, whole: bool) -> Reader:
    low, high = span.low, span.high
    due = "a whole number" if whole else "a number"
    due += "" if high >= LARGEST else f" from {span}"

    def read_number(value: Any) -> Any:
        if type(value) is float and not whole and low <= value <= high:
            return value
        if span.nan and (value is None or value != value):
            return float("nan")
        if isinstance(value, bool) or not isinstance(value, int | float) or (whole and value % 1):
            raise FaultError(f"must be {due}, got {kind_of(value)}")
        if not low <= value <= high:
            raise FaultError(f"= {shown(value):.40} lies outside {span}")
        return int(value) if whole else float(value)

    return read_number


def _array(metas: Metas) -> Reader:
    rows: Any = Annotated[float, _span(metas)]
    for count in reversed(next(meta.counts for meta in metas if isinstance(meta, Shape))):
        rows = tuple[(rows,) * count]  # type: ignore[misc]
    read_rows = reader_of(rows)

    def read_array(value: Any) -> Any:
        import numpy as np

        return np.array(read_rows(value.tolist() if hasattr(value, "tolist") else value), dtype=np.float64)

    return read_array


def _text(meta: Words | Pattern | None) -> Reader:
    words = frozenset(meta.known) if isinstance(meta, Words) else frozenset()

    def read_text(value: Any) -> Any:
        if type(value) is str and value in words:
            return value
        _of_kind(value, str, "a text")
        if isinstance(meta, Words):
            raise FaultError(f"= {value[:60]!r} is unknown; known: {', '.join(filter(None, meta.known))}")
        if isinstance(meta, Pattern) and not re.fullmatch(meta.pattern, value):
            raise FaultError(f"= {value[:60]!r} must read {meta.says}")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise FaultError("holds half a character (a lone surrogate)")
        return value

    return read_text


def _items(value: Any) -> Any:
    return _of_kind(value, list | tuple, "a list")


def _column(item: Any) -> Reader:
    read_item = reader_of(item)
    kind, *metas = get_args(item) or (None,)
    span = _span(tuple(metas)) if kind is float else None

    def read_column(value: Any) -> tuple[Any, ...]:
        items = _items(value)
        # Long columns of floats are checked at once; the sum shows a nan.
        if span and set(map(type, items)) == {float} and span.low <= min(items) and max(items) <= span.high and sum(items) == sum(items):
            return tuple(items)
        return tuple([_at(read_item, one, i) for i, one in enumerate(items)])

    return read_column


def _row(args: tuple[Any, ...]) -> Reader:
    readers = [reader_of(arg) for arg in args]

    def read_row(value: Any) -> tuple[Any, ...]:
        items = _items(value)
        if len(items) != len(readers):
            raise FaultError(f"has {len(items)} values where {len(readers)} are needed")
        return tuple([_at(reader, one, i) for i, (reader, one) in enumerate(zip(readers, items, strict=True))])

    return read_row


def _at(reader: Reader, value: Any, key: str | int) -> Any:
    try:
        return reader(value)
    except FaultError as fault:
        raise fault.inside(key) from None


def _members(value: Any) -> Any:
    return _of_kind(value, Mapping, "an object")


def _mapping(name: Any, item: Any) -> Reader:
    read_name, read_item = reader_of(name), reader_of(item)

    def read_mapping(value: Any) -> FrozenMapping[Any]:
        members = _members(value)
        for key in members:
            try:
                read_name(key)
            except FaultError as fault:
                raise FaultError(f"has a wrong name: {fault.what.removeprefix('= ')}") from None
        return FrozenMapping({key: _at(read_item, one, key) for key, one in members.items()})

    return read_mapping


@cache
def fields_of(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """The type of every field of a declared object, and whether it is required."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return {name: (hint, name in kind.__required_keys__) for name, hint in hints.items()}
    missing = dataclasses.MISSING
    return {
        one.name: (hints[one.name], one.default is missing and one.default_factory is missing)
        for one in dataclasses.fields(kind)
        if one.init
    }


def _object(kind: Any) -> Reader:
    fields = fields_of(kind)
    readers = {name: reader_of(hint) for name, (hint, _) in fields.items()}
    required = [name for name, (_, due) in fields.items() if due]
    build = FrozenMapping if is_typeddict(kind) else lambda found: kind(**found)

    def read_object(value: Any) -> Any:
        if not is_typeddict(kind) and isinstance(value, kind):
            return value
        members = _members(value)
        for name in members:
            if name not in readers:
                raise FaultError(f"has an unknown field {str(name)[:60]!r}; known: {', '.join(readers)}")
        for name in required:
            if name not in members:
                raise FaultError(f"lacks the field {name!r}")
        return build({name: _at(readers[name], one, name) for name, one in members.items()})

    return read_object


def _union(args: tuple[Any, ...], metas: Metas) -> Reader:
    arms = [arm for arm in args if arm is not NoneType]
    readers = {arm: reader_of(Annotated[arm, *metas] if metas else arm) for arm in arms}

    def read_union(value: Any) -> Any:
        if value is None and NoneType in args:
            return None
        if isinstance(value, Mapping) and len(arms) > 1:
            return readers[min(arms, key=lambda arm: _misfit(arm, value))](value)
        for arm in arms[:-1]:
            try:
                return readers[arm](value)
            except FaultError:
                continue
        return readers[arms[-1]](value)

    return read_union


def _misfit(arm: Any, value: Mapping[str, object]) -> tuple[int, int]:
    """Mismatch of an object and a declared one: the number of wrong words, and of missing or unknown fields."""
    if not (is_typeddict(arm) or dataclasses.is_dataclass(arm)):
        return len(value) + 1, 0
    fields = fields_of(arm)
    tags = sum(get_origin(hint) is Literal and value.get(name) not in get_args(hint) for name, (hint, due) in fields.items() if due)
    return tags, len(set(value) - set(fields)) + sum(due and name not in value for name, (_, due) in fields.items())


def _free(value: Any, levels: int = MOST_LEVELS) -> Any:
    def inside(item: Any) -> Any:
        return _free(item, levels - 1)

    if isinstance(value, Mapping | list | tuple) and not levels:
        raise FaultError(f"is nested deeper than {MOST_LEVELS} levels")
    if isinstance(value, Mapping):
        return FrozenMapping({key: _at(inside, item, key) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple([_at(inside, item, i) for i, item in enumerate(value)])
    if isinstance(value, float):
        return _number(Span(), whole=False)(value)
    if value is None or isinstance(value, bool | int):
        return value
    return _text(None)(value)
