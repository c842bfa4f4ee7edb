"""An emulated meter behind a real terminal."""

import math
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic_ns

from collector.pmd.emulated import EmulatedMeter, open_pseudo_terminal, serve_meter


class UnpluggedError(Exception):
    """The port has vanished."""


@dataclass(kw_only=True)
class FaultyMeter(EmulatedMeter):
    """A meter with an error of its clock, without packets in the `hole_s` from begin to end, or unplugged [s after it began to stream]."""

    hole_s: tuple[float, float] = (0.0, 0.0)
    unplug_s: float = math.inf
    clock_error_ppm: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        self._ticks_per_ns *= 1.0 + 1e-6 * self.clock_error_ppm

    def send(self, host_baud, now_ns):
        streams_ns = now_ns if self._stream_ns is None else self._stream_ns
        if now_ns >= streams_ns + self.unplug_s * 1e9:
            raise UnpluggedError
        begin_ns, end_ns = (round(min(now_ns, streams_ns + at_s * 1e9)) for at_s in self.hole_s)
        before, _, after = (super(FaultyMeter, self).send(host_baud, until_ns) for until_ns in (begin_ns, end_ns, now_ns))
        return before + after


@dataclass(frozen=True)
class EmulatedPort:
    """Path of the terminal, the meter behind it, and the host time at which its wave began."""

    path: str
    meter: FaultyMeter
    start_ns: int


@contextmanager
def emulated_port(**state):
    """A meter that lives in a thread until the end of the block, or until it is unplugged."""
    ready = SimpleQueue()
    stop = Event()

    def live():
        with open_pseudo_terminal() as ends, suppress(UnpluggedError):
            begin = monotonic_ns()
            meter = FaultyMeter(start_ns=begin, **state)
            ready.put(EmulatedPort(path=os.ttyname(ends[1]), meter=meter, start_ns=begin))
            serve_meter(ends, meter, stop, until_ns=math.inf)

    thread = Thread(target=live)
    thread.start()
    try:
        yield ready.get(timeout=300.0)
    finally:
        stop.set()
        thread.join()
