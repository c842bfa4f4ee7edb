"""Boards of which a part follows the load late: widths and delays from load stamps whose errors hold what it could do."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from random_sensors import PlantedSensor, Recording, record
from sensor_identification import NAME, sensor_record

from collector.sensor import averaging
from collector.sensor.calibration import SensorCalibration
from collector.sensor.identification import identify_sensor
from collector.sensor.kernel_errors import BEYOND_FIRST_ORDER
from collector.sensor.kernel_fit import KernelFit, KernelProblem, fit_kernel
from collector.sensor.late_part import with_late_part
from collector.sensor.late_search import LateProblem, any_launch
from collector.sensor.load import BIN_S, LatePart, LoadStamps, followed_late, load_shapes
from collector.sensor.sources import load_source

SENSOR = PlantedSensor(
    kernel="low-pass", width_s=0.034, period_s=0.0577, rigid=True, gain=1.0, offset_w=0.0, delay_s=2e-3, load_period_s=1.27 * 0.0577,
    poll_s=0.005, noise_w=0.1, step_w=140.0, jitter_s=3e-4, load_spread=0.02, slow_form="half late", slow_s=0.02, late_share=0.2,
)  # fmt: skip
"""A fifth of the power follows in about the time that makes it a low-pass a quarter longer."""
AT_ONCE = replace(SENSOR, slow_form="half late", late_share=0.0)
CYCLES = LoadStamps(start_s=np.arange(1.0, 9.0, 0.0731), end_s=np.arange(1.0, 9.0, 0.0731) + 0.04)


def found(recording: Recording, source: str = "load") -> SensorCalibration:
    return identify_sensor(sensor_record(recording, source), NAME).calibration


def known(value: float | None) -> float:
    assert value is not None
    return value


def usual_problem(kernel: str, time_s: np.ndarray, value: np.ndarray) -> KernelProblem:
    return KernelProblem(kernel, any_launch(load_source(CYCLES, 9.5)), time_s, value)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_late_part_before_a_shorter_low_pass_is_a_longer_low_pass(share: float) -> None:
    """(1 − s + s/(1 + tz)) / (1 + (1 − s)tz) = 1/(1 + tz): the two cannot be told apart, whatever the load."""
    time_s = np.arange(1.2, 8.8, 0.0311)
    usual = usual_problem("low-pass", time_s, np.zeros(len(time_s)))
    late_s, delay = 0.02, np.zeros(1)
    whole = usual.design(late_s, delay)[0]
    apart = LateProblem(usual, share, float(np.log(late_s))).design((1.0 - share) * late_s, delay)[0]
    shorter = usual.design((1.0 - share) * late_s, delay)[0]
    assert apart[:, 1] == pytest.approx(whole[:, 1], abs=0.05 * share)
    assert float(np.abs(shorter[:, 1] - whole[:, 1]).max()) > 0.2 * share
    assert apart[:, 3:] == pytest.approx(shorter[:, 3:])


def test_both_forms_of_a_launch_have_the_same_energy_and_are_as_late() -> None:
    pole, step = any_launch(load_source(CYCLES, 9.5)).columns[:2]
    place_s = BIN_S * np.arange(len(pole))
    assert step.sum() == pytest.approx(pole.sum(), rel=1e-9)
    assert float(place_s @ step) == pytest.approx(float(place_s @ pole), rel=1e-9)
    assert float(np.abs(step - pole).max()) > 0.1


@pytest.mark.parametrize(("share", "late_s"), [(0.1, 0.01), (0.3, 0.05)])
def test_a_late_part_moves_power_and_takes_none(share: float, late_s: float) -> None:
    load = LoadStamps(start_s=np.array([1.0]), end_s=np.array([2.0]))
    usual = load_shapes(load, 3.0)
    late = followed_late(usual, LatePart(share=share, time_s=late_s))
    assert late.shapes[0].sum() == pytest.approx(usual.shapes[0].sum(), rel=1e-6)
    assert late.shapes[1:] == pytest.approx(usual.shapes[1:])
    lacking = (usual.shapes[0] - late.shapes[0])[: int((1.999 - usual.origin_s) / BIN_S)]
    assert float(lacking.sum()) * BIN_S == pytest.approx(share * late_s, rel=0.03)


@pytest.mark.parametrize("seed", [3, 4])
def test_the_note_on_a_width_holds_what_a_late_part_of_the_board_could_do(seed: int) -> None:
    """Its readings are those of a longer low-pass on a usual board: no error of 68 % holds both."""
    result = found(record(SENSOR, np.random.default_rng(seed)))
    assert result.averaging == "low-pass"
    noted = re.search(r"± ([0-9.e+]+) ms", result.notes["window_s"])
    assert noted is not None
    assert abs(known(result.window_s) - SENSOR.width_s) < 1.75e-3 * float(noted[1])
    assert 1e-3 * float(noted[1]) > 2.0 * known(result.window_std_s)


def test_a_width_whose_errors_hold_all_has_no_note() -> None:
    result = found(record(replace(AT_ONCE, kernel="boxcar", width_s=0.03), np.random.default_rng(3)))
    assert result.averaging == "boxcar"
    assert "window_s" not in result.notes


@pytest.mark.parametrize("seed", [3, 4])
def test_a_late_part_that_the_readings_tell_is_taken_out_of_a_boxcar(seed: int) -> None:
    boxcar = replace(SENSOR, kernel="boxcar", width_s=0.03)
    result = found(record(boxcar, np.random.default_rng(seed)))
    assert result.averaging == "boxcar"
    assert known(result.window_s) == pytest.approx(0.03, abs=2.5 * known(result.window_std_s))
    assert known(result.window_std_s) < 1e-3


@pytest.mark.parametrize(("kernel", "width_s"), [("boxcar", 0.03), ("low-pass", 0.034)])
def test_of_a_board_that_follows_at_once_a_width_stays_what_it_is(kernel: str, width_s: float) -> None:
    result = found(record(replace(AT_ONCE, kernel=kernel, width_s=width_s), np.random.default_rng(3)))
    assert result.averaging == kernel
    assert known(result.window_s) == pytest.approx(width_s, abs=0.02 * width_s)
    assert known(result.window_std_s) < 0.15 * width_s
    assert "late" not in result.notes["averaging"] or "errors" in result.notes["averaging"]


@pytest.mark.parametrize("late", [False, True])
def test_no_error_becomes_smaller_than_to_first_order(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[KernelFit] = []

    def watched(problem: KernelProblem, fit: KernelFit) -> KernelFit:
        before.append(fit)
        return with_late_part(problem, fit)

    monkeypatch.setattr(averaging, "with_late_part", watched)
    result = found(record(SENSOR if late else AT_ONCE, np.random.default_rng(5)))
    assert len(before) == 1
    assert known(result.window_std_s) >= before[0].width_std_s / BEYOND_FIRST_ORDER
    assert known(result.delay_std_s) >= before[0].delay_std_s


def test_with_a_meter_nothing_of_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(problem: KernelProblem, fit: KernelFit) -> KernelFit:
        raise AssertionError("a meter shows the board's own rise")

    monkeypatch.setattr(averaging, "with_late_part", never)
    result = found(record(SENSOR, np.random.default_rng(3)), "meter")
    assert result.averaging == "low-pass"
    assert known(result.window_s) == pytest.approx(SENSOR.width_s, abs=5e-4)


def test_readings_without_any_noise_or_of_few_updates_end_in_numbers() -> None:
    time_s = np.arange(1.2, 8.8, 0.0577)
    usual = usual_problem("low-pass", time_s, np.zeros(len(time_s)))
    value = 60.0 + 140.0 * usual.design(0.017, np.zeros(1))[0][:, 1]
    for count in (len(time_s), 25):
        problem = KernelProblem("low-pass", load_source(CYCLES, 9.5), time_s[:count], value[:count])
        result = with_late_part(problem, replace(fit_kernel(problem, 0.0577), width_std_s=1e-4, delay_std_s=1e-4))
        assert np.isfinite([result.width_s, result.width_std_s, result.delay_s, result.delay_std_s]).all()
        assert result.width_s == pytest.approx(0.034, abs=3.0 * result.width_std_s)
