"""Tests in real time on a machine that has other things to do: what was held up meanwhile is tried again, and says nothing."""

import threading
import time
from contextlib import suppress
from functools import wraps
from pathlib import Path

import pytest

ATTEMPTS = 10
DEADLINE_S = 600.0
"""Far beyond what a slow machine needs: it is only waited for where something never happens."""
TICK_S = 0.002
HELD_UP_S = 0.01
"""A thread that wakes so late was held up: half of what the tests allow for a delay [s]."""
WAITED_S = 0.05
"""Time for which some process of the machine waited for a core, in all [s]."""
PRESSURE = Path("/proc/pressure/cpu")


class Watch:
    """Watches within a block whether the machine keeps time."""

    def __init__(self):
        self._latest_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        self._waited_s = _waited_s()
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._over.set()
        self._thread.join()

    def held_up(self):
        """Whether it did not."""
        return self._latest_s > HELD_UP_S or _waited_s() - self._waited_s > WAITED_S

    def _look(self):
        while not self._over.is_set():
            before = time.monotonic()
            time.sleep(TICK_S)
            self._latest_s = max(self._latest_s, time.monotonic() - before - TICK_S)


def _waited_s():
    """Time so far for which some process of the machine waited for a core; 0 where Linux does not tell (PSI)."""
    with suppress(OSError, ValueError, IndexError):
        return float(PRESSURE.read_text().split("total=")[1].split()[0]) * 1e-6
    return 0.0


def until(condition, what="what was waited for"):
    """What the condition gives when it holds; fails where it does not within the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.005)
    return found


def in_real_time(test):
    """A test whose failure counts only on a machine that kept time meanwhile; else it is tried again, so many times and no more."""

    @wraps(test)
    def tried(*values, **named):
        for left in reversed(range(ATTEMPTS)):
            watch = Watch()
            try:
                with watch:
                    test(*values, **named)
            except (Exception, pytest.fail.Exception):
                if not (left and watch.held_up()):
                    raise
            else:
                return

    return tried
