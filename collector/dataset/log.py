"""The log of a running campaign: every finished row is on disk before the next one starts.

An Arrow IPC stream beside the output, a batch for each append with the CRC of its content, synced after
every batch.  A stream needs no end mark: whatever was cut off is found and left out when it is read again.
"""

import fcntl
import io
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from collector.dataset.schema import KERNEL_COLUMNS, METADATA_KEY, decode_metadata
from collector.errors import DatasetError

LOG_SUFFIX: Final = ".log.arrows"
"""Added to the name of the output."""

_CRC_KEY: Final = b"crc32"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """What a log holds: its whole rows, its metadata, and how many bytes at its end were torn and left out."""

    table: pa.Table
    metadata: dict[str, Any]
    torn_bytes: int


def log_path(output: Path) -> Path:
    """Where the log of an output lies."""
    return output.with_name(output.name + LOG_SUFFIX)


def batch_checksum(batch: pa.RecordBatch) -> bytes:
    """CRC-32 over the values of a batch, as text."""
    return str(zlib.crc32(json.dumps(batch.to_pydict(), sort_keys=True).encode())).encode()


def read_log(path: Path) -> RecoveredLog:
    """Every whole row of a log; a torn or damaged tail is left out.

    Raises DatasetError for a file that cannot be read, has no whole header or is no log of kernel rows.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error
    source = pa.BufferReader(content)
    try:
        reader = pa.ipc.open_stream(source)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{path}: its beginning is damaged and no row can be read; start again with --fresh") from error
    encoded = (reader.schema.metadata or {}).get(METADATA_KEY)
    if encoded is None or reader.schema.names != list(KERNEL_COLUMNS):
        raise DatasetError(f"{path}: no log of kernel rows of this version; start again with --fresh")
    batches, end = [], source.tell()
    while True:
        try:
            batch, custom = reader.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
            intact = custom is not None and custom.get(_CRC_KEY) == batch_checksum(batch)
        except StopIteration:
            break
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            intact = False
        if not intact:
            break
        batches.append(batch)
        end = source.tell()
    table = pa.Table.from_batches(batches, schema=reader.schema)
    return RecoveredLog(table=table, metadata=decode_metadata(encoded, str(path)), torn_bytes=len(content) - end)


class _WholeWrites(io.FileIO):
    """An unbuffered file whose writes are whole, or raise: a disk that fills up takes a part first."""

    def write(self, data: Any) -> int:
        """Write all bytes.  Raises OSError."""
        view = memoryview(data).cast("B")
        total = len(view)
        while view:
            written = super().write(view)
            view = view[written or 0 :]
        return total


def is_being_written(path: Path) -> bool:
    """Whether a running campaign holds a log open; False where there is none."""
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class LogStream:
    """A log open for writing; `append` returns when the row is on disk.  Used by `open_kernel_writer` alone."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = _WholeWrites(path, "wb")
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until the log is closed, or the process ends in any way
        self._writer = pa.ipc.new_stream(self._file, schema)
        self.append(pa.RecordBatch.from_pylist([], schema=schema))  # the schema and its metadata go out with the first batch

    def append(self, batch: pa.RecordBatch) -> None:
        """Write a batch and wait until it is on disk.  Raises OSError."""
        self._writer.write_batch(batch, custom_metadata={_CRC_KEY: batch_checksum(batch)})
        self.sync()

    def sync(self) -> None:
        """Wait until everything written is on disk.  Raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; its rows stay."""
        self._file.close()
