"""Wall time of a simulated board that goes on after the rows that are there, as the hours of a real board do.

Every simulated session begins at the same hour; without this the rows of a resumed campaign would lie over those before.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from collector.bench import Bench
from collector.devices.protocols import Clock


class ContinuedClock:
    """A clock whose wall time is ahead of another's by `ahead_s`; implements Clock."""

    def __init__(self, clock: Clock, ahead_s: float) -> None:
        self._clock = clock
        self._ahead_s = ahead_s

    def now_ns(self) -> int:
        """Monotonic host time [ns], that of the other clock."""
        return self._clock.now_ns()

    def wait(self, seconds: float) -> None:
        """Let time pass.  Raises ValueError for a negative or non-finite duration."""
        self._clock.wait(seconds)

    def unix_s(self) -> float:
        """Wall time [s since 1970]."""
        return self._clock.unix_s() + self._ahead_s


def continued_bench(bench: Bench, *tables: pa.Table | None) -> Bench:
    """The bench; a simulated one's wall time begins after the last row of these tables has ended.  A real board's is left alone."""
    ends = [end_s for table in tables if table is not None and (end_s := last_end_s(table)) is not None]
    if not bench.simulated or not ends:
        return bench
    ahead_s = max(ends) - bench.clock.unix_s()
    return bench if ahead_s <= 0.0 else replace(bench, clock=ContinuedClock(bench.clock, ahead_s))


def last_end_s(table: pa.Table) -> float | None:
    """Wall time at which the last run of a dataset ended [s since 1970]; None where no row says when it ran."""
    start, launches, latency = (
        np.array(table.column(name).to_numpy(zero_copy_only=False), dtype=np.float64)
        for name in ("started_unix_s", "launches", "latency_s")
    )
    ends = start + np.nan_to_num(launches * latency)
    ends = ends[np.isfinite(ends)]
    return float(ends.max()) if len(ends) else None
