"""What one record tells of a power sensor: readings, and load stamps and a meter's power where they are there."""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from collector.devices.possible_power import possible_power
from collector.errors import SensorError
from collector.sensor.averaging import Averaging
from collector.sensor.calibration import NO_METER, SensorCalibration
from collector.sensor.gain import Gain, LevelGain, fit_gain, fit_levels, joint_gain, long_settled
from collector.sensor.kernel_fit import KernelFit
from collector.sensor.load import LAUNCH_RISE_S, LoadStamps
from collector.sensor.meter_noise import MAD_TO_STD
from collector.sensor.rise import AT_ONCE_S, LAGGED_SHARE, Rise, fit_rise
from collector.sensor.sources import PowerSource
from collector.sensor.time_base import (
    UNTIED_STD_S,
    Metered,
    PlacedAveraging,
    TimeBase,
    metered_base,
    placed_averaging,
    stamped_base,
)
from collector.sensor.update_clock import UpdateClock, Updates, fit_update_clock
from estimator.frozen import FrozenMapping
from estimator.quantities import Array

NO_LOAD: Final = "readings alone do not say what the board drew"
NO_LOAD_REMEDY: Final = "give the load's stamps or an external meter's power beside them"
NO_METER_RISE: Final = (
    "without a meter the board's own rise cannot be told from the sensor's: "
    "errors of window and delay hold what another form of it would move"
)
NO_METER_AVERAGING: Final = (
    "told from the load's stamps, for boards of which half a step or more comes at once (60 to 100 % on published ones): "
    "a board whose whole power rises and falls like this would look the same; a smaller part that follows within some ten "
    "milliseconds may look like a longer averaging, which the error of the window holds in 68 of 100 cases; an external meter tells both"
)
FAR_WIDTH: Final = (
    "in 95 of 100 cases within ± {bound:.2g} ms, which is more than two errors: boards of which a part follows a launch late, which load "
    "stamps do not rule out here, are among them; an external meter tells"
)
MOST_STDS: Final = 2.2
"""Where more of its errors are needed for 95 of 100 cases, a width has a note."""
DELAY_FROM_STAMPS: Final = (
    f"; counted from power that follows a launch in {LAUNCH_RISE_S * 1e3:g} ms: "
    "of a board that follows at once, as an A100 does, it is so much larger, which its error holds and a meter would show"
)
DELAY_UNTIED: Final = (
    "; no launches tie the reference's clock to that of the readings: what it is off by is in the delay, "
    "and its error holds as much as would not show itself; "
)
TIED_BY_LOAD: Final = "--load with the load's stamps ties it"
TIED_FASTER: Final = "six launches and more with 8 ms of rest before them tie a reference of 400 samples a second and more"
DELAY_MOVED: Final = "the records were moved onto the readings by what they show: nothing says then how late a reading comes"
SUGGESTED: Final = (
    "a square wave of {period:.0f} ms (1.27 update periods) for 10 s with --load tells averaging and delay, with --reference the gain too"
)
RESOLUTION_DECIMALS: Final = 4
"""NVML reports milliwatts."""
STEADY_SHARE: Final = 0.01
MIN_STEADY: Final = 15
"""Updates count as steady where the expectation moves by less than this share; so many are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorRecord:
    """Polls `time_s`, `power_w` (n,) with the load and a meter's samples in the same time, where known.

    Where nothing ties the meter's clock to the host's `meter_rate_std` is the relative error of its rate, `meter_clock_std_s` what it
    may be off by; `levels` are runs at steady levels beside that load, told by the meter alone.
    """

    time_s: Array
    power_w: Array
    load: LoadStamps | None = None
    meter_s: Array | None = None
    meter_w: Array | None = None
    meter_rate_std: float = 0.0
    meter_clock_std_s: float = UNTIED_STD_S
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
    averaging: Averaging | None


def identify_sensor(record: SensorRecord, name: SensorName, remarks: dict[str, str] | None = None) -> Identification:
    """All that a record tells; what it does not tell is None, with the reason under `notes`.

    `remarks` are notes on the record itself.
    """
    notes = dict(remarks or {})
    sane = possible_power(record.power_w)
    if not np.all(sane):
        none = f"{np.count_nonzero(~sane)} of {len(sane)} readings are no power and were left out"
        notes["readings"] = f"{notes['readings']}; {none}" if "readings" in notes else none
        record = replace(record, time_s=record.time_s[sane], power_w=record.power_w[sane])
    try:
        clock, updates = fit_update_clock(record.time_s, record.power_w)
    except SensorError as error:
        reason = notes.pop("stamps", str(error))  # polls that share stamps look slower than they are
        return Identification(calibration=_unknown(name, reason, notes), clock=None, updates=None, averaging=None)
    if not clock.rigid:
        notes["update_period_s"] = (
            "updates do not keep to a grid; the period is the mean distance of all that were counted, those that showed no change "
            "among them; times within a poll are a guess"
        )
    if clock.remark:
        notes["update_period_s"] = "; ".join(text for text in (notes.get("update_period_s", ""), clock.remark) if text)
    base = _time_base(record, updates, clock, notes)
    placed = _averaging(updates, clock, base, notes)
    averaging = placed.averaging if placed is not None else None
    base = placed.base if placed is not None else base
    meter, load = base.meter, base.load
    gain = _gain(base, updates, averaging, notes)
    rise = fit_rise(averaging.ranked, updates, load, meter) if averaging is not None and load is not None else None
    if rise is None:
        missing = NO_LOAD if load is None else "no rise of a load is seen in the readings"
        notes["rise_time_s"] = notes["transient"] = f"{missing}; {NO_LOAD_REMEDY}" if load is None else missing
    elif averaging is not None and averaging.locked:
        notes["rise_time_s"] = notes["settle_s"] = notes["transient"] = notes["averaging"]
    elif averaging is not None and (unknown := _open_rise(averaging, rise, clock, meter)):
        notes["transient"] = unknown
    calibration = _calibration(name, clock, updates, averaging, gain, rise, notes)
    if placed is not None and placed.moved:
        calibration = calibration.without_delay()
    return Identification(calibration=calibration, clock=clock, updates=updates, averaging=averaging)


def _time_base(record: SensorRecord, updates: Updates, clock: UpdateClock, notes: dict[str, str]) -> TimeBase:
    """Meter and load on the readings' clock; where the meter is none, the reason goes into the notes."""
    reason = NO_METER
    if record.meter_s is not None and record.meter_w is not None:
        try:
            meter = Metered(
                time_s=record.meter_s, power_w=record.meter_w, rate_std=record.meter_rate_std, clock_std_s=record.meter_clock_std_s
            )
            return metered_base(meter, record.load, record.levels, updates, clock, notes)
        except SensorError as error:
            reason = str(error)
            notes["time_base"] = f"the reference was not used: {reason}"
    notes["gain"] = notes["offset_w"] = reason
    return stamped_base(record.load)


