"""Fit of a design table: a plain pass, then passes in which outliers count less and launch floors are told apart.

The hold-out costs no pass of its own: sums over the held-out kernels are kept apart, so that the fit without them is the
difference of two sums, and its errors on them are counted in the last pass.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from estimator.quantities import Array, IntArray
from fitter.errors import CalibrationError, InputError
from fitter.kernels.latency import ERROR_SCALE, FLOOR_QUANTILE
from fitter.scale.design_table import (
    EPSILON_UNIT_S,
    ERROR_BINS_PER_E,
    FLOOR_BINS_PER_OCTAVE,
    FLOOR_LOWEST,
    HELD,
    LEAST_ERROR,
    PHASE_COLUMNS,
    DesignPass,
    DesignResult,
    GroupState,
    design_pass,
    merge_results,
)
from fitter.scale.partitions import PartitionedTable, shown
from fitter.scale.passes import Workers, run_pass
from fitter.scale.solution import GroupSolution, design_priors, mean_square_error, solve_group
from fitter.scale.sums import GroupSums
from fitter.validation import PERCENT, ErrorRow, Errors

ROBUST_PASSES: Final = 3
"""Passes after the plain one: weights settle to a few 10⁻³ of themselves, and floors are seen, refined and used."""

FLOOR_PILE: Final = 0.05
"""A launch floor holds at least this share of a group's rows within FLOOR_REACH of its shortest times [1].
Times spread evenly over four decades would put 1.5 % there."""

FLOOR_PILE_BINS: Final = 3
"""Bins of 4 % that make up FLOOR_REACH."""

FEWEST_FLOOR_ROWS: Final = 10

FEWEST_HELD: Final = 5
"""Errors of a group from fewer held-out rows than this say nothing about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignFit:
    """Coefficients by group as fitted to all rows, launch floors [s] where one was seen, and standard deviations of relative
    errors on held-out rows.

    phases: coefficient of each design column, before the fixed cost; passes: how often all rows were read.
    """

    phases: tuple[str, ...]
    groups: Mapping[str, GroupSolution]
    floors_s: Mapping[str, float]
    std: Mapping[str, float]
    errors: tuple[ErrorRow, ...]
    rows: int
    used: int
    rejected: Mapping[str, int]
    passes: int

    def group_coefficients(self, group: str) -> dict[str, float]:
        """One group's coefficients by name, in their own units; phases that it does not have are left out."""
        values = self.groups[group].values.tolist()
        named = {name: value for name, value in zip(self.phases, values, strict=False) if value > 0.0}
        floor = {"floor_s": self.floors_s[group]} if group in self.floors_s else {}
        return {**named, "epsilon_s": values[-1] * EPSILON_UNIT_S, "exponent": 1.0, **floor}


def fit_design(
    table: PartitionedTable,
    workers: Workers,
    *,
    gpu_name: str,
    holdout: float = 0.2,
    seed: int = 0,
    robust_passes: int = ROBUST_PASSES,
    progress: Callable[[str], None] = lambda text: None,
) -> DesignFit:
    """Coefficients of every group of a design table.

    robust_passes: 0 leaves it at the plain pass, which reads all rows once.  Raises InputError for a file that cannot be
    read, CalibrationError where no row is left.
    """
    columns = tuple(name for name in PHASE_COLUMNS if name in table.columns)
    _check_types(table, columns)
    task = DesignPass(phases=columns, weighted="weight" in table.columns, share=holdout, seed=seed, scale=ERROR_SCALE)
    partitions = table.partitions()
    reading = partial(run_pass, workers, partitions=partitions, merge=merge_results, progress=progress)
    result = reading(task=partial(design_pass, task=task), label="plain pass")
    used = int(result.sums.rows.sum())
    if not used:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in result.rejected.items())
        what = f"no usable row among {result.rows:,} ({counts})" if result.rows else "holds no rows"
        raise CalibrationError(f"{shown(table.uri)}: {what}")
    mean_weight = _mean_weights(result.sums)
    known, solved = _solved(result, task, mean_weight, {})
    for number in range(robust_passes):
        last = number == robust_passes - 1
        step = replace(task, known=known, seek_floors=number == 0, last=last)
        result = reading(task=partial(design_pass, task=step), label=f"robust pass {number + 1} of {robust_passes}")
        floors = _floors(result, known)
        known, solved = _solved(result, task, mean_weight, floors)
    return DesignFit(
        phases=tuple(PHASE_COLUMNS[name] for name in columns),
        groups=solved,
        floors_s={name: state.floor_s for name, state in known.items() if state.floor_s > 0.0},
        std={name: state.std for name, state in known.items() if np.isfinite(state.std)},
        errors=_error_rows(result.errors, gpu_name),
        rows=result.rows,
        used=used,
        rejected=dict(sorted(result.rejected.items(), key=lambda item: (-item[1], item[0]))),
        passes=1 + robust_passes,
    )


def _check_types(table: PartitionedTable, columns: tuple[str, ...]) -> None:
    for name in (*columns, "latency_s", *(["weight"] if "weight" in table.columns else [])):
        if name not in table.schema.names:
            raise InputError(f"{shown(table.uri)}: {name!r} must be a column of its files, not a folder's name")
        kind = table.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise InputError(f"{shown(table.uri)}: column {name!r} holds {kind}; expected numbers")
        unit = (table.schema.field(name).metadata or {}).get(b"unit", b"").decode("utf-8", errors="replace")
        if unit not in ("", "s") and name != "weight":
            raise InputError(f"{shown(table.uri)}: column {name!r} states the unit {unit[:40]!r}; it must be s")


