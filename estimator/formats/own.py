"""The own workload format: JSON, versioned, one entry per operator with its count.

    {"format": "wattprint-workload", "format_version": "1.0", "name": "two layers", "operators": [
        {"family": "gemm", "operator": "linear", "precision": "bf16", "count": 2, "batch": 1, "m": 512, "n": 768, "k": 768}]}

Fields and their meaning: docs/workload-format.md; JSON Schema: estimator/schema/workload-1.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.reader import FaultError, Span, plain, read
from estimator.vocabulary.workload import OPTIONS, Footprint, Operator, UnknownOperator, Workload, read_operator

FORMAT: Final = "wattprint-workload"
FORMAT_VERSION: Final = "1.0"

MOST_GPUS: Final = 4096
"""Most GPUs of a group [1], as of `estimate llm`."""

SHARED: Final = ("model_family", "completion", "gpus", "warnings", "notes", "unknown")
"""Optional fields of a workload that its file holds under the same names."""


@dataclass(kw_only=True)
class Head:
    """Operators of a model with their counts"""

    format: Literal["wattprint-workload"]
    format_version: Literal["1.0"]
    name: Annotated[str, "shown in results; the file's name where it is missing"] = ""
    model_family: Annotated[str, "a free word that groups workloads; it never enters the equations"] = ""
    completion: Annotated[str, "completion rule set that made the list whole, if one did"] = ""
    gpus: Annotated[int, Span(1, MOST_GPUS), "GPUs that run the operators at once, each its own share of a model"] = 1
    memory: Footprint | None = None
    unknown: Annotated[tuple[UnknownOperator, ...], "operators of the source that no kernel family describes"] = ()
    warnings: Annotated[tuple[str, ...], "what was modelled by assumption"] = ()
    notes: tuple[str, ...] = ()


def read_own(document: Mapping[str, object], where: str, default_name: str) -> Workload:
    """A Workload from the parsed JSON of the own format.

    `where` names the file in messages.  Raises WorkloadError.
    """
    entries = document.get("operators")
    if not isinstance(entries, list) or not entries:
        raise WorkloadError(f"{where}: 'operators' must be a list of at least one operator")
    try:
        head = read(Head, {name: value for name, value in document.items() if name != "operators"})
        totals = _read_entries(entries)
    except FaultError as fault:
        raise WorkloadError(f"{where}: {fault}") from None
    return Workload(
        name=head.name or default_name,
        operators=tuple(totals),
        counts=tuple(totals.values()),
        footprint=head.memory,
        **{name: getattr(head, name) for name in SHARED},
    )


def _read_entries(entries: list[Any]) -> dict[Operator, float]:
    """Operators with their counts.  Raises FaultError."""
    totals: dict[Operator, float] = {}
    for position, entry in enumerate(entries):
        place = ("operators", position)
        if not isinstance(entry, dict):
            raise FaultError("must be an object of named fields", *place)
        try:
            operator, count = read_operator(entry)
        except FaultError as fault:
            raise FaultError(fault.what, *place, *fault.place) from None
        totals[operator] = totals.get(operator, 0.0) + count
    return totals


def own_text(workload: Workload) -> str:
    """The workload as the text of a file in the own format, one operator a line."""
    head: dict[str, object] = {"format": FORMAT, "format_version": FORMAT_VERSION, "name": workload.name}
    optional = {name: getattr(workload, name) for name in SHARED} | {"memory": workload.footprint}
    head |= {name: plain(part) for name, part in optional.items() if part and part != 1}
    lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}," for key, value in head.items()]
    operators = [_own_entry(operator, count) for operator, count in zip(workload.operators, workload.counts, strict=True)]
    body = ",\n".join(f"    {json.dumps(entry)}" for entry in operators)
    return "{\n" + "\n".join(lines) + '\n  "operators": [\n' + body + "\n  ]\n}\n"


def _own_entry(operator: Operator, count: float) -> dict[str, object]:
    entry: dict[str, object] = {"family": operator.family, "operator": operator.operator, "precision": operator.precision}
    entry |= {name: _plain(value) for name, value in {"count": count, **operator.named_shape()}.items()}
    return entry | {name: getattr(operator, name) for name, (_, default) in OPTIONS.items() if getattr(operator, name) != default}


def _plain(value: float) -> int | float:
    """A whole number as an integer, which JSON shows without a point."""
    return int(value) if float(value).is_integer() else float(value)
