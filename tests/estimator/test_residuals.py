"""The residual tier: neighbours correct the equations near measured shapes and hold back elsewhere."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.frozen import FrozenMapping, thaw
from estimator.quantities import Array
from estimator.residuals import (
    LARGEST_CORRECTION,
    LARGEST_CORRECTION_BEYOND,
    log_corrections,
    nearest,
    weighted_error,
)
from estimator.workload import Operator, make_operator
from fitter.residual_tier import neighbours, shape_errors, tier_document

GROUP = "gemm.linear.bf16"


def product(m: float, n: float, k: float) -> Operator:
    return make_operator("gemm", "linear", "bf16", batch=1, m=m, n=n, k=k)


def various(count: int, seed: int = 0) -> list[Operator]:
    sizes = np.exp2(np.random.default_rng(seed).uniform(4, 12, (count, 3))).astype(int)
    return [product(*(float(v) for v in row)) for row in sizes]


def document(operators: list[Operator], ln_error: Array, left_out: Array) -> FrozenMapping[object]:
    return tier_document(shape_errors(operators), ln_error, left_out, (2.0, 3.0, 0.4), seed=0)


def test_a_measured_shape_takes_its_own_error() -> None:
    operators = various(200)
    error = np.full(200, 0.1)
    error[7] = 0.12
    correction, _ = log_corrections([operators[7]], [GROUP], {GROUP: document(operators, error, np.abs(error))})
    assert 0.1 < correction[0] <= 0.12


def test_far_from_all_measured_shapes_the_equations_stand_alone() -> None:
    operators = [product(16 + i, 16, 16) for i in range(30)]
    correction, _ = log_corrections([product(16, 2**17, 2**17)], [GROUP], {GROUP: document(operators, np.full(30, 0.3), np.full(30, 0.3))})
    assert abs(correction[0]) < 1e-6


@given(st.floats(-3.0, 3.0), st.booleans())
def test_corrections_are_bounded_more_tightly_beyond_the_largest_work(error: float, beyond: bool) -> None:
    found = weighted_error(np.zeros((1, 8)), np.full((1, 8), error), np.array([beyond]))
    limit = LARGEST_CORRECTION_BEYOND if beyond else LARGEST_CORRECTION
    assert abs(found[0]) <= limit
    assert found[0] == pytest.approx(np.clip(error, -limit, limit))


def test_a_group_without_a_tier_is_left_alone() -> None:
    operators = various(3)
    correction, deviation = log_corrections(operators, [None, "softmax", GROUP], {})
    assert np.all(correction == 0)
    assert np.all(np.isnan(deviation))


def test_a_tier_reads_back_from_json_as_it_was_written() -> None:
    operators = various(100)
    rng = np.random.default_rng(1)
    error = rng.normal(0, 0.05, 100)
    written = document(operators, error, np.abs(error))
    asked = various(20, seed=2)
    direct = log_corrections(asked, [GROUP] * 20, {GROUP: written})
    plain = log_corrections(asked, [GROUP] * 20, {GROUP: json.loads(json.dumps(thaw(written)))})
    np.testing.assert_array_equal(direct, plain)


def test_brute_force_and_tree_find_the_same_neighbours() -> None:
    rng = np.random.default_rng(0)
    points, asked = rng.normal(size=(300, 3)), rng.normal(size=(40, 3))
    distance, index = nearest(points, asked, 8)
    by_tree, tree_index = neighbours(points, asked, 8)
    np.testing.assert_allclose(distance, by_tree, atol=1e-9)
    np.testing.assert_array_equal(index, tree_index)


def test_rows_of_one_shape_count_once() -> None:
    operators = [product(64, 64, 64)] * 5 + various(40)
    shapes = shape_errors(operators)
    assert len(shapes.operators) == 41
    error = np.concatenate([[0.1, 0.2, 0.3, 0.4, 0.5], np.zeros(40)])
    assert shapes.mean(error)[0] == pytest.approx(0.3)


def test_uncertainty_grows_where_neighbours_were_wrong_and_where_none_are_near() -> None:
    operators = various(400)
    wrong = np.array([0.01 if operator["m"] < 256 else 0.2 for operator in operators])
    residuals = {GROUP: document(operators, np.zeros(400), wrong)}
    small, large, unseen = product(32, 512, 512), product(2048, 512, 512), product(16, 2**18, 16)
    _, std = log_corrections([small, large, unseen], [GROUP] * 3, residuals)
    assert std[0] < std[1]
    assert std[0] < std[2]
