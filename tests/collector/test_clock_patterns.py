"""Two clocks in one field, periods that change, updates that come late, hosts that sleep: a period is told where one clock shows it."""

from contextlib import suppress

import numpy as np
import pytest

from collector.correction.updates import board_updates
from collector.errors import SensorError
from collector.sensor.calibration import SensorCalibration
from collector.sensor.clock_patterns import Skips
from collector.sensor.identification import SensorName, SensorRecord, identify_sensor
from collector.sensor.update_clock import fit_update_clock
from estimator.quantities import Array
from tests.collector.hostile_clocks import Hostile, moving, polled

PERIOD_S = 0.1012
ERRORS = 4.0
SKIPPING = SensorCalibration(
    gpu_uuid="", driver="", sensor="log", field="power_w", averaging="boxcar", n_updates=300, update_period_s=PERIOD_S, window_s=0.1,
)  # fmt: skip
NAME = SensorName(gpu_uuid="", driver="", sensor="simulated", field="instant")


def ticks(period_s: float, count: int, random: np.random.Generator) -> Array:
    """Updates of a clock with a jitter of 0.3 ms, at a phase of its own."""
    return period_s * (np.arange(count) + random.random()) + random.normal(0.0, 3e-4, count)


def of_updates(update_s: Array, random: np.random.Generator, period_s: float = PERIOD_S) -> Hostile:
    """Polls of updates all of which differ."""
    return polled(update_s, moving(len(update_s), random), random, period_s=period_s)


@pytest.mark.parametrize(("other", "aside_s"), [(1.1, 0.04), (0.9, 0.04), (1.5, 0.05), (1.25, 0.075), (1.0, 0.025)])
def test_two_clocks_in_one_field_are_no_common_fraction_of_their_periods(other: float, aside_s: float) -> None:
    for seed in range(8):
        random = np.random.default_rng(seed)
        both_s = np.concatenate([0.1 * np.arange(300.0), 0.1 * other * np.arange(float(int(300 / other))) + aside_s])
        made = of_updates(np.sort(both_s + random.normal(0.0, 2e-4, len(both_s))), random)
        with pytest.raises(SensorError, match=r"no update clock"):
            fit_update_clock(made.time_s, made.value)


def test_the_periods_of_two_clocks_are_named() -> None:
    for seed in range(4):
        random = np.random.default_rng(seed)
        both_s = np.concatenate([0.1 * np.arange(300.0), 0.15 * np.arange(200.0) + 0.05])
        made = of_updates(np.sort(both_s + random.normal(0.0, 2e-4, 500)), random)
        with pytest.raises(SensorError, match=r"2 clocks, of \S+ and \S+ ms, in one field; log one field of one board") as raised:
            fit_update_clock(made.time_s, made.value)
        named = str(raised.value).split("2 clocks, of ")[1].split(" ms")[0].split(" and ")
        assert [float(name) for name in named] == pytest.approx([100.0, 150.0], abs=0.01)


@pytest.mark.parametrize("every", [3, 4, 5, 10])
def test_a_clock_that_skips_one_update_in_turn_is_one_clock_and_its_pattern_is_said(every: int) -> None:
    for seed in range(4):
        random = np.random.default_rng(seed)
        update_s = ticks(PERIOD_S, 500, random)
        made = of_updates(update_s[np.arange(500) % every > 0], random)
        clock, updates = fit_update_clock(made.time_s, made.value)
        assert clock.period_s == pytest.approx(PERIOD_S, abs=1e-4)
        assert clock.skips is not None
        assert clock.skips.turn == every
        assert not np.any(updates.number % every == clock.skips.place)
        assert f"one update in every {every} does not come" in clock.remark
        mean_ms = float(clock.remark.split("or twice that, ")[1].split(" ms on average")[0])
        assert mean_ms == pytest.approx(1e3 * PERIOD_S * every / (every - 1), abs=0.1)


def test_two_clocks_a_third_of_their_period_apart_look_like_one_that_skips_and_that_is_said() -> None:
    random = np.random.default_rng(3)
    both_s = np.sort(np.concatenate([0.1 * np.arange(300.0), 0.1 * np.arange(300.0) + 0.1 / 3]) + random.normal(0.0, 2e-4, 600))
    made = of_updates(both_s, random)
    assert (
        "2 clocks in one field, each of 100 ms and 33.33 ms apart, would look the same"
        in fit_update_clock(made.time_s, made.value)[0].remark
    )


def test_updates_that_fail_at_random_are_no_pattern() -> None:
    for seed in range(6):
        random = np.random.default_rng(seed)
        update_s = ticks(PERIOD_S, 600, random)
        made = of_updates(update_s[random.random(600) > (0.0, 0.01, 0.3)[seed % 3]], random)
        assert fit_update_clock(made.time_s, made.value)[0].skips is None


