"""A simulated sensor that samples on a clock of its own, as an H200's: its delay drifts, and begins anew after each of its periods."""

import numpy as np
import pytest
from scipy.signal import lfilter

from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.correct import correct_recording
from collector.sensing.identify import SensorRecord, identify_sensor

STEP_S = 1e-4
REST_W, LOAD_W = 120.0, 460.0
TAU_S, SAMPLE_S, UPDATE_S = 0.0125, 0.02, 0.100028
NAME = SensorCalibration(gpu_uuid="", driver="", sensor="simulated", field="instant", gain=1.0, offset_w=0.0)


def low_pass(values, tau_s):
    keep = np.exp(-STEP_S / tau_s)
    return lfilter([1.0 - keep], [1.0, -keep], values)


def record(runs_s, rest_s, first_s, seed):
    """The record of runs with rests after them, the sensor's first sample at `first_s`; and the true energy of a run."""
    random = np.random.default_rng(seed)
    start = 2.0 + np.concatenate([[0.0], np.cumsum(runs_s + rest_s)[:-1]])
    load = LoadStamps(start_s=start, end_s=start + runs_s)
    grid = np.arange(0.0, load.end_s[-1] + 1.0, STEP_S)
    on = np.searchsorted(start + 3e-4, grid, side="right") > np.searchsorted(load.end_s + 3e-4, grid, side="right")
    power = low_pass(LOAD_W * on, 1.1e-3)
    update = np.arange(0.03, grid[-1], UPDATE_S)
    sample = first_s + SAMPLE_S * np.floor((update - first_s) / SAMPLE_S)
    shown = REST_W + np.interp(sample, grid, low_pass(power, TAU_S)) + random.normal(0.0, 1.0, len(sample))
    poll = np.arange(0.2, grid[-1], 2e-3)
    reading = np.round(shown[np.searchsorted(update, poll, side="right") - 1], 3)
    within = (grid >= start[:, None]) & (grid < load.end_s[:, None])
    return SensorRecord(time_s=poll, power_w=reading, load=load), float(((REST_W + power) * within).sum() * STEP_S / len(start))


def square_waves():
    """Runs and rests of the square waves of `collect sensor` [s]."""
    half = np.concatenate(
        [0.5 * period * np.linspace(1.0, 1.03, count) for period, count in ((0.127, 45), (0.23, 18), (0.47, 9), (3.0, 1))]
    )
    return half, half


@pytest.fixture(scope="module")
def stated():
    """The calibration of an earlier record."""
    return identify_sensor(record(*square_waves(), 0.0, 1)[0], NAME).calibration


def test_a_delay_that_begins_anew_within_the_record_widens_the_errors():
    found = identify_sensor(record(*square_waves(), 0.01, 1)[0], NAME).calibration
    narrow = next(one for one in found.candidates if one.kernel == "low-pass")
    assert abs(narrow.window_s - 2.0 * TAU_S) < 2.0 * narrow.window_std_s
    assert narrow.delay_std_s > 8e-3


@pytest.mark.parametrize("run_s, rest_s, count", [(0.1, 0.2, 25), (0.4, 0.2, 12), (1.0, 0.5, 5)])
def test_energies_of_later_loads_hold_at_any_delay(stated, run_s, rest_s, count):
    away = []
    for seed in range(4):
        rest = rest_s * np.random.default_rng(seed).uniform(1.0, 1.2, count)
        later, true_j = record(np.full(count, run_s), rest, SAMPLE_S * seed / 4.0, seed)
        found = correct_recording(later.time_s, later.power_w, stated, load=later.load).repeated
        assert found.energy_j == pytest.approx(true_j, rel=0.03)
        away.append((found.energy_j - true_j) / found.timing_std_j)
    assert np.sqrt(np.mean(np.square(away))) < 2.0
