"""Time that no reading saw: holes in the polls, and what follows the last update; what was drawn there is known in bounds only."""

from typing import Final

import numpy as np

from collector.correction.response import SensorResponse
from estimator.quantities import Array

LEAST_HOLE_PERIODS: Final = 0.5
"""Updates later than a period by more than this share of it leave a hole, of which one at least was not read."""


def unseen_std_j(time_s: Array, value: Array, response: SensorResponse, period_s: float, begin_s: float, end_s: float) -> float:
    """Standard error of an energy from `begin_s` to `end_s` by what was drawn while no update saw the board [J].

    `time_s` (n,) ascending are the updates, `value` their readings [W].  In a hole the power may have been any of those that were read
    (each as likely), for as long as the hole is; the estimate there is what was read on either side.  What follows the last window is as
    unknown only where the load changes so soon: with the chance of a change, after how often power crossed its middle in all.
    """
    until = time_s - response.delay_s
    low, high = float(value.min()), float(value.max())
    if high <= low:
        return 0.0
    middle = value > 0.5 * (low + high)
    changes_hz = (1.0 + np.count_nonzero(middle[1:] != middle[:-1])) / max(float(time_s[-1] - time_s[0]), period_s)
    apart = np.diff(until)
    missed = apart - max(response.width_s, period_s) > LEAST_HOLE_PERIODS * period_s
    hole = np.where(missed, apart - response.width_s, 0.0)
    inside = np.clip(until[:-1] + hole, begin_s, end_s) - np.clip(until[:-1], begin_s, end_s)
    variance = float(np.sum(inside**2 * _spread_w2(0.5 * (value[1:] + value[:-1]), low, high)))
    after = np.array([max(end_s - max(float(until[-1]), begin_s), 0.0), max(min(float(until[0]) - response.width_s, end_s) - begin_s, 0.0)])
    chance = -np.expm1(-changes_hz * after)
    variance += float(np.sum(chance * after**2 * _spread_w2(value[[-1, 0]], low, high)))
    return float(np.sqrt(variance))


def _spread_w2(estimate_w: Array, low_w: float, high_w: float) -> Array:
    """Mean square distance of powers between two bounds, each as likely, from estimates (n,) [W²]."""
    result: Array = ((high_w - estimate_w) ** 3 + (estimate_w - low_w) ** 3) / (3.0 * (high_w - low_w))
    return result
