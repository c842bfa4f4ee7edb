"""The power profile within one execution, finer than the sensor's updates.

Executions repeat, updates fall on ever other places of them: folded by place, the readings are a dense record of
the profile as the sensor averages it, and the averaging is known.  What comes out carries its error and the resolution that was
attained place by place; places that no update saw are undetermined.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.devices.possible_power import LEAST_POWER_W, MOST_POWER_W
from collector.errors import SensorError
from collector.sensing.board_power import LAUNCH_RISE_S, LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.executions import FitSettings, fit_executions
from collector.sensing.known_sensor import NO_GAIN, inversion, possible_responses
from collector.sensing.repeated import response_probabilities
from collector.sensing.updates import BoardUpdates
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array

MOST_BINS: Final = 200
FEWEST_BINS: Final = 12
BINS_PER_WINDOW: Final = 5.0
READINGS_PER_BIN: Final = 1.0
"""A profile is divided into parts of a fifth of the window, but into no more parts than there are readings, and into twelve at least:
chosen on simulated boards, of which one or another has errors that do not hold with eight and with sixteen."""
UNSEEN_SHARE: Final = 0.8
UNSEEN_BINS: Final = 4.0
"""A place is undetermined where its error is more than this share of the profile's own size and its value is smeared over
more than so many parts."""
SMEAR_SHARE: Final = 0.02
"""Executions differ in length and jumps smear over parts: added to the errors, as a share of the mean (simulated sensors)."""
IMPOSSIBLE_STD: Final = 3.0
"""A place is impossible where no board draws what lies within so many standard errors of it."""
MIN_EXECUTIONS: Final = 4
LONGEST_FOLD_S: Final = 200.0
"""Executions of so long a span are folded, the first ones of a longer recording; bounds time and memory."""
LEAST_MEMBERS: Final = 8

REST_SHARE: Final = 0.25
LEAST_REST_S: Final = 1.0
"""Readings within this share of their span of the first one, or the last, are a rest before or after a load; shorter rests stay in."""

HARMONICS: Final = 3
GRID_PER_PEAK: Final = 6.0
LEAST_CYCLES: Final = 6.0
NYQUIST_SHARE: Final = 0.45
"""Harmonics above this share of the update rate cannot be told from slower ones."""
LEAST_R2: Final = 0.5
REFINEMENTS: Final = 3
LONGEST_SEARCH_S: Final = 1000.0
"""The search for a period grows with the square of the recording: some seconds for so much."""
MOST_PERIODS: Final = 50_000
MOST_HARMONICS: Final = 12
READINGS_PER_HARMONIC: Final = 10
LEAST_FOLD_R2: Final = 0.1
"""Share of the readings' variance that a period must explain to be folded by; chance alone explains 2 / READINGS_PER_HARMONIC at most."""
NOISE_FACTOR: Final = 2.0
"""Readings that scatter by less than so many times their noise show no period, whichever it is."""
UPDATE_RATES: Final = 2
"""Aliases are named up to so many updates' rates: shorter periods are below any update's time."""
LEAST_TURNS: Final = 2.0
"""Updates move through a period that often, or each place was seen once and any drift would look like a profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Power by place in an execution, gain and offset taken out.

    `place_s` (n,) is the time since the stamp of the execution's start, the first place half a place after the power has followed it;
    `power_w` ± `std_w` is the power there (nan where undetermined),
    `resolution_s` the time that each value is smeared over (inf where nothing was seen).
    `duration_s` is the mean length, over `executions`; `attained_s` the median resolution, nan where the whole is undetermined.
    """

    place_s: Array
    power_w: Array
    std_w: Array
    resolution_s: Array
    duration_s: float
    executions: int
    attained_s: float
    notes: Mapping[str, str]


