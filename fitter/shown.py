"""Tables that commands print and reports show: each is described once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from estimator.display.pages import table_html


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A table: its title, names of its columns, and rows of texts and numbers; nan is unknown."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    def lines(self) -> list[str]:
        """For a terminal; nothing without rows."""
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
        """For a page; nothing without rows."""
        return table_html(self.title, self.head, self.rows)


def _text(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return "–" if cell != cell else f"{cell:.4g}"
