"""Energy of a kernel, or of any load that repeats, from a run of executions: ours, and what others would say.

The readings' timing is put right by the fit of `execution_fit`, gain and offset by the calibration; where the
calibration leaves the averaging open, every response that it leaves is tried and the spread becomes error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.correction.response import PossibleResponses, SensorResponse, possible_responses
from collector.correction.settled import NO_GAIN, inversion
from collector.correction.updates import BoardUpdates
from collector.energy.counter import CounterEstimate
from collector.energy.execution_fit import ExecutionFit, FitSettings, fit_executions
from collector.energy.practice import naive_energy, practice_for, practice_refusal, published_energy
from collector.sensor.calibration import SensorCalibration
from collector.sensor.load import LoadStamps
from estimator.frozen import FrozenMapping
from estimator.quantities import Array

BINS_PER_WINDOW: Final = 8.0
BINS: Final = (8, 96)
"""Parts of an execution: so many to a window of the sensor, within these limits.  Within a part the power is taken for even: a step in
the middle of one moves a reading whose window ends there by up to step · part / (4 · window), a low-pass's by twice that, which no
column describes.  With eight to a window that is a sixteenth at most; sixteen give simulated boards the same errors."""
UNEQUAL_SHARE: Final = 0.2
"""Executions whose lengths differ by more (standard deviation over mean) have no common profile."""
UNLIKE_STD_SHARE: Final = 0.02
"""Executions of several kinds are taken for one power: what that may cost, as a share of the energy."""
AGREE_Z: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedEnergy:
    """Energy of an execution, and of the whole load from its first kept start to its last end [J].

    `energy_std_j` holds everything, `timing_std_j` what is left when gain and offset are taken for exact.
    `naive_j` is the readings' integral over the mean execution, `first_naive_j` over the first one alone (one run of
    the kernel), `published_j` the published good practice (nan where it does not apply), all without gain and offset;
    `counter` the board's counter with them.
    `fit` is that of the likeliest response.
    """

    energy_j: float
    energy_std_j: float
    timing_std_j: float
    duration_s: float
    executions: int
    total_j: float
    total_std_j: float
    naive_j: float
    first_naive_j: float
    naive_total_j: float
    published_j: float
    counter_j: float
    counter_std_j: float
    fit: ExecutionFit
    response: SensorResponse
    notes: Mapping[str, str]


def bins_for(response: SensorResponse, duration_s: float) -> int:
    """Parts that a profile of an execution is divided into."""
    low, high = BINS
    return int(min(max(round(BINS_PER_WINDOW * duration_s / response.width_s), low), high))


def alike(load: LoadStamps) -> bool:
    """Whether the executions of a load are of one kind: one, or several, about equally long, at one level."""
    length = load.end_s - load.start_s
    equal = float(np.std(length)) <= UNEQUAL_SHARE * float(np.mean(length)) and float(np.ptp(load.levels)) == 0.0
    return equal


def fit_settings(
    calibration: SensorCalibration, response: SensorResponse, load: LoadStamps, updates: BoardUpdates, discard_s: float
) -> FitSettings:
    """Settings of the fit for a load: a profile where its executions are alike."""
    length = load.end_s - load.start_s
    return FitSettings(
        bins=bins_for(response, float(np.mean(length))) if alike(load) else 1,
        discard_s=discard_s,
        noise_w=calibration.reading_noise_w,
        jitter_s=updates.time_std_s,
    )


def repeated_energy(
    poll_s: Array,
    poll_w: Array,
    updates: BoardUpdates,
    load: LoadStamps,
    calibration: SensorCalibration,
    *,
    discard_s: float = 0.0,
    counter: CounterEstimate | None = None,
    trace_edge_s: Array | None = None,
) -> RepeatedEnergy:
    """Energy of the executions of a load.

    `poll_s`, `poll_w` (n,) are the polled readings, `updates` what they show of the sensor; executions that start in
    the first `discard_s` are left out; between neighbouring times of `trace_edge_s` the fit gives the mean power.
    Raises SensorError where too few readings lie within the load.
    """
    possible = possible_responses(calibration, updates.period_s)
    fits = [
        fit_executions(
            updates.time_s,
            updates.value,
            response,
            load,
            fit_settings(calibration, response, load, updates, discard_s),
            trace_edge_s,
        )
        for response in possible.responses
    ]
    probability = response_probabilities(possible, fits)
    unlike = 0.0 if alike(load) else UNLIKE_STD_SHARE
    energy, timing_std = _mixed(probability, [(fit.energy_j, math.hypot(fit.energy_std_j, unlike * fit.energy_j)) for fit in fits])
    total, total_std = _mixed(probability, [(fit.total_j, math.hypot(fit.total_std_j, unlike * fit.total_j)) for fit in fits])
    likeliest = int(np.argmax(probability))
    back = inversion(calibration)
    kept = load.start_s >= load.start_s[0] + discard_s
    start, end = load.start_s[kept], load.end_s[kept]
    duration, span = float(np.mean(end - start)), float(end[-1] - start[0])
    true_j, true_std = back.energy(energy, timing_std, duration)
    whole_j, whole_std = back.energy(total, total_std, span)
    counted_j, counted_std = math.nan, math.nan
    notes = {**updates.notes, **possible.notes, **({} if back.known else {"gain": NO_GAIN})}
    if counter is not None and math.isfinite(counter.energy_j):
        counted_j, counted_std = back.energy(counter.energy_j, counter.energy_std_j, duration)
        notes |= _counter_note(counter, energy, timing_std)
    elif counter is not None:
        notes["counter"] = counter.doubt
    naive = naive_energy(poll_s, poll_w, load.start_s, load.end_s)
    practice = practice_for(calibration)
    return RepeatedEnergy(
        energy_j=true_j,
        energy_std_j=true_std,
        timing_std_j=timing_std / back.gain,
        duration_s=duration,
        executions=int(np.count_nonzero(kept)),
        total_j=whole_j,
        total_std_j=whole_std,
        naive_j=float(naive[kept].mean()),
        first_naive_j=float(naive[0]),
        naive_total_j=float(naive_energy(poll_s, poll_w, start[:1], end[-1:])[0]),
        published_j=math.nan if practice_refusal(load, practice) else published_energy(poll_s, poll_w, load, practice),
        counter_j=counted_j,
        counter_std_j=counted_std,
        fit=fits[likeliest],
        response=possible.responses[likeliest],
        notes=FrozenMapping(notes),
    )


def response_probabilities(possible: PossibleResponses, fits: Sequence[ExecutionFit]) -> Array:
    """Probabilities of the responses after the fit, shape (r,): a response that cannot explain the readings drops out."""
    count = min(int(np.count_nonzero(fit.used)) for fit in fits)
    score = np.log(possible.probabilities) + count * np.array([fit.evidence for fit in fits])
    weight = np.exp(score - score.max())
    probability: Array = weight / weight.sum()
    return probability


def _mixed(probability: Array, answers: list[tuple[float, float]]) -> tuple[float, float]:
    """Mean and standard deviation over the possible responses of answers with errors of their own."""
    mean, std = np.array(answers).T
    centre = float(probability @ mean)
    return centre, float(np.sqrt(probability @ (std**2 + (mean - centre) ** 2)))


def _counter_note(counter: CounterEstimate, energy_j: float, std_j: float) -> dict[str, str]:
    """A remark where counter and readings disagree: they may then differ in gain."""
    away = abs(counter.energy_j - energy_j) / math.hypot(counter.energy_std_j, std_j)
    if away <= AGREE_Z:
        return {}
    share = counter.energy_j / energy_j - 1.0
    return {"counter": f"the counter says {share:+.1%} against the readings, {away:.0f} standard errors: its gain is another"}
