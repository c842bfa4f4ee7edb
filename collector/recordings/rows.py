"""Rows of a log in order: rows without figures and a few late ones are left out, other disorder and other units are rejected."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.devices.possible_power import LEAST_POWER_W, MOST_POWER_W
from collector.errors import SensorError
from estimator.vocabulary.quantities import Array

LAST_TIME_S: Final = 1e11
"""Latest possible stamp of a log: seconds since 1970 in the year 5138."""
STEP_S: Final = (1e-6, 3.0)
"""Range of the median distance of stamps in seconds."""
MOST_LATE, MOST_ABSURD, MOST_SHARED = 0.05, 0.2, 0.5
"""Largest shares of late rows (more: the clock was set), absurd powers (more: another unit) and shared stamps (more: coarse stamps)."""
HOLE_STEPS, LEAST_HOLE_S = 20.0, 1.0
"""Distances of stamps beyond this many usual ones, and of at least this many seconds, are holes."""
MOST_BOARDS, LEAST_ROUNDS = 8, 20
NEAR_SHARE, CLOSE, APART = 0.9, 0.5, 4.0
"""Signs of boards polled in turn.

This share of the rounds takes less than this part of the time to the next one, and power differs by this factor more within
a round than at a place in it from one round to the next.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Time [s] strictly ascending, power [W] finite, shape (n,); `left_out` rows, and remarks on them."""

    time_s: Array
    power_w: Array
    left_out: int
    remarks: tuple[str, ...]


def ordered(time_s: Array, power_w: Array, where: str, *, meter: bool = False) -> Rows:
    """Rows in the order of time; of equal stamps the last row stays.

    Raises SensorError for fewer than two rows, too many late rows, several boards' in turn, and stamps or powers in another unit.
    A `meter` may have powers about 0.
    """
    finite = np.isfinite(time_s) & np.isfinite(power_w)
    absurd = finite & (np.abs(np.where(finite, power_w, 0.0)) > MOST_POWER_W)
    known = finite & ~absurd if np.count_nonzero(absurd) <= MOST_ABSURD * len(absurd) else finite
    parts = [f"{np.count_nonzero(~finite)} of {len(finite)} rows have no time or no power"] if not np.all(finite) else []
    if np.any(finite & ~known):
        parts.append(f"{np.count_nonzero(absurd)} of {len(absurd)} rows have a power that nothing draws")
    time_s, power_w = time_s[known], power_w[known]
    if len(time_s) < 2:
        raise SensorError(f"{where}: holds {len(time_s)} rows with a time and a power; record a run of some seconds")
    late = time_s < np.maximum.accumulate(time_s)
    if np.count_nonzero(late) > MOST_LATE * len(late):
        raise SensorError(
            f"{where}: t_s of {np.count_nonzero(late)} of {len(late)} rows lies before that of an earlier row: the clock was set, or rows "
            "are in no order; give the part before or behind it"
        )
    if np.any(late):
        parts.append(f"{np.count_nonzero(late)} rows left out: their time lies before that of an earlier row")
    time_s, power_w = time_s[~late], power_w[~late]
    _check_one_board(time_s, power_w, where)
    last = np.append(time_s[1:] > time_s[:-1], True)
    left_out = len(finite) - len(time_s)
    if len(np.unique(power_w)) > 1 and np.count_nonzero(~last & np.append(power_w[1:] != power_w[:-1], False)) > MOST_SHARED * len(last):
        raise SensorError(f"{where}: stamps are too coarse: more than half of the rows share theirs; log stamps to the millisecond")
    time_s, power_w = time_s[last], power_w[last]
    _check_units(time_s, power_w, where, meter)
    return Rows(time_s=time_s, power_w=power_w, left_out=left_out, remarks=tuple(parts))


def longest_stretch(rows: Rows) -> Rows:
    """The rows of the longest stretch without a hole, and a remark if others are left out."""
    step = np.diff(rows.time_s)
    holes = np.flatnonzero(step > max(HOLE_STEPS * float(np.median(step)), LEAST_HOLE_S))
    if not len(holes):
        return rows
    begin, end = np.append(0, holes + 1), np.append(holes + 1, len(rows.time_s))
    longest = int(np.argmax(rows.time_s[end - 1] - rows.time_s[begin]))
    part = slice(int(begin[longest]), int(end[longest]))
    said = f"its longest stretch without a hole was taken, {rows.time_s[part.stop - 1] - rows.time_s[part.start]:.4g} s"
    return replace(rows, time_s=rows.time_s[part], power_w=rows.power_w[part], remarks=(*rows.remarks, said))


def _check_units(time_s: Array, power_w: Array, where: str, meter: bool) -> None:
    """Raises SensorError for stamps that are not seconds, or power that is not in watts."""
    if len(time_s) < 2:
        raise SensorError(f"{where}: all rows have the same time; record a run of some seconds")
    step, level = float(np.median(np.diff(time_s))), float(np.median(power_w))
    if not STEP_S[0] <= step <= STEP_S[1] or np.any(np.abs(time_s) > LAST_TIME_S):
        raise SensorError(f"{where}: stamps {step:.3g} apart (median), up to {time_s[-1]:.4g}, are no seconds; give t_s in seconds")
    # A larger median is not in watts; the largest module draws 2.7 kW.
    if abs(level) > 5000.0:
        raise SensorError(f"{where}: a median power of {level:.4g} looks like milliwatts, or another unit; give power in watts")
    if level < -10.0 * LEAST_POWER_W or (not meter and float(power_w.max()) < LEAST_POWER_W):
        raise SensorError(
            f"{where}: the largest of {len(power_w)} readings is {power_w.max():.4g} W, less than any board draws: give power in watts, or "
            "read a field that this driver knows"
        )


def _check_one_board(time_s: Array, power_w: Array, where: str) -> None:
    """Raises SensorError for boards polled in turn, shortly after each other and again after a pause."""
    step = np.diff(time_s)
    for boards in range(2, MOST_BOARDS + 1):
        rounds = len(step) // boards
        if rounds < LEAST_ROUNDS:
            return
        steps = step[: rounds * boards].reshape(rounds, boards)
        rest = int(np.bincount(steps.argmax(axis=1)).argmax())
        if np.mean(steps.sum(axis=1) - steps[:, rest] < CLOSE * steps[:, rest]) < NEAR_SHARE:
            continue
        begin = (rest + 1) % boards
        power = power_w[begin : begin + (len(power_w) - begin) // boards * boards].reshape(-1, boards)
        within, between = (np.median(np.abs(np.diff(power, axis=axis))) for axis in (1, 0))
        if np.mean(np.any(power != power[:, :1], axis=1)) >= NEAR_SHARE and within > APART * between:
            raise SensorError(
                f"{where}: rows come {boards} at a time, as of {boards} boards, and no column says whose they are; log with "
                "--query-gpu=timestamp,index,power.draw and choose one with --gpu, or give the rows of one board"
            )
