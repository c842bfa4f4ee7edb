"""A meter's recording on disk, and its decoding: one pass for its clock, a second one for its samples, a few megabytes at a time.

`P.pmd` contains the meter's bytes alone in their original order, as other loggers write them too; `P.pmd.stamps.csv` contains one
line of JSON after a `#` (meter and time), the names `bytes,host_ns`, and a line for each arrival: bytes so far, monotonic host time.
A recording of a PMD-USB without stamps can be decoded with the nominal rate of its clock.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from time import monotonic_ns, time_ns
from typing import Annotated, BinaryIO, Final, Literal, TextIO

import numpy as np

from collector.errors import DatasetError, DeviceError
from collector.pmd.clock_tie import NOMINAL, ClockTie, fit_clock_tie
from collector.pmd.decoder import LOCK_BYTES, NOTHING, BlockStream, Part, Tally, UsbStream, open_stream
from collector.pmd.meter import Meter, Received
from collector.pmd.protocol import (
    ANSWER_LIMIT_NS,
    MODELS,
    NOMINAL_TICKS_PER_MS,
    NS_PER_S,
    PMD_USB,
    POWER_ON_BAUD,
    STEP_TICKS,
    STREAM_BAUD,
    MeterModel,
    MeterSamples,
)
from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.reader import Span, read
from estimator.vocabulary.regular_files import open_regular, read_regular
from estimator.vocabulary.values import frozen

STAMPS_SUFFIX: Final = ".stamps.csv"
STAMP_COLUMNS: Final = "bytes,host_ns"


@frozen
class RecordingHeader:
    """Header of a recording: the meter, its line rate, and one instant on the host's two clocks."""

    model: Literal["PMD-USB", "PMD2"]
    firmware: int
    baud: Annotated[int, Span(POWER_ON_BAUD, STREAM_BAUD)]
    started_host_ns: int
    started_unix_s: float
    format: Annotated[int, Span(1, 1)] = 1


@frozen
class Recording:
    """A recording that can be decoded.

    `arrival_bytes` are the numbers of bytes received by `arrival_ns`, both ascending, shape (n,); without stamps `header` is
    None and n is 0.
    """

    path: Path
    size: int
    model: MeterModel
    header: RecordingHeader | None
    arrival_bytes: IntArray
    arrival_ns: IntArray

    @property
    def longest_step_s(self) -> float:
        """Longest time between samples without a hole [s]."""
        usb_s = STEP_TICKS[2] / NOMINAL_TICKS_PER_MS / 1e3
        return usb_s if self.model is PMD_USB else 0.99 * ANSWER_LIMIT_NS / NS_PER_S


def stamps_path(path: Path) -> Path:
    """Path of the stamps of a recording."""
    return path.with_name(path.name + STAMPS_SUFFIX)


def read_recording(path: Path) -> Recording:
    """A recording with its stamps.  Raises DatasetError."""
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror}); name a recording of a PMD") from error
    if not size:
        raise DatasetError(f"{path}: empty; nothing was recorded")
    beside = stamps_path(path)
    header, arrival_bytes, arrival_ns = _read_stamps(beside) if beside.exists() else (None, NOTHING, NOTHING)
    there = int(np.searchsorted(arrival_bytes, size, side="right"))  # after a crash stamps of lost bytes may remain
    return Recording(
        path=path,
        size=size,
        model=MODELS[header.model] if header else PMD_USB,
        header=header,
        arrival_bytes=arrival_bytes[:there],
        arrival_ns=arrival_ns[:there],
    )


def _read_stamps(path: Path) -> tuple[RecordingHeader, IntArray, IntArray]:
    """Header and arrivals; a cut last line is left out.  Raises DatasetError."""
    try:
        # Two million arrivals: a day of a meter that is read every 50 ms.
        first, names, rest = (*read_regular(path, 64 << 20).split(b"\n", 2), b"", b"")[:3]
        header = read(RecordingHeader, parse_json(first.removeprefix(b"#")))
        whole = rest[: rest.rfind(b"\n") + 1].decode().splitlines()
        table = np.loadtxt(whole, delimiter=",", dtype=np.int64, ndmin=2, comments=None) if whole else np.zeros((0, 2), dtype=np.int64)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror}); remove it to decode without stamps") from error
    except (ValueError, RecursionError):
        raise DatasetError(f"{path}: holds no stamps of a PMD recording; remove the file to decode without stamps") from None
    if names.strip() != STAMP_COLUMNS.encode() or table.shape[1] != 2 or np.any(table < 0) or np.any(np.diff(table, axis=0) < 0):
        raise DatasetError(f"{path}: is not {STAMP_COLUMNS!r} ascending from its second line on; remove the file to decode without stamps")
    return header, table[:, 0].copy(), table[:, 1].copy()


