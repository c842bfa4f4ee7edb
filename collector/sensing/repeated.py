"""Energy of a kernel, or of any load that repeats, from a recording of its executions: ours, and what others would say."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.sensing.baselines import naive_energy, practice_for, practice_refusal, published_energy
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.counter import CounterEstimate
from collector.sensing.executions import ExecutionFit, FitSettings, fit_executions
from collector.sensing.known_sensor import NO_GAIN, PossibleResponses, inversion, possible_responses
from collector.sensing.response import SensorResponse
from collector.sensing.updates import BoardUpdates
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array

BINS_PER_WINDOW: Final = 8.0
BINS: Final = (8, 96)
"""Parts of an execution: so many to a window of the sensor, within these limits; sixteen give simulated boards the same errors."""
UNLIKE_SHARE: Final = 0.02
"""Executions of several kinds are taken for one power: what that may cost, as a share of the energy."""
AGREE_Z: Final = 3.0
OTHER_WIDTHS: Final = (0.6, 0.8, 1.25, 1.6)
OTHER_DELAYS_S: Final = (-4e-3, 4e-3)
CONTRADICTED, EXPLAINS_SHARE, AWAY_Z = 15.0, 0.95, 2.0
"""Another response contradicts the stated one where it leads by this log-likelihood (the right one is behind by up to 7, simulated),
leaves less than this share of what the stated one leaves, and gives an energy so many of its standard errors away."""
MISFIT_SHARE, MISFIT_NOISES = 0.05, 4.0
"""Root mean square that a fit may leave, as a share of the readings' swing, and in multiples of the calibration's own scatter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedEnergy:
    """Energy of an execution, and of the whole load from its first kept start to its last end [J].

    `energy_std_j` holds everything, `timing_std_j` what is left when gain and offset are taken for exact.  `naive_j` is the readings'
    integral over the mean execution, `first_naive_j` over the first alone, `published_j` the published good practice (nan where
    it does not apply), all without gain and offset; `counter_j` the board's counter with them.  `fit` is that of the likeliest response.
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
    return int(np.clip(round(BINS_PER_WINDOW * duration_s / response.width_s), *BINS))


def repeated_energy(
    polls: tuple[Array, Array],
    updates: BoardUpdates,
    load: LoadStamps,
    calibration: SensorCalibration,
    *,
    discard_s: float = 0.0,
    counter: CounterEstimate | None = None,
    trace_edge_s: Array | None = None,
) -> RepeatedEnergy:
    """Energy of the executions of a load; where the averaging is open, over every response left, whose spread becomes error.

    `polls` are times and readings (n,), `updates` what they show of the sensor; executions that start in the first `discard_s` are
    left out.  Raises SensorError where too few readings lie within the load.
    """
    possible = possible_responses(calibration, updates.period_s)
    fits = [
        fit_executions(
            updates.time_s, updates.value, response, load, _settings(calibration, response, load, updates, discard_s), trace_edge_s
        )
        for response in possible.responses
    ]
    share = response_probabilities(possible, fits)
    unlike = 0.0 if load.alike else UNLIKE_SHARE
    energy, timing_std = _mixed(share, [(fit.energy_j, math.hypot(fit.energy_std_j, unlike * fit.energy_j)) for fit in fits])
    total, total_std = _mixed(share, [(fit.total_j, math.hypot(fit.total_std_j, unlike * fit.total_j)) for fit in fits])
    likeliest = int(np.argmax(share))
    back = inversion(calibration)
    kept = load.start_s >= load.start_s[0] + discard_s
    start, end = load.start_s[kept], load.end_s[kept]
    duration, span = float(np.mean(end - start)), float(end[-1] - start[0])
    true_j, true_std = back.energy(energy, timing_std, duration)
    whole_j, whole_std = back.energy(total, total_std, span)
    counted = (math.nan, math.nan)
    notes = {**updates.notes, **possible.notes, **({} if back.known else {"gain": NO_GAIN})}
    if counter is not None and math.isfinite(counter.energy_j):
        counted = back.energy(counter.energy_j, counter.energy_std_j, duration)
        away = abs(counter.energy_j - energy) / math.hypot(counter.energy_std_j, timing_std)
        if away > AGREE_Z:
            off = f"{counter.energy_j / energy - 1.0:+.1%}"
            notes["counter"] = f"the counter says {off} against the readings, {away:.0f} standard errors: its gain is another"
    elif counter is not None:
        notes["counter"] = counter.doubt
    practice = practice_for(calibration)
    naive = naive_energy(*polls, load.start_s, load.end_s)
    return RepeatedEnergy(
        energy_j=true_j,
        energy_std_j=true_std,
        timing_std_j=timing_std / back.gain,
        duration_s=duration,
        executions=len(start),
        total_j=whole_j,
        total_std_j=whole_std,
        naive_j=float(naive[kept].mean()),
        first_naive_j=float(naive[0]),
        naive_total_j=float(naive_energy(*polls, load.start_s[:1], load.end_s[-1:])[0]),
        published_j=math.nan if practice_refusal(load, practice) else published_energy(*polls, load, practice),
        counter_j=counted[0],
        counter_std_j=counted[1],
        fit=fits[likeliest],
        response=possible.responses[likeliest],
        notes=FrozenMapping(notes),
    )


def _settings(
    calibration: SensorCalibration, response: SensorResponse, load: LoadStamps, updates: BoardUpdates, discard_s: float
) -> FitSettings:
    """Settings of the fit for a load: a profile where its executions are alike."""
    return FitSettings(
        bins=bins_for(response, float(np.mean(load.length_s))) if load.alike else 1,
        discard_s=discard_s,
        noise_w=calibration.reading_noise_w,
        jitter_s=updates.time_std_s,
    )


def response_probabilities(possible: PossibleResponses, fits: Sequence[ExecutionFit]) -> Array:
    """Probabilities of the responses after the fit, shape (r,): one that cannot explain the readings drops out."""
    count = min(int(np.count_nonzero(fit.used)) for fit in fits)
    return possible.weighed(count * np.array([fit.evidence for fit in fits]))


def _mixed(share: Array, answers: list[tuple[float, float]]) -> tuple[float, float]:
    """Mean and standard deviation over the possible responses of answers with errors of their own."""
    mean, std = np.array(answers).T
    centre = float(share @ mean)
    return centre, float(np.sqrt(share @ (std**2 + (mean - centre) ** 2)))


def contradictions(updates: BoardUpdates, load: LoadStamps, calibration: SensorCalibration, found: RepeatedEnergy) -> dict[str, str]:
    """Whether the readings contradict the stated sensor (`sensor`), or an energy cannot be (`execution_energy`); {} where they do not."""
    notes: dict[str, str] = {}
    sum_j, sum_std_j = found.executions * found.energy_j, found.executions * found.energy_std_j
    if sum_j - found.total_j > AGREE_Z * math.hypot(sum_std_j, found.total_std_j):
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
    head = (
        f"the readings contradict the sensor ({_name(stated)}): the fit leaves {misfit:.3g} W of a swing of {swing:.3g} W, the sensor's "
        f"own scatter is {scatter:.2g} W; "
    )
    settings = replace(_settings(calibration, stated, load, updates, 0.0), any_size=True)  # levels within executions are no other sensor
    fits = [fit_executions(updates.time_s, updates.value, response, load, settings) for response in _near(stated)]
    other = max(fits, key=lambda one: one.evidence)
    lead = (other.evidence - fits[0].evidence) * float(np.count_nonzero(fit.used))
    remains, left = (float(np.sqrt(np.mean((updates.value - one.predicted_w)[one.used] ** 2))) for one in (other, fits[0]))
    away = abs(other.energy_j - fits[0].energy_j) > AWAY_Z * found.timing_std_j * (calibration.gain or 1.0)
    if lead > CONTRADICTED and remains < EXPLAINS_SHARE * left and away:
        response = _near(stated)[fits.index(other)]
        looks = (
            f"the readings look like {_name(response)}, or the board's power follows the load late; energies may be wrong beyond their "
            "errors: characterise this sensor"
        )
        return notes | {"sensor": head + looks}
    of_times = math.hypot(updates.time_std_s, stated.delay_std_s) / max(stated.width_s, 5e-3)
    if misfit > max(MISFIT_SHARE * swing, of_times * swing, MISFIT_NOISES * scatter):
        asked = "is it this board's, driver's and field's sensor, and are the load's stamps on the readings' clock?"
        return notes | {"sensor": head + asked}
    return notes


def _near(stated: SensorResponse) -> list[SensorResponse]:
    """The stated response, other widths at one end or one mean age of the power, other delays, and the other kernel."""
    more = [(share - 1.0) * stated.width_s for share in OTHER_WIDTHS]
    others = [stated.moved(width_s=by, delay_s=-share * by) for by in more for share in (0.0, 0.5)]
    others += [stated.moved(delay_s=by) for by in OTHER_DELAYS_S]
    return [stated, *others, replace(stated, kernel="boxcar" if stated.kernel == "low-pass" else "low-pass")]


def _name(response: SensorResponse) -> str:
    """A response in words."""
    return f"{response.kernel} of {response.width_s * 1e3:.3g} ms, delay {response.delay_s * 1e3:.3g} ms"
