"""Reading kernel datasets: a Parquet file, a folder of them, or the log of an unfinished campaign."""

import hashlib
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from collector.dataset.log import LOG_SUFFIX, log_path, read_log
from collector.dataset.parquet import MOST_BYTES, one_line, read_columns, read_footer
from collector.dataset.schema import KERNEL_COLUMNS, METADATA_KEY, SCHEMA_VERSION, Metadata, decode_metadata, kernel_schema
from collector.errors import DatasetError
from estimator.vocabulary.documents import LARGEST
from estimator.vocabulary.regular_files import open_regular, special_kind
from estimator.vocabulary.values import frozen

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


def _files(path: Path) -> list[Path]:
    """The files behind a path; names of unfinished parts, or of their folders, begin with a point."""
    if path.is_dir():
        below = (file for file in path.rglob("*.parquet") if not file.is_dir())
        files = sorted(file for file in below if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts))
        if not files:
            raise DatasetError(f"{path}: no Parquet file in this folder; `collect` writes them")
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


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, as hexadecimal text."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
