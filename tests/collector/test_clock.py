"""The update clock behind polls: the sensor's and not the polls', right within its errors, or refused with a reason."""

import numpy as np
import pytest

from collector.errors import SensorError
from collector.sensing.clock import fit_update_clock, held_updates
from tests.collector.hostile_clocks import (
    moving,
    polled,
    random_distances,
    skipped,
    stretches,
    two_distances,
    two_levels,
    white_jitter,
)

PERIOD_S = 0.1012
ERRORS = 4.0


def polls(period_s, poll_s, seed, *, wander_s=0.0):
    """Polls of a sensor with an update clock, for 8 s."""
    random = np.random.default_rng(seed)
    number = np.arange(int(8.0 / period_s) + 2)
    update_s = period_s * (number + random.random()) + random.normal(0.0, 3e-4, len(number))
    update_s += wander_s * np.sin(2.0 * np.pi * update_s / 30.0)
    kept = random.random(len(number)) >= 0.01
    update_s, value = update_s[kept], np.round(random.normal(100.0, 1.0, len(number)), 2)[kept]
    time_s = np.cumsum(random.uniform(0.8, 1.3, int(8.0 / poll_s)) * poll_s)
    time_s = time_s[(time_s < 8.0) & (time_s > update_s[0])]
    return time_s, value[np.searchsorted(update_s, time_s, side="right") - 1]


@pytest.mark.parametrize("wander_s", [0.0, 2e-3])
@pytest.mark.parametrize("period_ms, poll_ms", [(101.2, 13), (101.2, 8), (99.97, 7), (31.0, 5), (20.04, 7), (15.41, 2), (100.0, 1)])
def test_the_period_is_the_sensors_not_the_polls(period_ms, poll_ms, wander_s):
    for seed in range(3):
        clock, updates = fit_update_clock(*polls(period_ms * 1e-3, poll_ms * 1e-3, seed, wander_s=wander_s))
        assert clock.period_s == pytest.approx(period_ms * 1e-3, abs=1e-4)
        assert abs(clock.period_s - period_ms * 1e-3) < 4.0 * clock.card_period_std_s
        assert clock.rigid
        assert np.all(np.diff(updates.number) >= 1)


def test_jitter_that_adds_up_is_no_grid():
    random = np.random.default_rng(2)
    update_s = np.cumsum(random.normal(0.020, 1e-3, 600))
    value = np.round(random.normal(100.0, 1.0, 600), 2)
    time_s = np.arange(0.05, 11.5, 0.005)
    clock, _ = fit_update_clock(time_s, value[np.searchsorted(update_s, time_s, side="right") - 1])
    assert not clock.rigid
    assert clock.period_s == pytest.approx(np.diff(update_s).mean(), abs=3.0 * clock.period_std_s + 1e-4)


@pytest.mark.parametrize(
    "kind, told", [(white_jitter, 0), (random_distances, 0), (two_distances, 2), (two_levels, 8), (stretches, 7), (skipped, 11)]
)
def test_a_period_is_right_within_its_errors_or_refused_with_what_would_tell(kind, told):
    """Changes at random times have no period; a clock of which little is seen has one."""
    right, reasons = 0, []
    for seed in range(100, 112):
        made = kind(np.random.default_rng(seed))
        try:
            clock, _ = fit_update_clock(made.time_s, made.value)
        except SensorError as error:
            reasons.append(str(error))
            continue
        right += abs(clock.period_s - made.period_s) <= max(ERRORS * clock.period_std_s, 2.0 * clock.card_period_std_s)
    assert right >= told if told else right == 0
    assert right + len(reasons) >= 11
    assert all("poll" in reason for reason in reasons)


@pytest.mark.parametrize(
    "value, reason",
    [
        (np.full(500, 50.0), "changes of the reading"),
        (np.arange(500.0), "every poll"),
        (np.repeat([1.0, 2.0], 250), "changes of the reading"),
    ],
)
def test_too_few_changes_and_polls_too_slow_are_refused(value, reason):
    with pytest.raises(SensorError, match=reason):
        fit_update_clock(0.01 * np.arange(500.0), value)


@pytest.mark.parametrize("whole", [True, False], ids=["goes on", "anew"])
@pytest.mark.parametrize("slept_s", [3.0, 900.0, 2e4])
def test_the_period_is_told_though_the_host_slept(slept_s, whole):
    random = np.random.default_rng(20)
    update_s = PERIOD_S * np.arange(600.0) + random.normal(0.0, 3e-4, 600)
    made = polled(update_s, moving(600, random), random, period_s=PERIOD_S)
    away_s = PERIOD_S * round(slept_s / PERIOD_S) if whole else slept_s + 0.37 * PERIOD_S
    clock, updates = fit_update_clock(made.time_s + np.where(made.time_s > 20.0, away_s, 0.0), made.value)
    assert clock.period_s == pytest.approx(PERIOD_S, abs=1e-5)
    assert "hole" in clock.remark
    assert np.all(np.diff(updates.number) > 0)
    true_s = update_s + np.where(update_s > 20.0, away_s, 0.0)
    assert np.quantile([np.abs(true_s - time).min() for time in updates.time_s], 0.98) < 4e-3
    assert clock.n_updates == pytest.approx(600, rel=0.05)


def test_held_updates_count_those_that_repeat_their_value():
    time_s = np.arange(0.0, 1.0, 0.01)
    value = np.where(time_s < 0.5, 60.0, 90.0)
    updates = held_updates(time_s, value, 0.1)
    assert len(updates.value) == pytest.approx(10, abs=1)
    assert np.count_nonzero(updates.value == 60.0) == 5
