"""A recording corrected: power over time and energy, each with its uncertainty, and the naive value beside it.

With the load's stamps the readings are regressed on the load.  Without them the readings are deconvolved: exactly where averages tile
time, as an estimate where the sensor does not see the time between its averages.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.devices.possible_power import possible_power
from collector.errors import SensorError
from collector.sensing.baselines import naive_energy, practice_for, practice_refusal
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.deconvolve import Deconvolved, deconvolve
from collector.sensing.fold import Profile, fold_profile
from collector.sensing.known_sensor import NO_GAIN, PossibleResponses, inversion, possible_responses
from collector.sensing.repeated import RepeatedEnergy, contradictions, mixed, repeated_energy
from collector.sensing.response import SensorResponse
from collector.sensing.updates import BoardUpdates, board_updates
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array

LONGEST_LOAD_S, MOST_REST_S = 400.0, 300.0
"""Longest load of a regression, and longest rest before and after it [s]: the model has one drift, and memory is bounded."""
REGRESSION, DECONVOLUTION, ESTIMATE = "regression on the load", "deconvolution", "estimate between updates"
UNSEEN: Final = (
    "the sensor averages over {width:.3g} ms of every {period:.3g} ms and sees nothing of the rest: a load that repeats near that period "
    "may be hidden; --load tells when the load ran"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySpan:
    """Energy and mean power of a span of time, and the readings' own integral."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedRecording:
    """Power between neighbouring times of `edge_s` (n + 1,), `power_w` ± `power_std_w` (n,), and energies.

    `span` covers the load, first start to last end, or all of the recording without a load; `whole` covers the recording.
    `repeated` is None without a load, `profile` if not requested; `resolution_s` belongs to the trace.
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
    load: LoadStamps | None
    repeated: RepeatedEnergy | None
    profile: Profile | None
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
            "executions": None if self.repeated is None else _execution_document(self.repeated),
            "profile": None if self.profile is None else _profile_document(self.profile),
            "notes": dict(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Readings:
    """Polls of possible power, their updates, and the sensor's possible responses."""

    time_s: Array
    power_w: Array
    updates: BoardUpdates
    calibration: SensorCalibration
    possible: PossibleResponses

    def integrated(self, begin: float, end: float, more_std_j: float = 0.0) -> tuple[Deconvolved, SensorResponse, EnergySpan]:
        """Deconvolved power between two times by the likeliest response, that response, and the energy over all responses.

        `more_std_j` is an error of the energy that the parts do not include.
        """
        noise, updates = self.calibration.reading_noise_w, self.updates
        parts = [
            deconvolve(updates.time_s, updates.value, response, updates.period_s, noise, begin, end) for response in self.possible.responses
        ]
        probability = self.possible.weighed(np.array([part.evidence for part in parts]))
        energy, std = mixed(probability, [(part.energy_j, part.energy_std_j) for part in parts])
        energy, std = inversion(self.calibration).energy(energy, math.hypot(std, more_std_j), end - begin)
        naive = float(naive_energy(self.time_s, self.power_w, np.array([begin]), np.array([end]))[0])
        best = int(np.argmax(probability))
        span = EnergySpan(start_s=begin, end_s=end, energy_j=energy, energy_std_j=std, naive_energy_j=naive)
        return parts[best], self.possible.responses[best], span


