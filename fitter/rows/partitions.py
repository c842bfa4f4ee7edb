"""Partitioned Parquet: which files a data set has, what they hold, and their rows batch by batch.

A data set is a file or a folder of files, on this machine or in an object store (`s3://…`, `gs://…`), hive folders
(`family=gemm/…`) included.  How it is cut into partitions follows from the files alone, never from how many workers read
them, so that results taken in the order of the partitions are the same on any number of workers.
"""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from collector.dataset import parquet
from collector.dataset.parquet import open_parquet, parquet_errors
from estimator.regular_files import open_regular
from fitter.errors import InputError

PARTITION_ROWS: Final = 1_000_000
"""Row groups of a file are read together up to so many rows: a fraction of a second of work, enough to share out evenly."""

BATCH_ROWS: Final = 1 << 16
"""Rows held as columns at a time: they fit into a core's cache [1]."""

MOST_FILES: Final = 1_000_000
"""More files than this are no data set, but the wrong folder."""

FOOTER_THREADS: Final = 16
"""Footers are small and, in an object store, far away: so many are read at once."""

REMOTE: Final = "://"

HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """One file: its address, its rows by row group, and the columns that its hive folders name."""

    uri: str
    rows: tuple[int, ...]
    constants: tuple[tuple[str, str], ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Row groups of one file that are read together; `first` is the number of rows of the file before them."""

    uri: str
    row_groups: tuple[int, ...]
    rows: int
    first: int
    constants: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedTable:
    """A partitioned data set: its address, files, columns (hive ones included) and the metadata of its first file.

    `sha256` is the digest of the files' names, sizes and footers, which hold the place and the statistics of every
    column chunk: reading all bytes twice would double the time of a fit.
    """

    uri: str
    files: tuple[PartFile, ...]
    schema: pa.Schema
    sha256: str

    @property
    def name(self) -> str:
        """The last part of the address."""
        return shown(self.uri).rstrip("/").rpartition("/")[2]

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(sum(file.rows) for file in self.files)

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns in the files and in the folders' names."""
        return frozenset(self.schema.names) | {name for file in self.files[:1] for name, _ in file.constants}

    def partitions(self) -> tuple[Partition, ...]:
        """The partitions in the order of the files."""
        return tuple(part for file in self.files for part in _partitions(file))


def open_partitioned(address: str | Path, *, first_only: bool = False) -> PartitionedTable:
    """The files of a data set, footers read and columns compared; with `first_only` its first file alone.

    Raises InputError for an address without Parquet files, a store that does not answer, a file that is damaged or whose
    columns differ from those of the first one.
    """
    uri = str(address)
    try:
        system, base = _file_system(uri)
        infos = _parquet_files(system, base)
    except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"{shown(uri)}: cannot be read ({_line(error)})") from error
    if not infos:
        raise InputError(f"{shown(uri)}: no Parquet file here")
    if len(infos) > MOST_FILES:
        raise InputError(f"{shown(uri)}: more than {MOST_FILES:,} files; name the folder of one data set")
    infos = infos[:1] if first_only else infos
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        read = list(pool.map(lambda info: _footer(system, info, base, uri), infos))
    for file, schema in read[1:]:
        _check_same(read[0][1], read[0][0], schema, file)
    digest = hashlib.sha256()
    for (file, _), info in zip(read, infos, strict=True):
        digest.update(f"{_relative(info.path, base)}\0{info.size}\0{file.digest}\n".encode())
    table = PartitionedTable(uri=uri, files=tuple(file for file, _ in read), schema=read[0][1], sha256=digest.hexdigest())
    if not table.rows:
        raise InputError(f"{shown(uri)}: holds no rows")
    return table


def is_remote(address: str | Path) -> bool:
    """Whether an address names an object store, or a file by URI."""
    return REMOTE in str(address)


