"""From readings to power: a board's mean power during the settled part of a run, and the energy of its launches.

Readings are late, averaged and scaled.  For a run longer than the sensor's averaging the time-domain part is
simple: leave out the rise, average whole updates, and derive the error of the mean from the updates themselves.
"""

import math

import numpy as np

from collector.devices.possible_power import possible_power
from collector.devices.protocols import EnergyReading, PowerReadings
from collector.sampling import SECONDS_PER_NS, host_seconds
from collector.sensing.calibration import SensorCalibration
from collector.sensing.clock import held_updates
from collector.sensing.known_sensor import DEFAULT_PERIOD_S, inversion
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen


@frozen
class SteadyPower:
    """Power over a settled window; nan where it is not known.

    `raw_w` is the mean reading and `raw_std_w` its standard error; `power_w` and `std_w` the same, corrected for offset and
    gain where they are known.  `samples` updates within `window_s`; `change_w` is the rise of the
    readings through the window and `change_std_w` its standard error; `first_w` the mean of the window's first
    fifth.  `absurd` counts readings that no board gives, `stuck` is true if the sensor stood still.
    """

    raw_w: float = np.nan
    raw_std_w: float = np.nan
    power_w: float = np.nan
    std_w: float = np.nan
    samples: int = 0
    window_s: float = 0.0
    change_w: float = np.nan
    change_std_w: float = np.nan
    first_w: float = np.nan
    absurd: int = 0
    stuck: bool = False


def settle_time_s(calibration: SensorCalibration, least_s: float) -> float:
    """Time from a load's start until readings show its steady level [s], at least `least_s`."""
    # Default rise to discard: the published practice for one-second averages.
    return max(calibration.settle_s if calibration.settle_s is not None else 1.25, least_s)


def update_period_s(calibration: SensorCalibration) -> float:
    """Update period, or a cautious guess [s]."""
    return calibration.update_period_s or DEFAULT_PERIOD_S


def steady_power(
    readings: PowerReadings, start_s: float, end_s: float, calibration: SensorCalibration, power_limit_w: float
) -> SteadyPower:
    """Mean power from readings between two host times, which exclude start and rise.

    `power_limit_w` bounds possible power; nan if unknown.
    """
    host_s = host_seconds(readings.host_ns)
    inside = (host_s >= start_s) & (host_s <= end_s)
    host_s, value = host_s[inside], readings.power_w[inside]
    sane = possible_power(value, 2.0 * power_limit_w)
    absurd = int(np.count_nonzero(~sane))
    updates = held_updates(host_s[sane], value[sane], update_period_s(calibration))
    count = len(updates.value)
    if not count:
        return SteadyPower(absurd=absurd)
    resolution = calibration.resolution_w or 0.0
    noise = calibration.reading_noise_w or 0.0
    stuck = count >= 5 and noise > 2.0 * resolution and bool(np.all(updates.value == updates.value[0]))
    raw = float(updates.value.mean())
    change, change_std, raw_std = _trend(updates.value, max(noise, resolution / np.sqrt(12.0)))
    power, std = corrected_power(raw, raw_std, calibration)
    # With an unknown period one reading that is held can pass for many.
    seen = count if calibration.update_period_s else 1 + int(np.count_nonzero(np.diff(updates.value)))
    return SteadyPower(
        raw_w=raw,
        raw_std_w=raw_std,
        power_w=power,
        std_w=std,
        samples=seen,
        window_s=seen * update_period_s(calibration),
        change_w=change,
        change_std_w=change_std,
        first_w=float(updates.value[: max(1, count // 5)].mean()),
        absurd=absurd,
        stuck=stuck,
    )


def corrected_power(raw_w: float, raw_std_w: float, calibration: SensorCalibration) -> tuple[float, float]:
    """Power and its standard error from a mean reading [W]: (reading − offset) / gain where both are known.

    Errors of gain and offset are common to all rows of a board, not independent between them.
    """
    back = inversion(calibration)
    if not back.known:
        return raw_w, raw_std_w
    return back.energy(raw_w, raw_std_w, 1.0)


def _trend(value: Array, least_noise_w: float) -> tuple[float, float, float]:
    """Change through the window, its standard error, and the standard error of the mean [W].

    Scatter is computed around a straight line (a slow rise is power, not noise) and enlarged by the correlation of
    neighbouring updates; `least_noise_w` is the least noise of one reading.  nan if neither shows any.
    """
    count = len(value)
    if count < 4:
        return float(value[-1] - value[0]), math.nan, float(least_noise_w / np.sqrt(count)) or math.nan
    x = np.linspace(-0.5, 0.5, count)
    slope = float(x @ value / (x @ x))
    residual = value - value.mean() - slope * x
    scatter = max(float(np.sqrt(residual @ residual / (count - 2))), least_noise_w)
    power = float(residual @ residual)
    seen = float(residual[1:] @ residual[:-1]) / power if power > 0 else 0.0
    correlation = min(max(seen + (1.0 + 3.0 * seen) / count, 0.0), 0.9)  # a short series shows too little of it
    inflation = np.sqrt((1.0 + correlation) / (1.0 - correlation))
    return slope, float(scatter * inflation / np.sqrt(x @ x)), float(scatter * inflation / np.sqrt(count)) or math.nan


def launch_energy(power_w: float, power_std_w: float, latency_s: float, latency_std_s: float) -> tuple[float, float]:
    """Energy of a launch and its standard error [J]: power times latency, both including gaps between launches.

    Power and latency come from different instruments: their errors are independent.
    """
    energy = power_w * latency_s
    if not power_w > 0 or not latency_s > 0:
        return energy, math.nan
    return energy, abs(energy) * math.hypot(power_std_w / power_w, latency_std_s / latency_s)


def counter_energy(
    before: EnergyReading | None,
    after: EnergyReading | None,
    launches: int,
    duration_s: float,
    raw_power_w: float,
    rest_power_w: float,
    update_period_s: float,
    power_limit_w: float,
) -> tuple[float, tuple[str, ...]]:
    """Energy of a launch by the counter [J], read just before and after a run, nan without one; and the flags of its doubts.

    `raw_power_w` is nan where the readings are not believed.  The counter moves in steps of about `update_period_s`, so that each end
    may miss or add one step of the difference between `raw_power_w` and `rest_power_w`.
    """
    if before is None or after is None:
        return math.nan, ()
    energy = after.energy_j - before.energy_j
    elapsed = (after.host_ns - before.host_ns) * SECONDS_PER_NS
    # A counter that runs faster than twice the power limit is wrong.
    if energy < 0.0 or energy > 2.0 * power_limit_w * (elapsed + 2.0 * update_period_s):
        return math.nan, ("counter_absurd",)
    expected = raw_power_w * duration_s
    ends = 2.0 * update_period_s * abs(raw_power_w - rest_power_w if math.isfinite(rest_power_w) else raw_power_w)
    # Largest relative difference between counter and readings: it allows for rise of the board and the counter's own updates.
    disagrees = abs(energy - expected) > 0.06 * expected + ends
    return energy / launches, ("counter_disagrees",) if disagrees else ()
