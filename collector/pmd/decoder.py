"""From a stream of bytes to packets, and from arrivals to samples in the meter's time.

Alignment is found, lost and found again, and no packet is invented.  The stream has no sync word.  Three consistent packets in a row lock
the decoder; from then on each has to be consistent with its predecessor.  If one is not, bytes were lost or added, perhaps in the last word
of the packet before or in the stamp of the first one after.  Both look valid, so neither is used, and the alignment is searched anew.

The result depends on the bytes alone, never on their division into pieces.  Samples are packets of a PMD-USB with the missed turns of their
stamps, or blocks of a PMD2.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collector.pmd.clock_tie import TurnWatch
from collector.pmd.protocol import (
    BLOCK,
    NS_PER_BYTE,
    PACKET_BYTES,
    PMD2,
    STAMP_TURN,
    STEP_TICKS,
    MeterModel,
    RawWords,
    block_values,
    plausible,
    raw_words,
    stamps,
)
from estimator.vocabulary.quantities import BoolArray, IntArray
from estimator.vocabulary.values import frozen

SHORTEST_TICKS, MEAN_TICKS, LONGEST_TICKS = STEP_TICKS
LOCK_BYTES: Final = 3 * PACKET_BYTES
LOOK: Final = 1024
"""Number of packets tested, or places searched, at once: the time for a damaged stream stays proportional to its length."""


@frozen
class Packets:
    """Packets in their original order.

    `ticks` is the device's time since the first packet of the stream, unwrapped, shape (n,); `raw` their values, (n, 8);
    `end_byte` the position in the stream just after each, (n,); `breaks` the indices of packets that do not follow
    their predecessor, (m,).
    """

    ticks: IntArray
    raw: RawWords
    end_byte: IntArray
    breaks: IntArray

    def __len__(self) -> int:
        return len(self.ticks)


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of the bytes of a stream so far; waiting ones count among `bytes` alone.

    `discarded_bytes` made no reliable packet: damage, and the packets on both sides of it; `trailing_bytes`
    are a packet that was cut off at the end.
    """

    bytes: int = 0
    packets: int = 0
    discarded_bytes: int = 0
    trailing_bytes: int = 0


class PacketDecoder:
    """Decodes a stream piece by piece; keeps less than four packets' bytes between pieces."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._tail = b""
        self._locked = False  # if true, the tail begins with a packet that is consistent with its predecessor
        self._skipped: int | None = 0  # bytes discarded since the last packet; None while packets follow each other
        self._stamp = self._ticks = 0  # of the last packet
        self._taken: list[tuple[IntArray, RawWords, IntArray]] = []
        self._fed = 0  # packets before the current piece
        self._breaks: list[int] = []

    def feed(self, data: bytes, *, final: bool = False) -> Packets:
        """The packets that are certain after `data`; `final`: the stream ends with it."""
        content, begin = self._tail + data, self.tally.bytes - len(self._tail)
        self.tally.bytes += len(data)
        nothing = np.zeros(0, dtype=np.int64)
        self._fed, self._breaks = self.tally.packets, []
        self._taken = [(nothing, np.zeros((0, 8), dtype=np.int16), nothing)]
        at, moved = 0, True
        while moved:
            before = at, self._locked
            at = self._follow(content, at) if self._locked else self._find(content, at)
            moved = (at, self._locked) != before
        if final and self._locked:
            self._accept(content, at, 1)
            at += PACKET_BYTES
            self.tally.trailing_bytes += len(content) - at
        elif final:
            self.tally.discarded_bytes += len(content) - at
        self._tail = b"" if final else content[at:]
        ticks, raw, end = (np.concatenate(column) for column in zip(*self._taken, strict=True))
        return Packets(ticks=ticks, raw=raw, end_byte=begin + end, breaks=np.array(self._breaks, dtype=np.int64))

    def _follow(self, content: bytes, at: int) -> int:
        """Accepts packets from a good one at `at` on, except the last consistent one: the next may still contradict it."""
        count = min((len(content) - at) // PACKET_BYTES - 1, LOOK)
        if count < 1:
            return at
        fits = self._fit_next(content, at, count, PACKET_BYTES)
        sound = count if fits.all() else int(fits.argmin())
        self._accept(content, at, sound)
        at += sound * PACKET_BYTES
        if sound == count:
            return at
        self._locked = False
        self._skip(1)
        return at + 1

    def _find(self, content: bytes, at: int) -> int:
        """Searches for alignment from `at` on."""
        places = min(len(content) - LOCK_BYTES - at + 1, LOOK)
        if places <= 0:
            return at
        fits = self._fit_next(content, at, places + PACKET_BYTES, 1)
        lock = fits[:places] & fits[PACKET_BYTES:]
        self._locked = bool(lock.any())
        skipped = places
        if self._locked:  # after a break the first packet's stamp may be damaged
            skipped = int(lock.argmax()) + (PACKET_BYTES if self.tally.packets else 0)
        self._skip(skipped)
        return at + skipped

    def _fit_next(self, content: bytes, first: int, count: int, stride: int) -> BoolArray:
        """Whether packets can begin at `first`, `first + stride`, … and right after each, a step later; shape (count,)."""
        ahead = PACKET_BYTES // stride
        stamp, sound = stamps(content, first, count + ahead, stride), plausible(content, first, count + ahead, stride)
        step = stamp[ahead:] - stamp[:-ahead]
        return (step >= SHORTEST_TICKS) & (step <= LONGEST_TICKS) & sound[:-ahead] & sound[ahead:]

    def _skip(self, count: int) -> None:
        """Counts bytes that belong to no packet; the next packet does not follow the last."""
        self._skipped = (self._skipped or 0) + count
        self.tally.discarded_bytes += count

    def _accept(self, content: bytes, at: int, count: int) -> None:
        """Accepts this many packets from `at` on; the first one's time after a break follows from the bytes in between."""
        if not count:
            return
        stamp = stamps(content, at, count, PACKET_BYTES)
        steps = np.diff(stamp, prepend=np.uint16(self._stamp)).astype(np.int64)
        if not self.tally.packets:
            steps[0] = 0
        elif self._skipped is not None:
            expected = (self._skipped / PACKET_BYTES + 1.0) * MEAN_TICKS
            turns = max(int(steps[0] < SHORTEST_TICKS), round((expected - float(steps[0])) / STAMP_TURN))
            steps[0] += turns * STAMP_TURN
            self._breaks.append(self.tally.packets - self._fed)
        self._skipped = None
        ticks = self._ticks + np.cumsum(steps)
        self._stamp, self._ticks = int(stamp[-1]), int(ticks[-1])
        self.tally.packets += count
        self._taken.append((ticks, raw_words(content, at, count), at + PACKET_BYTES * np.arange(1, count + 1)))


