"""When a load ran, read off a meter's power: for records without load stamps."""

from typing import Final

import numpy as np

from collector.sensor.load import BIN_S, LoadStamps
from collector.sensor.sources import LAUNCH_LAG_S
from estimator.quantities import Array

SMOOTH_S: Final = 2e-3
LOW_QUANTILE, HIGH_QUANTILE = 0.05, 0.95
BAND: Final = (0.35, 0.65)
"""An edge is a way through this band of the power's span, from one side to the other."""
MIN_SPAN_W: Final = 10.0
MIN_CONTRAST: Final = 4.0
"""Span of the power in units of its scatter within a millisecond; below, there is no load to be seen."""
MOST_BINS: Final = 2_000_000


def load_of_meter(time_s: Array, power_w: Array) -> LoadStamps | None:
    """Runs of a load that goes on and off, from the power itself; None where it does not."""
    count = min(int((time_s[-1] - time_s[0]) / BIN_S), MOST_BINS)
    if count < 2 * int(SMOOTH_S / BIN_S):
        return None
    energy = np.concatenate([[0.0], np.cumsum(0.5 * (power_w[1:] + power_w[:-1]) * np.diff(time_s))])
    grid = time_s[0] + BIN_S * np.arange(count + 1)
    wide = int(SMOOTH_S / BIN_S)
    sums = np.interp(grid, time_s, energy)
    smooth = (sums[wide:] - sums[:-wide]) / SMOOTH_S
    middle = 0.5 * (grid[wide:] + grid[:-wide])
    low, high = np.quantile(smooth, [LOW_QUANTILE, HIGH_QUANTILE])
    noise = float(np.median(np.abs(np.diff(smooth, n=1))))
    if high - low < max(MIN_SPAN_W, MIN_CONTRAST * noise):
        return None
    share = (smooth - low) / (high - low)
    state = np.where(share > BAND[1], 1, np.where(share < BAND[0], -1, 0))
    known = np.flatnonzero(state)
    turns = known[1:][state[known[1:]] != state[known[:-1]]]
    before = known[:-1][state[known[1:]] != state[known[:-1]]]
    at = 0.5 * (middle[turns] + middle[before]) - LAUNCH_LAG_S
    ups, downs = at[state[turns] > 0], at[state[turns] < 0]
    if not len(ups):
        return None
    downs = downs[downs > ups[0]]
    runs = min(len(ups), len(downs))
    if not runs:
        return LoadStamps(start_s=ups[:1], end_s=np.array([float(time_s[-1])]), known_until_s=float(time_s[-1]))
    return LoadStamps(start_s=ups[:runs], end_s=downs[:runs])
