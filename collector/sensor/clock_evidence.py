"""Whether the changes of a reading show the clock that was fitted to them, or would look the same without it.

A search over thousands of periods always finds one that seems to fit: a short period whose ticks fall into every bracket, most of
them without a change.  So a clock has to stand five tests.

Distances.  Without a clock, changes come at distances that have some smooth distribution.  It is taken from the distances
themselves (each one's own left out), smoothed by SMOOTH of their length, and the clock must make the brackets in which changes were
seen likelier than that, by more than a search gains by chance.

Silent polls.  Polls slower than the updates see a change nearly every time, and a repeat where two readings happen to be equal.  Such
distances are whole numbers of polls, and a clock of about one poll seems to fit them.  So the clock must also explain which polls were
silent better than silence at random does.

Silent ticks.  Where nearly every change leaves a value of its own, an update shows itself; a clock most of whose ticks showed
nothing, without ever two changes in a row, is a fraction of another one or none.

Holes.  Where polls come in stretches, a clock that ticks once more or less in each hole leaves about the same changes; only what it
does within the stretches tells it from this one.

Repeated values.  Where changes go to and fro between few values, updates between them would not show, so that a clock several times
as fast leaves the same changes; only changes at distances of different numbers of ticks tell against that.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensor.clock_likelihood import CHANGE_FLOOR, HOLE_POLLS, MISSED_SHARES, Changes, normal_share
from collector.sensor.clock_search import likelihood_near
from estimator.quantities import Array, IntArray

SMOOTH: Final = 0.125
"""Spread of one distance, as a share of it, that counts as no clock: with more than an eighth of a period an update's number is a guess."""
SPREADS: Final = (0.003, 0.01, 0.03, 0.06)
"""Spreads of the distance of two updates, in periods, that a clock may have: 1 ms of 20 was seen on a V100 (published recordings)."""
LEAST_LEAD: Final = {False: 12.0, True: 3.0}
"""Log-likelihood by which a clock leads.  5000 periods from 2 ms to 2 s differ over ten seconds, ln 5000 = 8.5, by four phases each; the
one whose ticks show a change more often than not (True) was not picked from so many."""
COMPARED: Final = 400
"""Distances that are compared, evenly from the whole record."""
START_PLACES: Final = (-0.4, -0.2, 0.0, 0.2, 0.4)
"""Where in its bracket the change before may have come, in widths."""
NEIGHBOURS: Final = (-2, -1, 0, 1, 2)
"""Ticks around a change that may be its own."""
ALONE_SHARE: Final = 0.5
"""Of the changes in a row that ticks without a change at random would leave, so many must be there."""
FEW_VALUES: Final = 0.5
"""Changes of which a larger share returns to the value of a few changes before have few values."""
MORE_TICKS: Final = (-2, -1, 1, 2)
"""Ticks that a hole between polls may hold more or fewer."""
ALIAS_LEAD: Final = 5.0
"""Log-likelihood by which the right number leads: 150 to 1."""
STRETCH_PERIODS: Final = 20
TELLING_POLL_S: Final = 5e-3
"""Polls so far apart tell every clock that was seen on a board, 15 ms the fastest."""
SLOW_POLLS: Final = 2.0
"""Polls slower than half the period: without a grid nothing says then which polls had to be silent."""
RETURNS: Final = range(2, 8)
LEAST_VARIED: Final = 0.125
"""Share of distances between changes of few values that must differ from the commonest one, in ticks."""
WHOLE_SHARE: Final = 0.95
MOST_MULTIPLE: Final = 12
"""A clock of which so many changes lie on every m-th tick is m times as slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """Times from a change to the next one, holes left out: middle of the first bracket to both ends of the second [s], shape (n,).

    `width_s` is that of the first bracket, `ticks` the number of ticks of the clock between the two.
    """

    from_s: Array
    until_s: Array
    width_s: Array
    ticks: IntArray

    @property
    def middle_s(self) -> Array:
        """Distances of the brackets' middles [s]."""
        return 0.5 * (self.from_s + self.until_s)