NOTHING: Final = np.zeros(0, dtype=np.int64)


@frozen
class Part:
    """Samples in device time.

    `ticks`, shape (n,), is the clock of a PMD-USB, for a PMD2 the host's time [ns]; `raw` holds their values, (n, 2 rails).  `seen_ticks`
    are packets with a known host time `seen_ns`, (k,).
    """

    ticks: IntArray
    raw: NDArray[np.integer]
    seen_ticks: IntArray
    seen_ns: IntArray


class UsbStream:
    """Packets of a PMD-USB."""

    def __init__(self) -> None:
        self._decoder = PacketDecoder()
        self._watch = TurnWatch()
        self._turned = 0
        self._broken = False
        self.tally = self._decoder.tally

    def add(self, data: bytes, arrival_bytes: IntArray, arrival_ns: IntArray, *, final: bool = False) -> Part:
        """The samples that are certain after `data`.

        `arrival_bytes` of the whole stream were received by `arrival_ns`, both ascending, shape (a,), only for the arrivals in `data`.
        """
        packets = self._decoder.feed(data, final=final)
        ticks = packets.ticks + self._turned
        last = np.searchsorted(packets.end_byte, arrival_bytes, side="right") - 1
        last, first = np.unique(last, return_index=True)  # of arrivals without a new packet only the first gives information
        last, first = last[last >= 0], first[last >= 0]
        behind = arrival_bytes[first] - packets.end_byte[last] + PACKET_BYTES
        began_ns = arrival_ns[first] - np.round(behind * NS_PER_BYTE).astype(np.int64)
        seen = passed = 0
        breaks = np.searchsorted(packets.breaks, last, side="right").tolist()
        for i, until, host_ns in zip(last.tolist(), breaks, began_ns.tolist(), strict=True):
            turns = self._watch.turns(int(ticks[i]), host_ns, after_break=self._broken or until > passed)
            if turns:
                ticks[packets.breaks[until - 1] if until > passed else seen :] += turns * STAMP_TURN
                self._turned += turns * STAMP_TURN
            self._broken, seen, passed = False, i + 1, until
        self._broken |= len(packets.breaks) > passed
        return Part(ticks=ticks, raw=packets.raw, seen_ticks=ticks[last], seen_ns=began_ns)


class BlockStream:
    """Blocks of a PMD2, an arrival each, in host time."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._content = b""

    def add(self, data: bytes, arrival_bytes: IntArray, arrival_ns: IntArray, *, final: bool = False) -> Part:
        """The blocks with a known time; `arrival_bytes` and `arrival_ns` as for a PMD-USB."""
        self._content += data
        self.tally.bytes += len(data)
        ticks = arrival_ns[: len(self._content) // BLOCK.itemsize]
        size = len(ticks) * BLOCK.itemsize
        whole, self._content = self._content[:size], self._content[size:]
        self.tally.packets += len(ticks)
        self.tally.trailing_bytes = len(self._content) if final else 0
        return Part(ticks=ticks, raw=block_values(whole), seen_ticks=NOTHING, seen_ns=NOTHING)


def open_stream(model: MeterModel) -> UsbStream | BlockStream:
    """The stream of a model."""
    return BlockStream() if model is PMD2 else UsbStream()
