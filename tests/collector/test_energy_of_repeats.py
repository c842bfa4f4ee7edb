"""Energy of repeated executions: true within its stated error, planned before it is run, never fooled by a lock.

Boards and recordings are simulated.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.energy_of_kernels import CLASSES, one_run, stand
from collector.bench import open_instruments
from collector.errors import SensorError
from collector.sampling import Sampler
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.correct import correct_recording
from collector.sensing.executions import fit_executions
from collector.sensing.known_sensor import possible_responses
from collector.sensing.repeated import repeated_energy
from collector.sensing.repeated_measurement import measure_repeated, plan_repeats
from collector.sensing.updates import BoardUpdates, board_updates
from tests.collector.made_readings import a_sensor, made

SENSORS = {
    "boxcar 100/100": ("boxcar", 0.1, 0.09997),
    "boxcar 25/100": ("boxcar", 0.025, 0.1),
    "boxcar 10/20": ("boxcar", 0.01, 0.02004),
    "low-pass 12.5/101": ("low-pass", 0.025, 0.1012),
    "low-pass 53/15": ("low-pass", 0.106, 0.01541),
    "trailing 1 s": ("boxcar", 1.1, 0.09997),
}
DISCARD_S = 0.2


def calibrated(name):
    return made(*SENSORS[name], np.array([1.0, 1.2]), 0.1).calibration


def planned(name, length_s, seed):
    """A recording of a batch that is planned for a sensor."""
    plan = plan_repeats(length_s, calibrated(name), 2.0)
    pauses = [plan.pause_after(index) for index in range(plan.executions - 1)]
    starts = 2.5 + 0.013 * seed + np.concatenate([[0.0], np.cumsum(length_s + np.array(pauses))])
    return made(*SENSORS[name], starts, length_s, seed=seed), plan.discard_s


def evaluated(record, discard_s):
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    found = repeated_energy((record.time_s, record.power_w), updates, record.load, record.calibration, discard_s=discard_s)
    kept = record.load.start_s >= record.load.start_s[0] + discard_s
    assert found.executions == np.count_nonzero(kept)
    return found, float(record.energy_j(record.load.start_s[kept], record.load.end_s[kept]).mean())


def test_energy_is_true_within_its_error_on_every_class_of_sensor():
    errors, z = [], []
    for seed, length_s in enumerate((0.03, 0.1, 0.325)):
        for name in SENSORS:
            found, true = evaluated(*planned(name, length_s, seed))
            errors.append(found.energy_j / true - 1.0)
            z.append((found.energy_j - true) / found.energy_std_j)
            assert found.energy_std_j < 0.02 * true
            assert found.timing_std_j == pytest.approx(found.energy_std_j), "gain and offset have no error here"
            assert abs(errors[-1]) < 0.015, (name, length_s)
    assert abs(np.mean(errors)) < 0.003
    assert 0.3 < math.sqrt(np.mean(np.square(z))) < 1.7
    assert np.mean(np.abs(z) < 2.0) >= 0.83


def test_repeats_locked_to_the_updates_have_honestly_large_errors_and_pauses_break_the_lock():
    locked, shifted = [], []
    for seed in range(3):
        starts = 2.5 + 0.017 * seed + 0.1 * np.arange(50)
        found, true = evaluated(made("boxcar", 0.025, 0.1, starts, 0.1, seed=seed), DISCARD_S)
        locked.append((found.energy_j / true - 1.0, found.energy_std_j / true))
        found, true = evaluated(*planned("boxcar 25/100", 0.1, seed))
        shifted.append((found.energy_j / true - 1.0, found.energy_std_j / true))
    error, std = np.abs(np.array(locked)).T
    assert error.max() > 0.03
    assert std.min() > 0.03
    assert np.all(error < 3.0 * std)
    assert np.abs(np.array(shifted)[:, 0]).max() < 0.015
    assert np.array(shifted)[:, 1].max() < 0.015


def test_pauses_are_planned_where_repeats_would_lock_and_nowhere_else():
    for name, (_, width_s, period_s) in SENSORS.items():
        plan = plan_repeats(2.0 * period_s, calibrated(name))
        partly = width_s < 0.9 * period_s
        assert plan.pause_s == pytest.approx(0.381966 * period_s if partly else 0.0, abs=1e-6), name


def test_too_few_readings_and_too_short_loads_are_refused():
    record = made("boxcar", 0.1, 0.1, np.array([1.0, 1.2]), 0.1)
    response = possible_responses(record.calibration).responses[0]
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    with pytest.raises(SensorError, match="readings lie within"):
        fit_executions(replace(updates, time_s=updates.time_s[:2], value=updates.value[:2]), response, record.load)
    with pytest.raises(SensorError, match="repeat longer"):
        fit_executions(updates, response, record.load, discard_s=5.0)


def test_a_simulated_board_is_measured_to_the_error_that_was_asked_for():
    z = []
    for kind in CLASSES:
        if kind.name in ("boxcar 25/100", "boxcar 10/20"):
            run = one_run(kind, 0.05, 1, 0.004)
            assert abs(run["ours"]) < 0.015
            assert run["naive"] < -0.08
            z.append(run["ours"] / run["ours stated"])
    assert np.max(np.abs(z)) < 3.5


def test_what_the_board_did_before_it_rested_is_not_taken_for_noise():
    kind = next(kind for kind in CLASSES if kind.name == "trailing 1 s")
    with stand(kind, 0.05, 5) as here:
        found = measure_repeated(here.bench, here.sampler, here.execute, here.calibration)
        noise_w = here.board.world.profile.sensor.noise_w
    assert all(run.energy.fit.noise_w < 1.5 * noise_w for run in found.runs)


@pytest.mark.parametrize("length_s, held_up_s", [(1e-4, 1e-4), (0.015, 2.0)], ids=["too short", "held up while ranging"])
def test_executions_too_short_are_refused_and_those_held_up_while_ranging_are_repeated(length_s, held_up_s):
    with open_instruments("sim:a100-pcie-40gb", seed=1) as instruments:
        lengths = iter([held_up_s] * 3)

        def execute():
            start = instruments.clock.now_ns()
            instruments.clock.wait(next(lengths, length_s))
            return start, instruments.clock.now_ns()

        sampler, identity = Sampler(instruments.gpu, instruments.sensors), instruments.gpu.identity()
        unknown = SensorCalibration(gpu_uuid=identity.uuid, driver=identity.driver, sensor=sampler.sensor_name, field=sampler.field)
        if length_s < 1e-3:
            with pytest.raises(SensorError, match="repeat the kernel within one"):
                measure_repeated(instruments, sampler, execute, unknown)
            return
        found = measure_repeated(instruments, sampler, execute, unknown, asked_std=0.02)
    assert abs(found.energy_j - found.rest_w * length_s) < 5.0 * found.energy_std_j


def test_a_one_second_mean_says_that_it_cannot_tell_what_lingers_in_pauses():
    off = []
    for pause_s in (0.03, 0.05, 0.07):
        for seed in range(4):
            starts = 3.0 + (0.1 + pause_s) * np.arange(50) + np.cumsum(np.random.default_rng(seed).uniform(-1e-3, 1e-3, 50))
            record = made("trailing-mean", 1.1, 0.1, starts, 0.1, seed=seed, linger_share=0.12, after_s=3.0)
            found = correct_recording(record.time_s, record.power_w, record.calibration, record.load).repeated
            off.append((found.energy_j - record.energy_j(record.load.start_s, record.load.end_s).mean()) / found.energy_std_j)
    assert np.sqrt(np.mean(np.square(off))) < 1.6
    assert np.count_nonzero(np.abs(off) < 2.0) >= 10


def test_an_update_that_did_not_come_moves_no_energy_by_more_than_its_error():
    """It gives the value before it once more."""
    record, discard_s = planned("low-pass 12.5/101", 0.325, 3)
    (response,) = possible_responses(record.calibration).responses
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    given = {"noise_w": 0.3, "discard_s": discard_s}
    whole = fit_executions(updates, response, record.load, **given)
    for place in np.flatnonzero(whole.used)[6::8]:
        value = updates.value.copy()
        value[place] = value[place - 1]
        found = fit_executions(replace(updates, value=value), response, record.load, **given)
        assert not found.used[place]
        assert abs(found.energy_j - whole.energy_j) < 3.0 * found.energy_std_j


UPDATE_S, WINDOW_S, NOISE_W, REST_W, STEP_W = 0.1, 0.05, 0.3, 70.0, 180.0


def exact(length_s, pause_s, late_s, seed):
    """What is found for executions whose power steps `late_s` after their stamps; their true energy, and that of the load [J]."""
    random = np.random.default_rng(seed)
    lengths, pauses = length_s * random.uniform(0.98, 1.02, 400), pause_s * random.uniform(0.96, 1.04, 400)
    starts = 1.0 + np.cumsum(lengths + pauses) - lengths
    count = int(np.searchsorted(starts, 18.0))
    starts, ends = starts[:count], starts[:count] + lengths[:count]

    def on_s(time_s):
        return np.clip(time_s[:, None] - starts - late_s, 0.0, ends - starts - late_s).sum(axis=1)

    update = np.arange(0.113, 20.0, UPDATE_S)
    value = REST_W + STEP_W * (on_s(update) - on_s(update - WINDOW_S)) / WINDOW_S + random.normal(0.0, NOISE_W, len(update))
    calibration = a_sensor(update_jitter_s=2e-5, window_s=WINDOW_S, window_std_s=5e-5, delay_std_s=5e-5)
    updates = BoardUpdates(time_s=update, value=value, period_s=UPDATE_S, time_std_s=2e-5, note="")
    found = repeated_energy((update, value), updates, LoadStamps(start_s=starts, end_s=ends), calibration)
    drawn = STEP_W * (ends - starts - late_s)
    return found, float(np.mean(REST_W * (ends - starts) + drawn)), float(REST_W * (ends[-1] - starts[0]) + drawn.sum())


@pytest.mark.parametrize("late_s", [0.0, 3e-4, 1e-3])
@pytest.mark.parametrize("length_s, pause_s", [(0.058, 0.069), (0.3, 0.25), (0.01, 0.037)])
def test_the_energy_of_an_execution_is_true_however_soon_its_power_begins(length_s, pause_s, late_s):
    for seed in (1, 2):
        found, energy_j, total_j = exact(length_s, pause_s, late_s, seed)
        assert abs(found.energy_j - energy_j) < 3.0 * found.energy_std_j
        assert abs(found.energy_j - energy_j) < 5e-4 * STEP_W, "half a millisecond of the step"
        assert abs(found.total.energy_j - total_j) < 3.0 * found.total.energy_std_j
