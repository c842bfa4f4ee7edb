"""Decoding a recording: one pass for its clock, a second one for its samples, a few megabytes at a time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from collector.errors import DatasetError
from collector.pmd.clock_tie import NOMINAL, ClockTie, fit_clock_tie
from collector.pmd.decoder import LOCK_BYTES, Tally
from collector.pmd.protocol import NOMINAL_TICKS_PER_MS, NS_PER_S, PMD_USB, MeterModel, MeterSamples
from collector.pmd.recording_files import Recording, read_recording
from collector.pmd.stream import NOTHING, BlockStream, Part, UsbStream, open_stream
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.regular_files import open_regular
from estimator.vocabulary.values import frozen


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
