"""Clocks of records with holes in which the phase is lost: a host that slept, was set, or polled another board for a while.

Over an hour without polls the number of updates is open, and one update more or less in the hole makes another period that explains
all changes as well.  A sensor may also begin anew behind it.  The period is then what the stretches between the holes have in common,
each with a phase of its own.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensor.clock_fitting import FittedClock, shown_clock
from collector.sensor.clock_likelihood import HOLE_POLLS, Changes
from collector.sensor.clock_parts import LEAST_CHANGES, MOST_PARTS, PartPeriod, PartsMean, mean_of, times_text
from collector.sensor.clock_search import search_clock
from collector.sensor.clock_tracking import nearest_ticks
from collector.sensor.clock_wander import CYCLES_S, card_bounds_s, wanders_of
from estimator.quantities import Array, IntArray

MOST_HOLES: Final = 16
"""The longest holes at which a record is divided, and all in which a wander may turn round; the phase is followed over the others."""
LEAST_SHOWN: Final = 0.5
"""Share of the changes of the stretches that are looked at which must lie in those that show the period themselves."""
APART, APART_ERRORS = 2e-3, 5.0
"""Stretches whose periods differ by more than this share, and by so many of their errors, have no period in common: clocks of hosts
and boards keep within 5e-4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchedClock:
    """A clock whose phase begins anew in every stretch between holes: the fit of all changes, and the period they have in common.

    `shown` stretches show it themselves, `stretches` there are.  `jump` is the largest distance of the phase behind a hole from the
    one before it, in periods, between stretches that show the period.
    """

    fit: FittedClock
    together: PartsMean
    shown: int
    stretches: int
    jump: float

    def remark(self) -> str:
        """What is to be said of it."""
        return (
            f"polls leave {self.stretches - 1} hole(s) over which the phase is lost; the period is what {self.shown} of {self.stretches} "
            "stretches between them show"
        )


def clock_of_stretches(changes: Changes, poll_s: float) -> StretchedClock | None:
    """The clock that stretches between the longest holes have in common; None where there are no holes, or too little shows a clock.

    Raises SensorError for stretches whose periods differ.
    """
    edges = _edges(changes, poll_s)
    pieces = list(pairwise([0, *edges.tolist(), len(changes)]))
    if len(pieces) < 2:
        return None
    longest = sorted(range(len(pieces)), key=lambda place: pieces[place][0] - pieces[place][1])[:MOST_PARTS]
    inner = {place: part for place in longest if len(part := _inner(changes, pieces[place], poll_s)) >= LEAST_CHANGES}
    fits: dict[int, FittedClock] = {}
    for place, part in sorted(inner.items()):
        with suppress(SensorError):
            fits[place] = shown_clock(part, search_clock(part), poll_s)
    if not fits or sum(len(inner[place]) for place in fits) < LEAST_SHOWN * sum(map(len, inner.values())):
        return None
    periods = [_period(fit, inner[place]) for place, fit in fits.items()]
    _check_common(periods, len(changes))
    together = mean_of(periods)
    return _joined(changes, pieces, fits, together, poll_s)


def _edges(changes: Changes, poll_s: float) -> IntArray:
    """Places of the first changes behind the longest holes, ascending."""
    hole_s = np.where(changes.width_s > HOLE_POLLS * poll_s, changes.width_s, 0.0)
    np.maximum.at(hole_s, changes.holes.behind + 1, changes.holes.until_s - changes.holes.from_s)
    edge = hole_s > CYCLES_S[0]
    longest = np.argsort(-hole_s, kind="stable")[:MOST_HOLES]
    edge[longest[hole_s[longest] > 0.0]] = True
    edges: IntArray = np.flatnonzero(edge[1:]) + 1
    return edges


