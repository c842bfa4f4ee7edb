"""Tables that both commands print and reports show."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Final

from estimator.display.pages import table_html
from fitter.validate.predictions import PERCENT, QUANTITIES, ErrorRow, Label

FIGURES: Final = ("mape", "median", "p95", "bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A table: its title, names of its columns, and rows of texts and numbers; nan is unknown."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[object]]

    def lines(self) -> list[str]:
        """Lines for a terminal; empty without rows."""
        if not self.rows:
            return []
        cells = [self.head, *([_text(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        numbers = [all(isinstance(row[i], int | float) for row in self.rows) for i in range(len(self.head))]
        lines = [self.title]
        for row in cells:
            parts = [f"{c:>{w}}" if right else f"{c:{w}}" for c, w, right in zip(row, widths, numbers, strict=True)]
            lines.append(f"    {'  '.join(parts)}".rstrip())
        return lines

    def html(self) -> str:
        """HTML for a page; "" without rows."""
        return table_html(self.title, self.head, self.rows)


def _text(cell: object) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return "–" if cell != cell else f"{cell:.4g}"


def kind_text(label: Iterable[object]) -> str:
    """A kind of rows as text."""
    return " ".join(str(word) for word in label if word)


def error_table(title: str, rows: Sequence[ErrorRow], notes: Mapping[Label, str] | None = None) -> list[str]:
    """Errors in percent, a line per kind of kernel; below them the notes on kinds, as from `held_out_notes`."""
    head = ("rows of", "rows", *(name for quantity in QUANTITIES for name in (quantity, *FIGURES[1:])), "coverage")
    cells: list[list[object]] = []
    for row in rows:
        figures = [nan if errors is None else round(getattr(errors, name), 2) for errors in (row.latency, row.power) for name in FIGURES]
        cells.append([kind_text(row.label), row.n, *figures, row.coverage if isnan(row.coverage) else round(PERCENT * row.coverage)])
    reasons: dict[str, list[str]] = {}
    for label, note in (notes or {}).items():
        reasons.setdefault(note, []).append(kind_text(label))
    return [*Shown(title=title, head=head, rows=cells).lines(), *(f"    {', '.join(kinds)}: {note}" for note, kinds in reasons.items())]
