"""The log of a running campaign: every finished row is on disk before the next one starts.

One line for each row, with the CRC of its text before it, written in one go and synced.  Such a file needs no end mark:
whatever was cut off, or never reached the disk, is found by its CRC and left out when the log is read again.  The CRC alone says
that a row is whole: one whose end of line is missing counts, whatever follows it.

A row takes about 1.2 kB and 0.08 ms of a core beside the sync.  As an Arrow batch of its own it would take 6.5 kB and 2 ms:
Arrow pays per column, and here a batch has one row.
"""

import errno
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa

from collector.dataset.schema import Row, check_row, decode_metadata, encode_metadata, kernel_schema
from collector.errors import DatasetError
from estimator.regular_files import open_regular
from estimator.whole_file import write_whole

LOG_SUFFIX: Final = ".log.jsonl"
"""Added to the name of the output."""
FORMAT: Final = "wattprint-kernel-log"
FORMAT_VERSION: Final = 1

CRC_CHARACTERS: Final = 8
MAX_LINE_BYTES: Final = 64 << 20
"""No row and no campaign's metadata come near it."""
ROWS_PER_BATCH: Final = 4096
MAX_ROW_BYTES: Final = 1 << 16
"""In a damaged line a row is looked for among so many bytes; one takes about 1.2 kB."""
ROW_START: Final = re.compile(rb"[0-9a-f]{8} \{")
"""How a row begins: its CRC and its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """What a log holds: its whole rows, its metadata, how long its whole part is and how many bytes after it were torn."""

    table: pa.Table
    metadata: dict[str, Any]
    whole_bytes: int
    torn_bytes: int


def log_path(output: Path) -> Path:
    """Where the log of an output lies."""
    return output.with_name(output.name + LOG_SUFFIX)


def read_log(path: Path) -> RecoveredLog:
    """Every whole row of a log; a torn or damaged tail is left out.

    Raises DatasetError for a file that cannot be read, has no whole header or is no log of kernel rows, and for one with whole rows behind
    a damaged line: no crash leaves that, and going on would lose them.
    """
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            lines = _whole_lines(stream)
            header, end = next(lines, (None, 0))
            metadata = _header_metadata(header, path)
            schema = kernel_schema(metadata)
            batches: list[pa.RecordBatch] = []
            rows: list[Row] = []
            for row, after in lines:
                rows.append(row)
                end = after
                if len(rows) == ROWS_PER_BATCH:
                    batches.append(_batch(rows, schema, path))
                    rows = []
            _check_rest(stream, path, end, 2 + len(batches) * ROWS_PER_BATCH + len(rows))
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error
    if rows:
        batches.append(_batch(rows, schema, path))
    return RecoveredLog(table=pa.Table.from_batches(batches, schema=schema), metadata=metadata, whole_bytes=end, torn_bytes=size - end)


def _check_rest(stream: IO[bytes], path: Path, end: int, number: int) -> None:
    """Raises DatasetError where whole rows stand behind the row `number`, which begins at `end` and is not whole."""
    stream.seek(end)
    damaged = stream.readline(MAX_LINE_BYTES)
    last = max(len(damaged) - MAX_ROW_BYTES, 1)
    behind = int(any(_is_whole(damaged[found.start() :]) for found in ROW_START.finditer(damaged, last)))
    behind += sum(_is_whole(line) for line in iter(partial(stream.readline, MAX_LINE_BYTES), b""))
    if behind:
        raise DatasetError(
            f"{path}: line {number} is damaged and {behind} whole rows follow it; keep a copy, delete what is damaged, and "
            "`collect --resume` measures its row again"
        )


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") and line[: CRC_CHARACTERS + 1] == _checksum(line[CRC_CHARACTERS + 1 : -1])


def _whole_lines(stream: IO[bytes]) -> Iterator[tuple[Any, int]]:
    """The document of each row up to the first that is not whole, and where the row ends."""
    end = 0
    while line := stream.readline(MAX_LINE_BYTES):
        while line:
            row = line if _is_whole(line) else _row_before_damage(line)
            try:
                document = json.loads(row[CRC_CHARACTERS + 1 :])
            except (ValueError, RecursionError):
                return
            end += len(row)
            yield document, end
            line = line[len(row) :]


def _row_before_damage(line: bytes) -> bytes:
    """The row that a line begins with and whose end of line never reached the disk, or was lost; b"" where there is none."""
    crc, done = 0, CRC_CHARACTERS + 1
    while done < MAX_ROW_BYTES and (brace := line.find(b"}", done, MAX_ROW_BYTES)) >= 0:
        crc, done = zlib.crc32(line[done : brace + 1], crc), brace + 1
        if line[: CRC_CHARACTERS + 1] == b"%08x " % crc:
            return line[:done]
    return b""


def _checksum(text: bytes) -> bytes:
    """CRC-32 of a line's text as it stands before it."""
    return b"%08x " % zlib.crc32(text)