def _mean_weights(sums: GroupSums) -> dict[str, float]:
    """Mean of the rows' own weights by group."""
    found: dict[str, list[float]] = {}
    for name, rows, square in zip(sums.names, sums.rows.tolist(), (sums.high[:, -1] + sums.low[:, -1]).tolist(), strict=True):
        total = found.setdefault(name.removesuffix(HELD), [0.0, 0.0])
        total[0], total[1] = total[0] + square, total[1] + rows
    return {name: square / rows if rows and square > 0.0 else 1.0 for name, (square, rows) in found.items()}


def _solved(
    result: DesignResult, task: DesignPass, mean_weight: Mapping[str, float], floors_s: Mapping[str, float]
) -> tuple[dict[str, GroupState], dict[str, GroupSolution]]:
    """Every group with rows: its fit to all of them, and what the next pass needs."""
    place = result.sums.index()
    states, solved = {}, {}
    names = [PHASE_COLUMNS[column] for column in task.phases]
    for name in sorted(key for key in place if not key.endswith(HELD)):
        train, held = result.sums.matrix(place[name]), result.sums.matrix(place[name + HELD])
        counts = int(result.sums.rows[place[name]]), int(result.sums.rows[place[name + HELD]])
        if not sum(counts):
            continue
        centre, std = design_priors(name, names, EPSILON_UNIT_S)
        found = solve_group(_matrix_of_both(result.sums, place[name], place[name + HELD]), sum(counts), centre, std, mean_weight[name])
        without = solve_group(train, counts[0], centre, std, mean_weight[name])
        spread = np.sqrt(mean_square_error(held, without.values)) if counts[1] >= FEWEST_HELD else found.rms
        present = np.diag(train)[:-1] + np.diag(held)[:-1] > 0.0
        solved[name] = replace(found, values=np.where(present, found.values, 0.0))
        states[name] = GroupState(
            values=tuple(solved[name].values.tolist()),
            train=tuple(np.where(present, without.values, 0.0).tolist()),
            floor_s=floors_s.get(name, 0.0),
            std=float(spread) if np.isfinite(spread) else found.rms,
        )
    return states, solved


def _matrix_of_both(sums: GroupSums, first: int, second: int) -> Array:
    """Σ over the rows of two groups, their rounding errors included."""
    pair = GroupSums(
        names=("both",),
        rows=sums.rows[[first]] + sums.rows[[second]],
        high=sums.high[[first]] + sums.high[[second]],
        low=sums.low[[first]] + sums.low[[second]],
    )
    return pair.matrix(0)


def _floors(result: DesignResult, known: Mapping[str, GroupState]) -> dict[str, float]:
    """Launch floors [s]: seen as a pile of shortest times, then as the mean of the times that the equations put below it."""
    floors = {name: seen for name, counts in result.shortest.items() if (seen := _pile_s(counts)) > 0.0}
    for name, state in known.items():
        logs, rows = result.hidden.get(name, np.zeros(2))
        if state.floor_s > 0.0 and rows >= FEWEST_FLOOR_ROWS:
            floors[name] = float(np.exp(logs / rows))
    return floors


def _pile_s(counts: IntArray) -> float:
    """The shortest time of a group where many rows share it [s], else 0."""
    total = int(counts.sum())
    first = int(np.searchsorted(np.cumsum(counts), FLOOR_QUANTILE * total, side="right"))
    pile = int(counts[first : first + FLOOR_PILE_BINS].sum())
    if pile < max(FEWEST_FLOOR_ROWS, FLOOR_PILE * total):
        return 0.0
    return float(2.0 ** (FLOOR_LOWEST + (first + 0.5) / FLOOR_BINS_PER_OCTAVE))


def _error_rows(errors: Mapping[str, Array], gpu_name: str) -> tuple[ErrorRow, ...]:
    """Errors of held-out rows by family, operator and precision."""
    kinds: dict[tuple[str, str, str], Array] = {}
    for name in sorted(errors):
        family, operator, precision = (*name.split("."), "", "")[:3]
        kind = (family, operator, precision)
        kinds[kind] = kinds[kind] + errors[name] if kind in kinds else errors[name]
    return tuple(
        ErrorRow(gpu=gpu_name, family=kind[0], operator=kind[1], precision=kind[2], n=int(values[0]), latency=_errors(values), power=None)
        for kind, values in kinds.items()
        if values[0] > 0
    )


def _errors(values: Array) -> Errors:
    """From counts, sums and histogram: quantiles to within a bin."""
    count, size, signed, inside = values[:4].tolist()
    below = np.cumsum(values[4:])

    def quantile(share: float) -> float:
        place = int(np.searchsorted(below, share * count))
        return float(LEAST_ERROR * np.exp((place + 0.5) / ERROR_BINS_PER_E)) * PERCENT

    return Errors(
        n=int(count),
        mape=size / count * PERCENT,
        median=quantile(0.5),
        p95=quantile(0.95),
        bias=signed / count * PERCENT,
        coverage=inside / count,
    )
