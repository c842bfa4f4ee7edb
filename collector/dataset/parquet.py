"""Parquet files of anybody: opened as regular files, judged by their footer, and read within a stated memory.

A few kilobytes of Parquet can hold gigabytes: equal rows and equal texts are stored once, and pages are compressed.  So the footer's
counts are looked at before any page, texts are read as dictionaries, and their bytes are counted before they are decoded.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from collector.errors import DatasetError
from estimator.regular_files import open_regular

MOST_BYTES: Final = 256 << 20
"""Bytes of columns that are held at once; what is computed from them takes two to three times as much."""

MOST_STORED_BYTES: Final = 512 << 20
"""Bytes of the unpacked pages of a row group; a million rows of sixty numbers."""

TEXT_COPIES: Final = 3
"""How often texts are counted: a page of them and what is built from it, which grows by doubling, are held together."""

UNPACKED, PACKED = 2, 3
"""Fields of a page's header: its sizes."""

TRUTHS, WHOLE_NUMBERS, BINARY, STRUCTURE = (1, 2), (4, 5, 6), 8, 12
DEEPEST, LONGEST_NUMBER = 2, 63
"""Kinds of a field in Thrift's compact protocol; how deep structures lie in a page's header, and the bits of a number."""

MOST_COLUMNS: Final = 512
"""No table of measurements has more."""

MOST_LISTED: Final = 1 << 16
"""Entries of a list in a footer: columns, or row groups."""

MOST_METADATA_BYTES: Final = 64 << 20
"""Limit for texts in a footer; a campaign's metadata are some kilobytes."""

BATCH_ROWS: Final = 1 << 14
MOST_IN_LIST: Final = 64
"""Entries of a list in a cell, such as flags."""

LONGEST_TEXT: Final = 1 << 16
"""Bytes of a text in a cell; the opcodes of a kernel's loop take some hundred."""

NUMBER_BYTES: Final = 8
DAMAGED: Final = "{}: truncated, damaged or no Parquet file ({}); copy it again, or collect it again"


@contextmanager
def parquet_errors(where: Path | str) -> Iterator[None]:
    """Raises DatasetError, naming the file, for whatever its bytes make Arrow and the operating system raise."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        if "Exceeded size limit" in str(error):  # so says Arrow of a list in the footer
            raise DatasetError(
                f"{where}: states more than {MOST_LISTED:,} columns or row groups; no table of measurements has so many"
            ) from error
        raise DatasetError(DAMAGED.format(where, one_line(error))) from error


def one_line(error: BaseException) -> str:
    """An error of another library as a part of one line."""
    reason = error.strerror if isinstance(error, OSError) else None
    return " ".join((reason or str(error) or type(error).__name__).split())[:200]


def open_parquet(stream: BinaryIO | Any, where: Path | str, **options: Any) -> pq.ParquetFile:
    """A Parquet file from its bytes, its footer read and judged; `options` are Arrow's.

    Raises DatasetError for too many columns and for one that is there twice; what `parquet_errors` renames for a damaged file.
    """
    limits = {"thrift_string_size_limit": MOST_METADATA_BYTES, "thrift_container_size_limit": MOST_LISTED}
    file = pq.ParquetFile(stream, page_checksum_verification=True, **limits, **options)
    if file.metadata.num_columns > MOST_COLUMNS:
        raise DatasetError(f"{where}: holds {file.metadata.num_columns:,} columns; a table of measurements has {MOST_COLUMNS} at most")
    names = file.schema_arrow.names
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
    """Bytes that the wanted columns, or some row groups of them, take in memory by what the footer states, texts as dictionaries."""
    names, total = set(wanted), 0
    for leaf in range(metadata.num_columns):
        column = metadata.schema.column(leaf)
        if _top(column.path, schema) not in names:
            continue
        for group in range(metadata.num_row_groups) if groups is None else groups:
            chunk = metadata.row_group(group).column(leaf)
            plain, stored = chunk.num_values * max(column.length or 0, NUMBER_BYTES), chunk.total_uncompressed_size
            total += plain + stored if column.physical_type == "BYTE_ARRAY" else max(plain, stored)
    return total


def page_bytes(stream: BinaryIO | Any, metadata: pq.FileMetaData, schema: pa.Schema, wanted: Iterable[str], group: int) -> int:
    """Bytes that the pages of a row group's wanted columns take unpacked, texts with their copies, by what each page says of itself.

    A footer's counts bind no page.  Raises ValueError, LookupError for a damaged page.
    """
    names, chunks, total = set(wanted), metadata.row_group(group), 0
    for chunk in map(chunks.column, range(metadata.num_columns)):
        size = max(chunk.total_compressed_size, 0) if _top(chunk.path_in_schema, schema) in names else 0
        if size > MOST_STORED_BYTES:
            return total + size
        stream.seek(chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset)
        content, at = stream.read(size), 0
        while at < len(content):
            fields, at = _page_header(content, at)
            total += fields[UNPACKED] * (TEXT_COPIES if chunk.physical_type == "BYTE_ARRAY" else 1)
            at += fields[PACKED]
    return total


def _page_header(content: bytes, at: int, depth: int = 0) -> tuple[dict[int, int], int]:
    """The whole numbers of a page's header, or of a structure in it, by their field, and where it ends (Thrift's compact protocol).

    Raises ValueError for what no such header holds, IndexError for one that is cut off.
    """
    fields, field = {}, 0
    while head := content[at]:
        field, kind, at = field + (head >> 4), head & 15, at + 1
        if kind == STRUCTURE and depth < DEEPEST:
            _, at = _page_header(content, at, depth + 1)
        elif kind in (*WHOLE_NUMBERS, BINARY):
            value = shift = 0
            while (byte := content[at]) & 128 and shift < LONGEST_NUMBER:
                value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            value, at = value | byte << shift, at + 1
            fields[field] = value >> 1  # signs are in the last bit, and no size is negative
            at += value if kind == BINARY else 0
        elif kind not in TRUTHS:
            raise ValueError("a page's header is damaged")
    return fields, at + 1


def _top(path: str, schema: pa.Schema) -> str:
    """The column that a leaf belongs to; a column's own name may have points."""
    return path if path in schema.names else path.split(".")[0]


