"""The meter as a power sensor of a bench: a thread drains the port, `read` returns its samples."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Thread
from time import monotonic_ns
from typing import Final

import numpy as np

from collector.devices.protocols import EnergyReading, PowerReadings
from collector.errors import DeviceError
from collector.pmd.clock_tie import fit_clock_tie
from collector.pmd.decoder import NOTHING, Part, open_stream
from collector.pmd.meter import Meter, Received, open_meter
from collector.pmd.protocol import NS_PER_S, PMD_USB, MeterSamples

TIE_WINDOW_NS: Final = 20 * NS_PER_S
"""Time span of arrivals for the live tie: one segment of the recorded one."""


class PmdSensor:
    """An ElmorLabs PMD; implements PowerSensor: the sum of the rails that usually feed a board.

    Samples of a PMD-USB are tied to host time by the arrivals of the last twenty seconds.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter, self._model = meter, meter.model
        self._rails = self._model.chosen_rails(())
        self._stream = open_stream(self._model)
        self._bytes = 0
        self._seen: deque[tuple[int, int]] = deque()  # ticks and host time of the last packet of each arrival
        self._parts: list[Part] = []
        self._last_ns = self._heard_ns = 0
        self._changed = Condition()
        self.ended = False
        self._failure: DeviceError | None = None

    def name(self) -> str:
        """Name of the source."""
        return "pmd"

    def fields(self) -> tuple[str, ...]:
        """The field that `read` returns."""
        return ("total",)

    def read(self) -> tuple[PowerReadings, ...]:
        """Every sample since the last call, including those during this call.

        Raises DeviceError, permanently, if the meter has gone or stopped: a reading with a hole is invalid.
        """
        called_ns = monotonic_ns()
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self.ended or self._heard_ns >= called_ns, timeout=0.1)
            if self._failure is not None:
                raise self._failure
            samples = self._taken()
        total_w = samples.rail_power_w()[:, self._rails].sum(axis=1)
        return (PowerReadings(field="total", host_ns=samples.host_ns, power_w=total_w),)

    def read_energy(self) -> EnergyReading | None:
        """None: the meter has no counter."""
        return None

    def drain(self) -> None:
        """Main function of the draining thread: every arrival is decoded at once."""
        while not self.ended and self._failure is None:
            try:
                received = self._meter.receive(0.05)  # then the thread checks whether it should end
            except DeviceError as error:
                self._failure, received = error, None
            with self._changed:
                if received is not None:
                    self._add(received)
                self._changed.notify_all()

    def _add(self, received: Received) -> None:
        self._bytes += len(received.data)
        part = self._stream.add(received.data, np.array([self._bytes]), np.array([received.host_ns]))
        self._seen += zip(part.seen_ticks.tolist(), part.seen_ns.tolist(), strict=True)
        while self._seen and self._seen[0][1] < received.host_ns - TIE_WINDOW_NS:
            self._seen.popleft()
        self._parts.append(part)
        self._heard_ns = received.host_ns

    def _taken(self) -> MeterSamples:
        """Every sample since the last call; times never run backwards, although each call has a new tie."""
        parts, self._parts = self._parts, []
        host_ns = np.concatenate([NOTHING, *(part.ticks for part in parts)])
        raw = np.concatenate([np.zeros((0, 2 * len(self._model.rails)), dtype=np.int16), *(part.raw for part in parts)])
        if self._model is PMD_USB and len(host_ns):
            tie = fit_clock_tie(*np.array(self._seen, dtype=np.int64).T)
            host_ns = np.maximum.accumulate(np.maximum(tie.host_ns(host_ns), self._last_ns))
            self._last_ns = int(host_ns[-1])
        return self._model.samples(host_ns, raw, np.zeros(len(self._model.rails)))


@contextmanager
def open_pmd(port: str) -> Iterator[PmdSensor]:
    """A meter at a serial port as a power sensor, draining from now on and stopped at the end.

    Stamps are of `time.monotonic_ns`.  Raises DeviceError if no meter answers.
    """
    with open_meter(port) as meter:
        sensor = PmdSensor(meter)
        thread = Thread(target=sensor.drain, name="pmd", daemon=True)
        thread.start()
        try:
            yield sensor
        finally:
            sensor.ended = True
            thread.join()
