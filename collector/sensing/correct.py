"""A recording corrected: power over time and energy, each with its uncertainty, and the naive value beside it.

With the load's stamps the readings are regressed on the load; without them the averaging is taken out where it is
well posed, and estimated where the sensor looks away between its updates.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from collector.devices.possible_power import possible_power
from collector.errors import SensorError
from collector.sensing.baselines import naive_energy, practice_for, practice_refusal
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.deconvolve import Deconvolved, deconvolve
from collector.sensing.fold import Profile, folded
from collector.sensing.known_sensor import NO_GAIN, Inversion, inversion, possible_responses
from collector.sensing.repeated import RepeatedEnergy, contradictions, repeated_energy
from collector.sensing.response import SensorResponse
from collector.sensing.updates import BoardUpdates, board_updates
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array

LONGEST_LOAD_S: Final = 400.0
"""Loads of a longer span are not regressed on: the model has one drift, and memory is bounded."""
LEAST_EXECUTION_S: Final = 1e-5
"""Shorter stretches of a load are stamps that belong together, not executions: no kernel is launched and waited for so fast."""
EDGE_SHARE: Final = 0.2
"""Where a span begins and ends at steps of the power, each may be taken for half a window earlier or later: standard deviation of
both, in windows times the step."""
MOST_REST_S: Final = 300.0
"""Rest before and after a load of which power over time is given."""
MOST_TRACE_ROWS: Final = 20_000
MIN_READINGS: Final = 4
GAP_UPDATES: Final = 10.0
"""Polls farther apart than so many updates leave a gap."""
REGRESSION, DECONVOLUTION, ESTIMATE = "regression on the load", "deconvolution", "estimate between updates"
UNSEEN: Final = (
    "the sensor averages over {width:.3g} ms of every {period:.3g} ms and sees nothing of the rest: a load that repeats near that period "
    "may be hidden; --load tells when the load ran"
)
UNEVEN: Final = (
    "a one-second mean weighs its parts unevenly, which is in no error: energies of single executions between pauses were up to 7 % off "
    "on simulated boards, that of the load in all was not"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySpan:
    """Energy and mean power of a span of time, and what the readings taken for power would say."""

    start_s: float
    end_s: float
    energy_j: float
    energy_std_j: float
    naive_energy_j: float

    def document(self, origin_s: float) -> dict[str, Any]:
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

    `span` is the load's, first start to last end, or all of the recording where there is no load; `whole` the recording.
    `repeated` and `profile` are None without a load that repeats; `resolution_s` is that of the trace.
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

    def document(self, origin_s: float = 0.0) -> dict[str, Any]:
        """Plain data for JSON, times counted from `origin_s`; what is not known is null."""
        return {
            **self.span.document(origin_s),
            "method": self.method,
            "resolution_s": _known(self.resolution_s),
            "update_period_s": self.updates.period_s,
            "updates": len(self.updates.time_s),
            "recording": self.whole.document(origin_s),
            "executions": None if self.repeated is None else _execution_document(self.repeated),
            "profile": None if self.profile is None else _profile_document(self.profile),
            "notes": dict(self.notes),
        }


def correct_recording(
    time_s: Array, power_w: Array, calibration: SensorCalibration, load: LoadStamps | None = None, fold: float | str | None = None
) -> CorrectedRecording:
    """Correct polls at `time_s` (n,), ascending [s], with readings `power_w` (n,), repeats included.

    `fold` asks for the profile within an execution: "auto" takes the load's stamps, or finds a period; a number is a period [s].

    Raises SensorError for a recording that tells nothing.
    """
    sane = possible_power(power_w) & np.isfinite(time_s)
    notes = {} if np.all(sane) else {"readings": f"{np.count_nonzero(~sane)} of {len(sane)} readings are no power and were left out"}
    time_s, power_w = time_s[sane], power_w[sane]
    if len(time_s) < MIN_READINGS:
        raise SensorError(f"{len(time_s)} readings that are power; at least {MIN_READINGS} are needed")
    polled_s = time_s
    if load is not None:
        near = _beside_load(time_s, load)
        time_s, power_w = time_s[near], power_w[near]
    updates = board_updates(time_s, power_w, calibration)
    if gaps := _gaps(polled_s, updates.period_s):
        left_out = f"; {len(polled_s) - len(time_s)} readings behind gaps far from the load are left out"
        notes["gaps"] = gaps + (left_out if len(time_s) < len(polled_s) else "")
    possible = possible_responses(calibration, updates.period_s)
    back = inversion(calibration)
    begin, end = float(time_s[0]), float(time_s[-1])
    parts = [
        deconvolve(updates.time_s, updates.value, response, updates.period_s, calibration.reading_noise_w, begin, end)
        for response in possible.responses
    ]
    probability = possible.weighed(np.array([part.evidence for part in parts]))
    best = int(np.argmax(probability))
    whole = _span(parts, probability, back, (time_s, power_w), begin, end)
    notes |= {**updates.notes, **possible.notes, **({} if back.known else {"gain": NO_GAIN})}
    part, response = parts[best], possible.responses[best]
    repeated = None
    span, edges, trace, trace_std = whole, part.edge_s, part.power_w, part.std_w
    method, resolution = (DECONVOLUTION if part.well_posed else ESTIMATE), part.resolution_s
    load, load_note = _usable_load(load, time_s)
    if load is not None:
        try:
            repeated = repeated_energy((time_s, power_w), updates, load, calibration, trace_edge_s=_near(part.edge_s, load))
        except SensorError as error:
            load_note = f"the load's stamps could not be used: {error}"
        else:
            notes |= contradictions(updates, load, calibration, repeated)
    if repeated is not None and load is not None and part.well_posed and not load.alike:
        inner = [
            deconvolve(updates.time_s, updates.value, item, updates.period_s, calibration.reading_noise_w, *_ends(load))
            for item in possible.responses
        ]
        steps_j = EDGE_SHARE * response.width_s * float(np.ptp(updates.value))
        span = _span(inner, probability, back, (time_s, power_w), *_ends(load), steps_j)
    elif repeated is not None and load is not None:
        span = EnergySpan(
            start_s=float(load.start_s[0]),
            end_s=float(load.end_s[-1]),
            energy_j=repeated.total_j,
            energy_std_j=repeated.total_std_j,
            naive_energy_j=repeated.naive_total_j,
        )
        method, edges = REGRESSION, _near(part.edge_s, load)
        if calibration.averaging == "trailing-mean":
            notes["executions"] = UNEVEN
        if edges[0] > part.edge_s[0] or edges[-1] < part.edge_s[-1]:
            notes["trace"] = f"power over time is given to {MOST_REST_S:.0f} s before and after the load"
        if refusal := practice_refusal(load, practice_for(calibration)):
            notes["published_energy_j"] = refusal
        trace, trace_std, response = repeated.fit.trace_w, repeated.fit.trace_std_w, repeated.response
        resolution = float(np.median(np.diff(edges)))
    elif not part.well_posed:
        notes["sampling"] = UNSEEN.format(width=response.width_s * 1e3, period=updates.period_s * 1e3)
    if load_note:
        notes["load"] = load_note
    profile = folded(updates, load, calibration, fold, begin, end)
    if profile is not None:
        notes |= profile.notes
    return CorrectedRecording(
        method=method,
        edge_s=edges,
        power_w=back.power_w(trace),
        power_std_w=back.power_std_w(trace, trace_std),
        resolution_s=resolution,
        span=span,
        whole=whole,
        updates=updates,
        response=response,
        load=load if repeated is not None else None,
        repeated=repeated,
        profile=profile,
        notes=FrozenMapping(notes),
    )


def _beside_load(time_s: Array, load: LoadStamps) -> slice:
    """The polls that a load is corrected by: none beyond a gap of more than MOST_REST_S that ends, or begins, away from the load.

    What is beyond says nothing of the load, and a grid over the gap would be too coarse, or need memory without bound.  All where fewer
    than MIN_READINGS would be left.
    """
    far = np.flatnonzero(np.diff(time_s) > MOST_REST_S)
    before, after = far[time_s[far] < load.start_s[0]], far[time_s[far + 1] > load.end_s[-1]]
    first, last = (int(before[-1]) + 1 if len(before) else 0), (int(after[0]) + 1 if len(after) else len(time_s))
    return slice(first, last) if last - first >= MIN_READINGS else slice(0, len(time_s))


def _gaps(time_s: Array, period_s: float) -> str:
    """What the polls leave out, if anything: pauses of many updates, whose power nothing tells."""
    pause = np.diff(time_s)
    pause = pause[pause > GAP_UPDATES * period_s]
    if not len(pause):
        return ""
    return f"{len(pause)} gap(s) in the polls, {pause.sum():.4g} s in all: what was drawn there is not known; cut the recording at them"


def _span(
    parts: list[Deconvolved],
    probability: Array,
    back: Inversion,
    polls: tuple[Array, Array],
    begin: float,
    end: float,
    more_std_j: float = 0.0,
) -> EnergySpan:
    """Energy between two times, for which the parts were worked out; `more_std_j` is an error that they do not hold."""
    energies, stds = np.array([part.energy_j for part in parts]), np.array([part.energy_std_j for part in parts])
    centre = float(probability @ energies)
    std = math.sqrt(float(probability @ (stds**2 + (energies - centre) ** 2)))
    energy, energy_std = back.energy(centre, math.hypot(std, more_std_j), end - begin)
    naive = float(naive_energy(*polls, np.array([begin]), np.array([end]))[0])
    return EnergySpan(start_s=begin, end_s=end, energy_j=energy, energy_std_j=energy_std, naive_energy_j=naive)


def _ends(load: LoadStamps) -> tuple[float, float]:
    """First start and last end of a load [s]."""
    return float(load.start_s[0]), float(load.end_s[-1])


def _usable_load(load: LoadStamps | None, time_s: Array) -> tuple[LoadStamps | None, str]:
    """The executions that the recording holds, and why others, or all, are left out.

    What others made of the board is not known of these: readings of them are neither the load's nor of a board at rest.
    """
    if load is None:
        return None, ""
    inside = (load.start_s >= time_s[0]) & (load.end_s <= time_s[-1]) & (load.end_s - load.start_s >= LEAST_EXECUTION_S)
    count = int(np.count_nonzero(inside))
    if not count:
        return None, "no execution lies wholly within the recording: readings are corrected without the load"
    note = (
        ""
        if count == len(inside)
        else f"{len(inside) - count} of {len(inside)} executions do not lie wholly within the recording and are left out"
    )
    index = np.flatnonzero(inside)
    known = load.part(int(index[0]), int(index[-1]) + 1)
    span = float(known.end_s[-1] - known.start_s[0])
    if span > LONGEST_LOAD_S:
        return (
            None,
            f"the load spans {span:.0f} s, more than {LONGEST_LOAD_S:.0f} s: cut the recording to regress on it; corrected without it",
        )
    return known, note


def _trace_edges(edges: Array) -> Array:
    """The edges, thinned where there are more than a table should hold."""
    step = -(-len(edges) // MOST_TRACE_ROWS)
    return edges[::step]


def _near(edges: Array, load: LoadStamps) -> Array:
    """The edges of a trace at a load and not far from it, thinned: what is modelled of a load needs memory for all of the time."""
    begin, end = _ends(load)
    near = edges[(edges >= begin - MOST_REST_S) & (edges <= end + MOST_REST_S)]
    return _trace_edges(near if len(near) > 1 else edges)


def _execution_document(found: RepeatedEnergy) -> dict[str, Any]:
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


def _profile_document(profile: Profile) -> dict[str, Any]:
    """A profile as plain data."""
    return {
        "executions": profile.executions,
        "duration_s": profile.duration_s,
        "attained_resolution_s": _known(profile.attained_s),
        "place_s": profile.place_s.tolist(),
        "power_w": [_known(value) for value in profile.power_w.tolist()],
        "power_std_w": [_known(value) for value in profile.std_w.tolist()],
        "resolution_s": [_known(value) for value in profile.resolution_s.tolist()],
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
