"""When a load ran, from a log of its edges."""

from pathlib import Path
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.recordings.ordering import LAST_TIME_S
from collector.recordings.readings import TIME, only_place
from collector.recordings.text_columns import LogFile, numbers, open_log, read_columns, shown_names
from collector.sensing.board_power import LoadStamps
from estimator.quantities import Array

LEVEL: Final = "level"
PAIRED: Final = "timestamp"
"""A log of GPU_Power_Benchmark: every edge twice, in microseconds since 1970, the load runs between the 1st and the 2nd."""
US_PER_S: Final = 1e6
PAIR_US: Final = 100.0
"""The two stamps of an edge are taken one after the other."""
MOST_EDGES: Final = 1_000_000


def read_load(path: Path) -> LoadStamps:
    """Load stamps from a CSV or Parquet file `t_s,level`: the load is at `level` (0 to 1) from `t_s` on.

    Also takes a `timestamp` column with every edge twice in microseconds, as GPU_Power_Benchmark writes it.
    Raises SensorError for a file that cannot be used.
    """
    log = open_log(path)
    bare = [name.lower() for name in log.names]
    if TIME in bare and LEVEL in bare:
        time, level = _columns(log, [only_place(TIME, bare, log), only_place(LEVEL, bare, log)])
    elif bare == [PAIRED]:
        time = _paired(_columns(log, [0])[0], log)
        level = np.where(np.arange(len(time)) % 2 == 0, 1.0, 0.0)
    else:
        raise SensorError(f"{path}: needs the columns {TIME},{LEVEL}; found: {shown_names(bare)}")
    return stamps_of_levels(time, level, str(path))


def _columns(log: LogFile, wanted: list[int]) -> list[Array]:
    parts = [[numbers(column) for column in columns] for columns in read_columns(log, wanted)]
    columns = [np.concatenate([part[place] for part in parts]) if parts else np.empty(0) for place in range(len(wanted))]
    bad = np.flatnonzero(~np.all([np.isfinite(column) for column in columns], axis=0))
    if len(bad):
        names = ",".join(log.names[index] for index in wanted)
        raise SensorError(f"{log.path}: row {bad[0] + 2} has no figure under {names}; an edge that is missing would turn the load round")
    return columns


def _paired(stamp_us: Array, log: LogFile) -> Array:
    """Edges [s] from stamps [µs] each of which is there twice.  Raises SensorError where they are not."""
    if len(stamp_us) % 2 and not log.complete:
        stamp_us = stamp_us[:-1]
    first, second = stamp_us[::2], stamp_us[1::2]
    if len(first) != len(second) or not np.all(np.abs(second - first) <= PAIR_US):
        raise SensorError(f"{log.path}: a column {PAIRED} has every edge twice, in microseconds; other edges go under {TIME},{LEVEL}")
    edges: Array = first / US_PER_S
    return edges


def stamps_of_levels(time_s: Array, level: Array, where: str = "load") -> LoadStamps:
    """Runs of a load from its edges: at `level[i]` from `time_s[i]` on; shape (n,) each.

    A level that stays high after the last edge is unknown from there on.  Raises SensorError.
    """
    if not len(time_s):
        raise SensorError(f"{where}: holds no edge")
    if len(time_s) > MOST_EDGES:
        raise SensorError(f"{where}: has {len(time_s)} edges, more than {MOST_EDGES}; give the edges alone, not every sample")
    beyond = np.flatnonzero(np.abs(time_s) > LAST_TIME_S)
    if len(beyond):
        raise SensorError(f"{where}: t_s of row {beyond[0] + 2} is {time_s[beyond[0]]:.4g}: no time in seconds")
    if np.any(np.diff(time_s) < 0):
        row = int(np.flatnonzero(np.diff(time_s) < 0)[0]) + 2
        raise SensorError(f"{where}: t_s goes back at row {row}; edges must be in order")
    if np.any((level < 0.0) | (level > 1.0)):
        raise SensorError(f"{where}: level {float(level[(level < 0.0) | (level > 1.0)][0]):g} is no share of the load; give 0 to 1")
    change = np.append(True, np.diff(level) != 0.0)
    time_s, level = time_s[change], level[change]
    if not np.any(level > 0.0):
        raise SensorError(f"{where}: the load is never on")
    ends = np.append(time_s[1:], time_s[-1])
    on = (level > 0.0) & (ends > time_s)
    if len(time_s) > 1 and not np.any(on) and level[-1] == 0.0:
        raise SensorError(f"{where}: every run ends when it starts; give the edges at which the load really began and ended")
    if not np.any(on):
        raise SensorError(f"{where}: the load goes on and its end is not known; give the edge at which it ends")
    return LoadStamps(
        start_s=time_s[on], end_s=ends[on], level=level[on], known_until_s=float(time_s[-1]) if level[-1] > 0.0 else float("inf")
    )
