"""What a sensor may have averaged: an external meter's power, or shapes made from load stamps, on a fine time grid."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensor.load import BIN_S, FOURIER_MULTIPLE, LAUNCH_RISE_S, LEAD_S, LoadStamps, load_shapes, pole, sharpened
from collector.sensor.meter_noise import NO_NOISE, MeterNoise, noise_of_samples
from estimator.quantities import Array

CLOCK_DRIFT: Final = 1.5e-4
"""Update times run apart from the host's by so much: slow wander of the sensor's clock, and the error of its period."""
NONE_WIDTH_S: Final = 1e-3
"""A sensor that does not average is one that looks at the millisecond around a moment: its delay is counted from the middle."""
LONGEST_SOURCE_S: Final = 240.0
"""More of a record is not looked at: kernels show within seconds, and memory stays bounded."""
SETTLING_SHARE, LONGEST_SETTLING_S = 0.12, 1.3
"""Updates are used from this share of a meter's record on, at the latest after the longest averaging: before, the sensor
remembers what the meter did not see."""
LEAST_REST_S: Final = 0.5
REST_SHARE: Final = 0.02
REST_MARGIN_S: Final = 0.1
"""Readings that stay within this share of their span for so long after a meter's first sample remember nothing else."""
LAUNCH_LAG_S: Final = 3e-4
"""Power follows a launch's stamp after this; 0.2 to 0.45 ms on two boards."""
FOLLOWS_STD_S: Final = LAUNCH_RISE_S / 3.0**0.5
"""How soon a board's power follows a launch, load stamps do not tell: it is taken to take LAUNCH_RISE_S, and any time from 0 up to that is
as likely (two recorded boards took 0.1 to 0.3 ms).  About its upper end a uniform distribution scatters by so much."""
END_S: Final = 0.03
BEFORE_LOAD_S: Final = 1.0
AFTER_LOAD_S: Final = 2.5
MIN_METER_SAMPLES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSource:
    """Columns on a grid from `origin_s` in steps of BIN_S, shape (c, n): each a mean over its bin.

    The first `signed` columns may enter with either sign, the others only as they are.  The record begins at `begin_s`; updates
    between `from_s` and `until_s` can be explained by it.  `drift_std` is by how much its time may run apart from the updates'
    (relative), `time_std_s` the error of its stamps, the same for all, `noise` what its samples have of their own.
    """

    columns: Array
    origin_s: float
    signed: int
    begin_s: float
    from_s: float
    until_s: float
    kind: str
    drift_std: float
    time_std_s: float = 0.0
    noise: MeterNoise = NO_NOISE

    def moved(self, by_s: float) -> "PowerSource":
        """The same with all times later by so much."""
        begin, first, last = (time_s + by_s for time_s in (self.begin_s, self.from_s, self.until_s))
        return replace(self, origin_s=self.origin_s + by_s, begin_s=begin, from_s=first, until_s=last)


def load_source(load: LoadStamps, until_s: float) -> PowerSource:
    """Power at once, with a slow rise, and creeping, from load stamps; amplitudes are unknown."""
    begin, end = float(load.start_s[0]), min(until_s, float(load.end_s[-1]) + AFTER_LOAD_S)
    end = min(end, begin + LONGEST_SOURCE_S, load.known_until_s)
    lagged = replace(load, start_s=load.start_s + LAUNCH_LAG_S, end_s=load.end_s + LAUNCH_LAG_S)
    shapes = load_shapes(lagged, end)
    return PowerSource(
        columns=shapes.shapes,
        origin_s=shapes.origin_s,
        signed=1,
        begin_s=begin - BEFORE_LOAD_S,
        from_s=begin - BEFORE_LOAD_S,
        until_s=end,
        kind="load",
        drift_std=CLOCK_DRIFT,
        time_std_s=FOLLOWS_STD_S,
    )


