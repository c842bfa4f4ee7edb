"""Identify a power sensor from one record: readings, with load stamps and a meter's power if available.

The response's parameters θ are unknown, p is known: the clock gives the update times, every response is fitted, the evidence decides.
"""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from collector.devices.possible_power import possible_power
from collector.errors import SensorError
from collector.sensing.board_power import GRID_S, LEAD_S, LoadStamps, Signal, load_signals, meter_signal
from collector.sensing.calibration import NO_METER, Candidate, SensorCalibration
from collector.sensing.clock import UpdateClock, Updates, fit_update_clock
from collector.sensing.decision import LEAD, Decision, decided, explains
from collector.sensing.known_sensor import GAIN_PRIOR_STD, OFFSET_PRIOR_STD_W
from collector.sensing.reference import MIN_SPAN_W, Rise, load_of_meter, rise_of, tie_meter
from collector.sensing.regression import DELAY_S, Fit, Problem
from collector.sensing.response import KERNELS
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

MIN_UPDATES, MOST_UPDATES = 8, 6000
"""Least number of updates for a fit, and the greatest that it uses; more do not change it."""
BEFORE_LOAD_S, AFTER_LOAD_S = 1.0, 0.6
"""Readings count from this long before the load until this long after it [s]: no signal describes the tail of a load."""
SETTLING_S, SETTLING_SHARE = 1.3, 0.12
"""Readings remember power before the meter's first sample for the longest averaging, or this share of the record."""
CLOCKS_STD_S: Final = {"stamps": 6e-4, "tied": 2e-4, "untied": 8e-3}
"""Error of a delay caused by the clocks [s].

"stamps": the launches' uncertainty of when power follows (0.2 to 0.45 ms, rise immediate or in 1.1 ms on published
boards); "untied": the uncertainty of a meter's clock without launches, within the searched delays.
"""
DRIFTED_STD_S: Final = 2.0 * DELAY_S / 12.0**0.5
"""Error of a delay that drifts [s]: a later record may have any delay in the searched range.

Four H200 boards sample power every 20.00 ms and show a sample every 100.02 to 100.03 ms, so that the delay grows by 0.02 to 0.03 ms an
update and is anywhere in 20 ms later; two such delays differ by 8.2 ms (rms).
"""
LEAST_DRIFT_S: Final = 3e-3
"""A delay that changes by less than this within a record counts as constant [s]: wander of a clock by 2 ms, as planted in 150 simulated
sensors, is worth up to 2 ms."""
DRIFT_ROUNDS: Final = 3
"""Fits that approach the drift of a delay; a fourth one changes it by less than its error."""
LATE_SHARE: Final = 0.15
"""Error of a width that was told with delayed parts of a board's power, without a meter (48 simulated sensors)."""
STEADY_SHARE, MIN_STEADY = 0.01, 15
"""Readings that change by less than this share of the step are steady; fewer than this many steady ones give no scatter."""
KEYS_OF_AVERAGING: Final = ("averaging", "window_s", "tau_s", "delay_s", "sampled_fraction")
NO_LOAD: Final = (
    "readings alone do not tell the board's power; give the load's stamps or an external meter's power beside them: a square wave of "
    "{period:.0f} ms (1.27 update periods) for 10 s with --load tells averaging and delay, with --reference the gain too"
)
STAMPS_ALONE: Final = (
    "told from the load's stamps, for boards whose power follows by half a step or more at once (60 to 100 % on published ones): a board "
    "whose whole power follows like this would look the same; an external meter tells"
)
NOT_FOLLOWED: Final = (
    "the reference was not used: readings do not follow its power; see that it measures this board all the time, and is on the readings' "
    "time base"
)
OTHER_POWER: Final = (
    "readings would be {gain:.3g} times the meter's power {offset_w:+.3g} W, as of no published board: let all supply lines of this board, "
    "the slot's too, and nothing else pass the meter"
)
DRIFTS: Final = (
    "changes by {rate:.2g} ms a second, as of a sensor that samples on another clock than its updates: this is the middle of the record, "
    "a later record may have any delay, and the error holds that"
)


