"""The command `fit` on kernels that are read in pieces: their selection, and the workers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from collector.dataset.parquet import MOST_BYTES, decoded_bytes, read_footer
from collector.dataset.reader import is_collected, kernel_metadata
from collector.errors import DatasetError
from estimator.vocabulary.gpu import GpuSpec
from fitter.errors import InputError, SelectionError
from fitter.rows.columns import Dataset, Selection
from fitter.rows.kernel_table import NEEDED
from fitter.rows.partitions import PartitionedTable, open_partitioned, parquet_files
from fitter.rows.rejected import count_reasons
from fitter.rows.screening import asked_gpu
from fitter.rows.selection import joined, read_selection
from fitter.scale.kernel_sample import KERNEL_ROWS, SECTION_KERNELS, Results, SampleTask, sample_of

Progress = Callable[[str], None]


@contextmanager
def open_workers(scheduler: str | None) -> Iterator[Results]:
    """The workers of a cluster, or this process without an address: threads do not help.  Raises ClusterError."""
    if scheduler is None:
        yield map
        return
    from fitter.scale.cluster import open_cluster

    with open_cluster(scheduler) as results:
        yield results


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
            table = open_partitioned(path) if path.exists() and parquet_files(path) else None
            if table is not None and set(NEEDED) <= set(table.schema.names):
                parts.append(_sampled(path, table, gpu, seed, results, progress))
            else:
                parts.append(read_selection([path], gpu_name))
    return joined(parts)


def _sampled(path: Path, table: PartitionedTable, gpu: GpuSpec | None, seed: int, results: Results, progress: Progress) -> Selection:
    metadata = kernel_metadata(table.schema, path) if is_collected(table.schema) else None
    found = sample_of(table.parts, SampleTask(collected=metadata, gpu=gpu, seed=seed), results, progress)
    rejected = tuple(sorted(found.rejected.values(), key=lambda row: (-row.count, row.reason, row.power_only)))
    whole = count_reasons(rejected, power_only=False)
    if found.rows is None:
        counts = ", ".join(f"{row.count:,} {row.reason}" for row in rejected)
        raise SelectionError(f"{path}: no usable row among {found.read:,} ({counts})")
    kept = len(found.rows)
    notes = [
        f"{found.read:,} rows of {table.files:,} files streamed in {len(table.parts):,} partitions; {found.used:,} passed the screening",
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
        kind="kernel table" if metadata is None else "kernel dataset",
        rows=found.read,
        used=kept,
        rejected=whole,
        metadata=metadata or {},
    )
    return Selection(
        kernels=found.rows.in_collection(path.name),
        rejected=rejected,
        datasets=(record,),
        notes=tuple(f"{path.name}: {note}" for note in notes),
    )
