"""Kernels that do not fit into memory: all rows are screened and counted, and a sample is kept that does not depend on partitions.

A fit gains nothing from the millionth row of a kernel or the millionth kernel of a section: rows of a kind have similar
errors, and in the fit all rows of a group count as fewer than 600.  The sample keeps the kernels with the smallest hashes of
each section (family, operator, precision), and the rows with the smallest hashes of each kernel.  Hashes depend on contents
only, not on files, order or workers, so samples of parts join into the sample of the whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from collector.dataset.parquet import MOST_BYTES, decoded_bytes, read_footer
from collector.dataset.reader import conforming, is_collected, kernel_metadata, measured_twice
from collector.dataset.schema import KERNEL_COLUMNS, Metadata
from collector.errors import DatasetError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.values import frozen
from fitter.errors import InputError, SelectionError
from fitter.latency.groups import section_key
from fitter.rows.columns import Dataset, KernelRows, Selection, compacted, files_of, join_rows
from fitter.rows.instruction_dataset import FAMILY
from fitter.rows.kernel_table import COLUMNS, NEEDED, read_kernel_table
from fitter.rows.partitions import Partition, PartitionedTable, open_partitioned, parquet_files, read_batches
from fitter.rows.rejected import RejectedRow, count_reasons
from fitter.rows.screening import asked_gpu
from fitter.rows.selection import joined, read_selection
from fitter.rows.tables import Table

SECTION_KERNELS: Final = 4000
"""Most kernels of a section in a sample."""

KERNEL_ROWS: Final = 24
"""Most rows of a kernel in a sample: some clocks with some repetitions each."""

RejectedKind = tuple[str, bool]
"""Reason of a rejection, and whether it concerns only the power."""


@frozen
class SampleTask:
    """Options for reading kernels in pieces: `collected` marks data sets of `collect`, which have metadata; others are kernel tables.

    gpu: the GPU to keep, also the GPU of tables without such a column.
    """

    collected: Metadata | None
    gpu: GpuSpec | None
    seed: int
    section_kernels: int = SECTION_KERNELS
    kernel_rows: int = KERNEL_ROWS


@frozen
class KernelSample:
    """A sample, with counts of all rows, accepted rows and rejections, and an example of each rejection."""

    rows: KernelRows | None = None
    read: int = 0
    used: int = 0
    rejected: Mapping[RejectedKind, RejectedRow]


Progress = Callable[[str], None]

Results = Callable[[Callable[[Partition], KernelSample], Sequence[Partition]], Iterator[KernelSample]]
"""Applies a task to every partition and yields the results in their order, as `map` does."""


def sample_of(
    partitions: Sequence[Partition], task: SampleTask, results: Results = map, progress: Progress = lambda text: None
) -> KernelSample:
    """The sample of all partitions."""
    total = KernelSample(rejected={})
    for done, found in enumerate(results(partial(sample_partition, task=task), partitions), start=1):
        total = _pruned(_joined(total, found), task)
        progress(f"reading: partition {done:,} of {len(partitions):,}")
    return total


def sample_partition(partition: Partition, task: SampleTask) -> KernelSample:
    """The sample of one partition.  Raises InputError and DatasetError with the file's name."""
    columns = sorted(COLUMNS) if task.collected is None else list(KERNEL_COLUMNS)
    total = KernelSample(rejected={})
    pruned = 0
    for batch in read_batches(partition, columns):
        total = _joined(total, _screened(pa.Table.from_batches([batch]), partition, task, partition.first + total.read))
        # A sample is pruned when it has grown to twice its size after the last time, and to this.
        if total.rows is not None and len(total.rows) > max(2 * pruned, 200_000):
            total = _pruned(total, task)
            pruned = 0 if total.rows is None else len(total.rows)
    return _pruned(total, task)


def _pruned(sample: KernelSample, task: SampleTask) -> KernelSample:
    return sample if sample.rows is None else replace(sample, rows=pruned_rows(sample.rows, task))


def pruned_rows(rows: KernelRows, task: SampleTask) -> KernelRows | None:
    """The remaining rows, sorted by section names and then by hashes; equal rows are merged."""
    sections = np.array([section_key(operator) for operator in rows.operators])
    names = np.array([f"{task.seed} {operator!r}" for operator in rows.operators], dtype=object)
    kernels = pd.util.hash_array(names, categorize=False)
    frame = pd.DataFrame({"kernel": kernels[rows.operator_index], "row": row_hashes(rows, task.seed)})
    frame["section"] = sections[rows.operator_index]
    frame = frame.sort_values(["section", "kernel", "row"], kind="stable").drop_duplicates()
    of_section = frame.drop_duplicates(["section", "kernel"]).groupby("section").cumcount()
    frame["number"] = of_section.reindex(frame.index).ffill()
    keep = (frame["number"] < task.section_kernels) & (frame.groupby(["section", "kernel"]).cumcount() < task.kernel_rows)
    return compacted(rows, frame.index[keep].to_numpy())


def row_hashes(rows: KernelRows, seed: int) -> NDArray[np.uint64]:
    """A hash of each row's measurement, shape (n,) of uint64."""
    columns = {name: np.asarray(getattr(rows, name), dtype=np.float64) + 0.0 for name in HASHED}
    frame = pd.DataFrame(columns).assign(seed=float(seed))
    return np.asarray(pd.util.hash_pandas_object(frame, index=False), dtype=np.uint64)


HASHED: Final = ("latency_s", "sm_clock_mhz", "sm_clock_asked_mhz", "power_w", "temperature_c", "l2_warm", "tile_m", "tile_n", "split_k")
"""Columns that identify a row together with its kernel."""


