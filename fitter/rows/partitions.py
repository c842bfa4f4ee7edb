"""Partitioned Parquet: the files of a data set, their schema, and their rows batch by batch.

A data set is a file or a folder of files.  The partitions depend on the files only, not on the number of workers, so results in the order
of the partitions are the same on any number of workers.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from collector.dataset import parquet, reader
from collector.dataset.parquet import open_parquet, parquet_errors
from estimator.vocabulary.regular_files import open_regular
from estimator.vocabulary.values import frozen
from fitter.errors import InputError
from fitter.rows.tables import PARQUET_MAGIC, read_head

FOOTER_TAIL: Final = 8
"""Length of the footer and the magic word at the end of a Parquet file [byte]."""

MANY_ROWS: Final = 1_000_000
ROW_BYTES: Final = 3
"""A longer file with fewer bytes a row holds copies: measured times alone take 7 bytes a row and more."""


@frozen
class Partition:
    """Row groups of one file that are read together; `rows` of the partition, and `first`: those of the file before them."""

    path: Path
    row_groups: tuple[int, ...]
    rows: int
    first: int


@frozen
class PartitionedTable:
    """A partitioned data set: partitions in the order of the files, and the schemas of the files.

    `sha256` is the digest of the files' names, sizes and footers, which hold the place and the statistics of every
    column chunk: reading all bytes twice would double the time of a fit.
    """

    schemas: tuple[pa.Schema, ...]
    sha256: str
    parts: tuple[Partition, ...]


def parquet_files(path: Path) -> list[Path]:
    """The Parquet files of a data set, sorted, without hidden files and folders; none in a file of another kind."""
    if path.is_file():
        return [path] if read_head(path).startswith(PARQUET_MAGIC) else []
    return reader.parquet_files(path)


def open_partitioned(path: Path) -> PartitionedTable:
    """Open the files of a data set and read their footers.

    Raises InputError for a path without Parquet files or rows, and for copied rows, DatasetError for a damaged file.
    """
    root = path.absolute()
    read = [_file(file, root) for file in parquet_files(root)]
    digest = hashlib.sha256("".join(footer for _, _, footer in read).encode()).hexdigest()
    parts = tuple(part for own, _, _ in read for part in own)
    if not parts:
        raise InputError(f"{path}: holds no rows")
    return PartitionedTable(schemas=tuple(schema for _, schema, _ in read), sha256=digest, parts=parts)


def read_batches(partition: Partition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns of a partition that its file has, batch by batch.

    Raises DatasetError with the file's name if it cannot be read to its end.
    """
    where = partition.path
    with parquet_errors(where), open_regular(where) as stream:
        names = open_parquet(stream, where).schema_arrow.names
        present = [name for name in columns if name in names]
        # So many rows as columns fit into a core's cache.
        yield from parquet.read_batches(stream, where, present, groups=partition.row_groups, rows=1 << 16)


def _file(path: Path, root: Path) -> tuple[list[Partition], pa.Schema, str]:
    """Partitions of one file, its schema, and a line that identifies the file: name, size and digest of the footer."""
    with parquet_errors(path), open_regular(path) as stream:
        file = open_parquet(stream, path)
        groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        size = stream.seek(0, 2)
        stream.seek(size - FOOTER_TAIL)
        length = int.from_bytes(stream.read(4), "little")
        stream.seek(max(size - FOOTER_TAIL - length, 0))
        footer = hashlib.sha256(stream.read(length)).hexdigest()
    if sum(groups) > max(MANY_ROWS, size / ROW_BYTES):
        raise InputError(f"{path}: {sum(groups):,} rows in {size:,} bytes are copies of few; give every measurement once")
    found: list[Partition] = []
    first = 0
    for number, rows in enumerate(groups):
        last = found[-1] if found else None
        # Row groups of a file are read together: a fraction of a second of work, enough to share out evenly.
        if last is not None and last.rows + rows <= MANY_ROWS:
            found[-1] = replace(last, row_groups=(*last.row_groups, number), rows=last.rows + rows)
        elif rows:
            found.append(Partition(path=path, row_groups=(number,), rows=rows, first=first))
        first += rows
    name = path.name if path == root else path.relative_to(root).as_posix()
    return found, file.schema_arrow, f"{name}\0{size}\0{footer}\n"
