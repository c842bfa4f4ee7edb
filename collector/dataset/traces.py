"""Raw traces beside a dataset: every poll behind every row, so that a better correction can be applied later.

An Arrow IPC stream, compressed, a batch for each row with the CRC of its content, synced before the row itself is written: a
row that is on disk has its trace.  The stream needs no end mark; a torn tail is left out.
"""

import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa

from collector.dataset.log import log_path
from collector.dataset.schema import METADATA_KEY, decode_metadata, encode_metadata
from collector.devices.protocols import EnergyReading, PowerReadings, StateReadings
from collector.errors import DatasetError
from estimator.quantities import Array
from estimator.regular_files import open_regular

TRACES_SUFFIX: Final = ".traces.arrows"
"""Added to the name of the dataset; while a campaign runs, to that of its log."""
COMPRESSION: Final = "zstd"
RUN: Final = "run"
REST: Final = "rest"
IDLE: Final = "idle"

_CRC_KEY: Final = b"crc32"
_STAMPS: Final = pa.list_(pa.int64())
_NUMBERS: Final = pa.list_(pa.float64())

TRACE_COLUMNS: Final[dict[str, tuple[pa.DataType, str, str]]] = {
    "row_id": (pa.string(), "", "the row of the dataset; empty for power at rest of a whole clock"),
    "kind": (pa.string(), "", "run: the measured run; rest: the board at rest before it; idle: power at rest of a clock"),
    "started_unix_s": (pa.float64(), "s", "wall time at the start, as in the row"),
    "sm_clock_mhz": (pa.float64(), "MHz", "SM clock asked for; null where the clocks were left alone"),
    "start_ns": (pa.int64(), "ns", "start of the run, host time"),
    "end_ns": (pa.int64(), "ns", "end of the run, host time"),
    "launches": (pa.int64(), "1", "launches of the run"),
    "segment_s": (_NUMBERS, "s", "mean time of a launch in equal parts of the run"),
    "ranging_s": (pa.float64(), "s", "time of a launch in the ranging run"),
    "power_limit_w": (pa.float64(), "W", "enforced power limit"),
    "counter_before_ns": (pa.int64(), "ns", "host time of the energy counter before the run"),
    "counter_before_j": (pa.float64(), "J", "energy counter before the run"),
    "counter_after_ns": (pa.int64(), "ns", "host time of the energy counter after the run"),
    "counter_after_j": (pa.float64(), "J", "energy counter after the run"),
    "power_ns": (_STAMPS, "ns", "host time of every poll of the board's sensor, repeats included"),
    "power_w": (_NUMBERS, "W", "readings at power_ns, as the sensor gave them"),
    "reference_ns": (_STAMPS, "ns", "host time of every sample of an external meter; null without one"),
    "reference_w": (_NUMBERS, "W", "sum of the meter's rails at reference_ns"),
    "state_ns": (_STAMPS, "ns", "host time of every poll of the board's state"),
    "state_sm_clock_mhz": (_NUMBERS, "MHz", "SM clock at state_ns"),
    "state_temperature_c": (_NUMBERS, "degree Celsius", "GPU temperature at state_ns"),
    "state_voltage_v": (_NUMBERS, "V", "core voltage at state_ns; nan where it cannot be read"),
    "state_throttle": (_STAMPS, "bit mask", "clock event reasons at state_ns, as NVML numbers them"),
}
"""Columns of a trace file with unit and meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """What was polled between two moments, and for a run what was run; `reference` is None without an external meter.

    `kind` is RUN, REST or IDLE.  Of REST and IDLE only readings and states mean something.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """Where the whole records of a trace file end, what was torn after them, and the file's metadata."""

    metadata: dict[str, Any]
    whole_bytes: int
    torn_bytes: int


def traces_path(output: Path) -> Path:
    """Where the traces of a finished dataset lie."""
    return output.with_name(output.name + TRACES_SUFFIX)


def running_traces_path(output: Path) -> Path:
    """Where the traces of a running campaign lie."""
    log = log_path(output)
    return log.with_name(log.name + TRACES_SUFFIX)


