"""What a fit says of its priors: the probability of the rows under them."""

from functools import partial

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fitter.latency.objective import solve


def log_evidence(slopes, target, width, scale):
    return solve(lambda shift: (slopes @ shift, slopes), target, width, scale=scale).log_evidence


@pytest.mark.parametrize("seed", range(5))
def test_the_evidence_is_that_of_a_normal_model_where_errors_are_small(seed):
    """ln t = J·shift + error: the rows are normal with J diag(σ²) Jᵀ + s², whose constant cancels between two priors."""
    rng = np.random.default_rng(seed)
    rows, scale = int(rng.integers(2, 9)), 0.05
    slopes, widths = rng.normal(size=(rows, 3)), (np.full(3, 0.002), np.array([0.004, 0.002, 0.001]))
    target = 0.01 * scale * rng.normal(size=rows)
    found = [log_evidence(slopes, target, width, scale) for width in widths]
    exact = [multivariate_normal(cov=slopes @ np.diag(width**2) @ slopes.T + scale**2 * np.eye(rows)).logpdf(target) for width in widths]
    assert found[1] - found[0] == pytest.approx(exact[1] - exact[0], abs=1e-4)


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_stated_deviations_are_those_of_the_rows_scatter_whatever_the_usual_error(noise):
    slopes = np.ones((400, 1))
    found = solve(lambda shift: (slopes @ shift, slopes), noise * np.random.default_rng(1).normal(size=400), np.array([10.0]), scale=0.05)
    assert np.sqrt(found.covariance[0, 0]) == pytest.approx(noise / 20.0, rel=0.25)


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
