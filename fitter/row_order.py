"""One order for rows whatever order they were read in: by what they say, not by where it was written.

Folds, samples and sums of floating-point numbers follow the order of rows.  Were it that of the files, one table written in two orders
would give two bundles, and errors that differ by chance.
"""

from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from estimator.quantities import Array, BoolArray, IntArray
from fitter.rows import Rows, Selection

NOT_TOLD: Final = frozenset({"sources", "source_index", "row", "gpus", "gpu_index"})
"""Columns that say where a row was written, and those of GPUs' numbers: their names count."""


def in_own_order(selection: Selection) -> Selection:
    """The selection with kernels and runs ordered by what they say; two that say the same stay as they are."""
    kernels, workloads = selection.kernels, selection.workloads
    return replace(
        selection,
        kernels=None if kernels is None else _ordered(kernels, "operators", "operator_index"),
        workloads=None if workloads is None else _ordered(workloads, "workloads", "workload_index"),
    )


def _ordered(rows: Rows, unique: str, index: str) -> Rows:
    """Rows by their operator or workload, then by their other columns; what no row uses falls out of the unique ones."""
    values, number = getattr(rows, unique), getattr(rows, index)
    used = sorted(np.unique(number).tolist(), key=lambda place: repr(values[place]))
    rank = np.full(len(values), -1, dtype=np.int64)
    rank[used] = np.arange(len(used))
    changes: dict[str, Any] = {unique: tuple(values[place] for place in used), index: rank[number]}
    columns: list[IntArray] = [
        _ranks(getattr(rows, column.name)) for column in fields(rows) if column.name not in NOT_TOLD | {unique, index}
    ]
    gpu = _ranks(tuple(rows.gpus[place] for place in rows.gpu_index))
    return replace(rows, **changes).select(np.lexsort((*columns, gpu, rank[number])))


def _ranks(column: Array | IntArray | BoolArray | tuple[Any, ...]) -> IntArray:
    """The rank of each value of a column among its different ones, shape (n,); what is not a number comes last."""
    if isinstance(column, tuple):
        rank = {value: place for place, value in enumerate(sorted(set(column)))}
        return np.fromiter(map(rank.__getitem__, column), np.int64, len(column))
    ranks: IntArray = np.unique(column, return_inverse=True)[1]
    return ranks
