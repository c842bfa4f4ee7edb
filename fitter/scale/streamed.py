"""The command `fit` on data sets that are read in pieces: which those are, and on whose workers."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from collector.dataset import is_collected, kernel_metadata
from estimator.gpu import GpuSpec
from fitter.errors import InputError, SelectionError
from fitter.rows import kernel_table
from fitter.rows.columns import Dataset, Selection
from fitter.rows.kernel_table import is_kernel_table
from fitter.rows.partitions import Partition, PartitionedTable, is_remote, open_partitioned, shown
from fitter.rows.rejected import count_whole
from fitter.rows.screening import asked_gpu
from fitter.rows.selection import joined, read_selection
from fitter.rows.tables import fits_memory, parquet_columns
from fitter.scale.kernel_sample import KERNEL_ROWS, SECTION_KERNELS, KernelSample, SampleTask, merge_samples, sample_partition

Result = TypeVar("Result")


class Workers(Protocol):
    """Where partitions are read: threads of this process, or the workers of a cluster."""

    def results(self, task: Callable[[Partition], Result], partitions: Sequence[Partition]) -> Iterator[Result]:
        """The task's result for every partition, in their order."""


class LocalWorkers:
    """Threads of this process: reading and summing leave Python's lock to the others."""

    def __init__(self, count: int) -> None:
        self.count = max(count, 1)

    def results(self, task: Callable[[Partition], Result], partitions: Sequence[Partition]) -> Iterator[Result]:
        """As `Workers`; few results wait for their turn at any time, which bounds the memory."""
        if self.count == 1 or len(partitions) < 2:
            yield from map(task, partitions)
            return
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
    """The results of all partitions, added one after the other from the first to the last."""
    total = None
    for done, result in enumerate(workers.results(task, partitions), start=1):
        total = result if total is None else merge(total, result)
        progress(f"{label}: partition {done:,} of {len(partitions):,}")
    if total is None:
        raise ValueError("no partition to read")
    return total


@contextmanager
def open_workers(scheduler: str | None) -> Iterator[Workers]:
    """The workers of a cluster, or threads of this process without an address.  Raises ClusterError."""
    if scheduler is None:
        yield LocalWorkers(usable_cores())
        return
    from fitter.scale.cluster import open_cluster

    with open_cluster(scheduler) as workers:
        yield workers


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_streamed(datasets: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Whether kernels are read in pieces: where it is asked for, where they lie in an object store, and where they are many."""
    if options["stream"] or options["scheduler"] is not None or any(is_remote(name) for name in datasets):
        return True
    return not all(fits_memory(name, STREAM_ROWS) for name in datasets)


STREAM_ROWS: Final = 500_000
"""More rows than this are read in pieces [1]: in memory they would take more than a gigabyte."""


def read_streamed(datasets: Sequence[str], options: Mapping[str, Any], progress: Callable[[str], None]) -> Selection:
    """Data sets as a selection: of kernels in Parquet the counts of all rows and a sample to fit; others, such as runs of whole
    models, are read as ever.

    Raises InputError for what cannot be read or is given twice, SelectionError for an unknown GPU and where no row is left.
    """
    gpu = asked_gpu(options["gpu"])
    parts: list[Selection] = []
    with open_workers(options["scheduler"]) as workers:
        for name in datasets:
            if _holds_kernels(name):
                part = _sampled(name, gpu, options["seed"], workers, progress)
            else:
                part = read_selection([name], options["gpu"])
            same = next((d.name for one in parts for d in one.datasets if d.sha256 == part.datasets[0].sha256), None)
            if same is not None:
                raise InputError(f"{shown(name)}: the same data as {same}; give every data set once")
            parts.append(part)
    return joined(parts)


def _holds_kernels(address: str) -> bool:
    """Whether a data set is Parquet with rows of kernels; one in an object store must be."""
    return is_remote(address) or is_kernel_table(tuple(parquet_columns(address)))


def _sampled(address: str, gpu: GpuSpec | None, seed: int, workers: Workers, progress: Callable[[str], None]) -> Selection:
    table = open_partitioned(address)
    collected = is_collected(table.schema)
    if not collected and not is_kernel_table(tuple(table.columns)):
        needed = ", ".join(kernel_table.NEEDED)
        raise InputError(
            f"{shown(address)}: neither a kernel dataset of `collect` nor a kernel table ({needed}, …); only these are streamed"
        )
    metadata = kernel_metadata(table.schema, shown(address)) if collected else {}
    task = SampleTask(source=table.name, collected=metadata if collected else None, gpu=gpu, seed=seed)
    found = run_pass(
        workers, partial(sample_partition, task=task), table.partitions(), partial(merge_samples, task), progress, f"reading {table.name}"
    )
    rejected = tuple(sorted(found.rejected.values(), key=lambda row: (-row.count, row.reason, row.power_only)))
    if found.rows is None:
        counts = ", ".join(f"{row.count:,} {row.reason}" for row in rejected)
        what = f"no usable row among {found.read:,} ({counts})" if found.read else "holds no rows"
        raise SelectionError(f"{shown(address)}: {what}")
    kind = "kernel dataset" if collected else "kernel table"
    record = Dataset(
        name=table.name,
        sha256=table.sha256,
        kind=kind,
        rows=found.read,
        used=len(found.rows),
        rejected=count_whole(rejected),
        metadata=metadata,
    )
    notes = _sample_notes(table, found, len(found.rows))
    return Selection(kernels=found.rows, workloads=None, rejected=rejected, startups=(), datasets=(record,), notes=notes)


def _sample_notes(table: PartitionedTable, found: KernelSample, kept: int) -> tuple[str, ...]:
    """How the data were read, and what the fit is of."""
    files, parts = len(table.files), len(table.partitions())
    rejected = found.rejected.values()
    notes = [
        f"{table.name}: {found.read:,} rows of {files:,} files streamed in {parts:,} partitions; {found.used:,} passed the screening",
        f"{table.name}: sha256 is that of the files' names, sizes and footers, not of all their bytes",
    ]
    passed_over = found.read - found.used - sum(row.count for row in rejected if not row.power_only)
    if passed_over:
        notes.append(f"{table.name}: {passed_over:,} rows of generated kernels are not read in pieces; fit them by themselves")
    if kept < found.used:
        notes.append(
            f"{table.name}: fitted to a seeded sample of {kept:,} rows, at most {SECTION_KERNELS:,} kernels of an operator and precision "
            f"and {KERNEL_ROWS} rows of a kernel"
        )
    return tuple(notes)
