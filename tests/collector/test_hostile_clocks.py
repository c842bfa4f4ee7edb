"""Clocks that no period describes, and good ones of which little is seen: the period is right within its errors, or null with a reason."""

import re
from dataclasses import replace

import numpy as np
import pytest

from collector.errors import SensorError
from collector.sensor.clock_evidence import distances_of, multiple_of
from collector.sensor.clock_fitting import shown_clock
from collector.sensor.clock_likelihood import find_changes, log_likelihoods
from collector.sensor.clock_search import search_clock
from collector.sensor.identification import SensorName, SensorRecord, identify_sensor
from collector.sensor.update_clock import fit_update_clock
from tests.collector.hostile_clocks import KINDS, Kind, moving, polled, skipped, stretches, white_jitter

SEEDS = range(100, 116)
ERRORS = 4.0
PERIOD_S = 0.1012


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_period_is_right_within_its_errors_or_null_with_a_reason(kind: Kind) -> None:
    reasons = []
    for seed in SEEDS:
        made = kind(np.random.default_rng(seed))
        try:
            clock, _ = fit_update_clock(made.time_s, made.value)
        except SensorError as error:
            reasons.append(str(error))
            continue
        bound_s = max(ERRORS * clock.period_std_s, clock.card_period_95_s)
        assert abs(clock.period_s - made.period_s) <= bound_s, f"seed {seed}: {clock} for {made.period_s}"
    assert all("show no update clock" in reason and "; " in reason for reason in reasons), "no reason, or no run that would tell"


@pytest.mark.parametrize("kind", [stretches, skipped])
def test_a_good_clock_is_found_though_little_of_it_is_seen(kind: Kind) -> None:
    for seed in SEEDS:
        made = kind(np.random.default_rng(seed))
        clock, _ = fit_update_clock(made.time_s, made.value)
        assert clock.period_s == pytest.approx(made.period_s, abs=1e-4)
        assert clock.rigid


def test_only_updates_that_polls_could_see_are_counted() -> None:
    random = np.random.default_rng(3)
    update_s = PERIOD_S * np.arange(400.0) + random.normal(0.0, 3e-4, 400)
    made = polled(update_s, moving(400, random), random, period_s=PERIOD_S, every_s=2.0, polled_s=0.5)
    clock, updates = fit_update_clock(made.time_s, made.value)
    seen = len(np.unique(np.searchsorted(update_s, made.time_s)))
    assert clock.n_updates == pytest.approx(seen, abs=3)
    assert updates.number[-1] > 3 * seen
    assert clock.missed_share < 0.05
    last = update_s[np.searchsorted(update_s, updates.time_s + 0.5 * PERIOD_S) - 1]
    assert np.median(np.abs(updates.time_s - last)) < 3e-3


def test_a_hole_without_polls_is_no_silence() -> None:
    random = np.random.default_rng(4)
    update_s = PERIOD_S * np.arange(600.0)
    edge_s = np.cumsum(PERIOD_S * random.uniform(1.0, 7.0, 200))
    value = np.where(np.searchsorted(edge_s, update_s) % 2, 160.0, 60.0)
    made = polled(update_s, value, random, period_s=PERIOD_S, every_s=2.0, polled_s=0.5)
    point = np.array([[PERIOD_S, 0.0, np.log(1e-3)]])
    seen = find_changes(made.time_s, made.value)
    assert len(seen.holes.behind) > 5
    filled = find_changes(*_filled(made.time_s, made.value))
    assert np.array_equal(filled.until_s, seen.until_s)
    assert log_likelihoods(seen, point, 0.0)[0] > log_likelihoods(filled, point, 0.0)[0] + 20.0


