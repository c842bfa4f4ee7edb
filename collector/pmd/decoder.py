"""From a stream of bytes to packets, and from arrivals to samples in the meter's time.

No packet is invented.  The stream has no sync word: a packet is where the packets before and after are consistent with it.  At a break
bytes were lost or added, perhaps in the last word of the packet before or in the stamp of the first one after.  Both look valid, so neither
is used.

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
REACH: Final = 2 * PACKET_BYTES - 1
"""Number of bytes on either side of a place that decide whether a packet begins there."""
NOTHING: Final = np.zeros(0, dtype=np.int64)


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
        self._tail = bytes(2 * REACH)
        # Of the last packet: its place in the stream, stamp and ticks; the first place is before all places.
        self._place, self._stamp, self._ticks = -LOCK_BYTES, 0, 0

    def feed(self, data: bytes, *, final: bool = False) -> Packets:
        """The packets that are certain after `data`; `final`: the stream ends with it."""
        content, tally = self._tail + data, self.tally
        begin = tally.bytes - len(self._tail)
        tally.bytes += len(data)
        stamp = stamps(content)
        followed = _followed(content, stamp)
        followed[: max(-begin, 0)] = False  # places before the stream
        places = np.flatnonzero(followed[PACKET_BYTES:] & followed[:-PACKET_BYTES]) + PACKET_BYTES
        places = places[np.diff(places, prepend=-PACKET_BYTES) >= PACKET_BYTES]  # the later one of two that overlap is none
        places = places[places >= REACH]  # the others are known
        if len(places) and not tally.packets:
            places = np.insert(places, 0, places[0] - PACKET_BYTES)  # nothing before it can have been damaged
        last = int(places[-1]) if len(places) else self._place - begin
        if final and last + LOCK_BYTES > len(content):
            places = np.append(places, last + PACKET_BYTES)
            tally.trailing_bytes = len(content) - last - 2 * PACKET_BYTES
        ticks, breaks = self._timed(begin + places, stamp[places])
        tally.packets += len(places)
        known = tally.bytes if final else max(tally.bytes - REACH, self._place + PACKET_BYTES, 0)
        tally.discarded_bytes = known - PACKET_BYTES * tally.packets - tally.trailing_bytes
        self._tail = content[-2 * REACH :]
        return Packets(ticks=ticks, raw=raw_words(content, places), end_byte=begin + places + PACKET_BYTES, breaks=breaks)

    def _timed(self, places: IntArray, stamp: NDArray[np.uint16]) -> tuple[IntArray, IntArray]:
        """Ticks of new packets, and the indices of breaks; the time across a break follows from the bytes in between."""
        if not len(places):
            return NOTHING, NOTHING
        if not self.tally.packets:
            self._place, self._stamp = int(places[0]) - PACKET_BYTES, int(stamp[0])
        gap, steps = np.diff(places, prepend=self._place), np.diff(stamp, prepend=np.uint16(self._stamp)).astype(np.int64)
        turns = np.maximum(np.round((gap / PACKET_BYTES * MEAN_TICKS - steps) / STAMP_TURN), steps < SHORTEST_TICKS)
        broken = gap != PACKET_BYTES
        ticks = self._ticks + np.cumsum(steps + STAMP_TURN * np.where(broken, turns, 0).astype(np.int64))
        self._place, self._stamp, self._ticks = int(places[-1]), int(stamp[-1]), int(ticks[-1])
        return ticks, np.flatnonzero(broken)


def _followed(content: bytes, stamp: NDArray[np.uint16]) -> BoolArray:
    """Whether packets can begin at each byte and right after it, a step later; shape (bytes − 35,)."""
    sound, step = plausible(content), stamp[PACKET_BYTES:] - stamp[:-PACKET_BYTES]
    return (step >= SHORTEST_TICKS) & (step <= LONGEST_TICKS) & sound[:-PACKET_BYTES] & sound[PACKET_BYTES:]


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
