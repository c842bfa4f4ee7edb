"""Design tables: Parquet whose rows are a fit's equations already, t = Σ λ · t_ideal + ε.

Columns: `group` (a dotted kernel group such as gemm.linear.bf16; a hive folder may name it), `latency_s`, and the ideal time
of each phase of docs/model.md that the rows know, `math_s`, `dram_s`, … [s]; optionally `weight`.  Relative errors count: a
row is divided by its measured time.  What cannot be is left out and counted by reason.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from estimator.bundles.sections import group_name
from estimator.errors import BundleError
from estimator.phases import OVERLAPPED, SERIAL
from estimator.quantities import Array, BoolArray, IntArray
from fitter.scale.partitions import Partition, read_batches
from fitter.scale.sums import BlockSummer, GroupSums, add_sums, empty_sums
from fitter.sources.screening import LONGEST_LAUNCH_S
from fitter.sources.tables import LONGEST_TEXT

PHASE_COLUMNS: Final[dict[str, str]] = {f"{name}_s": name for name in OVERLAPPED + SERIAL}
"""Columns that a design table may have, and the coefficient of each."""

NEEDED: Final = ("group", "latency_s")

EPSILON_UNIT_S: Final = 1e-6
"""The fixed cost of a kernel is fitted in microseconds, so that all coefficients are near 1."""

LARGEST_SHARE: Final = 64.0
"""A phase whose ideal time is this many times the measured one is in another unit, or of another kernel [1]."""

HELD: Final = "\nheld"
"""Marks the sums over rows that are held out; no group's name has a line break."""

FLOOR_BINS_PER_OCTAVE: Final = 16
FLOOR_LOWEST: Final = -32.0
FLOOR_BINS: Final = 50 * FLOOR_BINS_PER_OCTAVE
"""Bins of ln2(latency / s) in which the shortest times of a group are sought: 4 % each, from 0.2 ns on."""

ERROR_BINS: Final = 400
LEAST_ERROR: Final = 1e-5
ERROR_BINS_PER_E: Final = 25.0
"""Bins of ln |relative error|: 4 % each, from 10⁻⁵ to above 10."""

