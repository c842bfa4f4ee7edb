"""From a stream of bytes to packets: alignment is found, lost, found again, and nothing is invented.

The stream has no sync word.  Three packets in a row that fit each other lock the decoder; from then on each has to fit
the one before it.  Where one does not, something was lost or came in, perhaps in the last word of the packet before or
in the stamp of the first one after.  Both look sound, so neither is taken, and alignment is searched anew.

What comes out depends on the bytes alone, never on how they were cut into pieces.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.pmd.packets import PACKET_BYTES, STAMP_TURN, WORDS, RawWords, StepRange, plausible, raw_words, stamps
from estimator.vocabulary.quantities import BoolArray, IntArray

LOCK_PACKETS: Final = 3
LOCK_BYTES: Final = LOCK_PACKETS * PACKET_BYTES
FIRST_LOOK: Final = 128
LARGEST_LOOK: Final = 1 << 15
"""Packets tested, or places searched, at once: few after a break, then twice as many each time.

A damaged stream so costs no more than time in proportion to its length, and a sound one is decoded in long runs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """Packets in the order in which they came.

    `ticks` is the device's time since the first packet of the stream, unwrapped, shape (n,); `raw` their values, (n, 8);
    `end_byte` the position in the stream just behind each, (n,); `breaks` the indices of those that do not follow on
    the packet before them, (m,).
    """

    ticks: IntArray
    raw: RawWords
    end_byte: IntArray
    breaks: IntArray

    def __len__(self) -> int:
        return len(self.ticks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of the bytes of a stream.

    `discarded_bytes` made no packet that could be trusted: damage, and the packets on both sides of it; `trailing_bytes`
    are a packet that was cut off at the end.  `breaks` counts the places where packets do not follow on each other,
    `resyncs` those of them at which the alignment moved.
    """

    bytes: int
    packets: int
    discarded_bytes: int
    trailing_bytes: int
    resyncs: int
    breaks: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Packets side by side in the content at hand; `skipped` bytes before it were discarded, None where it follows on."""

    first: int
    count: int
    skipped: int | None


class PacketDecoder:
    """Decodes a stream that is fed piece by piece; keeps less than four packets' bytes between pieces."""

    def __init__(self, steps: StepRange) -> None:
        self._steps = steps
        self._tail = b""
        self._tail_at = 0  # position of the tail's first byte in the stream
        self._locked = False  # then the tail begins with a packet that fits the one before it
        self._begun = False  # whether any packet was taken
        self._look = FIRST_LOOK
        self._skipped: int | None = 0  # bytes discarded since the last packet; None while packets follow on each other
        self._packets = self._discarded = self._trailing = self._resyncs = self._breaks = 0
        self._last_stamp = self._last_ticks = 0
        self._runs: list[_Run] = []

    def feed(self, data: bytes) -> Packets:
        """The packets that are certain once `data` has come."""
        return self._decode(self._tail + data, final=False)

    def finish(self) -> Packets:
        """The packets that were waiting for what would come after them; the stream ends here."""
        return self._decode(self._tail, final=True)

    def tally(self) -> Tally:
        """What became of the bytes so far; those still waiting count among `bytes` alone."""
        return Tally(
            bytes=self._tail_at + len(self._tail),
            packets=self._packets,
            discarded_bytes=self._discarded,
            trailing_bytes=self._trailing,
            resyncs=self._resyncs,
            breaks=self._breaks,
        )

    def _decode(self, content: bytes, *, final: bool) -> Packets:
        """Go through the content as far as it can be judged; what is left becomes the tail."""
        self._runs = []
        at, moved = 0, True
        while moved:
            before = at, self._locked
            at = self._follow(content, at) if self._locked else self._find(content, at)
            moved = (at, self._locked) != before
        if final:
            at = self._close(content, at)
        packets = self._gathered(content)
        self._tail, self._tail_at = content[at:], self._tail_at + at
        return packets

    def _follow(self, content: bytes, at: int) -> int:
        """Accept packets from a good one at `at` on, all but the last that fits: the next may yet speak against it."""
        count = min((len(content) - at) // PACKET_BYTES, self._look)
        if count < 2:
            return at
        fits = self._fit_before(content, at, count)
        sound = count if fits.all() else 1 + int(fits.argmin())  # packets that fit each other
        self._accept(at, sound - 1)
        at += (sound - 1) * PACKET_BYTES
        if sound == count:
            self._look = min(2 * self._look, LARGEST_LOOK)
            return at
        self._locked, self._look = False, FIRST_LOOK
        self._skip(1)
        return at + 1

    def _find(self, content: bytes, at: int) -> int:
        """Search for alignment from `at` on."""
        places = min(len(content) - LOCK_BYTES - at + 1, self._look)
        if places <= 0:
            return at
        found = self._lock(content, at, places)
        self._locked = found is not None
        if found is None:
            self._look = min(2 * self._look, LARGEST_LOOK)
            end = at + places
        else:
            self._look = FIRST_LOOK
            end = found + PACKET_BYTES if self._begun else found
        self._skip(end - at)
        return end

    def _close(self, content: bytes, at: int) -> int:
        """At the end of the stream: a packet that waited is accepted; the bytes left are no packet."""
        if self._locked:
            self._accept(at, 1)
            at += PACKET_BYTES
            self._trailing += len(content) - at
        else:
            self._discarded += len(content) - at
        self._locked = False
        return len(content)

    def _fit_before(self, content: bytes, at: int, count: int) -> BoolArray:
        """Whether each packet but the first can be one and comes a step after the one before it, shape (count - 1,)."""
        stamp = stamps(content, at, count, PACKET_BYTES)
        step = stamp[1:] - stamp[:-1]
        in_time = (step >= self._steps.shortest) & (step <= self._steps.longest)
        fits: BoolArray = in_time & plausible(content, at + PACKET_BYTES, count - 1, PACKET_BYTES)
        return fits

    def _lock(self, content: bytes, first: int, places: int) -> int | None:
        """The first of so many places from `first` on at which LOCK_PACKETS packets begin; None where there is none."""
        ahead = LOCK_BYTES - PACKET_BYTES
        fits = plausible(content, first, places + ahead, 1)
        good = fits[:places] & fits[PACKET_BYTES : places + PACKET_BYTES] & fits[ahead : places + ahead]
        if not good.any():
            return None
        stamp = stamps(content, first, places + ahead, 1)
        step = stamp[PACKET_BYTES:] - stamp[:-PACKET_BYTES]
        in_time = (step >= self._steps.shortest) & (step <= self._steps.longest)
        good &= in_time[:places] & in_time[PACKET_BYTES : places + PACKET_BYTES]
        return first + int(good.argmax()) if good.any() else None

    def _skip(self, count: int) -> None:
        """Count bytes that belong to no packet; the next packet does not follow on the last."""
        self._skipped = (self._skipped or 0) + count
        self._discarded += count

    def _accept(self, at: int, count: int) -> None:
        """Take so many packets from `at` on."""
        if count > 0:
            self._begun = True
            self._runs.append(_Run(at, count, self._skipped))
            self._skipped = None

    def _gathered(self, content: bytes) -> Packets:
        """The accepted runs as columns; counts what they mean."""
        if not self._runs:
            empty = np.zeros(0, dtype=np.int64)
            return Packets(ticks=empty, raw=np.zeros((0, WORDS), dtype=np.int16), end_byte=empty, breaks=empty)
        stamp = np.concatenate([stamps(content, run.first, run.count, PACKET_BYTES) for run in self._runs])
        begins = np.cumsum([0, *(run.count for run in self._runs[:-1])])
        steps = np.diff(stamp, prepend=np.uint16(self._last_stamp)).astype(np.int64)
        breaks = []
        for run, begin in zip(self._runs, begins.tolist(), strict=True):
            if run.skipped is None:
                continue
            if self._packets + begin == 0:
                steps[0] = 0
                continue
            breaks.append(begin)
            self._resyncs += run.skipped % PACKET_BYTES > 0
            expected = (run.skipped / PACKET_BYTES + 1.0) * self._steps.mean
            turns = max(int(steps[begin] < self._steps.shortest), round((expected - float(steps[begin])) / STAMP_TURN))
            steps[begin] += turns * STAMP_TURN
        ticks = np.cumsum(steps)
        ticks += self._last_ticks
        ends = [self._tail_at + run.first + PACKET_BYTES * np.arange(1, run.count + 1) for run in self._runs]
        self._last_stamp, self._last_ticks = int(stamp[-1]), int(ticks[-1])
        self._packets += len(ticks)
        self._breaks += len(breaks)
        return Packets(
            ticks=ticks,
            raw=np.concatenate([raw_words(content, run.first, run.count) for run in self._runs]),
            end_byte=np.concatenate(ends),
            breaks=np.array(breaks, dtype=np.int64),
        )
