"""A recording corrected: power over time and energy, each with its uncertainty, and the naive value beside it.

With the load's stamps the readings are regressed on the load.  Without them the readings are deconvolved: exactly where averages tile
time, as an estimate where the sensor does not see the time between its averages.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from scipy.special import stdtrit

from collector.devices.possible_power import possible_power
from collector.errors import SensorError
from collector.sampling import Polls
from collector.sensing.baselines import naive_energy
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.deconvolve import Spans, deconvolve, unread_std_j, unseen_share
from collector.sensing.known_sensor import inversion, possible_responses
from collector.sensing.repeated import EnergySpan, RepeatedEnergy, contradiction, mixed, repeated_energy, sensor_notes
from collector.sensing.response import SensorResponse
from collector.sensing.updates import BoardUpdates, board_updates, fresh
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import NORMAL_90, Array
from estimator.vocabulary.values import frozen

LONGEST_LOAD_S, MOST_REST_S = 400.0, 300.0
"""Longest load of a regression, and longest rest before and after it [s]: its levels do not drift, and memory is bounded."""
REGRESSION, DECONVOLUTION, ESTIMATE = "regression on the load", "deconvolution", "estimate between updates"
STEP_SHARE: Final = 0.03
"""Error of both steps of a span together, in widths of the response times the readings' swing.

From simulated loads of 0.3 to 5 s, steady ones and ones with pauses.
"""
PRIOR_SCATTER: Final = 0.07
"""Scatter of readings inside a span before any is seen, as a share of their swing; it counts as one reading.

