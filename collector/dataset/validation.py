"""Holding a dataset against the rules, and telling what came of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from collector.dataset.reader import KernelDataset, read_parts
from collector.dataset.rules import RANGES, RULES, Breach, Checked, Rule
from collector.dataset.schema import KERNEL_COLUMNS, operators_of
from collector.errors import DatasetError
from estimator.workload import Operator

SHOWN: Final = 3
"""Breaches and rows of a rule that are named, at most, without -v."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a dataset was held against: rows, rules that were checked, and the breaches of those that are broken."""

    dataset: str
    rows: int
    row_ids: tuple[str, ...]
    checked: tuple[Rule, ...]
    broken: dict[str, tuple[Breach, ...]]


def validate_dataset(path: Path) -> Findings:
    """A dataset held against every rule.  Raises DatasetError for one that cannot be read at all."""
    data = checked_dataset(read_parts(path))
    broken = {rule.id: tuple(breaches) for rule in RULES if (breaches := rule.check(data))}
    ids = tuple(str(row_id) for row_id in data.text("row_id"))
    return Findings(dataset=str(path), rows=data.table.num_rows, row_ids=ids, checked=RULES, broken=broken)


def checked_dataset(dataset: KernelDataset) -> Checked:
    """A dataset as rules see it."""
    table = dataset.table
    numbers = {
        name: np.array(table.column(name).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
        for name, column in KERNEL_COLUMNS.items()
        if column.type in (pa.float64(), pa.int64())
    }
    return Checked(
        table=table,
        files=dataset.files,
        file_of_row=np.repeat(np.arange(len(dataset.files)), [file.rows for file in dataset.files]),
        numbers=numbers,
        flags=tuple(frozenset(row or ()) for row in table.column("flags").to_pylist()),
        operators=_operators(table),
    )


def _operators(table: pa.Table) -> tuple[Operator | str, ...]:
    """The operator of every row, or why it can have none."""
    try:
        return tuple(operators_of(table))
    except DatasetError:
        return tuple(_operator(table.slice(row, 1)) for row in range(table.num_rows))


def _operator(row: pa.Table) -> Operator | str:
    try:
        return operators_of(row)[0]
    except DatasetError as error:
        return str(error)


def findings_document(findings: Findings) -> dict[str, Any]:
    """Findings as plain data."""
    return {
        "dataset": findings.dataset,
        "rows": findings.rows,
        "valid": not findings.broken,
        "rules": [
            {
                "rule": rule.id,
                "what": rule.what,
                "limit": rule.limit,
                "broken": rule.id in findings.broken,
                "breaches": [
                    {"what": breach.what, "rows": [findings.row_ids[row] for row in breach.rows], "count": len(breach.rows)}
                    for breach in findings.broken.get(rule.id, ())
                ],
            }
            for rule in findings.checked
        ],
    }


def findings_lines(findings: Findings, *, verbose: bool) -> list[str]:
    """Findings for people; all rules and rows with `verbose`."""
    lines = [f"{findings.dataset}: {findings.rows} rows, {len(findings.checked)} rules, {len(findings.broken)} broken"]
    for rule in findings.checked:
        breaches = findings.broken.get(rule.id, ())
        if verbose and not breaches:
            lines.append(f"  {rule.id} kept    {rule.what} ({rule.limit})")
        for breach in breaches if verbose else breaches[:SHOWN]:
            lines.append(f"  {rule.id} broken  {rule.what} ({rule.limit}): {breach.what}{_which(findings, breach, verbose=verbose)}")
        if not verbose and len(breaches) > SHOWN:
            lines.append(f"  {rule.id}         and {len(breaches) - SHOWN} more; -v names them")
    return lines


def rule_lines() -> list[str]:
    """All rules with their limits, for people."""
    lines = [f"{rule.id}  {rule.what}: {rule.limit}" for rule in RULES]
    return [*lines, *(f"R01  {name}: {low:g} to {high:g} {KERNEL_COLUMNS[name].unit}" for name, (low, high) in RANGES.items())]


def _which(findings: Findings, breach: Breach, *, verbose: bool) -> str:
    """The rows of a breach."""
    if not breach.rows:
        return ""
    shown = breach.rows if verbose else breach.rows[:SHOWN]
    named = ", ".join(findings.row_ids[row] for row in shown)
    more = f" and {len(breach.rows) - len(shown)} more" if len(shown) < len(breach.rows) else ""
    return f" (row {named}{more})" if len(breach.rows) == 1 else f" (rows {named}{more})"
