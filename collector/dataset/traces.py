"""Raw traces beside a dataset: every poll behind every row, so that a better correction can be applied later.

An Arrow IPC stream, compressed, a batch for each row, synced before the row itself is written: every row on disk has its trace.
The stream needs no end mark; a torn tail is left out.
"""

import os
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa

from collector.dataset.log import log_path
from collector.dataset.schema import METADATA_KEY, TRACE_COLUMNS, Metadata, Row, arrow_schema, decode_metadata
from collector.devices.protocols import EnergyReading, PowerReadings, StateReadings
from collector.errors import DatasetError
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.regular_files import open_regular

TRACES_SUFFIX: Final = ".traces.arrows"
"""Added to the name of the dataset; while a campaign runs, to that of its log."""
RUN: Final = "run"
REST: Final = "rest"
IDLE: Final = "idle"

_PARTS: Final = {
    "power": PowerReadings,
    "reference": PowerReadings,
    "states": StateReadings,
    "counter_before": EnergyReading,
    "counter_after": EnergyReading,
}
"""Parts of a record whose fields are columns of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """Polls between two moments, and for a run its kernel; `reference` is None without an external meter.

    `kind` is RUN, REST or IDLE.  For REST and IDLE only readings and states have a meaning.  The columns are those of TRACE_COLUMNS.
    """

    row_id: str
    kind: str
    started_unix_s: float
    sm_clock_mhz: float | None
    power_limit_w: float
    power: PowerReadings
    states: StateReadings
    reference: PowerReadings | None = None
    start_ns: int = 0
    end_ns: int = 0
    launches: int = 0
    segment_s: Array | None = None
    ranging_s: float | None = None
    counter_before: EnergyReading | None = None
    counter_after: EnergyReading | None = None


def traces_path(output: Path) -> Path:
    """Path of the traces of a finished dataset."""
    return output.with_name(output.name + TRACES_SUFFIX)


def running_traces_path(output: Path) -> Path:
    """Path of the traces of a running campaign."""
    return traces_path(log_path(output))


def traces_of(output: Path) -> Path | None:
    """The trace file of the log of an output, else of its finished dataset; None without traces."""
    return next((path for path in (running_traces_path(output), traces_path(output)) if path.is_file()), None)


def read_traces(path: Path) -> Iterator[TraceRecord]:
    """The records of a trace file, one at a time, in their original order; a torn tail is left out.

    Raises DatasetError for a file that cannot be read or is no trace file.
    """
    try:
        with open_regular(path) as stream:
            reader, metadata = _opened(stream, path)
            field = str((metadata.get("sensor") or {}).get("field"))
            for batch in _whole_batches(reader):
                for row in batch.to_pylist():
                    yield _record(row, field)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror or error})") from error


def _opened(stream: IO[bytes], path: Path) -> tuple[Any, Metadata]:
    try:
        reader = pa.ipc.open_stream(stream)
    except (pa.ArrowException, OSError, MemoryError) as error:  # bytes of another file can state any length
        raise DatasetError(f"{path}: its beginning is damaged or it is no trace file; remove it to go on without") from error
    encoded = (reader.schema.metadata or {}).get(METADATA_KEY)
    if encoded is None or reader.schema.names != list(TRACE_COLUMNS):
        raise DatasetError(f"{path}: no trace file of this version")
    return reader, decode_metadata(encoded, str(path))


def _whole_batches(reader: Any) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = reader.read_next_batch()
            batch.validate(full=True)
        except (StopIteration, pa.ArrowException, OSError, MemoryError):
            return
        yield batch


class TraceStream:
    """A trace file open for writing; `append` returns when its records are on disk.  Used by `open_kernel_writer` alone.

    The complete batches of `kept` are its beginning; they are written `beside`, and renamed to `path`.
    """

    def __init__(self, path: Path, metadata: Metadata, kept: Path | None, beside: Path) -> None:
        self._schema = arrow_schema(TRACE_COLUMNS, {**metadata, "kind": "traces"})
        with nullcontext() if kept is None else open_regular(kept) as stream:
            before = _whole_batches(_opened(stream, kept)[0]) if stream and kept else iter(())
            self._file = beside.open("wb")
            self._writer = pa.ipc.new_stream(self._file, self._schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
            self._writer.write_batch(pa.RecordBatch.from_pylist([], schema=self._schema))  # the first batch writes the schema
            for batch in before:
                if batch.num_rows:  # the empty one with the schema is there already
                    self._writer.write_batch(batch)
        self._sync()
        os.replace(beside, path)

    def append(self, records: tuple[TraceRecord, ...]) -> None:
        """Write records in one batch and wait until they are on disk.  Raises OSError, pa.ArrowException."""
        rows = [{name: _value(record, column.of or name) for name, column in TRACE_COLUMNS.items()} for record in records]
        self._writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=self._schema))
        self._sync()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; its contents stay."""
        with suppress(OSError):  # the failed write was reported; closing tries it again
            self._file.close()


def _value(record: TraceRecord, field: str) -> Any:
    """A field of a record, or of a part of it ("power.host_ns"); None where the part is missing."""
    part, _, name = field.rpartition(".")
    owner = getattr(record, part) if part else record
    return None if owner is None else getattr(owner, name)


def _record(row: Row, field: str) -> TraceRecord:
    """A record from the values of a row; `field` is that of the board's sensor."""
    values: Row = {}
    parts: dict[str, Row] = {"power": {"field": field}, "reference": {"field": "reference"}}
    for name, column in TRACE_COLUMNS.items():
        value = row[name]
        if column.kind in ("numbers", "counts") and value is not None:
            value = np.array(value, dtype=np.float64 if column.kind == "numbers" else np.int64)
        part, _, own = (column.of or name).rpartition(".")
        (parts.setdefault(part, {}) if part else values)[own] = value
    built = {name: _PARTS[name](**part) for name, part in parts.items() if all(value is not None for value in part.values())}
    return TraceRecord(**values, **built)