def traces_of(output: Path, rows: pa.Table) -> Path | None:
    """The trace file of rows that lie in the log of an output or in its finished dataset; None where they have none.

    Beside a log a finished file may be that of the dataset before: it counts where it holds a run of these rows.
    """
    running, finished = running_traces_path(output), traces_path(output)
    if running.is_file():
        return running
    if not finished.is_file():
        return None
    if not log_path(output).is_file():
        return finished
    own = set(zip(rows.column("row_id").to_pylist(), rows.column("started_unix_s").to_pylist(), strict=True))
    try:
        found = any((record.row_id, record.started_unix_s) in own for record in read_traces(finished) if record.kind == RUN)
    except DatasetError:
        return finished
    return finished if found else None


def trace_schema(metadata: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema of a trace file."""
    fields = [pa.field(name, kind, metadata={"unit": unit, "meaning": meaning}) for name, (kind, unit, meaning) in TRACE_COLUMNS.items()]
    return pa.schema(fields, metadata={METADATA_KEY: encode_metadata({**metadata, "kind": "traces"})})


def read_traces(path: Path) -> Iterator[TraceRecord]:
    """The records of a trace file, one at a time, in the order in which they came; a torn tail is left out.

    Raises DatasetError for a file that cannot be read or is no trace file.
    """
    try:
        with open_regular(path) as stream:
            reader, metadata, _ = _opened(stream, path)
            field = str((metadata.get("sensor") or {}).get("field"))
            for batch in _whole_batches(reader):
                for row in batch.to_pylist():
                    yield _record(row, field)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror or error})") from error


def check_beginning(path: Path) -> None:
    """Raises DatasetError for a file that is empty, damaged at its beginning or no trace file; OSError where it cannot be read."""
    with open_regular(path) as stream:
        _opened(stream, path)


def scan_traces(path: Path) -> TraceFile:
    """How much of a trace file is whole.  Raises DatasetError."""
    try:
        with open_regular(path) as stream:
            reader, metadata, end = _opened(stream, path)
            for _ in _whole_batches(reader):
                end = stream.tell()
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror or error})") from error
    return TraceFile(metadata=metadata, whole_bytes=end, torn_bytes=size - end)


def _opened(stream: IO[bytes], path: Path) -> tuple[Any, dict[str, Any], int]:
    try:
        reader = pa.ipc.open_stream(stream)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{path}: its beginning is damaged or it is no trace file") from error
    encoded = (reader.schema.metadata or {}).get(METADATA_KEY)
    if encoded is None or reader.schema.names != list(TRACE_COLUMNS):
        raise DatasetError(f"{path}: no trace file of this version")
    return reader, decode_metadata(encoded, str(path)), stream.tell()


def _whole_batches(reader: Any) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch, custom = reader.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
        except (StopIteration, pa.ArrowException, OSError):
            return
        if custom is None or custom.get(_CRC_KEY) != _checksum(batch):
            return
        yield batch


def _checksum(batch: pa.RecordBatch) -> bytes:
    """CRC-32 over the values of a batch, as text."""
    crc = 0
    for column in batch.columns:
        if pa.types.is_list(column.type):
            crc = zlib.crc32(np.asarray(column.value_lengths().fill_null(-1)).tobytes(), crc)
            crc = zlib.crc32(np.asarray(column.flatten()).tobytes(), crc)
        else:
            crc = zlib.crc32(repr(column.to_pylist()).encode(), crc)
    return str(crc).encode()


class TraceStream:
    """A trace file open for writing; `append` returns when its records are on disk.  Used by `open_kernel_writer` alone.

    The whole batches of `kept` are its beginning; `traced` are the rows whose runs are among them.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Any], kept: Path | None) -> None:
        self._schema = trace_schema(metadata)
        beside = path.with_name(f".{path.name}.part")
        self._file = beside.open("wb")
        self._writer = pa.ipc.new_stream(self._file, self._schema, options=pa.ipc.IpcWriteOptions(compression=COMPRESSION))
        self._write(pa.RecordBatch.from_pylist([], schema=self._schema))  # the schema goes out with the first batch
        traced: set[str] = set()
        if kept is not None:
            with open_regular(kept) as stream:
                for batch in _whole_batches(_opened(stream, kept)[0]):
                    if batch.num_rows:  # the empty one that carried the schema is there already
                        self._write(batch)
                        ids, kinds = (batch.column(name).to_pylist() for name in ("row_id", "kind"))
                        traced.update(row_id for row_id, kind in zip(ids, kinds, strict=True) if kind == RUN)
        self.traced = frozenset(traced)
        self._sync()
        os.replace(beside, path)

    def append(self, records: tuple[TraceRecord, ...]) -> None:
        """Write records in one batch and wait until they are on disk.  Raises OSError, pa.ArrowException."""
        self._write(pa.RecordBatch.from_pylist([_row(record) for record in records], schema=self._schema))
        self._sync()

    def _write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch, custom_metadata={_CRC_KEY: _checksum(batch)})

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; what it holds stays."""
        with suppress(OSError):  # a write that failed was told of; closing tries it again
            self._file.close()


def _row(record: TraceRecord) -> dict[str, Any]:
    before, after, reference = record.counter_before, record.counter_after, record.reference
    return {
        "row_id": record.row_id,
        "kind": record.kind,
        "started_unix_s": record.started_unix_s,
        "sm_clock_mhz": record.sm_clock_mhz,
        "start_ns": record.start_ns,
        "end_ns": record.end_ns,
        "launches": record.launches,
        "segment_s": record.segment_s,
        "ranging_s": record.ranging_s,
        "power_limit_w": record.power_limit_w,
        "counter_before_ns": before.host_ns if before else None,
        "counter_before_j": before.energy_j if before else None,
        "counter_after_ns": after.host_ns if after else None,
        "counter_after_j": after.energy_j if after else None,
        "power_ns": record.power.host_ns,
        "power_w": record.power.power_w,
        "reference_ns": reference.host_ns if reference else None,
        "reference_w": reference.power_w if reference else None,
        "state_ns": record.states.host_ns,
        "state_sm_clock_mhz": record.states.sm_clock_mhz,
        "state_temperature_c": record.states.temperature_c,
        "state_voltage_v": record.states.voltage_v,
        "state_throttle": record.states.throttle_mask,
    }


def _record(row: Mapping[str, Any], field: str) -> TraceRecord:
    def numbers(name: str) -> Array:
        return np.array([np.nan if item is None else item for item in row[name] or ()], dtype=np.float64)

    def stamps(name: str) -> Any:
        return np.array(row[name] or (), dtype=np.int64)

    def counter(name: str) -> EnergyReading | None:
        stamp, energy = row[f"counter_{name}_ns"], row[f"counter_{name}_j"]
        return None if stamp is None or energy is None else EnergyReading(host_ns=stamp, energy_j=energy)

    reference = None
    if row["reference_ns"] is not None:
        reference = PowerReadings(field="reference", host_ns=stamps("reference_ns"), power_w=numbers("reference_w"))
    return TraceRecord(
        row_id=row["row_id"],
        kind=row["kind"],
        started_unix_s=row["started_unix_s"],
        sm_clock_mhz=row["sm_clock_mhz"],
        power_limit_w=np.nan if row["power_limit_w"] is None else row["power_limit_w"],
        power=PowerReadings(field=field, host_ns=stamps("power_ns"), power_w=numbers("power_w")),
        states=StateReadings(
            host_ns=stamps("state_ns"),
            sm_clock_mhz=numbers("state_sm_clock_mhz"),
            temperature_c=numbers("state_temperature_c"),
            voltage_v=numbers("state_voltage_v"),
            throttle_mask=stamps("state_throttle"),
        ),
        reference=reference,
        start_ns=row["start_ns"],
        end_ns=row["end_ns"],
        launches=row["launches"],
        segment_s=numbers("segment_s"),
        ranging_s=row["ranging_s"],
        counter_before=counter("before"),
        counter_after=counter("after"),
    )
