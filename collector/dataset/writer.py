"""Writing kernel datasets: a log while the campaign runs, one Parquet file at its end.

No finished row is lost and no half file is left: rows go to the log, synced one by one; the Parquet file is
written beside its place, synced and renamed; only then is the log removed.  One process at a time writes a dataset.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.claim import Claim, claimed
from collector.dataset.leftovers import part_path, remove_leftovers
from collector.dataset.log import LogFile, continued_log, log_path, new_log, read_log
from collector.dataset.schema import METADATA_KEY, Row, encode_metadata, rows_to_table
from collector.dataset.traces import TraceRecord, TraceStream, check_beginning, running_traces_path, traces_of, traces_path
from collector.errors import DatasetError
from estimator.whole_file import open_whole, sync_folder

DAMAGED_SUFFIX: Final = ".damaged"
"""Added to the name of a trace file that cannot be gone on with."""


class KernelWriter:
    """An open kernel dataset: `append` rows, then `finish`.  Made by `open_kernel_writer`."""

    def __init__(self, output: Path, claim: Claim, log: LogFile, rows: int, traces: TraceStream | None) -> None:
        self._output = output
        self._claim = claim
        self._log = log
        self._rows = rows
        self._traces = traces
        self._read: tuple[int, pa.Table] | None = None

    @property
    def rows(self) -> int:
        """Rows on disk."""
        return self._rows

    def table(self) -> pa.Table:
        """All rows so far, in the order in which they came, read from disk."""
        if self._read is None or self._read[0] != self._rows:
            self._read = (self._rows, read_log(log_path(self._output)).table)
        return self._read[1]

    def append(self, row: Row, traces: tuple[TraceRecord, ...] = ()) -> None:
        """Put one row on disk, its traces before it; both are there, synced, when this returns.

        Raises DatasetError for a row that does not fit the schema, where the disk does not take it, and where another process writes.
        """
        self._claim.renew()
        self.append_traces(traces)
        self._keep_log()
        with self._told(log_path(self._output)):
            self._log.append(row)
        self._rows += 1

    def _keep_log(self) -> None:
        """Put a log back that somebody has removed: its rows are there as long as it is open.  Raises DatasetError where they are not."""
        path = log_path(self._output)
        try:
            if not os.path.lexists(path):
                self._log.put_back(path)
        except OSError as error:
            lost = f"was removed by somebody, its {self.rows} rows with it, and cannot be put back"
            raise DatasetError(f"{path}: {lost} ({_reason(error)}); begin again with --fresh") from error

    def append_traces(self, traces: tuple[TraceRecord, ...]) -> None:
        """Put traces on disk where they are kept.  Raises DatasetError where the disk does not take them."""
        if self._traces is not None and traces:
            with self._told(running_traces_path(self._output)):
                self._traces.append(traces)

    def finish(self, metadata: Mapping[str, Any], order: Sequence[str] = ()) -> None:
        """Write the Parquet file with all rows, put the traces beside it and remove the log.

        `metadata` replace those given at the start; `order` names row ids in the order in which they shall
        stand (rows not named keep theirs, at the end).  Raises DatasetError; the log then stays.
        """
        self._claim.renew()
        self._keep_log()
        table = self.table()
        if table.num_rows != self._rows:
            raise DatasetError(
                f"{log_path(self._output)}: {self._rows} rows were written, {table.num_rows} can be read; the disk is failing"
            )
        table = _ordered(table, order) if order else table
        try:
            write_parquet(table.replace_schema_metadata({METADATA_KEY: encode_metadata(metadata)}), self._output)
        except OSError as error:
            safe = f"all {self._rows} rows are safe in {log_path(self._output)}; the same command with --resume finishes it"
            raise DatasetError(f"{error}; {safe}") from error
        self.close()
        try:
            if self._traces is not None:
                os.replace(running_traces_path(self._output), traces_path(self._output))
            else:
                traces_path(self._output).unlink(missing_ok=True)  # those of the dataset that was there before
            log_path(self._output).unlink(missing_ok=True)
            sync_folder(self._output.parent)
        except OSError as error:
            raise DatasetError(f"{self._output}: is written, its log cannot be removed ({_reason(error)})") from error

    def discard(self) -> None:
        """Close a log that no row came to, and remove it and its traces: there is nothing to go on with.  Raises DatasetError."""
        self.close()
        try:
            log_path(self._output).unlink(missing_ok=True)
            running_traces_path(self._output).unlink(missing_ok=True)
        except OSError as error:
            raise DatasetError(f"{log_path(self._output)}: holds no row and cannot be removed ({_reason(error)})") from error

    def close(self) -> None:
        """Close the log; its rows stay for --resume."""
        self._log.close()
        if self._traces is not None:
            self._traces.close()

    @contextmanager
    def _told(self, path: Path) -> Iterator[None]:
        """Errors of the disk as DatasetError that says what is safe."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            safe = f"{self.rows} rows are safe; when the disk works and has room, go on with --resume"
            if isinstance(error, OSError) and error.errno == errno.ESTALE:  # NFS: the server knows the open file no more
                safe = f"its {self.rows} rows are safe only where the server still has that file: go on with --resume"
            raise DatasetError(f"{path}: cannot be written ({_reason(error)}); {safe}") from error


