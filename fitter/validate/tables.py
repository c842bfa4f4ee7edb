"""Tables that both commands print and reports show."""

from collections.abc import Sequence
from math import nan
from typing import Literal

from estimator.bundle.content import HeldOut
from estimator.display.pages import number_html, table_html
from estimator.display.text import aligned, printable
from estimator.vocabulary.values import frozen
from fitter.validate.predictions import PERCENT, QUANTITIES, kind_text, label_of


@frozen
class Shown:
    """A table: its title, names of its columns, and rows of texts and numbers; nan is unknown."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[object]]

    def lines(self) -> list[str]:
        """Lines for a terminal; empty without rows."""
        if not self.rows:
            return []
        body = [[number_html(cell) if isinstance(cell, float) else printable(str(cell)) for cell in row] for row in self.rows]
        texts = [i for i in range(len(self.head)) if not all(isinstance(row[i], int | float) for row in self.rows)]
        return [self.title, *aligned([self.head, *body], texts).splitlines()]

    def html(self) -> str:
        """HTML for a page; "" without rows."""
        return table_html(self.title, self.head, self.rows)


def error_table(title: str, rows: Sequence[HeldOut]) -> Shown:
    """Errors in percent, a line per kind of kernel."""
    figures: tuple[Literal["mape", "median", "p95", "bias"], ...] = ("mape", "median", "p95", "bias")
    head = ("rows of", "rows", *(name for quantity in QUANTITIES for name in (quantity, *figures[1:])), "coverage")
    cells: list[list[object]] = []
    for row in rows:
        errors = [nan if (own := row[quantity]) is None else round(own[name], 2) for quantity in QUANTITIES for name in figures]
        covered = nan if row["coverage"] is None else round(PERCENT * row["coverage"], 0)
        cells.append([kind_text(label_of(row)), row["n"], *errors, covered])
    return Shown(title=title, head=head, rows=cells)
