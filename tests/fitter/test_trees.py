"""Trees: errors that change abruptly with a size or a product of sizes are found; a damaged list of nodes is refused."""

import numpy as np
import pytest

from estimator.model.kriging import SHARES, PhaseFeatures
from estimator.model.residuals import shape_points
from estimator.model.tier_records import Tier
from estimator.model.trees import grown, input_count, tree_inputs
from estimator.vocabulary.reader import FaultError, read
from fitter.latency.residual_tier import fit_pattern, shape_errors
from fitter.latency.trees import fit_trees
from tests.estimator.synthetic import matmul
from tests.fitter.measured import various_products, written_tier


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
    left = np.abs(abrupt(ASKED) - grown(known, inputs))
    assert left.mean() < 0.1 * np.abs(abrupt(ASKED)).mean()


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