def folded(
    updates: BoardUpdates, load: LoadStamps | None, calibration: SensorCalibration, fold: float | str | None, begin: float, end: float
) -> Profile | None:
    """The profile within an execution that `fold` asks for: by the load's stamps, or a period found ("auto"), or a period [s]."""
    if fold is None:
        return None
    if load is None:
        updates, rests = without_rests(updates)
        begin, end = float(updates.time_s[0]), float(updates.time_s[-1])
    if isinstance(fold, str):
        stamps = load if load is not None else periodic_load(find_period(updates), begin, end)
    else:
        stamps = periodic_load(fold, *((float(load.start_s[0]), float(load.end_s[-1])) if load is not None else (begin, end)))
        inside = np.ones(len(updates.time_s), dtype=np.bool_)
        if load is not None:
            inside = (updates.time_s > load.start_s[0]) & (updates.time_s < load.end_s[-1])
        check_fold(replace(updates, time_s=updates.time_s[inside], value=updates.value[inside]), fold, calibration.reading_noise_w)
    profile = fold_profile(updates, stamps, calibration)
    if load is None:
        told = alias_text(profile.duration_s, updates.period_s)
        profile = replace(profile, notes=FrozenMapping({**profile.notes, "fold": f"{rests}; {told}" if rests else told}))
    return profile


def fold_profile(updates: BoardUpdates, load: LoadStamps, calibration: SensorCalibration, *, discard_s: float = 0.0) -> Profile:
    """The profile within the executions of a load; those that start in the first `discard_s` are left out.

    Raises SensorError where there are too few executions, or they differ in length or level.
    """
    load = _shortened(load)
    length = load.end_s - load.start_s
    kept = load.start_s >= load.start_s[0] + discard_s
    if np.count_nonzero(kept) < MIN_EXECUTIONS:
        raise SensorError(f"{np.count_nonzero(kept)} executions after the rise; at least {MIN_EXECUTIONS} are needed to fold them")
    if not load.alike:
        raise SensorError("the executions differ in length or level: they have no common profile to fold")
    duration = float(np.mean(length[kept]))
    possible = possible_responses(calibration, updates.period_s)
    inside = int(np.count_nonzero((updates.time_s > load.start_s[0]) & (updates.time_s < load.end_s[-1])))
    fits = []
    for response in possible.responses:
        wanted = min(BINS_PER_WINDOW * duration / response.width_s, READINGS_PER_BIN * inside)
        bins = int(min(max(round(wanted), FEWEST_BINS), MOST_BINS))
        settings = FitSettings(
            bins=bins,
            discard_s=discard_s,
            noise_w=calibration.reading_noise_w,
            jitter_s=updates.time_std_s,
            any_size=True,  # what readings do not see of it may be of any size
        )
        fits.append(fit_executions(updates.time_s, updates.value, response, load, settings))
    likeliest = int(np.argmax(response_probabilities(possible, fits)))
    fit, bins = fits[likeliest], len(fits[likeliest].profile_w)
    back = inversion(calibration)
    power = back.power_w(fit.profile_w)
    smear_w = SMEAR_SHARE * abs(float(fit.profile_w.mean()))
    std = back.power_std_w(fit.profile_w, np.hypot(fit.profile_std_w, smear_w))
    smeared = fit.profile_resolution > UNSEEN_BINS
    unseen = smeared & (fit.profile_std_w > UNSEEN_SHARE * fit.profile_size_w) & (fit.profile_size_w > fit.noise_w)
    notes = {**updates.notes, **possible.notes, **({} if back.known else {"gain": NO_GAIN})}
    if np.any(unseen):
        notes["profile"] = (
            f"{np.count_nonzero(unseen)} of {bins} places were not seen by any update: executions of {duration * 1e3:.4g} ms keep the same "
            f"phase to updates of {updates.period_s * 1e3:.4g} ms; put pauses of changing length between them"
        )
    if impossible := _impossible(power, std):
        notes["profile_power"] = impossible
    resolution = fit.profile_resolution * duration / bins
    return Profile(
        place_s=LAUNCH_RISE_S + (np.arange(bins) + 0.5) * duration / bins,
        power_w=np.where(unseen, np.nan, power),
        std_w=np.where(unseen, np.nan, std),
        resolution_s=np.where(unseen, np.inf, resolution),
        duration_s=duration,
        executions=fit.executions,
        attained_s=float(np.median(resolution[~unseen])) if not np.all(unseen) else math.nan,
        notes=FrozenMapping(notes),
    )


