"""How long the characterisation of a board's sensor takes, added up from the loads that it runs."""

from typing import Final

from collector.sensing.known_sensor import DEFAULT_PERIOD_S
from collector.sensing.live import FIRST_LOAD_S, LEVEL_S, LEVELS, MAX_CYCLES, REST_S, SQUARE_WAVES, STEP_S
from collector.sensing.live_load import CALIBRATION, WARM_RUNS
from microbench.loads.generated import LAUNCH_S

CLOCKS_PER_MULTIPLY_ADD: Final = 2
"""Of a warp of 32 lanes on the 16 of an A100's scheduler, while LAUNCH_S counts one; later GPUs have 32 lanes and take less [clocks]."""
LEARNING_S: Final = (WARM_RUNS * CALIBRATION[-1] + sum(CALIBRATION)) * LAUNCH_S * CLOCKS_PER_MULTIPLY_ADD
"""Launches from which the duration of a load is learnt, for every share of the SMs anew, at the highest clock [s]."""


def characterisation_s(*, meter: bool, clock_share: float = 1.0, period_s: float = DEFAULT_PERIOD_S) -> float:
    """The board's time for the loads that every characterisation runs [s].

    With an external `meter` levels of power follow the square waves.  `clock_share` is the SM clock in terms of the highest, `period_s`
    the sensor's update period, here that of a slow one.  What a kernel that stays undecided adds is not known before.
    """
    waves_s = sum(0.5 * ratio * period_s + min(longest_s, MAX_CYCLES * ratio * period_s) for ratio, longest_s in SQUARE_WAVES)
    learning_s = LEARNING_S / clock_share
    total_s = learning_s + REST_S + FIRST_LOAD_S + waves_s + REST_S + 2.0 * STEP_S
    if meter:
        one_sm = 1  # a level of its own below the shares; the whole board's duration is known from the square waves
        total_s += (one_sm + len(LEVELS)) * (REST_S + LEVEL_S + REST_S) + len(LEVELS) * learning_s
    return total_s
