"""Polling a device in a thread: stamped values that wait until somebody takes them."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from collector.errors import DeviceError
from estimator.quantities import Array, IntArray

NS_PER_S: Final = 1e9

LONGEST_BRACKET_NS: Final = 10_000_000
"""A value whose reading took longer than this is not kept: nobody knows when it was true [ns]."""

MOST_KEPT: Final = 4_000_000
"""Values that wait at most; older ones go first.  Two hours at 500 Hz."""

JOIN_S: Final = 5.0
"""Patience for a thread that is stuck inside the driver [s]."""


class Poller:
    """Calls `read` every `period_s` in a thread and keeps its rows of `width` numbers until `take`.

    Each row is stamped with the middle of its call in monotonic host time [ns].  None is "no value this time".
    """

    def __init__(self, name: str, read: Callable[[], tuple[float, ...] | None], width: int, period_s: float) -> None:
        self._name = name
        self._read = read
        self._width = width
        self._period_ns = round(period_s * NS_PER_S)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._stamps: list[int] = []
        self._rows: list[tuple[float, ...]] = []
        self._failure: DeviceError | None = None
        self._slow = 0
        self._thread = threading.Thread(target=self._run, name=f"poll {name}", daemon=True)

    @property
    def slow_polls(self) -> int:
        """Polls whose value was not kept because the call took too long."""
        return self._slow

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling; harmless when it never began."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def take(self) -> tuple[IntArray, Array]:
        """Everything since the last call: stamps [ns], shape (n,), and rows, shape (n, width).

        Raises the DeviceError that ended the polling, once what came before it has been taken.
        """
        with self._lock:
            stamps, rows, self._stamps, self._rows = self._stamps, self._rows, [], []
            failure = self._failure
        if failure is not None and not stamps:
            raise failure
        return np.array(stamps, dtype=np.int64), np.array(rows, dtype=np.float64).reshape(len(rows), self._width)

    def _run(self) -> None:
        now_ns, read, period_ns = time.monotonic_ns, self._read, self._period_ns
        due = now_ns()
        while not self._stop.is_set():
            before = now_ns()
            try:
                row = read()
            except DeviceError as error:
                with self._lock:
                    self._failure = error
                return
            after = now_ns()
            if after - before > LONGEST_BRACKET_NS:
                self._slow += 1
            elif row is not None:
                self._keep((before + after) // 2, row)
            due = max(due + period_ns, after - period_ns)  # a delay is not made up for by a burst
            remaining = due - now_ns()
            if remaining > 0:
                time.sleep(remaining / NS_PER_S)

    def _keep(self, stamp: int, row: tuple[float, ...]) -> None:
        with self._lock:
            self._stamps.append(stamp)
            self._rows.append(row)
            if len(self._stamps) > MOST_KEPT:
                del self._stamps[: MOST_KEPT // 2]
                del self._rows[: MOST_KEPT // 2]


@contextmanager
def polling(*pollers: Poller) -> Iterator[None]:
    """Pollers running within a block."""
    try:
        for poller in pollers:
            poller.start()
        yield
    finally:
        for poller in pollers:
            poller.stop()


def finite_or_nan(value: float | None) -> float:
    """A number for a column; nan for "not known"."""
    return math.nan if value is None else value
