"""Gain and offset of a sensor against an external meter."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensor.kernel_fit import KernelFit
from collector.sensor.load import LoadStamps
from collector.sensor.sources import PowerSource, averaged_by
from collector.sensor.update_clock import Updates
from estimator.quantities import Array

MIN_UPDATES: Final = 20
STEADY_SHARE: Final = 0.02
STEADY_STEP_S: Final = 2e-3
"""Updates count where the averaged power moves by less than this share within this time: there a delay does no harm."""
HUBER: Final = 1.5
"""Residuals beyond this many standard deviations count less."""
STEADY_GAIN_FLOOR, STEADY_OFFSET_FLOOR_W = 1.5e-3, 0.25
"""What a steady fit's own errors leave out: an averaging that is not known."""
LONG_SETTLED_S: Final = (0.05, 0.4, 1.3)
"""Power that kept its mean over each of these is settled for every averaging there is, known or not."""
NOW_S: Final = 0.01
"""What a meter says of one moment is its mean over this: single samples are noisy."""
BLOCKS: Final = 12
MIN_SPAN_W: Final = 10.0
"""Least spread of the meter's power; a smaller one tells no gain."""
LINE_R2: Final = 0.8
"""A line that explains less of the readings is no gain: meter and readings were not on one time base, or not of one board."""
LEVEL_SETTLE_S: Final = 0.3
LEVEL_LEAST_S: Final = 0.4
"""A level counts from this time, and the sensor's own averaging, after its start, where so much of it is left."""
MIN_LEVELS: Final = 4
MIN_LEVEL_UPDATES: Final = 3
CURVED: Final = 3.0
"""Standard errors by which a straight line through the levels is off before it is said."""
MAD_TO_STD: Final = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """reading = gain · power + offset, with standard errors and the correlation between the two errors."""

    gain: float
    gain_std: float
    offset_w: float
    offset_std_w: float
    correlation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelGain:
    """A line through steady levels: mean power and mean reading of each, shape (n,), the line's gain and offset, and its
    bend: what a parabola would add at the middle, with standard error [W].
    """

    power_w: Array
    reading_w: Array
    gain: float
    offset_w: float
    bend_w: float
    bend_std_w: float

    def remark(self, gain: Gain) -> str:
        """The levels in words, and whether they bend."""
        low, high = float(self.power_w.min()), float(self.power_w.max())
        line = f"{len(self.power_w)} levels, {low:.0f} to {high:.0f} W, lie on gain {self.gain:.4f}, offset {self.offset_w:.2f} W"
        bent = abs(self.bend_w) > CURVED * self.bend_std_w
        shape = "they bend" if bent else "no bend"
        return f"{line}; {shape}: {self.bend_w:.2f} ± {self.bend_std_w:.2f} W at the middle; in the fit of all updates {gain.gain:.4f}"


def joint_gain(fit: KernelFit) -> Gain:
    """Gain and offset that were solved with a kernel's width and delay against a meter.  Raises SensorError for a flat one."""
    covariance = fit.amplitude_covariance
    if covariance is None or fit.amplitude_w[1] <= 0.0:
        raise SensorError("readings do not rise with the meter's power; is it the same board's?")
    span = float(np.ptp(fit.predicted_w)) / float(fit.amplitude_w[1])
    if span < MIN_SPAN_W:
        raise SensorError(f"the meter's power changed by {span:.1f} W only; at least {MIN_SPAN_W:g} W tell a gain")
    offset_std, gain_std = (float(np.sqrt(covariance[i, i])) for i in (0, 1))
    return Gain(
        gain=float(fit.amplitude_w[1]),
        gain_std=gain_std,
        offset_w=float(fit.amplitude_w[0]),
        offset_std_w=offset_std,
        correlation=float(np.clip(covariance[0, 1] / max(offset_std * gain_std, 1e-300), -1.0, 1.0)),
    )


def long_settled(updates: Updates, meter: PowerSource) -> Updates:
    """The updates before which the meter's power was steady for longer than any sensor averages; none where it cannot show that."""
    kept = (updates.time_s > meter.from_s) & (updates.time_s < meter.until_s) & (not meter.noise.turns)
    boxcar = averaged_by("boxcar", meter)
    power = boxcar(NOW_S, updates.time_s)[:, 0]
    span = float(np.ptp(power[kept])) if np.any(kept) else 0.0
    for width_s in LONG_SETTLED_S:
        kept &= np.abs(boxcar(width_s, updates.time_s)[:, 0] - power) < STEADY_SHARE * span
    return replace(updates, time_s=updates.time_s[kept], value=updates.value[kept], number=updates.number[kept])


