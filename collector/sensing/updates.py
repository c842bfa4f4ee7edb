"""The updates behind polled readings of a sensor that has been characterised before."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.devices.possible_power import possible_power
from collector.errors import SensorError
from collector.sensing.calibration import SensorCalibration
from collector.sensing.clock import Updates, fit_update_clock, held_updates
from collector.sensing.known_sensor import DEFAULT_PERIOD_S
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array, IntArray

PERIOD_TOLERANCE: Final = 0.005
"""Share by which a recording's update period may differ from the calibration's before it is said: boards of 101.2 ms and of
100.0 ms are different sensors, the clocks of hosts differ by 1e-4 at most."""
PERIOD_Z: Final = 5.0
"""And standard errors of both."""
HOLE_PERIODS: Final = 100.0
"""Polls farther apart than so many updates are stretches of their own: updates between them would only repeat a value nobody read."""
UNKNOWN_TIME_SHARE: Final = 0.29
"""Standard deviation of a uniform distribution over a period: the error of an update time that only the polls tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardUpdates:
    """Updates of a sensor: host time and value, shape (n,), the period between them, and how sure a time is [s].

    `notes` say what did not come out as the calibration has it.
    """

    time_s: Array
    value: Array
    period_s: float
    time_std_s: float
    notes: Mapping[str, str]


def board_updates(time_s: Array, power_w: Array, calibration: SensorCalibration) -> BoardUpdates:
    """The updates in polls at `time_s` (n,), ascending, values `power_w` (n,), repeats included.

    An update that repeats the value before it counts too: where updates were due, polls were taken and nothing
    changed, the value was the same again.

    Raises SensorError where nothing was read that can be power.
    """
    sane = possible_power(power_w) & np.isfinite(time_s)
    time_s, power_w = time_s[sane], power_w[sane]
    if len(time_s) < 2:
        raise SensorError(f"{len(time_s)} readings that can be power; at least 2 are needed")
    known = calibration.update_period_s
    notes = {}
    try:
        clock, changes = fit_update_clock(time_s, power_w)
    except SensorError as error:
        period = known or DEFAULT_PERIOD_S
        notes["update_period_s"] = f"the recording shows no update clock ({error}); {period * 1e3:.4g} ms is taken from " + (
            "the sensor" if known else "the longest common one"
        )
        held = _held_in_stretches(time_s, power_w, period)
        std = min(UNKNOWN_TIME_SHARE * period, float(np.median(np.diff(time_s))))
        return BoardUpdates(time_s=held.time_s, value=held.value, period_s=period, time_std_s=std, notes=FrozenMapping(notes))
    stated = max(calibration.update_period_std_s or 0.0, calibration.card_period_68_s or 0.0)
    period_std = float(np.hypot(clock.card_period_68_s, stated))
    if known is not None and abs(clock.period_s - known) > max(PERIOD_TOLERANCE * known, PERIOD_Z * period_std):
        notes["update_period_s"] = (
            f"the recording's updates come every {clock.period_s * 1e3:.5g} ms, the sensor's every {known * 1e3:.5g} ms: "
            "another board, driver or field? the recording's period is used"
        )
    filled = _with_ends(_with_repeats(changes, clock.period_s, time_s), clock.period_s, time_s, float(power_w[0]))
    std = clock.jitter_s if clock.rigid else float(np.hypot(clock.jitter_s, UNKNOWN_TIME_SHARE * clock.poll_s))
    return BoardUpdates(
        time_s=filled.time_s, value=filled.value, period_s=clock.period_s, time_std_s=min(std, clock.period_s), notes=FrozenMapping(notes)
    )


def _held_in_stretches(time_s: Array, power_w: Array, period_s: float) -> Updates:
    """The updates of polls that show no clock, stretch by stretch between holes; numbers run on."""
    cuts = np.flatnonzero(np.diff(time_s) > HOLE_PERIODS * period_s) + 1
    parts = [held_updates(*part, period_s) for part in zip(np.split(time_s, cuts), np.split(power_w, cuts), strict=True)]
    held_s = np.concatenate([part.time_s for part in parts])
    return Updates(time_s=held_s, value=np.concatenate([part.value for part in parts]), number=np.arange(len(held_s)))


def _with_repeats(updates: Updates, period_s: float, poll_s: Array) -> Updates:
    """The updates and, between them, those that repeated a value: due by the clock, with a poll before the next one."""
    steps = np.minimum(np.diff(updates.number), len(poll_s))
    index = np.repeat(np.arange(len(steps)), np.maximum(steps, 1))
    first = np.cumsum(np.concatenate([[0], np.maximum(steps, 1)[:-1]])) if len(steps) else np.zeros(0, dtype=np.int64)
    part = np.arange(len(index)) - np.repeat(first, np.maximum(steps, 1))
    length = np.diff(updates.time_s)[index] / np.maximum(steps, 1)[index]
    time_s = np.append(updates.time_s[:-1][index] + part * length, updates.time_s[-1:])
    number = np.append(updates.number[:-1][index] + part, updates.number[-1:])
    value = np.append(updates.value[:-1][index], updates.value[-1:])
    polled = np.searchsorted(poll_s, time_s + period_s) > np.searchsorted(poll_s, time_s)
    kept = polled | np.append(part == 0, True)
    return Updates(time_s=time_s[kept], value=value[kept], number=number[kept])


def _with_ends(updates: Updates, period_s: float, poll_s: Array, first_w: float) -> Updates:
    """The updates and those due before the first change and after the last one: a board at rest may repeat a value for long."""
    before, after = _due(updates.time_s[0] - poll_s, period_s)[::-1], _due(poll_s - updates.time_s[-1], period_s)
    time_s = np.concatenate([updates.time_s[0] - before * period_s, updates.time_s, updates.time_s[-1] + after * period_s])
    value = np.concatenate([np.full(len(before), first_w), updates.value, np.full(len(after), updates.value[-1])])
    number = np.concatenate([updates.number[0] - before, updates.number, updates.number[-1] + after])
    own = np.concatenate([np.zeros(len(before), dtype=bool), np.ones(len(updates.number), dtype=bool), np.zeros(len(after), dtype=bool)])
    polled = np.searchsorted(poll_s, time_s + period_s) > np.searchsorted(poll_s, time_s)
    kept = own | polled
    return Updates(time_s=time_s[kept], value=value[kept], number=number[kept])


def _due(away_s: Array, period_s: float) -> IntArray:
    """How many periods away, ascending, updates lie that a poll may have seen, of polls `away_s` (n,) behind a change [s]."""
    periods = away_s[away_s >= period_s] / period_s
    beside = np.concatenate([np.floor(periods), np.ceil(periods)])
    return np.unique(beside[beside <= np.max(periods, initial=0.0)].astype(np.int64))
