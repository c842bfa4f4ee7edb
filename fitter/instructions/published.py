"""Energies of PTX instructions against published ones.

Errors of n instructions as Arafa et al. (arXiv 2002.07795, section VI.A) state them: MAPE = 100/n · Σ |E − E_ref| / E_ref and
RMSE = √(1/n · Σ (E − E_ref)²).
"""

import math
import tomllib
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pandas as pd

from estimator.counts.energies import InstructionEnergies
from estimator.vocabulary.errors import CountsError
from estimator.vocabulary.reader import plain
from estimator.vocabulary.resources import resource_folder
from fitter.rows.columns import at_level

TABLE: Final = "published/ptx-table-1.toml"
LEVELS: Final = ("O3", "O0")
ONE_THREAD: Final = "single.mtsm"
"""Launch mode and way of sampling of the published figures in the comparison."""


def compared_with_table(energies: InstructionEnergies, board: str) -> tuple[str, pd.DataFrame]:
    """Title and rows of the published table for a board's generation, at both levels.

    name, level, and energies [J]: published_j, own_j (ours by the same formula), energy_j (ours by regression); nan: missing.

    Raises CountsError for a generation that is not in the table.
    """
    table: dict[str, Any] = tomllib.loads((resource_folder("energies") / TABLE).read_text(encoding="utf-8"))
    boards = tuple(table["boards"])
    if board not in boards:
        raise CountsError(f"{table['title']} has no {board!r}; it has {', '.join(boards)}")
    place = boards.index(board)
    rows = pd.DataFrame(
        {"name": row["name"], "level": level, "published_j": row[level][place][1] * 1e-6, **_means(energies, row["kernels"], level)}
        for level in LEVELS
        for row in table["rows"]
        if row[level][place]
    )
    meter = ", ".join(f"{way.upper()} {errors['mape']:g} %" for way, errors in table["against_meter"].items())
    return f"{table['title']}, {table['boards'][board]} (its methods against a meter, on its TITAN V, MAPE: {meter})", rows


def _means(energies: InstructionEnergies, kernels: Iterable[str], level: str) -> dict[str, float]:
    """Our energies by the same formula on one thread and by regression: means over the measured kernels [J]; nan: missing."""
    known = [one for name in kernels if (one := energies.ptx.get(at_level(name, level))) is not None]
    found = {"own_j": [one.published_j.get(ONE_THREAD, math.nan) for one in known], "energy_j": [one.energy_j for one in known]}
    return {name: float(pd.Series(values, dtype=float).mean()) for name, values in found.items()}


def level_ratio(energies: InstructionEnergies, kernel: str) -> float:
    """Energy of a kernel's instruction assembled without optimisation over that with; nan without both."""
    pair = [energies.ptx.get(at_level(kernel, level)) for level in LEVELS]
    optimised, plain_one = (math.nan if one is None else one.energy_j for one in pair)
    return plain_one / optimised if optimised else math.nan


def table_levels(rows: pd.DataFrame) -> pd.DataFrame:
    """O0 over O3 by name, of the published figures, of ours by the same formula, and by regression; nan: missing."""
    o3, o0 = (rows[rows["level"] == level].set_index("name").drop(columns="level") for level in LEVELS)
    return (o0 / o3).rename(columns=lambda name: f"{name.removesuffix('_j')}_o0_over_o3").reindex(o3.index).reset_index()


def table_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Errors of our energies by the published formula against the published table, by level: n, MAPE [%] and RMSE [J]; nan: missing."""
    off = rows["own_j"] - rows["published_j"]
    parts = rows.assign(n=off.notna(), mape=100.0 * off.abs() / rows["published_j"], square=off**2).groupby("level", sort=False)
    found = parts.agg(n=("n", "sum"), mape=("mape", "mean"), rmse_j=("square", "mean")).reset_index()
    return found.assign(rmse_j=np.sqrt(found["rmse_j"]))


def table_document(title: str, rows: pd.DataFrame) -> dict[str, object]:
    """The comparison as JSON: rows, the ratio of levels, and errors by level."""
    tables = {"rows": rows, "levels": table_levels(rows), "errors": table_errors(rows)}
    return {"source": title} | {name: plain(table.to_dict("records")) for name, table in tables.items()}
