"""Parquet files from any source: opened as regular files, checked by their footer, and read within a stated memory."""

import resource
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from collector.errors import DatasetError
from estimator.vocabulary.regular_files import open_regular

MOST_BYTES: Final = 256 << 20
"""Bytes of columns in memory at one time; computing with them takes two to three times as much."""

MOST_WORKING_BYTES: Final = 3 * MOST_BYTES
"""Memory that reading one batch may add to the process.  A footer can state any size: a page of a few bytes can unpack to gigabytes."""

MOST_COLUMNS: Final = 512
"""Greatest number of columns; no table of measurements has more."""


ONE_AT_A_TIME: Final = threading.Lock()
"""The limit of memory belongs to the process: a thread that reads while another one does would restore the other's limit."""


@contextmanager
def bounded_memory(where: Path | str) -> Iterator[None]:
    """Limits the memory that the process allocates in the block to MOST_WORKING_BYTES.  Raises DatasetError if more is needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    used = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))
    most = used + MOST_WORKING_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard))
    try:
        yield
    except MemoryError as error:
        raise _too_large(where, MOST_WORKING_BYTES) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _too_large(where: Path | str, most_bytes: int) -> DatasetError:
    return DatasetError(
        f"{where}: takes more than {most_bytes / 1e9:.2g} GB in memory; cut it into smaller files (`fit` reads kernels in pieces by itself)"
    )


@contextmanager
def parquet_errors(where: Path | str) -> Iterator[None]:
    """Raises DatasetError, naming the file, for errors of Arrow and of the operating system that its bytes cause."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        raise DatasetError(
            f"{where}: truncated, damaged or no Parquet file ({one_line(error)}); copy it again, or collect it again"
        ) from error


def one_line(error: BaseException) -> str:
    """An error of another library as a part of one line."""
    reason = error.strerror if isinstance(error, OSError) else None
    return " ".join((reason or str(error) or type(error).__name__).split())[:200]


def open_parquet(stream: BinaryIO | Any, where: Path | str, *, pre_buffer: bool = False, **options: Any) -> pq.ParquetFile:
    """A Parquet file from its bytes, its footer read and checked; `options` are Arrow's.

    Raises DatasetError for too many columns and for a duplicate column; for a damaged file, errors that `parquet_errors` converts.
    """
    file = pq.ParquetFile(
        stream,
        page_checksum_verification=True,
        pre_buffer=pre_buffer,
        thrift_string_size_limit=64 << 20,  # a campaign's metadata take some kilobytes [byte]
        thrift_container_size_limit=1 << 16,
        **options,
    )
    names = file.schema_arrow.names
    if file.metadata.num_columns > MOST_COLUMNS:
        raise DatasetError(f"{where}: holds {file.metadata.num_columns:,} columns; a table of measurements has {MOST_COLUMNS} at most")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DatasetError(f"{where}: column {twice[:100]!r} stands twice in the header")
    return file


def read_footer(path: Path | str) -> tuple[pa.Schema, pq.FileMetaData]:
    """Schema and metadata of a file.  Raises DatasetError."""
    with parquet_errors(path), open_regular(path) as stream:
        file = open_parquet(stream, path)
        return file.schema_arrow, file.metadata


def decoded_bytes(metadata: pq.FileMetaData, schema: pa.Schema, wanted: Iterable[str]) -> int:
    """Bytes that the wanted columns take in memory according to the footer."""
    names, total = set(wanted), 0
    for leaf in range(metadata.num_columns):
        path = metadata.schema.column(leaf).path
        if (path if path in schema.names else path.split(".")[0]) not in names:  # a column's own name may contain points
            continue
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(leaf)
            plain, stored = 8 * chunk.num_values, chunk.total_uncompressed_size
            total += plain + stored if chunk.physical_type == "BYTE_ARRAY" else max(plain, stored)
    return total


def read_columns(path: Path | str, wanted: Iterable[str], most_bytes: int = MOST_BYTES) -> pa.Table:
    """The wanted columns that a file has, in the file's order.

    Raises DatasetError like `read_batches`, and for columns that take more than `most_bytes`.
    """
    schema = read_footer(path)[0]
    names = [name for name in schema.names if name in set(wanted)]
    with parquet_errors(path), open_regular(path) as stream:
        batches = all_batches(stream, path, names, most_bytes)
    table = pa.Table.from_batches(batches) if batches else pa.schema([schema.field(name) for name in names]).empty_table()
    return table.replace_schema_metadata(schema.metadata)


def all_batches(stream: BinaryIO | Any, where: Path | str, names: Sequence[str], most_bytes: int = MOST_BYTES) -> list[pa.RecordBatch]:
    """The columns `names` of a whole file.  Raises DatasetError as `read_batches`, and for columns that take more than `most_bytes`."""
    batches, left = [], most_bytes
    for batch in read_batches(stream, where, names):
        batches.append(batch)
        left -= batch.nbytes
        if left < 0:
            raise _too_large(where, most_bytes)
    return batches


def read_batches(
    stream: BinaryIO | Any,
    where: Path | str,
    names: Sequence[str],
    *,
    groups: Iterable[int] | None = None,
    rows: int = 1 << 14,
    **options: Any,
) -> Iterator[pa.RecordBatch]:
    """The columns `names` of a file, or of some row groups of it, batch by batch; texts decoded.

    Raises DatasetError for a damaged file, for columns of anything but plain values and lists of texts, and for batches that take
    more than MOST_WORKING_BYTES to read.
    """
    with parquet_errors(where):
        file = open_parquet(stream, where, **options)
        schema = file.schema_arrow
        for name in names:
            kind = schema.field(name).type
            if pa.types.is_nested(kind) and kind not in (pa.list_(pa.string()), pa.list_(pa.large_string())):
                raise DatasetError(f"{where}: column {name!r} holds {str(kind)[:60]}; expected plain numbers or text")
        for group in range(file.metadata.num_row_groups) if groups is None else groups:
            batches = file.iter_batches(rows, row_groups=[group], columns=list(names), use_threads=False)
            while True:
                with ONE_AT_A_TIME, bounded_memory(where):
                    batch = next(batches, None)
                if batch is None:
                    break
                batch.validate(full=True)
                columns = [
                    one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in batch.select(list(names)).columns
                ]
                yield pa.RecordBatch.from_arrays(columns, names=list(names))
