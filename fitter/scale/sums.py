"""Sums over the rows of each group: what a linear least squares needs of any number of rows.

Of design rows z = (x_1 … x_p, 1) a group keeps Σ w·z·zᵀ and the number of rows.  Sums are pairwise within a block of rows
and carry their rounding error from block to block (two numbers an entry), in the order of the rows: the result is as good as
in twice the precision, and the same whoever did which part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from estimator.quantities import Array, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSums:
    """Sums by group: names (g), rows (g,), and the upper triangle of Σ w·z·zᵀ as `high` + `low`, shape (g, q·(q+1)/2)."""

    names: tuple[str, ...]
    rows: IntArray
    high: Array
    low: Array

    def matrix(self, number: int) -> Array:
        """Σ w·z·zᵀ of one group, shape (q, q)."""
        return _full(self.high[number] + self.low[number])

    def index(self) -> dict[str, int]:
        """Place of every group."""
        return {name: i for i, name in enumerate(self.names)}


def triangle(width: int) -> tuple[IntArray, IntArray]:
    """Row and column of each entry of the upper triangle of a (q, q) matrix, shapes (q·(q+1)/2,)."""
    first, second = np.triu_indices(width)
    return first.astype(np.int64), second.astype(np.int64)


def empty_sums(width: int) -> GroupSums:
    """Sums over no rows."""
    entries = width * (width + 1) // 2
    none = np.zeros((0, entries))
    return GroupSums(names=(), rows=np.zeros(0, dtype=np.int64), high=none, low=none)


def add_sums(left: GroupSums, right: GroupSums) -> GroupSums:
    """Both together; groups keep the order in which they were first seen."""
    if left.names == right.names:
        high, low = _two_sum(left.high, left.low, right.high, right.low)
        return GroupSums(names=left.names, rows=left.rows + right.rows, high=high, low=low)
    names = tuple(dict.fromkeys((*left.names, *right.names)))
    return add_sums(_spread(left, names), _spread(right, names))


class BlockSummer:
    """Sums of one block of rows after the other, in memory that is used again: fresh memory costs as much as the sums."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.ordered = np.empty((width, 0))
        self.scratch = np.empty((2, 0))

    def sums(self, names: Sequence[str], codes: IntArray, columns: Array, weight: Array | None = None) -> GroupSums:
        """Sums of a block of rows.

        codes (n,): number of each row's group among `names`; columns (p, n): the design rows without their target, which is 1
        in every row; weight (n,): of each row, 1 without.
        """
        count = len(codes)
        if self.ordered.shape[1] < count:
            self.ordered, self.scratch = np.empty((self.width, count)), np.empty((2, count))
        order, counts = sorted_by_group(codes, len(names))
        rows = list(columns) if weight is None else [*columns, weight]
        if order is not None:
            rows = [_taken(row, order, self.ordered[i, :count]) for i, row in enumerate(rows)]
        present = np.flatnonzero(counts)
        starts = np.concatenate([[0], np.cumsum(counts[present])[:-1]])
        sums = np.zeros((len(names), self.width * (self.width + 1) // 2))
        sums[present] = self._entries(rows[: self.width - 1], None if weight is None else rows[-1], starts, counts[present])
        return GroupSums(names=tuple(names), rows=counts, high=sums, low=np.zeros_like(sums))

    def _entries(self, rows: list[Array], weight: Array | None, starts: IntArray, counts: IntArray) -> Array:
        """The upper triangle by group, shape (g, q·(q+1)/2); rows of a group stand beside each other from `starts` on."""
        scaled, product = self.scratch[:, : len(rows[0])]
        entries = []
        for i, left in enumerate(rows):
            if weight is not None:
                left = np.multiply(left, weight, out=scaled)
            entries += [np.add.reduceat(np.multiply(left, right, out=product), starts) for right in rows[i:]]
            entries.append(np.add.reduceat(left, starts))
        entries.append(counts.astype(np.float64) if weight is None else np.add.reduceat(weight, starts))
        return np.stack(entries, axis=1)


def _taken(row: Array, order: IntArray, out: Array) -> Array:
    """The row in another order; every number of the order is a place of the row."""
    return np.take(row, order, out=out, mode="clip")


def sorted_by_group(codes: IntArray, groups: int) -> tuple[IntArray | None, IntArray]:
    """An order that puts the rows of a group beside each other (None where they are already), and rows by group."""
    counts = np.bincount(codes, minlength=groups).astype(np.int64)
    if np.all(codes[1:] >= codes[:-1]):
        return None, counts
    narrow = codes.astype(np.uint16) if groups <= np.iinfo(np.uint16).max else codes  # 16 bits are sorted digit by digit
    return np.argsort(narrow, kind="stable"), counts


def _spread(sums: GroupSums, names: tuple[str, ...]) -> GroupSums:
    place = {name: i for i, name in enumerate(names)}
    index = np.array([place[name] for name in sums.names], dtype=np.int64)
    rows = np.zeros(len(names), dtype=np.int64)
    high, low = (np.zeros((len(names), sums.high.shape[1])) for _ in range(2))
    rows[index], high[index], low[index] = sums.rows, sums.high, sums.low
    return GroupSums(names=names, rows=rows, high=high, low=low)


def _two_sum(high: Array, low: Array, other_high: Array, other_low: Array) -> tuple[Array, Array]:
    """(high + low) + (other_high + other_low) with the rounding error kept.  Source: Knuth, TAOCP 2, 4.2.2, theorem B."""
    total = high + other_high
    virtual = total - high
    error = (high - (total - virtual)) + (other_high - virtual)
    rest = error + (low + other_low)
    result = total + rest
    return result, rest - (result - total)


def _full(entries: Array) -> Array:
    width = int((np.sqrt(8.0 * len(entries) + 1.0) - 1.0) / 2.0)
    matrix = np.zeros((width, width))
    rows, columns = triangle(width)
    matrix[rows, columns] = entries
    matrix[columns, rows] = entries
    return matrix