@frozen
class SensorRecord:
    """Polls `time_s`, `power_w` (n,) with the load and a meter's samples in the same time, where known."""

    time_s: Array
    power_w: Array
    load: LoadStamps | None = None
    meter_s: Array | None = None
    meter_w: Array | None = None


@frozen
class Identification:
    """A calibration and the decision between responses behind it, None if the record allowed no fit."""

    calibration: SensorCalibration
    decision: Decision | None = None


@frozen
class _Reference:
    """The board's power: a meter's samples, or the load's stamps (`stamped`).

    `tied`: launches tie the meter to the load.  Its samples are `spacing_s` apart.
    """

    meter: Signal | None = None
    load: LoadStamps | None
    stamped: bool
    tied: bool = False
    spacing_s: float = 0.0


def identify_sensor(record: SensorRecord, sensor: SensorCalibration, remarks: dict[str, str] | None = None) -> Identification:
    """The calibration that a record determines; unknown figures are None, with the reason under `notes`, as are `remarks` on the record.

    `sensor` names the board and the field.
    """
    notes = dict(remarks or {})
    record = _possible(record, notes)
    try:
        clock, updates = fit_update_clock(record.time_s, record.power_w)
    except SensorError as error:
        notes |= dict.fromkeys(("update_period_s", *KEYS_OF_AVERAGING, "gain", "offset_w", "rise_time_s", "transient"), str(error))
        return Identification(calibration=replace(sensor, notes=FrozenMapping(notes)))
    if clock.remark:
        notes["update_period_s"] = clock.remark
    reference = _reference(record, notes)
    decision = _averaging(updates, clock, reference, notes)
    if reference.meter is not None and reference.stamped and (decision is None or decision.best.explained <= 0.5):
        return identify_sensor(replace(record, meter_s=None, meter_w=None), sensor, {**(remarks or {}), "gain": NOT_FOLLOWED})
    rise = _rise(updates, reference, decision)
    found = _figures(updates, clock, decision, rise) | _gain(reference, decision, notes)
    found["transient"] = _transient(decision, rise, clock, reference, notes)
    return Identification(calibration=replace(sensor, notes=FrozenMapping(notes), **found), decision=decision)


def _possible(record: SensorRecord, notes: dict[str, str]) -> SensorRecord:
    """The record without readings that no board can draw."""
    sane = possible_power(record.power_w)
    if np.all(sane):
        return record
    none = f"{np.count_nonzero(~sane)} of {len(sane)} readings are no power and were left out"
    notes["readings"] = "; ".join([notes["readings"], none] if "readings" in notes else [none])
    return replace(record, time_s=record.time_s[sane], power_w=record.power_w[sane])


def _reference(record: SensorRecord, notes: dict[str, str]) -> _Reference:
    """Meter and load on one clock; if the meter cannot be used, the reason goes into the notes."""
    load = record.load
    alone = _Reference(load=load, stamped=load is not None)
    if record.meter_s is None or record.meter_w is None:
        notes["gain"] = notes["offset_w"] = notes.get("gain", NO_METER)
        return alone
    good = np.isfinite(record.meter_s) & np.isfinite(record.meter_w)
    meter_s, meter_w = record.meter_s[good], record.meter_w[good]
    try:
        tie = tie_meter(meter_s, meter_w, load) if load is not None and len(meter_s) else None
        if tie is not None and load is not None:
            meter_s = tie.host_s(meter_s)
            kept = meter_s > float(load.start_s[0]) - 5.0
            meter_s, meter_w = meter_s[kept], meter_w[kept]
        power = meter_signal(meter_s, meter_w)
    except SensorError as error:
        notes["gain"] = notes["offset_w"] = f"the reference was not used: {error}"
        return alone
    return replace(
        alone,
        meter=power,
        load=load if load is not None else load_of_meter(power),
        tied=tie is not None,
        spacing_s=float(np.median(np.diff(meter_s))),
    )