FIBONACCI: Final = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ / golden ratio: multiplication by it spreads bits.  Source: Knuth, TAOCP 3, 6.4."""

HASH_BITS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """What is known of a group before a pass: coefficients of all rows and of the rows that are not held out, shape (p,),
    its launch floor [s] (0: none) and the standard deviation of relative errors.
    """

    values: tuple[float, ...]
    train: tuple[float, ...]
    floor_s: float
    std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignPass:
    """What a pass over a design table is to do.

    phases      columns of ideal times, in the order of the coefficients; the fixed cost comes last
    weighted    whether rows have weights of their own
    share, seed share of kernels held out, chosen by their ideal times
    known       groups from the pass before; empty in the first pass, which takes every row as it is
    scale       ordinary relative error: rows beyond it count less; only used with `known`
    seek_floors whether launch floors are looked for; in later passes those that were found are refined
    last        whether errors of held-out rows are wanted
    """

    phases: tuple[str, ...]
    weighted: bool
    share: float
    seed: int
    known: Mapping[str, GroupState] = field(default_factory=dict)
    scale: float = 1.0
    seek_floors: bool = False
    last: bool = False

    @property
    def width(self) -> int:
        """Coefficients and the target."""
        return len(self.phases) + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignResult:
    """What a pass found: sums (held-out groups under their name + HELD), rows read, rejected rows by reason, histograms.

    shortest   by group, rows by bin of ln2(latency); hidden by group, Σ ln(latency) and number of rows at the floor
    errors     by group, of held-out rows: (n, Σ|e|, Σe, inside the stated interval, *histogram of |e|)
    """

    sums: GroupSums
    rows: int
    rejected: Mapping[str, int]
    shortest: Mapping[str, IntArray]
    hidden: Mapping[str, Array]
    errors: Mapping[str, Array]


def is_design_table(columns: Iterable[str]) -> bool:
    """Whether a data set with these columns is a design table."""
    known = set(columns)
    return known.issuperset(NEEDED) and bool(known & PHASE_COLUMNS.keys())


def design_pass(partition: Partition, task: DesignPass) -> DesignResult:
    """One pass over one partition.  Raises InputError, naming the file, where it cannot be read."""
    return _Reader(task, dict(partition.constants)).run(partition)


def merge_results(left: DesignResult, right: DesignResult) -> DesignResult:
    """Both together, `left` first."""
    return DesignResult(
        sums=add_sums(left.sums, right.sums),
        rows=left.rows + right.rows,
        rejected={key: left.rejected.get(key, 0) + right.rejected.get(key, 0) for key in {**left.rejected, **right.rejected}},
        shortest=_added(left.shortest, right.shortest),
        hidden=_added(left.hidden, right.hidden),
        errors=_added(left.errors, right.errors),
    )


class _Reader:
    """Batches of one partition into sums; holds what grows from batch to batch."""

    def __init__(self, task: DesignPass, constants: Mapping[str, str]) -> None:
        self.task = task
        self.constants = constants
        self.names: dict[str, int] = {}
        self.good: list[bool] = []
        self.sums = empty_sums(task.width)
        self.summer = BlockSummer(task.width)
        self.design = np.empty((task.width - 1, 0))
        self.dictionary: tuple[pa.Array, IntArray] | None = None
        self.rejected: dict[str, int] = {}
        self.shortest: dict[str, IntArray] = {}
        self.hidden: dict[str, Array] = {}
        self.errors: dict[str, Array] = {}

    def run(self, partition: Partition) -> DesignResult:
        rows = 0
        columns = ["group", "latency_s", *self.task.phases, *(["weight"] if self.task.weighted else [])]
        for batch in read_batches(partition, columns, texts=("group",)):
            rows += batch.num_rows
            self.add(batch)
        return DesignResult(
            sums=self.sums, rows=rows, rejected=self.rejected, shortest=self.shortest, hidden=self.hidden, errors=self.errors
        )

    def add(self, batch: pa.RecordBatch) -> None:
        """One batch: screened, divided by the measured times, summed."""
        if not batch.num_rows:
            return
        codes = self.codes(batch)
        latency = _numbers(batch, "latency_s")
        ideal = [_numbers(batch, name) for name in self.task.phases]
        weight = _numbers(batch, "weight") if self.task.weighted else None
        design = self.divided(ideal, latency)
        keep = self.screened(codes, latency, design[:-1], weight)
        fold = _fold(ideal, self.task)
        if keep is not None:
            codes, latency, fold, design = codes[keep], latency[keep], fold[keep], np.ascontiguousarray(design[:, keep])
            weight = None if weight is None else weight[keep]
        if not len(codes):
            return
        if self.task.known:
            weight = self.reweighted(codes, latency, design, fold, weight)
        both = [name + mark for name in self.names for mark in ("", HELD)]
        self.sums = add_sums(self.sums, self.summer.sums(both, 2 * codes + fold, design, weight))

    def divided(self, ideal: list[Array], latency: Array) -> Array:
        """Ideal times and the unit of the fixed cost over the measured times, shape (p, n)."""
        if self.design.shape[1] < len(latency):
            self.design = np.empty((self.task.width - 1, len(latency)))
        design = self.design[:, : len(latency)]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            pace = 1.0 / latency
            for row, column in zip(design, ideal, strict=False):
                np.multiply(column, pace, out=row)
            np.multiply(EPSILON_UNIT_S, pace, out=design[-1])
        return design

    def codes(self, batch: pa.RecordBatch) -> IntArray:
        """Number of each row's group; −1 where it has no name."""
        if "group" not in batch.schema.names:
            return np.full(batch.num_rows, self.number(self.constants.get("group", "")))
        column = batch.column("group")
        if not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        if self.dictionary is None or not self.dictionary[0].equals(column.dictionary):
            numbers = np.array([self.number(str(text or "")) for text in column.dictionary.to_pylist()] or [-1], dtype=np.int64)
            self.dictionary = (column.dictionary, numbers)
        numbers = self.dictionary[1]
        indices = column.indices
        if indices.null_count:
            places = indices.fill_null(0).to_numpy(zero_copy_only=False)
            return np.where(column.is_null().to_numpy(zero_copy_only=False), self.number(""), numbers[places])
        result: IntArray = numbers[indices.to_numpy(zero_copy_only=False)]
        return result

    def number(self, name: str) -> int:
        name = name[: LONGEST_TEXT + 1]
        if name not in self.names:
            self.names[name] = len(self.names)
            self.good.append(name.isprintable() and len(name) <= LONGEST_TEXT and _is_group(name))
        return self.names[name]

    def screened(self, codes: IntArray, latency: Array, shares: Array, weight: Array | None) -> BoolArray | None:
        """Rows to keep, None for all; the others are counted."""
        # One look at the extremes finds a clean block: nan passes through both, and every fault shows in one of them.
        clean = bool(latency.min() > 0.0 and latency.max() <= LONGEST_LAUNCH_S and all(self.good))
        clean = clean and all(bool(row.min() >= 0.0 and row.max() <= LARGEST_SHARE) for row in shares)
        if clean and (weight is None or bool(weight.min() >= 0.0 and weight.max() < np.inf)):
            return None
        left = np.ones(len(codes), dtype=np.bool_)
        with np.errstate(invalid="ignore"):
            top = shares.max(axis=0)
            faults = [
                ("UNKNOWN_OPERATOR", ~np.array(self.good)[codes]),
                ("BAD_LATENCY", ~((latency > 0.0) & (latency <= LONGEST_LAUNCH_S))),
                ("BAD_DESIGN", ~((shares.min(axis=0) >= 0.0) & (top < np.inf))),
                ("ABOVE_ROOF", top > LARGEST_SHARE),
            ]
            if weight is not None:
                faults.append(("BAD_DESIGN", ~((weight >= 0.0) & (weight < np.inf))))
        for reason, fault in faults:
            count = int((fault & left).sum())
            if count:
                self.rejected[reason] = self.rejected.get(reason, 0) + count
            left &= ~fault
        return left

    def reweighted(self, codes: IntArray, latency: Array, design: Array, fold: IntArray, weight: Array | None) -> Array:
        """Weights from the errors of the pass before; floors and errors are noted on the way."""
        names = list(self.names)
        table = _state_table(names, self.task)
        count = len(design)
        predicted = _predicted(table[:count], codes, design)
        floor = table[-2][codes]
        error = predicted - 1.0
        robust: Array = 1.0 / np.sqrt(1.0 + 0.5 * (error / self.task.scale) ** 2)
        if self.task.seek_floors:
            _note_shortest(self.shortest, names, codes, latency)
        elif floor.any():
            hidden = predicted * latency < floor
            robust[hidden] = 0.0
            near = hidden & (latency < FLOOR_REACH * floor)
            _note_hidden(self.hidden, names, codes[near], latency[near])
        if self.task.last:
            held = np.flatnonzero(fold)
            train = _predicted(table[count : 2 * count], codes[held], design[:, held])
            _note_errors(self.errors, names, codes[held], np.maximum(train, floor[held] / latency[held]), table[-1][codes[held]])
        return robust if weight is None else robust * weight


