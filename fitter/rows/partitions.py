"""Partitioned Parquet: the files of a data set, their schema, and their rows batch by batch.

A data set is a file or a folder of files, on this machine or in an object store (`s3://…`, `gs://…`).  The partitions depend on the
files only, not on the number of workers, so results in the order of the partitions are the same on any number of workers.
"""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from collector.dataset import parquet
from collector.dataset.parquet import open_parquet, parquet_errors
from estimator.vocabulary.regular_files import open_regular
from fitter.errors import InputError

FOOTER_TAIL: Final = 8
"""Length of the footer and the magic word at the end of a Parquet file [byte]."""

MANY_ROWS: Final = 1_000_000
ROW_BYTES: Final = 3
"""A longer file with fewer bytes a row holds copies: measured times alone take 7 bytes a row and more."""

REMOTE: Final = "://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Row groups of one file that are read together.

    root          address of the data set;  path: of the file in its store
    rows, first   rows of the partition, and those of the file before them
    """

    root: str
    path: str
    row_groups: tuple[int, ...]
    rows: int
    first: int

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedTable:
    """A partitioned data set: its address, partitions in the order of the files, number of files, and the schema of its first file.

    `sha256` is the digest of the files' names, sizes and footers, which hold the place and the statistics of every
    column chunk: reading all bytes twice would double the time of a fit.
    """

    uri: str
    files: int
    schema: pa.Schema
    sha256: str
    parts: tuple[Partition, ...]

    @property
    def name(self) -> str:
        """The last part of the address."""
        return shown(self.uri).rstrip("/").rpartition("/")[2]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(part.rows for part in self.parts)


def open_partitioned(address: str | Path) -> PartitionedTable:
    """Open the files of a data set and read their footers.

    Raises InputError for an address without Parquet files or rows, copied rows, a silent store, DatasetError for a damaged file.
    """
    uri = str(address)
    try:
        system, base = _file_system(uri)
        infos = _parquet_files(system, base)
    except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"{shown(uri)}: cannot be read ({' '.join(str(error).split())[:200]})") from error
    if not infos:
        raise InputError(f"{shown(uri)}: no Parquet file here")
    # Footers are small and, in an object store, far away: so many are read at once.
    with ThreadPoolExecutor(16) as pool:
        read = list(pool.map(lambda info: _file(system, info, base, uri), infos))
    digest = hashlib.sha256("".join(footer for _, _, footer in read).encode()).hexdigest()
    parts = tuple(part for own, _, _ in read for part in own)
    if not parts:
        raise InputError(f"{shown(uri)}: holds no rows")
    return PartitionedTable(uri=uri, files=len(infos), schema=read[0][1], sha256=digest, parts=parts)


def is_remote(address: str | Path) -> bool:
    """Whether an address names an object store, or a file by URI."""
    return REMOTE in str(address)


def read_batches(partition: Partition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns of a partition that its file has, batch by batch.

    Raises DatasetError with the file's name if it cannot be read to its end.
    """
    where = partition.path
    with parquet_errors(where), _opened(_file_system(partition.root)[0], partition.path) as stream:
        names = open_parquet(stream, where).schema_arrow.names
        present = [name for name in columns if name in names]
        remote = is_remote(partition.root)
        # So many rows as columns fit into a core's cache.
        yield from parquet.read_batches(stream, where, present, groups=partition.row_groups, rows=1 << 16, pre_buffer=remote)


def _opened(system: Any, path: str) -> Any:
    """A file's bytes.  Raises OSError."""
    return open_regular(path) if isinstance(system, pafs.LocalFileSystem) else system.open_input_file(path)


def _file_system(uri: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    if is_remote(uri):
        system, path = pafs.FileSystem.from_uri(uri)
        return system, path
    return pafs.LocalFileSystem(), str(Path(uri).absolute())


def shown(uri: str) -> str:
    """An address for messages: without keys and options."""
    if not is_remote(uri):
        return uri
    scheme, _, rest = uri.partition(REMOTE)
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{REMOTE}{place.rpartition('@')[2]}{slash}{path}"


def _parquet_files(system: Any, base: str) -> list[Any]:
    """Infos of all Parquet files below a path, sorted by name, without hidden files and folders."""
    own = system.get_file_info(base)
    if own.type == pafs.FileType.NotFound:
        raise FileNotFoundError("no such file or folder")
    if own.type == pafs.FileType.File:
        return [own]
    found = system.get_file_info(pafs.FileSelector(base, recursive=True))
    files = [info for info in found if info.type == pafs.FileType.File and info.path.endswith(".parquet")]
    visible = [info for info in files if not any(part.startswith((".", "_")) for part in _relative(info.path, base).split("/"))]
    return sorted(visible, key=lambda info: info.path)


def _relative(path: str, base: str) -> str:
    return path[len(base) :].lstrip("/") if path != base and path.startswith(base) else path.rpartition("/")[2]


def _file(system: Any, info: Any, base: str, root: str) -> tuple[list[Partition], pa.Schema, str]:
    """Partitions of one file, its schema, and a line that identifies the file: name, size and digest of the footer."""
    with parquet_errors(info.path), _opened(system, info.path) as stream:
        file = open_parquet(stream, info.path)
        groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        stream.seek(max(info.size - FOOTER_TAIL, 0))
        length = int.from_bytes(stream.read(4), "little")
        stream.seek(max(info.size - FOOTER_TAIL - length, 0))
        footer = hashlib.sha256(stream.read(length)).hexdigest()
    if sum(groups) > max(MANY_ROWS, info.size / ROW_BYTES):
        raise InputError(f"{info.path}: {sum(groups):,} rows in {info.size:,} bytes are copies of few; give every measurement once")
    found: list[Partition] = []
    first = 0
    for number, rows in enumerate(groups):
        last = found[-1] if found else None
        # Row groups of a file are read together: a fraction of a second of work, enough to share out evenly.
        if last is not None and last.rows + rows <= MANY_ROWS:
            found[-1] = replace(last, row_groups=(*last.row_groups, number), rows=last.rows + rows)
        elif rows:
            found.append(Partition(root=root, path=info.path, row_groups=(number,), rows=rows, first=first))
        first += rows
    return found, file.schema_arrow, f"{_relative(info.path, base)}\0{info.size}\0{footer}\n"
