"""An emulated meter: the answers and data of a PMD-USB or a PMD2, and a pseudo-terminal that serves it in real time.

A program opens the terminal like the adapter of a real meter.  A pseudo-terminal does not pace bytes and takes any line rate, so this
module does both: bytes appear when the meter would have sent them, and a host that opened the port at another rate than the meter's
exchanges noise with it.
"""

import os
import select
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from time import monotonic_ns
from typing import Final

import numpy as np

from collector.pmd.protocol import (
    NOMINAL_TICKS_PER_MS,
    NS_PER_BYTE,
    NS_PER_S,
    PACKET_BYTES,
    PMD2,
    PMD_USB,
    POWER_ON_BAUD,
    PROBED_BAUDS,
    STAMP_TURN,
    VENDOR,
    MeterModel,
    Opcode,
    RawWords,
    baud_of_uart_command,
    encode_block,
    encode_packets,
)
from estimator.vocabulary.quantities import Array, IntArray

LOW_W, HIGH_W, PERIOD_S = 60.0, 250.0, 0.1
"""The measured power: a square wave that begins with its upper half."""
USB_SHARES: Final = (0.3, 0.5, 0.2, 0.0)
"""Shares of the power that the PMD-USB's rails carry; the last has a plug but no load."""
PMD2_SHARES: Final = dict.fromkeys(PMD2.rails, 0.0) | {"hpwr": 0.7, "pcie1": 0.15, "pcie2": 0.15}
SUPPLY_V: Final = 12.17
PMD2_VOLTS: Final = SUPPLY_V / 12.0 * np.array([{"atx_5v": 5.0, "atx_5vsb": 5.0, "atx_3v3": 3.3}.get(name, 12.0) for name in PMD2.rails])
"""Supplies, a little above their nominal voltages (Intel, ATX12V design guide 2.x)."""
ZERO_STEPS: Final = (1.7, -0.6, 2.1, 1.5)
"""Currents read without load, one a channel."""
COMMAND_BYTES: Final = {Opcode.CONTINUOUS: 4, Opcode.UART_CONFIG: 17}
SPEEDS: Final = {getattr(termios, f"B{baud}"): baud for baud in PROBED_BAUDS}


def wave_w(time_s: Array) -> Array:
    """The measured power [W] at times from 0 on [s], shape as given."""
    return np.where(np.mod(time_s, PERIOD_S) < 0.5 * PERIOD_S, HIGH_W, LOW_W)


