"""The meter as a power sensor of a bench: a thread drains the port, `read` hands over what it found."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Thread
from time import monotonic_ns
from typing import Final

from collector.devices.errors import DeviceError
from collector.devices.protocols import EnergyReading, PowerReadings
from collector.pmd.decoder import Tally
from collector.pmd.live import LiveDecoder, live_decoder
from collector.pmd.meter import Meter, open_meter
from collector.pmd.protocol import MeterIdentity
from collector.pmd.samples import MODEL_RAILS, chosen_rails
from collector.pmd.zero import zero_currents

READ_SLICE_S: Final = 0.05
"""Longest time for which the thread waits for bytes before it looks whether it is still wanted."""
CATCH_UP_S: Final = 0.1
"""Longest time for which `read` waits for samples that were taken before it was called."""
MOST_WAITING: Final = 8_000_000
"""Samples that may wait to be read: 28 minutes of a PMD-USB, 200 MB."""


class PmdSensor:
    """An ElmorLabs PMD; implements PowerSensor, one field for each rail that was chosen."""

    def __init__(self, meter: Meter, decoder: LiveDecoder, rails: tuple[int, ...]) -> None:
        self._meter, self._decoder, self._rails = meter, decoder, rails
        self._changed = Condition()
        self._heard_ns = 0
        self._ended = False
        self._failure: DeviceError | None = None
        self._thread = Thread(target=self._drain, name="pmd", daemon=True)

    @property
    def identity(self) -> MeterIdentity:
        """Which meter it is."""
        return self._meter.identity

    def name(self) -> str:
        """What the source is."""
        return "pmd"

    def fields(self) -> tuple[str, ...]:
        """The rails that `read` hands over."""
        names = MODEL_RAILS[self.identity.model]
        return tuple(names[rail] for rail in self._rails)

    def read(self) -> tuple[PowerReadings, ...]:
        """Every sample since the last call, those taken until this call included; one entry for each rail, stamps shared.

        Raises DeviceError, once and for all, where the meter has gone or stopped: a reading with a hole is none.
        """
        called_ns = monotonic_ns()
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._ended or self._heard_ns >= called_ns, CATCH_UP_S)
            if self._failure is not None:
                raise self._failure
            samples = self._decoder.take()
        power_w = samples.rail_power_w()
        return tuple(
            PowerReadings(field=name, host_ns=samples.host_ns, power_w=power_w[:, rail].copy())
            for name, rail in zip(self.fields(), self._rails, strict=True)
        )

    def read_energy(self) -> EnergyReading | None:
        """The meter has no counter."""
        return None

    def tally(self) -> Tally:
        """What became of the meter's bytes so far: samples, breaks, bytes thrown away."""
        with self._changed:
            return self._decoder.tally()

    def start(self) -> None:
        """Begin to drain the port; used by `open_pmd` alone."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; used by `open_pmd` alone."""
        with self._changed:
            self._ended = True
        self._thread.join()

    def _drain(self) -> None:
        """The thread: everything that arrives goes to the decoder at once."""
        while not self._ended:
            try:
                received = self._meter.receive(READ_SLICE_S)
                if received is not None:
                    with self._changed:
                        self._decoder.add(received)
                        self._check_waiting()
                        self._heard_ns = received.host_ns
                        self._changed.notify_all()
            except DeviceError as error:
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return

    def _check_waiting(self) -> None:
        if self._decoder.waiting() > MOST_WAITING:
            raise DeviceError(f"the meter's last {MOST_WAITING} samples were never read; read it at least every 20 minutes")


@contextmanager
def open_pmd(port: str, *, rails: Sequence[str] = (), zero: Path | None = None) -> Iterator[PmdSensor]:
    """A meter at a serial port as a power sensor, draining from now on and stopped at the end.

    `rails` are those to hand over (without any, those that usually feed a board); `zero` is a recording with nothing
    plugged in, whose mean currents are subtracted.  Stamps are of `time.monotonic_ns`.

    Raises DeviceError where no meter answers or a rail is unknown, DatasetError for a recording that gives no zero.
    """
    with open_meter(port) as meter:
        model = meter.identity.model
        chosen = chosen_rails(model, rails)
        sensor = PmdSensor(meter, live_decoder(model, zero_currents(model, zero)), chosen)
        sensor.start()
        try:
            yield sensor
        finally:
            sensor.close()
