"""The serial protocol of the PMD family: opcodes, identities, commands and answers.

A command is one opcode byte, some with arguments; there is no framing, no checksum and no acknowledgement.
Sources: the vendor's desktop tool, the logger published with the GPU_Power_Benchmark traces, and those traces.
"""

import struct
from dataclasses import dataclass
from typing import Final

from collector.errors import DeviceError

WELCOME: Final = 0x00
READ_ID: Final = 0x01
READ_VALUES: Final = 0x03
READ_CONFIG: Final = 0x04
WRITE_CONFIG: Final = 0x05
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

FIRMWARE_WITH_GAINS: Final = 6
"""The first firmware whose configuration carries gains (version 5 of the struct, 34 bytes instead of 26)."""
_CONFIG_BYTES: Final = {4: 26, 5: 34}
_CHECKED_END: Final = {4: 23, 5: 31}
"""One past the last byte under the checksum, by version of the struct."""
_CHECKED_START: Final = 4
_AVERAGING_AT: Final = 22
_OFFSETS_AT: Final = 4
_CRC_POLYNOMIAL: Final = 0x1021
_CRC_START: Final = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterIdentity:
    """Which meter it is: model "PMD-USB" or "PMD2", its three identity bytes, the chip's UID in hex ("" where there is none)."""

    model: str
    vendor: int
    product: int
    firmware: int
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterConfig:
    """What a PMD-USB says of its configuration; offset codes are in units of the device's own, one for each word of a packet."""

    version: int
    crc_holds: bool
    averaging: int
    offset_codes: tuple[int, ...]


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


def config_bytes(firmware: int) -> int:
    """Length of the answer to READ_CONFIG."""
    return _CONFIG_BYTES[5 if firmware >= FIRMWARE_WITH_GAINS else 4]


def parse_config(answer: bytes) -> MeterConfig | None:
    """A configuration, or None for bytes that are none."""
    version = answer[0] if answer else 0
    if version not in _CONFIG_BYTES or len(answer) != _CONFIG_BYTES[version]:
        return None
    stored = int.from_bytes(answer[2:_CHECKED_START], "little")
    return MeterConfig(
        version=version,
        crc_holds=stored == checksum(answer[_CHECKED_START : _CHECKED_END[version]]),
        averaging=answer[_AVERAGING_AT],
        offset_codes=struct.unpack("<8b", answer[_OFFSETS_AT : _OFFSETS_AT + 8]),
    )


def encode_config(firmware: int, averaging: int, offset_codes: tuple[int, ...]) -> bytes:
    """A configuration as the device would send it, its checksum included; everything that is not named is 0."""
    version = 5 if firmware >= FIRMWARE_WITH_GAINS else 4
    content = bytearray(_CONFIG_BYTES[version])
    content[0] = version
    content[_OFFSETS_AT : _OFFSETS_AT + 8] = struct.pack("<8b", *offset_codes)
    content[_AVERAGING_AT] = averaging
    content[2:_CHECKED_START] = checksum(bytes(content[_CHECKED_START : _CHECKED_END[version]])).to_bytes(2, "little")
    return bytes(content)


def checksum(content: bytes) -> int:
    """CRC-16 with polynomial 1021 and start FFFF, not reflected, no final xor ("CCITT-FALSE")."""
    crc = _CRC_START
    for byte in content:
        crc ^= byte << 8
        for _ in range(8):
            crc = ((crc << 1) ^ _CRC_POLYNOMIAL if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc
