"""Energy of a kernel, or of any load that repeats, from a recording of its executions, beside the naive value."""

import math
from collections.abc import Mapping

import numpy as np

from collector.sampling import Polls
from collector.sensing.baselines import naive_energy
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.executions import ExecutionFit, fit_executions
from collector.sensing.known_sensor import NO_GAIN, inversion, possible_responses
from collector.sensing.response import SensorResponse
from collector.sensing.updates import BoardUpdates
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

MISFIT_SHARE, MISFIT_NOISES = 0.05, 4.0
"""Largest root mean square residual of a fit, as a share of the readings' swing, and in multiples of the calibration's own scatter."""


@frozen
class EnergySpan:
    """Energy of a span of time with its standard error, and the readings' own integral [J]."""

    start_s: float
    end_s: float
    energy_j: float
    energy_std_j: float
    naive_energy_j: float

    def document(self, origin_s: float) -> dict[str, float]:
        """Plain data, times counted from `origin_s`."""
        length = self.end_s - self.start_s
        return {
            "start_s": origin_s + self.start_s,
            "end_s": origin_s + self.end_s,
            "power_w": self.energy_j / length,
            "power_std_w": self.energy_std_j / length,
            "energy_j": self.energy_j,
            "energy_std_j": self.energy_std_j,
            "naive_power_w": self.naive_energy_j / length,
            "naive_energy_j": self.naive_energy_j,
        }


@frozen
class RepeatedEnergy:
    """Energy of an execution [J], and of the whole load from its first kept start to its last end.

    `energy_std_j` includes all errors, `timing_std_j` those left if gain and offset are exact.  `naive_j` is the readings' integral over
    the mean execution.  `fit` belongs to the likeliest response; `notes` are on the sensor.
    """

    energy_j: float
    energy_std_j: float
    timing_std_j: float
    naive_j: float
    duration_s: float
    executions: int
    total: EnergySpan
    fit: ExecutionFit
    response: SensorResponse
    notes: Mapping[str, str]

    def document(self) -> dict[str, float]:
        """Energy of an execution as plain data."""
        return {
            "count": self.executions,
            "duration_s": self.duration_s,
            "power_w": self.energy_j / self.duration_s,
            "energy_j": self.energy_j,
            "energy_std_j": self.energy_std_j,
            "timing_std_j": self.timing_std_j,
            "naive_energy_j": self.naive_j,
        }


def repeated_energy(
    polls: Polls,
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
    possible, back = possible_responses(calibration, updates.period_s).with_delays(), inversion(calibration)
    noise_w = calibration.reading_noise_w
    fits = [
        fit_executions(updates, response, load, noise_w=noise_w, discard_s=discard_s, trace_edge_s=trace_edge_s)
        for response in possible.responses
    ]
    count = min(int(np.count_nonzero(fit.used)) for fit in fits)
    share = possible.weighed(count * np.array([fit.evidence for fit in fits]))
    unlike = 0.0 if load.alike else 0.02
    energy, timing_std = mixed(share, [(fit.energy_j, math.hypot(fit.energy_std_j, unlike * fit.energy_j)) for fit in fits])
    total, total_std = mixed(share, [(fit.total_j, math.hypot(fit.total_std_j, unlike * fit.total_j)) for fit in fits])
    kept = load.start_s >= load.start_s[0] + discard_s
    start, end = load.start_s[kept], load.end_s[kept]
    duration = float(np.mean(end - start))
    true_j, true_std = back.energy(energy, timing_std, duration)
    whole_j, whole_std = back.energy(total, total_std, float(end[-1] - start[0]))
    likeliest = int(np.argmax(share))
    return RepeatedEnergy(
        energy_j=true_j,
        energy_std_j=true_std,
        timing_std_j=timing_std / back.gain,
        naive_j=float(naive_energy(*polls, start, end).mean()),
        duration_s=duration,
        executions=len(start),
        total=EnergySpan(
            start_s=float(start[0]),
            end_s=float(end[-1]),
            energy_j=whole_j,
            energy_std_j=whole_std,
            naive_energy_j=float(naive_energy(*polls, start[:1], end[-1:])[0]),
        ),
        fit=fits[likeliest],
        response=possible.responses[likeliest],
        notes=sensor_notes(calibration, updates),
    )


def sensor_notes(calibration: SensorCalibration, updates: BoardUpdates) -> Mapping[str, str]:
    """Notes: unknown parts of the calibration, and updates that differ from it."""
    of_gain = {} if inversion(calibration).known else {"gain": NO_GAIN}
    of_updates = {"update_period_s": updates.note} if updates.note else {}
    return FrozenMapping({**of_updates, **possible_responses(calibration, updates.period_s).notes, **of_gain})


def mixed(share: Array, answers: list[tuple[float, float]]) -> tuple[float, float]:
    """Mean and standard deviation over the possible responses of answers with errors of their own."""
    mean, std = np.array(answers).T
    centre = float(share @ mean)
    return centre, float(np.sqrt(share @ (std**2 + (mean - centre) ** 2)))


def contradiction(updates: BoardUpdates, load: LoadStamps, calibration: SensorCalibration, found: RepeatedEnergy) -> dict[str, str]:
    """A note, under `sensor`, if the readings contradict the stated sensor or the load's stamps; {} otherwise."""
    if not load.alike or len(load.start_s) < 2:
        return {}
    fit, stated = found.fit, found.response
    value = updates.value[fit.used]
    misfit, swing = float(np.sqrt(np.mean((value - fit.predicted_w[fit.used]) ** 2))), float(np.ptp(value))
    scatter = max(calibration.reading_noise_w or 0.0, calibration.residual_w or 0.0)
    of_times = math.hypot(updates.time_std_s, stated.delay_std_s) / max(stated.width_s, 5e-3)
    if misfit <= max(MISFIT_SHARE * swing, of_times * swing, MISFIT_NOISES * scatter):
        return {}
    return {
        "sensor": f"the readings contradict the sensor: the fit leaves {misfit:.3g} W of a swing of {swing:.3g} W; is it this "
        "board's, driver's and field's sensor, and are the load's stamps on the readings' clock?"
    }
