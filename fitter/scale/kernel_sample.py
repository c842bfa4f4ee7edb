"""Kernel rows beyond any memory: all are screened and counted, and a sample is kept that any partitioning gives alike.

A fit of kernels gains nothing from the millionth row of a kernel, nor from the millionth kernel of a section: rows of a kind
err alike, and the in-memory fit lets all rows of a group count as fewer than 600.  Of each section – family, operator,
precision – the kernels with the smallest hashes stay, of each kernel the rows with the smallest hashes.  Hashes are of
contents, so neither files nor order nor workers decide, and samples of parts join into the sample of the whole.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from collector.dataset import KERNEL_COLUMNS, conforming
from collector.dataset.reader import measured_twice
from collector.errors import DatasetError
from estimator.gpu import GpuSpec
from estimator.quantities import IntArray
from fitter.latency.groups import section_key
from fitter.rows import kernel_table
from fitter.rows.columns import KernelRows, join_rows
from fitter.rows.kernel_dataset import collected_rows
from fitter.rows.kernel_table import EQUAL_ROW, read_kernel_table
from fitter.rows.partitions import Partition, read_batches, shown
from fitter.rows.rejected import OTHER_GPU, RejectedRow
from fitter.rows.tables import Table

SECTION_KERNELS: Final = 4000
"""Kernels kept of each section."""

KERNEL_ROWS: Final = 24
"""Rows kept of each kernel: some clocks, and some repetitions of each."""

PRUNE_SHARE: Final = 2
"""A sample is pruned when it has grown to so many times its size after the last time."""

FEWEST_PRUNED: Final = 200_000

HASH_BYTES: Final = 8

RejectedKind = tuple[str, bool]
"""Reason of a rejection, and whether it concerns the power alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTask:
    """How to read kernels in pieces: `collected` with the metadata of a data set of `collect`, else a kernel table.

    gpu: the GPU to keep, and that of tables without such a column.
    """

    source: str
    collected: Mapping[str, Any] | None
    gpu: GpuSpec | None
    seed: int
    section_kernels: int = SECTION_KERNELS
    kernel_rows: int = KERNEL_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSample:
    """A sample and the counts of everything that was read: rows, accepted rows, and rejections, each with an example."""

    rows: KernelRows | None
    read: int
    used: int
    rejected: Mapping[RejectedKind, RejectedRow]


def sample_partition(partition: Partition, task: SampleTask) -> KernelSample:
    """The sample of one partition.  Raises InputError and DatasetError, naming the file."""
    columns = list(KERNEL_COLUMNS) if task.collected is not None else sorted(kernel_table.COLUMNS)
    total = KernelSample(rows=None, read=0, used=0, rejected={})
    pruned = 0
    for batch in read_batches(partition, columns):
        if not batch.num_rows:
            continue
        table = pa.Table.from_batches([batch])
        for name, value in partition.constants:
            if name in columns and name not in table.column_names:
                table = table.append_column(name, pa.array([value] * table.num_rows, pa.string()))
        piece = _screened(table, partition, task, partition.first + total.read)
        total = _joined(total, piece)
        if total.rows is not None and len(total.rows) > max(PRUNE_SHARE * pruned, FEWEST_PRUNED):
            total = replace(total, rows=pruned_rows(total.rows, task))
            pruned = 0 if total.rows is None else len(total.rows)
    return total if total.rows is None else replace(total, rows=pruned_rows(total.rows, task))


def merge_samples(task: SampleTask, left: KernelSample, right: KernelSample) -> KernelSample:
    """The sample of both together."""
    total = _joined(left, right)
    if total.rows is None or left.rows is None or right.rows is None:
        return total
    return replace(total, rows=pruned_rows(total.rows, task))


def pruned_rows(rows: KernelRows, task: SampleTask) -> KernelRows:
    """The rows that stay, in the order of their hashes; rows of equal content are one."""
    kernels = np.array([_hash(repr(operator), task.seed) for operator in rows.operators], dtype=np.uint64)
    names: dict[str, int] = {}
    sections = np.array([names.setdefault(section_key(operator), len(names)) for operator in rows.operators], dtype=np.int64)
    kernel, section = kernels[rows.operator_index], sections[rows.operator_index]
    order = np.lexsort((row_hashes(rows, task.seed), kernel, section))
    own = row_hashes(rows, task.seed)[order]
    kernel, section = kernel[order], section[order]
    new_kernel = np.concatenate([[True], (kernel[1:] != kernel[:-1]) | (section[1:] != section[:-1])])
    new_section = np.concatenate([[True], section[1:] != section[:-1]])
    number = np.cumsum(new_kernel) - 1
    first_of_section = np.maximum.accumulate(np.where(new_section, number, 0))
    repeated = np.concatenate([[False], ~new_kernel[1:] & (own[1:] == own[:-1])])
    place = np.cumsum(~repeated)
    first_of_kernel = np.maximum.accumulate(np.where(new_kernel, place, 0))
    keep = (number - first_of_section < task.section_kernels) & (place - first_of_kernel < task.kernel_rows) & ~repeated
    return _compact(rows, _by_section_name(order[keep], section[keep], names))


