"""Two meters behind one protocol: the PMD-USB, which streams, and the PMD2, which is asked.

`open_meter` finds out which of them answers at a port, and leaves it as vendor tools expect it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic_ns, sleep
from typing import Final, Protocol

from collector.devices.errors import DeviceError
from collector.pmd.packets import RAILS
from collector.pmd.pmd2_block import BLOCK_BYTES, PMD2_RAILS
from collector.pmd.protocol import (
    ID_BYTES,
    PMD2_READ_SENSORS,
    PMD2_READ_UID,
    POWER_ON_BAUD,
    PROBED_BAUDS,
    READ_ID,
    START_STREAM,
    STOP_STREAM,
    STREAM_BAUD,
    UID_BYTES,
    VENDORS,
    MeterIdentity,
    identity_from_bytes,
    uart_command,
)
from collector.pmd.serial_line import CDC_USB_ID, SerialLine, open_line

ANSWER_LIMIT_S: Final = 0.1
"""Time the vendor's tool gives an answer."""
QUIET_S: Final = 0.03
"""Silence after which nothing more is on its way: six packets' time at the slowest line rate, and a USB frame."""
DRAIN_LIMIT_S: Final = 0.3
SETTLE_S: Final = 0.05
"""Time the device gets to switch its line rate; the published logger waits as long after each command."""
DANCES: Final = 4
"""Attempts to agree on a line rate before the meter counts as dead."""
SILENCE_LIMIT_S: Final = 1.0
"""A meter from which nothing has come for this long has stopped."""
POLL_PAUSE_S: Final = 0.002
"""Pause between two questions to a PMD2."""
POLL_RETRIES: Final = 3
UNASKED_WELCOME_BYTES: Final = 64
"""More unasked bytes than any welcome has: the meter is still streaming for a session that died."""
NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Bytes from a meter and when the host had them [ns]: a piece of the stream, or the answer to one question."""

    data: bytes
    host_ns: int


class Meter(Protocol):
    """A meter at an open port, between `start` and `stop`."""

    @property
    def identity(self) -> MeterIdentity:
        """Which meter it is."""

    @property
    def rails(self) -> tuple[str, ...]:
        """Its channels, in the order of its data."""

    def start(self) -> None:
        """Make it send.  Raises DeviceError."""

    def receive(self, limit_s: float) -> Received | None:
        """What has come, or None after the time limit.  Raises DeviceError where the meter is gone or has stopped."""

    def stop(self) -> None:
        """Make it stop, and leave it at its power-on line rate.  Raises DeviceError."""


class PmdUsb:
    """The PMD-USB: 4780 packets a second at 921600 baud, each with a time stamp of its own; implements Meter."""

    def __init__(self, line: SerialLine, identity: MeterIdentity, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self._line, self._identity, self._now_ns = line, identity, now_ns
        self._heard_ns = 0

    @property
    def identity(self) -> MeterIdentity:
        """Which meter it is."""
        return self._identity

    @property
    def rails(self) -> tuple[str, ...]:
        """Its channels."""
        return RAILS

    def start(self) -> None:
        """Switch to the streaming rate, begin to stream."""
        self._dance(STREAM_BAUD, DANCES)
        self._line.write(START_STREAM)
        self._heard_ns = self._now_ns()

    def receive(self, limit_s: float) -> Received | None:
        """A piece of the stream."""
        data = self._line.read_waiting(limit_s)
        now = self._now_ns()
        if data:
            self._heard_ns = now
            return Received(data=data, host_ns=now)
        _check_silence(self._line.port, now - self._heard_ns)
        return None

    def stop(self) -> None:
        """End the stream; back to the power-on rate."""
        self._line.write(STOP_STREAM)
        self._line.drain(QUIET_S, DRAIN_LIMIT_S)
        self._dance(POWER_ON_BAUD, 1)

    def _dance(self, baud: int, attempts: int) -> None:
        """Agree on a line rate: tell the device, follow it, ask who it is; find it again where it does not answer."""
        for _ in range(attempts):
            self._line.write(uart_command(baud))
            self._line.drain(SETTLE_S, DRAIN_LIMIT_S)
            self._line.set_baud(baud)
            if _asked(self._line) is not None:
                return
            find_meter(self._line)
        raise DeviceError(f"{self._line.port}: the meter does not follow to {baud} baud; unplug it and plug it in again")


class Pmd2:
    """The PMD2: no stamps and no line rate, one block of values to each question; implements Meter."""

    def __init__(self, line: SerialLine, identity: MeterIdentity, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self._line, self._identity, self._now_ns = line, identity, now_ns
        self._next_ns = 0

    @property
    def identity(self) -> MeterIdentity:
        """Which meter it is."""
        return self._identity

    @property
    def rails(self) -> tuple[str, ...]:
        """Its channels."""
        return PMD2_RAILS

    def start(self) -> None:
        """Read the chip's UID; values are asked for one by one."""
        self._line.write(bytes((PMD2_READ_UID,)))
        uid = self._line.read_exactly(UID_BYTES, ANSWER_LIMIT_S)
        self._identity = replace(self._identity, uid=uid.hex() if len(uid) == UID_BYTES else "")
        self._line.drain(QUIET_S, DRAIN_LIMIT_S)

    def receive(self, limit_s: float) -> Received | None:
        """One block; its time is the middle between question and answer."""
        for _ in range(POLL_RETRIES):
            sleep(max(0.0, (self._next_ns - self._now_ns()) / NS_PER_S))
            asked_ns = self._now_ns()
            self._line.write(bytes((PMD2_READ_SENSORS,)))
            data = self._line.read_exactly(BLOCK_BYTES, max(limit_s, ANSWER_LIMIT_S))
            answered_ns = self._now_ns()
            self._next_ns = answered_ns + round(POLL_PAUSE_S * NS_PER_S)
            if len(data) == BLOCK_BYTES:
                return Received(data=data, host_ns=(asked_ns + answered_ns) // 2)
            self._line.drain(QUIET_S, DRAIN_LIMIT_S)  # a byte went missing: the rest of that answer must not begin the next
        raise _stopped(self._line.port)

    def stop(self) -> None:
        """Nothing to end: it speaks only when asked."""


@contextmanager
def open_meter(port: str) -> Iterator[Meter]:
    """Find the meter at a port, make it send, and stop it at the end.

    Raises DeviceError where the port cannot be opened or no PMD-USB or PMD2 answers.
    """
    with open_line(port, POWER_ON_BAUD) as line:
        identity = find_meter(line)
        meter: Meter = PmdUsb(line, identity) if identity.model == "PMD-USB" else Pmd2(line, identity)
        try:
            meter.start()
            yield meter
        finally:
            with suppress(DeviceError):  # what went wrong was said already; a meter that is gone needs no stopping
                meter.stop()


def find_meter(line: SerialLine) -> MeterIdentity:
    """Who is at the other end, at whatever rate it was left; the line is at that rate afterwards.

    Raises DeviceError where nothing known answers.
    """
    heard = 0
    for _ in range(2):
        for baud in PROBED_BAUDS:
            line.set_baud(baud)
            unasked = line.drain(QUIET_S, DRAIN_LIMIT_S)
            if unasked > UNASKED_WELCOME_BYTES:
                if line.usb_id == CDC_USB_ID:  # to a PMD2 the PMD-USB's stop command is a write to its configuration
                    raise DeviceError(f"{line.port}: the meter sends without being asked; unplug it and plug it in again")
                line.write(STOP_STREAM)
                line.drain(QUIET_S, DRAIN_LIMIT_S)
            identity = _asked(line)
            if identity is not None:
                return identity
            heard += unasked
    what = f"{heard} unasked bytes, but no answer" if heard else "no answer"
    raise DeviceError(f"{line.port}: {what} at {', '.join(map(str, PROBED_BAUDS))} baud; no ElmorLabs PMD is here, or it hangs: replug it")


def _asked(line: SerialLine) -> MeterIdentity | None:
    """Who answers at the present line rate; None for silence or noise.  Raises DeviceError for a known stranger."""
    line.write(bytes((READ_ID,)))
    answer = line.read_exactly(ID_BYTES, ANSWER_LIMIT_S)
    surplus = line.drain(QUIET_S, DRAIN_LIMIT_S)
    if len(answer) != ID_BYTES or surplus or answer[0] not in VENDORS:
        return None
    return identity_from_bytes(answer, line.port)


def _check_silence(port: str, silent_ns: int) -> None:
    if silent_ns > SILENCE_LIMIT_S * NS_PER_S:
        raise _stopped(port)


def _stopped(port: str) -> DeviceError:
    return DeviceError(f"{port}: the meter stopped sending; unplug it, plug it in again and start anew")
