"""Power that an emulated meter measures: a square wave, or a trace from a file that is repeated."""

from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from collector.devices.errors import DatasetError
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.regular_files import open_regular

MOST_ROWS: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerWave:
    """Power [W] at times from 0 on [s], shape (n,) each, linear in between; starts again after `period_s`."""

    time_s: Array
    power_w: Array
    period_s: float

    def at(self, time_s: Array) -> Array:
        """Power at any times [W], shape as given."""
        return np.interp(np.mod(time_s, self.period_s), self.time_s, self.power_w)


def square_wave(low_w: float, high_w: float, period_s: float, duty: float) -> PowerWave:
    """High for the first `duty` of each period, low for the rest."""
    edge = duty * period_s
    return PowerWave(time_s=np.array([0.0, edge, edge, period_s]), power_w=np.array([high_w, high_w, low_w, low_w]), period_s=period_s)


def read_wave(path: Path) -> PowerWave:
    """A wave from a CSV with the columns `t_s` and `power_w` among others.  Raises DatasetError."""
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8") as stream:
            names = [name.strip().strip('"') for name in stream.readline().split(",")]
            missing = [name for name in ("t_s", "power_w") if name not in names]
            if missing:
                raise DatasetError(f"{path}: line 1 has no column {missing[0]}; a power trace has t_s and power_w")
            columns = (names.index("t_s"), names.index("power_w"))
            lines = list(islice(stream, MOST_ROWS))
            table = np.loadtxt(lines, delimiter=",", usecols=columns, ndmin=2, comments=None) if lines else np.zeros((0, 2))
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror}); name a power trace") from error
    except ValueError as error:
        raise DatasetError(f"{path}: cannot be read as numbers ({error}); a power trace has t_s and power_w") from error
    if len(table) < 2 or not np.all(np.isfinite(table)) or not np.all(np.diff(table[:, 0]) > 0):
        raise DatasetError(f"{path}: needs two rows or more of finite numbers with t_s ascending")
    time_s = table[:, 0] - table[0, 0]
    return PowerWave(time_s=time_s, power_w=table[:, 1].copy(), period_s=float(time_s[-1]))
