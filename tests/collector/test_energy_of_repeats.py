"""Energy of repeated executions: true within its stated error, planned before it is run, never fooled by a lock.

Boards and recordings are simulated.
"""

import math

import numpy as np
import pytest

from collector.bench import open_simulated
from collector.errors import SensorError
from collector.sensing.baselines import (
    FULL_WINDOW,
    SHORT_WINDOW,
    TRAILING_SECOND,
    Practice,
    practice_for,
    practice_refusal,
    published_energy,
)
from collector.sensing.board_power import LoadStamps
from collector.sensing.correct import correct_recording
from collector.sensing.executions import FitSettings, fit_executions
from collector.sensing.known_sensor import possible_responses
from collector.sensing.repeat_plan import plan_repeats
from collector.sensing.repeated import RepeatedEnergy, bins_for, repeated_energy
from collector.sensing.updates import board_updates
from tests.collector.made_readings import Made, made

SENSORS = {
    "boxcar 100/100": ("boxcar", 0.1, 0.09997),
    "boxcar 25/100": ("boxcar", 0.025, 0.1),
    "boxcar 10/20": ("boxcar", 0.01, 0.02004),
    "low-pass 12.5/101": ("low-pass", 0.025, 0.1012),
    "low-pass 53/15": ("low-pass", 0.106, 0.01541),
    "trailing 1 s": ("boxcar", 1.1, 0.09997),
}
DISCARD_S = 0.2


def planned(name: str, length_s: float, seed: int, pauses: bool = True) -> tuple[Made, float]:
    """A recording of the run that is planned for a sensor."""
    averaging, width_s, period_s = SENSORS[name]
    calibration = made(averaging, width_s, period_s, np.array([1.0, 1.2]), 0.1).calibration
    plan = plan_repeats(length_s, calibration, 0.003, settle_s=DISCARD_S, power_w=200.0, rest_w=60.0)
    starts = 2.5 + 0.013 * seed + plan.stamps(length_s).start_s
    if not pauses:
        starts = starts[0] + length_s * np.arange(len(starts))
    return made(averaging, width_s, period_s, starts, length_s, seed=seed), plan.discard_s


def evaluated(record: Made, discard_s: float) -> tuple[RepeatedEnergy, float]:
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    found = repeated_energy((record.time_s, record.power_w), updates, record.load, record.calibration, discard_s=discard_s)
    kept = record.load.start_s >= record.load.start_s[0] + discard_s
    assert found.executions == np.count_nonzero(kept)
    return found, float(record.energy_j(record.load.start_s[kept], record.load.end_s[kept]).mean())


def test_energy_is_true_within_its_error_on_every_class_of_sensor() -> None:
    errors, z = [], []
    for seed, length_s in enumerate((0.02, 0.1, 0.325)):
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


def test_repeats_locked_to_the_updates_have_honestly_large_errors_and_pauses_break_the_lock() -> None:
    locked, shifted = [], []
    for seed in range(3):
        starts = 2.5 + 0.017 * seed + 0.1 * np.arange(50)
        record = made("boxcar", 0.025, 0.1, starts, 0.1, seed=seed)
        found, true = evaluated(record, DISCARD_S)
        locked.append((found.energy_j / true - 1.0, found.energy_std_j / true))
        found, true = evaluated(*planned("boxcar 25/100", 0.1, seed))
        shifted.append((found.energy_j / true - 1.0, found.energy_std_j / true))
    error, std = np.abs(np.array(locked)).T
    assert error.max() > 0.03
    assert std.min() > 0.03
    assert np.all(error < 3.0 * std)
    assert np.abs(np.array(shifted)[:, 0]).max() < 0.015
    assert np.array(shifted)[:, 1].max() < 0.015


def test_pauses_are_planned_where_repeats_would_lock_and_nowhere_else() -> None:
    for name in SENSORS:
        calibration = made(*SENSORS[name], np.array([1.0, 1.2]), 0.1).calibration
        length_s = 2.0 * SENSORS[name][2]
        plan = plan_repeats(length_s, calibration, 0.01, settle_s=DISCARD_S)
        partly = SENSORS[name][1] < 0.9 * SENSORS[name][2]
        assert plan.pause_s == pytest.approx(0.381966 * SENSORS[name][2] if partly else 0.0, abs=1e-6), name


