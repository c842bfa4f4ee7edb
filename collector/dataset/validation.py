"""Holding a dataset against the rules, and reporting the result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from collector.dataset.reader import read_parts
from collector.dataset.rules import RULES, Breach, Checked
from collector.dataset.schema import KERNEL_COLUMNS

SHOWN: Final = 3
"""Breaches and rows of a rule that are named, at most, without -v."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of the rules on a dataset: its rows, and the breaches of the rules that are broken, by rule id."""

    dataset: str
    row_ids: tuple[str, ...]
    broken: dict[str, list[Breach]]


def validate_dataset(path: Path) -> Findings:
    """A dataset held against every rule.  Raises DatasetError for one that cannot be read at all."""
    data = Checked(read_parts(path))
    broken = {rule.id: breaches for rule in RULES if (breaches := rule.check(data))}
    return Findings(dataset=str(path), row_ids=tuple(data.texts("row_id")), broken=broken)


def findings_document(findings: Findings) -> dict[str, Any]:
    """Findings as plain data."""
    rules = []
    for rule in RULES:
        breaches = [
            {"what": breach.what, "rows": [findings.row_ids[row] for row in breach.rows], "count": len(breach.rows)}
            for breach in findings.broken.get(rule.id, ())
        ]
        rules.append({"rule": rule.id, "what": rule.what, "limit": rule.limit, "broken": bool(breaches), "breaches": breaches})
    return {"dataset": findings.dataset, "rows": len(findings.row_ids), "valid": not findings.broken, "rules": rules}


def findings_lines(findings: Findings, *, verbose: bool) -> list[str]:
    """Findings for people; all rules and rows with `verbose`."""
    lines = [f"{findings.dataset}: {len(findings.row_ids)} rows, {len(RULES)} rules, {len(findings.broken)} broken"]
    for rule in RULES:
        breaches = findings.broken.get(rule.id, [])
        most = None if verbose else SHOWN
        if verbose and not breaches:
            lines.append(f"  {rule.id} kept    {rule.what} ({rule.limit})")
        for breach in breaches[:most]:
            named = ", ".join(findings.row_ids[row] for row in breach.rows[:most])
            more = f" and {len(breach.rows) - SHOWN} more" if most and len(breach.rows) > SHOWN else ""
            rows = f" (row{'s' * (len(breach.rows) > 1)} {named}{more})" if breach.rows else ""
            lines.append(f"  {rule.id} broken  {rule.what} ({rule.limit}): {breach.what}{rows}")
        if most and len(breaches) > SHOWN:
            lines.append(f"  {rule.id}         and {len(breaches) - SHOWN} more; -v names them")
    return lines


def rule_lines() -> list[str]:
    """All rules with their limits, for people."""
    lines = [f"{rule.id}  {rule.what}: {rule.limit}" for rule in RULES]
    ranged = [(name, column) for name, column in KERNEL_COLUMNS.items() if column.range]
    return [*lines, *(f"R01  {name}: {column.range[0]:g} to {column.range[1]:g} {column.unit}" for name, column in ranged if column.range)]
