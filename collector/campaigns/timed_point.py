"""Points that are only timed: a run too short for the power sensor, where a budget leaves no time for power.

The time of a launch is known after a tenth of a second; its power takes ten to thirty times as long, yet a few dozen kernels tell the
few coefficients of power.  Such a row has no power and says so with the flag `short_window`.
"""

from collections.abc import Mapping
from typing import Any, Final

TIMED_RUN_S: Final = 0.1
"""Length of such a run: a hundred times the resolution of the clocks that time it, several launches of nearly every kernel [s]."""

TIMED_GAP_S: Final = 0.05
"""Rest before it: no power has to fall back to that of rest [s]."""

POWER_COLUMNS: Final = ("power_raw_w", "power_w", "power_std_w", "energy_j", "energy_std_j", "energy_counter_j", "window_s")
POWER_DOUBTS: Final = frozenset(
    {
        "power_missing", "power_absurd", "sensor_stuck", "few_samples", "short_window", "drifting", "unsettled", "counter_disagrees",
        "counter_absurd",
    }
)  # fmt: skip
"""Doubts about power or energy, which such a row does not have."""


def without_power(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row that was only timed."""
    flags = ["short_window", *(flag for flag in columns["flags"] if flag not in POWER_DOUBTS)]
    return {**columns, **dict.fromkeys(POWER_COLUMNS), "samples": 0, "flags": flags}
