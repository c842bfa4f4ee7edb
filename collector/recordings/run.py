"""One recorded run: readings, load stamps and a meter's power on one time base."""

from pathlib import Path
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.pmd.protocol import NS_PER_S
from collector.pmd.recording import read_recording, sample_blocks, scan_recording, stamps_path, zero_currents
from collector.recordings.readings import POWER, TIME, US_PER_S, numbers, open_log, read_columns, read_readings, shown_names, watts
from collector.recordings.rows import LAST_TIME_S, Rows, longest_stretch, ordered
from collector.sensing.board_power import LoadStamps
from collector.sensing.identify import SensorRecord
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.regular_files import read_regular
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


# Stamps of a load, from a log of its edges ------------------------------------------------------------------------------------


COLUMNS: Final = ("t_s", "level")
PAIRED: Final = "timestamp"
"""Column of a log of GPU_Power_Benchmark: every edge twice, in microseconds since 1970; the load runs between the 1st and the 2nd."""
MOST_EDGES: Final = 1_000_000


def read_load(path: Path) -> LoadStamps:
    """Load stamps from a CSV file `t_s,level`: the load is at `level` (0 to 1) from `t_s` on.

    Also takes a `timestamp` column with every edge twice in microseconds, as GPU_Power_Benchmark writes it.
    Raises SensorError for a file that cannot be used.
    """
    log = open_log(path)
    paired = log.names == (PAIRED,)
    if not paired and not set(COLUMNS) <= set(log.names):
        raise SensorError(f"{path}: needs the columns {','.join(COLUMNS)}; found: {shown_names(log.names)}")
    columns = read_columns(log, log.names if paired else COLUMNS, whole=False)
    table = list(map(numbers, columns.cells.values()))
    bad = np.flatnonzero(~np.all(np.isfinite(table), axis=0))
    if len(bad) or columns.stray:
        row = f"row {bad[0] + 2}" if len(bad) else repr(columns.stray[0])
        raise SensorError(f"{path}: {row} has no figure under {','.join(columns.cells)}; an edge that is missing would turn the load round")
    if not paired:
        return stamps_of_levels(table[0], table[1], str(path))
    first, second = table[0][: 2 * (len(table[0]) // 2) : 2], table[0][1::2]
    # The two stamps of an edge are taken one after the other.
    if (len(table[0]) % 2 and not log.cut) or not np.all(np.abs(second - first) <= 100.0):
        raise SensorError(f"{path}: a column {PAIRED} has every edge twice, in microseconds; other edges go under {','.join(COLUMNS)}")
    level = 1.0 - np.arange(len(first), dtype=np.float64) % 2
    return stamps_of_levels(first / US_PER_S, level, str(path))


def stamps_of_levels(time_s: Array, level: Array, where: str = "load") -> LoadStamps:
    """Runs of a load from its edges: at `level[i]` from `time_s[i]` on; shape (n,) each.

    A level that stays high after the last edge is unknown from there on.  Raises SensorError.
    """
    if not 0 < len(time_s) <= MOST_EDGES:
        raise SensorError(f"{where}: has {len(time_s)} edges; give 1 to {MOST_EDGES}, the edges alone, not every sample")
    beyond, back = np.flatnonzero(np.abs(time_s) > LAST_TIME_S), np.flatnonzero(np.diff(time_s) < 0)
    if len(beyond):
        raise SensorError(f"{where}: t_s of row {beyond[0] + 2} is {time_s[beyond[0]]:.4g}: no time in seconds")
    if len(back):
        raise SensorError(f"{where}: t_s goes back at row {back[0] + 1}; edges must be in order")
    if np.any((level < 0.0) | (level > 1.0)):
        raise SensorError(f"{where}: level {float(level[(level < 0.0) | (level > 1.0)][0]):g} is no share of the load; give 0 to 1")
    change = np.append(True, np.diff(level) != 0.0)
    time_s, level = time_s[change], level[change]
    ends = np.append(time_s[1:], time_s[-1])
    on = (level > 0.0) & (ends > time_s)
    if not np.any(on):
        why = "the load is never on" if not np.any(level > 0.0) else "no run has a length and an end that is known"
        raise SensorError(f"{where}: {why}; give the edges at which the load began and ended")
    return LoadStamps(
        start_s=time_s[on], end_s=ends[on], level=level[on], known_until_s=float(time_s[-1]) if level[-1] > 0.0 else float("inf")
    )


# An external meter's power: `t_s,power_w`, or the bytes of a PMD --------------------------------------------------------------


PMD_SUFFIXES: Final = (".pmd", ".bin")
START_STAMP: Final = "PMD_start_ts.txt"


def read_reference(path: Path) -> Rows:
    """A meter's power from a CSV file `t_s,power_w`, or from a PMD's raw bytes (`.pmd`, `.bin`).

    Uses the longest stretch without gaps.

    Raises SensorError or DatasetError for a file that cannot be used.
    """
    if path.suffix.lower() in PMD_SUFFIXES:
        return _pmd(path)
    log = open_log(path)
    table = read_columns(log, (TIME, POWER))
    return longest_stretch(ordered(numbers(table.cells[TIME]), watts(log, table, POWER), str(path), meter=True))


def _pmd(path: Path) -> Rows:
    """Sum of a PMD's rails over host time."""
    recording = read_recording(path)
    header = recording.header
    # GPU_Power_Benchmark writes the host's time in microseconds 50 ms after the first packet.
    start_s = _start_s(path) - 0.05 if header is None else header.started_unix_s
    scanned = scan_recording(recording)
    rails = recording.model.chosen_rails(())
    zero = zero_currents(recording.model, None)
    blocks = [(block.host_ns, block.rail_power_w()[:, rails].sum(axis=1)) for block in sample_blocks(scanned, zero)]
    host_ns = np.concatenate([stamps for stamps, _ in blocks])
    time = start_s + (host_ns - (host_ns[0] if header is None else header.started_host_ns)) / NS_PER_S
    return longest_stretch(ordered(time, np.concatenate([power for _, power in blocks]), str(path), meter=True))


def _start_s(path: Path) -> float:
    """The host's time in a file beside a recording without stamps [s since 1970].  Raises SensorError."""
    beside = path.with_name(START_STAMP)
    try:
        start = float(read_regular(beside, 64).decode("ascii")) / US_PER_S
    except FileNotFoundError:
        raise SensorError(f"{path}: when it began is not known; {stamps_path(path).name} or {START_STAMP} beside it says so") from None
    except (OSError, ValueError) as error:
        raise SensorError(f"{beside}: holds no time in microseconds ({' '.join(str(error).split())[:80]})") from error
    if not 0.0 < start < 1e11:
        raise SensorError(f"{beside}: {start * US_PER_S:g} is no time in microseconds since 1970")
    return start
