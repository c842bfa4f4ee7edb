"""From errors of left-out runs to stated deviations: laws on errors that are drawn as the statement assumes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planted_spread import RATIOS, planted_coverage
from estimator.uncertainty.sources import error_sources, joined
from fitter.bundle.runs import EXPECTED, family_spread, paced_std, spread_at
from tests.fitter.measured import PLANTED

RUNS = 400
PRIOR = EXPECTED["latency"]


def mixed(gpu, launch, seed=0, runs=RUNS):
    """Errors of runs, half of them paced by the GPU, some by the host, some by both; and the host's share."""
    rng = np.random.default_rng(seed)
    share = rng.choice([0.0, 0.0, 0.5, 1.0], runs)
    return np.sqrt((1.0 - share) * gpu**2 + share * launch**2) * rng.standard_normal(runs), share


def test_what_is_fitted_is_what_an_estimate_states():
    """Weights of the host in the fit and in the answer are the same, between the paces too."""
    bundle = replace(PLANTED, uncertainty={"latency": {"gpu": 0.03, "launch": 0.15, "families": ("bert",)}, "power": {}})
    share = np.linspace(0.0, 1.0, 21)
    answered = joined(error_sources(bundle, "latency", "bert", share, {"gemm": np.ones(21)}).values())
    assert spread_at((0.03, 0.15), share) == pytest.approx(answered, rel=1e-12)


def test_the_gpus_spread_and_the_hosts_come_back_from_the_runs_that_were_measured():
    error, share = mixed(0.03, 0.15)
    assert paced_std(np.r_[error, np.nan], np.r_[share, 0.5], PRIOR) == pytest.approx((0.03, 0.15), rel=0.2)
    assert paced_std(np.full(RUNS, np.nan), share, PRIOR) == pytest.approx(PRIOR, rel=1e-3)


@settings(max_examples=40)
@given(st.floats(0.01, 0.1), st.floats(0.01, 0.3), st.integers(1, 60), st.integers(0, 1000))
def test_no_other_pair_of_spreads_near_by_is_likelier(gpu, launch, runs, seed):
    error, share = mixed(gpu, launch, seed, runs)

    def cost(spreads):
        variance = (1.0 - share) * spreads[0] ** 2 + share * spreads[1] ** 2
        prior = np.sum(np.log(spreads**2) + (np.array(PRIOR) / spreads) ** 2)
        return float(np.sum(np.log(variance) + error**2 / variance) + 5.0 * prior)

    found = np.array(paced_std(error, share, PRIOR))
    for factors in ([1.01, 1.0], [0.99, 1.0], [1.0, 1.01], [1.0, 0.99]):
        assert cost(found) <= cost(found * np.array(factors))


# Model families that a fit has not seen -------------------------------------------------------------------------------

KNOWN = 0.05
ASSUMED = -1.0


def of_families(between, count, seed):
    """Errors of whole families left out, and their names: each family has an error of its own."""
    rng = np.random.default_rng(seed)
    names = np.repeat([f"family{i}" for i in range(count)], 12)
    return np.repeat(between * rng.standard_normal(count), 12) + KNOWN * rng.standard_normal(count * 12), names


def stated(error, names, known=KNOWN):
    return family_spread(error, np.full(len(error), known), names, ASSUMED)


@pytest.mark.parametrize("ratio", RATIOS)
def test_nine_of_ten_runs_of_unseen_families_lie_inside_whatever_sets_families_apart(ratio):
    held = planted_coverage(ratio, 25)
    assert 0.88 <= held.known.mean() <= 0.925
    assert 0.88 <= held.unseen.mean() <= 0.925
    assert 0.87 <= held.inside.mean() <= 0.945  # 25 draws scatter by one to two points


def test_fewer_than_three_measured_families_leave_what_is_assumed():
    error, names = of_families(0.3, 4, 4)
    assert stated(np.where(np.isin(names, ["family0", "family1"]), error, np.nan), names) == ASSUMED
    assert stated(error, names) != ASSUMED
