"""Intervals: what rehearsed forecasts erred."""

import numpy as np
import pytest

from estimator.model.residuals import BEYOND_OCTAVES
from fitter.latency.intervals import FEWEST_LOCAL, few_errors_half, interval_quantiles
from fitter.latency.residual_tier import Forecast, shape_errors
from tests.fitter.measured import various_operators

SHAPES = shape_errors([o for o in various_operators(300) if o.family == "softmax"])
COUNT = len(SHAPES.operators)


def forecast_with(error, excess=0.0):
    nothing = np.zeros(len(error))
    return Forecast(bare=error, neighbours=nothing, distance=nothing, excess=nothing + excess, pattern=nothing)


def quantiles(*rehearsed, scatter=0.03):
    inside = forecast_with(scatter * np.random.default_rng(0).standard_normal(COUNT))
    return interval_quantiles(SHAPES, inside, [forecast_with(error, 1.0) for error in rehearsed], True)


def beyond(*rehearsed):
    """Half width one octave beyond the largest work, where the rehearsals were."""
    return quantiles(*rehearsed)[2] * float(np.sqrt(1.0 / BEYOND_OCTAVES))


def scattered(mean, seed):
    return mean + 0.02 * np.random.default_rng(seed).standard_normal(200)


def test_the_worst_rehearsal_counts_and_none_leaves_the_error_inside():
    one = beyond(scattered(0.05, 1))
    assert one == pytest.approx(np.quantile(np.abs(scattered(0.05, 1)), 0.905), rel=0.02)
    assert beyond(scattered(0.05, 1), scattered(-0.01, 2)) == one
    assert quantiles()[2] == pytest.approx(1.645 * 0.03, rel=0.2)


@pytest.mark.parametrize("scatter", [0.01, 0.1])
def test_nine_of_ten_kernels_lie_inside_whatever_the_scatter(scatter):
    rng = np.random.default_rng(1)
    error = scatter * rng.standard_normal(COUNT)
    near, far, _ = interval_quantiles(SHAPES, forecast_with(error), [], True)
    assert far >= near
    sigma = 0.01 + np.abs(error).mean()  # the scale of neighbours that all err alike
    assert 0.8 <= np.mean(np.abs(scatter * rng.standard_normal(10_000)) <= near * sigma) <= 0.97


COLLECTIONS = 4000
SPREAD_OF_GPUS = 0.38
"""By how much mean errors of a kind of kernel differ from GPU to GPU [ln]."""


def drawn(rng, shape, size):
    """Magnitudes of errors with a mean of 1."""
    if shape == "exponential":
        return rng.exponential(1.0, size)
    if shape == "normal":
        return np.abs(rng.standard_normal(size)) / np.sqrt(2.0 / np.pi)
    return np.abs(rng.standard_t(4.0, size))  # the mean magnitude of Student's t with four degrees of freedom is 1


@pytest.mark.parametrize("count", [12, 20, FEWEST_LOCAL - 1])
@pytest.mark.parametrize("shape, low, high", [("exponential", 0.88, 0.92), ("normal", 0.91, 0.95), ("heavy", 0.88, 0.93)])
def test_few_errors_are_covered_nine_times_in_ten_on_gpus_that_err_more_or_less_than_the_other(count, shape, low, high):
    rng = np.random.default_rng(count)
    held = []
    for scale in 0.05 * np.exp(SPREAD_OF_GPUS * rng.standard_normal(COLLECTIONS)):
        half = few_errors_half(scale * drawn(rng, shape, (count,)), 0.05 * np.sqrt(2.0))
        held.append(np.mean(scale * drawn(rng, shape, (50,)) <= half))
    assert low <= np.mean(held) <= high


def test_few_shapes_have_one_width_that_the_bundle_states_as_it_was_found():
    shapes = shape_errors(list(SHAPES.operators[:20]))
    error = 0.1 * np.random.default_rng(4).standard_normal(20)
    near, far, _ = interval_quantiles(shapes, forecast_with(error), [], True, 0.06)
    assert near == far
    assert near * (0.01 + np.abs(error).mean()) == pytest.approx(few_errors_half(np.abs(error), 0.06))
    wide = interval_quantiles(shapes, forecast_with(error), [], True, 0.3)[0]
    assert 1.5 * near < wide < 4.0 * near