def _averaging(updates: Updates, clock: UpdateClock, base: TimeBase, notes: dict[str, str]) -> PlacedAveraging | None:
    """The decision, from the meter where it is there, else from the stamps; reasons go into the notes."""
    placed, reason = None, f"{NO_LOAD}: {SUGGESTED.format(period=1.27e3 * clock.period_s)}"
    if base.history is not None:
        try:
            placed = placed_averaging(base, updates, clock, notes)
        except SensorError as error:
            reason = str(error)
    found = placed.averaging if placed is not None else None
    if placed is not None and found is not None and found.kind != "undetermined":
        notes["delay_s"] = _delay_note(placed, notes)
        if found.source == "load":
            notes["board_rise_s"] = NO_METER_RISE
        if found.source == "load" and found.kind in ("boxcar", "low-pass"):
            notes["averaging"] = NO_METER_AVERAGING
            if found.best.width_95_s > MOST_STDS * found.best.width_std_s:
                notes["window_s"] = FAR_WIDTH.format(bound=1e3 * found.best.width_95_s)
        return placed
    if found is not None:
        reason = f"{found.reason}; {found.remedy}; likeliest so far: {_described(found.best)}"
    for key in ("averaging", "window_s", "tau_s", "delay_s", "sampled_fraction"):
        notes[key] = reason
    return placed


