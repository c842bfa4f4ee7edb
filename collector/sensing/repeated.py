"""Energy of a kernel, or of any load that repeats, from a recording of its executions, beside the naive and the published value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensing.baselines import naive_energy, practice_for, practice_refusal, published_energy
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.executions import ExecutionFit, FitSettings, fit_executions
from collector.sensing.known_sensor import NO_GAIN, PossibleResponses, inversion, possible_responses
from collector.sensing.response import SensorResponse
from collector.sensing.updates import BoardUpdates
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array

BINS_PER_WINDOW: Final = 8.0
"""Parts of an execution for each width of the response."""
BINS: Final = (12, 96)
"""Least and greatest number of parts of an execution; sixteen give simulated boards the same errors."""
MISFIT_SHARE, MISFIT_NOISES = 0.05, 4.0
"""Largest root mean square residual of a fit, as a share of the readings' swing, and in multiples of the calibration's own scatter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedEnergy:
    """Energy of an execution, and of the whole load from its first kept start to its last end [J].

    `energy_std_j` includes all errors, `timing_std_j` those left if gain and offset are exact.  `naive_j` is the readings' integral over
    the mean execution, `published_j` the published good practice (nan where it does not apply), both without gain and offset.  `fit`
    belongs to the likeliest response.
    """

    energy_j: float
    energy_std_j: float
    timing_std_j: float
    duration_s: float
    executions: int
    total_j: float
    total_std_j: float
    naive_j: float
    naive_total_j: float
    published_j: float
    fit: ExecutionFit
    response: SensorResponse
    notes: Mapping[str, str]


def bins_for(response: SensorResponse, duration_s: float) -> int:
    """Number of parts in a profile of an execution."""
    return int(np.clip(round(BINS_PER_WINDOW * duration_s / response.width_s), *BINS))


def repeated_energy(
    polls: tuple[Array, Array],
    updates: BoardUpdates,
    load: LoadStamps,
    calibration: SensorCalibration,
    *,
    discard_s: float = 0.0,
    trace_edge_s: Array | None = None,
) -> RepeatedEnergy:
    """Energy of the executions of a load; if the averaging is undecided, over every remaining response, whose spread becomes error.

    `polls` are times and readings (n,), `updates` the sensor updates in them; executions that start in the first `discard_s` are
    left out.  Raises SensorError if too few readings lie within the load.
    """
    possible, back = possible_responses(calibration, updates.period_s), inversion(calibration)
    fits = [
        fit_executions(
            updates.time_s,
            updates.value,
            response,
            load,
            FitSettings(
                bins=bins_for(response, float(np.mean(load.length_s))) if load.alike else 1,
                discard_s=discard_s,
                noise_w=calibration.reading_noise_w,
                jitter_s=updates.time_std_s,
            ),
            trace_edge_s,
        )
        for response in possible.responses
    ]
    share = response_probabilities(possible, fits)
    unlike = 0.0 if load.alike else 0.02
    energy, timing_std = mixed(share, [(fit.energy_j, math.hypot(fit.energy_std_j, unlike * fit.energy_j)) for fit in fits])
    total, total_std = mixed(share, [(fit.total_j, math.hypot(fit.total_std_j, unlike * fit.total_j)) for fit in fits])
    kept = load.start_s >= load.start_s[0] + discard_s
    start, end = load.start_s[kept], load.end_s[kept]
    duration = float(np.mean(end - start))
    true_j, true_std = back.energy(energy, timing_std, duration)
    whole_j, whole_std = back.energy(total, total_std, float(end[-1] - start[0]))
    practice, likeliest = practice_for(calibration), int(np.argmax(share))
    return RepeatedEnergy(
        energy_j=true_j,
        energy_std_j=true_std,
        timing_std_j=timing_std / back.gain,
        duration_s=duration,
        executions=len(start),
        total_j=whole_j,
        total_std_j=whole_std,
        naive_j=float(naive_energy(*polls, start, end).mean()),
        naive_total_j=float(naive_energy(*polls, load.start_s[:1], load.end_s[-1:])[0]),
        published_j=math.nan if practice_refusal(load, practice) else published_energy(*polls, load, practice),
        fit=fits[likeliest],
        response=possible.responses[likeliest],
        notes=FrozenMapping({**updates.notes, **possible.notes, **({} if back.known else {"gain": NO_GAIN})}),
    )


def response_probabilities(possible: PossibleResponses, fits: Sequence[ExecutionFit]) -> Array:
    """Probabilities of the responses after the fit, shape (r,): 0 for one that cannot explain the readings."""
    count = min(int(np.count_nonzero(fit.used)) for fit in fits)
    return possible.weighed(count * np.array([fit.evidence for fit in fits]))


def mixed(share: Array, answers: list[tuple[float, float]]) -> tuple[float, float]:
    """Mean and standard deviation over the possible responses of answers with errors of their own."""
    mean, std = np.array(answers).T
    centre = float(share @ mean)
    return centre, float(np.sqrt(share @ (std**2 + (mean - centre) ** 2)))


def contradictions(updates: BoardUpdates, load: LoadStamps, calibration: SensorCalibration, found: RepeatedEnergy) -> dict[str, str]:
    """Reasons why the readings contradict the stated sensor (`sensor`), or an energy is impossible (`execution_energy`); {} without any."""
    notes: dict[str, str] = {}
    sum_j, sum_std_j = found.executions * found.energy_j, found.executions * found.energy_std_j
    if sum_j - found.total_j > 3.0 * math.hypot(sum_std_j, found.total_std_j):
        notes["execution_energy"] = (
            f"{found.executions} executions of {found.energy_j:.4g} J make {sum_j:.4g} J, more than the "
            f"{found.total_j:.4g} J of the load that holds them: neither energy holds; characterise this sensor, check the load's stamps"
        )
    if not load.alike or len(load.start_s) < 2:
        return notes
    fit, stated = found.fit, found.response
    value = updates.value[fit.used]
    misfit, swing = float(np.sqrt(np.mean((value - fit.predicted_w[fit.used]) ** 2))), float(np.ptp(value))
    scatter = max(calibration.reading_noise_w or 0.0, calibration.residual_w or 0.0)
    of_times = math.hypot(updates.time_std_s, stated.delay_std_s) / max(stated.width_s, 5e-3)
    if misfit > max(MISFIT_SHARE * swing, of_times * swing, MISFIT_NOISES * scatter):
        notes["sensor"] = (
            f"the readings contradict the sensor ({stated.kernel} of {stated.width_s * 1e3:.3g} ms, delay {stated.delay_s * 1e3:.3g} ms): "
            f"the fit leaves {misfit:.3g} W of a swing of {swing:.3g} W, the sensor's own scatter is {scatter:.2g} W; is it this board's, "
            "driver's and field's sensor, and are the load's stamps on the readings' clock?"
        )
    return notes
