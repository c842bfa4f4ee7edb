"""Published ways to compute energy from the same readings; shown beside this package's own figure, never used for it.

The naive integral, and three ways of sampling
(Arafa et al., arXiv 2002.07795, section IV), which multiply a power by the time of the kernel:

    mtsm   multi-threaded synchronised monitoring: the mean of all polls while the kernel runs
    sma    sampling monitoring: polls in the background every 15 ms; it takes the highest, as the window of the kernel is not known
    papi   PAPI's NVML component: one reading, taken when the kernel has ended

The good practice of Yang, Adamek and Armour repeats a program, shifts its phase, and discards the rise (`Practice`).
"""

import numpy as np

from collector.devices.protocols import PowerReadings
from collector.sampling import possible_polls
from collector.sensing.board_power import LoadStamps, integrated
from collector.sensing.calibration import SensorCalibration
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.values import frozen


def naive_energy(time_s: Array, power_w: Array, start_s: Array, end_s: Array) -> Array:
    """Integral of readings over spans, each reading held from its stamp to the next [J], shape (j,).

    `time_s` ascending and `power_w` (n,) are the polls; before the first poll, power equals its value.
    """
    edges = np.append(time_s, max(float(end_s.max(initial=time_s[-1])), time_s[-1]))
    sums = np.concatenate([[0.0], np.cumsum(power_w * np.diff(edges))])

    def integral(until_s: Array) -> Array:
        early: Array = np.minimum(until_s - time_s[0], 0.0) * power_w[0]
        found: Array = np.interp(until_s, edges, sums) + early
        return found

    return integral(end_s) - integral(start_s)


def sampled_energies_j(readings: PowerReadings, start_s: float, end_s: float) -> dict[str, float]:
    """Energy of a run between two host times by method [J]; nan for a method without a reading.

    `readings` are all polls of the board's own sensor, uncorrected, from before the run to its end or beyond.
    """
    host_s, power = possible_polls(readings)
    inside = (host_s >= start_s) & (host_s <= end_s)
    ended = np.append(power, power[-1:])[np.searchsorted(host_s, end_s)] if len(power) else np.nan
    # Two polls of the sampling approach are 15 ms apart: 66.7 Hz (Arafa et al., section IV.A).
    sampled = power[np.unique(np.floor((host_s - host_s[:1]) / 0.015), return_index=True)[1]]
    found = {
        "mtsm": float(power[inside].mean()) if inside.any() else np.nan,
        "sma": float(sampled.max()) if len(sampled) else np.nan,
        "papi": float(ended),
    }
    return {name: watt * (end_s - start_s) for name, watt in found.items()}


@frozen
class Practice:
    """The good practice for a class of sensors: rise to discard and shift of the readings [s]; `partial`: averages do not tile time."""

    discard_s: float
    shift_s: float
    partial: bool = False

    def settled(self, load: LoadStamps) -> IntArray:
        """Numbers of the executions after the rise; the last one, if the load ends within it."""
        return np.flatnonzero(load.start_s >= min(load.start_s[0] + self.discard_s, load.start_s[-1]))


FULL_WINDOW = Practice(discard_s=0.25, shift_s=0.1)
TRAILING_SECOND = Practice(discard_s=1.25, shift_s=0.1)
SHORT_WINDOW = Practice(discard_s=0.1, shift_s=0.0, partial=True)
PRACTICE_S, PRACTICE_SHIFTS, PRACTICE_PAUSE_S = 5.0, 8, 0.025
"""Yang, Adamek and Armour, "Part-time Power Measurements": good practice, cases 1 to 3, and their scripts.

The program is repeated for 5 s; if averages miss some of the time, 8 pauses of 25 ms shift its phase.
"""


def practice_for(calibration: SensorCalibration) -> Practice:
    """The published figures for a sensor's class; for an unknown class, the figures of a full window."""
    period, window = calibration.update_period_s, calibration.window_s
    if calibration.averaging == "trailing-mean":
        return TRAILING_SECOND
    if period is not None and window is not None and window < 0.9 * period:
        return SHORT_WINDOW
    return FULL_WINDOW


def published_energy(time_s: Array, power_w: Array, load: LoadStamps, practice: Practice) -> float:
    """Energy of an execution by the good practice [J]: the rise discarded, readings shifted, trapezoids, pauses excluded."""
    kept = practice.settled(load)
    shifted = time_s - practice.shift_s
    sums = integrated(shifted, power_w)

    def integral(until_s: Array) -> Array:
        index = np.clip(np.searchsorted(shifted, until_s, side="right") - 1, 0, len(shifted) - 1)
        beyond = until_s - shifted[index]
        value = np.interp(until_s, shifted, power_w)
        return sums[index] + 0.5 * (power_w[index] + value) * beyond

    return float((integral(load.end_s[kept]) - integral(load.start_s[kept])).mean())