def read_columns(path: Path | str, wanted: Iterable[str], most_bytes: int = MOST_BYTES) -> pa.Table:
    """The wanted columns that a file has, in the file's order, texts decoded.

    Raises DatasetError as `read_batches`, and for columns that take more than `most_bytes`.
    """
    schema, metadata = read_footer(path)
    names = [name for name in schema.names if name in set(wanted)]
    check_size(path, decoded_bytes(metadata, schema, names), metadata.num_rows, most_bytes)
    batches, left = [], most_bytes
    with parquet_errors(path), open_regular(path) as stream:
        for batch in read_batches(stream, path, names):
            left -= batch.nbytes
            check_size(path, most_bytes - left, metadata.num_rows, most_bytes)
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

    Raises DatasetError for a file that is damaged, for columns of anything but plain values and lists of texts, and for pages and batches
    that take too much memory.
    """
    with parquet_errors(where):
        file = open_parquet(stream, where)
        schema, metadata = file.schema_arrow, file.metadata
        _check_plain(schema, names, where)
        file = open_parquet(stream, where, metadata=metadata, read_dictionary=_text_leaves(metadata, schema, names), **options)
        for group in range(metadata.num_row_groups) if groups is None else groups:
            size = page_bytes(stream, metadata, schema, names, group)
            check_size(where, size, metadata.row_group(group).num_rows, MOST_STORED_BYTES)
            for batch in file.iter_batches(rows, row_groups=[group], columns=list(names), use_threads=False):
                yield _decoded(batch.select(list(names)), where)


def check_size(where: Path | str, size: int, rows: int, most_bytes: int = MOST_BYTES) -> None:
    """Raises DatasetError for columns that take more memory than `most_bytes`."""
    if size > most_bytes:
        raise DatasetError(
            f"{where}: {rows:,} rows take {size / 1e9:.1f} GB in memory, more than {most_bytes / 1e9:.2g}; cut it into smaller files "
            "(`fit` reads kernels in pieces by itself)"
        )


def _check_plain(schema: pa.Schema, names: Iterable[str], where: Path | str) -> None:
    """Raises DatasetError for a column of other values than numbers, times, texts and lists of texts."""
    for name in names:
        kind = schema.field(name).type
        inner = kind.value_type if pa.types.is_list(kind) or pa.types.is_dictionary(kind) else kind
        if pa.types.is_nested(inner) or (pa.types.is_list(kind) and not _is_text(inner)):
            raise DatasetError(f"{where}: column {name!r} holds {str(kind)[:60]}; expected plain numbers or text")


def _text_leaves(metadata: pq.FileMetaData, schema: pa.Schema, names: Iterable[str]) -> list[str]:
    """Paths of the wanted columns whose values are texts: they are read as dictionaries."""
    kinds = {name: schema.field(name).type for name in names}
    paths = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)]
    found = {path: kinds.get(_top(path, schema)) for path in paths}
    return [path for path, kind in found.items() if kind is not None and (_is_text(kind) or pa.types.is_list(kind))]


def _decoded(batch: pa.RecordBatch, where: Path | str) -> pa.RecordBatch:
    """A batch with plain texts in place of dictionaries.

    Raises DatasetError where that takes too much, ValueError for text that is no UTF-8 and for endless lists.
    """
    check_size(where, _counted_bytes(batch), batch.num_rows)
    return pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], names=batch.schema.names)


def _counted_bytes(batch: pa.RecordBatch) -> int:
    """Bytes that a batch takes once its dictionaries are decoded."""
    batch.validate(full=True)
    total = 0
    for column in batch.columns:
        if pa.types.is_list(column.type):
            column = column.flatten()
            if len(column) > MOST_IN_LIST * batch.num_rows:
                raise ValueError(f"lists of more than {MOST_IN_LIST} texts")
        total += NUMBER_BYTES * len(column)
        if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type) and len(column.dictionary):
            lengths = pc.binary_length(column.dictionary).cast(pa.int64())
            if (pc.max(lengths).as_py() or 0) > LONGEST_TEXT:
                raise ValueError(f"a text of {pc.max(lengths).as_py():,} bytes where names stand")
            total += pc.sum(lengths.take(column.indices)).as_py() or 0
    return total


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_list(column.type) and pa.types.is_dictionary(column.type.value_type):
        return column.cast(pa.list_(column.type.value_type.value_type))
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    tests: Sequence[Any] = (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string_view,
        pa.types.is_binary_view,
    )  # fmt: skip
    return any(test(kind) for test in tests)