def distances_of(changes: Changes, number: IntArray, poll_s: float) -> Distances:
    """The distances of successive changes numbered `number` (n,), where polls came every `poll_s` without a hole."""
    whole = changes.width_s <= HOLE_POLLS * poll_s
    kept = whole[:-1] & whole[1:]
    kept[changes.holes.behind] = False
    index = np.flatnonzero(kept)
    start = changes.middle_s[index]
    return Distances(
        from_s=changes.after_s[index + 1] - start,
        until_s=changes.until_s[index + 1] - start,
        width_s=changes.width_s[index],
        ticks=np.diff(number)[index],
    )


def multiple_of(distances: Distances) -> int:
    """The largest m for which nearly all changes lie whole numbers of m ticks apart; 1 for a clock that uses its ticks."""
    if not len(distances.ticks):
        return 1
    return max(m for m in range(1, MOST_MULTIPLE + 1) if m == 1 or np.mean(distances.ticks % m == 0) >= WHOLE_SHARE)


def clock_doubt(changes: Changes, distances: Distances, period_s: float, grid_per_change: float | None) -> tuple[str, str]:
    """Why the changes do not show a clock of `period_s`, and the run that would tell; empty texts where they do.

    `grid_per_change` is the log-likelihood of a rigid grid per change, where one was found.
    """
    count = len(distances.ticks)
    if not count:
        return "no two changes lie in one stretch of polls", "poll without holes"
    poll_s = float(np.median(changes.width_s))
    faster_ms = 1e3 * max(min(poll_s / 4.0, period_s / 4.0, TELLING_POLL_S), 1e-3)
    faster = f"poll every {faster_ms:.2g} ms or faster for a minute, under a load that varies, to see whether there is one"
    few_values = returning(changes.value) > FEW_VALUES
    in_a_row = float(np.mean(distances.ticks == 1))
    if not few_values and in_a_row * float(np.mean(distances.ticks)) < ALONE_SHARE:
        silent = 1.0 - count / float(distances.ticks.sum())
        return (
            f"the likeliest clock, {period_s * 1e3:.4g} ms, would have shown nothing new at {silent:.0%} of its updates, "
            "though readings differ from each other",
            faster,
        )
    if few_values:
        varied = np.mean(distances.ticks != np.bincount(distances.ticks).argmax())
        if varied < LEAST_VARIED:
            return (
                f"readings go to and fro between few values at distances of {float(np.median(distances.middle_s)) * 1e3:.4g} ms: "
                "a sensor that updates several times as often would read the same",
                "run a load whose cycles differ from each other by 10 % and more",
            )
    per_distance = _without_clock(distances)
    with_clock = _with_clock(distances, period_s)
    if grid_per_change is not None:
        with_clock = max(with_clock, grid_per_change)
    gridless = grid_per_change is None and period_s < SLOW_POLLS * poll_s
    if gridless or (with_clock - _random_silence(distances, poll_s)) * count < LEAST_LEAD[False]:
        return (
            f"with polls {poll_s * 1e3:.4g} ms apart, readings repeat as they would by chance where every poll meets a new update",
            faster,
        )
    if (with_clock - per_distance) * count < LEAST_LEAD[in_a_row > 0.5]:
        spread = float(np.std(distances.middle_s)) * 1e3
        return f"their distances scatter by {spread:.3g} ms and fit a clock no better than chance", faster
    return "", ""


