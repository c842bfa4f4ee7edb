"""The PMD family: identities, commands, and the data formats of the meters.

A command is one opcode byte, some with arguments, without framing, checksum and acknowledgement.
Sources: the vendor's desktop tool and its C# and Python examples, the logger published with the GPU_Power_Benchmark traces, and those
traces: 430,690 packets of seven recordings, in which no wrong alignment passed `plausible` and no packet failed it.
"""

import struct
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from collector.errors import DeviceError
from estimator.vocabulary.quantities import Array, BoolArray, IntArray
from estimator.vocabulary.values import frozen

NS_PER_S: Final = 1e9


class Opcode:
    """Opcodes.  All meters share the first; the other numbers differ between meters: read the identity first."""

    READ_ID = 0x01
    CONTINUOUS = 0x07
    UART_CONFIG = 0x08
    PMD2_READ_SENSORS = 0x04


POWER_ON_BAUD, STREAM_BAUD = 115200, 921600
PROBED_BAUDS: Final = (POWER_ON_BAUD, STREAM_BAUD, 460800)
"""Line rates at which a PMD-USB may be found: after power-on, after a dead session, after the vendor's logger."""

START_STREAM: Final = bytes((Opcode.CONTINUOUS, 1, 2, 0xFF))
STOP_STREAM: Final = bytes((Opcode.CONTINUOUS, 0, 0, 0))
"""Commands for packets with two-byte stamps of all channels, and for their end."""
PAUSE_NS, ANSWER_LIMIT_NS = 2_000_000, 100_000_000
"""Least time between two requests to a PMD2, and the time limit of an answer in the vendor's tool; a lost answer costs all of it."""
_UART: Final = struct.Struct("<B4I")


def uart_command(baud: int) -> bytes:
    """The command that switches a PMD-USB's line rate; no parity (code 2), 8 bits (0), 1 stop bit (0), as both known hosts send them."""
    return _UART.pack(Opcode.UART_CONFIG, baud, 2, 0, 0)


def baud_of_uart_command(command: bytes) -> int:
    """The line rate in a UART command."""
    return int(_UART.unpack(command)[1])


RawWords = NDArray[np.int16]
"""Twelve-bit values of a PMD-USB, shape (n, 8): voltage and current of each rail in turn."""


@frozen
class MeterSamples:
    """Samples in their original order: host time [ns], shape (n,); voltage [V] and current [A], (n, rails)."""

    host_ns: IntArray
    volts: Array
    amperes: Array

    def __len__(self) -> int:
        return len(self.host_ns)

    def rail_power_w(self) -> Array:
        """Power of each rail [W], shape (n, rails); negative if current flows back or a zero is off."""
        return self.volts * self.amperes


@frozen
class MeterModel:
    """A model of meter: its product byte, its rails, those that usually feed the board, and the step of its values [V] and [A]."""

    name: Literal["PMD-USB", "PMD2"]
    product: int
    rails: tuple[str, ...]
    board_rails: tuple[str, ...]
    steps: tuple[float, float]

    def samples(self, host_ns: IntArray, raw: NDArray[np.integer], zero_a: Array) -> MeterSamples:
        """Samples of raw values (n, 2 rails), currents less their zeros (rails,); negative currents are kept."""
        values = raw.astype(np.float64)
        return MeterSamples(host_ns=host_ns, volts=values[:, 0::2] * self.steps[0], amperes=values[:, 1::2] * self.steps[1] - zero_a)

    def chosen_rails(self, names: Sequence[str]) -> list[int]:
        """Positions of the rails to count; the board's by default.  Raises DeviceError for one that the model lacks."""
        for name in names:
            if name not in self.rails:
                raise DeviceError(f"a {self.name} has no rail {name!r}; its rails: {', '.join(self.rails)}")
        return [self.rails.index(name) for name in dict.fromkeys(names or self.board_rails)]


PMD_USB: Final = MeterModel(
    name="PMD-USB",
    product=0x0A,
    rails=("pcie1", "pcie2", "eps1", "eps2"),
    board_rails=("pcie1", "pcie2", "eps1", "eps2"),
    steps=(0.007568, 0.0488),  # 31 V and 200 A over 4096 steps, signed
)
PMD2: Final = MeterModel(
    name="PMD2",
    product=0x15,
    rails=("atx_12v", "atx_5v", "atx_5vsb", "atx_3v3", "hpwr", "eps1", "eps2", "pcie1", "pcie2", "pcie3"),
    board_rails=("hpwr", "pcie1", "pcie2", "pcie3"),
    steps=(1e-3, 1e-3),
)
MODELS: Final[dict[str, MeterModel]] = {model.name: model for model in (PMD_USB, PMD2)}
VENDOR: Final = 0xEE