def _problem(updates: Updates, reference: _Reference) -> Problem:
    """The updates that meter or stamps explain, and the signals that explain them."""
    time_s, load = updates.time_s, reference.load if reference.stamped else None
    first, last = float(time_s[0]) - 0.1, float(time_s[-1]) + 0.1
    if load is not None:
        first = max(first, float(load.start_s[0]) - BEFORE_LOAD_S, load.known_from_s)
    if reference.meter is not None:
        power = reference.meter
        signals: tuple[Signal, ...] = (power,)
        span = GRID_S * len(power.value) - LEAD_S
        first = max(first, power.start_s + LEAD_S + _settling(updates, power.start_s + LEAD_S, span))
        last = min(last, power.start_s + LEAD_S + span - 0.03)
    else:
        assert load is not None
        last = min(last, float(load.end_s[-1]) + AFTER_LOAD_S, load.known_until_s, first + 240.0)
        signals = load_signals(load, first, last)
    used = np.flatnonzero((time_s > first) & (time_s < last))[:MOST_UPDATES]
    return Problem(time_s=time_s[used], value_w=updates.value[used], signals=signals, metered=reference.meter is not None)


def _settling(updates: Updates, begin_s: float, span_s: float) -> float:
    """Time after a meter's first sample in which readings remember power before it [s]; short if the readings rest."""
    after = (updates.time_s > begin_s) & (updates.time_s < begin_s + 0.5)
    if np.any(after) and np.ptp(updates.value[after]) < 0.02 * np.ptp(updates.value):
        return 0.1
    return min(SETTLING_S, SETTLING_SHARE * span_s)


def _averaging(updates: Updates, clock: UpdateClock, reference: _Reference, notes: dict[str, str]) -> Decision | None:
    """The decision; reasons go into the notes."""
    reason, decision = NO_LOAD.format(period=1.27e3 * clock.period_s), None
    if reference.meter is not None or reference.stamped:
        posed = _problem(updates, reference)
        if len(posed.time_s) < MIN_UPDATES:
            reason = f"only {len(posed.time_s)} updates lie within the {'reference' if reference.meter is not None else 'load'}'s record"
        else:
            decision = _decision(posed, clock, reference)
            reason = decision.reason
    if decision is None or decision.kind == "undetermined":
        notes |= dict.fromkeys(KEYS_OF_AVERAGING, reason)
        return decision
    if reference.meter is None and decision.kind in ("boxcar", "low-pass"):
        notes["averaging"] = STAMPS_ALONE
    if decision.drift:
        notes["delay_s"] = DRIFTS.format(rate=1e3 * decision.drift)
    if decision.kind != "low-pass":
        notes["tau_s"] = f"a time constant belongs to a low-pass; this is {decision.kind}"
    return decision


def _decision(posed: Problem, clock: UpdateClock, reference: _Reference) -> Decision:
    """The decision between the fits of all responses."""
    starts = {kernel: posed.starts(kernel, clock.period_s) for kernel in KERNELS}
    fits = posed.best(starts)
    drift = _drift(posed, max(fits, key=lambda fit: fit.evidence)) if reference.meter is None or reference.tied else 0.0
    if drift:
        posed = posed.drifting(drift)
        fits = posed.best(starts)
    if not posed.metered:  # delayed parts that the readings do not need would take their share of the averaging
        late = replace(posed, late=True)
        others = late.best(starts)
        if max(fit.evidence for fit in others) > max(fit.evidence for fit in fits) + posed.late_cost():
            posed, fits = late, tuple(_with_late(one, one.width_s - plain.width_s) for one, plain in zip(others, fits, strict=True))
    fits = tuple(_with_clock(fit if drift else _with_scatter(fit), clock, reference, DRIFTED_STD_S if drift else 0.0) for fit in fits)
    return replace(decided(posed, fits, clock, reference.load, reference.spacing_s), drift=drift)


