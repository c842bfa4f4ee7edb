"""The own workload format: JSON, versioned, one entry per operator with its count.

    {"format": "wattprint-workload", "format_version": "1.0", "name": "two layers", "operators": [
        {"family": "gemm", "operator": "linear", "precision": "bf16", "count": 2, "batch": 1, "m": 512, "n": 768, "k": 768}]}

Fields and their meaning: docs/workload-format.md; JSON Schema: estimator/schema/workload-1.json.
"""

import json
import marshal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final

from estimator.errors import WorkloadError
from estimator.formats.growth_fields import growth_entry, read_growth, read_sizes, sizes_entry
from estimator.kinds import kind_of, shown
from estimator.quantities import canonical_precision
from estimator.short_names import short_name
from estimator.workload import (
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

TOP_FIELDS: Final = frozenset(
    {"format", "format_version", "name", "model_family", "completion", "memory", "sizes", "operators", "unknown", "warnings", "notes"}
)

OPTIONS: Final[dict[str, Any]] = {"precision_out": "", "precision_kv": "", "cuda_cores": False, "host_share": 1.0, "origin": LISTED}
"""Optional fields of an operator and what they mean when left out."""

LARGEST_COUNT: Final = 1e12
LARGEST_HOST_SHARE: Final = 1e3
"""No operator costs its host as much as a thousand layers of the framework."""
LARGEST_MEMORY_BYTE: Final = 1e24
"""Beyond what tensors of the largest sizes hold together."""
MARSHAL_VERSION: Final = 2
"""The last version without references between objects: equal entries give equal bytes."""


def read_own(document: Mapping[str, Any], where: str, default_name: str) -> Workload:
    """A Workload from the parsed JSON of the own format.

    `where` names the file in messages.  A kernel family or an operator that this version does not know is kept as
    an UnknownOperator; anything else that is wrong raises WorkloadError.
    """
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise WorkloadError(f"{where}: format_version = {shown(version)} is unknown; this program reads and writes {FORMAT_VERSION!r}")
    foreign = sorted(set(document) - TOP_FIELDS)
    if foreign:
        raise WorkloadError(f"{where}: unknown field {foreign[0]!r}; known: {', '.join(sorted(TOP_FIELDS))}")
    entries = document.get("operators")
    if not isinstance(entries, list) or not entries:
        raise WorkloadError(f"{where}: 'operators' must be a list of at least one operator")
    resizing = read_sizes(document, where)
    totals, unknown = _read_entries(entries, where)
    if resizing is None and any(operator.growth for operator in totals):
        raise WorkloadError(f"{where}: operators state a growth, and the file has no 'sizes' from which they grow")
    unknown += [_read_unknown(entry, f"{where}: unknown[{i}]") for i, entry in enumerate(_list(document, "unknown", where))]
    if not totals:
        raise WorkloadError(f"{where}: no operator of a known kind{_near_kinds(unknown)}")
    return Workload(
        name=_text(document, "name", where) or default_name,
        operators=tuple(totals),
        counts=tuple(totals.values()),
        model_family=_text(document, "model_family", where),
        unknown=tuple(unknown),
        completion=_text(document, "completion", where),
        warnings=_texts(document, "warnings", where),
        notes=_texts(document, "notes", where),
        footprint=_footprint(document, where),
        resizing=resizing,
    )


def _footprint(document: Mapping[str, Any], where: str) -> Footprint | None:
    if "memory" not in document:
        return None
    given = document["memory"]
    if not isinstance(given, dict):
        raise WorkloadError(f"{where}: memory must be an object of numbers of byte, got {kind_of(given)}")
    known = [field.name for field in fields(Footprint)]
    for name, value in given.items():
        if name not in known:
            raise WorkloadError(f"{where}: memory: unknown field {name!r}; known: {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST_MEMORY_BYTE:
            raise WorkloadError(
                f"{where}: memory.{name} = {shown(value)} must be a number from 0 to below {LARGEST_MEMORY_BYTE:.0e} [byte]"
            )
    return Footprint(**{name: float(value) for name, value in given.items()})


def _near_kinds(unknown: Sequence[UnknownOperator]) -> str:
    """The unknown kinds of a file that holds no others, and the nearest known ones: operators of the first one's family, else families."""
    if not unknown:
        return f"; known families: {', '.join(FAMILY_FIELDS)}"
    names = list(dict.fromkeys(short_name(item.name) for item in unknown))
    more = f" and {len(names) - MOST_KINDS} more" if len(names) > MOST_KINDS else ""
    family = unknown[0].name.partition(".")[0]
    known = f"operators of {family}: {', '.join(FAMILY_OPERATORS[family])}" if family in FAMILY_OPERATORS else ""
    return f", only {', '.join(names[:MOST_KINDS])}{more}; known {known or 'families: ' + ', '.join(FAMILY_FIELDS)}"


MOST_KINDS: Final = 5
"""Unknown kinds that a message names."""


def _read_entries(entries: list[Any], where: str) -> tuple[dict[Operator, float], list[UnknownOperator]]:
    seen: dict[bytes, tuple[Operator, float]] = {}
    totals: dict[Operator, float] = {}
    unknown: list[UnknownOperator] = []
    for position, entry in enumerate(entries):
        key = marshal.dumps(entry, MARSHAL_VERSION)
        if key not in seen:
            place = f"{where}: operators[{position}]"
            if not isinstance(entry, dict):
                raise WorkloadError(f"{place} must be an object of named fields, got {kind_of(entry)}")
            count = _number(entry, "count", place)
            if _is_unknown(entry, place):
                unknown.append(_unknown_kind(entry, count, place))
                continue
            seen[key] = (_read_operator(entry, place), count)
        operator, count = seen[key]
        totals[operator] = totals.get(operator, 0.0) + count
    return totals, unknown


def _is_unknown(entry: dict[str, Any], place: str) -> bool:
    for field in ("family", "operator"):
        if not isinstance(entry.get(field), str) or not entry[field]:
            raise WorkloadError(f"{place}: {field} = {shown(entry.get(field))} must be a name")
    return entry["operator"] not in FAMILY_OPERATORS.get(entry["family"], ())


def _unknown_kind(entry: dict[str, Any], count: float, place: str) -> UnknownOperator:
    elements = _number(entry, "elements", place) if "elements" in entry else 0.0
    return UnknownOperator(name=f"{entry['family']}.{entry['operator']}", count=max(1, round(count)), elements=elements)


def _read_operator(entry: dict[str, Any], place: str) -> Operator:
    family, operator = entry["family"], entry["operator"]
    place = f"{place} ({family}.{operator})"
    details = {key: value for key, value in entry.items() if key not in ("family", "operator", "precision", "count")}
    sizes = FAMILY_FIELDS[family]
    foreign = sorted(set(details) - set(sizes) - set(OPTIONS) - {"growth"})
    if foreign:
        raise WorkloadError(f"{place}: unknown field {foreign[0]!r}; known: {', '.join((*sizes, *OPTIONS, 'growth'))}")
    for name in sizes:
        value = details.get(name)
        if isinstance(value, float) and name != "reads" and not value.is_integer():
            raise WorkloadError(f"{place}: {name} = {shown(value)} must be a whole number")
    for name in ("precision_out", "precision_kv"):
        if name in details:
            details[name] = _precision(details, name, place)
    if not isinstance(details.get("cuda_cores", False), bool):
        raise WorkloadError(f"{place}: cuda_cores = {shown(details['cuda_cores'])} must be true or false")
    origin = details.get("origin", LISTED)
    if not isinstance(origin, str) or origin.partition(":")[0] not in ORIGINS:
        raise WorkloadError(f"{place}: origin = {shown(origin)} must be one of {', '.join(ORIGINS)}, with what did it after a colon")
    if "host_share" in details:
        details["host_share"] = _number(details, "host_share", place, low=0.0)
        if details["host_share"] > LARGEST_HOST_SHARE:
            raise WorkloadError(f"{place}: host_share = {shown(details['host_share'])} must be at most {LARGEST_HOST_SHARE:g}")
    growth = details.pop("growth", {})
    made = make_operator(family, operator, _precision(entry, "precision", place), where=place, **details)
    return replace(made, growth=read_growth(growth, made, place)) if growth != {} else made


def _precision(entry: dict[str, Any], field: str, place: str) -> str:
    value = entry.get(field)
    precision = canonical_precision(value) if isinstance(value, str) else None
    if precision is None:
        raise WorkloadError(f"{place}: {field} = {shown(value)} is not a known precision; write bf16, fp16, fp32, …")
    return precision


def _number(entry: dict[str, Any], field: str, place: str, low: float = 0.0) -> float:
    """A finite number above 0, or from `low` where 0 has a meaning."""
    value = entry.get(field)
    allow_zero = field == "host_share"
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value < LARGEST_COUNT and (value > 0 or allow_zero)
    if not good:
        found = f"{field} = {shown(value)}" if field in entry else f"{field} is missing; it"
        raise WorkloadError(f"{place}: {found} must be a number {'of at least' if allow_zero else 'above'} 0 and below {LARGEST_COUNT:.0e}")
    return float(value)  # type: ignore[arg-type]


def _read_unknown(entry: Any, place: str) -> UnknownOperator:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise WorkloadError(f"{place} must be an object with a 'name' and a 'count'")
    count = _number(entry, "count", place)
    elements = entry.get("elements", 0)
    if isinstance(elements, bool) or not isinstance(elements, int | float) or not 0 <= elements < float("inf"):
        raise WorkloadError(f"{place}: elements = {shown(elements)} must be a number of at least 0")
    return UnknownOperator(name=entry["name"], count=max(1, round(count)), elements=float(elements))


def _text(document: Mapping[str, Any], field: str, where: str) -> str:
    value = document.get(field, "")
    if not isinstance(value, str):
        raise WorkloadError(f"{where}: {field} = {shown(value)} must be a text")
    return value


def _list(document: Mapping[str, Any], field: str, where: str) -> list[Any]:
    value = document.get(field, [])
    if not isinstance(value, list):
        raise WorkloadError(f"{where}: {field} must be a list")
    return value


def _texts(document: Mapping[str, Any], field: str, where: str) -> tuple[str, ...]:
    values = _list(document, field, where)
    if not all(isinstance(value, str) for value in values):
        raise WorkloadError(f"{where}: {field} must be a list of texts")
    return tuple(values)


def own_text(workload: Workload) -> str:
    """The workload as the text of a file in the own format, one operator a line."""
    head: dict[str, Any] = {"format": FORMAT, "format_version": FORMAT_VERSION, "name": workload.name}
    for field in ("model_family", "completion"):
        if getattr(workload, field):
            head[field] = getattr(workload, field)
    for field in ("warnings", "notes"):
        if getattr(workload, field):
            head[field] = list(getattr(workload, field))
    if workload.footprint is not None:
        head["memory"] = {name: _plain(value) for name, value in asdict(workload.footprint).items()}
    if workload.resizing is not None:
        head["sizes"] = sizes_entry(workload.resizing)
    if workload.unknown:
        head["unknown"] = [
            {"name": entry.name, "count": entry.count} | ({"elements": _plain(entry.elements)} if entry.elements else {})
            for entry in workload.unknown
        ]
    lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}," for key, value in head.items()]
    operators = [_own_entry(operator, count) for operator, count in zip(workload.operators, workload.counts, strict=True)]
    body = ",\n".join(f"    {json.dumps(entry)}" for entry in operators)
    return "{\n" + "\n".join(lines) + '\n  "operators": [\n' + body + "\n  ]\n}\n"


def _own_entry(operator: Operator, count: float) -> dict[str, Any]:
    entry: dict[str, Any] = {"family": operator.family, "operator": operator.operator, "precision": operator.precision}
    entry["count"] = _plain(count)
    entry |= {name: _plain(value) for name, value in operator.named_shape().items()}
    for name, default in OPTIONS.items():
        if getattr(operator, name) != default:
            entry[name] = getattr(operator, name)
    return entry | growth_entry(operator)


def _plain(value: float) -> int | float:
    """A whole number as an integer, which JSON shows without a point."""
    return int(value) if float(value).is_integer() else float(value)
