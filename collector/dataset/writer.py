"""Writing kernel datasets: a log while the campaign runs, one Parquet file at its end.

No finished row is lost and no half file is left: rows go to the log, synced one by one; the Parquet file is
written beside its place, synced and renamed; only then is the log removed.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.log import LogStream, is_being_written, log_path
from collector.dataset.schema import METADATA_KEY, Row, check_row, encode_metadata, kernel_schema, rows_to_table
from collector.errors import DatasetError


class KernelWriter:
    """An open kernel dataset: `append` rows, then `finish`."""

    def __init__(self, output: Path, metadata: Mapping[str, Any], kept: pa.Table | None) -> None:
        self._output = output
        self._log = log_path(output)
        self._schema = kernel_schema(metadata)
        self._batches: list[pa.RecordBatch] = []
        self._stream = self._start(kept)

    @property
    def rows(self) -> int:
        """Rows on disk."""
        return sum(batch.num_rows for batch in self._batches)

    def table(self) -> pa.Table:
        """All rows so far, in the order in which they came."""
        return pa.Table.from_batches(self._batches, schema=self._schema)

    def append(self, row: Row) -> None:
        """Put one row on disk; it is there, synced, when this returns.

        Raises DatasetError for a row that does not fit the schema, or where the disk does not take it.
        """
        check_row(row)
        try:
            batch = pa.RecordBatch.from_pylist([dict(row)], schema=self._schema)
        except (pa.ArrowException, OverflowError) as error:
            raise DatasetError(f"row {row['row_id']}: does not fit the kernel dataset ({error})") from error
        try:
            self._stream.append(batch)
        except (OSError, pa.ArrowException) as error:
            safe = f"{self.rows} rows are safe, make room and use --resume"
            raise DatasetError(f"{self._log}: cannot be written ({_reason(error)}); {safe}") from error
        self._batches.append(batch)

    def finish(self, metadata: Mapping[str, Any], order: Sequence[str] = ()) -> None:
        """Write the Parquet file with all rows and remove the log.

        `metadata` replace those given at the start; `order` names row ids in the order in which they shall
        stand (rows not named keep theirs, at the end).  Raises DatasetError; the log then stays.
        """
        table = _ordered(self.table(), order) if order else self.table()
        write_parquet(table.replace_schema_metadata({METADATA_KEY: encode_metadata(metadata)}), self._output)
        self._stream.close()
        self._log.unlink(missing_ok=True)
        _sync_folder(self._output.parent)

    def close(self) -> None:
        """Close the log; its rows stay for --resume."""
        self._stream.close()

    def _start(self, kept: pa.Table | None) -> LogStream:
        """A new log that begins with the rows to keep, put in its place in one step."""
        if is_being_written(self._log):
            raise DatasetError(f"{self._output}: another campaign is writing there; wait for it or name another place with --out")
        beside = self._log.with_name(f".{self._log.name}.new")
        try:
            stream = LogStream(beside, self._schema)
            if kept is not None and kept.num_rows:
                for batch in kept.replace_schema_metadata(self._schema.metadata).combine_chunks().to_batches():
                    stream.append(batch)
                    self._batches.append(batch)
            os.replace(beside, self._log)
            _sync_folder(self._log.parent)
        except (OSError, pa.ArrowException) as error:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise DatasetError(f"{self._log}: cannot be written ({_reason(error)}); name another place with --out") from error
        return stream


@contextmanager
def open_kernel_writer(output: Path, metadata: Mapping[str, Any], kept: pa.Table | None = None) -> Iterator[KernelWriter]:
    """A dataset open for writing.  `kept` are rows of an earlier run that go on being part of it.

    Whatever ends the block, the rows appended so far are on disk.  Raises DatasetError where the place of
    `output` cannot be written.
    """
    writer = KernelWriter(output, metadata, kept)
    try:
        yield writer
    finally:
        writer.close()


def write_kernel_dataset(rows: Sequence[Row], metadata: Mapping[str, Any], output: Path) -> None:
    """Write rows as a Parquet file, whole or not at all.  Raises DatasetError."""
    write_parquet(rows_to_table(rows, metadata), output)


def write_parquet(table: pa.Table, output: Path) -> None:
    """Write a table beside its place, sync, rename, sync the folder.  Raises DatasetError; nothing is left then."""
    handle, beside = -1, Path()
    try:
        handle, name = tempfile.mkstemp(prefix=f".{output.name}.", suffix=".part", dir=output.parent)
        beside = Path(name)
        with os.fdopen(handle, "wb") as stream:
            pq.write_table(table, stream, compression="zstd", store_schema=True)
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
        os.replace(beside, output)
        _sync_folder(output.parent)
    except (OSError, pa.ArrowException) as error:
        if handle >= 0:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
        raise DatasetError(f"{output}: cannot be written ({_reason(error)}); name another place") from error


def check_writable(output: Path) -> None:
    """Raises DatasetError where `output` could not be written: known before anything is measured."""
    if output.is_dir():
        raise DatasetError(f"{output}: is a folder; --out names a file")
    if output.exists() and not output.is_file():  # a rename would put a file in the place of a device or a pipe
        raise DatasetError(f"{output}: is not a regular file; name another place with --out")
    folder = output.parent
    if not folder.is_dir():
        raise DatasetError(f"{output}: there is no folder {folder}; make it or name another place with --out")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{output.name}.", suffix=".probe", dir=folder)
        os.close(handle)
        os.unlink(name)
    except OSError as error:
        raise DatasetError(f"{output}: cannot be written ({_reason(error)}); name another place with --out") from error


def _ordered(table: pa.Table, order: Sequence[str]) -> pa.Table:
    """Rows in the order of their ids, those without a place at the end."""
    place = {row_id: index for index, row_id in enumerate(order)}
    ids = table.column("row_id").to_pylist()
    indices = sorted(range(len(ids)), key=lambda index: place.get(ids[index], len(place) + index))
    return table.take(pa.array(indices, pa.int64()))


def _reason(error: BaseException) -> str:
    """The system's reason in a few words."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.splitlines()[0] if text else type(error).__name__


def _sync_folder(folder: Path) -> None:
    """Make a rename durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
