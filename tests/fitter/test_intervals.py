"""Intervals: what rehearsed forecasts erred, and how much farther the real ones go."""

import numpy as np
import pytest

from estimator.residuals import Fading
from fitter.kernels.intervals import FIRST_OCTAVES, NEXT_GROWTH, interval_quantiles
from fitter.kernels.residual_tier import Forecast, ShapeErrors, shape_errors
from tests.fitter.measured import various_operators

SHAPES: ShapeErrors = shape_errors([o for o in various_operators(300) if o.family == "softmax"])
COUNT = len(SHAPES.operators)


def forecast_with(error: np.ndarray, excess: float = 0.0) -> Forecast:
    nothing = np.zeros(len(error))
    return Forecast(bare=error, neighbours=nothing, distance=nothing, excess=np.full(len(error), excess))


def quantiles(*rehearsed: np.ndarray, scatter: float = 0.03) -> tuple[float, float, float, float]:
    inside = forecast_with(scatter * np.random.default_rng(0).standard_normal(COUNT))
    return interval_quantiles(SHAPES, inside, [forecast_with(error, 1.0) for error in rehearsed], Fading())


def beyond(*rehearsed: np.ndarray) -> float:
    """Half width one octave beyond the largest work, where the rehearsals were."""
    edge, octaves = quantiles(*rehearsed)[2:]
    return edge * float(np.sqrt(1.0 / octaves))


def scattered(mean: float, seed: int, count: int = 200) -> np.ndarray:
    return mean + 0.02 * np.random.default_rng(seed).standard_normal(count)


def test_an_error_of_one_sign_in_every_rehearsal_is_expected_to_grow() -> None:
    same = beyond(scattered(0.05, 1), scattered(0.06, 2))
    opposite = beyond(scattered(0.05, 1), scattered(-0.06, 2))
    assert same == pytest.approx(opposite + 0.06, abs=0.005)


def test_work_beyond_is_less_certain_than_the_worst_rehearsal() -> None:
    worst = np.quantile(np.abs(scattered(-0.06, 2)), 0.9)
    assert beyond(scattered(0.05, 1), scattered(-0.06, 2)) >= NEXT_GROWTH * worst


def test_one_rehearsal_shows_no_drift_and_none_leaves_the_error_inside() -> None:
    one = beyond(scattered(0.05, 1))
    assert one == pytest.approx(NEXT_GROWTH * np.quantile(np.abs(scattered(0.05, 1)), 0.905), rel=0.02)
    edge, octaves = quantiles()[2:]
    assert edge == pytest.approx(1.645 * 0.03, rel=0.2)
    assert octaves == 1.0


def test_errors_that_grow_with_the_root_of_the_distance_are_covered_near_and_far() -> None:
    rng = np.random.default_rng(5)
    distance = rng.uniform(0.0, 3.0, 4000)
    nothing = np.zeros(len(distance))

    def walk() -> Forecast:
        error = 0.04 * np.sqrt(np.maximum(distance, FIRST_OCTAVES)) * rng.standard_normal(len(distance))
        return Forecast(bare=error, neighbours=nothing, distance=nothing, excess=distance)

    inside = forecast_with(0.02 * rng.standard_normal(COUNT))
    edge, octaves = interval_quantiles(SHAPES, inside, [walk(), walk()], Fading())[2:]
    half = edge / NEXT_GROWTH * np.sqrt(np.maximum(distance / octaves, 1.0))  # of rehearsals themselves
    held = np.abs(walk().bare) <= half
    for low, high in ((0.0, 0.5), (0.5, 1.0), (1.0, 2.0), (2.0, 3.0)):
        assert 0.85 <= held[(distance >= low) & (distance < high)].mean() <= 0.96, (low, high)


@pytest.mark.parametrize("scatter", [0.01, 0.1])
def test_nine_of_ten_kernels_lie_inside_whatever_the_scatter(scatter: float) -> None:
    rng = np.random.default_rng(1)
    error = scatter * rng.standard_normal(COUNT)
    near, far, _, _ = interval_quantiles(SHAPES, forecast_with(error), [], Fading())
    assert far >= near
    sigma = 0.01 + np.abs(error).mean()  # the scale of neighbours that all err alike
    assert 0.8 <= np.mean(np.abs(scatter * rng.standard_normal(10_000)) <= near * sigma) <= 0.97


def test_kernels_chosen_to_differ_are_as_uncertain_as_all_of_them_were() -> None:
    rng = np.random.default_rng(2)
    shapes = shape_errors(list(SHAPES.operators[:20]))
    error = 0.1 * rng.standard_normal(20)
    distance = np.full(20, 2.0)
    error[0], distance[0] = 0.001, 0.5  # the only one with a neighbour happened to be forecast well
    nothing = np.zeros(20)
    near, far, _, _ = interval_quantiles(shapes, Forecast(bare=error, neighbours=nothing, distance=distance, excess=nothing), [], Fading())
    sigma = 0.01 + np.abs(error).mean()
    held = np.mean(np.abs(0.1 * rng.standard_normal(10_000)) <= near * sigma)
    assert far == near
    assert held >= 0.85
