"""Emulated meters: what a PMD-USB and a PMD2 answer and send, in any time that they are told.

They know nothing of ports: bytes that the host sent go in with their time, bytes for the host come out.  The PMD-USB's
timing is that of the published recordings: 601 to 603 ticks between packets, one interval in eleven stretched, one in
704 more so.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from collector.pmd.clock_tie import NS_PER_MS, NS_PER_S
from collector.pmd.emulated_faults import FaultyLine
from collector.pmd.emulated_wave import PowerWave
from collector.pmd.packets import (
    AMPERE_PER_LSB,
    BITS_PER_BYTE_ON_LINE,
    NOMINAL_TICKS_PER_MS,
    PACKET_BYTES,
    RAILS,
    STAMP_TURN,
    VALUE_BITS_SHIFT,
    VOLT_PER_LSB,
    WORDS,
    RawWords,
    encode_packets,
)
from collector.pmd.pmd2_block import GPU_RAILS, PMD2_RAILS, RAIL_VOLTS, encode_block
from collector.pmd.protocol import (
    CONTINUOUS,
    PMD2_READ_SENSORS,
    PMD2_READ_UID,
    PMD2_WELCOME,
    PMD_USB_WELCOME,
    READ_ADC,
    READ_ID,
    READ_VALUES,
    STREAM_BAUD,
    TIMESTAMP_BYTES,
    UART_CONFIG,
    VENDOR,
    WELCOME,
    baud_of_uart_command,
)
from estimator.vocabulary.quantities import Array, IntArray

PATTERN_PACKETS: Final = 704
SUB_PATTERN_PACKETS: Final = 11
PLAIN_TICKS: Final = 602
STRETCHED: Final = ((684, 606), (739, 637))
"""A stretched interval and the one after it, in turn."""
LONGEST: Final = (952, 596)
SUPPLY_V: Final = 12.17
SUPPLY_RATIO: Final = SUPPLY_V / 12.0
"""A supply without load is this much above its nominal voltage, on every rail."""
SOURCE_OHM: Final = 0.01
"""Its resistance: 0.2 V less at 20 A."""
VOLTAGE_NOISE_LSB: Final = 1.0
CURRENT_NOISE_LSB: Final = 1.2
ZERO_LSB: Final = (1.7, -0.6, 2.1, 1.5)
"""Currents read without load, one a channel."""
RAIL_SHARES: Final = (0.3, 0.5, 0.2, 0.0)
"""Shares of the power that the PMD-USB's rails carry; the last has a plug but no load."""
PMD2_SHARES: Final = (0.7, 0.15, 0.15, 0.0)
LARGEST_VALUE: Final = 2047
UNKNOWN_COMMAND_BYTES: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedState:
    """How the meter is found: its line rate, whether it streams, what it says it is, its clock's error."""

    baud: int
    streaming: bool
    product: int
    firmware: int
    clock_error_ppm: float


class EmulatedMeter(Protocol):
    """A meter without a port.  `packets_sent` counts its packets or blocks, those that a fault took included."""

    packets_sent: int

    def opened(self, now_ns: int) -> None:
        """The host has opened the port."""

    def receive(self, data: bytes, host_baud: int, now_ns: int) -> None:
        """Take bytes from the host, sent at its line rate."""

    def send(self, host_baud: int, now_ns: int) -> bytes:
        """Everything that has reached the host since the last call."""

    def unplugged(self, now_ns: int) -> bool:
        """Whether the port has vanished."""


