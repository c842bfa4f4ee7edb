"""What one record tells of a power sensor: readings, and load stamps and a meter's power where they are there.

The kernel's parameters θ are unknown, p is known: the clock gives the update times, every kernel is fitted, the evidence decides.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from collector.devices.possible_power import possible_power
from collector.errors import SensorError
from collector.sensing.board_power import GRID_S, LoadStamps, Signal, load_signals, meter_signal
from collector.sensing.calibration import NO_METER, SensorCalibration
from collector.sensing.clock import UpdateClock, Updates, fit_update_clock
from collector.sensing.decision import EXPLAINED, Circumstances, Decision, decided
from collector.sensing.reference import Gain, Rise, joint_gain, load_of_meter, meter_shift, rise_of, steady_gain, tie_meter
from collector.sensing.regression import DELAY_S, Fit, Problem, plain_width
from collector.sensing.response import KERNELS
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array

MIN_UPDATES: Final = 8
MOST_UPDATES: Final = 6000
"""Updates that a fit looks at; more tell no more."""
BEFORE_LOAD_S: Final = 1.0
AFTER_LOAD_S: Final = 0.6
"""Readings count from so long before the load until so long after it: then the tail of a load is no column's."""
SETTLING_S, SETTLING_SHARE = 1.3, 0.12
"""What a sensor remembers of the time before the meter's first sample: the longest averaging, or this share of its record;"""
REST_S, REST_SHARE = 0.5, 0.02
"""nothing else where readings stay within this share of their span for so long after that sample."""
BEFORE_END_S: Final = 0.03
UNTIED_STD_S: Final = 8e-3
"""What a meter's clock leaves open of a delay where no launches tie it: even within the delays that are searched."""
TIED_STD_S: Final = 2e-4
STAMPED_STD_S: Final = 6e-4
"""How well launches tell when power follows: lag 0.2 to 0.45 ms, rise at once or in 1.1 ms (published boards)."""
FREE_CLOCK_POLLS: Final = 0.4
"""Error of widths and delays on a clock without a grid, in polls."""
CLOCK_RATE: Final = 5e-4
"""Rate error of a meter that no launches tie; a width that two edges tell is known to this share of their distance."""
TRAILING_WIDTHS_S: Final = np.arange(0.8, 1.305, 0.005)
TRAILING_DELAYS_S: Final = np.arange(-8e-3, 8.1e-3, 4e-3)
TRAILING_STD_S: Final = 0.02
"""A mean over a second comes in uneven parts of a tenth: its width by plain least squares, to a fifth of a part."""
STEADY_SHARE, MIN_STEADY = 0.01, 15
RESOLUTION_DECIMALS: Final = 4
LAGGED_SHARE: Final = 0.2
KEYS_OF_AVERAGING: Final = ("averaging", "window_s", "tau_s", "delay_s", "sampled_fraction")
NO_LOAD: Final = "readings alone do not say what the board drew; give the load's stamps or an external meter's power beside them: "
SUGGESTED: Final = (
    "a square wave of {period:.0f} ms (1.27 update periods) for 10 s with --load tells averaging and delay, with --reference the gain too"
)
DELAY_MOVED: Final = "the reference was moved onto the readings by what both show: nothing says then how late a reading comes"
SHIFTED_S: Final = 0.03
"""A smaller shift is a delay."""
WELL_EXPLAINED: Final = 0.98
"""Where a meter explains less, its stamps may be another clock's."""
NO_METER_RISE: Final = (
    "without a meter the board's own rise cannot be told from the sensor's: errors of window and delay hold other forms of it"
)
NO_METER_AVERAGING: Final = (
    "told from the load's stamps, for boards of which half a step or more comes at once (60 to 100 % on published ones): a board whose "
    "whole power follows like this would look the same; an external meter tells"
)
EARLY: Final = "includes how early or late the host stamps a reading"
UNTIED: Final = "; no launches tie the reference's clock to that of the readings: its error holds that; --load ties it"
FREE_CLOCK: Final = "updates do not keep to a grid; the period is their mean distance, and times within a poll are a guess"


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorRecord:
    """Polls `time_s`, `power_w` (n,) with the load and a meter's samples in the same time, where known.

    `meter_rate_std` is the relative error of the meter's rate where nothing ties it; `levels` are runs at steady levels of which the
    meter alone tells the power.
    """

    time_s: Array
    power_w: Array
    load: LoadStamps | None = None
    meter_s: Array | None = None
    meter_w: Array | None = None
    meter_rate_std: float = 0.0
    levels: LoadStamps | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorName:
    """Which sensor: board, driver, source and field; "" where not known."""

    gpu_uuid: str
    driver: str
    sensor: str
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identification:
    """A calibration and what led to it; None for steps that were not reached."""

    calibration: SensorCalibration
    clock: UpdateClock | None
    updates: Updates | None
    decision: Decision | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """What the board drew: a meter's power, or the load's stamps.

    `ties` launches tie the meter to the load; `noise_w_s` is its noise, as that of a mean over 1 s [W √s].
    """

    meter: Signal | None
    load: LoadStamps | None
    stamped: bool
    ties: int
    spacing_s: float
    rate_std: float
    noise_w_s: float = 0.0