def _delay_note(placed: PlacedAveraging, notes: dict[str, str]) -> str:
    """What is to be said of a delay."""
    if placed.moved:
        return DELAY_MOVED
    early = "includes how early or late the host stamps a reading"
    if placed.averaging.source == "load":
        return early + DELAY_FROM_STAMPS
    if "reference_time" in notes:
        return early
    return early + DELAY_UNTIED + (TIED_FASTER if placed.base.stamped else TIED_BY_LOAD)


def _described(fit: KernelFit) -> str:
    if fit.kernel == "none":
        return "no averaging"
    return f"{fit.kernel}, {'2τ' if fit.kernel == 'low-pass' else 'width'} {fit.width_s * 1e3:.1f} ms"


def _gain(base: TimeBase, updates: Updates, averaging: Averaging | None, notes: dict[str, str]) -> Gain | None:
    """Gain and offset against the meter: in the averaging's own fit where a kernel is claimed, else where power is steady."""
    meter = base.meter
    if meter is None or averaging is None or averaging.gain_from == "none":
        if meter is not None:
            notes.setdefault("gain", notes.get("averaging", ""))
            notes.setdefault("offset_w", notes.get("averaging", ""))
        return None
    try:
        if averaging.source == "meter" and averaging.kind not in ("undetermined", "trailing-mean"):
            gain = joint_gain(averaging.best)
        else:
            used = long_settled(updates, meter) if averaging.gain_from == "settled" else updates
            gain = fit_gain(used, averaging.best, meter)
    except SensorError as error:
        unseen = averaging.gain_from == "settled"
        reason = f"{notes['averaging']}; no power stayed long enough to tell a gain all the same" if unseen else str(error)
        notes["gain"] = notes["offset_w"] = reason
        return None
    steady = base.levels or (base.load if base.stamped else None)
    levels: LevelGain | None = fit_levels(updates, averaging.best, meter, steady) if steady is not None else None
    if levels is not None:
        notes["gain_levels"] = levels.remark(gain)
    return gain


def _unknown(name: SensorName, reason: str, notes: dict[str, str]) -> SensorCalibration:
    """A calibration that knows nothing."""
    for key in ("update_period_s", "averaging", "window_s", "delay_s", "gain", "offset_w", "rise_time_s", "transient", "sampled_fraction"):
        notes[key] = reason
    return SensorCalibration(
        gpu_uuid=name.gpu_uuid,
        driver=name.driver,
        sensor=name.sensor,
        field=name.field,
        averaging="undetermined",
        n_updates=0,
        notes=FrozenMapping(notes),
    )


def _calibration(
    name: SensorName,
    clock: UpdateClock,
    updates: Updates,
    averaging: Averaging | None,
    gain: Gain | None,
    rise: Rise | None,
    notes: dict[str, str],
) -> SensorCalibration:
    """Everything that was found, as one value."""
    kind = averaging.kind if averaging is not None else "undetermined"
    best = averaging.best if averaging is not None and kind != "undetermined" else None
    shown = rise if averaging is None or not averaging.locked else None
    if kind not in ("low-pass", "undetermined"):
        notes["tau_s"] = f"a time constant belongs to a low-pass; this is {kind}"
    return SensorCalibration(
        gpu_uuid=name.gpu_uuid,
        driver=name.driver,
        sensor=name.sensor,
        field=name.field,
        averaging=kind,
        n_updates=clock.n_updates,
        update_period_s=clock.period_s,
        update_period_std_s=clock.period_std_s,
        card_period_68_s=clock.card_period_68_s,
        card_period_95_s=clock.card_period_95_s,
        update_jitter_s=clock.jitter_s,
        window_s=best.width_s if best else None,
        window_std_s=best.width_std_s if best else None,
        tau_s=0.5 * best.width_s if best and kind == "low-pass" else None,
        delay_s=best.delay_s if best else None,
        delay_std_s=best.delay_std_s if best else None,
        rise_time_s=shown.readings_s if shown else None,
        settle_s=shown.settle_s + clock.jitter_s + clock.poll_s if shown else None,
        board_rise_s=rise.board_s if rise else None,
        sensor_rise_s=rise.sensor_s if rise and best else None,
        transient=None if "transient" in notes else _transient(kind, best, rise, clock.period_s),
        gain=gain.gain if gain else None,
        gain_std=gain.gain_std if gain else None,
        offset_w=gain.offset_w if gain else None,
        offset_std_w=gain.offset_std_w if gain else None,
        gain_offset_correlation=gain.correlation if gain else None,
        sampled_fraction=_sampled(best.width_s / clock.period_s, clock) if best else None,
        residual_w=float(np.sqrt(np.mean(averaging.best.residual_w**2))) if averaging else None,
        reading_noise_w=_steady_noise(averaging.best) if averaging else None,
        resolution_w=_resolution(updates.value),
        poll_period_s=clock.poll_s,
        candidates=tuple(_candidate(fit) for fit in averaging.fits) if averaging else (),
        notes=FrozenMapping(notes),
    )


