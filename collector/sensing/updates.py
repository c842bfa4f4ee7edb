"""The updates behind polled readings of a sensor that has been characterised before."""

from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensing.calibration import SensorCalibration
from collector.sensing.clock import due_updates, fit_update_clock, held_updates
from collector.sensing.known_sensor import DEFAULT_PERIOD_S
from estimator.vocabulary.quantities import Array, BoolArray
from estimator.vocabulary.values import frozen

PERIOD_TOLERANCE: Final = 0.005
"""Largest relative difference between a recording's update period and the calibration's without a note.

Boards of 101.2 ms and of 100.0 ms are different sensors, the clocks of hosts differ by at most 1e-4.
"""


@frozen
class BoardUpdates:
    """Updates of a sensor: host time and value, shape (n,), the period between them, and the uncertainty of a time [s].

    `note` names a difference from the calibration, "" without one.
    """

    time_s: Array
    value: Array
    period_s: float
    time_std_s: float
    note: str


def board_updates(time_s: Array, power_w: Array, calibration: SensorCalibration) -> BoardUpdates:
    """The updates in polls at `time_s` (n,), ascending, possible powers `power_w` (n,), repeats included.

    An update that repeats the value before it counts too: if updates were due, polls were taken and nothing
    changed, the value was the same again.

    Raises SensorError for fewer than two readings.
    """
    if len(time_s) < 2:
        raise SensorError(f"{len(time_s)} readings that can be power; at least 2 are needed")
    known = calibration.update_period_s
    try:
        clock, changes = fit_update_clock(time_s, power_w)
    except SensorError as error:
        period = known or DEFAULT_PERIOD_S
        source = "the sensor" if known else "the longest common one"
        note = f"the recording shows no update clock ({error}); {period * 1e3:.4g} ms is taken from {source}"
        std = min(0.29 * period, float(np.median(np.diff(time_s))))  # of a uniform distribution over a period
        held = held_updates(time_s, power_w, period)
        return BoardUpdates(time_s=held.time_s, value=held.value, period_s=period, time_std_s=std, note=note)
    period_std = float(np.hypot(clock.card_period_std_s, calibration.card_period_std_s or calibration.update_period_std_s or 0.0))
    note = ""
    if known is not None and abs(clock.period_s - known) > max(PERIOD_TOLERANCE * known, 5.0 * period_std):
        note = (
            f"the recording's updates come every {clock.period_s * 1e3:.5g} ms, the sensor's every {known * 1e3:.5g} ms: "
            "another board, driver or field? the recording's period is used"
        )
    std = clock.jitter_s if clock.rigid else float(np.hypot(clock.jitter_s, 0.29 * clock.poll_s))
    std = min(std, clock.period_s)
    due = due_updates(changes, clock.period_s, time_s, float(power_w[0]))
    return BoardUpdates(time_s=due.time_s, value=due.value, period_s=clock.period_s, time_std_s=std, note=note)


def fresh(value: Array) -> BoolArray:
    """Whether updates came (n,).  One that repeats the value before it did not, unless that is common."""
    new = np.append(True, np.diff(value) != 0.0)
    return new | (np.count_nonzero(~new) > 0.1 * len(new))