def identify_sensor(record: SensorRecord, name: SensorName, remarks: dict[str, str] | None = None) -> Identification:
    """All that a record tells; what it does not tell is None, with the reason under `notes`.  `remarks` are notes on the record."""
    notes = dict(remarks or {})
    record = _possible(record, notes)
    try:
        clock, updates = fit_update_clock(record.time_s, record.power_w)
    except SensorError as error:
        notes |= dict.fromkeys(("update_period_s", *KEYS_OF_AVERAGING, "gain", "offset_w", "rise_time_s", "transient"), str(error))
        return Identification(calibration=_calibration(name, notes), clock=None, updates=None, decision=None)
    if remark := "; ".join(text for text in (FREE_CLOCK if not clock.rigid else "", clock.remark) if text):
        notes["update_period_s"] = remark
    reference = _reference(record, notes)
    decision = _averaging(updates, clock, reference, notes)
    if reference.meter is not None and not reference.stamped and decision is not None and decision.best.explained < WELL_EXPLAINED:
        moved = _moved(record, name, remarks, meter_shift(updates, reference.meter, clock.period_s))
        if moved is not None and moved.decision is not None and moved.decision.best.explained > 0.5 * (1.0 + decision.best.explained):
            return moved
    gain = _gain(updates, reference, decision, notes)
    rise = None
    if decision is not None and reference.load is not None and decision.best.explained > 0.5 and not decision.locked:
        fits = (decision.best, *(fit for fit in decision.fits if fit is not decision.best))
        posed = decision.problem
        if posed.metered:
            posed = _problem(updates, replace(reference, meter=None, stamped=True))
            prompt, best = replace(posed, late=False), decision.best
            late, without = (one.at(best.kernel, best.width_s, best.delay_s).score for one in (posed, prompt))
            if late - without < posed.late_cost():
                posed = prompt
        rise = rise_of(fits, posed, reference.meter, reference.load)
    transient = _transient(decision, rise, clock, reference, notes)
    found = _figures(updates, clock, reference, decision, rise) | {"transient": transient}
    if gain is not None:
        found |= {
            "gain": gain.gain,
            "gain_std": gain.gain_std,
            "offset_w": gain.offset_w,
            "offset_std_w": gain.offset_std_w,
            "gain_offset_correlation": gain.correlation,
        }
    return Identification(calibration=_calibration(name, notes, **found), clock=clock, updates=updates, decision=decision)


def _moved(record: SensorRecord, name: SensorName, remarks: dict[str, str] | None, shift_s: float) -> Identification | None:
    """The identification with the reference moved onto the readings: nothing says then how late a reading comes.  None without need."""
    if record.meter_s is None or abs(shift_s) < SHIFTED_S:
        return None
    for _ in range(3):
        found = identify_sensor(replace(record, meter_s=record.meter_s + shift_s), name, remarks)
        if found.decision is None or abs(found.decision.best.delay_s) < 0.5 * DELAY_S:
            break
        shift_s += found.decision.best.delay_s
    calibration = found.calibration.without_delay()
    text = f"the reference's stamps do not fit the readings; moved by {shift_s:+.4g} s they do; moved there"
    notes = FrozenMapping({**calibration.notes, "time_base": text, "delay_s": DELAY_MOVED})
    return replace(found, calibration=replace(calibration, notes=notes))


