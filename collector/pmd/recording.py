"""Decoding a recording: once through for its clock and its holes, once more for its samples, a few megabytes at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from collector.devices.errors import DatasetError
from collector.pmd.clock_tie import NS_PER_S, ClockTie, fit_clock_tie, nominal_tie
from collector.pmd.decoder import LOCK_BYTES, LOCK_PACKETS, PacketDecoder, Packets, Tally
from collector.pmd.packets import NOMINAL_TICKS_PER_MS, rail_amperes, rail_volts, step_range
from collector.pmd.pmd2_block import BLOCK_BYTES, block_amperes, block_volts
from collector.pmd.recording_files import Recording
from collector.pmd.samples import MeterSamples
from collector.pmd.stream_scan import Holes, StreamScan, Turns
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.regular_files import open_regular

READ_BYTES: Final = 1 << 18
"""Bytes decoded at a time: the columns made of them stay in the processor's cache."""
MOST_HIDDEN: Final = 3
HIDDEN_SHARE: Final = 0.05
"""Holes that no packet shows: one in 120 of those that are longer than a turn of the stamp happens to be."""
LARGEST_RATE_ERROR: Final = 0.02
"""Twenty times what any meter's clock was off."""
LARGEST_RESIDUAL_S: Final = 0.01
"""Half a turn of the stamp; a busy host stays below a millisecond."""
LATE_POLLS: Final = 2.0
"""A PMD2 whose next answer takes this many more than its usual intervals has missed some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedRecording:
    """A recording of which is known what it holds and when.

    `tie` is None for a PMD2, which has no clock and is stamped by the host.  `first_ns` and `last_ns` are the host times
    of the first and the last sample; without stamps the first one is at 0.
    """

    recording: Recording
    tally: Tally
    holes: Holes
    tie: ClockTie | None
    turns: Turns
    first_ns: int
    last_ns: int


def scan_recording(recording: Recording, known: ClockTie | None = None) -> ScannedRecording:
    """Find the packets, the holes and the clock of a recording; `known` stands for a clock that need not be found.

    Raises DatasetError where it holds no sample.
    """
    if recording.model == "PMD2":
        return _scan_blocks(recording)
    steps = step_range(recording.baud)
    decoder = PacketDecoder(steps)
    scan = StreamScan(recording.arrival_bytes, recording.arrival_ns, recording.baud)
    for packets in _decoded(recording, decoder):
        scan.add(packets)
    tally = decoder.tally()
    if not tally.packets and tally.bytes < LOCK_BYTES:
        raise DatasetError(
            f"{recording.path}: {tally.bytes} bytes are too few: packets are known by {LOCK_PACKETS} of them in a row, {LOCK_BYTES} bytes; "
            "record for longer"
        )
    if not tally.packets:
        remedy = "" if recording.header else f" at {recording.baud} baud; --baud names another line rate"
        raise DatasetError(f"{recording.path}: none of its {tally.bytes} bytes make a packet of a PMD-USB{remedy}")
    turns, gaps = scan.missing_turns()
    tie = known or _tie_to_stamps(recording, scan, turns, tally) or nominal_tie()
    ends = tie.host_ns(np.array([0, scan.last_ticks + int(turns.ticks.sum())], dtype=np.int64))
    return ScannedRecording(
        recording=recording,
        tally=tally,
        holes=gaps.holes(turns, tie, steps.mean),
        tie=tie,
        turns=turns,
        first_ns=int(ends[0]),
        last_ns=int(ends[1]),
    )


def _tie_to_stamps(recording: Recording, scan: StreamScan, turns: Turns, tally: Tally) -> ClockTie | None:
    """The clock as the stamps show it; None without stamps.  Raises DatasetError where they cannot be this recording's."""
    foreign = "its stamps belong to another recording, remove them to decode without"
    if turns.hidden > MOST_HIDDEN + HIDDEN_SHARE * tally.breaks:
        raise DatasetError(
            f"{recording.path}: {turns.hidden} times the meter's clock jumps against the host's with no packet amiss; {foreign}"
        )
    seen_byte, seen_ticks, seen_ns = scan.seen()
    if len(seen_byte) < 2:
        return None
    tie = fit_clock_tie(seen_ticks + turns.at(seen_byte), seen_ns)
    if not abs(tie.ticks_per_ms / NOMINAL_TICKS_PER_MS - 1.0) < LARGEST_RATE_ERROR or tie.residual_s > LARGEST_RESIDUAL_S:
        rate = f"{tie.ticks_per_ms:.0f} ± {tie.ticks_per_ms_std:.0f} ticks per ms, {tie.residual_s * 1e3:.1f} ms off its line"
        raise DatasetError(f"{recording.path}: the meter's clock does not run with the host's ({rate}); {foreign}")
    return tie


