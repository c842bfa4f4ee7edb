"""The vocabulary: types, names of modules and precisions, units.

Glossary (symbol, name in the code, unit)
    f       sm_clock_mhz / sm_clock_hz      SM clock [MHz at the edge, Hz inside]
    V       voltage_v                       core voltage [V]
    S       num_sms                         streaming multiprocessors
    lambda  coefficients named after phases real / ideal time of a phase [1]
    epsilon epsilon_s                       fixed GPU cost of a kernel [s]
    floor   floor_s                         shortest time that a measuring host can see [s]
    alpha   activity                        share of the kernel's time for which a module works [1]
    C       capacitance_f                   switched capacitance of a module [F]
    G, L, T gpu_s, host_s, latency_s        GPU time, host launch time, their smooth maximum [s]

Data are SI (s, W, J, Hz, byte); a name that ends in `_mhz` is in MHz.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

MODULES: Final = ("dram", "l2", "shared", "tensor", "cuda", "sfu")
"""The modules of a GPU to which time and energy are attributed."""


class NumberFormat(NamedTuple):
    """A number format of kernels.

    element_byte   storage of an activation, or of an element of any other tensor, with its share of scales [byte]
    weight_byte    storage of a weight of a matrix product [byte]
    rate           the format whose peak rate the arithmetic has
    converts       whether linear layers convert their activations from 16 bit first
    beside         a format whose rate tells whether a GPU has the arithmetic, where that of `rate` does not; "" elsewhere
    """

    element_byte: float
    weight_byte: float
    rate: str
    converts: bool = False
    beside: str = ""


FORMATS: Final = {
    "fp64": NumberFormat(8.0, 8.0, "fp64"),
    "fp32": NumberFormat(4.0, 4.0, "fp32"),
    "tf32": NumberFormat(4.0, 4.0, "tf32"),
    "bf16": NumberFormat(2.0, 2.0, "bf16"),
    "fp16": NumberFormat(2.0, 2.0, "fp16"),
    "fp8": NumberFormat(1.0, 1.0, "fp8", converts=True),
    "fp8_static": NumberFormat(1.0, 1.0, "fp8"),  # with a given scale, which the kernel before it applies
    "fp8_block": NumberFormat(1.0 + 4.0 / 128.0, 1.0 + 4.0 / 128.0**2, "fp8", converts=True),  # fp32 scales of 128, and of 128 × 128
    "int8": NumberFormat(1.0, 1.0, "int8", converts=True),
    "sq": NumberFormat(1.0, 1.0, "int8", converts=True),  # SmoothQuant: int8 with scales of rows and columns
    "nvfp4": NumberFormat(0.5625, 0.5625, "nvfp4", converts=True),  # 4 bit and an 8-bit scale for every 16 elements
    "int8_wo": NumberFormat(2.0, 1.0, "fp16"),  # weights alone are stored in few bits, and widened in registers to 16
    "int4_wo": NumberFormat(2.0, 0.5 + 2.0 / 128.0, "fp16"),  # a 16-bit scale for every 128 weights
    "w4a16_mxfp4": NumberFormat(2.0, 0.5 + 1.0 / 32.0, "bf16"),  # an 8-bit scale for every 32 weights
    "w4a8_mxfp4_mxfp8": NumberFormat(1.0 + 1.0 / 32.0, 0.5 + 1.0 / 32.0, "fp8", converts=True, beside="nvfp4"),
}
"""Number formats by name, the `precision` of operators.  Sources: OCP Microscaling Formats 1.0 (mx), the documentation of TensorRT-LLM."""

BYTES_PER_ELEMENT: Final = {name: one.element_byte for name, one in FORMATS.items()}
"""Storage of one element [byte] by precision; weights of products may have another."""

SIXTEEN_BIT: Final = ("bf16", "fp16")

RATES: Final = tuple(name for name, one in FORMATS.items() if one.rate == name)
"""Formats with a peak rate of their own."""

PRECISION_ALIASES: Final = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "e4m3": "fp8",
    "e5m2": "fp8",
}
"""Other spellings of precisions in files."""

HZ_PER_MHZ: Final = 1e6

TINY: Final = 1e-300
"""Smallest value, which keeps logarithms and quotients of 0 finite."""

NORMAL_90: Final = 1.6448536269514722
"""Half width of a 90 % interval in standard deviations of a normal distribution."""


def canonical_precision(name: str) -> str | None:
    """The precision's canonical name, None if unknown.  Case does not matter."""
    lowered = PRECISION_ALIASES.get(name.lower(), name.lower())
    return lowered if lowered in BYTES_PER_ELEMENT else None
