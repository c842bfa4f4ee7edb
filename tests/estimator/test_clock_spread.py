"""Clocks beyond the fitted ones widen intervals, and by what; fitted ones do not."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import estimate, load_bundle
from estimator.engine.board import board_tables
from estimator.questions.judging import judged, log_ratio_std
from estimator.uncertainty.sources import CLOCK_SLOPE_STD, VOLTAGE_EXPONENT_STD, far_clock
from examples.gpt2_prefill import gpt2_prefill
from tests.estimator.estimating import question, unlimited

A100 = unlimited(load_bundle("a100-pcie-40gb-eager"))
AT_900 = replace(A100, clocks_mhz=(900.0, 900.0))
WORKLOAD = gpt2_prefill(8, 512)
CLOCKS = (510.0, 900.0, 1140.0, 1410.0)


def relative_stds(bundle, host_launch_s=0.0):
    """Standard deviations of ln(latency) and ln(power) at CLOCKS without a power limit, shape (2, c)."""
    answers = estimate(WORKLOAD, bundle, sm_clock_mhz=CLOCKS, host_launch_s=host_launch_s)
    return np.array([[a.latency_s_std / a.latency_s, a.power_w_std / a.power_w] for a in answers]).T


def test_time_is_less_certain_the_farther_a_clock_is_from_the_fitted_one():
    added = relative_stds(AT_900)[0] ** 2 - relative_stds(A100)[0] ** 2
    assert np.sqrt(np.maximum(added, 0.0)) == pytest.approx(CLOCK_SLOPE_STD[0] * np.abs(np.log(np.array(CLOCKS) / 900.0)), abs=1e-9)


def test_a_run_that_the_host_paces_takes_its_time_at_any_clock():
    far, near = (relative_stds(bundle, host_launch_s=1e-3)[0] for bundle in (AT_900, A100))
    assert far == pytest.approx(near, rel=1e-6)


def test_an_exponent_that_no_voltage_told_counts_as_far_as_power_depends_on_it():
    """The exponent moved by its spread moves power by the loading, but for what lies outside the core's voltage (DRAM, a board in use)."""
    step = 0.01
    moved = replace(AT_900, power=replace(AT_900.power, voltage_exponent=AT_900.power.voltage_exponent + step))
    before, after = (np.array([a.power_w for a in estimate(WORKLOAD, bundle, sm_clock_mhz=CLOCKS)]) for bundle in (AT_900, moved))
    by_step = VOLTAGE_EXPONENT_STD * np.log(after / before) / step
    loading = far_clock(AT_900, board_tables(AT_900, AT_900.gpu), np.array(CLOCKS), before).power["voltage"]
    assert loading[:2] == pytest.approx([0.0, 0.0], abs=1e-12)  # the voltage is flat up to there
    assert (by_step[2:] <= loading[2:]).all()
    assert loading[2:] == pytest.approx(by_step[2:], rel=0.4)


def test_an_exponent_that_fitted_clocks_told_leaves_nothing_open_beyond_them():
    some = replace(A100, clocks_mhz=(510.0, 1200.0))
    found = far_clock(some, board_tables(some, some.gpu), np.array([1410.0]), np.array([250.0]))
    assert found.power["voltage"] == pytest.approx([0.0], abs=1e-12)
    assert found.power["far clock"] == pytest.approx([CLOCK_SLOPE_STD[1] * np.log(1410.0 / 1200.0)])


def test_two_clocks_of_a_workload_differ_by_the_way_between_them():
    one = judged(question(WORKLOAD, A100, sm_clock_mhz=CLOCKS, host_launch_s=0.0))
    for quantity, std in zip(("latency", "power"), CLOCK_SLOPE_STD, strict=True):
        assert log_ratio_std(one, 0, one, 2, quantity) == pytest.approx(std * np.log(1140.0 / 510.0), rel=0.05)
        assert log_ratio_std(one, 2, one, 2, quantity) == 0.0
