"""Energy of a run as three published ways of sampling would have it, from the same readings, to show how far they are off.

All three multiply a power by the time of the kernel, leave the sensor as it is and take no power at rest away.

    mtsm   multi-threaded synchronised monitoring: the mean of all polls while the kernel runs
    sma    sampling monitoring: polls in the background every 15 ms, the highest of them, as the window of the kernel is not known
    papi   PAPI's NVML component: one reading, taken when the kernel has ended

Source: Arafa et al., "Verified instruction-level energy consumption measurement for NVIDIA GPUs" (arXiv 2002.07795), section IV.
"""

from typing import Final

import numpy as np

from collector.devices.possible_power import possible_power
from collector.devices.protocols import PowerReadings
from collector.sampling import host_seconds
from estimator.quantities import Array

SMA_PERIOD_S: Final = 0.015
"""Time between two polls of the sampling approach [s]: 66.7 Hz (Arafa et al., section IV.A)."""


def sampled_energies_j(readings: PowerReadings, start_s: float, end_s: float) -> dict[str, float]:
    """Energy of a run between two host times by method [J]; nan where a method has no reading.

    `readings` are all polls of the board's own sensor, uncorrected, from before the run to its end or beyond.
    """
    host_s, power = host_seconds(readings.host_ns), readings.power_w
    known = possible_power(power)
    host_s, power = host_s[known], power[known]
    inside = (host_s >= start_s) & (host_s <= end_s)
    after = np.flatnonzero(host_s >= end_s)
    before = np.flatnonzero(host_s < end_s)
    ended = power[after[0]] if len(after) else power[before[-1]] if len(before) else np.nan
    sampled = power[_every(host_s, SMA_PERIOD_S)]
    found = {
        "mtsm": float(power[inside].mean()) if inside.any() else np.nan,
        "sma": float(sampled.max()) if len(sampled) else np.nan,
        "papi": float(ended),
    }
    return {name: watt * (end_s - start_s) for name, watt in found.items()}


def _every(host_s: Array, period_s: float) -> list[int]:
    """Places of the first reading in each period."""
    if not len(host_s):
        return []
    slots = np.floor((host_s - host_s[0]) / period_s)
    first: list[int] = np.unique(slots, return_index=True)[1].tolist()
    return first
