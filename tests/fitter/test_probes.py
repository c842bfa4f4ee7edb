"""The criterion by which probes are chosen: what a measurement tells, it tells for good."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.cli import main as collect
from estimator import bundle_names
from fitter.cli import main as fit
from fitter.transfer.probes import MEASURING_ERROR, after_measuring, unknown_errors, variance_gains
from tests.estimator.estimating import run


@settings(max_examples=30)
@given(seed=st.integers(0, 2**20), count=st.integers(1, 30))
def test_measurements_lower_the_variance_by_their_gain_to_that_of_a_gaussian_process(seed, count):
    random = np.random.default_rng(seed)
    whole = unknown_errors(random.uniform(0.0, 10.0, (count, 2)))
    chosen = random.permutation(count)[:3]
    left = whole
    for place in chosen.tolist():
        lower = after_measuring(left, place)
        assert np.trace(left) - np.trace(lower) == pytest.approx(variance_gains(left)[place])
        left = lower
    known = whole[np.ix_(chosen, chosen)] + MEASURING_ERROR**2 * np.eye(len(chosen))
    np.testing.assert_allclose(left, whole - whole[:, chosen] @ np.linalg.solve(known, whole[chosen]), atol=1e-10)


@pytest.mark.parametrize("bundle", [name for name in bundle_names() if not name.endswith("-eager")])
def test_collect_measures_the_probes_of_every_shipped_bundle_of_kernels(bundle, tmp_path):
    plan = tmp_path / "probes.toml"
    assert run("probes", bundle, "--gpu h100 -n 20 -o", plan, program=fit).status == 0
    status, out, _ = run("--gpu sim:h100 --campaign", plan, "--dry-run --json", program=collect)
    assert status == 0
    document = json.loads(out)
    assert sum(document["kernels"].values()) == 20 - sum(document["skipped"].values()) >= 15