class EmulatedPmdUsb:
    """A PMD-USB; implements EmulatedMeter."""

    def __init__(self, state: EmulatedState, wave: PowerWave, line: FaultyLine, random: np.random.Generator, start_ns: int) -> None:
        self._identity = VENDOR, state.product, state.firmware
        self._wave, self._line, self._random, self._start_ns = wave, line, random, start_ns
        self._baud = state.baud
        self._ticks_per_ns = NOMINAL_TICKS_PER_MS * (1.0 + 1e-6 * state.clock_error_ppm) / NS_PER_MS
        self._first_tick = int(random.integers(STAMP_TURN))
        self._commands, self._answers = b"", b""
        self._stream_ns: int | None = None
        self._fault_ns: int | None = None
        self._due = np.zeros(0, dtype=np.int64)  # ticks after the stream's begin of packets not yet sent
        self._drawn = 0
        self.packets_sent = 0
        if state.streaming:
            self._begin(start_ns)

    def opened(self, now_ns: int) -> None:
        """A PMD-USB does not notice."""

    def receive(self, data: bytes, host_baud: int, now_ns: int) -> None:
        """Obey; at another line rate than its own it understands nothing."""
        if host_baud != self._baud:
            return
        self._commands += data
        while self._commands:
            length = self._command_bytes(self._commands[0])
            if len(self._commands) < length:
                return
            command, self._commands = self._commands[:length], self._commands[length:]
            self._obey(command, now_ns)

    def send(self, host_baud: int, now_ns: int) -> bytes:
        """Answers, then the packets that are due; noise at another line rate."""
        content, self._answers = self._answers, b""
        if self._stream_ns is not None:
            content += self._packets_until(now_ns)
        if host_baud == self._baud or not content:
            return content
        return self._random.integers(0, 256, len(content), dtype=np.uint8).tobytes()

    def unplugged(self, now_ns: int) -> bool:
        """Whether the port has vanished."""
        return self._fault_ns is not None and self._line.unplugged((now_ns - self._fault_ns) / NS_PER_S)

    def _command_bytes(self, opcode: int) -> int:
        return {CONTINUOUS: 4, UART_CONFIG: 17}.get(opcode, UNKNOWN_COMMAND_BYTES)

    def _obey(self, command: bytes, now_ns: int) -> None:
        answers: dict[int, Callable[[], bytes]] = {
            WELCOME: lambda: PMD_USB_WELCOME,
            READ_ID: lambda: bytes(self._identity),
            READ_VALUES: lambda: self._values(now_ns),
            READ_ADC: lambda: (self._raw(np.array([now_ns]))[0] << VALUE_BITS_SHIFT).tobytes(),
        }
        opcode = command[0]
        if opcode in answers:
            self._answers += answers[opcode]()
        elif opcode == UART_CONFIG:
            self._baud = baud_of_uart_command(command)
        elif opcode == CONTINUOUS:
            self._stream_ns = None
            if command[1] and command[2] == TIMESTAMP_BYTES:
                self._begin(now_ns)

    def _begin(self, now_ns: int) -> None:
        self._stream_ns = now_ns
        self._fault_ns = self._fault_ns or now_ns
        self._due, self._drawn = np.zeros(0, dtype=np.int64), 0

    def _packets_until(self, now_ns: int) -> bytes:
        """Packets that have gone over the line whole by now, as the host gets them."""
        begin = self._stream_ns or 0
        on_line_ns = PACKET_BYTES * BITS_PER_BYTE_ON_LINE * NS_PER_S / self._baud
        until = int((now_ns - begin - on_line_ns) * self._ticks_per_ns)
        while not len(self._due) or self._due[-1] <= until:
            self._due = np.concatenate([self._due, self._drawn + np.cumsum(self._intervals())])
            self._drawn = int(self._due[-1])
        count = int(np.searchsorted(self._due, until, side="right"))
        ticks, self._due = self._due[:count], self._due[count:]
        self.packets_sent += count
        sampled_ns = begin + np.round(ticks / self._ticks_per_ns).astype(np.int64)
        content = encode_packets(ticks + self._first_tick, self._raw(sampled_ns)) if count else b""
        origin = self._fault_ns or begin
        return self._line.passed(content, (sampled_ns - origin) / NS_PER_S, (now_ns - origin) / NS_PER_S)

    def _intervals(self) -> IntArray:
        """Ticks between the packets of one pattern, shape (704,)."""
        ticks = np.full(PATTERN_PACKETS, PLAIN_TICKS) + self._random.integers(-1, 2, PATTERN_PACKETS)
        for number, at in enumerate(range(0, PATTERN_PACKETS, SUB_PATTERN_PACKETS)):
            ticks[at : at + 2] = STRETCHED[number % 2] if number else LONGEST
        slower = STREAM_BAUD / self._baud
        scaled: IntArray = np.round(ticks * slower).astype(np.int64)
        return scaled

    def _raw(self, sampled_ns: IntArray) -> RawWords:
        """What the converter makes of the wave at these host times, shape (n, 8)."""
        power_w = self._wave.at((sampled_ns - self._start_ns) / NS_PER_S)
        volts, amperes = _loaded(power_w[:, None] * np.array(RAIL_SHARES), SUPPLY_V)
        noise = self._random.standard_normal((len(sampled_ns), WORDS))
        exact = np.empty((len(sampled_ns), WORDS))
        exact[:, 0::2] = volts / VOLT_PER_LSB + VOLTAGE_NOISE_LSB * noise[:, 0::2]
        exact[:, 1::2] = amperes / AMPERE_PER_LSB + np.array(ZERO_LSB) + CURRENT_NOISE_LSB * noise[:, 1::2]
        raw: RawWords = np.clip(np.round(exact), -LARGEST_VALUE, LARGEST_VALUE).astype(np.int16)
        return raw

    def _values(self, now_ns: int) -> bytes:
        """Hundredths of a volt and tenths of an ampere."""
        raw = self._raw(np.array([now_ns]))[0].astype(np.float64)
        values = [scale * value for scale, value in zip((1e2 * VOLT_PER_LSB, 1e1 * AMPERE_PER_LSB) * len(RAILS), raw, strict=True)]
        return struct.pack("<8h", *(round(value) for value in values))


