"""From what arrives to samples in host time, while the meter runs."""

from collections import deque
from typing import Final, Protocol

import numpy as np

from collector.pmd.clock_tie import NS_PER_S, ClockTie, fit_clock_tie
from collector.pmd.decoder import PacketDecoder, Tally
from collector.pmd.meter import Received
from collector.pmd.packets import BITS_PER_BYTE_ON_LINE, PACKET_BYTES, STAMP_TURN, RawWords, rail_amperes, rail_volts, step_range
from collector.pmd.pmd2_block import BLOCK_BYTES, PMD2_RAILS, block_amperes, block_volts
from collector.pmd.protocol import STREAM_BAUD
from collector.pmd.samples import MeterSamples, no_samples
from collector.pmd.stamp_turns import TurnWatch
from estimator.vocabulary.quantities import Array, IntArray

TIE_WINDOW_NS: Final = 20 * NS_PER_S
"""The live tie is fitted to the arrivals of this long: one segment of the recorded one."""
REFIT_NS: Final = 0.5 * NS_PER_S
NS_PER_LINE_BYTE: Final = BITS_PER_BYTE_ON_LINE * NS_PER_S / STREAM_BAUD


class LiveDecoder(Protocol):
    """Turns arrivals into samples; one for each model."""

    def add(self, received: Received) -> None:
        """Take what arrived."""

    def take(self) -> MeterSamples:
        """Every sample since the last call."""

    def waiting(self) -> int:
        """Samples that `take` would hand over."""

    def tally(self) -> Tally:
        """What became of the bytes so far."""


class UsbLiveDecoder:
    """Packets of a PMD-USB, tied to host time by the arrivals of the last twenty seconds; implements LiveDecoder."""

    def __init__(self, zero_a: Array) -> None:
        self._zero_a = zero_a
        self._decoder = PacketDecoder(step_range(STREAM_BAUD))
        self._watch = TurnWatch()
        self._turn_ticks = 0
        self._bytes = 0
        self._arrivals: deque[tuple[int, int]] = deque()  # ticks and host time of the last packet of each arrival
        self._parts: list[tuple[IntArray, RawWords]] = []
        self._waiting = 0
        self._tie: ClockTie | None = None
        self._tied_ns = 0
        self._last_ns = 0

    def add(self, received: Received) -> None:
        """Take a piece of the stream."""
        self._bytes += len(received.data)
        packets = self._decoder.feed(received.data)
        if not len(packets):
            return
        behind = self._bytes - int(packets.end_byte[-1]) + PACKET_BYTES
        host_ns = received.host_ns - round(behind * NS_PER_LINE_BYTE)  # when that packet began to be sent
        last = int(packets.ticks[-1])
        self._turn_ticks += STAMP_TURN * self._watch.turns(last, host_ns, after_break=len(packets.breaks) > 0)
        self._arrivals.append((last + self._turn_ticks, host_ns))
        while self._arrivals[0][1] < host_ns - TIE_WINDOW_NS:
            self._arrivals.popleft()
        self._parts.append((packets.ticks + self._turn_ticks, packets.raw))
        self._waiting += len(packets)

    def take(self) -> MeterSamples:
        """Every sample since the last call; times never run backwards, also where the tie has just been renewed."""
        if not self._parts:
            return no_samples(len(self._zero_a))
        ticks = np.concatenate([part[0] for part in self._parts])
        raw = np.concatenate([part[1] for part in self._parts])
        self._parts, self._waiting = [], 0
        host_ns = np.maximum.accumulate(np.maximum(self._renewed_tie().host_ns(ticks), self._last_ns))
        self._last_ns = int(host_ns[-1])
        return MeterSamples(host_ns=host_ns, volts=rail_volts(raw), amperes=rail_amperes(raw, self._zero_a))

    def waiting(self) -> int:
        """Samples that `take` would hand over."""
        return self._waiting

    def tally(self) -> Tally:
        """What became of the bytes so far."""
        return self._decoder.tally()

    def _renewed_tie(self) -> ClockTie:
        """The tie, fitted again where it has become old."""
        now = self._arrivals[-1][1]
        if self._tie is None or now - self._tied_ns > REFIT_NS:
            arrivals = np.array(self._arrivals, dtype=np.int64)
            order = np.argsort(arrivals[:, 0], kind="stable")
            self._tie, self._tied_ns = fit_clock_tie(arrivals[order, 0], arrivals[order, 1]), now
        return self._tie


class Pmd2LiveDecoder:
    """Blocks of a PMD2, which carry the host's time already; implements LiveDecoder."""

    def __init__(self, zero_a: Array) -> None:
        self._zero_a = zero_a
        self._blocks: list[Received] = []
        self._count = 0

    def add(self, received: Received) -> None:
        """Take a block."""
        self._blocks.append(received)
        self._count += 1

    def take(self) -> MeterSamples:
        """Every sample since the last call."""
        blocks, self._blocks = self._blocks, []
        if not blocks:
            return no_samples(len(PMD2_RAILS))
        content = b"".join(block.data for block in blocks)
        stamps = np.array([block.host_ns for block in blocks], dtype=np.int64)
        return MeterSamples(host_ns=stamps, volts=block_volts(content), amperes=block_amperes(content, self._zero_a))

    def waiting(self) -> int:
        """Samples that `take` would hand over."""
        return len(self._blocks)

    def tally(self) -> Tally:
        """Whole blocks alone come this far."""
        size = self._count * BLOCK_BYTES
        return Tally(bytes=size, packets=self._count, discarded_bytes=0, trailing_bytes=0, resyncs=0, breaks=0)


def live_decoder(model: str, zero_a: Array) -> LiveDecoder:
    """The decoder of a model; `zero_a` are its channels' zeros [A]."""
    return UsbLiveDecoder(zero_a) if model == "PMD-USB" else Pmd2LiveDecoder(zero_a)
