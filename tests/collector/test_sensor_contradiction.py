"""A sensor that the readings contradict is said; the right one never is; real recordings beside simulated ones."""

from dataclasses import replace

import numpy as np
import pytest

from collector.recordings.run import read_run
from collector.sensing.correct import correct_recording
from tests.collector.made_readings import made, sensor_of
from tests.collector.test_correct_command import correct, written

AGAINST = ("sensor", "update_period_s")
A100 = sensor_of("""
"gpu_uuid": "", "driver": "535.54.03", "sensor": "nvidia-smi", "field": "instant", "averaging": "low-pass",
"n_updates": 124, "update_period_s": 0.101217, "update_period_std_s": 8e-06, "update_jitter_s": 0.0006,
"window_s": 0.0249, "window_std_s": 0.0002, "tau_s": 0.01246, "delay_s": -0.00588, "delay_std_s": 0.00014,
"gain": 0.9596, "gain_std": 0.001, "offset_w": -2.3, "offset_std_w": 0.1, "residual_w": 1.48, "reading_noise_w": 0.16
""")
RTX3090 = sensor_of("""
"gpu_uuid": "", "driver": "535.54.03", "sensor": "nvidia-smi", "field": "instant", "averaging": "boxcar",
"n_updates": 161, "update_period_s": 0.09997, "update_period_std_s": 5e-06, "update_jitter_s": 0.00023,
"window_s": 0.1026, "window_std_s": 0.0005, "delay_s": -0.00396, "delay_std_s": 0.0003, "gain": 0.9501,
"gain_std": 0.001, "offset_w": 0.0, "offset_std_w": 0.3, "residual_w": 0.69, "reading_noise_w": 0.13
""")
"""What `collect sensor` finds in the two recordings."""


def jittered(averaging, width_s, seed):
    """Executions of 58 ms that do not lock to the updates."""
    starts = 1.5 + np.cumsum(0.127 + np.random.default_rng(seed).uniform(-3e-3, 3e-3, 60))
    return made(averaging, width_s, 0.1, starts, 0.058, seed=seed)


@pytest.fixture(scope="module")
def record():
    return jittered("boxcar", 0.025, 3)


def against(case, calibration):
    """Keys of the notes that speak against a sensor."""
    return set(correct_recording(case.time_s, case.power_w, calibration, case.load).notes) & set(AGAINST)


@pytest.mark.parametrize("averaging, width_s", [("boxcar", 0.025), ("boxcar", 0.1), ("low-pass", 0.025), ("low-pass", 0.2)])
def test_the_right_sensor_is_not_contradicted(averaging, width_s):
    case = jittered(averaging, width_s, 5)
    assert not against(case, case.calibration)
    assert not against(case, replace(case.calibration, delay_s=3e-3, delay_std_s=5e-4)), "within its stated error"
    kept = (case.time_s - 0.5) % 0.87 > 0.14  # each pause lies in another phase of the updates; some hold two
    assert not against(replace(case, time_s=case.time_s[kept], power_w=case.power_w[kept]), case.calibration)


def test_stamps_on_another_clock_are_said_beyond_the_sensors_own_scatter_alone(record):
    moved = replace(record, load=record.load.moved(0.37))
    assert "sensor" in against(moved, replace(record.calibration, residual_w=1.0))
    assert "sensor" not in against(moved, replace(record.calibration, residual_w=100.0))


@pytest.mark.parametrize(
    "change, said",
    [
        ({"window_s": 0.1}, {"sensor"}),
        ({"averaging": "low-pass", "window_s": 0.2}, {"sensor"}),
        ({"delay_s": 0.012}, {"sensor"}),
        ({"averaging": "none", "window_s": None}, {"sensor"}),
        ({"update_period_s": 0.1002, "update_period_std_s": 1e-5}, set()),
        ({"update_period_s": 0.10125, "update_period_std_s": 1e-5}, {"update_period_s"}),
    ],
)
def test_what_the_readings_contradict_is_said(record, change, said):
    found = against(record, replace(record.calibration, **change))
    assert said <= found if said else not found


def test_a_contradicted_sensor_is_a_note_and_gives_status_3(record, tmp_path):
    paths = written(replace(record, calibration=replace(record.calibration, delay_s=0.05)), tmp_path)
    assert "the readings contradict the sensor" in correct(paths, status=3)["notes"]["sensor"]


@pytest.mark.parametrize(
    "folder, calibration, expected",
    [
        ("a100_square_wave", A100, set()),
        ("rtx3090_step", RTX3090, set()),
        ("a100_square_wave", RTX3090, {"sensor", "update_period_s"}),
        ("rtx3090_step", A100, {"update_period_s"}),
    ],
)
def test_recorded_boards_have_their_own_sensor_and_not_the_other(shared_data, folder, calibration, expected):
    place = shared_data / "sensors" / folder
    run_read = read_run(place / "gpudata.csv", place / "timestamps.csv", column="power.draw.instant").record
    found = correct_recording(run_read.time_s, run_read.power_w, calibration, run_read.load)
    assert set(found.notes) & set(AGAINST) == expected


@pytest.mark.parametrize("first, last", [(None, 20), (10, None), (10, 20)])
def test_executions_that_the_recording_cuts_contradict_nothing(first, last):
    """Cut in the middle of an execution, which a quick sensor reads many times."""
    starts = 1.5 + np.cumsum(0.41 + np.random.default_rng(3).uniform(-3e-3, 3e-3, 30))
    case = made("boxcar", 0.01, 0.02, starts, 0.3, seed=3)
    begin_s = -np.inf if first is None else starts[first] + 0.1
    end_s = np.inf if last is None else starts[last] + 0.2
    kept = (case.time_s > begin_s) & (case.time_s < end_s)
    found = correct_recording(case.time_s[kept], case.power_w[kept], case.calibration, case.load)
    assert "lie wholly within" in found.notes["load"]
    assert not set(found.notes) & set(AGAINST)
    left_w = (found.updates.value - found.repeated.fit.predicted_w)[found.repeated.fit.used]
    assert np.sqrt(np.mean(left_w**2)) < 2.0, "readings of what was cut are none of a board at rest"
    inside = (starts > begin_s) & (starts + 0.3 < end_s)
    true_j = float(case.energy_j(starts[inside], starts[inside] + 0.3).mean())
    assert abs(found.repeated.energy_j - true_j) < 3.0 * found.repeated.energy_std_j
