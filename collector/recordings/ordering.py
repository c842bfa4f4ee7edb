"""Stamps in order: rows without figures, a few late ones, repeated stamps, holes, units."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.devices.possible_power import MOST_POWER_W as MOST_DRAWN_W
from collector.errors import SensorError
from estimator.quantities import Array

LAST_TIME_S: Final = 1e11
"""Seconds since 1970 in the year 5138: no stamp of a log."""
ZONE_STEP_S: Final = 900.0
"""Zones and summer times are multiples of a quarter of an hour apart."""
MILLI_STEP_S: Final = 3.0
MICRO_STEP: Final = 500.0
"""Median distances of stamps beyond which they are no seconds but milliseconds, or microseconds."""
LEAST_STEP_S: Final = 1e-6
MOST_LATE: Final = 0.05
"""Of a log more of whose rows than this share run backwards a clock was set, or it is in no order."""
MOST_SHARED: Final = 0.5
"""Stamps that more rows than this share with the next one are coarser than the polls."""
MOST_ABSURD: Final = 0.2
"""Figures beyond what anything draws are slips where they are fewer than this share; more of them are another unit."""
LEAST_POWER_W: Final = -10.0
"""Median reading below which figures are no power; offsets of sensors and meters reach a few watts below zero."""
HOLE_STEPS, LEAST_HOLE_S = 20.0, 1.0
"""Distances of stamps beyond so many usual ones, and of a second at least, are holes."""
MOST_POWER_W: Final = 5000.0
"""Median reading beyond which power is not in watts; the largest module draws 2.7 kW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Rows in order: time [s] strictly ascending, power [W] finite, shape (n,), and remarks on what was put right.

    `left_out` rows have no time or no power, a power that cannot be, or a time before that of an earlier row.  `coarse_stamps` says that
    most rows shared their stamp with another one; "" where they did not.
    """

    time_s: Array
    power_w: Array
    left_out: int
    remarks: tuple[str, ...]
    coarse_stamps: str


def ordered(time_s: Array, power_w: Array, where: str) -> Ordered:
    """Rows as they were written, put in order.

    Rows without a number, rows whose power nothing draws, and a few rows whose time lies before that of an earlier row are left out; of
    equal stamps the last row stays.

    Raises SensorError for nothing left, for more rows in no order, and for stamps or powers in another unit.
    """
    finite = np.isfinite(time_s) & np.isfinite(power_w)
    remarks = []
    if not np.all(finite):
        remarks.append(f"{np.count_nonzero(~finite)} of {len(finite)} rows have no time or no power")
    time_s, power_w = time_s[finite], power_w[finite]
    absurd = np.abs(power_w) > MOST_DRAWN_W
    if np.any(absurd) and np.count_nonzero(absurd) <= MOST_ABSURD * len(absurd):
        remarks.append(
            f"{np.count_nonzero(absurd)} of {len(absurd)} rows have a power that nothing draws, the first {power_w[absurd][0]:.4g} W"
        )
        time_s, power_w = time_s[~absurd], power_w[~absurd]
    if len(time_s) < 2:
        raise SensorError(f"{where}: holds {len(time_s)} rows with a time and a power; record a run of some seconds")
    late = time_s < np.maximum.accumulate(time_s)
    if np.count_nonzero(late) > MOST_LATE * len(late):
        first = int(np.argmax(late))
        raise SensorError(
            f"{where}: t_s of {np.count_nonzero(late)} of {len(late)} rows lies before that of an earlier row, the first goes back by "
            f"{time_s[first - 1] - time_s[first]:.4g} s: the clock was set, or rows are in no order; give the part before or behind it"
        )
    if np.any(late):
        remarks.append(f"{np.count_nonzero(late)} rows left out: their time lies before that of an earlier row")
    time_s, power_w = time_s[~late], power_w[~late]
    last = np.append(time_s[1:] > time_s[:-1], True)
    shared = int(np.count_nonzero(~last))
    coarse = shared > MOST_SHARED * len(last)
    left_out = len(finite) - len(time_s)
    time_s, power_w = time_s[last], power_w[last]
    check_units(time_s, power_w, where)
    remarks.extend(_holes(time_s))
    return Ordered(
        time_s=time_s, power_w=power_w, left_out=left_out, remarks=tuple(remarks), coarse_stamps=_coarse(time_s, shared) if coarse else ""
    )


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
    beyond = np.flatnonzero(np.abs(time_s) > LAST_TIME_S)
    if len(beyond) and len(beyond) < len(time_s):
        raise SensorError(f"{where}: t_s = {time_s[beyond[0]]:.4g} is no time in seconds; take that row out")
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