def _possible(record: SensorRecord, notes: dict[str, str]) -> SensorRecord:
    """The record without readings that no board draws."""
    sane = possible_power(record.power_w)
    if np.all(sane):
        return record
    none = f"{np.count_nonzero(~sane)} of {len(sane)} readings are no power and were left out"
    notes["readings"] = f"{notes['readings']}; {none}" if "readings" in notes else none
    return replace(record, time_s=record.time_s[sane], power_w=record.power_w[sane])


def _reference(record: SensorRecord, notes: dict[str, str]) -> _Reference:
    """Meter and load on one clock; where the meter is none, the reason goes into the notes."""
    none = _Reference(meter=None, load=record.load, stamped=record.load is not None, ties=0, spacing_s=0.0, rate_std=0.0)
    reason = NO_METER
    if record.meter_s is not None and record.meter_w is not None:
        good = np.isfinite(record.meter_s) & np.isfinite(record.meter_w)
        meter_s, meter_w = record.meter_s[good], record.meter_w[good]
        try:
            meter_signal(meter_s, meter_w)
            tie = tie_meter(meter_s, meter_w, record.load) if record.load is not None else None
            if tie is not None and record.load is not None:
                notes["reference_time"] = (
                    f"meter's stamps moved by {-tie.lag_s * 1e3:+.2f} ms, its rate is off by {tie.rate * 1e6:+.0f} ± "
                    f"{tie.rate_std * 1e6:.0f} ppm: {tie.launches} launches of the load show in its power"
                )
                meter_s = tie.host_s(meter_s)
                kept = meter_s > float(record.load.start_s[0]) - 5.0
                meter_s, meter_w = meter_s[kept], meter_w[kept]
            power = meter_signal(meter_s, meter_w)
            load = record.load if record.load is not None else load_of_meter(power)
            spacing = float(np.median(np.diff(meter_s)))
            rate = 0.0 if tie is not None else record.meter_rate_std
            return _Reference(
                meter=power,
                load=load,
                stamped=record.load is not None,
                ties=tie.launches if tie is not None else 0,
                spacing_s=spacing,
                rate_std=rate,
                noise_w_s=float(1.4826 * np.median(np.abs(np.diff(meter_w))) / np.sqrt(2.0) * np.sqrt(spacing)),
            )
        except SensorError as error:
            reason = str(error)
            notes["time_base"] = f"the reference was not used: {reason}"
    notes["gain"] = notes["offset_w"] = reason
    return none


def _problem(updates: Updates, reference: _Reference) -> Problem:
    """The updates that meter or stamps explain, and the signals that explain them."""
    time_s, load = updates.time_s, reference.load if reference.stamped else None
    first, last = float(time_s[0]) - 0.1, float(time_s[-1]) + 0.1
    if load is not None:
        first = max(first, float(load.start_s[0]) - BEFORE_LOAD_S, load.known_from_s)
    if reference.meter is not None:
        power = reference.meter
        signals: tuple[Signal, ...] = (power,)
        cells = len(power.value) - int(3.0 / GRID_S)
        end = power.start_s + GRID_S * len(power.value)
        begin = end - GRID_S * cells
        first = max(first, begin + _settling(updates, begin, GRID_S * cells))
        last = min(last, end - BEFORE_END_S)
    else:
        assert load is not None
        last = min(last, float(load.end_s[-1]) + AFTER_LOAD_S, load.known_until_s, first + 240.0)
        signals = load_signals(load, first, last)
    used = np.flatnonzero((time_s > first) & (time_s < last))[:MOST_UPDATES]
    return Problem(time_s=time_s[used], value_w=updates.value[used], signals=signals, metered=reference.meter is not None)


def _settling(updates: Updates, begin_s: float, span_s: float) -> float:
    """Time after a meter's first sample in which readings remember what it did not see [s]."""
    after = updates.time_s > begin_s
    if not np.any(after):
        return 0.0
    value = updates.value[after]
    moved = np.flatnonzero(np.abs(value - value[0]) > REST_SHARE * float(np.ptp(value)))
    rest = (float(updates.time_s[after][moved[0]]) if len(moved) else begin_s + span_s) - begin_s
    return 0.1 if rest > REST_S else min(SETTLING_S, SETTLING_SHARE * span_s)


