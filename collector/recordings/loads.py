"""Stamps of a load, from a log of its edges."""

from pathlib import Path
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.recordings.columns import US_PER_S, numbers, open_log, read_columns, shown_names
from collector.recordings.rows import LAST_TIME_S
from collector.sensing.board_power import LoadStamps
from estimator.vocabulary.quantities import Array

COLUMNS: Final = ("t_s", "level")
PAIRED: Final = "timestamp"
"""Column of a log of GPU_Power_Benchmark: every edge twice, in microseconds since 1970; the load runs between the 1st and the 2nd."""
MOST_EDGES: Final = 1_000_000


def read_load(path: Path) -> LoadStamps:
    """Load stamps from a CSV or Parquet file `t_s,level`: the load is at `level` (0 to 1) from `t_s` on.

    Also takes a `timestamp` column with every edge twice in microseconds, as GPU_Power_Benchmark writes it.
    Raises SensorError for a file that cannot be used.
    """
    log = open_log(path)
    bare = [name.lower() for name in log.names]
    paired = bare == [PAIRED]
    if not paired and not set(COLUMNS) <= set(bare):
        raise SensorError(f"{path}: needs the columns {','.join(COLUMNS)}; found: {shown_names(bare)}")
    wanted = [0] if paired else [log.place(name, bare) for name in COLUMNS]
    columns = read_columns(log, wanted, whole=False)
    table = [numbers(column) for column in columns.arrays]
    bad = np.flatnonzero(~np.all(np.isfinite(table), axis=0))
    if len(bad) or columns.stray:
        names, row = ",".join(log.names[index] for index in wanted), f"row {bad[0] + 2}" if len(bad) else repr(columns.stray[0])
        raise SensorError(f"{path}: {row} has no figure under {names}; an edge that is missing would turn the load round")
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
