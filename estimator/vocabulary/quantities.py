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

from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

MODULES: Final = ("dram", "l2", "shared", "tensor", "cuda", "sfu")
"""The modules of a GPU to which time and energy are attributed."""

BYTES_PER_ELEMENT: Final[dict[str, float]] = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5625,  # 4 bit and an 8-bit scale for every 16 elements
}
"""Storage of one element [byte] by precision."""

PRECISION_ALIASES: Final[dict[str, str]] = {
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
    "fp8_block": "fp8",
    "fp8_static": "fp8",
}
"""Other spellings of precisions in files."""

HZ_PER_MHZ: Final = 1e6

TINY: Final = 1e-300
"""Smallest value, which keeps logarithms and quotients of 0 finite."""

NORMAL_90: Final = 1.6448536269514722
"""Half width of a 90 % interval in standard deviations of a normal distribution."""


def canonical_precision(name: str) -> str | None:
    """The precision's canonical name, None if unknown.  Case does not matter."""
    lowered = name.lower()
    lowered = PRECISION_ALIASES.get(lowered, lowered)
    return lowered if lowered in BYTES_PER_ELEMENT else None
