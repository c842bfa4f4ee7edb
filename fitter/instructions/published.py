"""Energies of PTX instructions against published ones.

Errors of n instructions as Arafa et al. (arXiv 2002.07795, section VI.A) state them: MAPE = 100/n · Σ |E − E_ref| / E_ref and
RMSE = √(1/n · Σ (E − E_ref)²).
"""

import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from estimator.counts.energies import Expansion, InstructionEnergies
from estimator.counts.modules import PICO
from estimator.vocabulary.errors import CountsError
from estimator.vocabulary.reader import plain
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.specifications import near_match
from fitter.rows.instruction_dataset import at_level
from fitter.validate.tables import Shown

TABLE: Final = "published/ptx-table-1.toml"
LEVELS: Final = ("O3", "O0")
ONE_THREAD: Final = "single.mtsm"
"""The launch mode and the way of sampling of the published figures that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of `n` energies: MAPE [%] and RMSE [J], nan for none; `of` says which."""

    of: str
    n: int
    mape: float
    rmse_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A row of the published table at a level: the published energy, ours by the same formula, and ours by regression [J]; nan: none."""

    name: str
    level: str
    published_j: float
    own_j: float
    energy_j: float


def errors_against(of: str, pairs: Iterable[tuple[float, float]]) -> Errors:
    """Errors of (energy, reference) pairs; those without both, or whose reference is not above zero, do not count."""
    known = np.array([pair for pair in pairs if math.isfinite(pair[0]) and pair[1] > 0]).reshape(-1, 2)
    if not len(known):
        return Errors(of=of, n=0, mape=math.nan, rmse_j=math.nan)
    off = known[:, 0] - known[:, 1]
    return Errors(of=of, n=len(known), mape=float(100.0 * np.mean(np.abs(off) / known[:, 1])), rmse_j=float(np.sqrt(np.mean(off**2))))


def compared_with_table(energies: InstructionEnergies, board: str) -> tuple[str, list[Compared]]:
    """The table's title and the rows that it has for a board's generation, at both levels.

    Raises CountsError for a generation that the table does not have.
    """
    table: dict[str, Any] = tomllib.loads((resource_folder("energies") / TABLE).read_text(encoding="utf-8"))
    boards = tuple(table["boards"])
    if board not in boards:
        raise CountsError(f"{table['title']} has no {board!r}{near_match(board, boards)}; it has {', '.join(boards)}")
    place = boards.index(board)
    rows = [
        _compared(row["name"], level, row[level][place][1] * 1e-6, [energies.ptx.get(at_level(name, level)) for name in row["kernels"]])
        for level in LEVELS
        for row in table["rows"]
        if row[level][place]
    ]
    meter = ", ".join(f"{way.upper()} {errors['mape']:g} %" for way, errors in table["against_meter"].items())
    return f"{table['title']}, {table['boards'][board]} (its methods against a meter, on its TITAN V, MAPE: {meter})", rows


def _compared(name: str, level: str, published_j: float, kernels: Iterable[Expansion | None]) -> Compared:
    """A row with the means over its kernels, of those that were measured."""
    known = [one for one in kernels if one is not None]
    own = [one.published_j[ONE_THREAD] for one in known if ONE_THREAD in one.published_j]
    regressed = [one.energy_j for one in known if math.isfinite(one.energy_j)]
    own_j, energy_j = (float(np.mean(values)) if values else math.nan for values in (own, regressed))
    return Compared(name=name, level=level, published_j=published_j, own_j=own_j, energy_j=energy_j)


def table_errors(rows: Iterable[Compared]) -> tuple[Errors, ...]:
    """Errors of ours, by the published formula, against the published table, by level."""
    own = tuple(rows)
    return tuple(errors_against(level, ((row.own_j, row.published_j) for row in own if row.level == level)) for level in LEVELS)


def published_tables(title: str, rows: list[Compared]) -> list[Shown]:
    """The comparison for people: published, ours by the published formula on one thread, and by regression."""
    lines = [(row.name, row.level, row.published_j / 1e-6, row.own_j / 1e-6, row.energy_j / PICO) for row in rows]
    head = ("instruction", "level", "published [µJ]", "here [µJ]", "regression [pJ]")
    errors = [(one.of, one.n, one.mape, one.rmse_j / 1e-6) for one in table_errors(rows)]
    return [
        Shown(title=f"{title}, against this bundle on one thread (1; collect --campaign ptx-levels runs it)", head=head, rows=lines),
        Shown(title="Errors of ours against the table", head=("level", "instructions", "MAPE [%]", "RMSE [µJ]"), rows=errors),
    ]


def table_document(title: str, rows: list[Compared]) -> dict[str, object]:
    """The comparison as JSON: rows, and errors by level."""
    errors = [{"level": one.of, "n": one.n, "mape": one.mape, "rmse_j": one.rmse_j} for one in table_errors(rows)]
    return {"source": title, "rows": plain(rows), "errors": plain(errors)}
