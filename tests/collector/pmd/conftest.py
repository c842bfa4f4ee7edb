"""An emulated meter behind a real terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic_ns
from typing import Any

import numpy as np
import pytest

from collector.pmd.emulated_line import EmulatedMeter, FaultyLine, fault_from_text, open_pseudo_terminal, serve_meter
from collector.pmd.emulated_meter import EmulatedState, emulated_meter, square_wave

WAVE = square_wave(60.0, 250.0, 0.1, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedPort:
    """Path of the terminal, the meter behind it, and the host time at which its wave began."""

    path: str
    meter: EmulatedMeter
    start_ns: int


def emulated(start_ns: int, faults: tuple[str, ...] = (), **state: Any) -> EmulatedMeter:
    """A meter without a port."""
    line = FaultyLine([fault_from_text(text) for text in faults], np.random.default_rng(1))
    return emulated_meter(EmulatedState(wave=WAVE, start_ns=start_ns, **state), line, np.random.default_rng(2))


@contextmanager
def emulated_port(faults: tuple[str, ...] = (), **state: Any) -> Iterator[EmulatedPort]:
    """A meter that lives in a thread until the end of the block, or until it is unplugged."""
    ready: SimpleQueue[EmulatedPort] = SimpleQueue()
    stop = Event()

    def live() -> None:
        with open_pseudo_terminal() as terminal:
            begin = monotonic_ns()
            meter = emulated(begin, faults, **state)
            ready.put(EmulatedPort(path=terminal.path, meter=meter, start_ns=begin))
            serve_meter(terminal, meter, stop)

    thread = Thread(target=live)
    thread.start()
    try:
        yield ready.get(timeout=300.0)
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def port_of() -> Callable[..., Any]:
    """`emulated_port`, for tests."""
    return emulated_port
