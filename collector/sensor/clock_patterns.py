"""Whether the ticks that show a change lie in a pattern which one clock does not make.

Updates that show nothing new do so at random, or because the load stood still.  Two clocks in one field are another matter: a common
fraction of their periods explains every change, and leaves ticks without one that are always the same, counted round some number of
ticks.  So does a period that changes midway: from one place on only every second tick shows a change, or every third, or changes lie
between ticks.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensor.clock_evidence import returning
from collector.sensor.clock_likelihood import HOLE_POLLS, Changes
from estimator.quantities import Array, BoolArray, IntArray

MOST_TURN: Final = 64
"""Ticks of the longest turn that is looked at: two clocks of a tenth of a second are 50 ticks of the fastest clock long."""
FULL: Final = 0.9
"""A place in the turn at which so many ticks show a change always does."""
LEAST_LEAD: Final = 14.5
"""Log-probability against such a place by chance: turns of up to 64 ticks have 2000 places, and one in a thousand is to be wrong."""
MOST_USED: Final = 0.72
"""Of the ticks two clocks use two thirds at most, on every second and every third one; 3 of 4 is a clock that skips one in turn."""
MOST_TICKS: Final = 1 << 16
"""Ticks that are looked at, from the first on."""
MOST_MULTIPLE: Final = 12
LEAST_RUN: Final = 12
"""A stretch of so many changes, each on every m-th tick, is no chance where elsewhere they are not."""
OFF_SHARE: Final = 0.1
"""A distance further than this share of the period from whole numbers of it, with all that polls leave open, is none."""
LEAST_OFF: Final = 8.0
"""Distances that are off, beyond half of a stretch's: 16 in a row, or 24 of 32.  Late updates are off one by one."""
MOST_OFF: Final = 0.3
"""Elsewhere so large a share is off at most, or the clock is none."""
FEW_VALUES: Final = 0.5
LEAST_TURN, MOST_SKIP_TURN = 3, 20
"""A clock that leaves out every second update is one of twice the period; one in more than twenty is a slip now and then."""

APART: Final = "log one field of one board by itself, for a minute, and without changing its settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skips:
    """A clock that leaves out one update in every `turn`: those whose number leaves `place`."""

    turn: int
    place: int

    def seen_share(self, width_periods: float) -> float:
        """Share of the time that averagings of so many update periods see."""
        covered = (self.turn - 2) * min(width_periods, 1.0) + min(width_periods, 2.0)
        return covered / self.turn

    def remark(self, period_s: float) -> str:
        """The pattern in words, and what looks the same."""
        others = self.turn - 1
        return (
            f"one update in every {self.turn} does not come, always the same: updates are {period_s * 1e3:.5g} ms apart, or twice that, "
            f"{period_s * 1e3 * self.turn / others:.5g} ms on average; {others} clocks in one field, each of "
            f"{self.turn * period_s * 1e3:.5g} ms and {period_s * 1e3:.4g} ms apart, would look the same"
        )


def pattern_doubt(changes: Changes, number: IntArray, period_s: float, poll_s: float) -> tuple[str, str]:
    """Why ticks `number` (n,) of changes are no single clock's, and the run that would tell; empty texts where they may be."""
    if returning(changes.value) > FEW_VALUES:
        return "", ""  # which ticks show a change is then the load's doing
    other = _other_period(changes, number, period_s, poll_s)
    if other is not None:
        first, last, other_ms = other
        begin, end = (float(changes.until_s[place] - changes.until_s[0]) for place in (first, last))
        return (
            f"the period differs between parts of the record: {other_ms} from {begin:.4g} to {end:.4g} s after the first change, "
            f"else {period_s * 1e3:.5g} ms",
            APART,
        )
    seen, used = _ticks(changes, number, poll_s)
    turns = _turns(seen, used)
    if turns and _left_out(seen, used) is None:
        periods = " and ".join(f"{turn * period_s * 1e3:.5g}" for turn in turns)
        one = f"several updates in every {periods} ms, or clocks of that period,"
        what = f"{len(turns)} clocks, of {periods} ms," if len(turns) > 1 else one
        return f"always the same of {int(number[-1]) + 1} ticks of {period_s * 1e3:.4g} ms show a change: {what} in one field", APART
    return "", ""


def _other_period(changes: Changes, number: IntArray, period_s: float, poll_s: float) -> tuple[int, int, str] | None:
    """First and last change of a stretch with another period, and that as text; None where there is none."""
    run = _run(np.diff(number), changes.value)
    if run is not None:
        first, last, multiple = run
        return first, last, f"{multiple * period_s * 1e3:.5g} ms"
    off = _off(changes, number, period_s, poll_s)
    if off is None:
        return None
    first, last = off
    return first, last, f"{float(np.median(np.diff(changes.middle_s[first : last + 1]))) * 1e3:.5g} ms (median)"


