"""The criterion by which measurements are chosen: what a measurement tells, it tells for good, and never more than there is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.engine.design import EQUATION_ERROR, MEASURING_ERROR, PHASE_WIDTH, Design, error_covariance, greedy_choices, phase_columns
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.specifications import load_gpu
from estimator.vocabulary.workload import make_operator


def made(seed: int, count: int, columns: int = 3) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    return random.normal(0.0, 0.3, (count, columns)), error_covariance(random.uniform(0.0, 10.0, (count, 2)))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**20), count=st.integers(1, 40))
def test_every_measurement_lowers_what_is_unknown_by_the_gain_that_was_told(seed: int, count: int) -> None:
    design = Design(*made(seed, count), share=1.5)
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


def test_the_dearer_of_two_equal_measurements_comes_last() -> None:
    moved, error = np.full((2, 1), 0.3), EQUATION_ERROR**2 * np.eye(2)
    order = [place for _, place in greedy_choices([Design(moved, error, cost=np.array([3.0, 1.0]))])]
    assert order == [1, 0]


def test_sections_are_served_by_what_they_still_lack() -> None:
    sure, unsure = made(1, 20), made(2, 20, columns=8)
    order = [section for section, _ in greedy_choices([Design(0.05 * sure[0], 0.1 * sure[1]), Design(*unsure)])]
    assert len(order) == 40
    assert order[:10].count(1) > 5


def test_a_kernel_s_columns_are_the_shares_of_its_time() -> None:
    large = make_operator("gemm", "linear", "bf16", batch=1, m=8192, n=8192, k=8192)
    add = make_operator("elementwise", "add", "bf16", elements=2**28, reads=2**29)
    small = make_operator("elementwise", "add", "bf16", elements=256, reads=512)
    clock, warm = np.full(1, 1410.0), np.ones(1, dtype=bool)
    found = [phase_columns([operator], load_gpu("a100-pcie-40gb"), clock, warm)[0] / PHASE_WIDTH for operator in (large, add, small)]
    assert [int(np.argmax(shares)) for shares in found[:2]] == [0, 2]  # math, DRAM
    assert found[2][-2:].sum() > 0.8  # starting and ending
