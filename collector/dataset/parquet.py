"""Parquet files of anybody: opened as regular files, judged by their footer, and read within a stated memory."""

import resource
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from collector.errors import DatasetError
from estimator.vocabulary.regular_files import open_regular

MOST_BYTES: Final = 256 << 20
"""Bytes of columns that are held at once; computing with them takes two to three times as much."""

MOST_STORED_BYTES: Final = 512 << 20
"""Bytes of the unpacked pages of a row group; a million rows of sixty numbers."""

MOST_COLUMNS: Final = 512
"""No table of measurements has more."""

MOST_LISTED: Final = 1 << 16
"""Entries of a list in a footer: columns, or row groups."""

MOST_METADATA_BYTES: Final = 64 << 20
"""Limit for texts in a footer; a campaign's metadata are some kilobytes."""

BATCH_ROWS: Final = 1 << 14
NUMBER_BYTES: Final = 8


MOST_WORKING_BYTES: Final = 3 * MOST_BYTES
"""Memory that reading may add to the process: a page of a few bytes can unpack to gigabytes, whatever the footer states."""

STATUS: Final = Path("/proc/self/status")
KIB: Final = 1024


@contextmanager
def bounded_memory(where: Path | str) -> Iterator[None]:
    """Lets the process grow by MOST_WORKING_BYTES at most.  Raises DatasetError where reading needs more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = next(int(line.split()[1]) * KIB for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmData"))
    most = used + MOST_WORKING_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard))
    try:
        yield
    except MemoryError as error:
        raise DatasetError(f"{where}: takes more than {MOST_WORKING_BYTES / 1e9:.2g} GB in memory; cut it into smaller files") from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


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
    """A Parquet file from its bytes, its footer read and judged; `options` are Arrow's.

    Raises DatasetError for too many columns and for one that is there twice; errors that `parquet_errors` renames for a damaged file.
    """
    limits = {"thrift_string_size_limit": MOST_METADATA_BYTES, "thrift_container_size_limit": MOST_LISTED}
    file = pq.ParquetFile(stream, page_checksum_verification=True, pre_buffer=pre_buffer, **limits, **options)
    names = file.schema_arrow.names
    if file.metadata.num_columns > MOST_COLUMNS:
        raise DatasetError(f"{where}: holds {file.metadata.num_columns:,} columns; a table of measurements has {MOST_COLUMNS} at most")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DatasetError(f"{where}: column {twice[0][:100]!r} stands twice in the header")
    return file


def read_footer(path: Path | str) -> tuple[pa.Schema, pq.FileMetaData]:
    """Schema and metadata of a file.  Raises DatasetError."""
    with parquet_errors(path), open_regular(path) as stream:
        file = open_parquet(stream, path)
        return file.schema_arrow, file.metadata


def decoded_bytes(metadata: pq.FileMetaData, schema: pa.Schema, wanted: Iterable[str], groups: Iterable[int] | None = None) -> int:
    """Bytes that the wanted columns, or some row groups of them, take in memory according to the footer."""
    names, total = set(wanted), 0
    for leaf in range(metadata.num_columns):
        path = metadata.schema.column(leaf).path
        if (path if path in schema.names else path.split(".")[0]) not in names:  # a column's own name may have points
            continue
        for group in range(metadata.num_row_groups) if groups is None else groups:
            chunk = metadata.row_group(group).column(leaf)
            plain, stored = chunk.num_values * NUMBER_BYTES, chunk.total_uncompressed_size
            total += plain + stored if chunk.physical_type == "BYTE_ARRAY" else max(plain, stored)
    return total


def read_columns(path: Path | str, wanted: Iterable[str], most_bytes: int = MOST_BYTES) -> pa.Table:
    """The wanted columns that a file has, in the file's order.

    Raises DatasetError as `read_batches`, and for columns that take more than `most_bytes`.
    """
    schema, metadata = read_footer(path)
    names = [name for name in schema.names if name in set(wanted)]
    check_size(path, decoded_bytes(metadata, schema, names), metadata.num_rows, most_bytes)
    batches, size = [], 0
    with parquet_errors(path), open_regular(path) as stream:
        for batch in read_batches(stream, path, names):
            size += batch.nbytes
            check_size(path, size, metadata.num_rows, most_bytes)
            batches.append(batch)
    table = pa.Table.from_batches(batches) if batches else pa.schema([schema.field(name) for name in names]).empty_table()
    return table.replace_schema_metadata(schema.metadata)


def read_batches(
    stream: BinaryIO | Any,
    where: Path | str,
    names: Sequence[str],
    *,
    groups: Iterable[int] | None = None,
    rows: int = BATCH_ROWS,
    **options: Any,
) -> Iterator[pa.RecordBatch]:
    """The columns `names` of a file, or of some row groups of it, batch by batch; texts decoded.

    Raises DatasetError for a file that is damaged, for columns of anything but plain values and lists of texts, and for row groups and
    batches that take too much memory.
    """
    with parquet_errors(where):
        file = open_parquet(stream, where, **options)
        schema, metadata = file.schema_arrow, file.metadata
        for name in names:
            kind = schema.field(name).type
            if pa.types.is_nested(kind) and kind not in (pa.list_(pa.string()), pa.list_(pa.large_string())):
                raise DatasetError(f"{where}: column {name!r} holds {str(kind)[:60]}; expected plain numbers or text")
        for group in range(metadata.num_row_groups) if groups is None else groups:
            found = metadata.row_group(group)
            check_size(where, decoded_bytes(metadata, schema, names, [group]), found.num_rows, MOST_STORED_BYTES)
            batches = file.iter_batches(rows, row_groups=[group], columns=list(names), use_threads=False)
            while True:
                with bounded_memory(where):
                    batch = next(batches, None)
                if batch is None:
                    break
                check_size(where, batch.nbytes, batch.num_rows)
                batch.validate(full=True)
                columns = [
                    one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in batch.select(list(names)).columns
                ]
                yield pa.RecordBatch.from_arrays(columns, names=list(names))


def check_size(where: Path | str, size: int, rows: int, most_bytes: int = MOST_BYTES) -> None:
    """Raises DatasetError for columns that take more memory than `most_bytes`."""
    if size > most_bytes:
        raise DatasetError(
            f"{where}: {rows:,} rows take {size / 1e9:.1f} GB in memory, more than {most_bytes / 1e9:.2g}; cut it into smaller files "
            "(`fit` reads kernels in pieces by itself)"
        )
