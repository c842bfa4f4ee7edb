"""Writing kernel datasets: a log while the campaign runs, one Parquet file at its end.

No finished row is lost and no incomplete file is left: rows go to the log, synced one by one; the Parquet file is
written beside its place, synced and renamed; only then is the log removed.  One process at a time writes a dataset.
"""

import hashlib
import json
import os
import socket
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from collector.dataset.parquet import one_line
from collector.dataset.reader import (
    FORMAT,
    FORMAT_VERSION,
    LOG_SUFFIX,
    ROWS_PER_BATCH,
    framed,
    log_path,
    read_kernel_dataset,
    read_log,
    recovered_log,
)
from collector.dataset.schema import METADATA_KEY, Metadata, Row, checked_row, encode_metadata
from collector.devices.file_lock import locked_file
from collector.errors import DatasetError
from estimator.vocabulary.whole_file import open_whole, sync_folder, unfinished


@contextmanager
def claimed_dataset(output: Path, beside: tuple[str, ...] = ()) -> Iterator[None]:
    """The sole right to write a dataset within a block; unfinished files of killed writers are removed.

    The right is a lock (flock) on a file beside the output, which ends with the process; on NFS it holds for all hosts.  `beside` are
    endings of further files that the dataset's writer keeps beside it.  Raises DatasetError if another process has the right.
    """
    path = output.with_name(f".{output.name}.writer")
    lock = None
    try:
        lock = locked_file(path)
        if lock is None or not os.path.samestat(os.fstat(lock), path.stat()):  # its owner has just removed it
            raise DatasetError(f"{output}: another campaign is writing there; wait for it or name another place with --out")
        try:
            for ending in ("", LOG_SUFFIX, *beside):
                for left, _ in unfinished(output.with_name(output.name + ending)):
                    left.unlink(missing_ok=True)
            _part(log_path(output)).unlink(missing_ok=True)
            yield
        finally:
            with suppress(OSError):  # the disk fails now; the lock ends with the process
                path.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritten(output, error) from error
    finally:
        if lock is not None:
            os.close(lock)


def is_folder(out: str) -> bool:
    """Whether `--out` names a folder of parts: an existing folder, or a name with a slash at its end.  Raises DatasetError for a URL."""
    if "://" in out:
        raise DatasetError(f"{out}: is a URL; name a file or folder of this machine, and copy it")
    return out.endswith("/") or Path(out).is_dir()


