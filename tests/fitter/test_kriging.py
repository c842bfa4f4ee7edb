"""Kriging: kernels that spend their time alike correct one another, within bounds and up to the largest work measured."""

import numpy as np

from estimator import load_gpu
from estimator.engine.kernel_table import kernel_times
from estimator.model.kriging import SHARES, PhaseFeatures, kriged, phase_features
from estimator.model.residuals import LARGEST_CORRECTION, log_corrections
from fitter.latency.residual_tier import fit_kriging, shape_errors
from fitter.priors import kernel_priors
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
    points = np.random.default_rng(2).uniform(0.0, 12.0, (400, 3))
    known = fit_kriging(points, measured, errors_of_phases(measured))
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
    return log_corrections(operators, [GROUP] * len(operators), {GROUP: tiers}, None, features)


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
