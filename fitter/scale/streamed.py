"""The command `fit` on data sets that are read in pieces: their selection, and the workers."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from collector.dataset import is_collected, kernel_metadata
from estimator.vocabulary.gpu import GpuSpec
from fitter.errors import InputError, SelectionError
from fitter.rows.columns import Dataset, Selection
from fitter.rows.kernel_table import NEEDED, is_kernel_table
from fitter.rows.partitions import Partition, PartitionedTable, is_remote, open_partitioned, shown
from fitter.rows.rejected import count_reasons
from fitter.rows.screening import asked_gpu
from fitter.rows.selection import joined, read_selection
from fitter.rows.tables import PARQUET_MAGIC, fits_memory, read_head
from fitter.scale.kernel_sample import KERNEL_ROWS, SECTION_KERNELS, KernelSample, SampleTask, merge_samples, sample_partition

Result = TypeVar("Result")


class Workers(Protocol):
    """Workers that read partitions: threads of this process, or workers of a cluster."""

    def results(self, task: Callable[[Partition], Result], partitions: Sequence[Partition]) -> Iterator[Result]:
        """The task's result for every partition, in their order."""


class LocalWorkers:
    """Threads of this process; reading and summing release Python's lock."""

    def __init__(self, count: int) -> None:
        self.count = max(count, 1)

    def results(self, task: Callable[[Partition], Result], partitions: Sequence[Partition]) -> Iterator[Result]:
        """Results as in `Workers`; only few results wait at a time, which bounds the memory."""
        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(self.count) as pool:
            try:
                for partition in partitions:
                    waiting.append(pool.submit(task, partition))
                    if len(waiting) > 2 * self.count:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def run_pass(
    workers: Workers,
    task: Callable[[Partition], Result],
    partitions: Sequence[Partition],
    merge: Callable[[Result, Result], Result],
    progress: Callable[[str], None] = lambda text: None,
    label: str = "reading",
) -> Result:
    """Merge the results of all partitions (at least one) in their order."""
    results = enumerate(workers.results(task, partitions), start=1)
    _, total = next(results)
    for done, result in results:
        total = merge(total, result)
        progress(f"{label}: partition {done:,} of {len(partitions):,}")
    return total


@contextmanager
def open_workers(scheduler: str | None) -> Iterator[Workers]:
    """The workers of a cluster, or threads of this process without an address.  Raises ClusterError."""
    if scheduler is None:
        yield LocalWorkers(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        return
    from fitter.scale.cluster import open_cluster

    with open_cluster(scheduler) as workers:
        yield workers


def is_streamed(datasets: Sequence[str], asked: bool, scheduler: str | None) -> bool:
    """Whether kernels are read in pieces: on request, from an object store, or if there are many rows."""
    if asked or scheduler is not None or any(is_remote(name) for name in datasets):
        return True
    # More rows than this are read in pieces: in memory they would take more than a gigabyte.
    return not all(fits_memory(name, 500_000) for name in datasets)


def read_streamed(
    datasets: Sequence[str], gpu_name: str | None, seed: int, scheduler: str | None, progress: Callable[[str], None]
) -> Selection:
    """Read data sets as a selection: for kernels in Parquet the counts of all rows and a sample to fit.

    Other data, such as runs of whole models, are read as usual.  Raises InputError for unreadable or repeated data sets,
    SelectionError for an unknown GPU and if no row is left.
    """
    gpu = asked_gpu(gpu_name)
    parts: list[Selection] = []
    with open_workers(scheduler) as workers:
        for name in datasets:
            table = open_partitioned(name) if is_remote(name) or _is_parquet(Path(name)) else None
            if table is not None and is_kernel_table(table.columns):
                parts.append(_sampled(table, gpu, seed, workers, progress))
            elif is_remote(name):
                needed = ", ".join(NEEDED)
                raise InputError(
                    f"{shown(name)}: neither a kernel dataset of `collect` nor a kernel table ({needed}, …); only these are streamed"
                )
            else:
                parts.append(read_selection([name], gpu_name))
    return joined(parts)


def _is_parquet(path: Path) -> bool:
    return any(path.rglob("*.parquet")) if path.is_dir() else path.is_file() and read_head(path).startswith(PARQUET_MAGIC)


def _sampled(table: PartitionedTable, gpu: GpuSpec | None, seed: int, workers: Workers, progress: Callable[[str], None]) -> Selection:
    metadata = kernel_metadata(table.schema, shown(table.uri)) if is_collected(table.schema) else None
    task = SampleTask(collected=metadata, gpu=gpu, seed=seed)
    sample, merge = partial(sample_partition, task=task), partial(merge_samples, task)
    found = run_pass(workers, sample, table.partitions(), merge, progress, f"reading {table.name}")
    rejected = tuple(sorted(found.rejected.values(), key=lambda row: (-row.count, row.reason, row.power_only)))
    if found.rows is None:
        counts = ", ".join(f"{row.count:,} {row.reason}" for row in rejected)
        raise SelectionError(f"{shown(table.uri)}: no usable row among {found.read:,} ({counts})")
    record = Dataset(
        name=table.name,
        sha256=table.sha256,
        kind="kernel table" if metadata is None else "kernel dataset",
        rows=found.read,
        used=len(found.rows),
        rejected=count_reasons(rejected, power_only=False),
        metadata=metadata or {},
    )
    return Selection(kernels=found.rows, rejected=rejected, datasets=(record,), notes=_sample_notes(table, found, len(found.rows)))


def _sample_notes(table: PartitionedTable, found: KernelSample, kept: int) -> tuple[str, ...]:
    """Notes on the reading of the data, and on the rows of the fit."""
    notes = [
        f"{found.read:,} rows of {table.files:,} files streamed in {len(table.parts):,} partitions; {found.used:,} passed the screening",
        "sha256 is that of the files' names, sizes and footers, not of all their bytes",
    ]
    passed_over = found.read - found.used - sum(row.count for row in found.rejected.values() if not row.power_only)
    if passed_over:
        notes.append(f"{passed_over:,} rows of generated kernels are not read in pieces; fit them by themselves")
    if kept < found.used:
        limits = f"at most {SECTION_KERNELS:,} kernels of an operator and precision and {KERNEL_ROWS} rows of a kernel"
        notes.append(f"fitted to a seeded sample of {kept:,} rows, {limits}")
    return tuple(f"{table.name}: {note}" for note in notes)