From 960 simulated loads of 0.3 to 3 s, even ones and ones of several parts.
"""
UNSEEN: Final = (
    "the sensor averages over {width:.3g} ms of every {period:.3g} ms and sees nothing of the rest: a load that repeats near that period "
    "may be hidden; --load tells when the load ran"
)


@frozen
class CorrectedRecording:
    """Power between neighbouring times of `edge_s` (n + 1,), `power_w` ± `power_std_w` (n,), and energies.

    `span` covers the load, first start to last end, or all of the recording without a load; `whole` covers the recording.
    `repeated` is None without a load; `resolution_s` belongs to the trace.
    """

    method: str
    edge_s: Array
    power_w: Array
    power_std_w: Array
    resolution_s: float
    span: EnergySpan
    whole: EnergySpan
    updates: BoardUpdates
    response: SensorResponse
    repeated: RepeatedEnergy | None
    notes: Mapping[str, str]

    def document(self, origin_s: float = 0.0) -> dict[str, object]:
        """Plain data for JSON, times counted from `origin_s`; unknown values are null."""
        return {
            **self.span.document(origin_s),
            "method": self.method,
            "resolution_s": self.resolution_s,
            "update_period_s": self.updates.period_s,
            "updates": len(self.updates.time_s),
            "recording": self.whole.document(origin_s),
            "executions": None if self.repeated is None else self.repeated.document(),
            "notes": dict(self.notes),
        }


def correct_recording(time_s: Array, power_w: Array, calibration: SensorCalibration, load: LoadStamps | None = None) -> CorrectedRecording:
    """Correct polls at `time_s` (n,), ascending [s], with readings `power_w` (n,), repeats included.

    Raises SensorError for a recording without enough information, and for a load outside it.
    """
    sane = possible_power(power_w) & np.isfinite(time_s)
    notes = {} if np.all(sane) else {"readings": f"{np.count_nonzero(~sane)} of {len(sane)} readings are no power and were left out"}
    time_s, power_w = time_s[sane], power_w[sane]
    if (given := load) is not None:
        for _ in range(2):  # the readings that the first round leaves may lack executions
            load, note = _held_by(given, time_s)
            near = (time_s >= load.start_s[0] - MOST_REST_S) & (time_s <= load.end_s[-1] + MOST_REST_S)
            time_s, power_w, notes = time_s[near], power_w[near], notes | note
    updates = board_updates(time_s, power_w, calibration)
    pause = np.diff(time_s)
    pause = pause[pause > 10.0 * updates.period_s]
    if len(pause):
        notes["gaps"] = f"{len(pause)} gap(s) in the polls, {pause.sum():.4g} s in all, of unknown power; cut the recording there"
    begin, end = time_s[[0, -1]].tolist()
    possible = possible_responses(calibration, updates.period_s)
    parts = [deconvolve(updates, response, calibration.reading_noise_w, begin, end) for response in possible.responses]
    probability = possible.weighed(np.array([part.evidence for part in parts]))
    likeliest = int(np.argmax(probability))
    part, response = parts[likeliest], possible.responses[likeliest]
    energy_j, std_j = mixed(probability, [(part.energy_j, part.energy_std_j) for part in parts])
    energy_j, std_j = inversion(calibration).energy(energy_j, std_j, end - begin)
    naive = float(naive_energy(time_s, power_w, time_s[:1], time_s[-1:])[0])
    whole = EnergySpan(start_s=begin, end_s=end, energy_j=energy_j, energy_std_j=std_j, naive_energy_j=naive)
    partly = unseen_share(response, updates.period_s) > 0.0
    found = CorrectedRecording(
        method=ESTIMATE if partly else DECONVOLUTION,
        edge_s=part.edge_s,
        power_w=part.power_w,
        power_std_w=part.std_w,
        resolution_s=part.resolution_s,
        span=whole,
        whole=whole,
        updates=updates,
        response=response,
        repeated=None,
        notes={"sampling": UNSEEN.format(width=response.width_s * 1e3, period=updates.period_s * 1e3)} if partly else {},
    )
    if load is not None:
        found = _regressed((time_s, power_w), found, calibration, load)
    power, std = inversion(calibration).energy(found.power_w, found.power_std_w, 1.0)
    about_sensor = sensor_notes(calibration, updates)
    return replace(found, power_w=power, power_std_w=std, notes=FrozenMapping({**notes, **about_sensor, **found.notes}))


UNREAD: Final = "no reading fell within it, so its energy is not known: repeat it (collect run --std, --repeats), or let it take longer"


def energies_of(
    polls: Polls, calibration: SensorCalibration, spans: Sequence[Spans], stamps_s: Sequence[float]
) -> tuple[list[tuple[float, float, float]], Mapping[str, str]]:
    """Energy of each set of spans, its standard error, and the part of it that differs from one measurement to the next [J]; and notes.

    `polls` are times [s] and readings [W] (n,), before to after.  nan for spans that no reading covers.

    `stamps_s`, ascending, are times at which the power may step.  Raises SensorError for too few readings.
    """
    sane = possible_power(polls[1])
    time_s, power_w = polls[0][sane], polls[1][sane]
    updates = board_updates(time_s, power_w, calibration)
    possible, back = possible_responses(calibration, updates.period_s), inversion(calibration)
    fits = [
        deconvolve(updates, response, calibration.reading_noise_w, *time_s[[0, -1]].tolist(), stamps_s=stamps_s, parts=spans)
        for response in possible.responses
    ]
    share = possible.weighed(np.array([fit.evidence for fit in fits]))
    found = []
    for index, (starts, ends) in enumerate(spans):
        parts, scatters = [], []
        for fit, response in zip(fits, possible.responses, strict=True):
            steps_j, sampled_j = _limits_j(updates, response, (starts, ends), stamps_s, fit.parts_j[index])
            scatters.append(math.hypot(fit.parts_std_j[index], sampled_j))
            parts.append((fit.parts_j[index], math.hypot(scatters[-1], steps_j)))
        energy, std = mixed(share, parts)
        energy, std = back.energy(energy, std, float((ends - starts).sum()))
        scatter = float(share @ scatters) / back.gain
        found.append((float(energy), float(std), scatter) if math.isfinite(std) else (math.nan, math.nan, math.nan))
    unread = {"unread": UNREAD} if np.isnan(found).any() else {}
    return found, {**sensor_notes(calibration, updates), **unread}


def _limits_j(
    updates: BoardUpdates, response: SensorResponse, spans: Spans, stamps_s: Sequence[float], energy_j: float
) -> tuple[float, float]:
    """Standard errors of an energy [J] from the form of its steps, and from the time between averages and holes in the polls.

    Readings inside the spans are a random sample of the power between neighbouring stamps, so the energy has the error of their mean;
    without one, nothing is known of what no average holds.
    """
    seen_s = updates.time_s - response.delay_s - 0.5 * response.width_s
    held = np.searchsorted(spans[0], seen_s, side="right") > np.searchsorted(spans[1], seen_s, side="right")
    held &= fresh(updates.value)
    unseen = unseen_share(response, updates.period_s)
    if unseen and not held.any():
        return 0.0, math.inf
    inside, stretch = updates.value[held], np.searchsorted(stamps_s, seen_s[held])
    swing_w = float(np.ptp([*updates.value, energy_j / (spans[1] - spans[0]).sum()]))  # averages of a short span show a part of its power
    about = inside - (np.bincount(stretch, inside) / np.maximum(np.bincount(stretch), 1))[stretch]
    few = float(stdtrit(max(len(inside), 1), 0.95)) / NORMAL_90  # Student's t: a scatter of few readings is hardly known
    scatter_w = few * math.sqrt((float(about @ about) + (PRIOR_SCATTER * swing_w) ** 2) / max(len(inside), 1))
    sampled_j = scatter_w * updates.period_s * math.sqrt(unseen * max(len(inside), 1))
    steps_j = STEP_SHARE * response.width_s * swing_w * math.sqrt(len(spans[0]))
    return steps_j, math.hypot(sampled_j, unread_std_j(updates, response, float(spans[0][0]), float(spans[1][-1])))


def _held_by(load: LoadStamps, time_s: Array) -> tuple[LoadStamps, dict[str, str]]:
    """The executions that lie wholly within the recording, with a note on the others.

    Raises SensorError if no execution does, or they span too long.
    """
    inside = np.flatnonzero((load.start_s >= time_s[:1].sum()) & (load.end_s <= time_s[-1:].sum()))
    if not len(inside):
        raise SensorError("no execution of the load lies wholly within the recording")
    held = load.part(int(inside[0]), int(inside[-1]) + 1)
    span, out = float(held.end_s[-1] - held.start_s[0]), len(load.start_s) - len(held.start_s)
    if span > LONGEST_LOAD_S:
        raise SensorError(f"the load spans {span:.0f} s, more than {LONGEST_LOAD_S:.0f} s: cut it, or correct without it")
    return held, {"load": f"{out} of {len(load.start_s)} executions do not lie wholly within the recording and are left out"} if out else {}


def _regressed(polls: Polls, whole: CorrectedRecording, calibration: SensorCalibration, load: LoadStamps) -> CorrectedRecording:
    """The recording regressed on its load, powers in the sensor's domain; `whole` is without the load."""
    updates = whole.updates
    found = repeated_energy(polls, updates, load, calibration, trace_edge_s=whole.edge_s)
    whole = replace(whole, repeated=found, notes=contradiction(updates, load, calibration, found))
    if whole.method == DECONVOLUTION and not load.alike:  # unlike executions have no common level; averages that tile time need none
        begin, end = load.start_s[:1], load.end_s[-1:]
        ((energy_j, std_j, _),), _ = energies_of(polls, calibration, [(begin, end)], (begin[0], end[0]))
        return replace(whole, span=replace(found.total, energy_j=energy_j, energy_std_j=std_j))
    return replace(
        whole,
        method=REGRESSION,
        power_w=found.fit.trace_w,
        power_std_w=found.fit.trace_std_w,
        resolution_s=float(np.median(np.diff(whole.edge_s))),
        span=found.total,
        response=found.response,
    )
