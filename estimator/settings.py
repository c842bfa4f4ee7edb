"""What a user may set for an estimate, checked: clocks, power cap, host launch time, efficiencies."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from estimator.arguments import real, reals, require
from estimator.coefficients import COLUMN
from estimator.errors import OperatingPointError
from estimator.gpu import GpuSpec
from estimator.power_limit import UNLIMITED_W
from estimator.quantities import Array

EFFICIENCY_COEFFICIENTS: Final[dict[str, tuple[str, ...]]] = {
    "dram": ("dram", "dram_activations", "epilogue"),
    "l2": ("l2",),
    "tensor": ("math",),
    "cuda": ("issue",),
    "sfu": ("sfu",),
}
"""Coefficients that an efficiency replaces by its inverse."""


def asked_clocks(sm_clock_mhz: float | Sequence[float] | None, gpu: GpuSpec) -> Array:
    """Asked SM clocks as an array [MHz], shape (c,); None asks for the clock at which the GPU's peak rates are quoted.

    Raises OperatingPointError for an empty list and for a clock outside the range that can be set, ArgumentError for what are no numbers.
    """
    given = gpu.sm_clock_max_mhz if sm_clock_mhz is None else sm_clock_mhz
    clocks = reals(given, "sm_clock_mhz", "MHz")
    if clocks.size == 0:
        raise OperatingPointError("no SM clock given: name at least one, in MHz")
    wrong = clocks[~((clocks >= gpu.sm_clock_min_mhz) & (clocks <= gpu.sm_clock_limit_mhz))]
    if wrong.size:
        raise OperatingPointError(unlockable_line(wrong[0], gpu))
    return clocks


CANNOT_LOCK: Final = "MHz is outside what"
"""Stands in what is said of a clock that a board cannot be locked at, and in nothing else."""


def in_clock_range(sm_clock_mhz: float, gpu: GpuSpec) -> bool:
    """Whether a clock lies within what a board can lock."""
    return gpu.sm_clock_min_mhz <= sm_clock_mhz <= gpu.sm_clock_limit_mhz


def unlockable_line(sm_clock_mhz: float, gpu: GpuSpec) -> str:
    """What is said of a clock that a board cannot be locked at [MHz]."""
    low, high = gpu.sm_clock_min_mhz, gpu.sm_clock_limit_mhz
    return f"SM clock {sm_clock_mhz:g} {CANNOT_LOCK} {gpu.name} can lock: {low:g} to {high:g} MHz"


def power_limit(power_cap_w: float | None, gpu: GpuSpec) -> float:
    """The power limit in force [W]: the asked one, else the GPU's own.

    Raises OperatingPointError for more than the board's own limit, to which a driver would not set it either.
    """
    if power_cap_w is None:
        return gpu.power_limit_w
    if not math.isfinite(real(power_cap_w, "power_cap_w", "W")) or power_cap_w <= 0:
        raise OperatingPointError(f"power cap {power_cap_w!r} W must be a positive number")
    if gpu.power_limit_w < power_cap_w != UNLIMITED_W:
        raise OperatingPointError(
            f"power cap {power_cap_w:g} W is above the limit of {gpu.name}, {gpu.power_limit_w:g} W; "
            f"for a board with another limit say --set power_limit_w={power_cap_w:g} (in Python: override_gpu)"
        )
    return float(power_cap_w)


def non_negative(value: float, name: str, unit: str) -> float:
    """`value`, checked to be a finite number that is not negative."""
    if not math.isfinite(value) or value < 0:
        raise OperatingPointError(f"{name} {value!r} {unit} must be zero or a positive number")
    return float(value)


def host_launch(value: float) -> float:
    """The host's time to launch one operator [s], checked: a host that needs longer than LONGEST_LAUNCH_S runs no model."""
    launch_s = non_negative(real(value, "host_launch_s", "s"), "host launch time", "s")
    if launch_s > LONGEST_LAUNCH_S:
        raise OperatingPointError(f"host launch time {value!r} s must be at most {LONGEST_LAUNCH_S:g} s")
    return launch_s


LONGEST_LAUNCH_S: Final = 1.0


def with_efficiency(coefficients: Array, efficiency: Mapping[str, float]) -> Array:
    """Coefficients (n, ·) with those of the named modules replaced by 1 / efficiency where the kernel has that phase.

    Raises OperatingPointError for an unknown module and for an efficiency outside 0.001 to 1.5.
    """
    if not efficiency:
        return coefficients
    require(efficiency, Mapping, "efficiency", 'a mapping such as {"dram": 0.8}')
    changed = coefficients.copy()
    for module, value in efficiency.items():
        if module not in EFFICIENCY_COEFFICIENTS:
            raise OperatingPointError(f"no efficiency of {module!r} can be set; known: {', '.join(EFFICIENCY_COEFFICIENTS)}")
        if not (
            math.isfinite(real(value, f"efficiency of {module}", "shares of the published rate"))
            and LEAST_EFFICIENCY <= value <= MOST_EFFICIENCY
        ):
            raise OperatingPointError(f"efficiency {module}={value!r} must lie within {LEAST_EFFICIENCY:g} and {MOST_EFFICIENCY:g}")
        for name in EFFICIENCY_COEFFICIENTS[module]:
            column = changed[:, COLUMN[name]]
            changed[:, COLUMN[name]] = np.where(column > 0, 1.0 / value, column)
    return changed


LEAST_EFFICIENCY: Final = 1e-3
"""Hardware that reaches less of its published rate is broken, and far less runs out of the range of floats."""

MOST_EFFICIENCY: Final = 1.5
"""Published rates can be exceeded a little, by boost clocks for example."""
