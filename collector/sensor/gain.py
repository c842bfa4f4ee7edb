"""Gain and offset of a sensor against an external meter."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.devices.protocols import PowerReadings
from collector.errors import SensorError
from collector.sampling import host_seconds
from collector.sensor.averaging import KernelFit
from collector.sensor.load import BIN_S, pole
from collector.sensor.update_clock import Updates
from estimator.quantities import Array

MIN_UPDATES: Final = 20
STEADY_SHARE: Final = 0.02
STEADY_STEP_S: Final = 2e-3
"""Updates count where the averaged power moves by less than this share within this time: there a delay does no harm."""
HUBER: Final = 1.5
"""Residuals beyond this many standard deviations count less."""
GAIN_STD_FLOOR: Final = 1.5e-3
OFFSET_STD_FLOOR_W: Final = 0.25
"""What a fit's own errors leave out (averaging known only so well); 90 % of simulated sensors lie within 0.0026 and 0.46 W."""
BLOCKS: Final = 12
MIN_SPAN_W: Final = 10.0
"""Least spread of the meter's power; a smaller one tells no gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """reading = gain · power + offset, with standard errors and the correlation between the two errors."""

    gain: float
    gain_std: float
    offset_w: float
    offset_std_w: float
    correlation: float


def fit_gain(updates: Updates, fit: KernelFit, meter: PowerReadings) -> Gain:
    """Gain and offset from all updates while the meter ran, the sensor's averaging applied to the meter.

    Raises SensorError where the meter's record is too short or its power hardly changes.
    """
    meter_s = host_seconds(meter.host_ns)
    inside = (updates.time_s > meter_s[0] + 5.0 * max(fit.width_s, BIN_S) + 0.1) & (updates.time_s < meter_s[-1])
    time_s, value = updates.time_s[inside] - fit.delay_s, updates.value[inside]
    if len(value) < MIN_UPDATES:
        raise SensorError(f"only {len(value)} sensor updates while the meter ran; at least {MIN_UPDATES} tell a gain")
    power, change = _averaged(meter_s, meter.power_w, fit, time_s)
    steady = np.abs(change) < STEADY_SHARE * np.ptp(power)
    if steady.sum() >= MIN_UPDATES:
        power, value = power[steady], value[steady]
    if np.ptp(power) < MIN_SPAN_W:
        raise SensorError(f"the meter's power changed by {np.ptp(power):.1f} W only; at least {MIN_SPAN_W:g} W tell a gain")
    design = np.stack([power, np.ones_like(power)], axis=1)
    weight = np.ones_like(value)
    for _ in range(5):
        normal = design.T @ (design * weight[:, None])
        solution = np.linalg.solve(normal, design.T @ (weight * value))
        residual = value - design @ solution
        scale = 1.4826 * float(np.median(np.abs(residual))) + 1e-9
        weight = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(residual), 1e-12))
    inverse = np.linalg.inv(normal)
    scores = design * (weight * residual)[:, None]
    sums = np.array([part.sum(axis=0) for part in np.array_split(scores, BLOCKS)])
    covariance = inverse @ (sums.T @ sums) @ inverse
    std = np.sqrt(np.maximum(np.diag(covariance), np.diag(inverse) * scale**2))
    return Gain(
        gain=float(solution[0]),
        gain_std=float(np.hypot(std[0], GAIN_STD_FLOOR)),
        offset_w=float(solution[1]),
        offset_std_w=float(np.hypot(std[1], OFFSET_STD_FLOOR_W)),
        correlation=float(inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1])),
    )


def _averaged(meter_s: Array, power_w: Array, fit: KernelFit, time_s: Array) -> tuple[Array, Array]:
    """The meter's power as the sensor averages it, at times shape (n,), and its change around them [W]."""
    grid = np.arange(meter_s[0], meter_s[-1], BIN_S)
    power = np.interp(grid, meter_s, power_w)
    if fit.kernel == "low-pass":
        count = int(2 ** np.ceil(np.log2(len(grid) + 1.0 / BIN_S)))
        filtered = np.fft.irfft(np.fft.rfft(power - power[0], n=count) * pole(count, 0.5 * fit.width_s), n=count)
        averaged = filtered[: len(grid)] + power[0]
    else:
        width = max(fit.width_s, BIN_S)
        sums = np.concatenate([[0.0], np.cumsum(power)]) * BIN_S
        edges = np.append(grid, grid[-1] + BIN_S)
        averaged = (np.interp(grid, edges, sums) - np.interp(grid - width, edges, sums)) / width
    change = np.interp(time_s + STEADY_STEP_S, grid, averaged) - np.interp(time_s - STEADY_STEP_S, grid, averaged)
    return np.interp(time_s, grid, averaged), change