def _sampled(width_periods: float, clock: UpdateClock) -> float:
    """Share of the time that readings see, by averagings of so many update periods."""
    return min(1.0, width_periods) if clock.skips is None else clock.skips.seen_share(width_periods)


def _open_rise(averaging: Averaging, rise: Rise, clock: UpdateClock, meter: PowerSource | None) -> str:
    """Why the class of a rise cannot be told; "" where it can: late power is the board's or the sensor's, and only one of them is known."""
    if meter is not None and rise.late_share > LAGGED_SHARE:
        return ""
    if averaging.kind == "undetermined":
        known_s, by = clock.period_s, "an update"
    elif meter is None and _transient(averaging.kind, averaging.best, rise, clock.period_s) == "instant":
        known_s, by = rise.sensor_s + AT_ONCE_S, "the sensor's averaging"
    else:
        return ""
    if rise.readings_s <= known_s + clock.poll_s:
        return ""
    late = f"readings rise in {rise.readings_s * 1e3:.3g} ms, later than {by} explains"
    if averaging.kind == "undetermined":
        return f"{late}: a long averaging or a slow board, and {averaging.reason}"
    return f"{late}: without a meter the board's own rise and the sensor's cannot be told apart"


def _transient(kind: str, best: KernelFit | None, rise: Rise | None, period_s: float) -> str | None:
    """The class of the rise that readings show."""
    if rise is None:
        return None
    if kind == "trailing-mean":
        return "ramp"
    if kind == "low-pass" and best is not None and best.width_s > period_s:
        return "logarithmic"
    return "lagged" if rise.late_share > LAGGED_SHARE else "instant"


def _steady_noise(fit: KernelFit) -> float:
    """Scatter of readings where neither this update nor the next one sees the load change [W]."""
    steady = np.abs(np.diff(fit.predicted_w)) < STEADY_SHARE * np.ptp(fit.predicted_w)
    differences = np.diff(fit.residual_w)[steady]
    if len(differences) < MIN_STEADY:
        differences = np.diff(fit.residual_w)
    return float(MAD_TO_STD * np.median(np.abs(differences)) / np.sqrt(2.0))


def _resolution(value: Array) -> float | None:
    """Smallest step between readings [W]; None where there is only one value."""
    steps = np.diff(np.unique(np.round(value, RESOLUTION_DECIMALS)))
    return float(np.round(steps.min(), RESOLUTION_DECIMALS)) if len(steps) else None


def _candidate(fit: KernelFit) -> FrozenMapping[Any]:
    return FrozenMapping(
        {
            "kernel": fit.kernel,
            "window_s": fit.width_s,
            "window_std_s": fit.width_std_s if np.isfinite(fit.width_std_s) else None,
            "delay_s": fit.delay_s,
            "delay_std_s": fit.delay_std_s if np.isfinite(fit.delay_std_s) else None,
            "score": fit.score,
            "r2": fit.r2,
        }
    )