def _screened(content: pa.Table, partition: Partition, task: SampleTask, first: int) -> KernelSample:
    """Sample of one piece, screened like a whole file; rejections are counted."""
    if task.collected is not None:
        twice = measured_twice(content)
        if twice:
            raise DatasetError(f"{partition.path.name}: row {twice[0][:80]} occurs more than once; give every measurement once")
        content = conforming(content, task.collected, partition.path).select([name for name in KERNEL_COLUMNS if name in COLUMNS])
    table = Table.of(content, partition.path, first=first)
    if task.collected is not None:
        table = table.select(~table.marked(FAMILY, "family"))
    found = read_kernel_table(table, task.gpu)
    rows = found.kernels
    return KernelSample(rows=rows, read=content.num_rows, used=0 if rows is None else len(rows), rejected=_counted(found.rejected))


def _joined(left: KernelSample, right: KernelSample) -> KernelSample:
    rejected = _counted((*left.rejected.values(), *right.rejected.values()))
    return KernelSample(
        rows=join_rows((left.rows, right.rows)), read=left.read + right.read, used=left.used + right.used, rejected=rejected
    )


def _counted(rejected: Iterable[RejectedRow]) -> dict[RejectedKind, RejectedRow]:
    """The first rejected row of each kind with the count of all."""
    counts: dict[RejectedKind, RejectedRow] = {}
    for row in rejected:
        kind = (row.reason, row.power_only)
        counts[kind] = replace(counts[kind], count=counts[kind].count + row.count) if kind in counts else row
    return counts


def open_workers(scheduler: str | None) -> AbstractContextManager[Results]:
    """The workers of a cluster, or this process without an address: threads do not help.  Raises ClusterError."""
    if scheduler is None:
        return nullcontext(map)
    from fitter.scale.cluster import open_cluster

    return open_cluster(scheduler)


def is_streamed(datasets: Sequence[str], scheduler: str | None) -> bool:
    """Whether kernels are read in pieces: on a cluster, or if the footers of one data set show more than memory holds."""
    return scheduler is not None or not all(fits_memory(Path(name)) for name in datasets)


def fits_memory(path: Path) -> bool:
    """Whether a data set fits into memory; True for files that are not Parquet, and for rejected ones."""
    try:
        footers = [read_footer(file) for file in parquet_files(path)]
    except (InputError, DatasetError, OSError, ValueError):
        return True
    size = sum(decoded_bytes(metadata, schema, schema.names) for schema, metadata in footers)
    # More rows than this are read in pieces: in memory they would take more than a gigabyte.
    return size <= MOST_BYTES and sum(metadata.num_rows for _, metadata in footers) <= 500_000


def read_streamed(datasets: Sequence[str], gpu_name: str | None, seed: int, scheduler: str | None, progress: Progress) -> Selection:
    """Read data sets as a selection: for kernels in Parquet the counts of all rows and a sample to fit.

    Other data, such as runs of whole models, are read as usual.  Raises InputError for unreadable or repeated data sets,
    SelectionError for an unknown GPU and if no row is left.
    """
    gpu = asked_gpu(gpu_name)
    parts: list[Selection] = []
    with open_workers(scheduler) as results:
        for path in map(Path, datasets):
            table = open_partitioned(path) if parquet_files(path) else None
            if table is not None and set(NEEDED) <= set(table.schemas[0].names):
                if beside := sorted(path.glob("*.csv*")):
                    raise InputError(f"{path}: {beside[0].name} lies beside data that are read in pieces; move it, and name it by itself")
                parts.append(_sampled(path, table, gpu, seed, results, progress))
            else:
                parts.append(read_selection([path], gpu_name))
    return joined(parts)


def _sampled(path: Path, table: PartitionedTable, gpu: GpuSpec | None, seed: int, results: Results, progress: Progress) -> Selection:
    files = tuple(kernel_metadata(schema, path) for schema in table.schemas) if is_collected(table.schemas[0]) else ()
    found = sample_of(table.parts, SampleTask(collected=files[0] if files else None, gpu=gpu, seed=seed), results, progress)
    rejected = tuple(sorted(found.rejected.values(), key=lambda row: (-row.count, row.reason, row.power_only)))
    whole = count_reasons(rejected, power_only=False)
    if found.rows is None:
        counts = ", ".join(f"{row.count:,} {row.reason}" for row in rejected)
        raise SelectionError(f"{path}: no usable row among {found.read:,} ({counts})")
    kept = len(found.rows)
    notes = [
        f"{found.read:,} rows of {len(table.schemas):,} files streamed in {len(table.parts):,} partitions; {found.used:,} passed screening",
        "sha256 is that of the files' names, sizes and footers, not of all their bytes",
    ]
    passed_over = found.read - found.used - sum(whole.values())
    if passed_over:
        notes.append(f"{passed_over:,} rows of generated kernels are not read in pieces; fit them by themselves")
    if kept < found.used:
        limits = f"at most {SECTION_KERNELS:,} kernels of an operator and precision and {KERNEL_ROWS} rows of a kernel"
        notes.append(f"fitted to a seeded sample of {kept:,} rows, {limits}")
    record = Dataset(
        name=path.name,
        sha256=table.sha256,
        kind="kernel dataset" if files else "kernel table",
        rows=found.read,
        used=kept,
        rejected=whole,
        files=files_of(gpu, files or ({},)),
    )
    return Selection(
        kernels=found.rows.in_collection(path.name),
        rejected=rejected,
        datasets=(record,),
        notes=tuple(f"{path.name}: {note}" for note in notes),
    )