def test_a_smaller_error_takes_longer() -> None:
    calibration = made(*SENSORS["low-pass 12.5/101"], np.array([1.0, 1.2]), 0.1).calibration
    plans = [plan_repeats(0.05, calibration, asked, settle_s=DISCARD_S) for asked in (0.02, 0.005, 0.002)]
    assert [plan.executions for plan in plans] == sorted(plan.executions for plan in plans)
    assert plans[0].executions < plans[-1].executions
    assert all(plan.expected_std <= asked for plan, asked in zip(plans, (0.02, 0.005, 0.002), strict=True))
    assert plans[-1].stamps(0.05).end_s[-1] < 5.0  # the published practice takes that long, whatever is asked


def test_published_practice_of_a_constant_power_is_that_power() -> None:
    time_s = np.arange(0.0, 8.0, 0.01)
    load = LoadStamps(start_s=1.0 + 0.5 * np.arange(10), end_s=1.4 + 0.5 * np.arange(10))
    for practice in (FULL_WINDOW, TRAILING_SECOND, SHORT_WINDOW):
        assert published_energy(time_s, np.full(len(time_s), 150.0), load, practice) == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("count", "length_s", "pause_after", "practice", "reason"),
    [
        (32, 0.05, 0, FULL_WINDOW, ""),
        (10, 0.6, 0, TRAILING_SECOND, ""),
        (32, 0.05, 4, SHORT_WINDOW, ""),
        (32, 0.05, 4, FULL_WINDOW, "it is for consecutive executions, no pauses among so many; the load has 7"),
        (32, 0.05, 2, SHORT_WINDOW, "at most 8 pauses among so many; the load has 15"),
        (100, 0.05, 1, TRAILING_SECOND, "the load has 99"),
        (31, 0.05, 0, FULL_WINDOW, "it is for 32 consecutive executions, or 5 s of them"),
        (1, 3.0, 0, SHORT_WINDOW, "it is for 32 consecutive executions, or 5 s of them"),
    ],
)
def test_published_practice_is_for_its_own_protocol(count: int, length_s: float, pause_after: int, practice: Practice, reason: str) -> None:
    number = np.arange(count)
    start_s = 1.0 + 1.001 * length_s * number + (0.025 * (number // pause_after) if pause_after else 0.0)
    refusal = practice_refusal(LoadStamps(start_s=start_s, end_s=start_s + length_s), practice)
    assert bool(refusal) == bool(reason)
    assert reason in refusal


def test_practice_follows_the_class_of_the_sensor() -> None:
    classes = {name: practice_for(made(*SENSORS[name], np.array([1.0, 1.2]), 0.1).calibration) for name in SENSORS}
    assert classes["boxcar 100/100"] == FULL_WINDOW
    assert classes["low-pass 12.5/101"] == SHORT_WINDOW


def test_too_few_readings_and_too_short_loads_are_refused() -> None:
    record = made("boxcar", 0.1, 0.1, np.array([1.0, 1.2]), 0.1)
    response = possible_responses(record.calibration).responses[0]
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    with pytest.raises(SensorError, match="readings lie within"):
        fit_executions(updates.time_s[:2], updates.value[:2], response, record.load, FitSettings(bins=4))
    with pytest.raises(SensorError, match="repeat longer"):
        fit_executions(updates.time_s, updates.value, response, record.load, FitSettings(bins=4, discard_s=5.0))


def test_a_simulated_board_is_measured_to_the_error_that_was_asked_for() -> None:
    from benchmarks.energy_of_kernels import CLASSES, one_run

    z = []
    for kind in CLASSES:
        if kind.name in ("boxcar 25/100", "boxcar 10/20"):
            run = one_run(kind, 0.05, 1, 0.004)
            assert abs(run["ours"]) < 0.015
            assert run["naive"] < -0.08
            z.append(run["ours"] / run["ours stated"])
    assert np.max(np.abs(z)) < 3.5


@pytest.mark.parametrize("name", ["trailing 1 s"])
def test_what_the_board_did_before_it_rested_is_not_taken_for_noise(name: str) -> None:
    from benchmarks.energy_of_kernels import CLASSES, stand
    from collector.sensing.repeated_measurement import measure_repeated

    kind = next(kind for kind in CLASSES if kind.name == name)
    with stand(kind, 0.05, 5) as here:
        found = measure_repeated(here.bench, here.sampler, here.execute, here.calibration)
        noise_w = here.board.world.profile.sensor.noise_w
    assert all(run.energy.fit.noise_w < 1.5 * noise_w for run in found.runs)


def test_executions_too_short_for_stamps_are_refused() -> None:
    from collector.bench import Bench
    from collector.sampling import Sampler
    from collector.sensing.repeated_measurement import measure_repeated

    with open_simulated("a100-pcie-40gb", seed=1) as board:
        bench = Bench(
            word="sim",
            gpu=board.gpu,
            sensors=(board.sensor,),
            runner=board.runner,
            clock=board.clock,
            gpu_spec=board.world.gpu,
            simulated=True,
        )

        def blink() -> tuple[int, int]:
            start = board.clock.now_ns()
            board.clock.wait(1e-4)
            return start, board.clock.now_ns()

        calibration = made("boxcar", 0.1, 0.1, np.array([1.0, 1.2]), 0.1).calibration
        with pytest.raises(SensorError, match="repeat the kernel within one"):
            measure_repeated(bench, Sampler(board.gpu, (board.sensor,)), blink, calibration)


@pytest.mark.parametrize("held_up_s", [2.0])
def test_executions_that_were_held_up_while_ranging_are_repeated_until_enough_readings_came(held_up_s: float) -> None:
    from collector.bench import open_instruments
    from collector.sampling import Sampler
    from collector.sensing.calibration import SensorCalibration
    from collector.sensing.repeated_measurement import measure_repeated

    with open_instruments("sim:a100-pcie-40gb", seed=1) as instruments:
        executions = 0

        def execute() -> tuple[int, int]:
            nonlocal executions
            executions += 1
            start = instruments.clock.now_ns()
            instruments.clock.wait(held_up_s if executions <= 3 else 0.015)
            return start, instruments.clock.now_ns()

        sampler, identity = Sampler(instruments.gpu, instruments.sensors), instruments.gpu.identity()
        unknown = SensorCalibration(
            gpu_uuid=identity.uuid, driver=identity.driver, sensor=sampler.sensor_name, field=sampler.field,
            averaging="undetermined", n_updates=0,
        )  # fmt: skip
        found = measure_repeated(instruments, sampler, execute, unknown, asked_std=0.02)
    assert abs(found.energy_j - found.rest_w * 0.015) < 5.0 * found.energy_std_j


def test_a_one_second_mean_says_that_it_cannot_tell_what_lingers_in_pauses() -> None:
    off = []
    for pause_s in (0.03, 0.05, 0.07):
        for seed in range(4):
            starts = 3.0 + (0.1 + pause_s) * np.arange(50) + np.cumsum(np.random.default_rng(seed).uniform(-1e-3, 1e-3, 50))
            record = made("trailing-mean", 1.1, 0.1, starts, 0.1, seed=seed, linger_share=0.12, after_s=3.0)
            found = correct_recording(record.time_s, record.power_w, record.calibration, record.load).repeated
            assert found is not None
            off.append((found.energy_j - record.energy_j(record.load.start_s, record.load.end_s).mean()) / found.energy_std_j)
    assert np.sqrt(np.mean(np.square(off))) < 1.6
    assert np.count_nonzero(np.abs(off) < 2.0) >= 10


def test_an_update_that_did_not_come_moves_no_energy_by_more_than_its_error() -> None:
    """It gives the value before it once more."""
    record, discard_s = planned("low-pass 12.5/101", 0.325, 3)
    (response,) = possible_responses(record.calibration).responses
    settings = FitSettings(bins=bins_for(response, 0.325), discard_s=discard_s, noise_w=0.3, jitter_s=2e-4)
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    whole = fit_executions(updates.time_s, updates.value, response, record.load, settings)
    for place in np.flatnonzero(whole.used)[6::8]:
        value = updates.value.copy()
        value[place] = value[place - 1]
        found = fit_executions(updates.time_s, value, response, record.load, settings)
        assert not found.used[place]
        assert abs(found.energy_j - whole.energy_j) < 3.0 * found.energy_std_j