@pytest.mark.parametrize(("width_periods", "share"), [(0.1, 2 / 30), (1.0, 2 / 3), (1.5, 2.5 / 3), (2.0, 1.0), (9.0, 1.0)])
def test_what_readings_see_of_the_time_leaves_out_what_skipped_updates_would_have_seen(width_periods: float, share: float) -> None:
    assert Skips(turn=3, place=0).seen_share(width_periods) == pytest.approx(share)


def test_a_correction_takes_no_update_where_the_clock_skips_one() -> None:
    random = np.random.default_rng(4)
    update_s = ticks(PERIOD_S, 500, random)
    made = of_updates(update_s[np.arange(500) % 3 > 0], random)
    found = board_updates(made.time_s, made.value, SKIPPING)
    assert found.period_s == pytest.approx(PERIOD_S, abs=1e-4)
    assert np.mean(np.diff(found.time_s)) == pytest.approx(1.5 * PERIOD_S, rel=0.01)


@pytest.mark.parametrize("factor", [2.0, 3.0, 0.5, 1.5, 0.8])
@pytest.mark.parametrize("share", [0.2, 0.35, 0.65, 0.8])
def test_a_period_that_changes_anywhere_in_a_record_is_not_claimed(factor: float, share: float) -> None:
    random = np.random.default_rng(int(100 * share))
    distance = 0.1 * np.where(np.arange(400) < 400 * share, 1.0, factor)
    made = of_updates(np.cumsum(distance) + random.normal(0.0, 3e-4, 400), random)
    with pytest.raises(SensorError, match="the period differs between parts" if factor in (2.0, 3.0, 0.5) else "show no update clock"):
        fit_update_clock(made.time_s, made.value)


@pytest.mark.parametrize("factor", [0.98, 1.005, 1.02])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.76])
def test_where_a_period_changes_by_little_the_mean_is_told_with_an_error_that_holds_it(factor: float, share: float) -> None:
    random = np.random.default_rng(int(100 * share))
    update_s = np.cumsum(0.05 * np.where(np.arange(450) < 450 * share, 1.0, factor)) + random.normal(0.0, 3e-4, 450)
    made = of_updates(update_s, random)
    try:
        clock, _ = fit_update_clock(made.time_s, made.value)
    except SensorError:
        return
    seen = update_s[(update_s > made.time_s[0]) & (update_s < made.time_s[-1])]
    assert abs(clock.period_s - float(np.diff(seen).mean())) <= ERRORS * clock.period_std_s


def late(random: np.random.Generator) -> Hostile:
    """One to five in a hundred updates late by 0.2 to 0.8 of the period."""
    period = float(random.choice([0.02, 0.05, PERIOD_S]))
    update_s = ticks(period, int(random.integers(250, 700)), random)
    held_up = random.random(len(update_s)) < random.uniform(0.01, 0.05)
    return of_updates(np.sort(update_s + held_up * random.uniform(0.2, 0.8, len(update_s)) * period), random, period)


def test_updates_that_come_late_do_not_move_the_period() -> None:
    told = 0
    for seed in range(400, 440):
        made = late(np.random.default_rng(seed))
        try:
            clock, _ = fit_update_clock(made.time_s, made.value)
        except SensorError:
            continue
        assert abs(clock.period_s - made.period_s) <= max(ERRORS * clock.period_std_s, clock.card_period_95_s), f"seed {seed}"
        told += abs(clock.period_s - made.period_s) < 1e-4
    assert told >= 38


def asleep(random: np.random.Generator, *, anew: bool) -> Hostile:
    """A clock polled for a minute, between polls of which the host slept one to four times for minutes to hours."""
    made = of_updates(ticks(PERIOD_S, 600, random), random)
    begins = np.sort(random.uniform(8.0, 52.0, random.integers(1, 5)))
    slept = random.uniform(60.0, 20000.0, len(begins))
    slept = slept if anew else PERIOD_S * np.rint(slept / PERIOD_S)
    away = np.concatenate([[0.0], np.cumsum(slept)])
    return Hostile(time_s=made.time_s + away[np.searchsorted(begins, made.time_s)], value=made.value, period_s=PERIOD_S)


