"""Correction: a settled mean with an honest standard error, and energy from it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.devices.protocols import EnergyReading, PowerReadings
from collector.sensing.calibration import SensorCalibration
from collector.sensing.regression import block_covariance
from collector.sensing.steady import corrected_power, counter_energy, inversion, settle_time_s, steady_power

PERIOD_S = 0.1
LIMIT_W = 250.0


def a_calibration(**changes):
    known = {"update_period_s": PERIOD_S, "settle_s": 0.2, "reading_noise_w": 0.5, "resolution_w": 0.01}
    return SensorCalibration(
        gpu_uuid="GPU-0", driver="1", sensor="nvml", field="instant", averaging="boxcar", n_updates=100, **{**known, **changes}
    )


def polled(values, period_s=PERIOD_S, poll_s=0.007):
    """Polls of a sensor whose update k has value k."""
    time_s = np.arange(100.0, 100.0 + len(values) * period_s, poll_s)
    index = np.minimum(((time_s - 100.0) / period_s).astype(int), len(values) - 1)
    return PowerReadings(field="instant", host_ns=np.round(time_s * 1e9).astype(np.int64), power_w=values[index])


@settings(max_examples=30)
@given(st.lists(st.integers(1000, 20000), min_size=6, max_size=40), st.sampled_from([0.005, 0.007, 0.013]))
def test_the_mean_weighs_updates_not_polls(centiwatts, poll_s):
    values = np.array(centiwatts) / 100.0
    power = steady_power(polled(values, poll_s=poll_s), 100.0, 1e6, a_calibration(), LIMIT_W)
    inner = values[1:-1]
    assert inner.min() - 0.6 * np.ptp(values) <= power.raw_w <= inner.max() + 0.6 * np.ptp(values)
    assert abs(power.samples - len(values)) <= 1
    assert power.raw_w == pytest.approx(values.mean(), abs=1.01 * np.ptp(values) / len(values) + 1e-9)


def test_standard_errors_hold_for_white_and_for_correlated_noise():
    random = np.random.default_rng(5)
    for correlation, share in ((0.0, 0.95), (0.5, 0.90)):
        inside = 0
        for _ in range(300):
            noise = random.normal(0.0, 1.0, 25)
            for k in range(1, 25):
                noise[k] = correlation * noise[k - 1] + math.sqrt(1 - correlation**2) * noise[k]
            power = steady_power(polled(150.0 + noise), 100.0, 1e6, a_calibration(reading_noise_w=0.5), LIMIT_W)
            inside += abs(power.power_w - 150.0) < 2.0 * power.std_w
        assert inside / 300 > share - 0.05


def test_a_slow_rise_is_power_not_noise():
    rising = steady_power(polled(np.linspace(100.0, 110.0, 30)), 100.0, 1e6, a_calibration(), LIMIT_W)
    assert rising.std_w < 0.5
    assert rising.change_w == pytest.approx(10.0, abs=1.0)
    assert rising.change_w > 3.0 * rising.change_std_w


def test_a_sensor_that_stands_still_or_says_nothing_is_noticed():
    still = polled(np.full(20, 150.0))
    for noise_w, step_w, stuck in ((0.5, 0.01, True), (0.005, 0.01, False), (1.05, 1.0, False), (0.0, 0.0, False)):
        power = steady_power(still, 100.0, 1e6, a_calibration(reading_noise_w=noise_w, resolution_w=step_w), LIMIT_W)
        assert power.stuck is stuck
        assert not power.std_w <= 0.0, "readings that show no scatter do not tell their error"
    held = steady_power(still, 100.0, 1e6, a_calibration(update_period_s=None, reading_noise_w=0.005), LIMIT_W)
    assert held.samples == 1
    nothing = steady_power(still, 500.0, 600.0, a_calibration(), LIMIT_W)
    assert (nothing.samples, math.isnan(nothing.power_w), math.isnan(nothing.std_w)) == (0, True, True)


def test_an_unknown_sensor_is_given_more_time():
    unknown = SensorCalibration(gpu_uuid="", driver="", sensor="nvml", field="average", averaging="undetermined", n_updates=0)
    assert settle_time_s(unknown, 0.3) > settle_time_s(a_calibration(), 0.3) == 0.3


@given(st.floats(0.8, 1.2), st.floats(-20.0, 20.0), st.floats(10.0, 500.0), st.floats(0.01, 100.0))
def test_energy_goes_back_as_power_does(gain, offset, power, span_s):
    known = a_calibration(gain=gain, offset_w=offset, gain_std=0.01, offset_std_w=0.5, gain_offset_correlation=-0.5)
    back, reading = inversion(known), gain * power + offset
    energy, std = back.energy(reading * span_s, 0.0, span_s)
    power_w, power_std_w = back.energy(np.array([reading]), np.zeros(1), 1.0)
    assert power_w[0] == pytest.approx(power)
    assert energy == pytest.approx(power * span_s)
    assert std == pytest.approx(span_s * power_std_w[0])
    assert corrected_power(reading, 0.0, known)[1] == pytest.approx(std / span_s)


def test_errors_of_gain_and_offset_that_go_against_each_other_cancel():
    spread = {"gain": 1.0, "offset_w": 0.0, "gain_std": 0.01, "offset_std_w": 1.0}
    stds = [inversion(a_calibration(**spread, gain_offset_correlation=c)).energy(100.0, 0.0, 1.0)[1] for c in (-1.0, 0.0, 1.0)]
    assert stds == pytest.approx([0.0, math.sqrt(2.0), 2.0], abs=1e-9)


def test_a_board_without_a_gain_has_the_spread_of_boards():
    back = inversion(a_calibration())
    assert not back.known
    energy, std = back.energy(150.0, 0.0, 1.0)
    assert energy == 150.0
    assert 0.03 < std / energy < 0.08
    assert corrected_power(150.0, 0.2, a_calibration()) == (150.0, 0.2), "a reading is left as it is"


@pytest.mark.parametrize(
    "joule, flags, launch_j",
    [(600.0, (), 6.0), (-1.0, ("counter_absurd",), None), (1e6, ("counter_absurd",), None), (300.0, ("counter_disagrees",), 3.0)],
)
def test_a_counter_is_taken_for_what_it_can_be(joule, flags, launch_j):
    before, after = EnergyReading(host_ns=0, energy_j=1000.0), EnergyReading(host_ns=3_000_000_000, energy_j=1000.0 + joule)
    found_j, found = counter_energy(before, after, 100, 3.0, 200.0, 50.0, PERIOD_S, LIMIT_W)
    assert found == flags
    assert found_j == pytest.approx(math.nan if launch_j is None else launch_j, nan_ok=True)
    assert math.isnan(counter_energy(None, after, 100, 3.0, 200.0, 50.0, PERIOD_S, LIMIT_W)[0])


@pytest.mark.parametrize("alike", [1, 10])
def test_a_block_covariance_keeps_the_correlation_of_neighbours(alike):
    random = np.random.default_rng(3)
    found = [block_covariance(np.eye(1), np.repeat(random.normal(size=(1200 // alike, 1)), alike, axis=0), 12)[0, 0] for _ in range(50)]
    assert np.mean(found) == pytest.approx(1200 * alike, rel=0.2)
