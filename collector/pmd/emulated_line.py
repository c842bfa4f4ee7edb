"""The line between an emulated meter and its host: its possible faults, each at its time, and a pseudo-terminal in real time.

A program opens the terminal like the adapter of a real meter.  A pseudo-terminal does not pace bytes and takes any line rate, so this
module does both: bytes appear when the meter would have sent them, and a host that opened the port at another rate than the meter's
exchanges noise with it.
"""

import math
import os
import re
import select
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from time import monotonic_ns
from typing import Final, Protocol

import numpy as np

from collector.devices.errors import DeviceError
from collector.pmd.protocol import PACKET_BYTES
from estimator.vocabulary.quantities import Array

FAULT_KINDS: Final = {"lost": 1.0, "hole": 0.03, "stall": 0.03, "silence": math.inf, "unplug": math.inf}
"""Kinds of faults, and their default amounts: lost bytes; seconds without packets, or for which all packets are
delayed and arrive in one burst; the meter stops sending for good, or its port vanishes.
"""
SPEEDS: Final = {termios.B115200: 115200, termios.B460800: 460800, termios.B921600: 921600}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: its kind, its time after the start of the stream [s], and its bytes or seconds."""

    kind: str
    at_s: float
    amount: float


def fault_from_text(text: str) -> Fault:
    """A fault from KIND@SECONDS or KIND@SECONDS:AMOUNT.  Raises DeviceError."""
    parts = re.fullmatch(r"([a-z]+)@(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?", text.strip())
    if not parts or parts[1] not in FAULT_KINDS:
        raise DeviceError(f"{text!r} is no fault; give KIND@SECONDS or KIND@SECONDS:AMOUNT with KIND one of {', '.join(FAULT_KINDS)}")
    return Fault(kind=parts[1], at_s=float(parts[2]), amount=float(parts[3] or FAULT_KINDS[parts[1]]))


class FaultyLine:
    """Delays and damages bytes with their times, as a serial line does."""

    def __init__(self, faults: Sequence[Fault], random: np.random.Generator) -> None:
        self._faults = sorted(faults, key=lambda fault: fault.at_s)
        self._random = random
        self._pending = [fault for fault in self._faults if fault.kind == "lost"]
        self._held = b""

    def unplugged(self, time_s: float) -> bool:
        """Whether the port has vanished."""
        return any(fault.kind == "unplug" and time_s >= fault.at_s for fault in self._faults)

    def passed(self, packets: bytes, packet_s: Array, now_s: float) -> bytes:
        """Bytes that the host receives of packets sent at `packet_s`, shape (n,), at the time `now_s`."""
        keep, stalled = np.ones(len(packet_s), dtype=np.bool_), False
        for fault in self._faults:
            if fault.kind in ("hole", "silence"):
                keep &= (packet_s < fault.at_s) | (packet_s >= fault.at_s + fault.amount)
            stalled |= fault.kind == "stall" and fault.at_s <= now_s < fault.at_s + fault.amount
        content = np.frombuffer(packets, np.uint8).reshape(-1, PACKET_BYTES)[keep].tobytes()
        content = self._held + self._spoiled(content, packet_s[keep])
        self._held = content if stalled else b""
        return b"" if stalled else content

    def _spoiled(self, content: bytes, packet_s: Array) -> bytes:
        """The packets without the bytes lost so far."""
        while self._pending and len(packet_s) and packet_s[-1] >= self._pending[0].at_s:
            fault = self._pending.pop(0)
            start = int(np.searchsorted(packet_s, fault.at_s)) * PACKET_BYTES + int(self._random.integers(PACKET_BYTES))
            content = content[:start] + content[start + int(fault.amount) :]
        return content


class EmulatedMeter(Protocol):
    """A meter without a port.  `packets_sent` counts its packets or blocks, including those lost to a fault."""

    packets_sent: int

    def receive(self, data: bytes, host_baud: int, now_ns: int) -> None:
        """Take bytes from the host, sent at its line rate."""

    def send(self, host_baud: int, now_ns: int) -> bytes:
        """All bytes that have reached the host since the last call."""

    def unplugged(self, now_ns: int) -> bool:
        """Whether the port has vanished."""


class PseudoTerminal:
    """Both ends of a pseudo-terminal; `path` is the end that the host opens."""

    def __init__(self, device_end: int, host_end: int) -> None:
        self._device_end, self._host_end = device_end, host_end
        self.path = os.ttyname(host_end)
        self._waiting = bytearray()

    def host_speed(self) -> int:
        """The line rate of the host; 0 for one that no meter has."""
        return SPEEDS.get(termios.tcgetattr(self._host_end)[5], 0)

    def read(self, limit_s: float) -> bytes:
        """Bytes from the host, after waiting up to the limit for the first."""
        ready, _, _ = select.select([self._device_end], [], [], limit_s)
        return os.read(self._device_end, 4096) if ready else b""

    def write(self, content: bytes) -> None:
        """Send bytes to the host; bytes without space wait."""
        self._waiting += content
        with suppress(BlockingIOError):
            while self._waiting:
                del self._waiting[: os.write(self._device_end, self._waiting[:4096])]


@contextmanager
def open_pseudo_terminal() -> Iterator[PseudoTerminal]:
    """A pseudo-terminal that passes bytes unchanged; the port vanishes at the end."""
    device_end, host_end = os.openpty()
    tty.setraw(host_end)
    os.set_blocking(device_end, False)
    try:
        yield PseudoTerminal(device_end, host_end)
    finally:
        os.close(device_end)
        os.close(host_end)


def serve_meter(terminal: PseudoTerminal, meter: EmulatedMeter, stop: Event, *, until_ns: float = float("inf")) -> None:
    """Serve the meter behind the terminal until `stop` is set, the time is over, or it is unplugged."""
    while not stop.is_set():
        data = terminal.read(0.002)  # about two USB frames
        now = monotonic_ns()
        if now >= until_ns or meter.unplugged(now):
            return
        speed = terminal.host_speed()
        meter.receive(data, speed, now)
        terminal.write(meter.send(speed, now))