@pytest.mark.parametrize("anew", [True, False], ids=["anew", "goes on"])
def test_the_period_is_told_though_the_host_slept(anew: bool) -> None:
    for seed in range(20, 32):
        made = asleep(np.random.default_rng(seed), anew=anew)
        clock, updates = fit_update_clock(made.time_s, made.value)
        assert clock.period_s == pytest.approx(PERIOD_S, abs=1e-4)
        assert abs(clock.period_s - PERIOD_S) <= max(ERRORS * clock.period_std_s, clock.card_period_95_s)
        assert np.all(np.diff(updates.number) > 0)
        assert np.all(np.diff(updates.time_s) > 0.0)
        assert len(updates.time_s) == len(updates.number) == len(updates.value)
        assert clock.n_updates == pytest.approx(600, rel=0.05)


def test_that_the_phase_is_lost_is_said() -> None:
    made = asleep(np.random.default_rng(21), anew=True)
    found = identify_sensor(SensorRecord(time_s=made.time_s, power_w=made.value), NAME).calibration
    assert found.update_period_s == pytest.approx(PERIOD_S, abs=1e-4)
    assert "phase is lost; the period is what" in found.notes["update_period_s"]


def test_a_short_stretch_without_a_clock_of_its_own_is_put_on_the_others() -> None:
    random = np.random.default_rng(8)
    update_s = ticks(PERIOD_S, 420, random)
    made = of_updates(update_s, random)
    begins, slept = np.array([update_s[399]]), np.array([0.0, 7000.037])
    moved = Hostile(time_s=made.time_s + slept[np.searchsorted(begins, made.time_s)], value=made.value, period_s=PERIOD_S)
    clock, updates = fit_update_clock(moved.time_s, moved.value)
    assert clock.period_s == pytest.approx(PERIOD_S, abs=1e-4)
    assert np.max(np.abs(updates.time_s[-15:] - update_s[-16:-1] - slept[1])) < 0.02


def test_another_period_behind_a_sleep_is_not_claimed() -> None:
    random = np.random.default_rng(9)
    first, second = of_updates(ticks(0.1, 300, random), random), of_updates(ticks(0.1012, 300, random), random)
    time_s = np.concatenate([first.time_s, second.time_s - second.time_s[0] + first.time_s[-1] + 900.0])
    with pytest.raises(SensorError, match="the period differs between parts of the record: 100, 101.2 ms"):
        fit_update_clock(time_s, np.concatenate([first.value, second.value]))


def test_a_hosts_clock_that_is_set_forward_leaves_the_period() -> None:
    for seed in range(60, 68):
        random = np.random.default_rng(seed)
        made = of_updates(ticks(PERIOD_S, 400, random), random)
        time_s = made.time_s + np.where(made.time_s > random.uniform(10.0, 30.0), random.uniform(0.1, 2.0), 0.0)
        clock, updates = fit_update_clock(time_s, made.value)
        assert clock.period_s == pytest.approx(PERIOD_S, abs=1e-4)
        assert np.all(np.diff(updates.time_s) > 0.0)


def test_a_log_of_many_naps_tells_the_period() -> None:
    random = np.random.default_rng(12)
    made = of_updates(ticks(PERIOD_S, 3000, random), random)
    begins = np.arange(6.0, made.time_s[-1], 6.0)
    away = np.concatenate([[0.0], np.cumsum(random.uniform(40.0, 4000.0, len(begins)))])
    assert len(begins) > 40
    clock, updates = fit_update_clock(made.time_s + away[np.searchsorted(begins, made.time_s)], made.value)
    assert clock.period_s == pytest.approx(PERIOD_S, abs=1e-4)
    assert np.all(np.diff(updates.time_s) > 0.0)


@pytest.mark.parametrize("ticks_per_watt", [2.997, 3.0, 5.002])
def test_a_ramp_of_as_many_updates_to_every_watt_tells_no_clock(ticks_per_watt: float) -> None:
    random = np.random.default_rng(10)
    update_s = 0.05 * np.arange(900.0) + random.normal(0.0, 3e-4, 900)
    made = polled(update_s, np.round(60.0 + update_s / (ticks_per_watt * 0.05)), random, period_s=0.05)
    with pytest.raises(SensorError, match=r"one step of 1 W"):
        fit_update_clock(made.time_s, made.value)


def test_stretches_of_one_change_beside_silent_holes_break_nothing() -> None:
    random = np.random.default_rng(13)
    time_s = np.arange(0.0, 60.0, 0.01)
    value = np.where(time_s < 40.0, np.floor(time_s / PERIOD_S) % 7, np.floor(time_s / 5.0))
    kept = (time_s < 40.0) | (random.random(len(time_s)) < 0.02)
    with suppress(SensorError):
        clock, updates = fit_update_clock(time_s[kept], value[kept])
        assert clock.period_s == pytest.approx(PERIOD_S, abs=1e-4)
        assert len(updates.number) == len(updates.time_s)