@dataclass(slots=True)
class RecordingWriter:
    """A recording being written, and its bytes so far: `append` arrivals, `sync` periodically."""

    raw: BinaryIO
    stamps: TextIO
    bytes: int = 0

    def append(self, received: Received) -> None:
        """Write an arrival.  Raises OSError."""
        self.raw.write(received.data)
        self.bytes += len(received.data)
        self.stamps.write(f"{self.bytes},{received.host_ns}\n")

    def sync(self) -> None:
        """Wait until everything written is on disk, the bytes before their stamps.  Raises OSError."""
        for stream in (self.raw, self.stamps):
            stream.flush()
            os.fsync(stream.fileno())


@contextmanager
def open_recording_writer(path: Path, header: RecordingHeader) -> Iterator[RecordingWriter]:
    """Create a recording and its stamps; the appended data are on disk at the end, also after an error.

    Without appended data no file is left.  Raises DatasetError if the files cannot be created or written.
    """
    beside = stamps_path(path)
    try:
        with path.open("wb") as raw, beside.open("w", encoding="ascii") as stamps:
            stamps.write(f"# {json.dumps(asdict(header), sort_keys=True)}\n{STAMP_COLUMNS}\n")
            stamps.flush()  # reports a full disk before anything is recorded
            writer = RecordingWriter(raw, stamps)
            try:
                yield writer
            finally:
                writer.sync()
    except OSError as error:
        raise DatasetError(f"{path}: cannot be written ({error.strerror or error}); make room or name another place") from error
    finally:
        with suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
                beside.unlink()


def log_meter(
    meter: Meter, path: Path, stop: Event, *, duration_s: float, report: Callable[[float, int], None] | None = None
) -> DeviceError | None:
    """Write the meter's data to a recording at `path` until `stop` is set or the time is over; no file is left without data.

    The loss of the meter ends it and is returned; earlier data are kept.  Once a second everything is on disk, and `report` receives
    the seconds and the bytes so far.  Raises DatasetError if the files cannot be written.
    """
    begin = synced = now = monotonic_ns()
    header = RecordingHeader(
        model=meter.model.name,
        firmware=meter.firmware,
        baud=STREAM_BAUD if meter.model is PMD_USB else POWER_ON_BAUD,
        started_host_ns=begin,
        started_unix_s=time_ns() / NS_PER_S,
    )
    failure: DeviceError | None = None
    with open_recording_writer(path, header) as writer:
        while not stop.is_set() and now - begin < duration_s * NS_PER_S and failure is None:
            try:
                received = meter.receive(0.1)
            except DeviceError as error:
                failure, received = error, None
            else:
                now = monotonic_ns()
            if received is not None:
                writer.append(received)
            if now - synced >= NS_PER_S:
                synced = now
                writer.sync()
                if report is not None:
                    report((now - begin) / NS_PER_S, writer.bytes)
    return failure


@frozen
class ScannedRecording:
    """A recording whose contents and times are known.

    `tie` is None for a PMD2, which has no clock and is stamped by the host.  `first_ns` and `last_ns` are the host times
    of the first and the last sample; without stamps the first one is at 0.
    """

    recording: Recording
    tally: Tally
    tie: ClockTie | None
    first_ns: int
    last_ns: int