def _averaging(updates: Updates, clock: UpdateClock, reference: _Reference, notes: dict[str, str]) -> Decision | None:
    """The decision; reasons go into the notes."""
    reason = NO_LOAD + SUGGESTED.format(period=1.27e3 * clock.period_s)
    decision = None
    if reference.meter is not None or reference.stamped:
        posed = _problem(updates, reference)
        if len(posed.time_s) < MIN_UPDATES:
            reason = f"only {len(posed.time_s)} updates lie within the {'reference' if reference.meter is not None else 'load'}'s record"
        else:
            fits = [posed.best(kernel, clock.period_s) for kernel in KERNELS]
            likeliest = max(fits, key=lambda fit: fit.evidence)
            if reference.meter is None:  # late parts that the readings do not need take their share of the averaging
                prompt = replace(posed, late=False)
                others = [prompt.best(kernel, clock.period_s) for kernel in KERNELS]
                best = max(others, key=lambda fit: fit.evidence)
                if likeliest.evidence - best.evidence < posed.late_cost():
                    posed, fits, likeliest = prompt, others, best
            fits = [posed.with_profile(fit) if fit is likeliest else fit for fit in fits]
            around = Circumstances(
                clock=clock, load=reference.load, meter_spacing_s=reference.spacing_s, meter_noise_w_s=reference.noise_w_s
            )
            decision = decided(posed, tuple(_with_clock(fit, clock, reference) for fit in fits), around)
            if decision.kind == "trailing-mean":
                best = plain_width(posed, decision.best, TRAILING_WIDTHS_S, TRAILING_DELAYS_S)
                decision = replace(decision, best=replace(best, width_std_s=float(np.hypot(best.width_std_s, TRAILING_STD_S))))
    if decision is not None and decision.kind != "undetermined":
        stamped = reference.meter is None
        notes["delay_s"] = EARLY if stamped or reference.ties else EARLY + UNTIED
        if stamped:
            notes["board_rise_s"] = NO_METER_RISE
        if stamped and decision.kind in ("boxcar", "low-pass"):
            notes["averaging"] = NO_METER_AVERAGING
        if decision.kind != "low-pass":
            notes["tau_s"] = f"a time constant belongs to a low-pass; this is {decision.kind}"
        return decision
    if decision is not None:
        reason = f"{decision.reason}; {decision.remedy}; likeliest so far: {_described(decision.best)}"
    notes |= dict.fromkeys(KEYS_OF_AVERAGING, reason)
    return decision


def _with_clock(fit: Fit, clock: UpdateClock, reference: _Reference) -> Fit:
    """A fit whose errors hold what the clocks leave open: updates within a poll, the meter's rate and offset, the launch's lag."""
    polls = 0.0 if clock.rigid else FREE_CLOCK_POLLS * clock.poll_s
    tie = STAMPED_STD_S if reference.meter is None else TIED_STD_S if reference.ties else UNTIED_STD_S
    few = reference.load is not None and reference.load.edges < 8
    rate = 0.0
    if few and reference.load is not None and not reference.ties:
        rate = max(CLOCK_RATE, reference.rate_std) * float(np.mean(reference.load.length_s))
    return replace(
        fit,
        width_std_s=float(np.sqrt(fit.width_std_s**2 + polls**2 + rate**2)),
        delay_std_s=float(np.sqrt(fit.delay_std_s**2 + polls**2 + tie**2)),
    )


def _described(fit: Fit) -> str:
    """A fit in words."""
    if fit.kernel == "none":
        return "no averaging"
    return f"{fit.kernel}, {'2τ' if fit.kernel == 'low-pass' else 'width'} {fit.width_s * 1e3:.1f} ms"


def _gain(updates: Updates, reference: _Reference, decision: Decision | None, notes: dict[str, str]) -> Gain | None:
    """Gain and offset against the meter: of the likeliest kernel's fit where that explains the readings, else where power was steady."""
    if reference.meter is None:
        return None
    if decision is None:
        notes.setdefault("gain", notes["averaging"])
        notes.setdefault("offset_w", notes["averaging"])
        return None
    try:
        if decision.kind == "trailing-mean" or decision.locked or decision.best.explained < EXPLAINED:
            return steady_gain(updates, reference.meter)
        return joint_gain(decision.best)
    except SensorError as error:
        if decision.kind == "trailing-mean" and decision.best.level[1] > 0.0:
            return joint_gain(decision.best)
        notes["gain"] = notes["offset_w"] = "; ".join(filter(None, (notes.get("averaging"), str(error))))
        return None


