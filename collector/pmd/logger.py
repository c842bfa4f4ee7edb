"""Recording a meter to disk until it is told to stop."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic_ns, time_ns
from typing import Final

from collector.devices.errors import DeviceError
from collector.pmd.clock_tie import NS_PER_S
from collector.pmd.meter import Meter
from collector.pmd.protocol import POWER_ON_BAUD, STREAM_BAUD, MeterIdentity
from collector.pmd.recording_files import RecordingHeader, open_recording_writer

SYNC_NS: Final = 1_000_000_000
"""A crash of the machine costs no more than the last second."""
READ_SLICE_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRecording:
    """A recording that has ended; `failure` is why the meter was lost, None where it was stopped."""

    path: Path
    identity: MeterIdentity
    bytes: int
    duration_s: float
    failure: DeviceError | None


def log_meter(
    meter: Meter, path: Path, stop: Event, *, duration_s: float, report: Callable[[float, int], None] | None = None
) -> LoggedRecording:
    """Write what the meter sends to a recording at `path` until `stop` is set or the time is over.

    A meter that is lost ends it; what came before is kept.  `report` is told the seconds and the bytes so far, once a
    second.  Raises DatasetError where the files cannot be written.
    """
    identity = meter.identity
    begin = synced = now = monotonic_ns()
    header = RecordingHeader(
        model=identity.model,
        firmware=identity.firmware,
        uid=identity.uid,
        baud=STREAM_BAUD if identity.model == "PMD-USB" else POWER_ON_BAUD,
        started_host_ns=begin,
        started_unix_s=time_ns() / NS_PER_S,
    )
    failure: DeviceError | None = None
    with open_recording_writer(path, header) as writer:
        while not stop.is_set() and now - begin < duration_s * NS_PER_S:
            try:
                received = meter.receive(READ_SLICE_S)
            except DeviceError as error:
                failure = error
                break
            now = monotonic_ns()
            if received is not None:
                writer.append(received)
            if now - synced >= SYNC_NS:
                synced = now
                writer.sync()
                if report is not None:
                    report((now - begin) / NS_PER_S, writer.bytes)
        written = writer.bytes
    return LoggedRecording(path=path, identity=identity, bytes=written, duration_s=(now - begin) / NS_PER_S, failure=failure)
