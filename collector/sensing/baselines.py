"""Published ways to compute energy from the same readings; shown beside this package's own figure, never used for it.

The naive integral, and three ways of sampling
(Arafa et al., arXiv 2002.07795, section IV), which multiply a power by the time of the kernel:

    mtsm   multi-threaded synchronised monitoring: the mean of all polls while the kernel runs
    sma    sampling monitoring: polls in the background every 15 ms; it takes the highest, as the window of the kernel is not known
    papi   PAPI's NVML component: one reading, taken when the kernel has ended
"""

import numpy as np

from collector.devices.possible_power import possible_power
from collector.devices.protocols import PowerReadings
from collector.sampling import host_seconds
from estimator.vocabulary.quantities import Array


def naive_energy(time_s: Array, power_w: Array, start_s: Array, end_s: Array) -> Array:
    """Integral of readings over spans, each reading held from its stamp to the next [J], shape (j,).

    `time_s` ascending and `power_w` (n,) are the polls; before the first poll, power equals its value.
    """
    edges = np.append(time_s, max(float(end_s.max(initial=time_s[-1])), time_s[-1]))
    sums = np.concatenate([[0.0], np.cumsum(power_w * np.diff(edges))])

    def integral(until_s: Array) -> Array:
        early: Array = np.minimum(until_s - time_s[0], 0.0) * power_w[0]
        result: Array = np.interp(until_s, edges, sums) + early
        return result

    return integral(end_s) - integral(start_s)


def sampled_energies_j(readings: PowerReadings, start_s: float, end_s: float) -> dict[str, float]:
    """Energy of a run between two host times by method [J]; nan for a method without a reading.

    `readings` are all polls of the board's own sensor, uncorrected, from before the run to its end or beyond.
    """
    host_s, power = host_seconds(readings.host_ns), readings.power_w
    known = possible_power(power)
    host_s, power = host_s[known], power[known]
    inside = (host_s >= start_s) & (host_s <= end_s)
    after = np.flatnonzero(host_s >= end_s)
    before = np.flatnonzero(host_s < end_s)
    ended = power[after[0]] if len(after) else power[before[-1]] if len(before) else np.nan
    # Two polls of the sampling approach are 15 ms apart: 66.7 Hz (Arafa et al., section IV.A).
    sampled = power[np.unique(np.floor((host_s - host_s[:1]) / 0.015), return_index=True)[1]]
    found = {
        "mtsm": float(power[inside].mean()) if inside.any() else np.nan,
        "sma": float(sampled.max()) if len(sampled) else np.nan,
        "papi": float(ended),
    }
    return {name: watt * (end_s - start_s) for name, watt in found.items()}