def _impossible(power_w: Array, std_w: Array) -> str:
    """What of a profile no board can draw, beyond its errors; "" where all of it can be."""
    reach = IMPOSSIBLE_STD * std_w
    count = int(np.count_nonzero((power_w + reach < LEAST_POWER_W) | (power_w - reach > MOST_POWER_W)))
    if not count:
        return ""
    return (
        f"the profile is impossible: {count} of {len(power_w)} places lie beyond what a board can draw ({np.min(power_w):.4g} to "
        f"{np.max(power_w):.4g} W); the period, or the sensor, is another: give --load, or fold by another period"
    )


def _shortened(load: LoadStamps) -> LoadStamps:
    """The executions of the first LONGEST_FOLD_S, and what is known of the load after them."""
    count = int(np.searchsorted(load.end_s, load.start_s[0] + LONGEST_FOLD_S, side="right"))
    return load if count == len(load.start_s) else load.part(0, count)


def without_rests(updates: BoardUpdates) -> tuple[BoardUpdates, str]:
    """The updates from the first to the last that moves, and what was left out in words; "" for nothing.

    A load that was never stamped may begin and end within the recording: its rests would be folded in as executions.
    """
    value = updates.value
    reach = REST_SHARE * float(np.ptp(value))
    moved = (np.flatnonzero(np.abs(value - value[end]) > reach) for end in (0, -1))
    first, last = ((int(places[end]) if len(places) else end) for places, end in zip(moved, (0, -1), strict=True))
    kept = slice(first, last + 1 if last >= 0 else None)
    part = replace(updates, time_s=updates.time_s[kept], value=value[kept])
    left_s = float(np.ptp(updates.time_s) - np.ptp(part.time_s)) if len(part.time_s) > 1 else 0.0
    if left_s < LEAST_REST_S:
        return updates, ""
    begin, end = float(part.time_s[0] - updates.time_s[0]), float(part.time_s[-1] - updates.time_s[0])
    return part, f"folded from {begin:.5g} s to {end:.5g} s of the recording; the board rested for the other {left_s:.4g} s"


def periodic_load(period_s: float, start_s: float, end_s: float) -> LoadStamps:
    """Executions of a load that repeats with a period and was never stamped, back to back from `start_s` to `end_s`.

    Raises SensorError where too few or too many of them fit.
    """
    length = end_s - start_s
    if period_s > 0.0 and length > MOST_PERIODS * period_s:
        raise SensorError(f"more than {MOST_PERIODS} periods of {period_s:.4g} s in {length:.4g} s: is the period in seconds?")
    count = int(length / period_s) if period_s > 0.0 else 0
    if count < MIN_EXECUTIONS:
        raise SensorError(f"only {count} periods of {period_s:.4g} s in {length:.4g} s; at least {MIN_EXECUTIONS} are needed to fold them")
    start = start_s + period_s * np.arange(count, dtype=np.float64)
    return LoadStamps(start_s=start, end_s=start + period_s)


