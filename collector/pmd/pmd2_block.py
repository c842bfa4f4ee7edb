"""The PMD2's answer to a question for values: 122 bytes, packed, little endian.

u16 supply voltage of the chip, i16 its temperature, ten rails of (u16 mV, u32 mA, u32 mW), four u16 sums in watts, ten
u8 of the overcurrent protection.  Source: the vendor's C# and Python examples.
"""

from typing import Final

import numpy as np

from estimator.vocabulary.quantities import Array

BLOCK_BYTES: Final = 122
PMD2_RAILS: Final = ("atx_12v", "atx_5v", "atx_5vsb", "atx_3v3", "hpwr", "eps1", "eps2", "pcie1", "pcie2", "pcie3")
GPU_RAILS: Final = ("hpwr", "pcie1", "pcie2", "pcie3")
"""The rails that end at a graphics board; the others feed the host."""
RAIL_VOLTS: Final = (12.0, 5.0, 5.0, 3.3, 12.0, 12.0, 12.0, 12.0, 12.0, 12.0)
"""Nominal voltage of each rail [V] (Intel, ATX12V design guide 2.x)."""
MILLI: Final = 1e-3

_RAIL: Final = np.dtype([("millivolt", "<u2"), ("milliampere", "<u4"), ("milliwatt", "<u4")])
_BLOCK: Final = np.dtype(
    [("supply", "<u2"), ("temperature", "<i2"), ("rail", _RAIL, (len(PMD2_RAILS),)), ("sums", "<u2", (4,)), ("protection", "u1", (10,))]
)


def block_volts(blocks: bytes) -> Array:
    """Voltage of each rail [V], shape (n, 10)."""
    volts: Array = np.frombuffer(blocks, _BLOCK)["rail"]["millivolt"] * MILLI
    return volts


def block_amperes(blocks: bytes, zero_a: Array) -> Array:
    """Current of each rail [A] less its zero, shape (n, 10); the device itself reports no negative current."""
    amperes: Array = np.frombuffer(blocks, _BLOCK)["rail"]["milliampere"] * MILLI - zero_a
    return amperes


def encode_block(volts: Array, amperes: Array) -> bytes:
    """A block with these values, shape (10,) each; currents below 0 are sent as 0."""
    block = np.zeros(1, _BLOCK)
    millivolt, milliampere = np.round(volts / MILLI), np.maximum(np.round(amperes / MILLI), 0.0)
    block["supply"], block["temperature"] = 3300, 35
    block["rail"]["millivolt"], block["rail"]["milliampere"] = millivolt, milliampere
    block["rail"]["milliwatt"] = np.round(millivolt * milliampere * MILLI)
    watts = dict(zip(PMD2_RAILS, millivolt * milliampere * MILLI * MILLI, strict=True))
    eps, pcie = watts["eps1"] + watts["eps2"], sum(watts[name] for name in GPU_RAILS)
    total = sum(watts.values())
    block["sums"] = np.round([eps, pcie, total - eps - pcie, total])
    return block.tobytes()
