"""Nsight Compute's CSV, printed with --csv: one line a metric."""

import csv
import math
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Final

from estimator.vocabulary.errors import CountsError
from estimator.vocabulary.values import frozen

SCALES: Final = {
    "": 1.0, "%": 1.0, "inst/cycle": 1.0,
    **{
        prefix + unit: scale
        for unit in ("inst", "cycle", "request", "warp", "block", "thread", "wavefront", "byte", "sector")
        for prefix, scale in {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}.items()
    },
    **{prefix + unit: scale for unit in ("s", "second") for prefix, scale in {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}.items()},
}  # fmt: skip
"""Printed units in base units; ncu prints base units with --print-units base, and scaled ones without.  A metric in another unit counts
as not read."""


@frozen
class ProfiledKernel:
    """One profiled kernel: name, grid as printed, and values by metric, in base units.

    Metrics without a value from ncu are nan.
    """

    number: int
    name: str
    grid: str = ""
    metrics: dict[str, float] = field(default_factory=dict)


def read_ncu(content: bytes, at: Path) -> list[ProfiledKernel]:
    """The kernels of a table, in the order of execution.  Raises CountsError, naming the file `at`, for any other content."""
    lines = content.decode("utf-8", errors="replace").splitlines()
    start = next((place for place, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = next((line for line in lines if "==ERROR==" in line or "ERR_NVGPUCTRPERM" in line), "")
        reason = f"ncu said: {said.strip()[:200]}" if said else 'no line begins with "ID"'
        raise CountsError(f"{at}: no table of Nsight Compute ({reason}); print it with ncu --csv")
    try:
        header, *rows = csv.reader(lines[start:], strict=True)
        return _kernels(header, [row for row in rows if row and not row[0].startswith("==")])
    except (ValueError, LookupError, csv.Error) as error:
        raise CountsError(
            f"{at}: a damaged table of Nsight Compute, a line or a column is not whole; print it again with ncu --csv"
        ) from error


def _kernels(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[ProfiledKernel]:
    """The kernels of a table with one line a metric."""
    place = {name: index for index, name in enumerate(header)}
    found: dict[int, ProfiledKernel] = {}
    for row in rows:
        number = int(row[place["ID"]])
        grid = row[place["Grid Size"]] if "Grid Size" in place else ""
        kernel = found.setdefault(number, ProfiledKernel(number=number, name=row[place["Kernel Name"]], grid=grid))
        kernel.metrics[row[place["Metric Name"]]] = _value(row[place["Metric Value"]], row[place["Metric Unit"]])
    return [found[number] for number in sorted(found)]


def _value(text: str, unit: str) -> float:
    """A printed number in base units; commas separate thousands.  nan for other texts ("n/a", empty)."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return math.nan
    return number * SCALES.get(unit.strip().lower(), math.nan)
