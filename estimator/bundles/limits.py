"""What the numbers of a bundle can be: low, high and unit of each; wide enough for any board, narrow enough that answers stay answers.

A number beyond its range was never measured or fitted: it comes from a wrong unit, a damaged file or a hand.  `schema/bundle-1.json`
states the same ranges.
"""

import math
from typing import Final

from estimator.coefficients import COEFFICIENTS
from estimator.specifications import FIELD_LIMITS, TABLE_LIMITS

Limits = tuple[float, float, str]
"""Low, high and unit."""

SECONDS: Final[Limits] = (0.0, 10.0, "s")
CLOCK_MHZ: Final[Limits] = FIELD_LIMITS["sm_clock_max_mhz"]
VOLTAGE_V: Final[Limits] = TABLE_LIMITS["voltage_v"]
VOLTAGE_STD_V: Final[Limits] = (0.0, VOLTAGE_V[1], "V")
IDLE_W: Final[Limits] = TABLE_LIMITS["idle_w"]
WATT: Final[Limits] = (0.0, FIELD_LIMITS["power_limit_w"][1], "W")
TEMPERATURE_C: Final[Limits] = (-60.0, 200.0, "°C")
"""Of a die or a board: silicon is neither stored nor run beyond these."""

LN_STD: Final[Limits] = (0.0, 100.0, "(deviation of a logarithm)")
LN_COVARIANCE: Final[Limits] = (-(LN_STD[1] ** 2), LN_STD[1] ** 2, "(covariance of logarithms)")
POWER_COVARIANCE: Final[Limits] = (-1e12, 1e12, "pJ² or W²")
COUNT: Final[Limits] = (0, 2**53, "")
"""Counts up to here are whole in every program that reads JSON."""

SEED: Final[Limits] = (0, 2**128, "")

LAMBDA: Final[Limits] = (0.0, 1e6, "(times its ideal)")
COEFFICIENT_LIMITS: Final[dict[str, Limits]] = {
    **dict.fromkeys(COEFFICIENTS, LAMBDA),
    "epsilon_s": SECONDS,
    "floor_s": SECONDS,
    "offset_s": SECONDS,
    "exponent": (0.1, 64.0, ""),
    "wave_exponent": (0.0, 10.0, ""),
    "small_tile_exponent": (0.0, 10.0, ""),
    "boost_drop": (0.0, 10.0, ""),
    "boost_time_s": (1e-9, SECONDS[1], "s"),
    "strided": (1e-3, 1e6, "(times)"),
    "widest_split": (0.0, 65536.0, ""),
    "l2_knee": (0.0, 1e3, "L2 sizes"),
    "l2_knee_exponent": (0.0, 64.0, ""),
}
"""By coefficient; exponents far beyond what a fit may choose (`fitter.priors`) run out of the range of floats."""

LAUNCH_S: Final[Limits] = (0.0, 1.0, "s")
OVERLAP_EXPONENT: Final[Limits] = (1.0, 256.0, "")
"""A host that needed longer for one operator would run no model."""

POWER_LIMITS: Final[dict[str, Limits]] = {
    "reference_clock_mhz": CLOCK_MHZ,
    "reference_voltage_v": VOLTAGE_V,
    "voltage_exponent": (0.0, 10.0, ""),
    "concavity": (1.0, 1.0, ""),
    "busy_w": WATT,
    "active_w": WATT,
    "l2_credit": (0.0, 100.0, "(share of L2)"),
    "warm_knee": (1e-3, 1e3, "L2 sizes"),
    "warm_sharpness": (1e-2, 64.0, ""),
    "leakage_w_per_k": (0.0, 100.0, "W/K"),
    "leakage_std_w_per_k": (0.0, 100.0, "W/K"),
    "operating_c": TEMPERATURE_C,
    "operating_k_per_w": (0.0, 100.0, "K/W"),
}
EVENT_ENERGY_J: Final[Limits] = (0.0, 1e-8, "J per event")
"""A thousand times what an operation or a byte costs on any published board."""

CAPACITANCE_F: Final[Limits] = (0.0, 1e-2, "F")

REFERENCE_CLOCK_MARGIN: Final = 0.1
"""How far beyond the GPU's clocks a measured one may lie, for boards that run a little beyond their specification [relative]."""

SIZE: Final[Limits] = (0.0, 1e18, "")
"""Of a kernel's shape, as in workload files."""

WORK: Final[Limits] = (0.0, 1e60, "")
"""A product of sizes."""

LN_ERROR: Final[Limits] = (-100.0, 100.0, "(logarithm of a ratio)")
ABSOLUTE_LN_ERROR: Final[Limits] = (0.0, LN_ERROR[1], LN_ERROR[2])
QUANTILE: Final[Limits] = (0.0, 1e6, "(deviations)")
OCTAVES: Final[Limits] = (0.0, 1e3, "octaves")
FIELD_WEIGHT: Final[Limits] = (0.0, 1e3, "octaves per octave")
SHARE: Final[Limits] = (0.0, 1.0, "")
FADING_SHARE: Final[Limits] = (-10.0, 10.0, "")
TILE_AREA: Final[Limits] = (0.0, 1e9, "elements")
KRIGING_WEIGHT: Final[Limits] = (-1e4, 1e4, "")
POWER_SLOPE: Final[Limits] = (-10.0, 10.0, "")
LEVEL_W: Final[Limits] = (1e-3, WATT[1], "W")
TILE: Final[Limits] = (1, 65536, "elements")
SPLIT: Final[Limits] = (1, 65536, "parts")
LOG_THRESHOLD: Final[Limits] = (-1e4, 1e4, "octaves")
LIKING: Final[Limits] = (-1e3, 1e3, "(logarithm of odds)")
SHARPNESS: Final[Limits] = (0.0, 1e6, "")

PERCENT: Final[Limits] = (0.0, 1e12, "%")
SIGNED_PERCENT: Final[Limits] = (-PERCENT[1], PERCENT[1], "%")

ENERGY_J: Final[Limits] = (-1e-3, 1e-3, "J")
"""Of one instruction, transaction or byte."""

ENERGY_STD_J: Final[Limits] = (0.0, ENERGY_J[1], "J")
TERM: Final[Limits] = (-1e5, 1e5, "J, W or W/K")
TERM_COVARIANCE: Final[Limits] = (-(TERM[1] ** 2), TERM[1] ** 2, "")
RELATIVE: Final[Limits] = (0.0, 1e3, "(relative)")
OCCURRENCES: Final[Limits] = (0.0, 1e9, "per instruction")
TRANSACTION_BYTES: Final[Limits] = (1, 65536, "byte")
PJ_PER_BIT: Final[Limits] = (-1e9, 1e9, "pJ/bit")
LINK_RATE: Final[Limits] = (0.0, 1e15, "byte/s")

BLOCK_THREADS: Final[Limits] = (1, 1024, "threads")
BLOCKS_PER_SM: Final[Limits] = (1, FIELD_LIMITS["blocks_per_sm"][1], "blocks")
NUM_SMS: Final[Limits] = FIELD_LIMITS["num_sms"]
GRID: Final[Limits] = (1, 2**31 - 1, "blocks")
BLOCK_TIME_S: Final[Limits] = (math.ulp(0.0), 1e6, "s")
OVERLAP: Final[Limits] = (1e-6, 1e6, "")
BLOCK_TERM: Final[Limits] = (-1e6, 1e6, "J, W or s")
BLOCK_COVARIANCE: Final[Limits] = (-1e12, 1e12, "")
FLOP: Final[Limits] = (0.0, 1e30, "flop")