def _drift(posed: Problem, constant: Fit) -> float:
    """The drift of the delay [s/s]; 0 if it is small, if a `constant` delay is about as likely, or if the delay would leave the search.

    A sensor that samples on a clock of its own, not on that of the updates, shows samples of growing age.
    """
    rate, fit = 0.0, constant
    for _ in range(DRIFT_ROUNDS):
        rate += posed.drifting(rate).drift(fit)
        if not LEAST_DRIFT_S < abs(rate) * float(np.ptp(posed.time_s)) < 2.0 * DELAY_S:
            return 0.0
        fit = posed.drifting(rate).near(fit)
    return rate if fit.evidence - constant.evidence > LEAD + 0.5 * float(np.log(len(posed.time_s))) else 0.0


def _widened(fit: Fit, width_std_s: float, delay_std_s: float) -> Fit:
    """A fit with further, independent errors of width and delay."""
    return replace(
        fit,
        width_std_s=float(np.hypot(fit.width_std_s, width_std_s)),
        delay_std_s=float(np.hypot(fit.delay_std_s, delay_std_s)),
    )


def _with_scatter(fit: Fit) -> Fit:
    """A fit whose averagings end at times that scatter, as where a drifting delay begins anew: width and delay are no better known."""
    return _widened(fit, fit.jitter_s, DRIFTED_STD_S) if fit.jitter_s > LEAST_DRIFT_S else fit


def _with_late(fit: Fit, away_s: float) -> Fit:
    """A fit with delayed parts whose width without them is `away_s` off: both rise like a low-pass, and the mean lag stays."""
    width_std_s = float(np.hypot(away_s, LATE_SHARE * fit.width_s))
    return _widened(fit, width_std_s, 0.5 * width_std_s)


def _with_clock(fit: Fit, clock: UpdateClock, reference: _Reference, drifted_s: float) -> Fit:
    """A fit whose errors include updates without a grid, the meter's rate and offset, the launch's lag, and a delay that drifts.

    Without a grid an update lies anywhere between two polls: readings look averaged over a poll more, sqrt(W² + poll²) for W.
    """
    load, tie = reference.load, "stamps" if reference.meter is None else "tied" if reference.tied else "untied"
    few = load is not None and load.edges < 8 and not reference.tied
    # Rate error of a meter that no launches tie (a PMD's rate: 2933.2 to 2936.1 ticks per millisecond in seven recordings); a width
    # determined by two edges is known to this share of their distance.
    rate = 5e-4 * float(np.mean(load.length_s)) if few and load is not None else 0.0
    poll = 0.0 if clock.rigid else clock.poll_s
    blur = np.hypot(0.1 * poll, poll**2 / (4.0 * max(fit.width_s, clock.poll_s)))
    return _widened(fit, float(np.hypot(rate, blur)), float(np.hypot(CLOCKS_STD_S[tie], drifted_s)))


def _gain(reference: _Reference, decision: Decision | None, notes: dict[str, str]) -> dict[str, Any]:
    """Gain and offset against the meter, by the likeliest response's fit if that explains the readings."""
    if reference.meter is None:
        return {}
    if decision is None or decision.locked or not explains(decision.best):
        notes["gain"] = notes["offset_w"] = notes["averaging"]
        return {}
    fit = decision.best
    offset_w, gain = map(float, fit.level[:2])
    if gain <= 0.0 or float(np.ptp(fit.predicted)) < MIN_SPAN_W * gain:
        notes["gain"] = notes["offset_w"] = f"the readings do not rise with the meter's power by {MIN_SPAN_W:g} W or more"
        return {}
    if max(abs(gain - 1.0) / GAIN_PRIOR_STD, abs(offset_w) / OFFSET_PRIOR_STD_W) > 4.0:  # published ones: up to 3.2
        notes["gain"] = notes["offset_w"] = OTHER_POWER.format(gain=gain, offset_w=offset_w)
        return {}
    return {
        "gain": gain,
        "gain_std": float(fit.level_std[1]),
        "offset_w": offset_w,
        "offset_std_w": float(fit.level_std[0]),
        "gain_offset_correlation": fit.level_correlation,
    }


