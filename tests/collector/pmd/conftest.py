"""An emulated meter behind a real terminal."""

import math
import os
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic_ns

import pytest

from collector.pmd.emulated import EmulatedMeter, open_pseudo_terminal, serve_meter


@dataclass(frozen=True)
class EmulatedPort:
    """Path of the terminal, the meter behind it, and the host time at which its wave began."""

    path: str
    meter: EmulatedMeter
    start_ns: int


@contextmanager
def emulated_port(**state):
    """A meter that lives in a thread until the end of the block, or until it is unplugged."""
    ready = SimpleQueue()
    stop = Event()

    def live():
        with open_pseudo_terminal() as ends:
            begin = monotonic_ns()
            meter = EmulatedMeter(start_ns=begin, **state)
            ready.put(EmulatedPort(path=os.ttyname(ends[1]), meter=meter, start_ns=begin))
            serve_meter(ends, meter, stop, until_ns=math.inf)

    thread = Thread(target=live)
    thread.start()
    try:
        yield ready.get(timeout=300.0)
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def port_of():
    """`emulated_port`, for tests."""
    return emulated_port
