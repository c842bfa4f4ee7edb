"""Emulated meters: the answers and data of a PMD-USB and a PMD2, for any given time and power.

An emulated meter has no port: it takes the bytes that the host sent, with their time, and returns bytes for the host.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.pmd.emulated_line import FaultyLine
from collector.pmd.protocol import (
    NOMINAL_TICKS_PER_MS,
    NS_PER_S,
    PACKET_BYTES,
    PMD2,
    PMD_USB,
    POWER_ON_BAUD,
    STAMP_TURN,
    STREAM_BAUD,
    VENDOR,
    Opcode,
    RawWords,
    baud_of_uart_command,
    encode_block,
    encode_packets,
    line_ns_per_byte,
)
from estimator.vocabulary.quantities import Array, IntArray

USB_SHARES: Final = (0.3, 0.5, 0.2, 0.0)
"""Shares of the power that the PMD-USB's rails carry; the last has a plug but no load."""
PMD2_SHARES: Final = dict.fromkeys(PMD2.rails, 0.0) | {"hpwr": 0.7, "pcie1": 0.15, "pcie2": 0.15}
SUPPLY_V: Final = 12.17
PMD2_VOLTS: Final = SUPPLY_V / 12.0 * np.array([{"atx_5v": 5.0, "atx_5vsb": 5.0, "atx_3v3": 3.3}.get(name, 12.0) for name in PMD2.rails])
"""Supplies, a little above their nominal voltages (Intel, ATX12V design guide 2.x)."""
COMMAND_BYTES: Final[dict[int, int]] = {Opcode.CONTINUOUS: 4, Opcode.UART_CONFIG: 17}
ZERO_STEPS: Final = (1.7, -0.6, 2.1, 1.5)
"""Currents read without load, one a channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerWave:
    """Power [W] at times from 0 on [s], shape (n,) each, linear in between; starts again after the last."""

    time_s: Array
    power_w: Array

    def at(self, time_s: Array) -> Array:
        """Power at any times [W], shape as given."""
        power_w: Array = np.interp(np.mod(time_s, self.time_s[-1]), self.time_s, self.power_w)
        return power_w


def square_wave(low_w: float, high_w: float, period_s: float, duty: float) -> PowerWave:
    """High for the first `duty` of each period, low for the rest."""
    edge = duty * period_s
    return PowerWave(time_s=np.array([0.0, edge, edge, period_s]), power_w=np.array([high_w, high_w, low_w, low_w]))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedState:
    """Initial state of the meter: its line rate, whether it streams, its identity, its clock's error; its power and its start time."""

    wave: PowerWave
    start_ns: int
    baud: int = POWER_ON_BAUD
    streaming: bool = False
    product: int = PMD_USB.product
    clock_error_ppm: float = 0.0

    def power_w(self, host_ns: IntArray) -> Array:
        """Power at host times [W], shape (n, 1)."""
        watts: Array = self.wave.at((host_ns - self.start_ns) / NS_PER_S)[:, None]
        return watts

    @property
    def identity(self) -> bytes:
        """The answer to READ_ID."""
        return bytes((VENDOR, self.product, 6))


