"""Stamps in order: local clocks that were put back or forward, steps backwards, repeated stamps."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.devices.possible_power import MOST_POWER_W as MOST_DRAWN_W
from collector.errors import SensorError
from collector.recordings.odd_stamps import without_impossible, without_slips
from estimator.quantities import Array, BoolArray

ZONE_STEP_S: Final = 900.0
"""Zones and summer times are multiples of a quarter of an hour apart."""
LEAST_JUMP_S, MOST_JUMP_S = 1700.0, 7300.0
"""Summer time moves clocks by half an hour to two hours."""
JUMP_TOLERANCE_S: Final = 1.0
MILLI_STEP_S: Final = 3.0
MICRO_STEP: Final = 500.0
"""Median distances of stamps beyond which they are no seconds but milliseconds, or microseconds."""
LEAST_STEP_S: Final = 1e-6
MOST_LEFT_OUT: Final = 0.5
"""A file most of whose rows run backwards in time is not in order at all."""
MOST_SHARED: Final = 0.5
"""Stamps that more rows than this share with the next one are coarser than the polls."""
MOST_ABSURD: Final = 0.2
"""Figures beyond what anything draws are slips where they are fewer than this share; more of them are another unit."""
LEAST_POWER_W: Final = -10.0
"""Median reading below which figures are no power; offsets of sensors and meters reach a few watts below zero."""
LEAST_BACK: Final = 4.0
"""Usual distances of rows by which a clock was set back at least; of less, the rows that overlap are left out."""
LEAST_BEHIND: Final = 4
"""So many rows go on behind a step, before they reach the stamp before it."""
BACK_SHARE: Final = 0.5
"""And none of them jumps forward by more than this share of the step: rows out of order do."""
MOST_BACK: Final = 16
"""A log with more steps is in no order."""
MOST_AGAIN: Final = 0.9
"""Rows behind a step back of which more than this share are there before it were written twice."""
HOLE_STEPS, LEAST_HOLE_S = 20.0, 1.0
"""Distances of stamps beyond so many usual ones, and of a second at least, are holes."""
MOST_POWER_W: Final = 5000.0
"""Median reading beyond which power is not in watts; the largest module draws 2.7 kW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Rows in order: time [s] strictly ascending, power [W] finite, shape (n,), and remarks on what was put right.

    `left_out` rows have no time or no power, one that cannot be, or a time that is none of theirs.  `coarse_stamps` says that
    most rows shared their stamp with another one; "" where they did not.
    """

    time_s: Array
    power_w: Array
    left_out: int
    remarks: tuple[str, ...]
    coarse_stamps: str


def ordered(time_s: Array, power_w: Array, where: str, *, local_time: bool) -> Ordered:
    """Rows as they were written, put in order.

    Rows without a number and rows whose stamp slipped are left out; jumps of a local clock to or from summer time are undone; rows
    whose time lies before that of an earlier row are left out; of equal stamps the last row stays.

    Raises SensorError for nothing left, for rows in no order, and for stamps or powers in another unit.
    """
    finite = np.isfinite(time_s) & np.isfinite(power_w)
    remarks = []
    if len(finite) and not np.all(finite):
        remarks.append(f"{np.count_nonzero(~finite)} of {len(finite)} rows have no time or no power")
    time_s, power_w = time_s[finite], power_w[finite]
    if len(time_s):
        possible, said = without_impossible(time_s, where)
        time_s, power_w, remarks = time_s[possible], power_w[possible], remarks + [said] * bool(said)
    absurd = np.abs(power_w) > MOST_DRAWN_W
    if np.any(absurd) and np.count_nonzero(absurd) <= MOST_ABSURD * len(absurd):
        remarks.append(
            f"{np.count_nonzero(absurd)} of {len(absurd)} rows have a power that nothing draws, the first {power_w[absurd][0]:.4g} W"
        )
        time_s, power_w = time_s[~absurd], power_w[~absurd]
    if len(time_s) < 2:
        raise SensorError(f"{where}: holds {len(time_s)} rows with a time and a power; record a run of some seconds")
    fits, said = without_slips(time_s, _hole_s(time_s))
    time_s, power_w, remarks = time_s[fits], power_w[fits], remarks + [said] * bool(said)
    lost = len(finite) - len(time_s)
    if local_time:
        time_s, jumps = _without_jumps(time_s)
        if jumps:
            remarks.append(f"{jumps} jump(s) of the local clock undone")
    again = rows_again(time_s, power_w)
    if np.any(again):
        remarks.append(f"{np.count_nonzero(again)} rows are there twice, stamp and power, further down; they were taken once")
        time_s, power_w = time_s[~again], power_w[~again]
    time_s, back = without_steps_back(time_s)
    remarks.extend(
        f"the clock was set back by {step_s:.4g} s, {at_s:.5g} s after the first row: stamps behind it were moved on by as much, "
        "a load's are not"
        for at_s, step_s in back
    )
    highest = np.maximum.accumulate(time_s)
    forward = time_s >= highest
    if not np.all(forward):
        remarks.append(f"{np.count_nonzero(~forward)} rows left out: their time lies before that of an earlier row")
    if np.count_nonzero(~forward) > MOST_LEFT_OUT * len(forward):
        backwards = f"{np.count_nonzero(~forward)} of {len(forward)} rows"
        raise SensorError(f"{where}: t_s of {backwards} lies before that of an earlier row; give the rows in the order of time")
    left_out = int(lost + np.count_nonzero(~forward))
    time_s, power_w = time_s[forward], power_w[forward]
    last = np.append(time_s[1:] > time_s[:-1], True)
    shared = int(np.count_nonzero(~last))
    coarse = shared > MOST_SHARED * len(last)
    time_s, power_w = time_s[last], power_w[last]
    check_units(time_s, power_w, where)
    remarks.extend(_holes(time_s))
    return Ordered(
        time_s=time_s, power_w=power_w, left_out=left_out, remarks=tuple(remarks), coarse_stamps=_coarse(time_s, shared) if coarse else ""
    )


def rows_again(time_s: Array, power_w: Array) -> BoolArray:
    """Rows (n,) behind a step back that are there before it, stamp and power: a log, or its end, was written twice.

    Of a clock that was set back few rows have the stamp of one before, and fewer its power; none are taken for such rows then.
    """
    steps = np.flatnonzero(np.diff(time_s) < 0.0)
    if not len(steps) or len(steps) > MOST_BACK:
        return np.zeros(len(time_s), dtype=np.bool_)
    _, first, number = np.unique(time_s + 1j * power_w, return_index=True, return_inverse=True)  # pairs, sorted at once
    behind = np.asarray(time_s <= np.maximum.accumulate(time_s)) & (np.arange(len(time_s)) > steps[0])
    again = behind & (first[number] < np.arange(len(time_s)))
    return again if np.count_nonzero(again) > MOST_AGAIN * np.count_nonzero(behind) else np.zeros(len(time_s), dtype=np.bool_)


def without_steps_back(time_s: Array) -> tuple[Array, list[tuple[float, float]]]:
    """Stamps with steps backwards of a clock undone, and when each was, after the first row, and how far [s].

    Rows are written in the order of time, so that a clock which was set back (by a time server, say) shows as a stamp before the last
    one, from which all go on.  A row or two out of order come back to the others at once: those are no steps.
    """
    step = np.diff(time_s)
    usual = float(np.median(step))
    found: list[tuple[float, float]] = []
    moved = np.zeros(len(time_s))
    for place in np.flatnonzero(step < -LEAST_BACK * max(usual, 0.0))[: MOST_BACK + 1].tolist():
        behind = step[place + 1 :]
        regained = int(np.searchsorted(np.cumsum(behind), -step[place]))
        if len(behind) < LEAST_BEHIND or regained < LEAST_BEHIND or np.max(behind[: regained + 1], initial=0.0) > BACK_SHARE * -step[place]:
            continue
        found.append((float(time_s[place] + moved[place] - time_s[0]), float(-step[place])))
        moved[place + 1 :] += usual - step[place]
    return (time_s, []) if len(found) > MOST_BACK else (time_s + moved, found)


def _coarse(time_s: Array, shared: int) -> str:
    """That stamps `time_s`, each of which stands for several rows, are too coarse."""
    step_ms = 1e3 * float(np.median(np.diff(time_s)))
    return (
        f"stamps are too coarse: {shared} of {shared + len(time_s)} rows share theirs, {step_ms:.4g} ms apart, with the row after, and the "
        "last of each was taken; log stamps to the millisecond"
    )


def _hole_s(time_s: Array) -> float:
    """The distance of stamps beyond which they leave a hole."""
    return max(HOLE_STEPS * float(np.median(np.diff(time_s))), LEAST_HOLE_S)


def longest_stretch(rows: Ordered) -> Ordered:
    """The rows of the longest stretch without a hole, and a remark where others are left out."""
    holes = np.flatnonzero(np.diff(rows.time_s) > _hole_s(rows.time_s))
    if not len(holes):
        return rows
    begin, end = np.append(0, holes + 1), np.append(holes + 1, len(rows.time_s))
    longest = int(np.argmax(rows.time_s[end - 1] - rows.time_s[begin]))
    part = slice(int(begin[longest]), int(end[longest]))
    said = f"its longest stretch without a hole was taken, {rows.time_s[part.stop - 1] - rows.time_s[part.start]:.4g} s"
    return replace(rows, time_s=rows.time_s[part], power_w=rows.power_w[part], remarks=(*rows.remarks, said))


def _holes(time_s: Array) -> tuple[str, ...]:
    """A remark on the largest hole in a log, where there is one."""
    step = np.diff(time_s)
    holes = step > _hole_s(time_s)
    if not np.any(holes):
        return ()
    place = int(np.argmax(step))
    more = f"; {np.count_nonzero(holes)} holes in all, {step[holes].sum():.4g} s" if np.count_nonzero(holes) > 1 else ""
    return (f"no row for {step[place]:.4g} s, {time_s[place] - time_s[0]:.5g} s after the first: a hole, or a clock put forward{more}",)


def check_units(time_s: Array, power_w: Array, where: str) -> None:
    """Raises SensorError for stamps that are no seconds, or power that is not in watts."""
    if len(time_s) < 2:
        raise SensorError(f"{where}: all rows have the same time; record a run of some seconds")
    step = float(np.median(np.diff(time_s)))
    if step > MILLI_STEP_S or step < LEAST_STEP_S:
        unit = "microseconds" if step > MICRO_STEP else "milliseconds" if step > MILLI_STEP_S else "no seconds"
        raise SensorError(f"{where}: stamps {step:.3g} apart (median) look like {unit}; give t_s in seconds")
    level = float(np.median(np.abs(power_w)))
    if level > MOST_POWER_W:
        raise SensorError(
            f"{where}: a median power of {level:.4g} looks like milliwatts, or another unit than its column names; give power in watts"
        )
    if float(np.median(power_w)) < LEAST_POWER_W:
        raise SensorError(f"{where}: a median power of {float(np.median(power_w)):.4g} W is below zero; turn the meter's or the log's sign")


def _without_jumps(time_s: Array) -> tuple[Array, int]:
    """Stamps with jumps to and from summer time undone, and how many there were."""
    step = np.diff(time_s)
    usual = float(np.median(step))
    turns = np.rint((step - usual) / ZONE_STEP_S) * ZONE_STEP_S
    jump = (np.abs(turns) >= LEAST_JUMP_S) & (np.abs(turns) <= MOST_JUMP_S) & (np.abs(step - usual - turns) < JUMP_TOLERANCE_S)
    if not np.any(jump):
        return time_s, 0
    moved = np.concatenate([[0.0], np.cumsum(np.where(jump, turns, 0.0))])
    return time_s - moved, int(np.count_nonzero(jump))