@dataclass(kw_only=True)
class EmulatedMeter:
    """A meter without a port: it takes bytes from the host, with their time, and returns bytes for the host.

    Its wave begins at the host time `start_ns`, with this line rate, streaming or not.  `packets_sent` counts its packets or blocks.
    """

    start_ns: int
    model: MeterModel = PMD_USB
    baud: int = POWER_ON_BAUD
    streaming: bool = False
    packets_sent: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(2)
        self._ticks_per_ns = 1e-6 * NOMINAL_TICKS_PER_MS
        self._first_tick = int(self._random.integers(STAMP_TURN))
        self._commands, self._answers = b"", b""
        self._stream_ns = self.start_ns if self.streaming else None
        self._due = np.zeros(1, dtype=np.int64)  # ticks of packets drawn and not yet sent, after the stream's start; at least one

    def receive(self, data: bytes, host_baud: int, now_ns: int) -> None:
        """Obeys commands; a PMD-USB ignores all bytes at another line rate than its own."""
        if self._deaf(host_baud):
            return
        self._commands += data
        while self._commands:
            length = COMMAND_BYTES.get(self._commands[0], 1)
            if len(self._commands) < length:
                return
            command, self._commands = self._commands[:length], self._commands[length:]
            self._obey(command, now_ns)

    def send(self, host_baud: int, now_ns: int) -> bytes:
        """All bytes that have reached the host since the last call: answers, then the packets that are due; noise at another line rate."""
        content, self._answers = self._answers, b""
        if self._stream_ns is not None:
            content += self._packets_until(self._stream_ns, now_ns)
        return self._random.bytes(len(content)) if self._deaf(host_baud) else content

    def _deaf(self, host_baud: int) -> bool:
        return self.model is not PMD2 and host_baud != self.baud

    def _obey(self, command: bytes, now_ns: int) -> None:
        opcode, model = command[0], self.model
        if opcode == Opcode.READ_ID:
            self._answers += bytes((VENDOR, model.product, 6))
        elif model is PMD2 and opcode == Opcode.PMD2_READ_SENSORS:
            self.packets_sent += 1
            power_w = self._power_w(np.array([now_ns]))[0]
            self._answers += encode_block(PMD2_VOLTS, power_w * list(PMD2_SHARES.values()) / PMD2_VOLTS)
        elif opcode == Opcode.UART_CONFIG:
            self.baud = baud_of_uart_command(command)
        elif opcode == Opcode.CONTINUOUS:
            self._stream_ns = now_ns if command[1] else None
            self._due = np.zeros(1, dtype=np.int64)

    def _power_w(self, host_ns: IntArray) -> Array:
        """Power at host times [W], shape (n, 1)."""
        return wave_w((host_ns - self.start_ns) / NS_PER_S)[:, None]

    def _packets_until(self, begin_ns: int, now_ns: int) -> bytes:
        """Complete packets on the line by now."""
        until = int((now_ns - begin_ns - PACKET_BYTES * NS_PER_BYTE) * self._ticks_per_ns)
        while self._due[-1] <= until:
            # as in the published recordings: 601 to 603 ticks between packets, one interval in eleven stretched
            intervals = 602 + self._random.integers(-1, 2, 704)
            intervals[::11] = 739
            more = self._due[-1] + np.cumsum(intervals)
            self._due = np.concatenate([self._due, more])
        count = int(np.searchsorted(self._due, until, side="right"))
        ticks, self._due = self._due[:count], self._due[count:]
        self.packets_sent += count
        sampled_ns = begin_ns + np.round(ticks / self._ticks_per_ns).astype(np.int64)
        return encode_packets(ticks + self._first_tick, self._raw(sampled_ns))

    def _raw(self, sampled_ns: IntArray) -> RawWords:
        """The converter's values of the wave at these host times, shape (n, 8)."""
        amperes = self._power_w(sampled_ns) * USB_SHARES / SUPPLY_V
        steps = np.zeros((len(amperes), 8))
        steps[:, 0::2], steps[:, 1::2] = SUPPLY_V / PMD_USB.steps[0], amperes / PMD_USB.steps[1] + ZERO_STEPS
        return np.clip(np.round(steps + 1.1 * self._random.standard_normal(steps.shape)), -2047, 2047).astype(np.int16)


@contextmanager
def open_pseudo_terminal() -> Iterator[tuple[int, int]]:
    """The meter's and the host's end of a pseudo-terminal that passes bytes unchanged; the port vanishes at the end."""
    device_end, host_end = os.openpty()
    tty.setraw(host_end)
    os.set_blocking(device_end, False)
    try:
        yield device_end, host_end
    finally:
        os.close(device_end)
        os.close(host_end)


def serve_meter(ends: tuple[int, int], meter: EmulatedMeter, stop: Event, *, until_ns: float) -> None:
    """Serve the meter behind a pseudo-terminal until `stop` is set or the time is over."""
    device_end, host_end = ends
    waiting = bytearray()
    while not stop.is_set():
        ready, _, _ = select.select([device_end], [], [], 0.002)  # about two USB frames
        data, now = os.read(device_end, 4096) if ready else b"", monotonic_ns()
        if now >= until_ns:
            return
        speed = SPEEDS.get(termios.tcgetattr(host_end)[5], 0)
        meter.receive(data, speed, now)
        waiting += meter.send(speed, now)
        with suppress(BlockingIOError):  # bytes without space wait
            while waiting:
                del waiting[: os.write(device_end, waiting[:4096])]
