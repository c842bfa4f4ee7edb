"""The own workload format: JSON, versioned, one entry per operator with its count.

    {"format": "wattprint-workload", "format_version": "1.0", "name": "two layers", "operators": [
        {"family": "gemm", "operator": "linear", "precision": "bf16", "count": 2, "batch": 1, "m": 512, "n": 768, "k": 768}]}

Fields and their meaning: docs/workload-format.md; JSON Schema: estimator/schema/workload-1.json.
"""

import json
import marshal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal

from estimator.vocabulary.documents import short_name
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.quantities import canonical_precision
from estimator.vocabulary.reader import FaultError, Span, Text, read
from estimator.vocabulary.workload import (
    FAMILY_FIELDS,
    FAMILY_OPERATORS,
    LISTED,
    ORIGINS,
    Footprint,
    Operator,
    UnknownOperator,
    Workload,
    make_operator,
)

FORMAT: Final = "wattprint-workload"
FORMAT_VERSION: Final = "1.0"

MARSHAL_VERSION: Final = 2
"""The last version without references between objects: equal entries give equal bytes."""


def _whole(value: float) -> None:
    if not value.is_integer():
        raise FaultError(f"= {value:.15g} must be a whole number")


def _known_precision(name: str) -> None:
    if name and canonical_precision(name) is None:
        raise FaultError(f"= {name!r:.60} is not a known precision; write bf16, fp16, fp32, …")


def _known_origin(text: str) -> None:
    if text.partition(":")[0] not in ORIGINS:
        raise FaultError(f"= {text!r:.60} must be one of {', '.join(ORIGINS)}, with what did it after a colon")


Count = Annotated[float, Span(1e-12, 1e12)]
Byte = Annotated[float, Span(0.0, 1e24, "byte")]
Precision = Annotated[str, _known_precision]
HostShare = Annotated[float, Span(0.0, 1e3)]
"""No operator costs its host as much as a thousand layers of the framework."""

OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "precision_out": (Precision, ""),
    "precision_kv": (Precision, ""),
    "cuda_cores": (bool, False),
    "host_share": (HostShare, 1.0),
    "origin": (Annotated[str, _known_origin], LISTED),
}
"""Optional fields of an operator and what they mean when left out."""

_HEAD: Final[list[Any]] = [("family", str), ("operator", str), ("precision", Precision), ("count", Count)]
_OPTIONAL: Final[list[Any]] = [(name, kind, field(default=default)) for name, (kind, default) in OPTIONS.items()]


@cache
def _entry_of(family: str) -> type:
    """The fields of an operator of a family; made when the first one is read."""
    shape = [(name, float if name == "reads" else Annotated[float, _whole]) for name in FAMILY_FIELDS[family]]
    return make_dataclass(family, [*_HEAD, *shape, *_OPTIONAL], kw_only=True)


@dataclass(kw_only=True)
class _Kind:
    """What every entry holds; other fields belong to its family."""

    family: Text
    operator: Text
    count: Count
    elements: Annotated[float, Span(0.0)] = 0.0


@dataclass(kw_only=True)
class _Unknown:
    name: str
    count: Count
    elements: Annotated[float, Span(0.0)] = 0.0


@dataclass(kw_only=True)
class _Memory:
    weights_byte: Byte = 0.0
    optimizer_byte: Byte = 0.0
    cache_byte: Byte = 0.0
    passing_byte: Byte = 0.0


