"""From errors of left-out runs to what is stated for known families: laws on errors that are drawn as the statement assumes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.uncertainty.sources import error_sources, joined
from estimator.vocabulary.quantities import NORMAL_90
from fitter.bundle.run_spread import (
    LATENCY_PRIOR,
    POWER_PRIOR,
    PacedSpread,
    RunErrors,
    interval_factor,
    known_spread,
    paced_std,
)
from tests.fitter.measured import planted_bundle

RUNS = 400


def mixed(gpu: float, launch: float, seed: int = 0, runs: int = RUNS) -> tuple[np.ndarray, np.ndarray]:
    """Errors of runs, half of them paced by the GPU, some by the host, some by both; and the host's share."""
    rng = np.random.default_rng(seed)
    share = rng.choice([0.0, 0.0, 0.5, 1.0], runs)
    return np.sqrt((1.0 - share) * gpu**2 + share * launch**2) * rng.standard_normal(runs), share


def errors_of(latency: np.ndarray, power: np.ndarray, share: np.ndarray) -> RunErrors:
    return RunErrors(latency=latency, power=power, launch_bound=share, untested=np.zeros(len(share)))


def test_what_is_fitted_is_what_an_estimate_states() -> None:
    """Weights of the host in the fit and in the answer are the same, between the paces too."""
    bundle = replace(planted_bundle(), uncertainty={"latency": {"gpu": 0.03, "launch": 0.15, "families": ("bert",)}, "power": {}})
    share = np.linspace(0.0, 1.0, 21)
    answered = joined(error_sources(bundle, "latency", "bert", share, {"gemm": np.ones(21)}).values())
    assert PacedSpread(gpu=0.03, launch=0.15).at(share) == pytest.approx(answered, rel=1e-12)


def test_what_the_gpu_paces_and_what_the_host_paces_are_told_apart() -> None:
    gpu, launch = paced_std(*mixed(0.03, 0.15), LATENCY_PRIOR)
    assert gpu == pytest.approx(0.03, rel=0.15)
    assert launch == pytest.approx(0.15, rel=0.15)


@settings(max_examples=40)
@given(st.floats(0.01, 0.1), st.floats(0.01, 0.3), st.integers(1, 60), st.integers(0, 1000))
def test_no_other_pair_of_spreads_near_by_is_likelier(gpu: float, launch: float, runs: int, seed: int) -> None:
    error, share = mixed(gpu, launch, seed, runs)

    def cost(spreads: np.ndarray) -> float:
        variance = (1.0 - share) * spreads[0] ** 2 + share * spreads[1] ** 2
        prior = np.sum(np.log(spreads**2) + (np.array(LATENCY_PRIOR) / spreads) ** 2)
        return float(np.sum(np.log(variance) + error**2 / variance) + 5.0 * prior)

    found = np.array(paced_std(error, share, LATENCY_PRIOR))
    for factors in ([1.01, 1.0], [0.99, 1.0], [1.0, 1.01], [1.0, 0.99]):
        assert cost(found) <= cost(found * np.array(factors))


def test_no_runs_leave_what_was_expected() -> None:
    nothing = np.zeros(0)
    assert paced_std(nothing, nothing, LATENCY_PRIOR) == pytest.approx(LATENCY_PRIOR, rel=1e-3)
    assert interval_factor(nothing) == 1.0
    stated = known_spread(errors_of(*mixed(0.03, 0.1)[:1], np.full(RUNS, np.nan), mixed(0.03, 0.1)[1]))
    assert (stated.power.gpu, stated.power.launch) == pytest.approx(POWER_PRIOR, rel=1e-3)


def drawn_errors(kind: str, rng: np.random.Generator, count: int) -> np.ndarray:
    if kind == "normal":
        return rng.standard_normal(count)
    if kind == "student":
        return rng.standard_t(3, count)
    return rng.choice([-0.2, 1.5], count, p=[0.8, 0.2])


@settings(max_examples=30)
@given(st.sampled_from(["normal", "student", "two modes"]), st.integers(0, 1000))
def test_nine_of_ten_errors_lie_inside_whatever_their_tails(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = NORMAL_90 * interval_factor(np.abs(drawn_errors(kind, rng, RUNS)))
    inside = np.mean(np.abs(drawn_errors(kind, rng, 20_000)) <= half * (1.0 + 1e-9))
    assert 0.82 <= inside <= (1.0 if kind == "two modes" else 0.97)  # four deviations of the quantile of 400 runs


def test_few_runs_are_covered_as_often_as_many() -> None:
    rng = np.random.default_rng(6)
    for count in (12, 24, 48):
        held = [
            np.mean(np.abs(rng.standard_t(4, 2000)) <= NORMAL_90 * interval_factor(np.abs(rng.standard_t(4, count)))) for _ in range(300)
        ]
        assert 0.88 <= np.mean(held) <= 0.92, count


def test_the_order_of_runs_does_not_matter() -> None:
    error, share = mixed(0.03, 0.1, runs=50)
    mixed_up = np.random.default_rng(1).permutation(50)
    one, other = (known_spread(errors_of(e, e, s)) for e, s in ((error, share), (error[mixed_up], share[mixed_up])))
    assert (other.latency.gpu, other.power.launch) == pytest.approx((one.latency.gpu, one.power.launch), rel=1e-5)


def test_power_of_runs_that_the_host_paces_has_a_spread_of_its_own() -> None:
    latency, share = mixed(0.04, 0.12)
    power, _ = mixed(0.02, 0.08, seed=1)
    _, own_share = mixed(0.02, 0.08, seed=1)
    stated = known_spread(errors_of(latency, power, own_share)).power
    assert stated.gpu == pytest.approx(0.02, rel=0.2)
    assert stated.launch == pytest.approx(0.08, rel=0.2)
    assert stated.at(np.array([0.0, 1.0])) == pytest.approx([stated.gpu, stated.launch])
    assert share.shape == own_share.shape