def _line(document: Any) -> bytes:
    """A document as a line of a log.  Raises TypeError, ValueError for what JSON cannot hold."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False, ensure_ascii=False, default=_plain).encode()
    return _checksum(text) + text + b"\n"


def _plain(value: Any) -> Any:
    """A numpy scalar as Python's own.  Raises TypeError for anything else."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is no value of a row")


def _header_metadata(header: Any, path: Path) -> dict[str, Any]:
    """The file metadata that the first line holds.  Raises DatasetError."""
    if header is None:
        raise DatasetError(f"{path}: its beginning is damaged and no row can be read; start again with --fresh")
    if not isinstance(header, dict) or header.get("format") != FORMAT or not _this_version(header.get("version")):
        raise DatasetError(f"{path}: no log of kernel rows of this version; start again with --fresh")
    return decode_metadata(json.dumps(header.get("metadata")).encode(), str(path))


def _this_version(version: Any) -> bool:
    return type(version) is int and version == FORMAT_VERSION  # True is an int that equals 1


def _batch(rows: list[Row], schema: pa.Schema, path: Path) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_pylist(rows, schema=schema)
    except (pa.ArrowException, TypeError, AttributeError, OverflowError, UnicodeEncodeError) as error:
        raise DatasetError(f"{path}: holds a row that does not fit the kernel dataset; start again with --fresh") from error


class LogFile:
    """A log open for writing; `append` returns when the row is on disk.  Used by `open_kernel_writer` alone."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._end = os.fstat(file.fileno()).st_size

    def append(self, row: Row) -> None:
        """Write a row and wait until it is on disk; one that the disk does not take leaves no part behind.

        Raises OSError, and DatasetError for a row that does not fit.
        """
        check_row(row)
        try:
            line = _line(row)
        except (TypeError, ValueError) as error:
            raise DatasetError(f"row {row['row_id']}: does not fit the kernel dataset ({error})") from error
        self._write(line)

    def _write(self, line: bytes) -> None:
        try:
            self._to_end()
            view = memoryview(line)
            while view:  # a disk that fills up takes a part first
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._to_end()
            raise
        self._end += len(line)

    def _to_end(self) -> None:
        """Go behind the last row, and cut off what a write that failed has left there.  Raises OSError."""
        self._file.truncate(self._end)
        self._file.seek(self._end)

    def put_back(self, path: Path) -> None:
        """Write the log to a name that somebody has taken from it, and go on there.  Raises OSError."""
        content = os.pread(self._file.fileno(), self._end, 0)
        if len(content) != self._end:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write_whole(path, content)
        self.close()
        self._file = path.open("r+b", buffering=0)

    def close(self) -> None:
        """Close the file; its rows stay."""
        with suppress(OSError):  # a network's file system may fail again here; the write that failed was told of
            self._file.close()


def new_log(path: Path, metadata: dict[str, Any], kept: pa.Table | None) -> LogFile:
    """A log that begins with the rows to keep, synced; an old file of that name is replaced.  Raises OSError, DatasetError."""
    log = LogFile(path.open("w+b", buffering=0))
    lines = [_line({"format": FORMAT, "version": FORMAT_VERSION, "metadata": json.loads(encode_metadata(metadata))})]
    for batch in kept.to_batches(max_chunksize=ROWS_PER_BATCH) if kept is not None else ():
        lines.extend(_line(row) for row in batch.to_pylist())
    log._write(b"".join(lines))
    return log


def continued_log(path: Path, whole_bytes: int) -> LogFile:
    """The log of a campaign that goes on, its torn tail cut off and its last line ended.  Raises OSError."""
    file = path.open("r+b", buffering=0)
    file.seek(whole_bytes - 1)
    ended = file.read(1) == b"\n"
    file.truncate(whole_bytes)
    file.seek(whole_bytes)
    log = LogFile(file)
    log._write(b"" if ended else b"\n")
    return log