def _filled(time_s: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same polls, and more of the same value in holes behind which it was there again."""
    times, values = [time_s], [value]
    for place in np.flatnonzero((np.diff(time_s) > 0.5) & (value[1:] == value[:-1])):
        times.append(np.arange(time_s[place] + 0.01, time_s[place + 1], 0.01))
        values.append(np.full(len(times[-1]), value[place]))
    order = np.argsort(np.concatenate(times))
    return np.concatenate(times)[order], np.concatenate(values)[order]


def test_a_load_that_is_locked_to_the_clock_hides_how_fast_it_is() -> None:
    random = np.random.default_rng(5)
    update_s = PERIOD_S * np.arange(300.0)
    locked = polled(update_s, np.where(np.arange(300) // 4 % 2, 160.0, 60.0), random, period_s=PERIOD_S)
    with pytest.raises(SensorError, match="several times as often"):
        fit_update_clock(locked.time_s, locked.value)
    edge_s = np.cumsum(4.0 * PERIOD_S * random.uniform(0.7, 1.3, 100))
    free = polled(update_s, np.where(np.searchsorted(edge_s, update_s) % 2, 160.0, 60.0), random, period_s=PERIOD_S)
    assert fit_update_clock(free.time_s, free.value)[0].period_s == pytest.approx(PERIOD_S, abs=1e-4)


def test_one_tick_more_in_every_hole_makes_another_period_and_neither_is_claimed() -> None:
    made = stretches(np.random.default_rng(1015))  # 49.2 ms, 7 ms between polls, three updates in every 67
    with pytest.raises(SensorError, match="holes, and periods of") as raised:
        fit_update_clock(made.time_s, made.value)
    one, other = str(raised.value).split("periods of ")[1].split(" ms")[0].split(" and ")
    assert one != other


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_clock_of_which_every_nth_tick_is_used_is_n_times_as_slow(times: int) -> None:
    random = np.random.default_rng(6)
    update_s = PERIOD_S * np.cumsum(random.integers(1, 3, 200)).astype(np.float64)
    made = polled(update_s, moving(200, random), random, period_s=PERIOD_S)
    changes = find_changes(made.time_s, made.value)
    ticks = np.rint(changes.middle_s / PERIOD_S).astype(np.int64)
    assert multiple_of(distances_of(changes, times * ticks, float(np.median(np.diff(made.time_s))))) == times


def test_a_period_that_explains_all_changes_is_taken_before_its_half() -> None:
    random = np.random.default_rng(7)
    update_s = PERIOD_S * np.arange(300.0)
    edge_s = np.cumsum(4.0 * PERIOD_S * random.uniform(0.7, 1.3, 100))
    made = polled(update_s, np.where(np.searchsorted(edge_s, update_s) % 2, 160.0, 60.0), random, period_s=PERIOD_S)
    changes = find_changes(made.time_s, made.value)
    half = replace(search_clock(changes), period_s=0.5 * PERIOD_S)
    fit = shown_clock(changes, half, float(np.median(np.diff(made.time_s))))
    assert fit.drift.period_s == pytest.approx(PERIOD_S, abs=1e-4)


def test_without_a_clock_everything_that_rests_on_it_is_null_and_the_changes_distance_is_said() -> None:
    made = white_jitter(np.random.default_rng(1))
    given = SensorRecord(time_s=made.time_s, power_w=made.value)
    found = identify_sensor(given, SensorName(gpu_uuid="", driver="", sensor="simulated", field="instant")).calibration
    assert (found.update_period_s, found.update_period_std_s, found.window_s, found.n_updates) == (None, None, None, 0)
    assert found.averaging == "undetermined"
    assert "apart on average" in found.notes["update_period_s"]
    assert "poll every" in found.notes["averaging"]


@pytest.mark.parametrize(("every_s", "step_w"), [(1.0, 0.01), (0.2, 0.01), (0.25, 0.1)])
def test_polls_slower_than_updates_are_no_clock_though_readings_repeat_now_and_then(every_s: float, step_w: float) -> None:
    random = np.random.default_rng(8)
    update_s = PERIOD_S * np.arange(6000.0) + random.normal(0.0, 3e-4, 6000)
    value = step_w * np.round((55.0 + 2.0 * np.sin(update_s / 40.0) + random.normal(0.0, 5.0 * step_w, 6000)) / step_w)
    time_s = np.arange(0.5, update_s[-1], every_s)
    time_s = np.floor(1e3 * (time_s + 2e-3 * np.abs(random.standard_normal(len(time_s))))) / 1e3
    with pytest.raises(SensorError, match=r"by chance where every poll meets a new update; poll every \d ms"):
        fit_update_clock(time_s, value[np.searchsorted(update_s, time_s, side="right") - 1])


@pytest.mark.parametrize("ticks", [2.2, 3.08, 6.13, 8.61])
def test_a_slow_ramp_that_is_rounded_tells_watts_and_no_updates(ticks: float) -> None:
    random = np.random.default_rng(9)
    update_s = 0.05 * np.arange(800.0) + random.normal(0.0, 3e-4, 800)
    made = polled(update_s, np.round(60.0 + update_s / (ticks * 0.05)), random, period_s=0.05)
    with pytest.raises(SensorError, match=r"one step of 1 W .* varies by many watts"):
        fit_update_clock(made.time_s, made.value)


def test_a_rounded_swing_whose_crossings_wait_for_a_grid_keeps_its_clock() -> None:
    random = np.random.default_rng(10)
    update_s = PERIOD_S * np.arange(600.0) + random.normal(0.0, 3e-4, 600)
    value = 10.0 * np.round((150.0 + 80.0 * np.sin(2.0 * np.pi * update_s / 3.7)) / 10.0)
    made = polled(update_s, value, random, period_s=PERIOD_S)
    assert fit_update_clock(made.time_s, made.value)[0].period_s == pytest.approx(PERIOD_S, abs=1e-4)


@pytest.mark.parametrize("factor", [0.5, 1.1, 2.0])
def test_a_period_that_changes_midway_is_null_with_the_periods_of_the_parts(factor: float) -> None:
    random = np.random.default_rng(11)
    distance = 0.1 * np.where(np.arange(500) < 250, 1.0, factor)
    made = polled(np.cumsum(distance), moving(500, random), random, period_s=0.1)
    with pytest.raises(SensorError, match="the period differs between parts of the record: ") as raised:
        fit_update_clock(made.time_s, made.value)
    named = [float(word) for word in re.findall(r"\d+\.?\d*", str(raised.value).split("of the record: ")[1])]
    assert any(word == pytest.approx(100.0, rel=2e-3) for word in named)


def test_the_same_polls_give_the_same_answer() -> None:
    made = skipped(np.random.default_rng(101))
    first, again = (fit_update_clock(made.time_s, made.value)[0] for _ in range(2))
    assert first == again