def fit_gain(updates: Updates, fit: KernelFit, meter: PowerSource) -> Gain:
    """Gain and offset from updates at which the averaged power is steady: there neither kernel nor delay matters much.

    Raises SensorError where the meter's record is too short or its power hardly changes.
    """
    inside = (updates.time_s > meter.from_s) & (updates.time_s < meter.until_s)
    ends, value = updates.time_s[inside] - fit.delay_s, updates.value[inside]
    if len(value) < MIN_UPDATES:
        raise SensorError(f"only {len(value)} sensor updates while the meter ran; at least {MIN_UPDATES} tell a gain")
    averaged = averaged_by(fit.kernel, meter)
    aside = max(STEADY_STEP_S, meter.noise.spacing_s)
    before, power, after = (averaged(fit.parameter_s, ends + shift)[:, 0] for shift in (-aside, 0.0, aside))
    steady = np.abs(after - before) < STEADY_SHARE * np.ptp(power)
    if np.count_nonzero(steady) >= MIN_UPDATES:
        power, value = power[steady], value[steady]
    if np.ptp(power) < MIN_SPAN_W:
        raise SensorError(f"the meter's power changed by {np.ptp(power):.1f} W only; at least {MIN_SPAN_W:g} W tell a gain")
    design = np.stack([power, np.ones_like(power)], axis=1)
    weight = np.ones_like(value)
    for _ in range(5):
        normal = design.T @ (design * weight[:, None])
        solution = np.linalg.solve(normal, design.T @ (weight * value))
        residual = value - design @ solution
        scale = MAD_TO_STD * float(np.median(np.abs(residual))) + 1e-9
        weight = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(residual), 1e-12))
    if solution[0] <= 0.0:
        raise SensorError("readings do not rise with the meter's power; is it the same board's?")
    explained = 1.0 - float(np.var(residual)) / max(float(np.var(value)), 1e-12)
    if explained < LINE_R2:
        raise SensorError(f"a line through the meter's power explains {max(explained, 0.0):.0%} of the readings' variance; that is no gain")
    inverse = np.linalg.inv(normal)
    sums = np.array([part.sum(axis=0) for part in np.array_split(design * (weight * residual)[:, None], BLOCKS)])
    freedom = len(value) / (len(value) - design.shape[1]) * BLOCKS / (BLOCKS - 1.0)
    covariance = freedom * inverse @ (sums.T @ sums) @ inverse
    std = np.sqrt(np.maximum(np.diag(covariance), np.diag(inverse) * scale**2))
    return Gain(
        gain=float(solution[0]),
        gain_std=float(np.hypot(std[0], STEADY_GAIN_FLOOR)),
        offset_w=float(solution[1]),
        offset_std_w=float(np.hypot(std[1], STEADY_OFFSET_FLOOR_W)),
        correlation=float(inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1])),
    )


def fit_levels(updates: Updates, fit: KernelFit, meter: PowerSource, load: LoadStamps) -> LevelGain | None:
    """A line through steady levels of the load and the rests between them; None for fewer than MIN_LEVELS of them."""
    settle = LEVEL_SETTLE_S + max(fit.width_s, 3.0 * fit.parameter_s)
    bounds = np.concatenate([load.start_s, load.end_s])
    names = np.concatenate([load.levels, np.zeros(len(load.end_s))])
    order = np.argsort(bounds, kind="stable")
    bounds, names = bounds[order], names[order]
    ends = np.append(bounds[1:], min(meter.until_s, float(updates.time_s[-1])))
    averaged = averaged_by(fit.kernel, meter)
    points: dict[float, list[tuple[float, float, float]]] = {}
    for begin, end, name in zip((bounds + settle).tolist(), ends.tolist(), names.tolist(), strict=True):
        inside = (updates.time_s > max(begin, meter.from_s)) & (updates.time_s < min(end, meter.until_s))
        if end - begin < LEVEL_LEAST_S or np.count_nonzero(inside) < MIN_LEVEL_UPDATES:
            continue
        power = averaged(fit.parameter_s, updates.time_s[inside] - fit.delay_s)[:, 0]
        points.setdefault(round(name, 3), []).append(
            (float(power.mean()), float(updates.value[inside].mean()), float(np.count_nonzero(inside)))
        )
    if len(points) < MIN_LEVELS:
        return None
    table = np.array([np.average(np.array(rows)[:, :2], axis=0, weights=np.array(rows)[:, 2]) for rows in points.values()])
    return _bend(table[:, 0], table[:, 1])


def _bend(power: Array, reading: Array) -> LevelGain | None:
    """A line and a parabola through levels; None where they do not spread."""
    span = float(np.ptp(power))
    if span < MIN_SPAN_W:
        return None
    x = (power - power.min()) / span
    line = np.stack([np.ones_like(x), x], axis=1)
    both = np.column_stack([line, 4.0 * x * (1.0 - x)])
    solution, *_ = np.linalg.lstsq(line, reading, rcond=None)
    bent, *_ = np.linalg.lstsq(both, reading, rcond=None)
    residual = reading - both @ bent
    scatter2 = float(residual @ residual) / max(len(x) - 3, 1)
    std = float(np.sqrt(max(scatter2, 1e-6) * np.linalg.pinv(both.T @ both)[2, 2]))
    gain = float(solution[1]) / span
    return LevelGain(
        power_w=power,
        reading_w=reading,
        gain=gain,
        offset_w=float(solution[0]) - gain * float(power.min()),
        bend_w=float(bent[2]),
        bend_std_w=std,
    )