def meter_source(time_s: Array, power_w: Array, rate_std: float = 0.0) -> PowerSource:
    """A meter's power [W], sample stamps ascending; samples that are not finite are left out.

    `rate_std` is the relative error of the meter's clock against the host's.

    Raises SensorError for a record too short or too coarse to be a reference.
    """
    good = np.isfinite(power_w) & np.isfinite(time_s)
    time_s, power_w = time_s[good], power_w[good]
    if len(time_s) < MIN_METER_SAMPLES:
        raise SensorError(f"the reference has {len(time_s)} samples; at least {MIN_METER_SAMPLES} are needed")
    end = min(float(time_s[-1]), float(time_s[0]) + LONGEST_SOURCE_S)
    count = int((end - time_s[0]) / BIN_S)
    lead = int(LEAD_S / BIN_S)
    energy = np.concatenate([[0.0], np.cumsum(0.5 * (power_w[1:] + power_w[:-1]) * np.diff(time_s))])
    power = np.diff(np.interp(time_s[0] + BIN_S * np.arange(count + 1), time_s, energy)) / BIN_S
    total = count + 2 * lead
    column = np.full(total + -total % FOURIER_MULTIPLE, float(np.mean(power[: max(1, int(0.02 / BIN_S))])))
    column[lead : lead + count] = power
    settling = min(LONGEST_SETTLING_S, SETTLING_SHARE * (end - float(time_s[0])))
    return PowerSource(
        columns=column[None, :],
        origin_s=float(time_s[0]) - lead * BIN_S,
        signed=1,
        begin_s=float(time_s[0]),
        from_s=float(time_s[0]) + settling,
        until_s=end - END_S,
        kind="meter",
        drift_std=float(np.hypot(CLOCK_DRIFT, rate_std)),
        noise=noise_of_samples(time_s, power_w),
    )


def rested(source: PowerSource, time_s: Array, value: Array) -> PowerSource:
    """A meter's source that counts from its beginning where the board's updates `time_s`, `value` (n,) show it at rest there."""
    after = time_s > source.begin_s
    time_s, value = time_s[after], value[after]
    if not len(value):
        return source
    span = float(np.ptp(value))
    moved = np.flatnonzero(np.abs(value - value[0]) > REST_SHARE * span)
    rest_s = (float(time_s[moved[0]]) if len(moved) else source.until_s) - source.begin_s
    return replace(source, from_s=min(source.from_s, source.begin_s + REST_MARGIN_S)) if rest_s > LEAST_REST_S else source


def averaged_by(kernel: str, source: PowerSource) -> Callable[[float, Array], Array]:
    """A function (parameter [s], window ends [s] of any shape) → columns averaged by the kernel, shape (…, c).

    The parameter is a boxcar's width or a low-pass's time constant; for "none" it has no meaning.
    """
    columns, origin = source.columns, source.origin_s
    count = columns.shape[1]
    rest = columns[:, :1]
    spectrum = np.fft.rfft(columns - rest, axis=1) * sharpened(count)
    edges = np.empty(0)
    if kernel != "low-pass":
        edges = np.concatenate([np.zeros((len(columns), 1)), np.cumsum(np.fft.irfft(spectrum, n=count, axis=1), axis=1)], axis=1) * BIN_S

    def sampled(table: Array, time_s: Array) -> Array:
        place = np.clip((time_s - origin) / BIN_S, 0.0, table.shape[1] - 1.001)
        whole = place.astype(np.int64)
        part = place - whole
        result = np.empty((*time_s.shape, len(table)))
        for index, row in enumerate(table):
            low = row[whole]
            result[..., index] = low + part * (row[whole + 1] - low)
        return result

    def boxcar(width: float, time_s: Array) -> Array:
        return (sampled(edges, time_s) - sampled(edges, time_s - width)) / width + rest[:, 0]

    @lru_cache(maxsize=1)
    def filtered(time_constant: float) -> Array:
        later = np.fft.irfft(spectrum * pole(count, time_constant), n=count, axis=1)
        return np.concatenate([np.zeros((len(columns), 1)), later], axis=1)

    def low_pass(time_constant: float, time_s: Array) -> Array:
        return sampled(filtered(time_constant), time_s) + rest[:, 0]

    def none(_parameter: float, time_s: Array) -> Array:
        return boxcar(NONE_WIDTH_S, time_s + 0.5 * NONE_WIDTH_S)

    return {"boxcar": boxcar, "low-pass": low_pass, "none": none}[kernel]
