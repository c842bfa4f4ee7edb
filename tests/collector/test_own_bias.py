"""Widths and delays without what a fit is off by on its own sensor: jitter at the corners of ramps."""

import numpy as np
import pytest

from collector.sensor.kernel_errors import with_errors
from collector.sensor.kernel_fit import KernelFit, KernelProblem, fit_kernel
from collector.sensor.own_bias import ERROR_SHARE, without_own_bias
from collector.sensor.sources import meter_source

PERIOD_S, SAMPLE_S = 0.0154, 2e-4
SEEDS = range(5)


def problem_of(width_s: float, jitter_s: float, seed: int) -> KernelProblem:
    """A boxcar of a square wave, its ends jittering, every one of them averaged by direct summation; 20 s of one update in 15.4 ms."""
    random = np.random.default_rng(seed)
    sample = np.arange(0.0, 20.0, SAMPLE_S)
    edges = np.cumsum(np.full(2200, 0.0091) * (1.0 + random.uniform(-0.03, 0.03, 2200)))
    power = 80.0 + 180.0 * (np.searchsorted(edges, sample, side="right") % 2)
    energy = np.concatenate([[0.0], np.cumsum(power) * SAMPLE_S])
    time_s = np.arange(3.0, 19.0, PERIOD_S)
    ends = time_s + random.normal(0.0, jitter_s, len(time_s))
    bounds = np.append(sample, sample[-1] + SAMPLE_S)
    value = (np.interp(ends, bounds, energy) - np.interp(ends - width_s, bounds, energy)) / width_s + random.normal(0.0, 0.3, len(ends))
    return KernelProblem("boxcar", meter_source(sample + 0.5 * SAMPLE_S, power), time_s, value, jitter_s)


def both(problem: KernelProblem) -> tuple[KernelFit, KernelFit]:
    fit = fit_kernel(problem, PERIOD_S)
    return fit, without_own_bias(problem, fit)


@pytest.mark.parametrize("width_s", [0.005, 0.0077])
def test_a_short_boxcar_whose_ends_jitter_is_not_found_too_short(width_s: float) -> None:
    fits = [both(problem_of(width_s, 4e-4, seed)) for seed in SEEDS]
    plain, mended = ([fit.width_s - width_s for fit in of_all] for of_all in zip(*fits, strict=True))
    assert float(np.mean(plain)) < -1e-4
    assert abs(float(np.mean(mended))) < -0.5 * float(np.mean(plain))
    before, after = ([fit.delay_s for fit in of_all] for of_all in zip(*fits, strict=True))
    assert abs(float(np.mean(after))) < 0.6 * abs(float(np.mean(before)))


def test_a_width_that_jitter_does_not_reach_stays_as_it_is() -> None:
    problem = problem_of(0.0154, 1e-4, 1)
    fit = with_errors(problem, fit_kernel(problem, PERIOD_S))
    mended = without_own_bias(problem, fit)
    assert (mended.width_s, mended.delay_s) == (fit.width_s, fit.delay_s)
    assert (mended.width_std_s, mended.delay_std_s) == pytest.approx((ERROR_SHARE * fit.width_std_s, fit.delay_std_s))
    assert fit.width_s == pytest.approx(0.0154, abs=2e-4)