NS_PER_BYTE: Final = 10 * NS_PER_S / STREAM_BAUD
"""Time of a byte on the streaming line [ns]: start bit, eight bits, stop bit."""
# A packet of the PMD-USB, little endian: u16 time stamp, eight int16 words, each a signed 12-bit value above four bits of 0.
PACKET_BYTES: Final = 18
STAMP_TURN: Final = 1 << 16
"""Number of ticks after which the stamp starts again: 22.3 ms."""
NOMINAL_TICKS_PER_MS: Final = 2935.0
"""Rate of the device's clock; 2933.25 and 2936.06 were fitted to two recordings, 2938 is the highest in use."""
STEP_TICKS: Final = (560.0, 614.0, 1100.0)
"""Shortest, mean and longest time between packets at 921600 baud; 580 and 1008 are the extremes seen."""
LIVE_VOLTS, DEAD_VOLTS = (1300, 600), 64
"""Raw voltages of a rail with supply: from 9.8 V on, over 4.5 V; and the largest of either sign without a plug: 0.5 V."""
_LOW_NIBBLES: Final = np.uint64(0x000F_000F_000F_000F)


def plausible(content: bytes) -> BoolArray:
    """Whether a packet can begin at each byte, shape (bytes − 17,): low nibbles 0, possible voltages."""
    words = np.ndarray((len(content) - PACKET_BYTES + 1, 2), "<u8", content, 2, (1, 8))
    volts = np.ndarray((len(words), 4), "<i2", content, 2, (1, 4))
    live = (volts - np.int16(LIVE_VOLTS[0] << 4)).view(np.uint16) <= LIVE_VOLTS[1] << 4
    dead = (volts + np.int16(DEAD_VOLTS << 4)).view(np.uint16) <= 2 * DEAD_VOLTS << 4
    fits: BoolArray = (((words[:, 0] | words[:, 1]) & _LOW_NIBBLES) == 0) & (live | dead).all(axis=1)
    return fits


def stamps(content: bytes) -> NDArray[np.uint16]:
    """Time stamps of packets that begin at each byte, shape (bytes − 17,); a view."""
    return np.ndarray((len(content) - PACKET_BYTES + 1,), "<u2", content, 0, (1,))


def raw_words(content: bytes, places: IntArray) -> RawWords:
    """The values of the packets at these places, shape (n, 8)."""
    return np.ndarray((len(content) - PACKET_BYTES + 1, 8), "<i2", content, 2, (1, 2))[places] >> 4


def encode_packets(ticks: IntArray, raw: RawWords) -> bytes:
    """Packets with these time stamps (modulo their 16 bits) and values, in the device's format."""
    return np.column_stack([ticks % STAMP_TURN, (raw << 4).view(np.uint16)]).astype("<u2").tobytes()


# A PMD2's answer to READ_SENSORS: supply and temperature of its chip, its rails, sums in watts, overcurrent protection.
_RAIL: Final = np.dtype([("millivolt", "<u2"), ("milliampere", "<u4"), ("milliwatt", "<u4")])
BLOCK: Final = np.dtype(
    [("supply", "<u2"), ("temperature", "<i2"), ("rail", _RAIL, (len(PMD2.rails),)), ("sums", "<u2", (4,)), ("protection", "u1", (10,))]
)


def block_values(blocks: bytes) -> IntArray:
    """Voltage [mV] and current [mA] of each rail in turn, shape (n, 20); the device itself reports no negative current."""
    rails = np.frombuffer(blocks, BLOCK)["rail"]
    return np.stack([rails["millivolt"], rails["milliampere"]], axis=2).reshape(len(rails), 2 * len(PMD2.rails)).astype(np.int64)


def encode_block(volts: Array, amperes: Array) -> bytes:
    """A block with these values, shape (10,) each; currents below 0 are sent as 0."""
    block = np.zeros(1, BLOCK)
    block["rail"]["millivolt"] = np.round(1e3 * volts)
    block["rail"]["milliampere"] = np.maximum(np.round(1e3 * amperes), 0.0)
    return block.tobytes()