def row_hashes(rows: KernelRows, seed: int) -> NDArray[np.uint64]:
    """A hash of what was measured of each row, shape (n,) of uint64."""
    mixed = np.full(len(rows), (seed + 1) * MULTIPLIER % 2**64, dtype=np.uint64)
    for name in HASHED:
        values = np.asarray(getattr(rows, name), dtype=np.float64) + 0.0
        mixed ^= np.where(np.isnan(values), np.nan, values).view(np.uint64)
        mixed *= np.uint64(MULTIPLIER)
        mixed ^= mixed >> np.uint64(SHIFT)
    result: NDArray[np.uint64] = mixed * np.uint64(MULTIPLIER)
    return result


MULTIPLIER: Final = 0x9E3779B97F4A7C15
SHIFT: Final = 29
"""2⁶⁴ / golden ratio, and a shift that brings high bits down: multiplication by it spreads bits.  Source: Knuth, TAOCP 3, 6.4."""

HASHED: Final = (
    "latency_s", "sm_clock_mhz", "sm_clock_asked_mhz", "power_w", "temperature_c", "idle_w", "l2_warm", "tile_m", "tile_n", "split_k",
    "grid_blocks", "block_threads", "trial", "started_s",
)  # fmt: skip
"""Columns that make a row what it is, beside its kernel."""


def _screened(table: pa.Table, partition: Partition, task: SampleTask, first: int) -> KernelSample:
    """One piece: screened as a whole file is, its rejections counted."""
    name = shown(partition.uri).rpartition("/")[2]
    rows: KernelRows | None
    if task.collected is not None:
        twice = measured_twice(table)
        if twice:
            raise DatasetError(f"{name}: row {twice[0][:80]} occurs more than once; give every measurement once")
        rows, rejected = collected_rows(conforming(table, dict(task.collected), shown(partition.uri)), name, first, task.gpu)
    else:
        frame = table.replace_schema_metadata(None).to_pandas(ignore_metadata=True)
        again = np.asarray(frame.duplicated(), dtype=np.bool_)
        place = np.flatnonzero(~again) + 1 + first
        rows, rejected = read_kernel_table(Table(path=Path(shown(partition.uri)), sha256="", frame=frame[~again]), task.gpu)
        rejected = [replace(one, row=int(place[one.row - 1])) for one in rejected]
        if again.any():
            reason, detail = EQUAL_ROW
            second = int(np.argmax(again)) + 1 + first
            rejected.append(RejectedRow(source=name, row=second, reason=reason, detail=detail, count=int(again.sum())))
        rows = None if rows is None else replace(rows, row=place[rows.row - 1])
    counts: dict[RejectedKind, RejectedRow] = {}
    if rows is not None and task.gpu is not None:
        own = np.array([gpu == task.gpu.name for gpu in rows.gpus], dtype=np.bool_)[rows.gpu_index]
        foreign = np.flatnonzero(~own)
        if len(foreign):
            other = rows.gpus[rows.gpu_index[foreign[0]]]
            example = RejectedRow(source=name, row=int(rows.row[foreign[0]]), reason=OTHER_GPU, detail=other, count=len(foreign))
            counts[(OTHER_GPU, False)] = example
            rows = rows.select(own) if own.any() else None
    for row in rejected:
        _count(counts, row)
    return KernelSample(rows=rows, read=table.num_rows, used=0 if rows is None else len(rows), rejected=counts)


def _count(counts: dict[RejectedKind, RejectedRow], row: RejectedRow) -> None:
    kind = (row.reason, row.power_only)
    counts[kind] = replace(counts[kind], count=counts[kind].count + row.count) if kind in counts else row


def _joined(left: KernelSample, right: KernelSample) -> KernelSample:
    counts = dict(left.rejected)
    for row in right.rejected.values():
        _count(counts, row)
    rows = join_rows([part for part in (left.rows, right.rows) if part is not None])
    return KernelSample(rows=rows, read=left.read + right.read, used=left.used + right.used, rejected=counts)


def _hash(text: str, seed: int) -> int:
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=HASH_BYTES, key=seed.to_bytes(HASH_BYTES, "little")).digest(), "little"
    )


def _by_section_name(index: IntArray, section: IntArray, names: Mapping[str, int]) -> IntArray:
    """Rows in the order of their sections' names, which does not depend on what was read first."""
    rank = np.empty(len(names), dtype=np.int64)
    rank[[names[name] for name in sorted(names)]] = np.arange(len(names))
    result: IntArray = index[np.argsort(rank[section], kind="stable")]
    return result


def _compact(rows: KernelRows, index: IntArray) -> KernelRows:
    """The rows `index`, with operators, GPUs and sources numbered anew in the order in which the rows have them."""
    chosen = rows.select(index)
    changes: dict[str, Any] = {}
    for unique, number in (("operators", "operator_index"), ("gpus", "gpu_index"), ("sources", "source_index")):
        values, old = getattr(rows, unique), getattr(chosen, number)
        places: dict[int, int] = {}
        changes[number] = np.array([places.setdefault(i, len(places)) for i in old.tolist()], dtype=np.int64)
        changes[unique] = tuple(values[i] for i in places)
    return replace(chosen, **changes)
