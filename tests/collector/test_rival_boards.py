"""Load stamps without a meter: a board that rises late of its own is not taken for an averaging where the two can be told apart."""

import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from random_sensors import PlantedSensor, record
from sensor_identification import NAME, sensor_record

from collector.sensor.calibration import SensorCalibration
from collector.sensor.identification import identify_sensor
from collector.sensor.load import BIN_S, LAUNCH_RISE_S, LoadStamps
from collector.sensor.not_negative import solved_not_negative
from collector.sensor.rival_boards import LATE_S, rise_alone
from collector.sensor.sources import LAUNCH_LAG_S, load_source

SENSOR = PlantedSensor(
    kernel="none", width_s=0.0, period_s=0.031, rigid=True, gain=1.0, offset_w=0.0, delay_s=2e-3, load_period_s=2.3 * 0.031,
    poll_s=0.002, noise_w=0.3, step_w=150.0, jitter_s=3e-4,
)  # fmt: skip


def found(planted: PlantedSensor, seed: int) -> SensorCalibration:
    return identify_sensor(sensor_record(record(planted, np.random.default_rng(seed)), "load"), NAME).calibration


@pytest.mark.parametrize(
    ("form", "slow_s", "period_s"), [("half late", 0.012, 0.031), ("half late", 0.06, 0.031), ("rises late", 0.016, 0.02)]
)
def test_a_board_that_rises_late_is_not_taken_for_an_averaging(form: str, slow_s: float, period_s: float) -> None:
    sensor = replace(SENSOR, period_s=period_s, load_period_s=2.3 * period_s)
    assert found(replace(sensor, slow_form=form, slow_s=slow_s), seed=3).averaging in ("undetermined", "none")


@pytest.mark.parametrize(("form", "slow_s", "period_s", "width_s"), [("one pole", 0.026, 0.1012, 0.054), ("ramps up", 0.022, 0.02, 0.0113)])
def test_two_late_rises_in_a_row_are_not_taken_for_an_averaging_of_another_kind(
    form: str, slow_s: float, period_s: float, width_s: float
) -> None:
    low_pass = replace(SENSOR, kernel="low-pass", width_s=width_s, period_s=period_s, load_period_s=1.27 * period_s)
    assert found(replace(low_pass, slow_form=form, slow_s=slow_s), seed=3).averaging in ("undetermined", "low-pass")


@pytest.mark.parametrize(("kernel", "width_s"), [("boxcar", 0.0155), ("low-pass", 0.018)])
def test_an_averaging_on_a_board_that_rises_at_once_stays_named_with_what_it_supposes(kernel: str, width_s: float) -> None:
    result = found(replace(SENSOR, kernel=kernel, width_s=width_s), seed=5)
    assert result.averaging == kernel
    assert result.window_s == pytest.approx(width_s, abs=1e-3)
    assert "external meter" in result.notes["averaging"]


def test_where_boards_leave_it_open_the_run_that_would_tell_is_named() -> None:
    result = found(replace(SENSOR, slow_form="half late", slow_s=0.012), seed=3)
    assert result.averaging == "undetermined"
    assert "--reference" in result.notes["averaging"]
    assert "board" in result.notes["averaging"]


def test_a_board_that_rises_late_and_falls_at_once_lacks_what_its_rises_do() -> None:
    """A run of level a above the power before lacks a·τ·(1 − e^(−t/τ)) of its energy; a level that falls lacks nothing."""
    load = LoadStamps(start_s=np.array([1.0, 3.0, 4.0]), end_s=np.array([2.0, 4.0, 5.0]), level=np.array([1.0, 1.0, 0.5]))
    usual = load_source(load, 6.0)
    for late_s, column in zip(LATE_S, rise_alone(usual, load), strict=True):
        lacks = float((usual.columns[0] - column).sum()) * BIN_S
        assert lacks == pytest.approx(2.0 * late_s * (1.0 - np.exp(-1.0 / late_s)), rel=1e-3)
        time_s = usual.origin_s + BIN_S * (np.arange(len(column)) + 1.0)
        after = float(np.interp(2.0 + LAUNCH_LAG_S + 8.0 * LAUNCH_RISE_S, time_s, column))
        assert after == pytest.approx(0.0, abs=1e-3)
        risen = float(np.interp(1.0 + LAUNCH_LAG_S + LAUNCH_RISE_S + late_s, time_s, column))
        assert risen == pytest.approx(1.0 - np.exp(-1.0), abs=0.05)


@pytest.mark.parametrize("seed", range(6))
def test_factors_that_may_not_be_negative_are_the_best_of_all_choices_of_columns(seed: int) -> None:
    random = np.random.default_rng(seed)
    common = random.normal(size=(40, 1))
    design = np.concatenate([np.ones((40, 1)), common + 0.3 * random.normal(size=(40, 5))], axis=1)
    value, weight = random.normal(size=40) + common[:, 0], random.uniform(0.5, 2.0, 40)

    def misfit(factors: np.ndarray) -> float:
        return float(weight @ (value - design @ factors) ** 2)

    best = np.inf
    for count in range(6):
        for chosen in combinations(range(1, 6), count):
            used = [0, *chosen]
            root = np.sqrt(weight)
            part = np.linalg.lstsq(design[:, used] * root[:, None], value * root, rcond=None)[0]
            if np.all(part[1:] >= 0.0):
                factors = np.zeros(6)
                factors[used] = part
                best = min(best, misfit(factors))
    solved = solved_not_negative(design, value, weight)
    assert np.all(solved[1:] >= 0.0)
    assert misfit(solved) == pytest.approx(best, rel=1e-6)