def check_fold(updates: BoardUpdates, period_s: float, noise_w: float | None) -> None:
    """Raises SensorError for a period that the readings do not repeat with: folded by it, they would be mixed."""
    time_s, value = updates.time_s, updates.value
    count = min(MOST_HARMONICS, len(value) // READINGS_PER_HARMONIC)
    if not count or float(np.std(value)) < NOISE_FACTOR * (noise_w or 0.0):
        return
    if turns_through(period_s, updates.period_s, float(np.ptp(time_s))) < LEAST_TURNS:
        raise SensorError(
            f"--fold {period_s:.6g}: updates every {updates.period_s:.6g} s see that period in the same place again and again; "
            "give --load, or fold by the load's own period"
        )
    r2 = _follows(time_s, value, 1.0 / period_s, count)
    if r2 < LEAST_FOLD_R2 + 2.0 * count / len(value):
        raise SensorError(
            f"--fold {period_s:.6g}: the readings do not repeat with that period (it explains {r2:.0%} of their variance); try --fold auto"
        )


def _follows(time_s: Array, value: Array, frequency: float, count: int) -> float:
    """Share of the readings' variance, beside a line, that harmonics of a frequency explain."""
    centred = time_s - time_s.mean()
    trend = np.stack([np.ones_like(centred), centred], axis=1)
    angle = 2.0 * np.pi * frequency * centred[:, None] * np.arange(1, count + 1)
    design = np.concatenate([trend, np.cos(angle), np.sin(angle)], axis=1)
    before, after = (float(np.sum((value - one @ np.linalg.lstsq(one, value, rcond=None)[0]) ** 2)) for one in (trend, design))
    return 1.0 - after / before if before > 0.0 else 0.0


def find_period(updates: BoardUpdates) -> float:
    """The period with which a load repeats, from the readings alone [s].

    Only periods of more than two updates can be told: faster ones look like slower ones.  Raises SensorError where
    no period explains the readings.
    """
    time_s, value = updates.time_s - updates.time_s[0], updates.value - updates.value.mean()
    span = float(time_s[-1])
    highest, lowest = NYQUIST_SHARE / updates.period_s, LEAST_CYCLES / max(span, 1e-9)
    total = float(value @ value)
    if highest <= lowest or len(value) < 4 * LEAST_MEMBERS or total <= 0.0:
        raise SensorError("the recording is too short or too even to find a period in it; give --fold a period, or --load the stamps")
    if span > LONGEST_SEARCH_S:
        raise SensorError(f"{span:.0f} s are too long to search a period in; cut out {LONGEST_SEARCH_S:.0f} s, or give --fold a period")
    step = 1.0 / (GRID_PER_PEAK * span)
    frequency = np.arange(lowest, highest, step)
    score = np.array([_explained(time_s, value, float(f), highest) for f in frequency])
    best = float(frequency[int(np.argmax(score))])
    for _ in range(REFINEMENTS):
        fine = best + step * np.linspace(-1.0, 1.0, 21)
        fine = fine[fine > 0.0]
        scores = np.array([_explained(time_s, value, float(f), highest) for f in fine])
        best, step = float(fine[int(np.argmax(scores))]), 0.15 * step
    r2 = 1.0 - math.exp(-2.0 * float(scores.max()) / len(value))
    if r2 < LEAST_R2:
        share = f"{r2:.0%} of their variance" if r2 > 0.0 else "none of their variance"
        raise SensorError(
            f"no period explains the readings: the best, {1.0 / best:.4g} s, explains {share} beyond what chance does, "
            f"{LEAST_R2:.0%} are needed; give --fold a period"
        )
    return 1.0 / best


def _explained(time_s: Array, value: Array, frequency: float, highest: float) -> float:
    """Log-likelihood that harmonics of a frequency add, less a penalty for their number."""
    count = min(HARMONICS, max(1, int(highest / frequency)))
    angle = 2.0 * np.pi * frequency * time_s[:, None] * np.arange(1, count + 1)
    design = np.concatenate([np.ones((len(time_s), 1)), np.cos(angle), np.sin(angle)], axis=1)
    solution = np.linalg.lstsq(design, value, rcond=None)[0]
    residual = value - design @ solution
    left = max(float(residual @ residual), 1e-9 * float(value @ value))
    return 0.5 * len(value) * math.log(float(value @ value) / left) - count * math.log(len(value))


def aliases(period_s: float, update_s: float) -> list[float]:
    """The other periods of the family of `period_s` under updates every `update_s`, longest first [s]."""
    rate = 1.0 / update_s
    base = abs(1.0 / period_s - rate * round(1.0 / (period_s * rate)))
    family = [base, *(k * rate + sign * base for k in range(1, UPDATE_RATES + 1) for sign in (-1, 1))]
    nearest = int(np.argmin([abs(f - 1.0 / period_s) for f in family]))
    near = abs(family[nearest] * period_s - 1.0) < 1e-6
    kept = {round(f, 9) for i, f in enumerate(family) if f > 0.0 and not (near and i == nearest)}
    return [1.0 / f for f in sorted(kept)]


def alias_text(period_s: float, update_s: float) -> str:
    """The family in words, for a period that no stamps told."""
    others = ", ".join(f"{other:.5g}" for other in aliases(period_s, update_s))
    return f"readings every {update_s * 1e3:.4g} ms look the same for periods of {others} s; only --load tells which of them the load had"


def turns_through(period_s: float, update_s: float, span_s: float) -> float:
    """How often the updates of a span move through a period that is near the updates' own, or a fraction of it; inf for others."""
    rates = update_s / period_s
    nearest = round(rates)
    return abs(rates - nearest) / update_s * span_s if nearest >= 1 else float("inf")
