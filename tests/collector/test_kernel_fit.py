"""What a reading is expected to be: the kernel's mean over the power, and over the jitter of its window's end."""

from dataclasses import replace

import numpy as np
import pytest

from collector.sensor.kernel_errors import with_errors
from collector.sensor.kernel_fit import KernelProblem, described, fit_kernel
from collector.sensor.load import BIN_S, SLOW_RISE_S, LoadStamps, pole
from collector.sensor.simplex import simplex_maximum
from collector.sensor.sources import PowerSource, averaged_by, load_source, meter_source, rested
from estimator.quantities import Array

PERIOD_S = 9.25e-3
LEVEL_W = 150.0
JITTER_S = 5e-4
RISE_S = 1e-3


def source_of(power: Array) -> PowerSource:
    """A grid of bin means from time 0 on as a meter's."""
    return PowerSource(
        columns=power[None, :], origin_s=0.0, signed=1, begin_s=0.0, from_s=0.0, until_s=len(power) * BIN_S, kind="meter", drift_std=1e-4
    )


def square(count: int) -> Array:
    """Bin means of a square wave of 40 ms that rises within a millisecond."""
    level = LEVEL_W * ((np.arange(count) * BIN_S) % 0.04 < 0.02)
    keep = np.exp(-BIN_S / RISE_S)
    power: Array = np.convolve(level, (1.0 - keep) * keep ** np.arange(40))[:count]
    return power


@pytest.mark.parametrize(("kernel", "parameter_s"), [("boxcar", 4e-3), ("boxcar", 7.3e-3), ("low-pass", 3e-3), ("low-pass", 6e-3)])
def test_the_grid_adds_no_smoothing_of_its_own(kernel: str, parameter_s: float) -> None:
    turn = 2.0 * np.pi / PERIOD_S
    begin = np.arange(16_384) * BIN_S
    means = (np.cos(turn * begin) - np.cos(turn * (begin + BIN_S))) / (turn * BIN_S)
    window = np.minimum(1.0, np.minimum(np.arange(16_384), np.arange(16_384)[::-1]) / 2000.0)
    ends = np.random.default_rng(0).uniform(3.0, 5.0, 2000)
    seen = averaged_by(kernel, source_of(means * window))(parameter_s, ends)[:, 0]
    lag = 1j * turn * parameter_s
    response = 1.0 / (1.0 + lag) if kernel == "low-pass" else (1.0 - np.exp(-lag)) / lag
    true = (response * np.exp(1j * turn * ends)).imag
    assert seen @ true / (true @ true) == pytest.approx(1.0, abs=5e-4)


def test_expected_readings_are_means_over_the_jitter() -> None:
    random = np.random.default_rng(1)
    source = source_of(square(8192))
    grid = 0.5 + 0.0131 * np.arange(200)
    exact = averaged_by("boxcar", source)
    drawn = exact(3e-3, grid + random.normal(0.0, JITTER_S, (4000, 1)))[..., 0]
    problem = KernelProblem("boxcar", source, grid, drawn.mean(axis=0), JITTER_S)
    found = problem.evaluate(np.array([np.log(3e-3), 0.0, np.log(0.3), np.log(JITTER_S), 0.0]), np.ones(len(grid)))
    ignored = drawn.mean(axis=0) - exact(3e-3, grid)[:, 0]
    assert found.amplitude[1] == pytest.approx(1.0, abs=3e-3)
    assert np.std(found.residual) < 0.4 * np.std(ignored)


@pytest.mark.parametrize("kernel", ["boxcar", "low-pass"])
def test_stated_errors_are_those_of_repeated_experiments(kernel: str) -> None:
    random = np.random.default_rng(2)
    source = source_of(square(16_384))
    grid = 0.6 + 0.0517 * np.arange(130)
    exact = averaged_by(kernel, source)
    parameter_s, factor = 8e-3, 2.0 if kernel == "low-pass" else 1.0
    point = np.array([np.log(parameter_s), 0.0, np.log(0.8 * 0.5), np.log(JITTER_S), 0.0])
    step = np.array([0.03, 2e-4, 0.0, 0.0, 0.0])
    stated, moved = [], []
    for _ in range(40):
        value = exact(parameter_s, grid + random.normal(0.0, JITTER_S, len(grid)))[:, 0] + random.normal(0.0, 0.5, len(grid))
        problem = KernelProblem(kernel, source, grid, value, JITTER_S)
        even = np.ones(len(grid))
        best, _ = simplex_maximum(lambda at, p=problem, w=even: p.evaluate(at, w).total, point, step, evaluations=60)  # type: ignore[misc]
        moved.append(best[0] - np.log(parameter_s))
        stated.append(with_errors(problem, described(problem, best)).width_std_s / (factor * parameter_s))
    assert abs(np.mean(moved)) < 0.02
    assert 0.65 < np.std(moved) / np.mean(stated) < 1.35


