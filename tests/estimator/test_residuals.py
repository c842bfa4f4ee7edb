"""The residual tier: neighbours correct the equations near measured shapes and hold back elsewhere."""

import bz2
import json
from base64 import b64decode, b64encode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import BundleError, make_operator
from estimator.model.residuals import (
    BEYOND_OCTAVES,
    LARGEST_CORRECTION,
    bounded,
    log_corrections,
    nearest,
)
from estimator.model.tier_records import MOST_UNPACKED, PackedTier
from estimator.vocabulary.quantities import NORMAL_90
from estimator.vocabulary.reader import plain as plain_of
from fitter.latency.residual_tier import GroupErrors, neighbours, shape_errors, tier_document
from scripts.thinning import packed
from tests.estimator.synthetic import matmul
from tests.fitter.measured import various_products

GROUP = "gemm.linear.bf16"


def group_errors(ln_error, left_out):
    return GroupErrors(ln_error=ln_error, left_out=left_out, corrected=True, quantiles=(2.0, 3.0, 0.4))


def document(operators, ln_error, left_out, named=None):
    errors = None if named is None else group_errors(named, np.abs(named))
    return tier_document(shape_errors(operators), group_errors(ln_error, left_out), errors, seed=0)


def corrections(asked, tier, named=None):
    """Corrections of products and their standard deviations by the tier of their group."""
    return log_corrections(asked, [GROUP] * len(asked), {GROUP: tier}, named)


def test_a_measured_shape_takes_its_own_error():
    operators = various_products(200)
    error = np.full(200, 0.1)
    error[7] = 0.12
    correction, _ = corrections([operators[7]], document(operators, error, np.abs(error)))
    assert 0.1 < correction[0] <= 0.12


def test_a_product_that_overflows_its_last_tile_takes_the_errors_of_such_products():
    operators = [matmul(m, n, 4096) for m in (128, 129, 256, 257) for n in range(512, 16384, 512)]
    error = np.where([operator["m"] % 2 for operator in operators], 0.3, -0.1)
    asked = [matmul(m, 5000, 6000) for m in (128, 129, 256, 257)]
    correction, _ = corrections(asked, document(operators, error, np.abs(error)))
    assert correction.tolist() == pytest.approx([-0.1, 0.3, -0.1, 0.3], rel=0.15)


def test_far_from_all_measured_shapes_the_equations_stand_alone():
    operators = [matmul(16 + i, 16, 16) for i in range(30)]
    correction, _ = corrections([matmul(16, 2**17, 2**17)], document(operators, np.full(30, 0.3), np.full(30, 0.3)))
    assert abs(correction[0]) < 1e-6


@given(st.floats(-3.0, 3.0), st.floats(-9.0, 9.0), st.sampled_from([0.0, 0.25, 1.0]))
def test_corrections_are_bounded_and_never_larger_than_the_neighbours_error(error, excess, share):
    found = bounded(np.array([error]), np.array([excess]), share)[0]
    assert abs(found) <= min(LARGEST_CORRECTION, abs(error) * (share if excess > 0.0 else 1.0))
    assert found * error >= 0.0


def test_a_packed_tier_corrects_like_the_plain_one_and_nonsense_is_refused():
    operators = various_products(60)
    tier = document(operators, np.linspace(-0.2, 0.2, 60), np.full(60, 0.1), named=np.full(60, 0.03))
    short = packed(tier)
    ways = [corrections(various_products(9, seed=1), one) for one in (tier, short, PackedTier(short.packed))]
    assert all(np.array_equal(ways[0], way) for way in ways)
    assert plain_of({GROUP: short}) == {GROUP: short.packed}
    flood = b64encode(bz2.compress(b" " * MOST_UNPACKED + bz2.decompress(b64decode(short.packed)))).decode()
    twice = b64encode(bz2.compress(json.dumps(short.packed).encode())).decode()
    for text in ("", "YWJj", short.packed[:-40], flood, twice, packed({**tier, "left_out": (0.1, 0.2)}).packed):
        with pytest.raises(BundleError, match="packed tier that cannot be read"):
            corrections(operators, PackedTier(text))


def test_named_tiles_have_errors_of_their_own():
    operators = various_products(200)
    tier = document(operators, np.full(200, 0.2), np.full(200, 0.2), named=np.full(200, -0.05))
    correction, deviation = corrections(operators[:2], tier, np.array([False, True]))
    assert correction == pytest.approx([0.2, -0.05])
    assert deviation[1] < deviation[0]


def test_intervals_widen_where_one_size_leaves_what_was_measured_though_the_work_does_not():
    operators = various_products(300)
    longest = max(operator["k"] for operator in operators)
    _, std = corrections([matmul(16.0, 16.0, longest * 2.0**i) for i in range(6)], document(operators, np.zeros(300), np.full(300, 0.02)))
    assert np.all(np.diff(std) >= -1e-12)
    assert std[0] < 0.1
    assert std[5] * NORMAL_90 == pytest.approx(0.4 * np.sqrt(5.0 / BEYOND_OCTAVES))


def test_brute_force_and_tree_find_the_same_neighbours():
    rng = np.random.default_rng(0)
    points, asked = rng.normal(size=(300, 3)), rng.normal(size=(40, 3))
    distance, index = nearest(points, asked, 8)
    by_tree, tree_index = neighbours(points, asked, 8)
    np.testing.assert_allclose(distance, by_tree, atol=1e-9)
    np.testing.assert_array_equal(index, tree_index)


def test_uncertainty_grows_where_neighbours_were_wrong_and_where_none_are_near():
    operators = various_products(400)
    wrong = np.array([0.01 if operator["m"] < 256 else 0.2 for operator in operators])
    small, large, unseen = matmul(32, 512, 512), matmul(2048, 512, 512), matmul(16, 2**18, 16)
    _, std = corrections([small, large, unseen], document(operators, np.zeros(400), wrong))
    assert std[0] < min(std[1:])


def test_a_tier_of_another_family_is_refused_in_words():
    operators = various_products(40)
    softmax = make_operator("softmax", "softmax", "fp32", rows=8, dim=8)
    with pytest.raises(BundleError, match="name a field that kernels of softmax lack"):
        log_corrections([softmax], ["softmax"], {"softmax": document(operators, np.zeros(40), np.zeros(40))})
