"""A meter's own noise: how it is told from power, what averagings pass of it, and that it makes no sensor look wide."""

import numpy as np
import pytest

from collector.sensor.calibration import SensorCalibration
from collector.sensor.identification import SensorName, SensorRecord, identify_sensor
from collector.sensor.kernel_fit import KernelProblem, unattenuated
from collector.sensor.load import LoadStamps
from collector.sensor.meter_noise import noise_of_samples
from collector.sensor.passed_noise import PassedNoise
from collector.sensor.sources import averaged_by, meter_source
from estimator.quantities import Array

NAME = SensorName(gpu_uuid="", driver="", sensor="simulated", field="instant")


def moving_power(time_s: Array) -> Array:
    """Levels, and slopes of up to 3 W a millisecond, at a third of the samples each."""
    place = np.mod(time_s, 0.1)
    return np.where(place < 0.04, 60.0, 60.0 + 150.0 * (1.0 - np.exp(-(place - 0.04) / 0.05)))


@pytest.mark.parametrize("spacing_s", [2.09e-4, 1e-3])
@pytest.mark.parametrize("noise_w", [0.3, 3.0])
def test_noise_is_told_from_levels_and_slopes(spacing_s: float, noise_w: float) -> None:
    time_s = np.arange(0.0, 10.0, spacing_s)
    power_w = moving_power(time_s) + np.random.default_rng(1).normal(0.0, noise_w, len(time_s))
    assert noise_of_samples(time_s, power_w).sample_w == pytest.approx(noise_w, rel=0.1)
    assert noise_of_samples(time_s, moving_power(time_s)).sample_w < 0.1


@pytest.mark.parametrize("kernel", ["none", "boxcar", "low-pass"])
@pytest.mark.parametrize("spacing_s", [2.09e-4, 5e-4, 1e-3])
def test_what_a_kernel_passes_is_what_is_left_of_noise_behind_it(kernel: str, spacing_s: float) -> None:
    random = np.random.default_rng(2)
    time_s = np.arange(0.0, 120.0, spacing_s)
    power_w = 100.0 + random.normal(0.0, 2.0, len(time_s))
    respond = averaged_by(kernel, meter_source(time_s, power_w))
    passed = PassedNoise(kernel, noise_of_samples(time_s, power_w))
    ends = random.uniform(5.0, 115.0, 100_000)
    for width_s in (1e-3,) if kernel == "none" else (1e-3, 4e-3, 3e-2):
        left = respond(0.5 * width_s if kernel == "low-pass" else width_s, ends)
        assert passed.variance_w2(width_s, 0.0) == pytest.approx(float(np.var(left)), rel=0.08)


def test_longer_averagings_and_more_jitter_pass_less() -> None:
    passed = PassedNoise("boxcar", noise_of_samples(np.arange(0.0, 5.0, 5e-4), np.random.default_rng(0).normal(0.0, 2.0, 10_000)))
    by_width = [passed.variance_w2(width_s, 0.0) for width_s in (1e-3, 2e-3, 5e-3, 0.02, 0.021, 0.1, 1.0)]
    assert all(np.diff(by_width) < 0.0)
    by_jitter = [passed.variance_w2(2e-3, jitter_s) for jitter_s in (0.0, 2e-4, 1e-3)]
    assert all(np.diff(by_jitter) < 0.0)
    assert by_width[-1] == pytest.approx(by_width[-2] / 10.0)


def test_noise_takes_nothing_from_a_gain() -> None:
    random = np.random.default_rng(4)
    true_w = np.where(random.random(20_000) < 0.5, 60.0, 100.0)
    design = np.stack([np.ones_like(true_w), true_w + random.normal(0.0, 4.0, len(true_w))], axis=1)
    value, weight = 0.9 * true_w + 5.0, np.ones(len(true_w))
    plain = np.linalg.lstsq(design, value, rcond=None)[0]
    assert plain[1] < 0.88
    assert unattenuated(plain, design, weight, 16.0) == pytest.approx([5.0, 0.9], rel=0.05, abs=0.3)