def correct_recording(
    time_s: Array, power_w: Array, calibration: SensorCalibration, load: LoadStamps | None = None, *, fold: bool = False
) -> CorrectedRecording:
    """Correct polls at `time_s` (n,), ascending [s], with readings `power_w` (n,), repeats included.

    `fold` adds the profile within an execution, which needs a load.  Raises SensorError for a recording without enough information,
    and for a load outside it.
    """
    sane = possible_power(power_w) & np.isfinite(time_s)
    notes = {} if np.all(sane) else {"readings": f"{np.count_nonzero(~sane)} of {len(sane)} readings are no power and were left out"}
    time_s, power_w = time_s[sane], power_w[sane]
    if load is not None:
        load, note = _held_by(load, time_s)
        near = (time_s >= load.start_s[0] - MOST_REST_S) & (time_s <= load.end_s[-1] + MOST_REST_S)
        if not np.all(near):
            note["trace"] = f"readings more than {MOST_REST_S:.0f} s before or after the load are left out"
        time_s, power_w, notes = time_s[near], power_w[near], notes | note
    if len(time_s) < 4:
        raise SensorError(f"{len(time_s)} readings that are power; at least 4 are needed")
    updates = board_updates(time_s, power_w, calibration)
    pause = np.diff(time_s)
    pause = pause[pause > 10.0 * updates.period_s]
    if len(pause):
        notes["gaps"] = f"{len(pause)} gap(s) in the polls, {pause.sum():.4g} s in all, of unknown power; cut the recording there"
    possible, back = possible_responses(calibration, updates.period_s), inversion(calibration)
    notes |= {**updates.notes, **possible.notes, **({} if back.known else {"gain": NO_GAIN})}
    read = _Readings(time_s=time_s, power_w=power_w, updates=updates, calibration=calibration, possible=possible)
    found = _integrated(read)
    if load is not None:
        found = _regressed(read, found, load)
    profile = fold_profile(found.repeated, load, calibration) if fold and load is not None and found.repeated is not None else None
    notes |= {**found.notes, **(profile.notes if profile is not None else {})}
    true_w, std_w = back.energy(found.power_w, found.power_std_w, 1.0)
    return replace(
        found,
        power_w=true_w,
        power_std_w=std_w,
        profile=profile,
        notes=FrozenMapping(notes),
    )


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


def _integrated(read: _Readings) -> CorrectedRecording:
    """The recording without a load, powers in the sensor's domain."""
    part, response, whole = read.integrated(float(read.time_s[0]), float(read.time_s[-1]))
    return CorrectedRecording(
        method=DECONVOLUTION if part.well_posed else ESTIMATE,
        edge_s=part.edge_s,
        power_w=part.power_w,
        power_std_w=part.std_w,
        resolution_s=part.resolution_s,
        span=whole,
        whole=whole,
        updates=read.updates,
        response=response,
        load=None,
        repeated=None,
        profile=None,
        notes={} if part.well_posed else {"sampling": UNSEEN.format(width=response.width_s * 1e3, period=read.updates.period_s * 1e3)},
    )


def _regressed(read: _Readings, whole: CorrectedRecording, load: LoadStamps) -> CorrectedRecording:
    """The recording regressed on its load, powers in the sensor's domain; `whole` is without the load."""
    calibration = read.calibration
    found = repeated_energy((read.time_s, read.power_w), read.updates, load, calibration, trace_edge_s=whole.edge_s)
    notes = contradictions(read.updates, load, calibration, found)
    if refusal := practice_refusal(load, practice_for(calibration)):
        notes["published_energy_j"] = refusal
    begin, end = float(load.start_s[0]), float(load.end_s[-1])
    if whole.method == DECONVOLUTION and not load.alike:  # unlike executions have no common level; averages that tile time need none
        steps_j = 0.2 * found.response.width_s * float(np.ptp(read.updates.value))
        return replace(whole, span=read.integrated(begin, end, steps_j)[2], load=load, repeated=found, notes=notes)
    return replace(
        whole,
        method=REGRESSION,
        power_w=found.fit.trace_w,
        power_std_w=found.fit.trace_std_w,
        resolution_s=float(np.median(np.diff(whole.edge_s))),
        span=EnergySpan(
            start_s=begin, end_s=end, energy_j=found.total_j, energy_std_j=found.total_std_j, naive_energy_j=found.naive_total_j
        ),
        response=found.response,
        load=load,
        repeated=found,
        notes=notes,
    )


def _execution_document(found: RepeatedEnergy) -> dict[str, float | None]:
    """Energy of an execution as plain data."""
    return {
        "count": found.executions,
        "duration_s": found.duration_s,
        "power_w": found.energy_j / found.duration_s,
        "energy_j": found.energy_j,
        "energy_std_j": found.energy_std_j,
        "timing_std_j": found.timing_std_j,
        "naive_energy_j": found.naive_j,
        "published_energy_j": _known(found.published_j),
    }


def _profile_document(profile: Profile) -> dict[str, object]:
    """A profile as plain data."""
    columns = {"place_s": profile.place_s, "power_w": profile.power_w, "power_std_w": profile.std_w, "resolution_s": profile.resolution_s}
    return {
        "executions": profile.executions,
        "duration_s": profile.duration_s,
        "attained_resolution_s": _known(profile.attained_s),
        **{name: [_known(value) for value in column.tolist()] for name, column in columns.items()},
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
