"""From arrivals to samples in the meter's time: packets of a PMD-USB with the missed turns of their stamps, blocks of a PMD2."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from collector.pmd.clock_tie import TurnWatch
from collector.pmd.decoder import PacketDecoder, Tally
from collector.pmd.protocol import (
    BLOCK,
    NS_PER_BYTE,
    PACKET_BYTES,
    PMD2,
    STAMP_TURN,
    MeterModel,
    block_values,
)
from estimator.vocabulary.quantities import IntArray
from estimator.vocabulary.values import frozen

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
