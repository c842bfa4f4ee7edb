"""The criterion by which measurements are chosen: what a measurement tells, it tells for good, and never more than there is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.engine.design import MEASURING_ERROR, Design, error_covariance, greedy_choices
from estimator.vocabulary.quantities import Array


def made(seed: int, count: int, columns: int = 3) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    return random.normal(0.0, 0.3, (count, columns)), error_covariance(random.uniform(0.0, 10.0, (count, 2)))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**20), count=st.integers(1, 40))
def test_every_measurement_lowers_what_is_unknown_by_the_gain_that_was_told(seed: int, count: int) -> None:
    design = Design(*made(seed, count))
    before = design.variance
    for _ in range(count):
        gains = design.gains()
        place = int(np.argmax(gains))
        design.take(place)
        assert before - design.variance == pytest.approx(gains[place], rel=1e-6, abs=1e-12)
        assert design.variance <= before
        before = design.variance
    assert -1e-12 <= before <= 1.5 * count * MEASURING_ERROR**2
    assert np.all(design.gains() == -np.inf)


def test_what_is_left_is_the_variance_of_a_gaussian_process_given_the_measurements() -> None:
    moved, error = made(3, 25)
    design, chosen = Design(moved, error), [4, 11, 17]
    for place in chosen:
        design.take(place)
    whole = moved @ moved.T + error
    known = whole[np.ix_(chosen, chosen)] + MEASURING_ERROR**2 * np.eye(3)
    expected = whole - whole[:, chosen] @ np.linalg.solve(known, whole[chosen])
    np.testing.assert_allclose(design.covariance, expected, atol=1e-12)


def test_sections_are_served_by_what_they_still_lack() -> None:
    sure, unsure = made(1, 20), made(2, 20, columns=8)
    order = [section for section, _ in greedy_choices([Design(0.05 * sure[0], 0.1 * sure[1]), Design(*unsure)])]
    assert len(order) == 40
    assert order[:10].count(1) > 5
