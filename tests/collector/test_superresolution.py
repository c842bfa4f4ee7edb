"""The profile within an execution: found where phases fill, undetermined where they do not.  Recordings are simulated."""

import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from collector.errors import SensorError
from collector.sensing.board_power import LoadStamps
from collector.sensing.correct import correct_recording
from collector.sensing.fold import Profile, aliases, check_fold, find_period, fold_profile, periodic_load, without_rests
from collector.sensing.updates import BoardUpdates, board_updates
from tests.collector import made_readings
from tests.collector.made_readings import LEVEL_W, REST_W, Made, made, shape_of


def folded(record: Made) -> Profile:
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    return fold_profile(updates, record.load, record.calibration, discard_s=0.2)


def true_profile(profile: Profile) -> np.ndarray:
    return REST_W + LEVEL_W * shape_of(profile.place_s / profile.duration_s)


@pytest.mark.parametrize(
    ("averaging", "width_s", "period_s", "length_s"), [("low-pass", 0.025, 0.1012, 0.325), ("boxcar", 0.025, 0.1, 0.2633)]
)
def test_a_profile_finer_than_the_updates_is_found(averaging: str, width_s: float, period_s: float, length_s: float) -> None:
    record = made(averaging, width_s, period_s, 1.5 + length_s * np.arange(60), length_s, seed=3)
    profile = folded(record)
    assert np.all(np.isfinite(profile.power_w))
    assert profile.attained_s < 0.1 * period_s
    away = profile.power_w - true_profile(profile)
    assert np.sqrt(np.mean(away**2)) < 0.04 * profile.power_w.mean()
    assert np.mean(np.abs(away) < 2.0 * profile.std_w) > 0.85
    kept = record.load.start_s > record.load.start_s[0] + 0.2
    mean = record.energy_j(record.load.start_s[kept], record.load.end_s[kept]).mean() / length_s
    assert profile.power_w.mean() == pytest.approx(mean, rel=0.005)


def test_executions_locked_to_the_updates_are_undetermined_with_the_reason() -> None:
    record = made("boxcar", 0.025, 0.1, 1.5 + 0.2 * np.arange(40), 0.2, seed=1)
    profile = folded(record)
    unknown = ~np.isfinite(profile.power_w)
    assert np.mean(unknown) > 0.3
    assert np.all(np.isinf(profile.resolution_s[unknown]))
    assert "put pauses" in profile.notes["profile"]


def test_a_wider_window_attains_less() -> None:
    profiles = [folded(made("boxcar", width, 0.1, 1.5 + 0.2633 * np.arange(40), 0.2633, seed=2)) for width in (0.025, 0.1)]
    assert profiles[0].attained_s < 0.5 * profiles[1].attained_s


def dithered(count: int, length_s: float) -> np.ndarray:
    """Starts of executions with pauses of changing length, up to 50 ms."""
    return 1.5 + np.arange(count) * (length_s + 1e-3) + np.cumsum(0.05 * ((0.618 * np.arange(count)) % 1.0))


@pytest.mark.parametrize(
    ("averaging", "width_s", "period_s", "length_s"),
    [("boxcar", 0.1, 0.1, 0.05), ("boxcar", 0.1, 0.02, 0.05), ("low-pass", 0.106, 0.015, 0.1), ("low-pass", 0.2, 0.05, 0.05)],
)
def test_errors_hold_where_the_sensor_averages_for_longer_than_an_execution(
    averaging: str, width_s: float, period_s: float, length_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made_readings, "shape_of", lambda place: np.select([place < 0.3, place < 0.6, place < 0.8], [0.9, 1.6, 0.5], 1.3))
    record = made(averaging, width_s, period_s, dithered(150, length_s), length_s, seed=21, after_s=3.0)
    profile = fold_profile(board_updates(record.time_s, record.power_w, record.calibration), record.load, record.calibration)
    half_s = 0.5 * length_s / len(profile.place_s)
    true = [
        record.energy_j(record.load.start_s + place - half_s, record.load.start_s + place + half_s).mean() / (2.0 * half_s)
        for place in profile.place_s
    ]
    away = (profile.power_w - np.array(true)) / profile.std_w
    assert np.all(np.isfinite(away))
    assert np.all(np.abs(away) < 2.5), "places count from the stamp, errors hold what the averaging hides"
    assert profile.std_w.max() < 0.5 * LEVEL_W


def test_what_a_lock_hides_is_in_the_errors_or_undetermined(monkeypatch: pytest.MonkeyPatch) -> None:
    """An average over two executions sees their mean alone, whatever the profile is."""
    monkeypatch.setattr(made_readings, "shape_of", lambda place: np.where(place < 0.5, 1.4, 0.6))
    record = made("boxcar", 0.1, 0.1, 1.5 + 0.05 * np.arange(200), 0.05, seed=22)
    profile = fold_profile(board_updates(record.time_s, record.power_w, record.calibration), record.load, record.calibration, discard_s=0.2)
    known = np.isfinite(profile.power_w)
    true = REST_W + LEVEL_W * np.where(profile.place_s / profile.duration_s < 0.5, 1.4, 0.6)
    assert np.all(np.abs(profile.power_w - true)[known] < 2.5 * profile.std_w[known])


def test_too_few_or_unlike_executions_are_refused() -> None:
    record = made("boxcar", 0.1, 0.1, 1.5 + 0.3 * np.arange(3), 0.3)
    with pytest.raises(SensorError, match="at least 4"):
        folded(record)
    unlike = LoadStamps(start_s=np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), end_s=np.array([1.1, 2.9, 3.1, 4.9, 5.1, 6.9]))
    with pytest.raises(SensorError, match="differ in length"):
        folded(replace(record, load=unlike))


