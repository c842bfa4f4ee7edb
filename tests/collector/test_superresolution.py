"""The profile within an execution: found where phases fill, undetermined where they do not.  Recordings are simulated."""

from dataclasses import replace

import numpy as np
import pytest

from collector.errors import SensorError
from collector.sensing.board_power import LoadStamps
from collector.sensing.fold import Profile, fold_profile
from collector.sensing.repeated import repeated_energy
from collector.sensing.updates import board_updates
from tests.collector import made_readings
from tests.collector.made_readings import LEVEL_W, REST_W, Made, made, shape_of


def folded(record: Made, discard_s: float = 0.2) -> Profile:
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    found = repeated_energy((record.time_s, record.power_w), updates, record.load, record.calibration, discard_s=discard_s)
    return fold_profile(found, record.load, record.calibration)


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
    profile = folded(record, 0.0)
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
    profile = folded(record)
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
