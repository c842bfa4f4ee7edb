"""Quantities, tables and CSV lines as text, for all answers."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import floor, isfinite, log10, nan
from typing import Any, Final

from estimator.vocabulary.documents import printable

Units = Sequence[tuple[float, str]]
Document = dict[str, object]
"""An object of JSON data."""
Rows = Sequence[Mapping[str, object]]
"""Lines of a table, each with its fields by name."""

TIME_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
POWER_UNITS: Final = ((1.0, "W"),)
ENERGY_UNITS: Final = ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ"))

QUANTITIES: Final = {"latency_s": TIME_UNITS, "power_w": POWER_UNITS, "energy_j": ENERGY_UNITS}
"""Predicted quantities and their units for people; each field has a `…_std`, `…_low` and `…_high`."""

PREDICTED: Final = tuple(f"{name}{end}" for name in QUANTITIES for end in ("", "_std"))

SIGNIFICANT_DIGITS: Final = 4
MOST_ROWS: Final = 60
"""Points of a table for people; files hold all."""
LEAST_PLAIN, MOST_PLAIN = 0.01, 1e9
"""Limits beyond which numbers are written with an exponent."""
UNKNOWN: Final = "–"

FORMULA_START: Final = ("=", "+", "-", "@")
"""First characters of texts that a spreadsheet would run."""


def known(value: Any) -> Any:
    """A value for JSON: a number that is not finite becomes null (unknown)."""
    if isinstance(value, Mapping):
        return {name: known(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [known(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def json_of_each(documents: Sequence[object]) -> str:
    """One JSON document: an object for one answer, a list for several."""
    return json_text(documents[0] if len(documents) == 1 else documents)


def json_text(document: object) -> str:
    """One JSON document; a dataclass becomes an object of its fields."""
    return json.dumps(known(document), indent=1, allow_nan=False, default=lambda value: known(asdict(value))) + "\n"


def plain(value: float, form: str, unit: str = "") -> str:
    """A number in a form of Python's format language."""
    return f"{value:{form}}{unit}" if isfinite(value) else UNKNOWN


def percent(share: float) -> str:
    """A share with one decimal."""
    return plain(share, ".1%")


def with_uncertainty(value: float, std: float, units: Units) -> str:
    """A quantity in the unit that suits its size, with its standard deviation if known."""
    if not isfinite(value):
        return UNKNOWN
    scale, unit = next((pair for pair in units if abs(value) >= pair[0]), units[-1] if value else units[0])
    scaled, error = value / scale, std / scale
    if scaled and not LEAST_PLAIN <= abs(scaled) < MOST_PLAIN:
        return f"{scaled:.{SIGNIFICANT_DIGITS - 1}e}{f' ± {error:.1e}' if isfinite(std) else ''} {unit}"
    whole_digits = max(1, floor(log10(abs(scaled))) + 1) if scaled else 1
    spread = f" ± {error:{'.2g' if error < 99.5 else '.0f'}}" if isfinite(std) else ""
    return f"{scaled:.{max(0, SIGNIFICANT_DIGITS - whole_digits)}f}{spread} {unit}"


def seconds(value: float) -> str:
    """A time without its uncertainty."""
    return with_uncertainty(value, nan, TIME_UNITS)


def quantity_texts(values: Mapping[str, float]) -> list[str]:
    """Texts of latency, power and energy, each with its standard deviation if `values` has one."""
    return [with_uncertainty(values[name], values.get(f"{name}_std", nan), units) for name, units in QUANTITIES.items()]


def together(gpus: Iterable[int]) -> list[str]:
    """A line about power and energy of points on several GPUs each; empty if each point has one GPU."""
    counts = set(gpus)
    most = max(counts, default=1)
    which = f"{most} GPUs" if len(counts) == 1 else "GPUs of a point"
    return [f"power and energy of all {which} together"] if most > 1 else []


def indented(lines: Iterable[str]) -> str:
    """Lines below a table or a headline."""
    return "".join(f"  {line}\n" for line in lines)


def fields_of(value: object, names: Iterable[str]) -> dict[str, Any]:
    """Fields of a value by name."""
    return {name: getattr(value, name) for name in names}


def aligned(rows: Sequence[Sequence[str]], left_columns: Iterable[int]) -> str:
    """Rows of text in columns, right-aligned except `left_columns`, with two blanks between them."""
    left = set(left_columns)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        "  ".join(cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
    return "".join(f"  {line}".rstrip() + "\n" for line in padded)


def csv_lines(rows: Iterable[Iterable[Any]], header: Sequence[str] | None) -> str:
    """The header, if given, and a line for every row.

    Unknown values (None, nan) are empty.  Texts that a spreadsheet would run get a leading blank.  Control characters become "?": a lone
    carriage return would end the line.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    if header is not None:
        writer.writerow(header)
    writer.writerows([_cell(known(value)) for value in row] for row in rows)
    return stream.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        text = printable(value)
        return f" {text}" if text.startswith(FORMULA_START) else text
    return "" if value is None else value


def rows_csv(rows: Rows) -> str:
    """Rows as CSV, with a column for every field."""
    columns = _columns(rows)
    return csv_lines((map(row.get, columns) for row in rows), header=columns)


def rows_table(rows: Rows) -> str:
    """Rows as a table for people, with a column for every field."""
    columns = _columns(rows)
    return aligned([columns, *([cell_text(row.get(column)) for column in columns] for row in rows)], range(len(columns)))


def _columns(rows: Rows) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def rows_text(rows: Rows, form: str) -> str:
    """Rows in a form: "json", "csv" or "txt"."""
    return {"json": json_text, "csv": rows_csv, "txt": rows_table}[form](rows)


def document_text(document: Mapping[str, object]) -> str:
    """JSON data for people: a line for every field, a table for a list or an object of objects."""
    text = ""
    for name, value in document.items():
        if isinstance(value, Mapping) and value and all(isinstance(one, Mapping) for one in value.values()):
            value = [{"": key, **one} for key, one in value.items()]
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            text += f"{name}\n{rows_table(value)}"
        else:
            text += f"{name}: {cell_text(value)}\n"
    return text


def cell_text(value: object) -> str:
    """A value of JSON data for people."""
    if isinstance(value, Mapping):
        items = ((name, f"({cell_text(one)})" if isinstance(one, Mapping) else cell_text(one)) for name, one in value.items())
        return ", ".join(f"{name} {text}" for name, text in items) or UNKNOWN
    if isinstance(value, list | tuple):
        return (" to " if value and all(isinstance(one, float) for one in value) else ", ").join(map(cell_text, value)) or UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if known(value) is None else f"{value:.5g}" if isinstance(value, float) else printable(str(value))
