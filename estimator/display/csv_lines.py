"""Rows as CSV text, safe for spreadsheets: names come from files that somebody else may have written."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from estimator.display.estimates import printable

FORMULA_START: Final = ("=", "+", "-", "@")
"""What a text must not begin with: a spreadsheet would run it."""


def csv_lines(rows: Iterable[Iterable[Any]], header: Sequence[str] | None = None) -> str:
    """The header, where one is given, and a line for every row.

    Unknown values (None, nan) are empty.  Texts that a spreadsheet would run are quoted by a blank; control characters, of which a lone
    carriage return would end the line, become "?".
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    if header is not None:
        writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return stream.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, float):
        return value if math.isfinite(value) else ""
    if isinstance(value, str):
        text = value if value.isprintable() else printable(value)  # the usual case, a hundred times faster
        return f" {text}" if text.startswith(FORMULA_START) else text
    return value