def _transient(
    decision: Decision | None, rise: Rise | None, clock: UpdateClock, reference: _Reference, notes: dict[str, str]
) -> str | None:
    """The class of the rise that readings show; None with a note where it cannot be told."""
    if rise is None or decision is None:
        known = notes["averaging"] if decision is None or decision.locked else "no rise of a load is seen in the readings"
        notes |= dict.fromkeys(("rise_time_s", "settle_s", "transient"), known)
        return None
    if decision.kind == "trailing-mean":
        return "ramp"
    if decision.kind == "low-pass" and decision.best.width_s > clock.period_s:
        return "logarithmic"
    if reference.meter is not None and rise.late_share > LAGGED_SHARE:
        return "lagged"
    undetermined = decision.kind == "undetermined"
    by, known_s = ("an update", clock.period_s) if undetermined else ("the sensor's averaging", rise.sensor_s + 0.02)
    if (undetermined or reference.meter is None) and rise.readings_s > known_s + clock.poll_s:
        what = decision.reason if undetermined else "without a meter the board's own rise and the sensor's cannot be told apart"
        notes["transient"] = f"readings rise in {rise.readings_s * 1e3:.3g} ms, later than {by} explains: {what}"
        return None
    return "instant"


def _figures(updates: Updates, clock: UpdateClock, reference: _Reference, decision: Decision | None, rise: Rise | None) -> dict[str, Any]:
    """The calibration's figures of clock, averaging and rise."""
    steps = np.diff(np.unique(np.round(updates.value, RESOLUTION_DECIMALS)))
    found: dict[str, Any] = {
        "n_updates": clock.n_updates,
        "update_period_s": clock.period_s,
        "update_period_std_s": clock.period_std_s,
        "card_period_68_s": clock.card_period_68_s,
        "card_period_95_s": clock.card_period_95_s,
        "update_jitter_s": clock.jitter_s,
        "resolution_w": float(np.round(steps.min(), RESOLUTION_DECIMALS)) if len(steps) else None,
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
    point = best.kernel == "none"
    return found | {
        "averaging": decision.kind,
        "window_s": best.width_s,
        "window_std_s": 1e-3 if point else best.width_std_s,
        "tau_s": 0.5 * best.width_s if decision.kind == "low-pass" else None,
        "delay_s": best.delay_s,
        "delay_std_s": best.delay_std_s,
        "sensor_rise_s": rise.sensor_s if rise is not None else None,
        "sampled_fraction": min(1.0, best.width_s / clock.period_s),
    }


def _steady_noise(fit: Fit) -> float:
    """Scatter of readings where neither this update nor the next one sees the load change [W]."""
    steady = np.abs(np.diff(fit.predicted)) < STEADY_SHARE * np.ptp(fit.predicted)
    differences = np.diff(fit.residual)[steady]
    if len(differences) < MIN_STEADY:
        differences = np.diff(fit.residual)
    return float(1.4826 * np.median(np.abs(differences)) / np.sqrt(2.0))


def _candidate(fit: Fit) -> FrozenMapping[Any]:
    """A compared kernel as plain data."""
    return FrozenMapping(
        {
            "kernel": fit.kernel,
            "window_s": fit.width_s,
            "window_std_s": fit.width_std_s if np.isfinite(fit.width_std_s) else None,
            "delay_s": fit.delay_s,
            "delay_std_s": fit.delay_std_s if np.isfinite(fit.delay_std_s) else None,
            "score": fit.evidence,
            "r2": fit.explained,
        }
    )


def _calibration(name: SensorName, notes: dict[str, str], **found: Any) -> SensorCalibration:
    """The figures found as one value; without any, one that knows nothing."""
    known: dict[str, Any] = {"averaging": "undetermined", "n_updates": 0} | found
    return SensorCalibration(
        gpu_uuid=name.gpu_uuid, driver=name.driver, sensor=name.sensor, field=name.field, notes=FrozenMapping(notes), **known
    )
