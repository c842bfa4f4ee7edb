"""Packets of the PMD-USB's stream: their geometry, their scales, and which bytes can be one.

18 bytes: a u16 time stamp, then eight int16 words (voltage and current of PCIE1, PCIE2, EPS1, EPS2), all little endian.
Each word is a signed 12-bit value in its upper bits; the low four are 0.  Figures: 430,690 packets of seven published
recordings (GPU_Power_Benchmark), in which no wrong alignment passed the test below and no packet failed it.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collector.pmd.protocol import STREAM_BAUD
from estimator.vocabulary.quantities import Array, BoolArray, IntArray

PACKET_BYTES: Final = 18
STAMP_BYTES: Final = 2
WORD_BYTES: Final = 2
WORDS: Final = 8
RAILS: Final = ("pcie1", "pcie2", "eps1", "eps2")
VALUE_BITS_SHIFT: Final = 4

VOLT_PER_LSB: Final = 0.007568
"""31 V over 4096 steps; the word is signed, so the range is 15.5 V."""
AMPERE_PER_LSB: Final = 0.0488
"""200 A over 4096 steps; the range is ±100 A."""

STAMP_TURN: Final = 1 << 16
"""Ticks after which the stamp starts again: 22.3 ms."""
NOMINAL_TICKS_PER_MS: Final = 2935.0
"""Rate of the device's clock; 2933.25 and 2936.06 were fitted to two recordings, 2938 is the highest in use."""
RATE_SPREAD_TICKS_PER_MS: Final = 2.0
"""Standard deviation of that rate from device to device and day to day."""
MEAN_INTERVAL_TICKS: Final = 614.0
"""Mean time between packets at 921600 baud: 4780 packets a second."""

LOWEST_LIVE_VOLTAGE: Final = 1300
HIGHEST_LIVE_VOLTAGE: Final = 1900
"""Raw voltages of a rail with supply: 9.8 V to 14.4 V."""
HIGHEST_DEAD_VOLTAGE: Final = 64
"""Largest raw voltage, of either sign, of a channel without a plug: 0.5 V."""
SHORTEST_STEP_TICKS: Final = 560
LONGEST_STEP_TICKS: Final = 1100
"""Time between packets at 921600 baud; 580 and 1008 are the extremes seen."""
BITS_PER_BYTE_ON_LINE: Final = 10
"""8N1: start bit, eight bits, stop bit."""

_LOW_NIBBLES: Final = np.uint64(0x000F_000F_000F_000F)

RawWords = NDArray[np.int16]
"""Twelve-bit values, shape (n, 8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """Ticks that may lie between two packets that follow each other; the mean and both limits."""

    shortest: int
    mean: float
    longest: int


def step_range(baud: int) -> StepRange:
    """The range at a line rate: the UART bounds the packet rate, so the times grow as the line slows."""
    slower = STREAM_BAUD / baud
    return StepRange(
        shortest=int(SHORTEST_STEP_TICKS * slower), mean=MEAN_INTERVAL_TICKS * slower, longest=int(LONGEST_STEP_TICKS * slower)
    )


def plausible(content: bytes | bytearray, first: int, count: int, stride: int) -> BoolArray:
    """Whether the bytes from `first`, `first + stride`, … can be packets, shape (count,): low nibbles 0, voltages of a rail or of none."""
    words = np.ndarray((count, 2), "<u8", content, first + STAMP_BYTES, (stride, 8))
    nibbles = ((words[:, 0] | words[:, 1]) & _LOW_NIBBLES) == 0
    volts = np.ndarray((count, WORDS // 2), "<i2", content, first + STAMP_BYTES, (stride, 2 * WORD_BYTES))
    scale = 1 << VALUE_BITS_SHIFT
    live = (volts - np.int16(LOWEST_LIVE_VOLTAGE * scale)).view(np.uint16) <= (HIGHEST_LIVE_VOLTAGE - LOWEST_LIVE_VOLTAGE) * scale
    if not live.all():
        live |= (volts + np.int16(HIGHEST_DEAD_VOLTAGE * scale)).view(np.uint16) <= 2 * HIGHEST_DEAD_VOLTAGE * scale
    fits: BoolArray = nibbles & live[:, 0] & live[:, 1] & live[:, 2] & live[:, 3]
    return fits


def stamps(content: bytes | bytearray, first: int, count: int, stride: int) -> NDArray[np.uint16]:
    """Time stamps of the packets at `first`, `first + stride`, …, shape (count,); a view."""
    return np.ndarray((count,), "<u2", content, first, (stride,))


def raw_words(content: bytes | bytearray, first: int, count: int) -> RawWords:
    """The values of `count` packets in a row, shape (count, 8)."""
    words: RawWords = np.ndarray((count, WORDS), "<i2", content, first + STAMP_BYTES, (PACKET_BYTES, WORD_BYTES)) >> VALUE_BITS_SHIFT
    return words


def encode_packets(ticks: IntArray, raw: RawWords) -> bytes:
    """Packets with these time stamps (modulo their 16 bits) and values, as the device sends them."""
    packets = np.empty((len(ticks), 1 + WORDS), "<u2")
    packets[:, 0] = ticks % STAMP_TURN
    packets[:, 1:] = (raw << VALUE_BITS_SHIFT).view(np.uint16)
    return packets.tobytes()


def rail_volts(raw: RawWords) -> Array:
    """Voltage of each rail [V], shape (n, 4)."""
    volts: Array = raw[:, 0::2].astype(np.float64) * VOLT_PER_LSB
    return volts


def rail_amperes(raw: RawWords, zero_a: Array) -> Array:
    """Current of each rail [A] less its zero, negative values kept; shape (n, 4).  `zero_a` has shape (4,)."""
    amperes: Array = raw[:, 1::2].astype(np.float64) * AMPERE_PER_LSB - zero_a
    return amperes