def _is_group(name: str) -> bool:
    """Whether a bundle can hold coefficients of a group of this name."""
    try:
        group_name(name, "")
    except BundleError:
        return False
    return True


def _predicted(values: Array, codes: IntArray, design: Array) -> Array:
    """Σ λ_j z_j of each row with the coefficients of its group, values (p, g); shape (n,)."""
    total = np.zeros(len(codes))
    for own, row in zip(values, design, strict=True):
        total += own[codes] * row
    return total


FLOOR_REACH: Final = 1.15
"""Times within this factor of a host's launch floor belong to it."""

NORMAL_90: Final = 1.6448536269514722
"""Standard deviations on each side of a normal 90 % interval [1]."""


def _state_table(names: list[str], task: DesignPass) -> Array:
    """Columns of values, train, floor and std, one per group; groups that the pass before did not see predict the target."""
    count = len(task.phases) + 1
    table = np.zeros((2 * count + 2, len(names)))
    for i, name in enumerate(names):
        state = task.known.get(name)
        if state is not None:
            table[:, i] = [*state.values, *state.train, state.floor_s, state.std]
    return table


def _fold(ideal: list[Array], task: DesignPass) -> IntArray:
    """1 for rows that are held out: by the bits of their ideal times, so that a kernel measured again goes the same way."""
    if task.share <= 0.0:
        return np.zeros(len(ideal[0]), dtype=np.int64)
    mixed = np.full(len(ideal[0]), (task.seed + 1) * int(FIBONACCI) % 2**64, dtype=np.uint64)
    for column in ideal:
        mixed ^= column.view(np.uint64)
        mixed *= FIBONACCI
        mixed ^= mixed >> np.uint64(HASH_BITS)
    limit = np.uint64(round(task.share * 2**HASH_BITS))
    return ((mixed * FIBONACCI) >> np.uint64(HASH_BITS) < limit).astype(np.int64)


