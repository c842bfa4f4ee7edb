"""How late a meter's stamps are, by a load's launches that both clocks saw.

A meter's samples reach the host late by what its line takes, about a millisecond for one on USB, and a sample may be a moment or the mean
over the interval before its stamp: neither shows in the meter's record.  The power's rise after many launches, laid over each other, tells
both.  It is found by where the rise begins, whatever its form: power that follows in 0.2 ms and in 3 ms begins at the same time.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from collector.sensor.load import LoadStamps
from collector.sensor.sources import LAUNCH_LAG_S
from estimator.quantities import Array

LAUNCH_LAG_STD_S: Final = 1e-4
"""How well the lag of a launch is known: two boards tell the ends of a range, not its shape, so somewhat more than the 0.07 ms of a uniform
one."""
MIN_EDGES: Final = 6
MOST_EDGES: Final = 4000
CLEAR_S: Final = 8e-3
"""A launch counts after this long a rest and with a run as long: no other edge lies near."""
BEFORE_S, AFTER_S, STEP_S = 6e-3, 7.8e-3, 2e-4
FINE_S: Final = 2.5e-5
MOST_LAG_S: Final = 3e-3
LAG_STEP_S: Final = 2.5e-5
RISES_S: Final = (5e-5, 1e-4, 2e-4, 3.5e-4, 6e-4, 1e-3, 1.5e-3, 2.2e-3, 3.3e-3, 5e-3, 1e-2)
"""Time constants of the part of the power that follows at once: below the meter's spacing, and above any board seen."""
COARSEST_S: Final = 2.5e-3
"""A meter with a wider spacing tells no edge to a share of a millisecond."""
MISFIT_SHARE: Final = 5e-3
"""What the form of a rise leaves open, as a share of the step."""
FITTED: Final = 6
AT_BOUND: Final = 0.9
TOLD_STD_S: Final = 3e-4
"""Launches that tell less than this leave the stamps as they are: those of a thousand samples a second are known to 0.29 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterTie:
    """The meter's stamps are `lag_s` behind the load's, with standard error; told by so many `edges`, 0 where none told it."""

    lag_s: float
    std_s: float
    edges: int

    def remark(self) -> str:
        """The tie in words."""
        lag = f"{-self.lag_s * 1e3:+.2f} ± {self.std_s * 1e3:.2f} ms"
        return f"meter's stamps moved by {lag}: {self.edges} launches show in its power {LAUNCH_LAG_S * 1e3:g} ms after their stamps then"


def tie_of_meter(time_s: Array, power_w: Array, load: LoadStamps | None) -> MeterTie:
    """How late a meter's samples `time_s` [s], `power_w` [W] (n,) are against a load's stamps.

    Where the load does not tell it the stamps are taken as they are; what a stamp means within a sample's interval stays open then.
    """
    good = np.isfinite(time_s) & np.isfinite(power_w)
    time_s, power_w = time_s[good], power_w[good]
    spacing = float(np.median(np.diff(time_s))) if len(time_s) > 1 else 0.0
    untold = MeterTie(lag_s=0.0, std_s=spacing / 12.0**0.5, edges=0)
    if load is None or not 0.0 < spacing < COARSEST_S:
        return untold
    starts = _clear_starts(load)
    starts = starts[(starts > time_s[0] + BEFORE_S) & (starts < time_s[-1] - AFTER_S)][:MOST_EDGES]
    if len(starts) < MIN_EDGES:
        return untold
    energy = np.concatenate([[0.0], np.cumsum(0.5 * (power_w[1:] + power_w[:-1]) * np.diff(time_s))])
    offsets = np.arange(-BEFORE_S, AFTER_S + 0.5 * STEP_S, STEP_S)
    power = np.diff(np.interp(starts[:, None] + offsets, time_s, energy), axis=1).mean(axis=0) / STEP_S
    lag, std = _begin(offsets, power, spacing)
    if std > TOLD_STD_S or abs(lag) > AT_BOUND * MOST_LAG_S:
        return untold
    return MeterTie(lag_s=lag - LAUNCH_LAG_S, std_s=float(np.hypot(std, LAUNCH_LAG_STD_S)), edges=len(starts))


def _clear_starts(load: LoadStamps) -> Array:
    """Launches of at least half the full load with no other edge near [s]."""
    rest = load.start_s - np.concatenate([[-np.inf], load.end_s[:-1]])
    clear: Array = load.start_s[(rest > CLEAR_S) & (load.end_s - load.start_s > CLEAR_S) & (load.levels > 0.5 * load.levels.max())]
    return clear


def _begin(offsets: Array, power: Array, spacing_s: float) -> tuple[float, float]:
    """When a mean rise `power` (n,) between `offsets` (n + 1,) begins, and its standard error [s]: means over all forms of a rise."""
    lags = np.arange(-MOST_LAG_S, MOST_LAG_S + 0.5 * LAG_STEP_S, LAG_STEP_S)
    span = float(np.ptp(power))
    told = len(power) * min(1.0, STEP_S / spacing_s) - FITTED
    misfit = []
    for shape, ramp in _shapes(round(spacing_s / FINE_S)):
        fine = FINE_S * (np.arange(len(shape)) - len(shape) // 2)
        middle = 0.5 * (offsets[1:] + offsets[:-1])
        place = middle - lags[:, None]
        slope = np.broadcast_to(middle / AFTER_S, place.shape)
        design = np.stack([np.ones_like(place), slope, np.interp(place, fine, shape), np.interp(place, fine, ramp)], axis=2)
        amplitude = np.linalg.pinv(design) @ power
        misfit.append(np.sum((power - (design @ amplitude[..., None])[..., 0]) ** 2, axis=1))
    square = np.array(misfit) / len(power) + (MISFIT_SHARE * span) ** 2
    likelihood = -0.5 * max(told, 1.0) * np.log(square)
    share = np.exp(likelihood - likelihood.max())
    share /= share.sum()
    lag = float(np.sum(share * lags))
    return lag, float(np.sqrt(np.sum(share * (lags - lag) ** 2)))


@lru_cache(maxsize=4)
def _shapes(spacing: int) -> tuple[tuple[Array, Array], ...]:
    """Rises that begin at 0 and their integrals on a fine grid, as a meter of such a spacing (in steps of that grid) shows them on average.

    Between samples power is taken as a line, which smooths by a triangle; a sample may be a mean over its interval besides.
    """
    half = round((BEFORE_S + AFTER_S + 2.0 * MOST_LAG_S) / FINE_S)
    time = FINE_S * np.arange(-half, half + 1)
    width = max(spacing, 1)
    box = np.full(width, 1.0 / width)
    bin_ = np.full(round(STEP_S / FINE_S), FINE_S / STEP_S)
    line = np.convolve(np.convolve(box, box), bin_)
    result = []
    for smoothing in (line, np.convolve(line, box)):
        for rise in RISES_S:
            shape = np.where(time > 0.0, 1.0 - np.exp(-np.maximum(time, 0.0) / rise), 0.0)
            ramp = np.maximum(time, 0.0) / AFTER_S
            result.append((_smoothed(shape, smoothing), _smoothed(ramp, smoothing)))
    return tuple(result)


def _smoothed(values: Array, smoothing: Array) -> Array:
    """The same with ends held, smoothed without a shift, shape (n,)."""
    before, after = (len(smoothing) - 1) // 2, len(smoothing) // 2
    padded = np.concatenate([np.full(before, values[0]), values, np.full(after, values[-1])])
    smooth: Array = np.convolve(padded, smoothing, mode="valid")
    return smooth
