"""A sensor that the readings contradict is said; the right one never is; real recordings beside simulated ones."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.recordings.run import read_run
from collector.sensing.calibration import SensorCalibration
from collector.sensing.correct import correct_recording
from collector.sensing.repeated import contradictions
from tests.collector import made_readings
from tests.collector.made_readings import Made, made
from tests.collector.test_correct_command import run, written

AGAINST = ("sensor", "execution_energy", "update_period_s")
A100 = SensorCalibration(
    gpu_uuid="", driver="535.54.03", sensor="nvidia-smi", field="instant", averaging="low-pass", n_updates=124, update_period_s=0.101217,
    update_period_std_s=8e-6, update_jitter_s=6e-4, window_s=0.0249, window_std_s=2e-4, tau_s=0.01246, delay_s=-5.88e-3, delay_std_s=1.4e-4,
    gain=0.9596, gain_std=1e-3, offset_w=-2.3, offset_std_w=0.1, residual_w=1.48, reading_noise_w=0.16,
)  # fmt: skip
RTX3090 = SensorCalibration(
    gpu_uuid="", driver="535.54.03", sensor="nvidia-smi", field="instant", averaging="boxcar", n_updates=161, update_period_s=0.09997,
    update_period_std_s=5e-6, update_jitter_s=2.3e-4, window_s=0.1026, window_std_s=5e-4, delay_s=-3.96e-3, delay_std_s=3e-4,
    gain=0.9501, gain_std=1e-3, offset_w=0.0, offset_std_w=0.3, residual_w=0.69, reading_noise_w=0.13,
)  # fmt: skip
"""What `collect sensor` finds in the two recordings."""


def jittered(averaging: str, width_s: float, seed: int) -> Made:
    """Executions of 58 ms that do not lock to the updates."""
    starts = 1.5 + np.cumsum(0.127 + np.random.default_rng(seed).uniform(-3e-3, 3e-3, 60))
    return made(averaging, width_s, 0.1, starts, 0.058, seed=seed)


@pytest.fixture(scope="module")
def record() -> Made:
    return jittered("boxcar", 0.025, 3)


def against(case: Made, calibration: SensorCalibration) -> set[str]:
    """Keys of the notes that speak against a sensor."""
    return set(correct_recording(case.time_s, case.power_w, calibration, case.load).notes) & set(AGAINST)


@pytest.mark.parametrize(("averaging", "width_s"), [("boxcar", 0.025), ("boxcar", 0.1), ("low-pass", 0.025), ("low-pass", 0.2)])
def test_the_right_sensor_is_not_contradicted(averaging: str, width_s: float) -> None:
    case = jittered(averaging, width_s, 5)
    assert not against(case, case.calibration)
    assert not against(case, replace(case.calibration, delay_s=3e-3, delay_std_s=5e-4)), "within its stated error"


def with_levels(averaging: str, width_s: float, period_s: float, length_s: float, seed: int, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Executions with four far apart levels of power within, and pauses of changing length between them."""
    monkeypatch.setattr(made_readings, "shape_of", lambda place: np.select([place < 0.3, place < 0.6, place < 0.8], [0.5, 1.6, 0.4], 1.5))
    starts = 1.5 + np.arange(150) * (length_s + 1e-3) + np.cumsum(0.05 * ((0.618 * np.arange(150)) % 1.0))
    return made(averaging, width_s, period_s, starts, length_s, seed=seed)