def part_path(folder: str, gpu: str, key: Row) -> Path:
    """Path of this host's part of a dataset in a folder; the same for the same campaign on the same board.

    Hosts do not coordinate: no two of them write the same path.  Raises DatasetError if its folder cannot be made.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:12]
    board, host, uuid = (urllib.parse.quote(text, safe="-_.") for text in (gpu, socket.gethostname(), str(key["gpu_uuid"])))
    path = Path(folder) / f"board={board}" / f"host={host}" / f"{uuid}-{digest}.parquet"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritten(path, error) from error
    return path


def _part(path: Path) -> Path:
    """The name of a log until it is complete."""
    return path.with_name(f".{path.name}.part")


def _unwritten(path: Path, error: BaseException) -> DatasetError:
    return DatasetError(f"{path}: cannot be written ({one_line(error)}); name another place with --out")


class KernelWriter:
    """An open kernel dataset: `append` rows, then `finish`.  Made by `open_kernel_writer`."""

    def __init__(self, output: Path, file: IO[bytes], rows: int) -> None:
        self._output, self._log, self._file = output, log_path(output), file
        self._end = os.fstat(file.fileno()).st_size
        self.rows = rows

    def table(self) -> pa.Table:
        """All rows so far, in their original order, read back from the open log, which no other process can remove."""
        with open(os.dup(self._file.fileno()), "rb") as stream:
            stream.seek(0)
            table = recovered_log(stream, self._log).table
        if table.num_rows != self.rows:
            raise DatasetError(f"{self._log}: {self.rows} rows were written, {table.num_rows} can be read; the disk is failing")
        return table

    def append(self, row: Row) -> None:
        """Put one row on disk; it is synced when this returns.

        Raises DatasetError for a row that does not fit the schema, and if the disk rejects it; no part of it stays behind.
        """
        line = framed(checked_row(row))
        try:
            self.write(line)
        except OSError as error:
            safe = f"{self.rows} rows are safe; when the disk works and has room, go on with --resume"
            raise DatasetError(f"{self._log}: cannot be written ({one_line(error)}); {safe}") from error
        self.rows += 1

    def write(self, lines: bytes) -> None:
        """Write whole lines and sync them.  Raises OSError."""
        try:
            self._to_end()
            view = memoryview(lines)
            while view:  # a disk that fills up first accepts a part
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._to_end()
            raise
        self._end += len(lines)

    def _to_end(self) -> None:
        """Go to the end of the last row, and cut off the rest of a failed write.  Raises OSError."""
        self._file.truncate(self._end)
        self._file.seek(self._end)

    def finish(self, metadata: Metadata, order: Sequence[str] = ()) -> None:
        """Write the Parquet file with all rows and remove the log.

        `metadata` replace those given at the start; `order` lists row ids in their final order
        (rows not named keep theirs, at the end).  Raises DatasetError; the log then stays.
        """
        place = {row_id: index for index, row_id in enumerate(order)}
        table = self.table()
        ids = table.column("row_id").to_pylist()
        table = table.take(pa.array(sorted(range(len(ids)), key=lambda row: place.get(ids[row], len(place))), pa.int64()))
        try:
            write_parquet(table.replace_schema_metadata({METADATA_KEY: encode_metadata(metadata)}), self._output)
        except OSError as error:
            safe = f"all {self.rows} rows are safe in {self._log}; the same command with --resume finishes it"
            raise DatasetError(f"{error}; {safe}") from error
        self.discard()

    def discard(self) -> None:
        """Close a log that is not needed and remove it: a later run has nothing to resume.  Raises DatasetError."""
        self.close()
        try:
            self._log.unlink(missing_ok=True)
            sync_folder(self._output.parent)
        except OSError as error:
            raise DatasetError(f"{self._log}: is not needed any more and cannot be removed ({one_line(error)})") from error

    def close(self) -> None:
        """Close the log; its rows stay for --resume."""
        with suppress(OSError):  # a network file system may fail again here; the failed write was reported
            self._file.close()


@contextmanager
def open_kernel_writer(output: Path, metadata: Metadata, kept: pa.Table | None = None) -> Iterator[KernelWriter]:
    """A dataset open for writing, by a process that has the right to (`claimed_dataset`).

    `kept` are rows of an earlier run that remain part of it.  The appended rows are on disk however the block ends.  Raises DatasetError
    if `output` cannot be written.
    """
    log = log_path(output)
    try:
        writer = _continued(output) if kept is not None and log.is_file() else _begun(output, metadata, kept)
        sync_folder(output.parent)
    except (OSError, pa.ArrowException) as error:
        raise _unwritten(log, error) from error
    try:
        yield writer
    finally:
        writer.close()


def _begun(output: Path, metadata: Metadata, kept: pa.Table | None) -> KernelWriter:
    """A writer whose new log holds the rows to keep, synced, and renamed when it is complete.  Raises OSError, DatasetError."""
    header = {"format": FORMAT, "version": FORMAT_VERSION, "metadata": json.loads(encode_metadata(metadata))}
    rows = (row for batch in ([] if kept is None else kept.to_batches(max_chunksize=ROWS_PER_BATCH)) for row in batch.to_pylist())
    part = _part(log_path(output))
    writer = KernelWriter(output, part.open("w+b", buffering=0), 0 if kept is None else kept.num_rows)
    writer.write(b"".join(framed(document) for document in chain([header], rows)))
    os.replace(part, log_path(output))
    return writer


def _continued(output: Path) -> KernelWriter:
    """A writer that goes on with an existing log, its torn tail cut off.  Raises OSError, DatasetError."""
    recovered = read_log(log_path(output))
    file = log_path(output).open("r+b", buffering=0)
    file.truncate(recovered.whole_bytes)
    return KernelWriter(output, file, recovered.table.num_rows)


def write_parquet(table: pa.Table, output: Path) -> None:
    """Write a table, completely or not at all.  Raises UnwrittenError, and DatasetError for a table that Parquet cannot hold."""
    try:
        with open_whole(output) as stream:
            pq.write_table(table, stream, compression="zstd", store_schema=True, write_page_checksum=True)
    except pa.ArrowException as error:
        raise DatasetError(f"{output}: cannot be written ({one_line(error)})") from error


def export_dataset(dataset: Path, kind: str, output: Path) -> int:
    """Write a dataset as "csv" (flags joined by ";") or as one "parquet" file; returns the number of rows.

    Texts in CSV hold no control characters, which a terminal would execute: each is written as "?".
    Raises DatasetError if the dataset cannot be read, or is of several boards and is to be one Parquet file, UnwrittenError if the file
    cannot be written.
    """
    content = read_kernel_dataset(dataset)
    table = content.table
    if kind == "parquet":
        boards = {(file.get("gpu") or {}).get("uuid") for file in content.files}
        if len(boards) > 1:
            raise DatasetError(f"{dataset}: is of {len(boards)} boards, and a file tells the sensor and rest power of one; name its part")
        write_parquet(table.replace_schema_metadata({METADATA_KEY: encode_metadata(content.metadata)}), output)
        return len(table)
    for index, field in enumerate(table.schema):
        column = table.column(index)
        if pa.types.is_list(field.type):
            column = pc.binary_join(column, ";")
        if pa.types.is_string(column.type):
            table = table.set_column(index, field.name, pc.replace_substring_regex(column, r"\pC", "?"))
    with open_whole(output) as stream:
        pcsv.write_csv(table, stream)
    return len(table)
