"""Plan of repeats and their shifts, from the sensor, before any run.

The error that the fit would state is computed for the coming updates, at several phases; the shortest plan with an error below the
requested one is used.  If the sensor sees part of the time only, updates could fall on the same places of every execution (a length near a
simple fraction of the update period): pauses between blocks of executions then move the phase by golden parts of the smaller of the two
periods, because every such lock is a fraction of it.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.executions import DEFAULT_JITTER_S, FitSettings, expected_energy_std
from collector.sensing.known_sensor import possible_responses
from collector.sensing.repeated import bins_for
from collector.sensing.response import SensorResponse

GOLDEN: Final = 0.3819660112501051
"""1 − 1/φ: its multiples fill a circle more evenly than those of any other number."""
SHIFTS: Final = 13
"""Number of pauses (Fibonacci: after this many golden steps the circle is filled evenly)."""
TYPICAL_REST_W: Final = 60.0
"""Power of load and rest if unknown: they set the scale of noise and profile."""
FULL_PERIODS: Final = {"boxcar": 0.98, "low-pass": 3.0}
"""Windows of this many update periods leave no part of an execution unseen, at any length: no pauses are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatPlan:
    """`executions` in a run, a pause of `pause_s` after every `block` of them (0 for none), the first `discard_s` left out.

    `padding_s` is the rest before, and the time polled after; `update_period_s` is the sensor's period, or its upper bound if
    unknown; `expected_std` the expected error, as a share of the energy, without gain and offset.
    """

    executions: int
    block: int
    pause_s: float
    discard_s: float
    padding_s: float
    update_period_s: float
    expected_std: float

    def pause_after(self, index: int) -> float:
        """Pause after execution `index`, counted from 0 [s]."""
        last = index + 1 >= self.executions
        return self.pause_s if self.pause_s > 0.0 and not last and (index + 1) % self.block == 0 else 0.0

    def stamps(self, duration_s: float) -> LoadStamps:
        """Expected executions, from time 0."""
        pauses = np.array([self.pause_after(index) for index in range(self.executions - 1)])
        start = np.concatenate([[0.0], np.cumsum(duration_s + pauses)])
        return LoadStamps(start_s=start, end_s=start + duration_s)


def plan_repeats(
    duration_s: float,
    calibration: SensorCalibration,
    asked_std: float,
    *,
    settle_s: float,
    longest_s: float = 60.0,
    power_w: float = 100.0 + TYPICAL_REST_W,
    rest_w: float = TYPICAL_REST_W,
) -> RepeatPlan:
    """The shortest run that determines the energy of executions of `duration_s` to within `asked_std` (a share of it).

    `settle_s` is the rise to discard, `power_w` and `rest_w` the expected power.  If no plan
    up to `longest_s` is sufficient, the result is the best plan, and its `expected_std` is larger than requested.
    """
    possible = possible_responses(calibration)
    responses = [response for response, probability in zip(possible.responses, possible.probabilities, strict=True) if probability >= 0.05]
    period = calibration.update_period_s or max(response.width_s for response in responses)
    reach = max(response.reach_s for response in responses)
    full = all(response.width_s >= FULL_PERIODS[response.kernel] * period for response in responses)
    discard_s = settle_s + reach
    span_s = max(0.3, 3 * duration_s, 2.0 * reach, 6.0 * period)
    while True:
        settled = max(3, math.ceil(min(span_s, longest_s) / duration_s))
        plan = RepeatPlan(
            executions=settled + math.ceil(discard_s / duration_s),
            block=settled if full else max(1, settled // (SHIFTS + 1)),
            pause_s=0.0 if full else min(GOLDEN * min(period, duration_s), 0.1),
            discard_s=discard_s,
            padding_s=reach + 2.0 * period,
            update_period_s=period,
            expected_std=math.inf,
        )
        plan = replace(plan, expected_std=_expected_share(plan, duration_s, responses, calibration, power_w, rest_w))
        # Noise and profile are not known before: the plan aims at 0.7 of the requested error.
        if plan.expected_std <= 0.7 * asked_std or span_s >= longest_s:
            return plan
        span_s *= 1.5


def _expected_share(
    plan: RepeatPlan,
    duration_s: float,
    responses: list[SensorResponse],
    calibration: SensorCalibration,
    power_w: float,
    rest_w: float,
) -> float:
    """The largest error over phases and responses, as a share of the energy."""
    load, worst = plan.stamps(duration_s), 0.0
    first, last = float(load.start_s[0]) - plan.padding_s, float(load.end_s[-1]) + plan.padding_s
    number = np.arange(int((last - first) / plan.update_period_s) + 1, dtype=np.float64)
    for response in responses:
        settings = FitSettings(
            bins=bins_for(response, duration_s),
            discard_s=plan.discard_s,
            noise_w=calibration.reading_noise_w,
            jitter_s=DEFAULT_JITTER_S if calibration.update_jitter_s is None else calibration.update_jitter_s,
        )
        # Phases of the updates against the load for which the error is computed; the largest error counts.
        for phase in (0.0, 0.37, 0.71):
            time_s = first + plan.update_period_s * (phase + number)
            std = expected_energy_std(time_s, response, load, settings, max(power_w - rest_w, 1.0))
            worst = max(worst, std / (max(power_w, 1.0) * duration_s))
    return worst