def test_a_wide_kernel_gains_nothing_by_noise_that_it_does_not_pass() -> None:
    """Slow power: all that readings tell of a kernel is how little noise it predicts, and that is the meter's alone."""
    random = np.random.default_rng(6)
    time_s = np.arange(0.0, 60.0, 5e-4)
    source = meter_source(time_s, 100.0 + 40.0 * np.sin(2.0 * np.pi * time_s / 7.0) + random.normal(0.0, 2.0, len(time_s)))
    ends = np.sort(random.uniform(5.0, 55.0, 1000))
    value = 100.0 + 40.0 * np.sin(2.0 * np.pi * ends / 7.0) + random.normal(0.0, 0.3, len(ends))
    totals = {}
    for kernel, width_s in (("none", 1e-3), ("boxcar", 1.2e-2)):
        problem = KernelProblem(kernel, source, ends, value)
        noises = np.log(np.linspace(0.8, 2.0, 25))
        totals[kernel] = max(
            problem.evaluate(
                np.array([np.log(width_s), -0.5 * width_s if kernel == "boxcar" else 0.0, noise, np.log(2e-4), 0.0]), np.ones(len(ends))
            ).total
            for noise in noises
        )
    assert abs(totals["boxcar"] - totals["none"]) < 3.0 * (0.5 * len(ends)) ** 0.5, "chance moves it so far; the noise would by about 600"


def slow_board_w(time_s: Array, edge_s: Array) -> Array:
    """60 W, and 180 W more between every other edge, by one pole of 30 ms."""
    result = np.full(len(time_s), 60.0)
    for index, edge in enumerate(edge_s):
        result -= (-1.0) ** index * 180.0 * np.expm1(-np.maximum(time_s - edge, 0.0) / 0.03)
    return result


def seen(width_s: float, noise_w: float, seed: int, late_s: float = 0.0) -> SensorCalibration:
    """A sensor that looks at a moment (width 0) or averages as a boxcar, beside a meter of two thousand samples a second, late or not."""
    random = np.random.default_rng(seed)
    edge_s = 1.0 + np.cumsum(random.uniform(0.01, 0.09, 250))[: 2 * 120]
    fine_s = np.arange(0.0, edge_s[-1] + 1.0, 1e-4)
    update_s = np.arange(0.02, fine_s[-1], 0.05) + random.normal(0.0, 3e-4, len(np.arange(0.02, fine_s[-1], 0.05)))
    power_w = slow_board_w(fine_s, edge_s + 3e-4)
    energy_j = np.concatenate([[0.0], np.cumsum(power_w) * 1e-4])
    width = max(width_s, 1e-4)
    mean_w = (
        np.diff(np.interp(update_s - 2e-3 - np.array([[width], [0.0]]), np.append(fine_s, fine_s[-1] + 1e-4), energy_j), axis=0)[0] / width
    )
    reading_w = np.round(0.96 * mean_w - 1.0 + random.normal(0.0, 0.4, len(mean_w)), 2)
    poll_s = np.cumsum(0.005 * (1.0 + np.abs(random.normal(0.0, 0.08, int(fine_s[-1] / 0.006)))))
    meter_w = power_w[::5] + random.normal(0.0, noise_w, len(power_w[::5]))
    record = SensorRecord(
        time_s=poll_s[poll_s > update_s[0]],
        power_w=reading_w[np.searchsorted(update_s, poll_s[poll_s > update_s[0]], side="right") - 1],
        load=LoadStamps(start_s=edge_s[::2], end_s=edge_s[1::2]),
        meter_s=fine_s[::5] + late_s,
        meter_w=meter_w,
    )
    return identify_sensor(record, NAME).calibration


@pytest.mark.parametrize(("noise_w", "seed"), [(0.3, 1), (2.5, 1), (2.5, 2)])
def test_a_sensor_that_does_not_average_is_no_boxcar_to_a_loud_meter(noise_w: float, seed: int) -> None:
    found = seen(0.0, noise_w, seed)
    assert found.averaging in ("none", "undetermined"), found.candidates
    assert abs((found.gain or 0.0) - 0.96) < 3.0 * (found.gain_std or 0.0)


@pytest.mark.parametrize(("width_s", "seed"), [(0.006, 2), (0.015, 1)])
def test_a_short_boxcar_is_no_longer_to_a_loud_meter(width_s: float, seed: int) -> None:
    found = seen(width_s, 2.5, seed)
    likeliest = next(fit for fit in found.candidates if fit["kernel"] == "boxcar")
    assert abs(likeliest["window_s"] - width_s) < 3.0 * likeliest["window_std_s"]
    assert found.averaging in ("boxcar", "undetermined")
    if found.averaging == "boxcar":
        assert abs((found.delay_s or 0.0) - 2e-3) < 3.0 * (found.delay_std_s or 0.0)


@pytest.mark.parametrize("late_s", [-5e-4, 1e-3])
def test_a_delay_is_counted_from_launches_however_late_a_meters_stamps_are(late_s: float) -> None:
    found = seen(0.015, 1.0, 3, late_s)
    assert abs((found.delay_s or 0.0) - 2e-3) < 2.5 * (found.delay_std_s or 0.0)
    assert (found.delay_std_s or 1.0) < 3e-4
    assert "launches" in found.notes["reference_time"]
