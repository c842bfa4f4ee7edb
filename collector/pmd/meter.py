"""Two meters behind one protocol: the PMD-USB, which streams, and the PMD2, which answers requests.

`open_meter` determines which of them answers at a port, and leaves it in the state that vendor tools expect.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic_ns, sleep
from typing import Final

from collector.errors import DeviceError
from collector.pmd.protocol import (
    ANSWER_LIMIT_NS,
    BLOCK,
    MODELS,
    NS_PER_S,
    PAUSE_NS,
    PMD2,
    PMD_USB,
    POWER_ON_BAUD,
    PROBED_BAUDS,
    START_STREAM,
    STOP_STREAM,
    STREAM_BAUD,
    VENDOR,
    MeterModel,
    Opcode,
    uart_command,
)
from collector.pmd.serial_line import SerialLine, open_line
from estimator.vocabulary.values import frozen

ANSWER_LIMIT_S: Final = ANSWER_LIMIT_NS / NS_PER_S


@frozen
class Received:
    """Bytes from a meter and their host time [ns]: a piece of the stream, or the answer to one request."""

    data: bytes
    host_ns: int


class PmdUsb:
    """The PMD-USB: 4780 packets a second at 921600 baud, each with a time stamp of its own; a Meter."""

    model = PMD_USB

    def __init__(self, line: SerialLine, firmware: int) -> None:
        self.firmware = firmware
        self._line = line
        self._heard_ns = 0

    def start(self) -> None:
        """Switch to the streaming rate, start the stream."""
        for _ in range(4):
            if self._follows(STREAM_BAUD):
                break
            find_meter(self._line)
        else:
            raise DeviceError(f"{self._line.port}: the meter does not follow to {STREAM_BAUD} baud; unplug it and plug it in again")
        self._line.write(START_STREAM)
        self._heard_ns = monotonic_ns()

    def receive(self, limit_s: float) -> Received | None:
        """A piece of the stream; a meter counts as stopped after a second without data."""
        data = self._line.read_waiting(limit_s)
        now = monotonic_ns()
        if data:
            self._heard_ns = now
            return Received(data=data, host_ns=now)
        if now - self._heard_ns > NS_PER_S:
            raise _stopped(self._line.port)
        return None

    def stop(self) -> None:
        """End the stream; back to the power-on rate."""
        self._line.write(STOP_STREAM)
        self._line.drain()
        self._follows(POWER_ON_BAUD)

    def _follows(self, baud: int) -> bool:
        """Whether the device answers after a change of its line rate and ours."""
        self._line.write(uart_command(baud))
        # The device needs time to switch its line rate; the published logger waits as long after each command.
        self._line.drain(0.05)
        self._line.set_baud(baud)
        return _asked(self._line) is not None


class Pmd2:
    """The PMD2: no stamps and no line rate, one block of values for each request; a Meter."""

    model = PMD2

    def __init__(self, line: SerialLine, firmware: int) -> None:
        self.firmware = firmware
        self._line = line
        self._next_ns = 0

    def start(self) -> None:
        """Discards what came before: values are requested one by one."""
        self._line.drain()

    def receive(self, limit_s: float) -> Received | None:
        """One block; its time is the middle between request and answer."""
        for _ in range(3):
            sleep(max(0.0, (self._next_ns - monotonic_ns()) / NS_PER_S))
            asked_ns = monotonic_ns()
            self._line.write(bytes((Opcode.PMD2_READ_SENSORS,)))
            data = self._line.read_exactly(BLOCK.itemsize, max(limit_s, ANSWER_LIMIT_S))
            answered_ns = monotonic_ns()
            self._next_ns = answered_ns + PAUSE_NS
            if len(data) == BLOCK.itemsize:
                return Received(data=data, host_ns=(asked_ns + answered_ns) // 2)
            self._line.drain()  # a byte is missing: the rest of that answer must not begin the next
        raise _stopped(self._line.port)

    def stop(self) -> None:
        """Does nothing: the meter sends only on request."""


Meter = PmdUsb | Pmd2
"""A meter at an open port, between `start` and `stop`; its methods raise DeviceError if it is gone."""


@contextmanager
def open_meter(port: str) -> Iterator[Meter]:
    """Find the meter at a port, start its data, and stop it at the end.

    Raises DeviceError if the port cannot be opened or no PMD-USB or PMD2 answers.
    """
    with open_line(port, POWER_ON_BAUD) as line:
        model, firmware = find_meter(line)
        meter: Meter = PmdUsb(line, firmware) if model is PMD_USB else Pmd2(line, firmware)
        try:
            meter.start()
            yield meter
        finally:
            with suppress(DeviceError):  # the fault was reported already; a missing meter needs no stopping
                meter.stop()


def find_meter(line: SerialLine) -> tuple[MeterModel, int]:
    """Model and firmware of the meter at the other end, at any line rate; the line is at that rate afterwards.

    Raises DeviceError if no known meter answers.
    """
    for baud in 2 * PROBED_BAUDS:
        line.set_baud(baud)
        # No PMD2, to which the stop command is a write to its configuration: that has one late answer at most.
        if line.drain() > 4 * BLOCK.itemsize:
            line.write(STOP_STREAM)
            line.drain()
        found = _asked(line)
        if found is not None:
            return found
    raise DeviceError(f"{line.port}: no answer of a PMD-USB or PMD2 at {', '.join(map(str, PROBED_BAUDS))} baud; replug it if it is one")


def _asked(line: SerialLine) -> tuple[MeterModel, int] | None:
    """Model and firmware of the meter at the current line rate; None for silence, noise or another device."""
    line.write(bytes((Opcode.READ_ID,)))
    answer = line.read_exactly(3, ANSWER_LIMIT_S)
    if line.drain() or len(answer) != 3:
        return None
    return next(((model, answer[2]) for model in MODELS.values() if answer[:2] == bytes((VENDOR, model.product))), None)


def _stopped(port: str) -> DeviceError:
    return DeviceError(f"{port}: the meter stopped sending; plug it in again, then run the command again, a campaign with --resume")
