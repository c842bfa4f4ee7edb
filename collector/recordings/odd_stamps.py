"""Stamps that are not of the time at which their rows were written: slips of single rows, figures that are no time at all."""

from typing import Final

import numpy as np

from collector.errors import SensorError
from estimator.quantities import Array, BoolArray

LAST_TIME_S: Final = 1e11
"""Seconds since 1970 in the year 5138: no stamp of a log, whatever its beginning."""
UNITS: Final = (1.0, 1e3, 1e6, 1e9)
"""The same in seconds, milliseconds, microseconds and nanoseconds: another unit is said as such later on."""
MOST_IMPOSSIBLE: Final = 0.2
"""Stamps that cannot be are slips where they are fewer than this share."""
FEW_ROWS: Final = 3
"""So many rows ahead of those behind them are slips, whatever they show: a clock that was set back by so little is no matter."""
ORDINARY_STEPS: Final = 4.0
"""Rows beside a slip lie at most so many usual distances apart for every row between them,"""
SHARE_OF_JUMP: Final = 0.1
"""or this share of the slip: rows behind it then go on from those before it."""
MOST_SOUGHT: Final = 64
"""So many steps back are looked at for longer runs ahead; a log with more is in no order."""
MOST_BACK: Final = 0.1
"""A log more of whose rows than this share go back is in no order either."""


def without_impossible(time_s: Array, where: str) -> tuple[BoolArray, str]:
    """Which finite stamps (n,) can be a time, and a remark on the others, "" where there are none.

    Raises SensorError where too many cannot.
    """
    size = np.abs(time_s)
    over = [size > LAST_TIME_S * unit for unit in UNITS]
    impossible = next((rows for rows in over if np.count_nonzero(rows) <= MOST_IMPOSSIBLE * len(rows)), None)
    if impossible is None:
        row = int(np.flatnonzero(over[-1])[0])
        raise SensorError(f"{where}: t_s of {np.count_nonzero(over[-1])} of {len(size)} rows is no time, the first {time_s[row]:.4g}")
    rows = np.flatnonzero(impossible)
    if not len(rows):
        return ~impossible, ""
    return ~impossible, f"{len(rows)} row(s) left out: no time can be {time_s[rows[0]]:.4g}, the stamp of row {rows[0] + 1}"


def without_slips(time_s: Array, hole_s: float) -> tuple[BoolArray, str]:
    """Which stamps (n,) fit those before and behind them, and a remark on the others, "" where there are none.

    A row is ahead of time where rows behind it go back and continue those before it: no clock was set back there, and nothing behind
    has to be moved.  A few first or last rows, FEW_ROWS at most, more than `hole_s` away from all others are none either: whether they
    slipped or a hole is beside them, they say nothing of the run, and would make it longer.
    """
    kept = np.ones(len(time_s), dtype=np.bool_)
    step = np.diff(time_s)
    back = np.flatnonzero(step < 0.0)
    usual_s = max(float(np.median(step)), 0.0)
    sought = 0
    for place in back.tolist() if len(back) <= MOST_BACK * len(time_s) else ():
        ahead = _ahead(time_s, kept, place)
        if ahead is None and sought < MOST_SOUGHT:
            sought += 1
            ahead = _long_ahead(time_s, kept, place, usual_s)
        if ahead is not None:
            kept[ahead : place + 1] = False
    rows = np.flatnonzero(kept)
    if len(rows) > 2 * FEW_ROWS:
        beside_hole = np.flatnonzero(np.diff(np.maximum.accumulate(time_s[rows])) > hole_s)
        kept[rows[: np.max(beside_hole[beside_hole < FEW_ROWS], initial=-1) + 1]] = False
        kept[rows[np.min(beside_hole[beside_hole >= len(rows) - 1 - FEW_ROWS], initial=len(rows) - 1) + 1 :]] = False
    slips = np.flatnonzero(~kept)
    if not len(slips):
        return kept, ""
    first = float(time_s[slips[0]] - np.interp(slips[0], np.flatnonzero(kept), time_s[kept]))
    off = f"the first is off by {first:+.4g} s in row {slips[0] + 1}"
    return kept, f"{len(slips)} row(s) left out: their stamps do not fit those beside them, {off}"


def _ahead(time_s: Array, kept: BoolArray, place: int) -> int | None:
    """The first of a few rows up to `place` ahead of the row behind it, fewer than rows behind are late; None where there are none."""
    behind = float(time_s[place + 1])
    first, rows = place + 1, 0
    while first > 0 and (not kept[first - 1] or time_s[first - 1] > behind):
        rows += int(kept[first - 1])
        first -= 1
        if rows > FEW_ROWS:
            return None
    sought = rows if first else FEW_ROWS  # rows behind the first ones may be the slips, with none before to go on from
    late = time_s[place + 1 : place + 2 + sought] < time_s[place]
    return first if rows and (bool(np.all(late)) or len(late) <= rows) else None


def _long_ahead(time_s: Array, kept: BoolArray, place: int, usual_s: float) -> int | None:
    """The first of many rows up to `place` by which a clock was ahead, put forward and back again; None where it was not."""
    before = np.flatnonzero(kept[: place + 1] & (time_s[: place + 1] <= time_s[place + 1]))
    if not len(before):
        return None
    last = int(before[-1])
    inside = last + 1 + np.flatnonzero(kept[last + 1 : place + 1])
    if not len(inside):
        return None
    jump_s, between_s = float(time_s[inside[0]] - time_s[last]), float(time_s[place + 1] - time_s[last])
    ordinary_s = max(ORDINARY_STEPS * (len(inside) + 1) * usual_s, SHARE_OF_JUMP * jump_s)
    return int(inside[0]) if jump_s >= time_s[place] - time_s[place + 1] and between_s <= ordinary_s else None
