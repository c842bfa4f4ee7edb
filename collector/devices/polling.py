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
"""Longest duration of a kept reading [ns]: the time of a slower one is too uncertain."""


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


class Poller:
    """Calls `read` every `period_s` in a thread and keeps its values, `width` of them a time, until `take`; polls within a block.

    Each poll is stamped with the middle of its call in monotonic host time [ns].  None is "no values this time".
    """

    def __init__(self, name: str, read: Callable[[], Sequence[float] | None], width: int, period_s: float) -> None:
        self._read = read
        self._width = width
        self._period_ns = round(period_s * 1e9)
        self._ended = False
        # Twice the stamp and the values; one thread appends, another takes: both are atomic.
        self._kept: deque[tuple[int, Sequence[float]]] = deque(maxlen=3_000_000)
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
        rows = np.reshape(np.array([values for _, values in kept], dtype=np.float64), (len(kept), self._width))
        return np.array([twice for twice, _ in kept], dtype=np.int64) // 2, rows

    def _run(self) -> None:
        """Poll until the end.

        A thread that wakes up a thousand times a second finds its caches cold, and pays for the amount of code rather than
        for its work: operations that can wait, such as halving, belong to `take`.
        """
        now_ns, sleep, read, keep = time.monotonic_ns, time.sleep, self._read, self._kept.append
        period_ns, longest_ns, s_per_ns = self._period_ns, LONGEST_BRACKET_NS, 1e-9
        due = now_ns()
        while not self._ended:
            before = now_ns()
            try:
                values = read()
            except DeviceError as error:
                self._failure = error
                return
            after = now_ns()
            if values is not None and after - before <= longest_ns:
                keep((before + after, values))
            due += period_ns
            if due > after:
                sleep((due - after) * s_per_ns)
            elif due < after - period_ns:  # no burst of polls after a delay
                due = after - period_ns