@pytest.mark.parametrize(
    ("averaging", "width_s", "period_s", "length_s"),
    [("low-pass", 0.106, 0.015, 0.1), ("low-pass", 0.106, 0.02, 0.08), ("boxcar", 0.1, 0.1, 0.137)],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_levels_within_an_execution_are_not_taken_for_another_sensor(
    averaging: str, width_s: float, period_s: float, length_s: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = with_levels(averaging, width_s, period_s, length_s, seed, monkeypatch)
    assert not against(case, case.calibration)


def test_a_misfit_that_nothing_explains_is_said_beyond_the_sensors_own_scatter_alone(record: Made) -> None:
    random = np.random.default_rng(4)
    start = np.sort(random.permutation(record.load.start_s)[:20])
    moved = replace(record, load=replace(record.load, start_s=start, end_s=start + 0.058))
    assert "sensor" in against(moved, replace(record.calibration, residual_w=1.0)), "two of three executions have no stamp"
    assert "sensor" not in against(moved, replace(record.calibration, residual_w=100.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"window_s": 0.1},
        {"window_s": 1.0},
        {"averaging": "low-pass", "window_s": 0.2, "tau_s": 0.1},
        {"delay_s": 0.2},
        {"delay_s": 0.012},
        {"averaging": "none", "window_s": None},
        {"window_s": 0.0},
    ],
)
def test_a_wrong_averaging_or_delay_is_contradicted(record: Made, wrong: dict[str, Any]) -> None:
    assert "sensor" in against(record, replace(record.calibration, **wrong))


@pytest.mark.parametrize(("share", "said"), [(0.9, False), (1.001, False), (1.5, True)])
def test_executions_that_take_more_than_the_load_beyond_errors_are_said(record: Made, share: float, said: bool) -> None:
    found = correct_recording(record.time_s, record.power_w, record.calibration, record.load)
    assert found.repeated is not None
    energy = replace(found.repeated, energy_j=share * found.repeated.total_j / found.repeated.executions)
    assert ("execution_energy" in contradictions(found.updates, record.load, record.calibration, energy)) is said


@pytest.mark.parametrize(("period_s", "said"), [(0.1, False), (0.1002, False), (0.10125, True)])
def test_an_update_period_of_another_sensor_is_said(record: Made, period_s: float, said: bool) -> None:
    calibration = replace(record.calibration, update_period_s=period_s, update_period_std_s=1e-5)
    assert ("update_period_s" in against(record, calibration)) is said


def test_a_contradicted_sensor_warns_and_gives_status_3(record: Made, tmp_path: Path) -> None:
    paths = written(replace(record, calibration=replace(record.calibration, delay_s=0.05)), tmp_path)
    status, printed = run("--readings", paths["readings"], "--sensor", paths["sensor"], "--load", paths["load"], "--json")
    assert status == 3
    assert "warning: the readings contradict the sensor" in printed.stderr
    assert "sensor" in json.loads(printed.stdout)["notes"]


@pytest.mark.parametrize(
    ("folder", "calibration", "expected"),
    [
        ("a100_square_wave", A100, set()),
        ("rtx3090_step", RTX3090, set()),
        ("a100_square_wave", RTX3090, {"sensor", "update_period_s"}),
        ("rtx3090_step", A100, {"update_period_s"}),
    ],
)
def test_recorded_boards_have_their_own_sensor_and_not_the_other(
    shared_data: Path, folder: str, calibration: SensorCalibration, expected: set[str]
) -> None:
    place = shared_data / "sensors" / folder
    run_read = read_run(place / "gpudata.csv", place / "timestamps.csv", column="power.draw.instant", board=None)
    found = correct_recording(run_read.time_s, run_read.power_w, calibration, run_read.load)
    assert set(found.notes) & set(AGAINST) == expected


def late_board(monkeypatch: pytest.MonkeyPatch) -> Made:
    """A fifth of a board's power follows in 24 ms, read by a low-pass of 24 ms with the window of 48."""
    monkeypatch.setattr(made_readings, "LINGER_S", 0.024)
    starts = 1.5 + np.cumsum(0.084 + np.random.default_rng(9).uniform(-3e-3, 3e-3, 60))
    return made("low-pass", 0.048, 0.05, starts, 0.058, seed=9, linger_share=0.21)


def test_the_right_sensor_of_a_board_that_follows_late_is_not_said_to_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    case = late_board(monkeypatch)
    found = correct_recording(case.time_s, case.power_w, case.calibration, case.load)
    assert "the board's power follows the load late" in found.notes.get("sensor", "the board's power follows the load late")
    assert found.repeated is not None
    true_j = float(case.energy_j(case.load.start_s, case.load.end_s).mean())
    assert abs(found.repeated.energy_j - true_j) < 2.5 * found.repeated.energy_std_j, "what the note says of the energies"


def test_what_the_stated_error_holds_is_no_alarm(record: Made) -> None:
    """The other kernel of the same width leaves ten times as much, and its energy has an error that holds the truth."""
    calibration = replace(record.calibration, residual_w=8.0, averaging="low-pass")
    found = correct_recording(record.time_s, record.power_w, calibration, record.load)
    assert found.repeated is not None
    true_j = float(record.energy_j(record.load.start_s, record.load.end_s).mean())
    assert abs(found.repeated.energy_j - true_j) < 2.5 * found.repeated.energy_std_j
    assert not {"sensor", "sensor_check"} & set(found.notes)


def test_one_event_is_no_other_sensor(record: Made) -> None:
    power_w = record.power_w.copy()
    struck = (record.time_s > record.load.start_s[30]) & (record.time_s < record.load.start_s[30] + 0.4)
    power_w[struck] += 25.0
    found = correct_recording(record.time_s, power_w, replace(record.calibration, residual_w=1.5), record.load)
    assert "look like" not in found.notes.get("sensor", "")


@pytest.mark.parametrize(("first", "last"), [(None, 20), (10, None), (10, 20)])
def test_executions_that_the_recording_cuts_contradict_nothing(first: int | None, last: int | None) -> None:
    """Cut in the middle of an execution, which a quick sensor reads many times."""
    starts = 1.5 + np.cumsum(0.41 + np.random.default_rng(3).uniform(-3e-3, 3e-3, 30))
    case = made("boxcar", 0.01, 0.02, starts, 0.3, seed=3)
    begin_s = -np.inf if first is None else starts[first] + 0.1
    end_s = np.inf if last is None else starts[last] + 0.2
    kept = (case.time_s > begin_s) & (case.time_s < end_s)
    found = correct_recording(case.time_s[kept], case.power_w[kept], case.calibration, case.load)
    assert "lie wholly within" in found.notes["load"]
    assert not set(found.notes) & set(AGAINST)
    assert found.repeated is not None
    left_w = (found.updates.value - found.repeated.fit.predicted_w)[found.repeated.fit.used]
    assert np.sqrt(np.mean(left_w**2)) < 2.0, "readings of what was cut are none of a board at rest"
    inside = (starts > begin_s) & (starts + 0.3 < end_s)
    true_j = float(case.energy_j(starts[inside], starts[inside] + 0.3).mean())
    assert abs(found.repeated.energy_j - true_j) < 3.0 * found.repeated.energy_std_j
