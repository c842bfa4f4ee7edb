"""The rhythm of polling, on a clock of the test's own."""

import threading
import time

import numpy as np

from collector.devices.polling import LONGEST_BRACKET_NS, LONGEST_PAUSE_NS, PAUSE_SHARE, Poller
from collector.errors import DeviceError

PERIOD_NS = 1_000_000
POLLS = 12


def polled(monkeypatch, reading_ns):
    """When each poll began, the stamps and the values; the poll of a number takes `reading_ns`, others no time."""
    now_ns, began, done = [0], [], threading.Event()

    def read():
        number = len(began)
        if number == POLLS:
            done.set()
            raise DeviceError("the end")
        began.append(now_ns[0])
        now_ns[0] += reading_ns.get(number, 0)
        return (float(number),)

    def sleep(seconds):
        now_ns[0] += round(seconds * 1e9)

    poller = Poller("test", read, 1, PERIOD_NS * 1e-9)
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic_ns", lambda: now_ns[0])
        patched.setattr(time, "sleep", sleep)
        with poller:
            assert done.wait(10.0)
    stamps, rows = poller.take()
    return began, stamps, rows[:, 0]


def test_a_delay_is_not_made_up_for_by_a_burst(monkeypatch):
    began, *_ = polled(monkeypatch, {2: 8 * PERIOD_NS})
    after_ns = (2 + 8 + 8 * PAUSE_SHARE) * PERIOD_NS
    assert began[:4] == [0, PERIOD_NS, 2 * PERIOD_NS, after_ns]
    assert set(np.diff(began[3:]).tolist()) == {PERIOD_NS}


def test_slow_calls_take_a_fifth_of_the_time_and_are_kept_with_their_cost(monkeypatch):
    slow_ns = LONGEST_BRACKET_NS + 2 * PERIOD_NS
    began, stamps, values = polled(monkeypatch, dict.fromkeys(range(POLLS), slow_ns))
    assert set(np.diff(began).tolist()) == {slow_ns + min(PAUSE_SHARE * slow_ns, LONGEST_PAUSE_NS)}
    assert set(stamps - began) == {slow_ns // 2}
    assert values.tolist() == [*range(POLLS)]


def test_a_value_that_took_too_long_is_not_kept(monkeypatch):
    _, stamps, values = polled(monkeypatch, {1: LONGEST_BRACKET_NS + 1, 4: LONGEST_BRACKET_NS})
    assert len(stamps) == POLLS - 1
    assert 1.0 not in values.tolist()
