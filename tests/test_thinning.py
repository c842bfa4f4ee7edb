"""Thinning: a bundle fits into fewer bytes, and states wider intervals for what it lost."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import load_bundle
from estimator.bundle.files import document_of, layout
from estimator.model.residuals import log_corrections
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import NORMAL_90
from fitter.errors import ReleaseError
from fitter.latency.intervals import folds_of, interval_quantiles
from fitter.latency.residual_tier import GroupErrors, fit_pattern, forecast, no_forecast, shape_errors, tier_document
from scripts.thinning import thinned
from tests.fitter.measured import various_products
from tests.fitter.test_kriging import abrupt, features

GROUP = "gemm.linear.bf16"
BUNDLE = load_bundle("a10-eager")
GROUPS = FrozenMapping({**BUNDLE.groups, GROUP: next(iter(BUNDLE.groups.values()))})


def errors_of(operators, seed):
    """Those of the trees' library, in measurements that do not repeat exactly."""
    return abrupt(operators) + np.random.default_rng(seed).normal(0.0, 0.01, len(operators))


def tier_of(operators, error, own):
    """The tier of these errors as a fit makes it: each row is forecast without its fold."""
    shapes = shape_errors(operators)
    fold, left_out = folds_of(shapes, seed=0), no_forecast(len(operators))
    for number in range(fold.max() + 1):
        train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        left_out.set_rows(test, forecast(shapes, error, train, test, own).patterned())
    pattern = fit_pattern(shapes, np.arange(len(error)), own, error)
    quantiles = interval_quantiles(shapes, left_out, [], True)
    parts = GroupErrors(ln_error=error, left_out=np.abs(left_out.errors(True)), corrected=True, quantiles=quantiles, pattern=pattern)
    return tier_document(shapes, parts, None, seed=0)


@pytest.mark.parametrize("rows, clocks", [(300, [900.0, 1200.0]), (3000, [900.0])], ids=["kriging", "trees"])
def test_a_smaller_file_holds_intervals_that_still_cover(rows, clocks):
    measured, asked = various_products(rows), various_products(1000, 1)
    residuals = {GROUP: tier_of(measured, errors_of(measured, 2), features(rows, clocks))}
    full, bare = (replace(BUNDLE, groups=GROUPS, residuals=FrozenMapping(own)) for own in (residuals, {}))
    rest = len(layout(document_of(thinned(bare, 10**6))))
    for share in (1.0, 0.5, 0.25):
        most = rest + 200 + int(share * (len(layout(document_of(thinned(full, 10**7)))) - rest))
        small = thinned(full, most)
        assert len(layout(document_of(small))) <= most
        correction, deviation = log_corrections(asked, [GROUP] * 1000, small.residuals, None, features(1000, clocks))
        inside = np.abs(errors_of(asked, 3) - correction) <= NORMAL_90 * deviation
        assert inside.mean() >= 0.8, share
    assert any("thinned" in note for note in small.notes)


def test_a_file_that_cannot_be_so_small_is_refused():
    with pytest.raises(ReleaseError, match=r"a10-eager: \d+ byte too large"):
        thinned(BUNDLE, 1000)