class EmulatedPmdUsb:
    """A PMD-USB; implements EmulatedMeter."""

    def __init__(self, state: EmulatedState, line: FaultyLine, random: np.random.Generator) -> None:
        self._state, self._line, self._random = state, line, random
        self._baud = state.baud
        self._ticks_per_ns = 1e-6 * NOMINAL_TICKS_PER_MS * (1.0 + 1e-6 * state.clock_error_ppm)
        self._first_tick = int(random.integers(STAMP_TURN))
        self._commands, self._answers = b"", b""
        self._stream_ns = self._fault_ns = state.start_ns if state.streaming else None
        self._due = np.zeros(1, dtype=np.int64)  # ticks of packets drawn and not yet sent, after the stream's start; at least one
        self.packets_sent = 0

    def receive(self, data: bytes, host_baud: int, now_ns: int) -> None:
        """Obeys a command; ignores all bytes at another line rate than its own."""
        if host_baud != self._baud:
            return
        self._commands += data
        while self._commands:
            length = COMMAND_BYTES.get(self._commands[0], 1)
            if len(self._commands) < length:
                return
            command, self._commands = self._commands[:length], self._commands[length:]
            self._obey(command, now_ns)

    def send(self, host_baud: int, now_ns: int) -> bytes:
        """Answers, then the packets that are due; noise at another line rate."""
        content, self._answers = self._answers, b""
        if self._stream_ns is not None:
            content += self._packets_until(self._stream_ns, now_ns)
        return content if host_baud == self._baud else self._random.bytes(len(content))

    def unplugged(self, now_ns: int) -> bool:
        """Whether the port has vanished."""
        return self._fault_ns is not None and self._line.unplugged((now_ns - self._fault_ns) / NS_PER_S)

    def _obey(self, command: bytes, now_ns: int) -> None:
        opcode = command[0]
        if opcode == Opcode.UART_CONFIG:
            self._baud = baud_of_uart_command(command)
        elif opcode == Opcode.CONTINUOUS:
            self._stream_ns = now_ns if command[1] else None
            self._fault_ns = self._fault_ns or self._stream_ns
            self._due = np.zeros(1, dtype=np.int64)
        else:
            self._answers += self._state.identity if opcode == Opcode.READ_ID else b""

    def _packets_until(self, begin_ns: int, now_ns: int) -> bytes:
        """Complete packets on the line by now, as the host receives them."""
        until = int((now_ns - begin_ns - PACKET_BYTES * line_ns_per_byte(self._baud)) * self._ticks_per_ns)
        while self._due[-1] <= until:
            # as in the published recordings: 601 to 603 ticks between packets, one interval in eleven stretched
            intervals = 602 + self._random.integers(-1, 2, 704)
            intervals[::11] = 739
            more = self._due[-1] + np.cumsum(np.round(intervals * STREAM_BAUD / self._baud).astype(np.int64))
            self._due = np.concatenate([self._due, more])
        count = int(np.searchsorted(self._due, until, side="right"))
        ticks, self._due = self._due[:count], self._due[count:]
        self.packets_sent += count
        sampled_ns = begin_ns + np.round(ticks / self._ticks_per_ns).astype(np.int64)
        origin = self._fault_ns or begin_ns
        content = encode_packets(ticks + self._first_tick, self._raw(sampled_ns))
        return self._line.passed(content, (sampled_ns - origin) / NS_PER_S, (now_ns - origin) / NS_PER_S)

    def _raw(self, sampled_ns: IntArray) -> RawWords:
        """The converter's values of the wave at these host times, shape (n, 8)."""
        amperes = self._state.power_w(sampled_ns) * USB_SHARES / SUPPLY_V
        steps = np.zeros((len(amperes), 8))
        steps[:, 0::2], steps[:, 1::2] = SUPPLY_V / PMD_USB.steps[0], amperes / PMD_USB.steps[1] + ZERO_STEPS
        raw: RawWords = np.clip(np.round(steps + 1.1 * self._random.standard_normal(steps.shape)), -2047, 2047).astype(np.int16)
        return raw


class EmulatedPmd2:
    """A PMD2; implements EmulatedMeter.  It has no line rate and sends only on request."""

    def __init__(self, state: EmulatedState, line: FaultyLine, random: np.random.Generator) -> None:
        self._state, self._line = state, line
        self._uid = random.bytes(12)
        self._answers = b""
        self.packets_sent = 0

    def receive(self, data: bytes, host_baud: int, now_ns: int) -> None:
        """Answer each command."""
        answers = {Opcode.READ_ID: self._state.identity, Opcode.PMD2_READ_UID: self._uid}
        for opcode in data:
            self._answers += self._block(now_ns) if opcode == Opcode.PMD2_READ_SENSORS else answers.get(opcode, b"")

    def send(self, host_baud: int, now_ns: int) -> bytes:
        """Answers."""
        content, self._answers = self._answers, b""
        return content

    def unplugged(self, now_ns: int) -> bool:
        """Whether the port has vanished."""
        return self._line.unplugged((now_ns - self._state.start_ns) / NS_PER_S)

    def _block(self, now_ns: int) -> bytes:
        self.packets_sent += 1
        power_w = self._state.power_w(np.array([now_ns]))[0]
        return encode_block(PMD2_VOLTS, power_w * list(PMD2_SHARES.values()) / PMD2_VOLTS)


def emulated_meter(state: EmulatedState, line: FaultyLine, random: np.random.Generator) -> EmulatedPmdUsb | EmulatedPmd2:
    """The meter of a product; a PMD-USB for other products, which it only claims to be."""
    return EmulatedPmd2(state, line, random) if state.product == PMD2.product else EmulatedPmdUsb(state, line, random)