def _rise(updates: Updates, reference: _Reference, decision: Decision | None) -> Rise | None:
    """The rise of the readings under a load; None if no response explains them, or the load is locked to the clock."""
    if decision is None or reference.load is None or decision.locked or decision.best.explained <= 0.5:
        return None
    best = decision.best
    posed = _problem(updates, replace(reference, meter=None, stamped=True)).drifting(decision.drift)
    fits = [replace(posed, late=late).at(best) for late in (False, True)]
    level = fits[1 if fits[1].score > fits[0].score + posed.late_cost() else 0].level
    return rise_of(decision.fits, best, level)


def _transient(
    decision: Decision | None, rise: Rise | None, clock: UpdateClock, reference: _Reference, notes: dict[str, str]
) -> str | None:
    """The class of the rise that readings show; None with a note if it is undetermined."""
    if rise is None or decision is None:
        known = notes["averaging"] if decision is None or decision.locked else "no rise of a load is seen in the readings"
        notes |= dict.fromkeys(("rise_time_s", "settle_s", "transient"), known)
        return None
    best = decision.best
    if decision.kind == "trailing-mean":
        return "ramp"
    if decision.kind == "low-pass" and best.width_s > clock.period_s:
        return "logarithmic"
    if reference.meter is not None and rise.late_share > 0.2:
        return "lagged"
    undetermined = decision.kind == "undetermined"
    known_s = clock.period_s if undetermined else 1.2 * best.width_s + best.delay_s + 0.02
    if (undetermined or reference.meter is None) and rise.readings_s > known_s + clock.poll_s:
        notes["transient"] = f"readings rise in {rise.readings_s * 1e3:.3g} ms: board or sensor is late, an external meter tells which"
        return None
    return "instant"


def _figures(updates: Updates, clock: UpdateClock, decision: Decision | None, rise: Rise | None) -> dict[str, Any]:
    """The calibration's figures of clock, averaging and rise."""
    steps = np.diff(np.unique(np.round(updates.value, 4)))
    found: dict[str, Any] = {
        "n_updates": clock.n_updates,
        "update_period_s": clock.period_s,
        "update_period_std_s": clock.period_std_s,
        "card_period_std_s": clock.card_period_std_s,
        "update_jitter_s": clock.jitter_s,
        "resolution_w": float(np.round(steps.min(), 4)) if len(steps) else None,
        "poll_period_s": clock.poll_s,
    }
    if rise is not None:
        found |= {"rise_time_s": rise.readings_s, "settle_s": rise.settle_s + clock.jitter_s + clock.poll_s, "board_rise_s": rise.board_s}
    if decision is None:
        return found
    best = decision.best
    found |= {
        "residual_w": float(np.sqrt(np.mean(best.residual**2))),
        "reading_noise_w": _steady_noise(best),
        "candidates": tuple(_candidate(fit) for fit in decision.fits),
    }
    if decision.kind == "undetermined":
        return found
    return found | {
        "averaging": decision.kind,
        "window_s": best.width_s,
        "window_std_s": 1e-3 if best.kernel == "none" else best.width_std_s,
        "tau_s": 0.5 * best.width_s if decision.kind == "low-pass" else None,
        "delay_s": best.delay_s,
        "delay_std_s": best.delay_std_s,
        "sampled_fraction": min(1.0, best.width_s / clock.period_s),
    }


def _steady_noise(fit: Fit) -> float:
    """Scatter of readings for which neither this update nor the next one sees the load change [W]."""
    steady = np.abs(np.diff(fit.predicted)) < STEADY_SHARE * np.ptp(fit.predicted)
    differences = np.diff(fit.residual)[steady]
    if len(differences) < MIN_STEADY:
        differences = np.diff(fit.residual)
    return float(1.4826 * np.median(np.abs(differences)) / np.sqrt(2.0))


def _candidate(fit: Fit) -> Candidate:
    """A compared response as part of the calibration."""
    return Candidate(
        kernel=fit.kernel,
        window_s=fit.width_s,
        window_std_s=fit.width_std_s if np.isfinite(fit.width_std_s) else None,
        delay_s=fit.delay_s,
        delay_std_s=fit.delay_std_s,
        score=fit.evidence,
        r2=fit.explained,
    )