def _numbers(batch: pa.RecordBatch, name: str) -> Array:
    """A number column, nan for nulls."""
    column = batch.column(name)
    if column.type != pa.float64():
        column = column.cast(pa.float64())
    values: Array = column.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values)


def _note_shortest(found: dict[str, IntArray], names: list[str], codes: IntArray, latency: Array) -> None:
    bins = np.clip((np.log2(latency) - FLOOR_LOWEST) * FLOOR_BINS_PER_OCTAVE, 0, FLOOR_BINS - 1).astype(np.int64)
    table = np.bincount(codes * FLOOR_BINS + bins, minlength=len(names) * FLOOR_BINS).reshape(len(names), FLOOR_BINS)
    for i in np.unique(codes).tolist():
        found[names[i]] = found[names[i]] + table[i] if names[i] in found else table[i]


def _note_hidden(found: dict[str, Array], names: list[str], codes: IntArray, latency: Array) -> None:
    logs = np.bincount(codes, np.log(latency), len(names))
    counts = np.bincount(codes, minlength=len(names))
    for i in np.flatnonzero(counts).tolist():
        own = np.array([logs[i], float(counts[i])])
        found[names[i]] = found[names[i]] + own if names[i] in found else own


def _note_errors(found: dict[str, Array], names: list[str], codes: IntArray, forecast: Array, std: Array) -> None:
    """Errors of held-out rows, forecast over measured, by group."""
    error = forecast - 1.0
    size = np.abs(error)
    bins = np.clip(np.log(np.maximum(size, LEAST_ERROR) / LEAST_ERROR) * ERROR_BINS_PER_E, 0, ERROR_BINS - 1).astype(np.int64)
    inside = np.abs(np.log(np.maximum(forecast, LEAST_ERROR))) <= NORMAL_90 * std
    histogram = np.bincount(codes * ERROR_BINS + bins, minlength=len(names) * ERROR_BINS).reshape(len(names), ERROR_BINS)
    parts = [np.bincount(codes, values, len(names)) for values in (np.ones(len(codes)), size, error, inside.astype(np.float64))]
    for i in np.unique(codes).tolist():
        own: NDArray[np.float64] = np.concatenate([[part[i] for part in parts], histogram[i].astype(np.float64)])
        found[names[i]] = found[names[i]] + own if names[i] in found else own


Numbers = TypeVar("Numbers", bound=np.generic)


def _added(left: Mapping[str, NDArray[Numbers]], right: Mapping[str, NDArray[Numbers]]) -> dict[str, NDArray[Numbers]]:
    """Arrays by name, added where both have one."""
    result = dict(left)
    for name, values in right.items():
        result[name] = np.add(result[name], values) if name in result else values
    return result
