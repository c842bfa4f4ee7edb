"""An emulated meter behind a pseudo-terminal, in real time: a program opens it like the adapter of a real one.

A pseudo-terminal does not pace bytes and takes any line rate, so both are done here: bytes appear when the meter would
have sent them, and a host that opened the port at another rate than the meter's exchanges noise with it.
"""

import os
import select
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event
from time import monotonic_ns
from typing import Final

from collector.pmd.emulated_meter import EmulatedMeter

TICK_S: Final = 0.002
"""Pause between two looks: about two USB frames."""
READ_BYTES: Final = 4096
KERNEL_BYTES: Final = 65_536
"""What Linux keeps for a serial adapter whose reader is late (a terminal's flip buffers, drivers/tty/tty_buffer.c); for a pseudo-terminal
it keeps an eighth, less than a machine with more programs than cores needs."""
UNOPENED_SPEED: Final = termios.B38400
"""Speed that a new pseudo-terminal has; no meter of the family uses it."""
SPEEDS: Final = {termios.B115200: 115200, termios.B460800: 460800, termios.B921600: 921600}


class PseudoTerminal:
    """Both ends of a pseudo-terminal; `path` is the end that the host opens."""

    def __init__(self, device_end: int, host_end: int) -> None:
        self._device_end, self._host_end = device_end, host_end
        self.path = os.ttyname(host_end)
        self.overrun_bytes = 0
        self._waiting = bytearray()

    def host_speed(self) -> int:
        """The line rate that the host has set; 0 where it has set none or an unknown one."""
        return SPEEDS.get(termios.tcgetattr(self._host_end)[5], 0)

    def opened(self) -> bool:
        """Whether a host has set a line rate."""
        return bool(termios.tcgetattr(self._host_end)[5] != UNOPENED_SPEED)

    def read(self, limit_s: float) -> bytes:
        """Bytes from the host, after waiting up to the limit for the first."""
        ready, _, _ = select.select([self._device_end], [], [], limit_s)
        return os.read(self._device_end, READ_BYTES) if ready else b""

    def write(self, content: bytes) -> None:
        """Send bytes to the host; what it has no room for waits, or is lost beyond what the kernel keeps for a real adapter."""
        room = KERNEL_BYTES - len(self._waiting)
        self.overrun_bytes += max(len(content) - room, 0)
        self._waiting += content[:room]
        while self._waiting:
            try:
                written = os.write(self._device_end, self._waiting[:READ_BYTES])
            except BlockingIOError:
                return
            del self._waiting[:written]

    def close(self) -> None:
        """Make the port vanish."""
        for end in (self._device_end, self._host_end):
            with suppress(OSError):  # closed already when the meter was unplugged
                os.close(end)


@contextmanager
def open_pseudo_terminal() -> Iterator[PseudoTerminal]:
    """A pseudo-terminal that passes bytes as they are."""
    device_end, host_end = os.openpty()
    tty.setraw(host_end)
    os.set_blocking(device_end, False)
    terminal = PseudoTerminal(device_end, host_end)
    try:
        yield terminal
    finally:
        terminal.close()


def serve_meter(terminal: PseudoTerminal, meter: EmulatedMeter, stop: Event, *, until_ns: int | None = None) -> None:
    """Let the meter live behind the terminal until `stop` is set, the time is over, or it is unplugged."""
    greeted = False
    while not stop.is_set():
        data = terminal.read(TICK_S)
        now = monotonic_ns()
        if (until_ns is not None and now >= until_ns) or meter.unplugged(now):
            return
        speed = terminal.host_speed()
        if not greeted and terminal.opened():
            greeted = True
            meter.opened(now)
        if data:
            meter.receive(data, speed, now)
        terminal.write(meter.send(speed, now))
