"""A serial port, through pyserial; the only file that imports it."""

import errno
import os
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from collector.errors import DeviceError
from estimator.vocabulary.values import frozen

QUIET_S: Final = 0.03
"""Silence after which no more bytes are expected: six packets' time at the slowest line rate, and a USB frame."""
OPEN_TROUBLE: Final[dict[int | None, str]] = {
    errno.EACCES: "not permitted; add the user to the port's group (dialout)",
    errno.EAGAIN: "in use by another program",
}


@frozen
class SerialLine:
    """An open port, and its handle of pyserial.  Everything raises DeviceError once the device is gone."""

    port: str
    handle: Any

    def set_baud(self, baud: int) -> None:
        """Change the host's line rate."""
        with self._trouble():
            self.handle.baudrate = baud

    def write(self, data: bytes) -> None:
        """Send bytes and wait until the driver has them all."""
        with self._trouble():
            self.handle.write(data)
            self.handle.flush()

    def read_exactly(self, count: int, limit_s: float) -> bytes:
        """This many bytes, or fewer at the time limit."""
        end = time.monotonic() + limit_s
        answer, late = b"", False
        with self._trouble():
            while len(answer) < count and not late:
                late = time.monotonic() >= end
                answer += self.handle.read(count - len(answer))
        return answer

    def read_waiting(self, limit_s: float) -> bytes:
        """All waiting bytes, after waiting up to the time limit for the first; empty if none came."""
        first = self.read_exactly(1, limit_s)
        if not first:
            return b""
        time.sleep(0.003)  # one read then fetches many packets
        with self._trouble():
            return first + bytes(self.handle.read(self.handle.in_waiting))

    def drain(self, quiet_s: float = QUIET_S, limit_s: float = 0.3) -> int:
        """Discard incoming bytes until none came for `quiet_s`, for at most `limit_s`; returns their number."""
        end, count = time.monotonic() + limit_s, 0
        while dropped := len(self.read_exactly(4096, quiet_s)):
            count += dropped
            if time.monotonic() >= end:
                break
        return count

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        """Converts errors of the port to a DeviceError."""
        try:
            yield
        except (OSError, termios.error) as error:  # pyserial's own errors are OSErrors; unplugging can raise any of them
            raise DeviceError(f"{self.port}: the meter is gone ({_reason(error)}); check its cable and plug it in again") from error


@contextmanager
def open_line(port: str, baud: int) -> Iterator[SerialLine]:
    """Open a port for this process alone, and close it at the end.  Raises DeviceError if that fails."""
    import serial
    from serial.tools import list_ports

    try:
        handle = serial.Serial(port, baud, timeout=0.02, write_timeout=1.0, exclusive=True)
    except (OSError, ValueError, termios.error) as error:
        trouble = OPEN_TROUBLE.get(getattr(error, "errno", None), f"no serial port that can be used ({_reason(error)})")
        there = ", ".join(sorted(found.device for found in list_ports.comports())) or "none"
        raise DeviceError(f"{port or repr(port)}: {trouble}; serial ports here: {there}") from error
    try:
        yield SerialLine(port=port, handle=handle)
    finally:
        with suppress(OSError, termios.error):  # a missing port cannot be closed, and need not be
            handle.close()


def _reason(error: Exception) -> str:
    """The error in the system's own words if it has a number, else in its own."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error.args[-1] if error.args else error)
