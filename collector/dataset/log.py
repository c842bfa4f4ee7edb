"""The log of a running campaign: every finished row is on disk before the next one starts.

Each row is one line after the CRC of its text, written in one call and synced.  Such a file needs no end mark: a torn or
damaged line is found by its CRC, and the log ends before it.

A row takes about 1.2 kB.  An Arrow batch of one row would take 6.5 kB and 2 ms of a core: Arrow has a cost per column.
"""

import json
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

from collector.dataset.schema import Metadata, Row, decode_metadata, kernel_schema
from collector.errors import DatasetError
from estimator.vocabulary.regular_files import open_regular
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