def _inner(changes: Changes, piece: tuple[int, int], poll_s: float) -> Changes:
    """The changes of a piece but for a first one that came at any time in the hole before it."""
    first, last = piece
    behind = first > 0 and float(changes.width_s[first]) > HOLE_POLLS * poll_s
    return changes.part(first + int(behind), last)


def _period(fit: FittedClock, part: Changes) -> PartPeriod:
    """A stretch's period and its error, with the wander that may be in it."""
    wanders = wanders_of(fit.bend, float(part.until_s[-1] - part.after_s[0]))
    drift = fit.drift if fit.grid is None else fit.grid.drift(wanders.bend)
    return PartPeriod(period_s=drift.period_s, std_s=card_bounds_s(wanders, int(fit.number[-1]), drift.period_std_s)[0])


def _check_common(periods: list[PartPeriod], count: int) -> None:
    """Raises SensorError for periods that differ."""
    low, high = (choice(periods, key=lambda period: period.period_s) for choice in (min, max))
    apart = high.period_s - low.period_s
    if apart > APART * low.period_s and apart > APART_ERRORS * float(np.hypot(low.std_s, high.std_s)):
        raise SensorError(
            f"{count} changes of the reading show no update clock that lasts: the period differs between parts of the record: "
            f"{times_text(periods)}; record again without changing driver settings or the board's state, or give one part only"
        )


def _joined(
    changes: Changes, pieces: list[tuple[int, int]], fits: dict[int, FittedClock], together: PartsMean, poll_s: float
) -> StretchedClock:
    """All changes on the common period, each stretch with its own phase; a hole holds the nearest whole number of updates."""
    period, jump = together.period_s, 0.0
    ticks: list[Array] = []
    numbers: list[IntArray] = []
    for place, piece in enumerate(pieces):
        inner, fit = _inner(changes, piece, poll_s), fits.get(place)
        tick, number = _placed(inner, period) if fit is None else (fit.tick_s, fit.number)
        if len(inner) < piece[1] - piece[0]:  # the last update in the hole left the value that was seen
            until = float(changes.until_s[piece[0]])
            back = max(1, int(np.ceil((float(tick[0]) - until) / period))) if len(tick) else 0
            begin = max(float(tick[0]) - back * period if len(tick) else until - 0.5 * period, float(changes.after_s[piece[0]]))
            tick, number = np.append(begin, tick), np.append(0, number - (number[0] if len(number) else 0) + back)
        number = number - number[0]
        if numbers:
            away = (float(tick[0]) - float(ticks[-1][-1])) / period
            step = max(1, round(away))
            if place in fits and place - 1 in fits:
                jump = max(jump, abs(away - step))
            number = number + numbers[-1][-1] + step
        ticks.append(tick)
        numbers.append(number)
    widest = fits[max(fits, key=lambda place: len(fits[place].number))]
    drift = replace(
        widest.drift,
        period_s=period,
        period_std_s=together.std_s,
        jitter_s=max(fit.drift.jitter_s for fit in fits.values()),
        step_s=max(fit.drift.step_s for fit in fits.values()),
    )
    fit = replace(
        widest, number=np.concatenate(numbers), tick_s=np.concatenate(ticks), drift=drift, grid=None, per_change=None,
        free=any(fit.free for fit in fits.values()),
    )  # fmt: skip
    return StretchedClock(fit=fit, together=together, shown=len(fits), stretches=len(pieces), jump=jump)


def _placed(inner: Changes, period_s: float) -> tuple[Array, IntArray]:
    """Ticks of a known period nearest to the changes of a short stretch, inside their brackets; shape (n,) each."""
    if not len(inner):
        return np.empty(0), np.empty(0, dtype=np.int64)
    turn = float(np.angle(np.exp(2j * np.pi * inner.middle_s / period_s).mean())) / (2.0 * np.pi)
    number = nearest_ticks(inner.middle_s, period_s, turn * period_s)
    tick: Array = np.clip((number + turn) * period_s, inner.after_s, inner.until_s)
    return tick, number