def _ticks(changes: Changes, number: IntArray, poll_s: float) -> tuple[BoolArray, BoolArray]:
    """Which ticks polls could see, and which of those show a change; shape (ticks,) each."""
    stop = int(np.searchsorted(number, MOST_TICKS))
    changes, number = changes.part(0, stop), number[:stop]
    wide = changes.width_s > HOLE_POLLS * poll_s
    silent = np.zeros(len(changes), dtype=bool)
    silent[changes.holes.behind + 1] = True
    count = int(number[-1]) + 2
    ends = np.zeros(count + 1, dtype=np.int64)
    for hole, last in ((silent[1:] & ~wide[1:], 0), (wide[1:], 1)):  # in a wide bracket the change itself may be any of its ticks
        np.add.at(ends, number[:-1][hole] + 1, 1)
        np.add.at(ends, number[1:][hole] + last, -1)
    seen = np.cumsum(ends)[: count - 1] == 0
    used = np.zeros(count - 1, dtype=bool)
    used[number] = True
    return seen, used & seen


def _turns(seen: BoolArray, used: BoolArray) -> list[int]:
    """Lengths of the turns [ticks] in which always the same places show a change, where these are nearly all that do; else empty."""
    share = float(used.sum() / max(seen.sum(), 1))
    if not 0.0 < share <= MOST_USED:
        return []
    explained = np.zeros(len(used), dtype=bool)
    turns: list[int] = []
    for turn in range(2, min(MOST_TURN, len(used) // 2) + 1):
        rows = len(used) // turn
        whole, shown = (ticks[: rows * turn].reshape(rows, turn).sum(axis=0) for ticks in (seen, used))
        part = shown / np.maximum(whole, 1)
        always = (part >= FULL) & (whole * _surprise(part, share) > LEAST_LEAD)
        new = [int(place) for place in np.flatnonzero(always) if not np.all(explained[place::turn])]
        for place in new:
            explained[place::turn] = True
        turns.extend([turn] * bool(new))
    held = float(np.mean(explained[used]))
    return turns if held >= FULL and float(explained[seen].mean()) <= MOST_USED else []


def regular_skips(changes: Changes, number: IntArray, poll_s: float) -> Skips | None:
    """Which updates a clock leaves out, where it leaves out one in turn; None where it does not, or changes cannot show it."""
    if returning(changes.value) > FEW_VALUES:
        return None
    return _left_out(*_ticks(changes, number, poll_s))


def _left_out(seen: BoolArray, used: BoolArray) -> Skips | None:
    """The one place of a turn at which no tick shows a change, where those at all its others do; None where there is none."""
    share = float(used.sum() / max(seen.sum(), 1))
    for turn in range(LEAST_TURN, min(MOST_SKIP_TURN, len(used) // 2) + 1):
        rows = len(used) // turn
        whole, shown = (ticks[: rows * turn].reshape(rows, turn).sum(axis=0) for ticks in (seen, used))
        part = shown / np.maximum(whole, 1)
        empty = part <= 1.0 - FULL
        if np.count_nonzero(empty) == 1 and np.all(part[~empty] >= FULL) and share < 1.0:
            place = int(np.argmax(empty))
            if -float(whole[place]) * np.log(1.0 - share) > LEAST_LEAD:
                return Skips(turn=turn, place=place)
    return None


def _surprise(part: Array, share: float) -> Array:
    """Log-probability per tick against a place where the share `part` of ticks shows a change, of `share` everywhere; shape of `part`."""
    inside = np.clip(part, 1e-9, 1.0 - 1e-9)
    result: Array = inside * np.log(inside / share) + (1.0 - inside) * np.log((1.0 - inside) / (1.0 - share))
    return result


def _run(steps: IntArray, value: Array) -> tuple[int, int, int] | None:
    """First and last change of a stretch in which all lie m ticks apart, or multiples of it, and m; None where there is none."""
    for multiple in range(MOST_MULTIPLE, 1, -1):
        other = np.flatnonzero(steps % multiple != 0)
        bounds = np.concatenate([[-1], other, [len(steps)]])
        longest = int(np.argmax(np.diff(bounds)))
        first, last = int(bounds[longest]) + 1, int(bounds[longest + 1])
        length, outside = last - first, len(steps) - (last - first)
        share = (outside - len(other) + 1.0) / (outside + 2.0)
        if length >= LEAST_RUN and -length * np.log(share) > LEAST_LEAD and returning(value[first : last + 1]) <= FEW_VALUES:
            return first, last, multiple
    return None


def _off(changes: Changes, number: IntArray, period_s: float, poll_s: float) -> tuple[int, int] | None:
    """First and last change of a stretch most of whose distances are no whole numbers of ticks; None where there is none."""
    width = changes.width_s
    away = np.abs(np.diff(changes.middle_s) - period_s * np.diff(number)) - 0.5 * (width[1:] + width[:-1])
    bad = (away > OFF_SHARE * period_s) & (width[1:] <= HOLE_POLLS * poll_s) & (width[:-1] <= HOLE_POLLS * poll_s)
    bad[changes.holes.behind] = False
    total = np.concatenate([[0.0], np.cumsum(bad - 0.5)])
    least = np.minimum.accumulate(total)
    last = int(np.argmax(total - least))
    first = int(np.argmin(total[: last + 1]))
    outside = np.concatenate([bad[:first], bad[last:]])
    if total[last] - least[last] < LEAST_OFF or len(outside) < LEAST_RUN or np.mean(outside) > MOST_OFF:
        return None
    return first, last
