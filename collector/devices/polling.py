"""The host's clock, and polling a device in a thread: stamped values that wait until they are taken."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from collector.errors import DeviceError
from estimator.vocabulary.quantities import Array, IntArray

LONGEST_BRACKET_NS: Final = 10_000_000
"""Longest duration of a kept reading [ns]: the time of a slower one is too uncertain.  Where calls usually take more than half of it,
twice the usual duration."""

PAUSE_SHARE: Final = 4
"""Least pause after a call, as a multiple of the call's duration: calls of the driver wait for each other, and polling takes a fifth of the
time at most [1]."""

LONGEST_PAUSE_NS: Final = 50_000_000
"""Longest such pause [ns]: a single delayed call leaves no longer gap."""


class HostClock:
    """Real time; implements Clock."""

    def now_ns(self) -> int:
        """Monotonic host time [ns]."""
        return time.monotonic_ns()

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def unix_s(self) -> float:
        """Wall time [s since 1970]."""
        return time.time()


class Poller:
    """Calls `read` every `period_s` in a thread and keeps its values, `width` of them a time, until `take`; polls within a block.

    Where calls are slow, the pause after each is at least PAUSE_SHARE times its duration.  Each poll is stamped with the
    middle of its call in monotonic host time [ns].  None is "no values this time".
    """

    def __init__(self, name: str, read: Callable[[], Sequence[float] | None], width: int, period_s: float) -> None:
        self._read = read
        self._width = width
        self._period_ns = round(period_s * 1e9)
        self._ended = False
        # Twice the stamp, the duration and the values; one thread appends, another takes: both are atomic.
        self._kept: deque[tuple[int, int, Sequence[float]]] = deque(maxlen=3_000_000)
        self._durations_ns: Array = np.zeros(0)
        self._failure: DeviceError | None = None
        self._thread = threading.Thread(target=self._run, name=f"poll {name}", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join(5.0)  # longest wait for a thread that is stuck inside the driver [s]

    def take(self) -> tuple[IntArray, Array]:
        """Everything since the last call: stamps [ns], shape (n,), and rows, shape (n, width).

        Raises the DeviceError that ended the polling, after all earlier values have been taken.
        """
        failure = self._failure  # read first: the values before it are among the kept
        kept = [self._kept.popleft() for _ in range(len(self._kept))]
        if failure is not None and not kept:
            raise failure
        rows = np.reshape(np.array([values for *_, values in kept], dtype=np.float64), (len(kept), self._width))
        durations = np.array([duration for _, duration, _ in kept], dtype=np.float64)
        self._durations_ns = np.concatenate([self._durations_ns, durations])[-10_000:]  # enough for a percentile
        good = durations <= max(LONGEST_BRACKET_NS, 2.0 * float(np.median(self._durations_ns)) if len(self._durations_ns) else 0.0)
        return np.array([twice for twice, *_ in kept], dtype=np.int64)[good] // 2, rows[good]

    def cost_s(self) -> tuple[float, float]:
        """Median and 99th percentile of the duration of the taken calls [s]; nan without any."""
        if not len(self._durations_ns):
            return math.nan, math.nan
        p50, p99 = 1e-9 * np.percentile(self._durations_ns, [50, 99])
        return float(p50), float(p99)

    def _run(self) -> None:
        """Poll until the end.

        A thread that wakes up a thousand times a second finds its caches cold, and pays for the amount of code rather than
        for its work: operations that can wait, such as halving, belong to `take`.
        """
        now_ns, sleep, read, keep = time.monotonic_ns, time.sleep, self._read, self._kept.append
        period_ns, longest_ns, s_per_ns = self._period_ns, LONGEST_PAUSE_NS, 1e-9
        due = now_ns()
        while not self._ended:
            before = now_ns()
            try:
                values = read()
            except DeviceError as error:
                self._failure = error
                return
            after = now_ns()
            cost = after - before
            if values is not None:
                keep((before + after, cost, values))
            due = max(due + period_ns, after + min(PAUSE_SHARE * cost, longest_ns))  # no burst of polls after a delay
            sleep((due - after) * s_per_ns)