def stated_offset_w(noise_w: Array) -> float:
    """The stated error of an offset, with this noise in a boxcar's readings of one step."""
    source, count = source_of(np.where(np.arange(16_384) < 8192, 0.0, LEVEL_W)), len(noise_w)
    grid = 4.096 + 0.0517 * (np.arange(count) - 0.5 * count)
    value = averaged_by("boxcar", source)(8e-3, grid)[:, 0] + noise_w
    problem = KernelProblem("boxcar", source, grid, value, JITTER_S)
    point = np.array([np.log(8e-3), 0.0, np.log(0.8 * 0.5), np.log(JITTER_S), 0.0])
    covariance = with_errors(problem, described(problem, point)).amplitude_covariance
    assert covariance is not None
    return float(np.sqrt(covariance[0, 0]))


def test_residuals_that_belong_together_widen_the_error() -> None:
    random = np.random.default_rng(3)
    white = random.normal(0.0, 0.5, 130)
    slow = np.sin(2.0 * np.pi * np.arange(130) / 65.0) * 0.5 * np.sqrt(2.0)
    assert stated_offset_w(slow) > 2.0 * stated_offset_w(white)


def test_few_readings_are_surer_of_nothing_than_many() -> None:
    random = np.random.default_rng(4)
    few, many = (np.mean([stated_offset_w(random.normal(0.0, 0.5, count)) for _ in range(6)]) for count in (20, 120))
    assert few / many > np.sqrt(6.0), "what was fitted to 20 readings makes their residuals small"


def test_a_meter_counts_from_its_beginning_where_the_readings_rest() -> None:
    time_s = np.arange(0.0, 10.0, 1e-3)
    power = np.where((time_s > 2.0) & (time_s < 6.0), 200.0, 60.0)
    source = meter_source(time_s, power)
    update = np.arange(0.05, 9.9, 0.1)
    reading = np.interp(update, time_s, power)
    assert rested(source, update, reading).from_s == pytest.approx(0.1)
    remembering = np.where(update < 0.3, 120.0, reading)
    assert rested(source, update, remembering).from_s == source.from_s > 1.0


@pytest.mark.parametrize("slow_share", [0.0, 0.3])
def test_without_a_meter_errors_hold_a_rise_of_another_form(slow_share: float) -> None:
    """A board whose late power follows by one pole, where a load's shapes have two: nothing in the stamps says so.

    Either form is as likely; what is stated is their difference over √2, so that the other one lies 1.4 errors off before any noise.
    """
    random = np.random.default_rng(5)
    width_s, delay_s = 0.1, 1e-3
    edge_s = 1.0 + np.cumsum(0.115 * (1.0 + 0.01 * random.normal(size=81)))
    load = LoadStamps(start_s=edge_s[:-1:2], end_s=edge_s[1::2])
    source = load_source(load, float(edge_s[-1]))
    columns = source.columns.copy()
    columns[1] = np.fft.irfft(np.fft.rfft(columns[0]) * pole(columns.shape[1], SLOW_RISE_S), n=columns.shape[1])
    time_s = np.arange(0.8, float(edge_s[-1]), 0.1)
    ends = time_s - delay_s + random.normal(0.0, 3e-4, len(time_s))
    seen = averaged_by("boxcar", replace(source, columns=columns))(width_s, ends)
    value = 60.0 + 150.0 * seen @ np.array([1.0 - slow_share, slow_share, 0.02]) + random.normal(0.0, 0.3, len(time_s))
    problem = KernelProblem("boxcar", source, time_s, value)
    fit = with_errors(problem, fit_kernel(problem, 0.1))
    assert abs(fit.width_s - width_s) < 3.0 * fit.width_std_s
    assert abs(fit.delay_s - delay_s) < 3.0 * fit.delay_std_s
    metered = with_errors(KernelProblem("boxcar", replace(source, kind="meter"), time_s, value), fit)
    assert (fit.delay_std_s > 2.0 * metered.delay_std_s) == (slow_share > 0.0)


def test_what_update_times_are_off_by_together_is_in_the_errors() -> None:
    """All times late by the same is a delay, and nothing else; times of which every second one is late is no delay."""
    random = np.random.default_rng(6)
    source = replace(source_of(square(100_000)), drift_std=1e-6)
    time_s = 0.5 + 0.0131 * np.arange(800)
    value = averaged_by("boxcar", source)(7e-3, time_s - 1e-3)[:, 0] + random.normal(0.0, 0.5, len(time_s))
    problem = KernelProblem("boxcar", source, time_s, value)
    fit = fit_kernel(problem, 0.0131)
    alone = with_errors(problem, fit)
    together, apart = (with_errors(problem, fit, 3e-4 * shape[None, :]) for shape in (np.ones(800), (-1.0) ** np.arange(800)))
    both = with_errors(problem, fit, np.stack([np.full(800, 3e-4), np.full(800, -4e-4)]))
    assert together.delay_std_s == pytest.approx(np.hypot(alone.delay_std_s, 3e-4), rel=0.02)
    assert both.delay_std_s == pytest.approx(np.hypot(alone.delay_std_s, 5e-4), rel=0.02)
    assert apart.delay_std_s < 1.2 * alone.delay_std_s
    assert together.width_std_s < 1.05 * alone.width_std_s
