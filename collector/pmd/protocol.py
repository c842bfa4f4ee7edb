"""The serial protocol of the PMD family: opcodes, identities, commands and answers.

A command is one opcode byte, some with arguments; there is no framing, no checksum and no acknowledgement.
Sources: the vendor's desktop tool, the logger published with the GPU_Power_Benchmark traces, and those traces.
"""

import struct
from dataclasses import dataclass
from typing import Final

from collector.devices.errors import DeviceError

WELCOME: Final = 0x00
READ_ID: Final = 0x01
READ_VALUES: Final = 0x03
READ_ADC: Final = 0x06
CONTINUOUS: Final = 0x07
UART_CONFIG: Final = 0x08
NOP: Final = 0xFF
"""Opcodes of the PMD-USB.  The other meters of the family number theirs differently: ask who it is first."""

PMD2_READ_UID: Final = 0x02
PMD2_READ_SENSORS: Final = 0x04
"""Opcodes of the PMD2 beside 00 and 01, which all share."""

POWER_ON_BAUD: Final = 115200
STREAM_BAUD: Final = 921600
PROBED_BAUDS: Final = (POWER_ON_BAUD, STREAM_BAUD, 460800)
"""Line rates at which a PMD-USB may be found: after power-on, after a session that died, after the vendor's logger."""

VENDOR: Final = 0xEE
PMD_USB: Final = 0x0A
PMD2: Final = 0x15
VENDORS: Final = (0xEE, 0xEF)
FOREIGN_PRODUCTS: Final = {(0xEE, 0x17): "a PMD2X", (0xEF, 0x05): "a WireView Pro II"}
"""Relatives with opcode tables of their own, by vendor and product byte."""

PMD_USB_WELCOME: Final = b"ElmorLabs PMD-USB"
PMD2_WELCOME: Final = b"ElmorLabs PMD2\x00"
ID_BYTES: Final = 3
UID_BYTES: Final = 12

TIMESTAMP_BYTES: Final = 2
ALL_CHANNELS: Final = 0xFF
START_STREAM: Final = bytes((CONTINUOUS, 1, TIMESTAMP_BYTES, ALL_CHANNELS))
STOP_STREAM: Final = bytes((CONTINUOUS, 0, 0, 0))

PARITY_NONE: Final = 2
WIDTH_8: Final = 0
STOP_BITS_1: Final = 0
"""Codes of the UART command as both known hosts send them."""
_UART: Final = struct.Struct("<B4I")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterIdentity:
    """Which meter it is: model "PMD-USB" or "PMD2", its three identity bytes, the chip's UID in hex ("" where there is none)."""

    model: str
    vendor: int
    product: int
    firmware: int
    uid: str


def identity_from_bytes(answer: bytes, where: str) -> MeterIdentity:
    """Who answered to READ_ID.  Raises DeviceError for anything but a PMD-USB or a PMD2."""
    if len(answer) != ID_BYTES:
        raise DeviceError(f"{where}: {len(answer)} bytes instead of {ID_BYTES} answer the question who it is; no ElmorLabs PMD")
    vendor, product, firmware = answer
    models = {(VENDOR, PMD_USB): "PMD-USB", (VENDOR, PMD2): "PMD2"}
    model = models.get((vendor, product))
    if model is None:
        known = FOREIGN_PRODUCTS.get((vendor, product), "an unknown device")
        named = f"the device names itself {vendor:02X} {product:02X}, {known}"
        raise DeviceError(f"{where}: {named}; a PMD-USB (EE 0A) or a PMD2 (EE 15) is needed")
    return MeterIdentity(model=model, vendor=vendor, product=product, firmware=firmware, uid="")


def uart_command(baud: int) -> bytes:
    """The command that switches a PMD-USB's line rate; 8 bit, no parity, 1 stop bit, all numbers little endian."""
    return _UART.pack(UART_CONFIG, baud, PARITY_NONE, WIDTH_8, STOP_BITS_1)


def baud_of_uart_command(command: bytes) -> int:
    """The line rate that a UART command asks for."""
    return int(_UART.unpack(command)[1])
