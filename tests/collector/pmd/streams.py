"""Streams of packets with known content, and faults in them."""

import numpy as np

from collector.pmd.decoder import PacketDecoder, Packets
from collector.pmd.protocol import PACKET_BYTES, encode_packets


def intervals(count, seed):
    """Ticks between packets as in the published recordings: mostly 602, now and then stretched."""
    random = np.random.default_rng(seed)
    ticks = 602 + random.integers(-2, 3, count)
    ticks[random.random(count) < 0.09] = 739
    ticks[random.random(count) < 0.001] = 1008
    return ticks.astype(np.int64)


def values(count, seed):
    """Voltages about 12.1 V and currents from a little below zero to 20 A, shape (count, 8)."""
    random = np.random.default_rng(seed)
    raw = random.integers(-7, 400, (count, 8)).astype(np.int16)
    raw[:, 0::2] = random.integers(1580, 1625, (count, 4))
    return raw


def stream(count, seed=0):
    """So many packets: bytes, ticks from the first packet on, values."""
    ticks = np.cumsum(intervals(count, seed))
    raw = values(count, seed + 1)
    return encode_packets(ticks + 60_000, raw), ticks - ticks[0], raw


def decoded(pieces):
    """All that a decoder makes of pieces, as one."""
    decoder = PacketDecoder()
    parts = [*(decoder.feed(piece) for piece in pieces), decoder.feed(b"", final=True)]
    begins = np.cumsum([0, *(len(part) for part in parts)])
    whole = Packets(
        ticks=np.concatenate([part.ticks for part in parts]),
        raw=np.concatenate([part.raw for part in parts]),
        end_byte=np.concatenate([part.end_byte for part in parts]),
        breaks=np.concatenate([part.breaks + begin for part, begin in zip(parts, begins, strict=False)]),
    )
    return whole, decoder.tally


def accounted(tally):
    """Bytes of which the tally says what became of them."""
    return PACKET_BYTES * tally.packets + tally.discarded_bytes + tally.trailing_bytes
