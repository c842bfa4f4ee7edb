"""The meter as a power sensor of a bench: a thread drains the port, `read` returns its samples."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Thread
from time import monotonic_ns
from typing import Final

import numpy as np

from collector.devices.errors import DeviceError
from collector.devices.protocols import EnergyReading, PowerReadings
from collector.pmd.clock_tie import ClockTie, fit_clock_tie
from collector.pmd.meter import Meter, Received, open_meter
from collector.pmd.protocol import NS_PER_S, PMD_USB, STREAM_BAUD, MeterIdentity, MeterModel, MeterSamples
from collector.pmd.stream import Part, open_stream

TIE_WINDOW_NS: Final = 20 * NS_PER_S
"""Time span of arrivals for the live tie: one segment of the recorded one."""


class LiveDecoder:
    """Turns arrivals into samples; those of a PMD-USB are tied to host time by the arrivals of the last twenty seconds."""

    def __init__(self, model: MeterModel) -> None:
        self._model = model
        self._stream = open_stream(model, STREAM_BAUD)
        self._zero_a = np.zeros(len(model.rails))
        self._bytes = 0
        self._seen: deque[tuple[int, int]] = deque()  # ticks and host time of the last packet of each arrival
        self._parts: list[Part] = []
        self._tie: ClockTie | None = None
        self._tied_ns = self._last_ns = 0

    def add(self, received: Received) -> None:
        """Take an arrival."""
        self._bytes += len(received.data)
        part = self._stream.add(received.data, np.array([self._bytes]), np.array([received.host_ns]))
        self._seen += zip(part.seen_ticks.tolist(), part.seen_ns.tolist(), strict=True)
        while self._seen and self._seen[0][1] < received.host_ns - TIE_WINDOW_NS:
            self._seen.popleft()
        self._parts.append(part)

    def take(self) -> MeterSamples:
        """Every sample since the last call; times never run backwards, even after a renewal of the tie."""
        parts, self._parts = self._parts, []
        ticks = np.concatenate([np.zeros(0, dtype=np.int64), *(part.ticks for part in parts)])
        raw = np.concatenate([np.zeros((0, 2 * len(self._model.rails)), dtype=np.int16), *(part.raw for part in parts)])
        if self._model is PMD_USB and len(ticks):
            ticks = np.maximum.accumulate(np.maximum(self._renewed_tie().host_ns(ticks), self._last_ns))
            self._last_ns = int(ticks[-1])
        return self._model.samples(ticks, raw, self._zero_a)

    def _renewed_tie(self) -> ClockTie:
        """The tie, fitted again if it has become old."""
        now = self._seen[-1][1]
        if self._tie is None or now - self._tied_ns > 0.5 * NS_PER_S:
            ticks, host_ns = np.array(self._seen, dtype=np.int64).T
            self._tie, self._tied_ns = fit_clock_tie(ticks, host_ns), now
        return self._tie


class PmdSensor:
    """An ElmorLabs PMD; implements PowerSensor, one field for each chosen rail."""

    def __init__(self, meter: Meter, rails: Sequence[int]) -> None:
        self._meter, self._rails = meter, rails
        self._decoder = LiveDecoder(meter.identity.model)
        self._changed = Condition()
        self._heard_ns = 0
        self.ended = False
        self._failure: DeviceError | None = None

    @property
    def identity(self) -> MeterIdentity:
        """Identity of the meter."""
        return self._meter.identity

    def name(self) -> str:
        """Name of the source."""
        return "pmd"

    def fields(self) -> tuple[str, ...]:
        """The rails that `read` returns."""
        return tuple(self.identity.model.rails[rail] for rail in self._rails)

    def read(self) -> tuple[PowerReadings, ...]:
        """Every sample since the last call, including those during this call; one entry for each rail, stamps shared.

        Raises DeviceError, permanently, if the meter has gone or stopped: a reading with a hole is invalid.
        """
        called_ns = monotonic_ns()
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self.ended or self._heard_ns >= called_ns, timeout=0.1)
            if self._failure is not None:
                raise self._failure
            samples = self._decoder.take()
        power_w = samples.rail_power_w()
        return tuple(
            PowerReadings(field=name, host_ns=samples.host_ns, power_w=power_w[:, rail].copy())
            for name, rail in zip(self.fields(), self._rails, strict=True)
        )

    def read_energy(self) -> EnergyReading | None:
        """None: the meter has no counter."""
        return None

    def drain(self) -> None:
        """Main function of the draining thread: every arrival goes to the decoder at once."""
        while not self.ended and self._failure is None:
            try:
                received = self._meter.receive(0.05)  # then the thread checks whether it should end
                if received is None:
                    continue
                with self._changed:
                    self._decoder.add(received)
                    self._heard_ns = received.host_ns
                    self._changed.notify_all()
            except DeviceError as error:
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()


@contextmanager
def open_pmd(port: str, *, rails: Sequence[str] = ()) -> Iterator[PmdSensor]:
    """A meter at a serial port as a power sensor, draining from now on and stopped at the end.

    `rails` are those to return; by default, those that usually feed a board.  Stamps are of `time.monotonic_ns`.

    Raises DeviceError if no meter answers or a rail is unknown.
    """
    with open_meter(port) as meter:
        sensor = PmdSensor(meter, meter.identity.model.chosen_rails(rails))
        thread = Thread(target=sensor.drain, name="pmd", daemon=True)
        thread.start()
        try:
            yield sensor
        finally:
            sensor.ended = True
            thread.join()
