"""A recording on disk: the meter's bytes as they came, and beside them when the host had them.

`P.pmd` holds the bytes alone, as other loggers write them too; `P.pmd.stamps.csv` holds one line of JSON behind a `#`
(which meter, when), the names `bytes,host_ns`, and a line for each arrival: bytes so far, monotonic host time.  A
recording of a PMD-USB without stamps can be decoded, on the nominal rate of its clock.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

import numpy as np

from collector.devices.errors import DatasetError
from collector.pmd.meter import Received
from collector.pmd.protocol import PROBED_BAUDS, STREAM_BAUD
from collector.pmd.samples import MODEL_RAILS
from estimator.vocabulary.quantities import IntArray
from estimator.vocabulary.regular_files import open_regular, read_regular

STAMPS_SUFFIX: Final = ".stamps.csv"
MOST_STAMP_BYTES: Final = 64 << 20
"""Two million arrivals: a day of a meter that is read every 50 ms."""
STAMP_COLUMNS: Final = "bytes,host_ns"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader:
    """What a recording says of itself: the meter, its line rate, and one instant on the host's two clocks."""

    model: str
    firmware: int
    uid: str
    baud: int
    started_host_ns: int
    started_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording that can be decoded.

    `arrival_bytes` are the bytes that were there at `arrival_ns`, both ascending, shape (n,); without stamps `header` is
    None and n is 0.
    """

    path: Path
    size: int
    model: str
    baud: int
    header: RecordingHeader | None
    arrival_bytes: IntArray
    arrival_ns: IntArray


def stamps_path(path: Path) -> Path:
    """Where the stamps of a recording lie."""
    return path.with_name(path.name + STAMPS_SUFFIX)


def read_recording(path: Path, baud: int | None = None) -> Recording:
    """A recording with its stamps; `baud` is the line rate of one that does not say it.  Raises DatasetError."""
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror}); name a recording of a PMD") from error
    if not size:
        raise DatasetError(f"{path}: empty; nothing was recorded")
    beside = stamps_path(path)
    if not beside.exists():
        nothing = np.zeros(0, dtype=np.int64)
        rate = baud or STREAM_BAUD
        return Recording(path=path, size=size, model="PMD-USB", baud=rate, header=None, arrival_bytes=nothing, arrival_ns=nothing)
    header, arrival_bytes, arrival_ns = _read_stamps(beside)
    there = int(np.searchsorted(arrival_bytes, size, side="right"))  # a crash may keep stamps of bytes that it loses
    return Recording(
        path=path,
        size=size,
        model=header.model,
        baud=baud or header.baud,
        header=header,
        arrival_bytes=arrival_bytes[:there],
        arrival_ns=arrival_ns[:there],
    )


def _read_stamps(path: Path) -> tuple[RecordingHeader, IntArray, IntArray]:
    """Header and arrivals; a last line that was cut off is left out.  Raises DatasetError."""
    try:
        first, names, rest = (*read_regular(path, MOST_STAMP_BYTES).split(b"\n", 2), b"", b"")[:3]
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror}); remove it to decode without stamps") from error
    header = _header_from_line(first, path)
    if names.strip() != STAMP_COLUMNS.encode():
        raise DatasetError(f"{path}: line 2 is not {STAMP_COLUMNS!r}; the stamps are damaged, remove them to decode without")
    whole = rest[: rest.rfind(b"\n") + 1]
    try:
        table = np.loadtxt(whole.decode().splitlines(), delimiter=",", dtype=np.int64, ndmin=2, comments=None) if whole.strip() else None
    except (ValueError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: a line after the second is not two whole numbers; remove the file to decode without stamps") from error
    if table is None:
        table = np.zeros((0, 2), dtype=np.int64)
    if table.shape[1] != 2 or np.any(table < 0) or np.any(np.diff(table, axis=0) < 0):
        raise DatasetError(f"{path}: its numbers are negative or run backwards; remove the file to decode without stamps")
    return header, table[:, 0].copy(), table[:, 1].copy()


def _header_from_line(line: bytes, path: Path) -> RecordingHeader:
    """The header in a line of stamps.  Raises DatasetError."""
    damaged = DatasetError(f"{path}: line 1 is no header of a PMD recording; remove the file to decode without stamps")
    try:
        document = json.loads(line.decode().removeprefix("#"))
    except (ValueError, RecursionError):
        raise damaged from None
    if not isinstance(document, dict) or not _is_header(document):
        raise damaged
    if document["format"] != FORMAT_VERSION:
        raise DatasetError(f"{path}: format {document['format']} of another release; this one reads {FORMAT_VERSION}")
    return RecordingHeader(
        model=document["model"],
        firmware=document["firmware"],
        uid=document["uid"],
        baud=document["baud"],
        started_host_ns=document["started_host_ns"],
        started_unix_s=float(document["started_unix_s"]),
    )


def _is_header(document: dict[str, Any]) -> bool:
    """Whether a document has every field of a header, each of its type."""
    whole = ("format", "firmware", "baud", "started_host_ns")
    if not all(type(document.get(name)) is int for name in whole) or type(document.get("started_unix_s")) not in (int, float):
        return False
    if not isinstance(document.get("uid"), str) or document["baud"] not in PROBED_BAUDS:
        return False
    return isinstance(document.get("model"), str) and document["model"] in MODEL_RAILS


class RecordingWriter:
    """A recording being written: `append` what arrives, `sync` now and then."""

    def __init__(self, raw: BinaryIO, stamps: TextIO) -> None:
        self._raw, self._stamps = raw, stamps
        self.bytes = 0

    def append(self, received: Received) -> None:
        """Write an arrival.  Raises OSError."""
        self._raw.write(received.data)
        self.bytes += len(received.data)
        self._stamps.write(f"{self.bytes},{received.host_ns}\n")

    def sync(self) -> None:
        """Wait until everything written is on disk, the bytes before their stamps.  Raises OSError."""
        for stream in (self._raw, self._stamps):
            stream.flush()
            os.fsync(stream.fileno())


@contextmanager
def open_recording_writer(path: Path, header: RecordingHeader) -> Iterator[RecordingWriter]:
    """Create a recording and its stamps; what was appended is on disk at the end, however it came.

    Where nothing was appended nothing is left.  Raises DatasetError where the files cannot be created or written.
    """
    beside, made = stamps_path(path), list[Path]()
    try:
        with path.open("wb") as raw:
            made.append(path)
            with beside.open("w", encoding="ascii") as stamps:
                made.append(beside)
                stamps.write(f"# {json.dumps({'format': FORMAT_VERSION, **asdict(header)}, sort_keys=True)}\n{STAMP_COLUMNS}\n")
                stamps.flush()  # a disk that has no room says so before anything is recorded
                writer = RecordingWriter(raw, stamps)
                try:
                    yield writer
                finally:
                    writer.sync()
    except OSError as error:
        raise DatasetError(f"{path}: cannot be written ({error.strerror or error}); make room or name another place") from error
    finally:
        _remove_empty(made)


def _remove_empty(made: list[Path]) -> None:
    """Remove a recording that holds no byte, and its stamps with it."""
    with suppress(OSError):
        if made and not made[0].stat().st_size:
            for path in made:
                path.unlink()
