"""What a pass over a PMD-USB's packets collects: breaks, arrivals, missing turns of the stamp, and so the holes."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.pmd.clock_tie import NS_PER_S, ClockTie
from collector.pmd.decoder import Packets
from collector.pmd.packets import BITS_PER_BYTE_ON_LINE, PACKET_BYTES, STAMP_TURN
from collector.pmd.stamp_turns import TurnWatch
from estimator.vocabulary.quantities import Array, IntArray

_NONE: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holes:
    """Times without samples: the first sample after each, its distance from the one before it, samples missing; shape (n,)."""

    end_ns: IntArray
    length_s: Array
    lost: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Whole turns of the stamp that ticks do not show: packets that end at or behind `from_byte[i]` are `ticks[i]` later; (n,).

    `hidden` of them are where packets seem to follow on each other.
    """

    from_byte: IntArray
    ticks: IntArray
    hidden: int

    def at(self, end_byte: IntArray) -> IntArray:
        """Ticks to add to packets that end at these bytes."""
        if not len(self.ticks):
            return np.zeros(len(end_byte), dtype=np.int64)
        sums = np.concatenate([[0], np.cumsum(self.ticks)])
        added: IntArray = sums[np.searchsorted(self.from_byte, end_byte, side="right")]
        return added


class StreamScan:
    """Is told of all packets in turn; afterwards says what was missing.

    `arrival_bytes` bytes of the stream were there at `arrival_ns`, both ascending, shape (n,).
    """

    def __init__(self, arrival_bytes: IntArray, arrival_ns: IntArray, baud: int) -> None:
        self._arrival_bytes, self._arrival_ns = arrival_bytes, arrival_ns
        self._ns_per_byte = BITS_PER_BYTE_ON_LINE * NS_PER_S / baud
        self._arrived = 0
        self._last = (0, 0)  # end byte and ticks of the last packet
        self._breaks: list[tuple[IntArray, IntArray, IntArray]] = []
        self._seen: list[tuple[IntArray, IntArray, IntArray]] = []

    @property
    def last_ticks(self) -> int:
        """Ticks of the last packet."""
        return self._last[1]

    def add(self, packets: Packets) -> None:
        """Take the next packets."""
        end_byte = np.concatenate([[self._last[0]], packets.end_byte])
        ticks = np.concatenate([[self._last[1]], packets.ticks])
        at = packets.breaks
        if len(at):
            self._breaks.append((packets.end_byte[at], packets.ticks[at], ticks[at + 1] - ticks[at]))
        upto = int(np.searchsorted(self._arrival_bytes, packets.end_byte[-1], side="left"))
        stamp_bytes = self._arrival_bytes[self._arrived : upto]
        which = np.searchsorted(end_byte, stamp_bytes, side="right") - 1
        which, first = np.unique(which, return_index=True)  # of arrivals without a new packet the first alone tells something
        real = end_byte[which] > 0
        which, first = which[real], first[real]
        behind = stamp_bytes[first] - end_byte[which] + PACKET_BYTES
        began_ns = self._arrival_ns[self._arrived : upto][first] - np.round(behind * self._ns_per_byte).astype(np.int64)
        if len(which):
            self._seen.append((end_byte[which], ticks[which], began_ns))
        self._arrived = upto
        self._last = int(end_byte[-1]), int(ticks[-1])

    def seen(self) -> tuple[IntArray, IntArray, IntArray]:
        """Packets of which the host's time is known: end byte, ticks, and when they began to be sent [ns]; shape (n,)."""
        end_byte, ticks, host_ns = _joined(self._seen)
        new = np.diff(end_byte, prepend=-1) > 0
        return end_byte[new], ticks[new], host_ns[new]

    def missing_turns(self) -> tuple[Turns, "Gaps"]:
        """Turns that host time shows to be missing, and all gaps between packets, theirs included."""
        break_byte, break_ticks, gap = _joined(self._breaks)
        end_byte, ticks, host_ns = self.seen()
        after = np.searchsorted(break_byte, end_byte, side="right")
        watch = TurnWatch()
        turns: dict[int, int] = {}
        hidden: list[tuple[int, int]] = []
        arrivals = zip(np.diff(after, prepend=0).tolist(), ticks.tolist(), host_ns.tolist(), strict=True)
        for i, (breaks, tick, arrived_ns) in enumerate(arrivals):
            count = watch.turns(tick, arrived_ns, after_break=breaks > 0)
            if not count:
                continue
            if breaks:
                from_byte = int(break_byte[after[i] - 1])
            else:
                before = max(0, i - watch.late_in_a_row)
                from_byte = int(end_byte[before]) + 1
                hidden.append((from_byte, int(ticks[before])))
            turns[from_byte] = turns.get(from_byte, 0) + count
        from_byte_column = np.array(sorted(turns), dtype=np.int64)
        turn_ticks = np.array([STAMP_TURN * turns[byte] for byte in sorted(turns)], dtype=np.int64)
        more = np.array(hidden, dtype=np.int64).reshape(-1, 2)
        gaps = Gaps(
            from_byte=np.concatenate([break_byte, more[:, 0]]),
            ticks=np.concatenate([break_ticks, more[:, 1]]),
            length=np.concatenate([gap, np.zeros(len(more), dtype=np.int64)]),
        )
        return Turns(from_byte=from_byte_column, ticks=turn_ticks, hidden=len(hidden)), gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Places where one packet does not follow on another: first byte behind, ticks there, ticks in between; shape (n,)."""

    from_byte: IntArray
    ticks: IntArray
    length: IntArray

    def holes(self, turns: Turns, tie: ClockTie, mean_interval: float) -> Holes:
        """The gaps in which at least one sample is missing, in host time."""
        order = np.argsort(self.from_byte, kind="stable")
        from_byte, ticks, length = self.from_byte[order], self.ticks[order], self.length[order]
        own = turns.at(from_byte) - turns.at(from_byte - 1)
        length = np.maximum(length + own, 0)
        lost = np.maximum(np.round(length / mean_interval).astype(np.int64) - 1, 0)
        after = ticks + turns.at(from_byte)
        end_ns, start_ns = tie.host_ns(after), tie.host_ns(after - length)
        missing = lost > 0
        return Holes(end_ns=end_ns[missing], length_s=(end_ns - start_ns)[missing] / NS_PER_S, lost=lost[missing])


def _joined(parts: list[tuple[IntArray, IntArray, IntArray]]) -> tuple[IntArray, IntArray, IntArray]:
    """Parts of three columns as one."""
    if not parts:
        return _NONE, _NONE, _NONE
    first, second, third = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return first, second, third
