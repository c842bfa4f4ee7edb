"""Whether changes of a rounded reading show updates, or only when a slow power crossed from one rounded value to the next.

A reading rounded to 1 W under a power that creeps up changes once per watt, at distances as smooth as the power itself; that is no
clock, however evenly they come.  Behind it may be one: then every crossing waits for the next update, and the change lies on a grid
finer than a smooth power could tell.  Both are held against each other, given where the changes before and after let each be expected.
"""

from typing import Final

import numpy as np

from collector.sensor.clock_likelihood import CHANGE_FLOOR, Changes, normal_share
from estimator.quantities import Array, IntArray

SAME_STEP: Final = 1e-4
"""Steps that differ by a smaller share are the same."""
CROSSING_SHARE: Final = 0.5
"""Of the changes so many lie in rows of one smallest step each, in one direction, where a reading is rounded and its power slow."""
CROSSING_LEAD: Final = 12.0
"""Log-likelihood by which a grid leads: as for a clock that was picked from thousands of periods."""
LEAST_SLIPS: Final = 6
"""Crossings that must come after another number of ticks than most.  A power that takes the same number each time would cross at the
same ticks of a clock several times as fast; where it takes another one, that clock would leave the grid every second time or oftener."""
MAD_TO_STD: Final = 1.4826
LEAST_ROW: Final = 3


def crossing_doubt(changes: Changes, tick_s: Array, period_s: float, jitter_s: float, *, grid: bool) -> tuple[str, str]:
    """Why changes at ticks `tick_s` (n,) of a clock are only crossings, and the run that would tell; empty texts where they are not.

    `grid` says whether the ticks keep to a rigid grid: others follow the changes, whatever these are.
    """
    place = _crossings(changes.value)
    if len(place) < CROSSING_SHARE * len(changes):
        return "", ""
    step = np.rint(np.diff(tick_s) / period_s).astype(np.int64)[place - 1]
    slips = np.count_nonzero(step != np.bincount(step).argmax())
    if grid and slips >= LEAST_SLIPS and _grid_lead(changes, place, tick_s, period_s, jitter_s) >= CROSSING_LEAD:
        return "", ""
    quantum = float(np.min(np.abs(np.diff(changes.value))))
    return (
        f"readings are rounded, and {len(place) / len(changes):.0%} of their changes are one step of {quantum:.4g} W in the direction of "
        "the steps beside it: they tell when a slow power crossed a step, not when an update came",
        "record under a load whose power varies by many watts",
    )


def _crossings(value: Array) -> IntArray:
    """Places of changes whose own step and those before and after are the smallest there is, all in one direction."""
    step = np.diff(value)
    if len(step) < LEAST_ROW:
        return np.zeros(0, dtype=np.int64)
    quantum = float(np.min(np.abs(step)))
    unit = np.where(np.abs(np.abs(step) / quantum - 1.0) < SAME_STEP, np.sign(step), 0.0) if quantum > 0.0 else np.zeros(len(step))
    place: IntArray = np.flatnonzero((unit[1:-1] != 0.0) & (unit[:-2] == unit[1:-1]) & (unit[2:] == unit[1:-1])) + 2
    return place


def _grid_lead(changes: Changes, place: IntArray, tick_s: Array, period_s: float, jitter_s: float) -> float:
    """Log-likelihood by which updates at `tick_s` explain the brackets of the changes `place` better than smooth crossings."""
    middle = changes.middle_s
    expected = 0.5 * (middle[place - 1] + middle[place + 1])
    width = float(np.median(changes.width_s[place]))
    scatter = max(MAD_TO_STD * float(np.median(np.abs(middle[place] - expected))), width / np.sqrt(8.0))
    after, until, tick = changes.after_s[place], changes.until_s[place], tick_s[place]
    half = 0.5 * period_s
    cell = normal_share((tick + half - expected) / scatter) - normal_share((tick - half - expected) / scatter)
    within = normal_share((until - tick) / jitter_s) - normal_share((after - tick) / jitter_s)
    smooth = normal_share((until - expected) / scatter) - normal_share((after - expected) / scatter)
    return float(np.sum(np.log(CHANGE_FLOOR + cell * within) - np.log(CHANGE_FLOOR + smooth)))
