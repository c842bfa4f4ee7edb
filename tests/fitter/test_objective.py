"""The objective of the latency fits: stated deviations, failed rows, limits."""

from functools import partial

import numpy as np
import pytest

from fitter.latency.objective import solve


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_stated_deviations_are_those_of_the_rows_scatter_whatever_the_usual_error(noise):
    slopes = np.ones((400, 1))
    found = solve(lambda shift: (slopes @ shift, slopes), noise * np.random.default_rng(1).normal(size=400), np.array([10.0]), scale=0.05)
    assert np.sqrt(found.covariance[0, 0]) == pytest.approx(noise / 20.0, rel=0.25)


@pytest.mark.parametrize("width", [0.01, 0.05, 0.2])
def test_a_row_and_a_prior_share_by_their_variances(width):
    found = solve(lambda shift: (shift, np.eye(1)), np.array([1e-3]), np.array([width]), scale=0.05)
    assert found.log_shift[0] == pytest.approx(1e-3 * width**2 / (width**2 + 0.05**2), rel=0.01)


@pytest.mark.parametrize("analytic", [True, False])
def test_a_failed_row_bends_nothing(analytic):
    slopes, target = np.ones((50, 1)), np.append(np.zeros(49), 5.0)
    assert (
        abs(solve(lambda shift: (slopes @ shift, slopes if analytic else None), target, np.array([10.0]), scale=0.05).log_shift[0]) < 0.01
    )


def test_a_fit_that_starts_at_a_limit_ends_where_one_from_inside_does():
    for seed in range(20):
        slopes = np.random.default_rng(seed).normal(size=(4, 3))
        limits = np.array([0.0, -np.inf, -np.inf]), np.full(3, np.inf)
        fit = partial(solve, lambda shift, j=slopes: (j @ shift, j), slopes @ np.full(3, -0.5), np.ones(3), scale=0.06, limits=limits)
        assert fit().cost == pytest.approx(fit(start=np.eye(3)[0]).cost, rel=1e-3)