def read_batches(partition: Partition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns of a partition that its file has, batch by batch.

    Raises DatasetError, naming the file, where it cannot be read to its end.
    """
    where = shown(partition.uri)
    with parquet_errors(where), _opened(*_file_system(partition.uri)) as stream:
        names = open_parquet(stream, where).schema_arrow.names
        present = [name for name in columns if name in names]
        remote = is_remote(partition.uri)
        yield from parquet.read_batches(stream, where, present, groups=partition.row_groups, rows=BATCH_ROWS, pre_buffer=remote)


def _opened(system: Any, path: str) -> Any:
    """A file's bytes.  Raises OSError."""
    return open_regular(path) if isinstance(system, pafs.LocalFileSystem) else system.open_input_file(path)


def _file_system(uri: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    if REMOTE in uri:
        system, path = pafs.FileSystem.from_uri(uri)
        return system, path
    return pafs.LocalFileSystem(), str(Path(uri).absolute())


def _address(uri: str, path: str) -> str:
    """The address of a path in the store that `uri` names: with its user and options, if it has any."""
    if REMOTE not in uri:
        return path
    scheme, _, rest = uri.partition(REMOTE)
    place, mark, options = rest.partition("?")
    user, sign, _ = place.partition("/")[0].rpartition("@")
    return f"{scheme}{REMOTE}{user}{sign}{path}{mark}{options}"


def shown(uri: str) -> str:
    """An address as a message may show it: without keys and options."""
    if REMOTE not in uri:
        return uri
    scheme, _, rest = uri.partition(REMOTE)
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{REMOTE}{place.rpartition('@')[2]}{slash}{path}"


def _parquet_files(system: Any, base: str) -> list[Any]:
    """Infos of all Parquet files below a path, sorted by name; hidden files and folders are left out as everywhere."""
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


def _footer(system: Any, info: Any, base: str, root: str) -> tuple[PartFile, pa.Schema]:
    uri = _address(root, info.path)
    with parquet_errors(shown(uri)), _opened(system, info.path) as stream:
        file = open_parquet(stream, shown(uri))
        meta, schema = file.metadata, file.schema_arrow
        rows = tuple(meta.row_group(i).num_rows for i in range(meta.num_row_groups))
        digest = _footer_digest(stream, info.size)
    folders = _relative(info.path, base).split("/")[:-1]
    pairs = (folder.partition("=") for folder in folders)
    constants = tuple((name, "" if value == HIVE_NULL else unquote(value)) for name, sign, value in pairs if sign)
    return PartFile(uri=uri, rows=rows, constants=constants, digest=digest), schema


def _footer_digest(stream: Any, size: int) -> str:
    """SHA-256 of a Parquet file's footer: its last 8 bytes hold the footer's length."""
    stream.seek(max(size - FOOTER_TAIL, 0))
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(max(size - FOOTER_TAIL - length, 0))
    return hashlib.sha256(stream.read(length)).hexdigest()


FOOTER_TAIL: Final = 8
"""Length of the footer and the magic word at the end of a Parquet file [byte]."""


def _check_same(first: pa.Schema, first_file: PartFile, schema: pa.Schema, file: PartFile) -> None:
    """A file whose columns are not those of the first one is foreign."""
    missing = [name for name in first.names if name not in schema.names]
    if missing:
        raise InputError(
            f"{shown(file.uri)}: no column {missing[0]!r}, which {shown(first_file.uri)} has; a data set's files have the same columns"
        )
    for name in first.names:
        if _kind(schema.field(name).type) != _kind(first.field(name).type):
            types = f"{schema.field(name).type}, in {shown(first_file.uri)} {first.field(name).type}"
            raise InputError(f"{shown(file.uri)}: column {name!r} is {types}; a data set's files have the same columns")
    if [name for name, _ in file.constants] != [name for name, _ in first_file.constants]:
        raise InputError(
            f"{shown(file.uri)}: lies in other hive folders than {shown(first_file.uri)}; a data set's files have the same columns"
        )


def _kind(kind: pa.DataType) -> str:
    """What a column is to a fit: numbers of any width are alike, and so are plain and dictionary-encoded texts."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(value):
        return "bool"
    if pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_null(value):
        return "number"
    return "text" if pa.types.is_string(value) or pa.types.is_large_string(value) else str(value)


def _partitions(file: PartFile) -> list[Partition]:
    found: list[Partition] = []
    groups: list[int] = []
    rows = first = 0
    for number, count in enumerate(file.rows):
        if groups and rows + count > PARTITION_ROWS:
            found.append(Partition(uri=file.uri, row_groups=tuple(groups), rows=rows, first=first, constants=file.constants))
            groups, first, rows = [], first + rows, 0
        groups.append(number)
        rows += count
    if rows:
        found.append(Partition(uri=file.uri, row_groups=tuple(groups), rows=rows, first=first, constants=file.constants))
    return found


def _line(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text[:200]