def test_a_period_is_found_from_the_readings_alone() -> None:
    record = made("boxcar", 0.1, 0.1, 1.0 + 0.73 * np.arange(24), 0.4, seed=5)
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    assert find_period(updates) == pytest.approx(0.73, abs=0.003)


def test_no_period_is_found_where_there_is_none() -> None:
    random = np.random.default_rng(3)
    time_s = 0.1 * np.arange(300)
    noise = BoardUpdates(time_s=time_s, value=100.0 + random.normal(0.0, 1.0, 300), period_s=0.1, time_std_s=1e-3, notes={})
    with pytest.raises(SensorError, match="no period"):
        find_period(noise)
    for count in (40, 60, 125):
        spike = np.where(np.arange(count) == count // 3, 150.0, 60.0)
        with pytest.raises(SensorError, match="none of their variance") as refused:
            find_period(replace(noise, time_s=time_s[:count], value=spike))
        assert not re.search(r"-\d", str(refused.value)), "a share below nothing"
    with pytest.raises(SensorError, match="too short or too even"):
        find_period(replace(noise, value=np.full(300, 100.0)))


def test_rests_around_a_load_without_stamps_are_not_folded_in() -> None:
    cycle_s, length_s = 0.263, 0.13
    record = made("low-pass", 0.025, 0.1012, 3.0 + cycle_s * np.arange(60), length_s, after_s=5.0, seed=6)
    found = correct_recording(record.time_s, record.power_w, record.calibration, None, cycle_s)
    profile = found.profile
    assert profile is not None
    assert profile.executions == pytest.approx(60, abs=2)
    assert "rested" in found.notes["fold"]
    low, high = np.sort(profile.power_w)[[0, -1]]
    assert low == pytest.approx(REST_W, abs=0.1 * LEVEL_W), "a rest that is folded in rings below the board's own"
    assert high == pytest.approx(REST_W + LEVEL_W * shape_of(np.zeros(1))[0], rel=0.1)


def test_a_recording_that_never_rests_is_folded_whole() -> None:
    record = made("boxcar", 0.1, 0.1, 0.263 * np.arange(40), 0.13, after_s=0.0)
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    part, said = without_rests(updates)
    assert (len(part.time_s), said) == (len(updates.time_s), "")
    still = replace(updates, value=np.full(len(updates.time_s), 100.0))
    assert without_rests(still) == (still, "")


@pytest.mark.parametrize(("period_s", "reason"), [(5.0, "only 2 periods"), (1e-9, "is the period in seconds")])
def test_periods_that_cannot_be_folded_are_refused(period_s: float, reason: str) -> None:
    with pytest.raises(SensorError, match=reason):
        periodic_load(period_s, 0.0, 12.0)


@pytest.mark.parametrize(("factor", "told"), [(1.0, ""), (2.0, ""), (0.777, "repeat"), (1.4142, "repeat")])
def test_only_a_period_that_the_readings_repeat_with_is_folded_by(factor: float, told: str) -> None:
    record = made("boxcar", 0.025, 0.1, 1.5 + 0.2633 * np.arange(60), 0.21, seed=4, after_s=0.3)
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    with pytest.raises(SensorError, match=told) if told else nullcontext():
        check_fold(updates, factor * 0.2633, 0.3)


def test_readings_that_never_change_are_folded_by_any_period() -> None:
    flat = BoardUpdates(time_s=0.1 * np.arange(300), value=np.full(300, 80.0), period_s=0.1, time_std_s=1e-3, notes={})
    check_fold(flat, 0.3, 0.3)


ALIASED_S, UPDATE_S = 0.10434, 0.1012


@pytest.fixture(scope="module")
def near_the_updates() -> Made:
    """A load whose period is near that of the updates, which see its beat."""
    return made("low-pass", 0.025, UPDATE_S, 1.0 + ALIASED_S * np.arange(110), 0.052, seed=7, after_s=0.2)


@pytest.mark.parametrize("period_s", [0.104, 0.73, 0.0983, 0.05])
def test_aliases_are_the_periods_that_leave_the_same_readings(period_s: float) -> None:
    time_s = UPDATE_S * np.arange(50)
    others = aliases(period_s, UPDATE_S)
    assert len(others) == 4
    assert period_s not in others
    for other in others:
        np.testing.assert_allclose(np.cos(2 * np.pi * time_s / other), np.cos(2 * np.pi * time_s / period_s), atol=1e-6)


def test_without_stamps_a_period_at_the_updates_own_is_refused(near_the_updates: Made) -> None:
    updates = board_updates(near_the_updates.time_s, near_the_updates.power_w, near_the_updates.calibration)
    for period_s in (UPDATE_S, 0.5 * UPDATE_S):
        with pytest.raises(SensorError, match="in the same place again and again; give --load"):
            check_fold(updates, period_s, 0.3)


def test_a_profile_without_stamps_names_its_aliases_and_says_where_it_is_impossible(near_the_updates: Made) -> None:
    record = near_the_updates
    true = correct_recording(record.time_s, record.power_w, record.calibration, None, ALIASED_S)
    assert "look the same" in true.notes["fold"]
    assert "profile_power" not in true.notes
    alias = 1.0 / (2.0 / UPDATE_S + 1.0 / ALIASED_S)
    false = correct_recording(record.time_s, record.power_w, record.calibration, None, alias)
    assert "0.1043" in false.notes["fold"]
    assert "impossible" in false.notes["profile_power"]
