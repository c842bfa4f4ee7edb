"""Reading kernel datasets: a Parquet file, a folder of them, or the log of an unfinished campaign, whose format is here.

In a log every finished row is on disk before the next one starts.  Each row is one line after the CRC of its text, written in one call and
synced.  Such a file needs no end mark: a torn or damaged line is found by its CRC, and the log ends before it.

A row takes about 1.2 kB.  An Arrow batch of one row would take 6.5 kB and 2 ms of a core: Arrow has a cost per column.
"""

import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa

from collector.dataset.parquet import MOST_BYTES, one_line, read_columns, read_footer
from collector.dataset.schema import KERNEL_COLUMNS, METADATA_KEY, SCHEMA_VERSION, Metadata, Row, decode_metadata, kernel_schema
from collector.errors import DatasetError
from estimator.vocabulary.documents import LARGEST
from estimator.vocabulary.regular_files import open_regular, special_kind
from estimator.vocabulary.values import frozen

LOG_SUFFIX: Final = ".log.jsonl"
"""Added to the name of the output."""
FORMAT: Final = "wattprint-kernel-log"
FORMAT_VERSION: Final = 1
ROWS_PER_BATCH: Final = 4096


@frozen
class RecoveredLog:
    """Complete rows, metadata and valid length of a log."""

    table: pa.Table
    metadata: Metadata
    whole_bytes: int


def log_path(output: Path) -> Path:
    """Path of the log of an output."""
    return output.with_name(output.name + LOG_SUFFIX)


def read_log(path: Path) -> RecoveredLog:
    """Every complete row of a log; a torn or damaged tail is left out.

    Raises DatasetError for a file that cannot be read, has no complete header or is no log of kernel rows, and for one with complete rows
    after a damaged line: no crash causes that, and resuming would lose them.
    """
    try:
        with open_regular(path) as stream:
            return recovered_log(stream, path)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error


def recovered_log(stream: IO[bytes], path: Path) -> RecoveredLog:
    """Contents of an open log.  Raises OSError, DatasetError."""
    lines = iter(partial(stream.readline, 64 << 20), b"")  # every row and every campaign's metadata are far smaller
    whole = _whole_rows(lines)
    try:
        header, end = next(whole, (None, 0))
        if not isinstance(header, dict) or header.get("format") != FORMAT or header.get("version") != FORMAT_VERSION:
            raise DatasetError(
                f"{path}: its beginning is damaged, or it is no log of kernel rows of this version; start again with --fresh"
            )
        metadata = decode_metadata(json.dumps(header.get("metadata")).encode(), str(path))
        schema = kernel_schema(metadata)
        batches = []
        while rows := list(islice(whole, ROWS_PER_BATCH)):
            batches.append(pa.RecordBatch.from_pylist([row for row, _ in rows], schema=schema))
            end = rows[-1][1]
    except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise DatasetError(f"{path}: holds a row that does not fit the kernel dataset; start again with --fresh") from error
    table = pa.Table.from_batches(batches, schema=schema)
    if behind := sum(map(_is_whole, lines)):
        raise DatasetError(
            f"{path}: line {table.num_rows + 2} is damaged and {behind} whole rows follow it; keep a copy, delete what is damaged, and "
            "`collect --resume` measures its row again"
        )
    return RecoveredLog(table=table, metadata=metadata, whole_bytes=end)


def _whole_rows(lines: Iterator[bytes]) -> Iterator[tuple[Any, int]]:
    """The document of each line up to the first incomplete one, and the end of its line.  Raises ValueError, RecursionError."""
    end = 0
    for line in lines:
        if not _is_whole(line):
            return
        end += len(line)
        yield json.loads(line[9:]), end


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") and line[:9] == b"%08x " % zlib.crc32(line[9:-1])


