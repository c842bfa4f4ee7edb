"""From arrivals to samples in the meter's time: packets of a PMD-USB with the missed turns of their stamps, blocks of a PMD2."""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from collector.pmd.clock_tie import TurnWatch
from collector.pmd.decoder import PacketDecoder, Tally
from collector.pmd.protocol import BLOCK, PACKET_BYTES, PMD2, STAMP_TURN, MeterModel, block_values, line_ns_per_byte
from estimator.vocabulary.quantities import IntArray

NOTHING: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Samples in device time.

    `ticks`, shape (n,), is the clock of a PMD-USB, for a PMD2 the host's time [ns]; `raw` holds their values, (n, 2 rails).  `seen_ticks`
    are packets with a known host time `seen_ns`, (k,); `hole_end` those after a hole, `hole_ticks` its duration, (m,).
    """

    ticks: IntArray
    raw: NDArray[np.integer]
    seen_ticks: IntArray
    seen_ns: IntArray
    hole_end: IntArray
    hole_ticks: IntArray


class Stream(Protocol):
    """Turns bytes into samples.  `unannounced` counts jumps of the meter's clock against the host's without a missing packet."""

    tally: Tally
    unannounced: int

    def add(self, data: bytes, arrival_bytes: IntArray, arrival_ns: IntArray, *, final: bool = False) -> Part:
        """The samples that are certain after `data`.

        `arrival_bytes` of the whole stream were received by `arrival_ns`, both ascending, shape (a,), only for the arrivals in `data`.
        """


class UsbStream:
    """Packets of a PMD-USB; implements Stream."""

    def __init__(self, baud: int) -> None:
        self._decoder = PacketDecoder(baud)
        self._ns_per_byte = line_ns_per_byte(baud)
        self._watch = TurnWatch()
        self._turned = self._last = 0
        self._broken = False
        self.tally = self._decoder.tally
        self.unannounced = 0

    def add(self, data: bytes, arrival_bytes: IntArray, arrival_ns: IntArray, *, final: bool = False) -> Part:
        """The samples that are certain after `data`."""
        packets = self._decoder.feed(data, final=final)
        ticks = packets.ticks + self._turned
        last = np.searchsorted(packets.end_byte, arrival_bytes, side="right") - 1
        last, first = np.unique(last, return_index=True)  # of arrivals without a new packet only the first gives information
        last, first = last[last >= 0], first[last >= 0]
        behind = arrival_bytes[first] - packets.end_byte[last] + PACKET_BYTES
        began_ns = arrival_ns[first] - np.round(behind * self._ns_per_byte).astype(np.int64)
        seen = passed = 0
        breaks = np.searchsorted(packets.breaks, last, side="right").tolist()
        for i, until, host_ns in zip(last.tolist(), breaks, began_ns.tolist(), strict=True):
            turns = self._watch.turns(int(ticks[i]), host_ns, after_break=self._broken or until > passed)
            if turns:
                self.unannounced += not (self._broken or until > passed)
                ticks[packets.breaks[until - 1] if until > passed else seen :] += turns * STAMP_TURN
                self._turned += turns * STAMP_TURN
            self._broken, seen, passed = False, i + 1, until
        self._broken |= len(packets.breaks) > passed
        steps = np.diff(ticks, prepend=self._last)
        self._last = int(ticks[-1]) if len(ticks) else self._last
        hole = steps > self._decoder.longest
        return Part(ticks=ticks, raw=packets.raw, seen_ticks=ticks[last], seen_ns=began_ns, hole_end=ticks[hole], hole_ticks=steps[hole])

    def lost(self, hole_ticks: IntArray) -> IntArray:
        """Number of missing samples in holes, shape (m,)."""
        return np.maximum(np.round(hole_ticks / self._decoder.mean).astype(np.int64) - 1, 0)


class BlockStream:
    """Blocks of a PMD2, each stamped by the host with the arrival of its last byte; implements Stream."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.unannounced = 0
        self._content = b""
        self._bytes, self._ns = NOTHING, NOTHING

    def add(self, data: bytes, arrival_bytes: IntArray, arrival_ns: IntArray, *, final: bool = False) -> Part:
        """The blocks with a known time."""
        begin = self.tally.bytes - len(self._content)
        self._content += data
        self.tally.bytes += len(data)
        self._bytes, self._ns = np.concatenate([self._bytes, arrival_bytes]), np.concatenate([self._ns, arrival_ns])
        ends = begin + BLOCK.itemsize * np.arange(1, len(self._content) // BLOCK.itemsize + 1)
        which = np.searchsorted(self._bytes, ends)
        which = which[which < len(self._bytes)]
        size = len(which) * BLOCK.itemsize
        whole, self._content = self._content[:size], self._content[size:]
        ticks = self._ns[which]
        self._bytes, self._ns = (column[self._bytes > begin + size] for column in (self._bytes, self._ns))
        self.tally.packets += len(which)
        self.tally.trailing_bytes = len(self._content) if final else 0
        return Part(ticks=ticks, raw=block_values(whole), seen_ticks=NOTHING, seen_ns=NOTHING, hole_end=NOTHING, hole_ticks=NOTHING)


def open_stream(model: MeterModel, baud: int) -> Stream:
    """The stream of a model at a line rate."""
    return BlockStream() if model is PMD2 else UsbStream(baud)
