"""One recorded run: readings, load stamps and a meter's power on one time base."""

from pathlib import Path
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.recordings.loads import read_load
from collector.recordings.readings import read_readings
from collector.recordings.reference import read_reference
from collector.sensing.identify import SensorRecord
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

MIN_OVERLAP_S: Final = 1.0
ZONE_STEP_S: Final = 900.0
"""Zones and summer times differ by multiples of a quarter of an hour."""


@frozen
class RecordedRun:
    """`record` counts from the first poll [s], whose own stamp is `origin_s`, its zone corrected.

    `column` and `board` identify the readings; `remarks` list the corrections by their subject: under "readings" the rows that could not
    be used.
    """

    record: SensorRecord
    origin_s: float
    column: str
    board: str
    remarks: dict[str, str]


def read_run(
    readings: Path, load: Path | None = None, reference: Path | None = None, column: str | None = None, board: str | None = None
) -> RecordedRun:
    """A run from its files.  Raises SensorError, in one line, for files that cannot be used or do not overlap in time."""
    polled = read_readings(readings, column, board)
    stamps = read_load(load) if load is not None else None
    meter = read_reference(reference) if reference is not None else None
    remarks: dict[str, str] = {}
    beside: list[tuple[str, Path | None, float, float]] = []
    if stamps is not None:
        beside.append(("load", load, float(stamps.start_s[0]), float(stamps.end_s[-1])))
    if meter is not None:
        beside.append(("reference", reference, float(meter.time_s[0]), float(meter.time_s[-1])))
    time_s = polled.time_s
    if polled.local_time and beside and (zone_s := _zone_s(time_s, *beside[0][2:])):
        remarks["time_zone"] = f"readings moved by {-zone_s / 3600.0:+g} h: their stamps are local time"
        time_s = time_s - zone_s
    for what, path, begin_s, end_s in beside:
        _check_overlap(time_s, begin_s, end_s, what, path)
    said = {"reference": () if meter is None else meter.remarks, "readings": polled.left_out, "log": polled.remarks}
    remarks |= {subject: "; ".join(texts) for subject, texts in said.items() if texts}
    origin = float(time_s[0])
    record = SensorRecord(
        time_s=time_s - origin,
        power_w=polled.power_w,
        load=None if stamps is None else stamps.moved(-origin),
        meter_s=None if meter is None else meter.time_s - origin,
        meter_w=None if meter is None else meter.power_w,
    )
    return RecordedRun(record=record, origin_s=origin, column=polled.column, board=polled.board, remarks=remarks)


def _zone_s(time_s: Array, begin_s: float, end_s: float) -> float:
    """Offset of a local log's stamps before universal time [s], from the span of another recording; 0 without a likely one."""
    apart = 0.5 * (float(time_s[0] + time_s[-1]) - begin_s - end_s)
    zone = float(np.rint(apart / ZONE_STEP_S) * ZONE_STEP_S)
    # Zones lie between −12 and +14 hours, with summer time.
    return zone if abs(zone) <= 15 * 3600.0 else 0.0


def _check_overlap(time_s: Array, begin_s: float, end_s: float, what: str, path: Path | None) -> None:
    """Raises SensorError if the readings overlap with another file by less than MIN_OVERLAP_S."""
    shared = min(float(time_s[-1]), end_s) - max(float(time_s[0]), begin_s)
    if shared < min(MIN_OVERLAP_S, 0.5 * (end_s - begin_s)):
        spans = f"readings cover {time_s[0]:.3f} to {time_s[-1]:.3f} s, the {what} {begin_s:.3f} to {end_s:.3f} s"
        raise SensorError(f"{path}: shares no time with the readings: {spans}; give both on one time base, in seconds")