def framed(document: Row) -> bytes:
    """A document as a line of a log."""
    text = json.dumps(document, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


MEASUREMENT: Final = ("row_id", "started_unix_s")
"""Columns that identify one measurement: the same campaign run again has the same ids at other times."""


@frozen
class KernelDataset:
    """Measured kernels.

    `table` has the columns of KERNEL_COLUMNS, or those that were asked for; `metadata` are those of the first file (GPU, sensor, campaign,
    idle power…), `files` those of every file.
    """

    table: pa.Table
    metadata: Metadata
    files: tuple[Metadata, ...]


def is_kernel_dataset(path: str | Path) -> bool:
    """Whether a Parquet file declares that it is a kernel dataset; False for a file that cannot be read."""
    try:
        return is_collected(read_footer(path)[0])
    except DatasetError:
        return False


def check_replaceable(output: Path) -> None:
    """Raises DatasetError for a file that `--fresh` does not replace: anything but a kernel dataset, damaged or not, or an empty file."""
    if not output.is_file() or not output.stat().st_size:
        return
    try:
        foreign = not is_collected(read_footer(output)[0])
    except DatasetError:
        with output.open("rb") as stream:
            foreign = stream.read(4) != b"PAR1"
    if foreign:
        raise DatasetError(f"{output}: is no kernel dataset, and --fresh replaces nothing else; remove it, or name another file with --out")


def read_kernel_dataset(path: str | Path, wanted: Collection[str] = KERNEL_COLUMNS) -> KernelDataset:
    """A kernel dataset from a Parquet file, a folder of Parquet files (including its subfolders) or the log of an unfinished campaign.

    wanted: columns to read, in addition to the rows' ids and times.
    Raises DatasetError for a missing path, a file that is truncated, damaged, foreign or of a newer schema, and a duplicate row.
    """
    path = Path(path)
    names = [name for name in KERNEL_COLUMNS if name in (*wanted, *MEASUREMENT)]
    tables: list[pa.Table] = []
    found: list[Metadata] = []
    for file in _files(path):
        if file.name.endswith(LOG_SUFFIX):
            recovered = read_log(file)
            table, metadata = recovered.table.select(names), recovered.metadata
            _check_version(metadata, file)
        else:
            metadata = kernel_metadata(read_footer(file)[0], file)
            content = read_columns(file, names, MOST_BYTES - sum(one.nbytes for one in tables))
            table = conforming(content, metadata, file, names)
        tables.append(table)
        found.append(metadata)
    rows = pa.concat_tables(tables)
    if missing := rows.column("row_id").null_count:
        raise DatasetError(f"{path}: {missing} rows have no row_id; the file is damaged, collect it again")
    if twice := measured_twice(rows):
        raise DatasetError(f"{path}: row {twice[0]} occurs more than once ({len(twice)} such rows); give every measurement once")
    return KernelDataset(table=rows, metadata=found[0], files=tuple(found))


def measured_twice(table: pa.Table) -> list[str]:
    """Ids of rows that contain the same measurement twice."""
    columns = (table.column(name).to_pylist() for name in MEASUREMENT)
    return [row_id for (row_id, _), count in Counter(zip(*columns, strict=True)).items() if count > 1]


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files in a folder and below, sorted; names of unfinished parts, or of their folders, begin with a point."""
    below = (file for file in folder.rglob("*.parquet") if not file.is_dir())
    return sorted(file for file in below if not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts))


def left_out(path: Path) -> str:
    """A warning of rows in logs of unfinished campaigns, which `read_kernel_dataset` leaves out of a path; "" without one."""
    logs = sorted(path.rglob(f"*{LOG_SUFFIX}")) if path.is_dir() else [log_path(path)]
    rows = [log.read_bytes().count(b"\n") - 1 for log in logs if log.is_file()]
    if not rows:
        return ""
    told = f"{sum(rows)} rows of {len(rows)} unfinished campaign{'s' * (len(rows) > 1)} are left out ({logs[0].name})"
    return f"{path.resolve().name}: {told}; `collect … --resume` finishes it, and a log can be named alone"


def _files(path: Path) -> list[Path]:
    """The files behind a path."""
    if path.is_dir():
        files = parquet_files(path)
        if not files:
            raise DatasetError(left_out(path) or f"{path}: no Parquet file in this folder; `collect` writes them")
        return files
    if path.is_file():
        return [path]
    log = log_path(path)
    if log.is_file():
        raise DatasetError(f"{path} is not there yet: its campaign did not finish; go on with `collect … --resume`, or read {log}")
    if path.exists():
        raise DatasetError(f"{path}: is {special_kind(path)}; a dataset is a Parquet file, a folder of them or a campaign's log")
    raise DatasetError(f"{path}: no such file; `collect --out {path}` makes one")


def is_collected(schema: pa.Schema) -> bool:
    """Whether a Parquet file with this schema declares that it is a kernel dataset."""
    return METADATA_KEY in (schema.metadata or {})


def kernel_metadata(schema: pa.Schema, path: Path | str) -> Metadata:
    """Metadata of a kernel dataset's file, from its schema.

    Raises DatasetError for a foreign file, another version of the schema, and a file that lacks columns.
    """
    if not is_collected(schema):
        raise DatasetError(f"{path}: a Parquet file, but no kernel dataset: its metadata have no {METADATA_KEY.decode()!r}")
    metadata = decode_metadata(schema.metadata[METADATA_KEY], str(path))
    _check_version(metadata, path)
    missing = [name for name in KERNEL_COLUMNS if name not in schema.names]
    if missing:
        raise DatasetError(f"{path}: columns are missing: {', '.join(missing)}; collect it again")
    return metadata


def conforming(table: pa.Table, metadata: Metadata, path: Path | str, names: Collection[str] = KERNEL_COLUMNS) -> pa.Table:
    """Rows of a kernel dataset's file with the columns `names` of the current schema, in its types.

    Raises DatasetError for a column of another type, or a number that is impossible for any quantity in any unit.
    """
    schema = kernel_schema(metadata)
    try:
        rows = table.select(list(names)).cast(pa.schema([schema.field(name) for name in names], metadata=schema.metadata))
    except (pa.ArrowException, ValueError) as error:
        raise DatasetError(f"{path}: a column has another type than the schema says ({one_line(error)})") from error
    for name in names:
        if KERNEL_COLUMNS[name].kind == "number":
            values = np.asarray(rows.column(name))
            if np.any(np.isfinite(values) & (np.abs(values) > LARGEST)):
                raise DatasetError(f"{path}: {name} holds a number larger than any quantity; the file is damaged")
    return rows


def _check_version(metadata: Metadata, path: Path | str) -> None:
    """Rejects a dataset of another version of the schema."""
    version = metadata.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DatasetError(
            f"{path}: schema version {version!r} is unknown, this program reads {SCHEMA_VERSION}; use the wattprint that wrote it"
        )