def scan_recording(recording: Recording) -> ScannedRecording:
    """Find the samples and the clock of a recording.  Raises DatasetError if it contains no sample."""
    stream = open_stream(recording.model)
    columns, first, last = [(NOTHING,) * 2], 0, 0
    for part in _parts(recording, stream):
        first = first if len(columns) > 1 else int(part.ticks[0])
        last = int(part.ticks[-1])
        columns.append((part.seen_ticks, part.seen_ns))
    seen_ticks, seen_ns = (np.concatenate(column) for column in zip(*columns, strict=True))
    tally = stream.tally
    if not tally.packets:
        raise DatasetError(
            f"{recording.path}: no sample of a {recording.model.name} in its {tally.bytes} bytes; a PMD-USB "
            f"needs three packets in a row, {LOCK_BYTES} bytes, a PMD2 a block with its stamp; record for longer"
        )
    tie = None
    if recording.model is PMD_USB:
        tie = NOMINAL if len(seen_ticks) < 2 else fit_clock_tie(seen_ticks, seen_ns)
        # twenty times the error of any meter's clock; half a turn of the stamp
        if abs(tie.ticks_per_ms / NOMINAL_TICKS_PER_MS - 1.0) > 0.02 or tie.residual_s > 0.01:
            raise DatasetError(
                f"{recording.path}: the meter's clock does not run with the host's ({tie.ticks_per_ms:.0f} ticks per ms); "
                "its stamps belong to another recording, remove them"
            )
    first_ns, last_ns = _host_ns(tie, np.array([first, last], dtype=np.int64)).tolist()
    return ScannedRecording(recording=recording, tally=tally, tie=tie, first_ns=first_ns, last_ns=last_ns)


def _host_ns(tie: ClockTie | None, ticks: IntArray) -> IntArray:
    return ticks if tie is None else tie.host_ns(ticks)


def sample_blocks(scanned: ScannedRecording, zero_a: Array) -> Iterator[MeterSamples]:
    """All samples, a few thousand at a time; `zero_a` are the channels' zeros [A].  Raises DatasetError."""
    recording, tie, last_ns = scanned.recording, scanned.tie, scanned.first_ns
    for part in _parts(recording, open_stream(recording.model)):
        host_ns = np.maximum(np.maximum.accumulate(_host_ns(tie, part.ticks)), last_ns)  # bytes that came twice would run backwards
        last_ns = int(host_ns[-1])
        yield recording.model.samples(host_ns, part.raw, zero_a)


def _parts(recording: Recording, stream: UsbStream | BlockStream) -> Iterator[Part]:
    """Samples of a recording, in non-empty parts.  Raises DatasetError."""
    done = 0
    for piece in _pieces(recording.path, recording.size):
        since, until = np.searchsorted(recording.arrival_bytes, [done, done + len(piece)], side="right")
        done += len(piece)
        part = stream.add(piece, recording.arrival_bytes[since:until], recording.arrival_ns[since:until], final=not piece)
        if len(part.ticks):
            yield part


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file, and an empty piece at its end.  Raises DatasetError."""
    try:
        with open_regular(path) as stream:
            # The columns made of so many bytes stay in the processor's cache.
            while size > 0 and (piece := stream.read(min(1 << 18, size))):
                size -= len(piece)
                yield piece
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error
    yield b""


def zero_currents(model: MeterModel, unloaded: Path | None) -> Array:
    """Mean current of each channel without load [A], shape (rails,), from a recording without load; zeros without a recording.

    A current channel of a PMD-USB reads some 1.5 steps (0.07 A, nearly 1 W) without current, each channel another
    value.  The mean over a second is known to a few thousandths of a step.

    Raises DatasetError for a recording of another model, one that is too short, or one in which current flows.
    """
    nothing = np.zeros(len(model.rails))
    if unloaded is None:
        return nothing
    recording = read_recording(unloaded)
    if recording.model is not model:
        raise DatasetError(f"{unloaded}: a recording of a {recording.model.name} gives no zero for a {model.name}")
    scanned = scan_recording(recording)
    length_s = (scanned.last_ns - scanned.first_ns) / NS_PER_S
    if length_s < 1.0:
        raise DatasetError(f"{unloaded}: {length_s:.3f} s are too short for a zero; record at least 1 s with nothing plugged in")
    sums = sum((samples.amperes.sum(axis=0) for samples in sample_blocks(scanned, nothing)), nothing)
    mean_a: Array = sums / scanned.tally.packets
    loaded = int(np.argmax(np.abs(mean_a)))
    if abs(mean_a[loaded]) > 0.6:  # the maker states ±0.5 A
        flows = f"{model.rails[loaded]} carries {mean_a[loaded]:.2f} A, above 0.6 A"
        raise DatasetError(f"{unloaded}: {flows}; a zero needs a recording with nothing plugged in")
    return mean_a
