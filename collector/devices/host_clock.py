"""The host's monotonic clock."""

import math
import time


class HostClock:
    """Real time; implements Clock."""

    def now_ns(self) -> int:
        """Monotonic host time [ns]."""
        return time.monotonic_ns()

    def wait(self, seconds: float) -> None:
        """Sleep.  Raises ValueError for a negative or non-finite duration."""
        if not (math.isfinite(seconds) and seconds >= 0.0):
            raise ValueError(f"cannot wait {seconds!r} s; give a finite duration of at least 0")
        time.sleep(seconds)

    def unix_s(self) -> float:
        """Wall time [s since 1970]."""
        return time.time()