@contextmanager
def open_kernel_writer(
    output: Path,
    metadata: Mapping[str, Any],
    kept: pa.Table | None = None,
    *,
    traces: bool = False,
    first_traces: tuple[TraceRecord, ...] = (),
    warn: Callable[[str], None] = lambda _: None,
    claim: Claim | None = None,
) -> Iterator[KernelWriter]:
    """A dataset open for writing.  `kept` are rows of an earlier run that go on being part of it, with `traces` their traces too.

    A trace file of theirs that is damaged at its beginning is set aside; that, and how many of them have no traces, is told to `warn`.
    `first_traces` are on disk before the log is.
    A process that has the dataset's `claim` already gives it.  Whatever ends the block, the rows appended so far are on disk.  Raises
    DatasetError where the place of `output` cannot be written, or another process writes there.
    """
    with claimed_dataset(output) if claim is None else nullcontext(claim) as held:
        held.renew()
        try:
            stream = _opened_traces(output, metadata, kept, warn) if traces else None
            if stream is None:
                running_traces_path(output).unlink(missing_ok=True)
            elif first_traces:
                stream.append(first_traces)
            log, rows = _opened_log(output, dict(metadata), kept)
        except (OSError, pa.ArrowException) as error:
            raise DatasetError(f"{log_path(output)}: cannot be written ({_reason(error)}); name another place with --out") from error
        writer = KernelWriter(output, held, log, rows, stream)
        try:
            yield writer
        finally:
            writer.close()


@contextmanager
def claimed_dataset(output: Path, beside: tuple[str, ...] = ()) -> Iterator[Claim]:
    """The sole right to write a dataset within a block; what killed writers had not finished is gone then.

    `beside` are endings of further files that the dataset's writer keeps beside it.  Raises DatasetError.
    """
    with ExitStack() as stack:
        try:
            claim = stack.enter_context(claimed(output))
            remove_leftovers(output, beside)
        except OSError as error:
            raise DatasetError(f"{output}: cannot be written ({_reason(error)}); name another place with --out") from error
        yield claim


def _opened_log(output: Path, metadata: dict[str, Any], kept: pa.Table | None) -> tuple[LogFile, int]:
    """A log to append to, and the rows that it holds: the one that is there where rows are kept, else a new one in its place."""
    path = log_path(output)
    if kept is not None and path.is_file():
        recovered = read_log(path)
        return continued_log(path, recovered.whole_bytes), recovered.table.num_rows
    beside = part_path(path)
    log = new_log(beside, metadata, kept)
    os.replace(beside, path)
    sync_folder(path.parent)
    return log, kept.num_rows if kept is not None else 0


def _opened_traces(output: Path, metadata: Mapping[str, Any], kept: pa.Table | None, warn: Callable[[str], None]) -> TraceStream:
    """Traces to append to, those of the kept rows before them."""
    running = running_traces_path(output)
    if kept is None:
        return TraceStream(running, metadata, None)
    before, lost = traces_of(output, kept), ""
    if before is not None:
        try:
            check_beginning(before)
        except DatasetError as error:
            aside = _set_aside(before)
            before, lost = None, f"{error}, and is set aside as {aside.name}; "
    stream = TraceStream(running, metadata, before)
    untraced = sum(row_id not in stream.traced for row_id in kept.column("row_id").to_pylist())
    if lost or untraced:
        warn(f"{lost}{untraced} of {kept.num_rows} rows that are there have no traces, and `collect reprocess` will leave them out")
    return stream


def _set_aside(path: Path) -> Path:
    """Give a damaged file another name, one that no file has; returns it."""
    names = (path.with_name(f"{path.name}{DAMAGED_SUFFIX}{number or ''}") for number in count())
    aside = next(name for name in names if not name.exists())
    os.replace(path, aside)
    return aside


def write_kernel_dataset(rows: Sequence[Row], metadata: Mapping[str, Any], output: Path) -> None:
    """Write rows as a Parquet file, whole or not at all.  Raises DatasetError."""
    write_parquet(rows_to_table(rows, metadata), output)


def write_parquet(table: pa.Table, output: Path) -> None:
    """Write a table, whole or not at all.  Raises UnwrittenError, and DatasetError for a table that Parquet cannot hold."""
    try:
        with open_whole(output) as stream:
            pq.write_table(table, stream, compression="zstd", store_schema=True, write_page_checksum=True)
    except pa.ArrowException as error:
        raise DatasetError(f"{output}: cannot be written ({_reason(error)})") from error


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
