"""Rows of a log in order: rows without figures and a few late ones are left out, other disorder and other units are rejected."""

from dataclasses import replace
from typing import Final

import numpy as np

from collector.devices.possible_power import LEAST_POWER_W, MOST_POWER_W
from collector.errors import SensorError
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

LAST_TIME_S: Final = 1e11
"""Latest possible stamp of a log: seconds since 1970 in the year 5138."""
STEP_S: Final = (1e-6, 3.0)
"""Range of the median distance of stamps in seconds."""
MOST_LATE, MOST_ABSURD = 0.05, 0.2
"""Largest shares of late rows (more: the clock was set) and absurd powers (more: another unit)."""
HOLE_STEPS, LEAST_HOLE_S = 20.0, 1.0
"""Distances of stamps beyond this many usual ones, and of at least this many seconds, are holes."""


@frozen
class Rows:
    """Time [s] strictly ascending, power [W] finite, shape (n,), and remarks on rows that were left out."""

    time_s: Array
    power_w: Array
    remarks: tuple[str, ...]


def ordered(time_s: Array, power_w: Array, where: str, *, meter: bool = False) -> Rows:
    """Rows in the order of time; of equal stamps the last row stays.

    Raises SensorError for fewer than two rows, too many late rows, and stamps or powers in another unit.
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
    last = np.append(time_s[1:] > time_s[:-1], True)
    if lost := np.count_nonzero(~last[:-1] & (power_w[1:] != power_w[:-1])):
        parts.append(f"{lost} rows left out: the next one, of another power, has the same time; log finer stamps, in milliseconds")
    time_s, power_w = time_s[last], power_w[last]
    _check_units(time_s, power_w, where, meter)
    return Rows(time_s=time_s, power_w=power_w, remarks=tuple(parts))


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