def hole_doubt(changes: Changes, number: IntArray, period_s: float, poll_s: float) -> tuple[str, str]:
    """The same for clocks with other numbers of ticks in the holes between polls; empty texts where those fit less well."""
    silent = np.zeros(len(changes) - 1, dtype=bool)
    silent[changes.holes.behind] = True
    steps = np.diff(number)
    hole = (silent | (changes.width_s[1:] > HOLE_POLLS * poll_s)) & (steps > max(MORE_TICKS))
    ticks = float(np.median(steps[hole])) if np.any(hole) else 0.0
    if ticks * (np.count_nonzero(hole) + 1) <= float(steps[~hole].sum()):
        return "", ""  # one tick more in each would be a whole tick more or less within the stretches between them
    own = likelihood_near(changes, np.array([period_s]))
    for more in MORE_TICKS:
        other_s = period_s * ticks / (ticks + more)
        if likelihood_near(changes, np.array([other_s])) > own - ALIAS_LEAD:
            digits = max(4, 2 + int(np.ceil(np.log10(ticks / abs(more)))))
            both = f"{period_s * 1e3:.{digits}g} and {other_s * 1e3:.{digits}g} ms"
            return (
                f"polls leave holes, and periods of {both} explain the changes about equally well",
                f"poll without holes, or {STRETCH_PERIODS} periods at a time",
            )
    return "", ""


def seen_apart(distances: Distances) -> str:
    """How far visible changes are apart, as text: what is left to say where they show no clock."""
    return f", {np.mean(distances.middle_s) * 1e3:.4g} ms apart on average," if len(distances.ticks) else ""


def returning(value: Array) -> float:
    """Share of changes that return to the value of a few changes before."""
    return max((float(np.mean(value[back:] == value[:-back])) for back in RETURNS if back < len(value)), default=0.0)


def _compared(distances: Distances) -> IntArray:
    count = len(distances.ticks)
    index: IntArray = np.unique(np.linspace(0, count - 1, min(count, COMPARED)).astype(np.int64))
    return index


def _with_clock(distances: Distances, period_s: float) -> float:
    """Log-likelihood per distance of updates that come `period_s` apart, some without a change, at the best spread."""
    index = _compared(distances)
    low, high, width = distances.from_s[index], distances.until_s[index], distances.width_s[index]
    ticks = np.maximum(np.rint(0.5 * (low + high) / period_s)[:, None] + np.array(NEIGHBOURS), 1.0)
    ticks[:, 1:][ticks[:, 1:] == ticks[:, :-1]] = np.inf
    best = -np.inf
    for spread in SPREADS:
        std = np.sqrt(width[:, None] ** 2 / 12.0 + (spread * period_s) ** 2)
        centre = np.where(np.isfinite(ticks), ticks, 0.0) * period_s
        inside = normal_share((high[:, None] - centre) / std) - normal_share((low[:, None] - centre) / std)
        for missed in MISSED_SHARES:
            share = np.where(np.isfinite(ticks), (1.0 - missed) * missed ** (np.where(np.isfinite(ticks), ticks, 1.0) - 1.0), 0.0)
            best = max(best, _mean_log(np.sum(share * inside, axis=1)))
    return best


def _without_clock(distances: Distances) -> float:
    """Log-likelihood per distance of updates whose distances have the smooth distribution that the others show."""
    index = _compared(distances)
    low, high, width = distances.from_s[index], distances.until_s[index], distances.width_s[index]
    others = np.log(np.maximum(0.5 * (low + high), 1e-9))
    inside = np.zeros((len(index), len(index)))
    for place in START_PLACES:
        ends = [np.log(np.maximum(end - place * width, 1e-9))[:, None] for end in (low, high)]
        inside += (normal_share((ends[1] - others) / SMOOTH) - normal_share((ends[0] - others) / SMOOTH)) / len(START_PLACES)
    np.fill_diagonal(inside, 0.0)
    return _mean_log(inside.sum(axis=1) / max(len(index) - 1, 1))


def _random_silence(distances: Distances, poll_s: float) -> float:
    """Log-likelihood per distance of polls every one of which may repeat the reading before, at random."""
    polls = np.maximum(np.rint(distances.middle_s / poll_s), 1.0)
    changed = min(1.0 / float(polls.mean()), 1.0 - CHANGE_FLOOR)
    return float(np.log(changed) + (polls.mean() - 1.0) * np.log1p(-changed))


def _mean_log(probability: Array) -> float:
    return float(np.mean(np.log(CHANGE_FLOOR + (1.0 - CHANGE_FLOOR) * probability)))
