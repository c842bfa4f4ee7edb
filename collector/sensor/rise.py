"""How fast readings follow a load, and how much of that is the board's and how much the sensor's."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensor.kernel_fit import KernelFit, solved
from collector.sensor.load import BIN_S, LoadStamps
from collector.sensor.sources import LAUNCH_LAG_S, PowerSource, averaged_by, load_source
from collector.sensor.update_clock import Updates
from estimator.quantities import Array

STEP_S: Final = 4.0
"""Span over which the response to a step is worked out; longer than any averaging seen."""
GRID_S: Final = 1e-3
LEVEL_AFTER_S: Final = 1.0
RISE_LEVEL: Final = 0.9
SETTLED_SHARE: Final = 0.01
LAGGED_SHARE: Final = 0.2
"""A board of which more than this share of the power follows late has a rise of its own."""
LOW_PASS_RISE: Final = float(np.log(10.0))
"""A first-order low-pass reaches 90 % after ln 10 time constants."""
MIN_R2: Final = 0.5
BEFORE_S: Final = 0.01
SHORTEST_RUN_S: Final = 0.02
LONG_SHARE, TOP_SHARE = 0.95, 0.8
"""Runs this long against the longest count; the last fifth of a run is its level."""
AT_ONCE_S: Final = 0.02
"""Power that is there after this followed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """Times from a load's start [s]: readings to 90 % of their level after a second, and to within one per cent of it, creep
    aside; the power itself to 90 %, the sensor alone to 90 %.  `late_share` of the power follows late.
    """

    readings_s: float
    settle_s: float
    board_s: float
    sensor_s: float
    late_share: float


def fit_rise(fits: tuple[KernelFit, ...], updates: Updates, load: LoadStamps, meter: PowerSource | None) -> Rise | None:
    """Rise times under a load, by kernels that were fitted (the decided one first); None where the load explains nothing.

    With a meter the board's share comes from its power, otherwise from the readings.
    """
    source = load_source(load, float(updates.time_s[-1]))
    best = fits[0]
    inside = (updates.time_s > source.from_s) & (updates.time_s < source.until_s)
    amplitude, r2 = _amplitudes(source, best, updates.time_s[inside], updates.value[inside])
    if r2 < MIN_R2 or amplitude[1:].sum() <= 0.0:
        return None
    metered = meter_rise(meter, load) if meter is not None else None
    step = _step_source()
    responses = [_response(step, fit, amplitude) for fit in fits[:2]]
    board = metered or _board_from_readings(step, amplitude)
    settle = [_settled(response[1]) for response in responses]
    close = len(fits) > 1 and fits[0].r2 - fits[1].r2 < 1e-3
    return Rise(
        readings_s=_risen(responses[0][0]),
        settle_s=max(settle) if close else settle[0],
        board_s=board[0],
        sensor_s=sensor_rise_s(best),
        late_share=board[1],
    )


def sensor_rise_s(fit: KernelFit) -> float:
    """Time in which the sensor alone would show 90 % of a step [s]."""
    if fit.kernel == "low-pass":
        return LOW_PASS_RISE * fit.parameter_s + fit.delay_s
    return RISE_LEVEL * fit.width_s + fit.delay_s


def _amplitudes(source: PowerSource, fit: KernelFit, time_s: Array, value: Array) -> tuple[Array, float]:
    """Offset, fast, slow and creeping part of the readings [W], and the share of their variance explained."""
    columns = averaged_by(fit.kernel, source)(fit.parameter_s, time_s - fit.delay_s)
    design = np.concatenate([np.ones((len(time_s), 1)), columns], axis=1)
    amplitude = solved(design, value, np.ones(len(value)), source.signed + 1)
    residual = value - design @ amplitude
    return amplitude, float(1.0 - np.var(residual) / max(float(np.var(value)), 1e-12))


def meter_rise(meter: PowerSource, load: LoadStamps) -> tuple[float, float] | None:
    """Time in which the power itself reaches 90 % of its level [s], and the share of it that is not there after AT_ONCE_S.

    The mean over the load's launches, the longest runs where they differ much; None where no launch was metered well.
    """
    length = load.end_s - load.start_s
    seen = (load.start_s > meter.from_s) & (load.end_s < meter.until_s) & (length > SHORTEST_RUN_S)
    if not np.any(seen):
        return None
    span = min(float(length[seen].max()), LEVEL_AFTER_S)
    starts = load.start_s[seen & (length >= LONG_SHARE * span)] + LAUNCH_LAG_S
    grid = np.arange(-BEFORE_S, LONG_SHARE * span, BIN_S)
    mean = averaged_by("none", meter)(0.0, starts[:, None] + grid)[..., 0].mean(axis=0)
    rest = float(mean[grid < -BIN_S].mean())
    level = float(mean[grid > TOP_SHARE * grid[-1]].mean()) - rest
    if level <= 0.0:
        return None
    risen = (mean - rest) / level
    at_once = float(np.interp(min(AT_ONCE_S, TOP_SHARE * grid[-1]), grid, risen))
    return float(max(grid[int(np.argmax((risen >= RISE_LEVEL) & (grid >= 0.0)))], 0.0)), float(np.clip(1.0 - at_once, 0.0, 1.0))


def _step_source() -> PowerSource:
    """A load that begins at 0 and stays."""
    stamps = LoadStamps(start_s=np.array([-LAUNCH_LAG_S]), end_s=np.array([STEP_S + LEVEL_AFTER_S]))
    return load_source(stamps, STEP_S + LEVEL_AFTER_S)


def _response(step: PowerSource, fit: KernelFit, amplitude: Array) -> tuple[Array, Array]:
    """Rise of readings over a grid from 0, with creep and without [W]."""
    time_s = np.arange(0.0, STEP_S, GRID_S)
    columns = averaged_by(fit.kernel, step)(fit.parameter_s, time_s - fit.delay_s)
    return columns @ amplitude[1:], columns[:, :2] @ amplitude[1:3]


def _board_from_readings(step: PowerSource, amplitude: Array) -> tuple[float, float]:
    """The power's own time to 90 % [s] and its late share, from the amplitudes of fast and slow rise."""
    columns = averaged_by("none", step)(0.0, np.arange(0.0, STEP_S, GRID_S))
    following = float(amplitude[1] + amplitude[2])
    return _risen(columns @ amplitude[1:]), float(amplitude[2]) / max(following, 1e-9)


def _risen(response: Array) -> float:
    """Time to RISE_LEVEL of the level after a second [s]."""
    level = float(response[round(LEVEL_AFTER_S / GRID_S)])
    return float(np.argmax(response >= RISE_LEVEL * level) * GRID_S)


def _settled(response: Array) -> float:
    """Time to within SETTLED_SHARE of the last level [s]."""
    outside = np.flatnonzero(np.abs(response - response[-1]) > SETTLED_SHARE * abs(response[-1]))
    return float(outside[-1] * GRID_S) if len(outside) else 0.0
