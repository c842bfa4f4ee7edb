"""Kriging and trees: errors of kernels that spend their time alike, or change abruptly with a size, are found, within bounds."""

import numpy as np
import pytest

from estimator import load_gpu
from estimator.engine.kernel_table import kernel_times
from estimator.model.kriging import SHARES, PhaseFeatures, kriged, phase_features
from estimator.model.residuals import LARGEST_CORRECTION, log_corrections, shape_points
from estimator.model.tier_records import Tier
from estimator.model.trees import grown, input_count, tree_inputs
from estimator.vocabulary.reader import FaultError, read
from fitter.latency.residual_tier import fit_kriging, fit_pattern, shape_errors
from fitter.latency.trees import fit_trees
from fitter.priors import kernel_priors
from scripts.thinning import packed
from tests.estimator.synthetic import matmul
from tests.fitter.measured import various_products, written_tier

GROUP = "gemm.linear.bf16"
ROWS = 90


def features_of(count, seed):
    rng = np.random.default_rng(seed)
    return PhaseFeatures(
        log_clock=np.log2(rng.choice([510e6, 900e6, 1410e6], count)),
        tile_area=rng.choice([4096.0, 16384.0], count),
        shares=rng.dirichlet(np.ones(len(SHARES)), count),
    )


def errors_of_phases(features):
    """Errors that the shares of phases explain, as a wrong coefficient makes them."""
    return 0.3 * features.shares[:, SHARES.index("loop")] - 0.2 * features.shares[:, SHARES.index("dram")]


def test_errors_that_come_from_phases_are_corrected_at_shapes_far_from_all_measured():
    measured, asked = features_of(400, 0), features_of(200, 1)
    known = fit_kriging(np.random.default_rng(2).uniform(0.0, 12.0, (400, 3)), measured, errors_of_phases(measured))
    left = errors_of_phases(asked) - kriged(known, np.full((200, 3), 60.0), asked)
    assert np.abs(left).mean() < 0.35 * np.abs(errors_of_phases(asked)).mean()


def test_shares_of_a_kernels_time_add_up_unless_phases_overlap():
    a100 = load_gpu("a100-pcie-40gb")
    priors = kernel_priors(GROUP, a100, cuda_cores=False, warm=False, one_clock=False)
    groups, cold = {GROUP: {name: prior.centre for name, prior in priors.items()}}, np.zeros(20)
    times = kernel_times(various_products(20), a100, groups, sm_clock_mhz=np.full(20, 900.0), warm=cold)
    found = phase_features(times.phases, times.coefficients, np.full(20, 900e6), cold + np.inf)
    assert np.all((found.shares >= 0.0) & (found.shares <= 1.0))
    assert np.all(found.shares.sum(axis=1) >= 0.999)
    assert np.all(found.tile_area > 0.0)


OPERATORS, FEATURES = various_products(ROWS), features_of(ROWS, 0)


def tier(error):
    """A tier of a bundle."""
    shapes = shape_errors(OPERATORS)
    return written_tier(OPERATORS, error, fit_kriging(shapes.points[shapes.index], FEATURES, error))


def corrections(tiers, features, operators=OPERATORS):
    return log_corrections(operators, [GROUP] * len(operators), {GROUP: packed(tiers)}, None, features)


def test_a_bundle_remembers_kriging_and_without_phases_the_neighbours_answer():
    error = errors_of_phases(FEATURES)
    written = tier(error)
    correction, deviation = corrections(written, FEATURES)
    points = shape_errors(OPERATORS).points[shape_errors(OPERATORS).index]
    np.testing.assert_allclose(correction, kriged(fit_kriging(points, FEATURES, error), points, FEATURES), atol=2e-3)
    assert np.all(deviation > 0.0)
    bare = {name: value for name, value in written.items() if name != "kriging"}
    np.testing.assert_array_equal(corrections(written, None), corrections(bare, None))


def test_corrections_are_bounded_and_give_way_beyond_the_largest_work():
    document = tier(np.full(ROWS, 2.0))
    document["kriging"]["beyond_share"] = 0.0
    assert np.abs(corrections(document, FEATURES)[0]).max() <= LARGEST_CORRECTION
    larger = [matmul(1e5, 1e5, 1e5)]
    assert corrections(document, FEATURES.select(np.array([0])), larger)[0] == 0.0


def features(count, clocks=(2.0**30 / 1e6,)):
    log_clock = np.log2(np.resize(clocks, count) * 1e6)
    return PhaseFeatures(log_clock=log_clock, tile_area=np.zeros(count), shares=np.full((count, len(SHARES)), 1.0 / len(SHARES)))


def abrupt(operators):
    """A library that divides the reduction of large products only, and has no tile for few rows."""
    work = np.array([operator["m"] * operator["n"] * operator["k"] for operator in operators])
    rows = np.array([operator["m"] for operator in operators])
    return np.where(work < 2.0**21, 0.15, -0.05) + np.where(rows < 64, 0.1, 0.0)


MEASURED, ASKED = various_products(4000), various_products(500, 1)


def test_abrupt_errors_are_found_at_shapes_that_were_not_measured():
    measured = tree_inputs(shape_points(MEASURED), features(4000))
    known = fit_trees(measured, abrupt(MEASURED), measured[:0])
    inputs = tree_inputs(shape_points(ASKED), features(500))
    assert inputs.shape == (500, input_count(shape_points(ASKED).shape[1]))
    assert np.abs(abrupt(ASKED) - grown(known, inputs)).mean() < 0.1 * np.abs(abrupt(ASKED)).mean()


def test_an_error_that_all_kernels_share_is_found_whole():
    known = fit_trees(np.random.default_rng(0).random((1000, 4)), np.full(1000, 0.2), np.zeros((100, 4)))
    assert grown(known, np.zeros((1, 4)))[0] == pytest.approx(0.2, abs=0.001)


def test_a_table_tells_nothing_of_tiles_left_empty_by_more_rows_than_it_has_with_empty_ones():
    rows = (8, 16, 32, 64, 96, 128, 160, 192, 256, 512, 1024, 2048, 4096)
    table = [matmul(m, n, k) for m in rows for n in range(256, 4096, 256) for k in (1024, 2048, 4096)]
    empty = np.array([-one["m"] % 128 / 128 for one in table])
    error = 0.4 * (empty - empty.mean())
    known = fit_pattern(shape_errors(table), np.arange(len(table)), features(len(table)), error)
    few, *between = grown(known, tree_inputs(shape_points([matmul(m, 1024, 2048) for m in (8, 520, 904, 3000)]), features(4)))
    assert few > 0.2
    assert np.abs(between).max() < 0.05


@pytest.mark.parametrize(
    "broken, message",
    [
        (lambda trees: {"feature": [99, *trees["feature"][1:]]}, "asks for an input that kernels lack"),
        (lambda trees: {"feature": [1] * len(trees["feature"])}, "values where"),
        (lambda trees: {"threshold": trees["threshold"][1:]}, "values where"),
        (lambda trees: {"value": []}, "value"),
        (lambda trees: {"feature": [1, 0], "threshold": [0.0], "value": [0.1]}, "more children than there are nodes"),
    ],
)
def test_broken_trees_are_refused(broken, message):
    shapes, error = shape_errors(MEASURED), abrupt(MEASURED)
    written = written_tier(MEASURED, error, fit_pattern(shapes, np.arange(4000), features(4000), error))
    written["trees"] |= broken(written["trees"])
    with pytest.raises(FaultError, match=message):
        read(Tier, written)
