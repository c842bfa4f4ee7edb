"""From a stream of bytes to packets: alignment is found, lost and found again, and no packet is invented.

The stream has no sync word.  Three consistent packets in a row lock the decoder; from then on each has to be consistent with
its predecessor.  If one is not, bytes were lost or added, perhaps in the last word of the packet before or
in the stamp of the first one after.  Both look valid, so neither is used, and the alignment is searched anew.

The result depends on the bytes alone, never on their division into pieces.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.pmd.protocol import PACKET_BYTES, STAMP_TURN, STEP_TICKS, RawWords, plausible, raw_words, stamps
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
