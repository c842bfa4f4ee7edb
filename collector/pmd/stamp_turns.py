"""Turns of the meter's 16-bit stamp that its ticks cannot show: a hole longer than 22 ms.

Across such a hole the ticks are short by a multiple of one turn, and from then on all bytes seem to arrive late by that
much.  Arrivals are late now and then for other reasons, but the earliest ones of any two seconds are not.
"""

from collections import deque
from typing import Final

from collector.pmd.clock_tie import NOMINAL_NS_PER_TICK, NS_PER_S
from collector.pmd.packets import STAMP_TURN

TURN_NS: Final = STAMP_TURN * NOMINAL_NS_PER_TICK
MEMORY_NS: Final = 2 * NS_PER_S
"""Time over which the earliest arrival is remembered; a rate that is off by 0.1 % shifts it by 2 ms."""
SURE_AFTER: Final = 16
"""Late arrivals in a row that mean a hole where no packet shows a break."""
RATE_AFTER_NS: Final = 5 * NS_PER_S
"""Time after which the rate seen so far is better than the nominal one."""


class TurnWatch:
    """Is told of every arrival; says how many turns are missing from there on."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None  # time and lag of the first arrival
        self._earliest: deque[tuple[float, float]] = deque()  # (time, lag) with lags ascending: the head is the window's minimum
        self._added_ns = 0.0
        self._late = 0

    @property
    def late_in_a_row(self) -> int:
        """Arrivals, the last one included, that led to the last answer; at least 1."""
        return max(1, self._late)

    def turns(self, ticks: int, host_ns: int, *, after_break: bool) -> int:
        """Turns to add to the ticks of this arrival and all later ones; 0 nearly always.

        `ticks` are those of the arrival's last packet without the turns that were answered before, `after_break` says
        whether a packet since the arrival before this one does not follow on its predecessor.  Negative where an earlier
        answer was wrong: no byte arrives before it was sent.
        """
        time = ticks * NOMINAL_NS_PER_TICK + self._added_ns
        lag = host_ns - time
        if self._first is None:
            self._first = time, lag
        late = self._lateness(time, lag)
        self._late = self._late + 1 if late > 0.5 * TURN_NS else 0
        if abs(late) > 0.5 * TURN_NS and (after_break or late < 0 or self._late >= SURE_AFTER):
            turns = round(late / TURN_NS)
            self._added_ns += turns * TURN_NS
            time, lag = time + turns * TURN_NS, lag - turns * TURN_NS
            if turns < 0:
                self._earliest.clear()
            self._remember(time, lag)
            return turns
        if late <= 0.5 * TURN_NS:
            self._remember(time, lag)
        return 0

    def _lateness(self, time: float, lag: float) -> float:
        """How much later than the earliest arrivals of late this one is [ns]."""
        while len(self._earliest) > 1 and self._earliest[0][0] < time - MEMORY_NS:
            self._earliest.popleft()
        if not self._earliest or self._first is None:
            return 0.0
        seen, least = self._earliest[0]
        span = seen - self._first[0]
        rate = (least - self._first[1]) / span if span > RATE_AFTER_NS else 0.0
        return lag - least - rate * (time - seen)

    def _remember(self, time: float, lag: float) -> None:
        while self._earliest and self._earliest[-1][1] >= lag:
            self._earliest.pop()
        self._earliest.append((time, lag))