class EmulatedPmd2:
    """A PMD2; implements EmulatedMeter.  It has no line rate and speaks only when asked."""

    def __init__(self, state: EmulatedState, wave: PowerWave, line: FaultyLine, random: np.random.Generator, start_ns: int) -> None:
        self._identity = VENDOR, state.product, state.firmware
        self._wave, self._line, self._start_ns = wave, line, start_ns
        self._uid = random.bytes(12)
        self._answers = b""
        self.packets_sent = 0

    def opened(self, now_ns: int) -> None:
        """It greets a host that opens the port."""
        self._answers += PMD2_WELCOME

    def receive(self, data: bytes, host_baud: int, now_ns: int) -> None:
        """Answer each command."""
        answers = {WELCOME: PMD2_WELCOME, READ_ID: bytes(self._identity), PMD2_READ_UID: self._uid}
        for opcode in data:
            self._answers += self._block(now_ns) if opcode == PMD2_READ_SENSORS else answers.get(opcode, b"")

    def send(self, host_baud: int, now_ns: int) -> bytes:
        """Answers."""
        content, self._answers = self._answers, b""
        return content

    def unplugged(self, now_ns: int) -> bool:
        """Whether the port has vanished."""
        return self._line.unplugged((now_ns - self._start_ns) / NS_PER_S)

    def _block(self, now_ns: int) -> bytes:
        power_w = float(self._wave.at(np.array([(now_ns - self._start_ns) / NS_PER_S]))[0])
        share = dict(zip(GPU_RAILS, PMD2_SHARES, strict=True))
        volts, amperes = _loaded(power_w * np.array([share.get(name, 0.0) for name in PMD2_RAILS]), SUPPLY_RATIO * np.array(RAIL_VOLTS))
        self.packets_sent += 1
        return encode_block(volts, amperes)


def _loaded(power_w: Array, supply_v: Array | float) -> tuple[Array, Array]:
    """Voltage [V] and current [A] at which a rail delivers a power; supply_v: its voltage without load [V]."""
    root = np.sqrt(np.maximum(np.square(supply_v) - 4.0 * SOURCE_OHM * power_w, 0.0))
    volts = 0.5 * (supply_v + root)
    return volts, power_w / volts