def sample_blocks(scanned: ScannedRecording, zero_a: Array) -> Iterator[MeterSamples]:
    """All samples, a few thousand at a time; `zero_a` are the channels' zeros [A].  Raises DatasetError."""
    recording = scanned.recording
    if scanned.tie is None:
        yield from _block_samples(recording, zero_a)
        return
    last_ns = scanned.first_ns
    for packets in _decoded(recording, PacketDecoder(step_range(recording.baud))):
        host_ns = scanned.tie.host_ns(packets.ticks + scanned.turns.at(packets.end_byte))
        host_ns = np.maximum(np.maximum.accumulate(host_ns), last_ns)  # bytes that came twice would run backwards
        last_ns = int(host_ns[-1])
        yield MeterSamples(host_ns=host_ns, volts=rail_volts(packets.raw), amperes=rail_amperes(packets.raw, zero_a))


def _pieces(path: Path, size: int, length: int) -> Iterator[bytes]:
    """The first `size` bytes of a file.  Raises DatasetError."""
    try:
        with open_regular(path) as stream:
            while size > 0 and (piece := stream.read(min(length, size))):
                size -= len(piece)
                yield piece
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error


def _decoded(recording: Recording, decoder: PacketDecoder) -> Iterator[Packets]:
    """Packets of a recording, in parts of which none is empty."""
    for piece in _pieces(recording.path, recording.size, READ_BYTES):
        packets = decoder.feed(piece)
        if len(packets):
            yield packets
    packets = decoder.finish()
    if len(packets):
        yield packets


def _scan_blocks(recording: Recording) -> ScannedRecording:
    """Scan the blocks of a PMD2; each has the time of its arrival."""
    stamps = _block_stamps(recording)
    if not len(stamps):
        raise DatasetError(f"{recording.path}: holds no block of a PMD2 whose time is known")
    interval = np.diff(stamps)
    usual = float(np.median(interval)) if len(interval) else 0.0
    late = np.flatnonzero(interval > LATE_POLLS * usual)
    holes = Holes(
        end_ns=stamps[late + 1],
        length_s=interval[late] / NS_PER_S,
        lost=np.round(interval[late] / max(usual, 1.0)).astype(np.int64) - 1,
    )
    left = recording.size - len(stamps) * BLOCK_BYTES
    nothing = np.zeros(0, dtype=np.int64)
    return ScannedRecording(
        recording=recording,
        tally=Tally(bytes=recording.size, packets=len(stamps), discarded_bytes=0, trailing_bytes=left, resyncs=0, breaks=len(late)),
        holes=holes,
        tie=None,
        turns=Turns(from_byte=nothing, ticks=nothing, hidden=0),
        first_ns=int(stamps[0]),
        last_ns=int(stamps[-1]),
    )


def _block_stamps(recording: Recording) -> IntArray:
    """Host time of each whole block, shape (n,)."""
    whole = np.arange(1, recording.size // BLOCK_BYTES + 1) * BLOCK_BYTES
    arrived = np.searchsorted(recording.arrival_bytes, whole)
    return recording.arrival_ns[arrived[arrived < len(recording.arrival_ns)]]


def _block_samples(recording: Recording, zero_a: Array) -> Iterator[MeterSamples]:
    """Samples of a PMD2's recording."""
    stamps = _block_stamps(recording)
    length = READ_BYTES // BLOCK_BYTES * BLOCK_BYTES
    for number, piece in enumerate(_pieces(recording.path, len(stamps) * BLOCK_BYTES, length)):
        first = number * (length // BLOCK_BYTES)
        whole = piece[: len(piece) // BLOCK_BYTES * BLOCK_BYTES]
        here = stamps[first : first + len(whole) // BLOCK_BYTES]
        yield MeterSamples(host_ns=here, volts=block_volts(whole), amperes=block_amperes(whole, zero_a))