@dataclass(kw_only=True)
class _Document:
    """All but the operators."""

    format: Literal["wattprint-workload"]
    format_version: Literal["1.0"]
    name: str = ""
    model_family: str = ""
    completion: str = ""
    memory: _Memory | None = None
    unknown: tuple[_Unknown, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_own(document: Mapping[str, Any], where: str, default_name: str) -> Workload:
    """A Workload from the parsed JSON of the own format.

    `where` names the file in messages.  A kernel family or an operator that this version does not know is kept as
    an UnknownOperator; anything else that is wrong raises WorkloadError.
    """
    entries = document.get("operators")
    if not isinstance(entries, list) or not entries:
        raise WorkloadError(f"{where}: 'operators' must be a list of at least one operator")
    try:
        head = read(_Document, {name: value for name, value in document.items() if name != "operators"})
        totals, unknown = _read_entries(entries)
    except FaultError as fault:
        raise WorkloadError(f"{where}: {fault}") from None
    unknown += [UnknownOperator(name=one.name, count=max(1, round(one.count)), elements=one.elements) for one in head.unknown]
    if not totals:
        kinds = ", ".join(short_name(name) for name in dict.fromkeys(one.name for one in unknown[:5]))
        raise WorkloadError(f"{where}: no operator of a known kind, only {kinds}; known families: {', '.join(FAMILY_FIELDS)}")
    return Workload(
        name=head.name or default_name,
        operators=tuple(totals),
        counts=tuple(totals.values()),
        model_family=head.model_family,
        unknown=tuple(unknown),
        completion=head.completion,
        warnings=head.warnings,
        notes=head.notes,
        footprint=None if head.memory is None else Footprint(**asdict(head.memory)),
    )


def _read_entries(entries: list[Any]) -> tuple[dict[Operator, float], list[UnknownOperator]]:
    """Operators with their counts, and what this version does not know.  Raises FaultError."""
    seen: dict[bytes, tuple[Operator, float]] = {}
    totals: dict[Operator, float] = {}
    unknown: list[UnknownOperator] = []
    for position, entry in enumerate(entries):
        key = marshal.dumps(entry, MARSHAL_VERSION)
        if key not in seen:
            place = ("operators", position)
            if not isinstance(entry, dict):
                raise FaultError("must be an object of named fields", *place)
            kind = read(_Kind, {name: entry[name] for name in _KIND & entry.keys()}, *place)
            if kind.operator not in FAMILY_OPERATORS.get(kind.family, ()):
                name = f"{kind.family}.{kind.operator}"
                unknown.append(UnknownOperator(name=name, count=max(1, round(kind.count)), elements=kind.elements))
                continue
            seen[key] = _read_operator(entry, place), kind.count
        operator, count = seen[key]
        totals[operator] = totals.get(operator, 0.0) + count
    return totals, unknown


_KIND: Final = frozenset(one.name for one in fields(_Kind))


def _read_operator(entry: dict[str, Any], place: tuple[str | int, ...]) -> Operator:
    values = vars(read(_entry_of(entry["family"]), entry, *place)).copy()
    del values["count"]
    for name in ("precision", "precision_out", "precision_kv"):
        values[name] = canonical_precision(values[name]) or ""
    try:
        return make_operator(**values)
    except WorkloadError as error:
        raise FaultError(f"({values['family']}.{values['operator']}): {error}", *place) from error


def own_text(workload: Workload) -> str:
    """The workload as the text of a file in the own format, one operator a line."""
    head: dict[str, Any] = {"format": FORMAT, "format_version": FORMAT_VERSION, "name": workload.name}
    for name in ("model_family", "completion", "warnings", "notes"):
        if getattr(workload, name):
            head[name] = getattr(workload, name)
    if workload.footprint is not None:
        head["memory"] = {name: _plain(value) for name, value in asdict(workload.footprint).items()}
    if workload.unknown:
        head["unknown"] = [{name: value for name, value in asdict(one).items() if value or name != "elements"} for one in workload.unknown]
    lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}," for key, value in head.items()]
    operators = [_own_entry(operator, count) for operator, count in zip(workload.operators, workload.counts, strict=True)]
    body = ",\n".join(f"    {json.dumps(entry)}" for entry in operators)
    return "{\n" + "\n".join(lines) + '\n  "operators": [\n' + body + "\n  ]\n}\n"


def _own_entry(operator: Operator, count: float) -> dict[str, Any]:
    entry: dict[str, Any] = {"family": operator.family, "operator": operator.operator, "precision": operator.precision}
    entry |= {name: _plain(value) for name, value in {"count": count, **operator.named_shape()}.items()}
    return entry | {name: getattr(operator, name) for name, (_, default) in OPTIONS.items() if getattr(operator, name) != default}


def _plain(value: float) -> int | float:
    """A whole number as an integer, which JSON shows without a point."""
    return int(value) if float(value).is_integer() else float(value)
