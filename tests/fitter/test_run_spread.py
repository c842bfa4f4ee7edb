"""From errors of left-out runs to stated deviations, for seen and for unseen model families: laws on drawn errors."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planted_spread import RATIOS, WITHIN, planted_coverage
from estimator.uncertainty.sources import error_sources, joined
from estimator.vocabulary.quantities import NORMAL_90
from fitter.bundle.run_spread import (
    FAMILY_POWER_PRIOR,
    FAMILY_PRIOR,
    LATENCY_PRIOR,
    POWER_PRIOR,
    PacedSpread,
    RunErrors,
    RunSpread,
    family_spread,
    family_std,
    interval_factor,
    known_spread,
    paced_std,
)
from tests.fitter.measured import planted_bundle

RUNS = 400
KNOWN = 0.05


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


def test_what_the_gpu_paces_and_what_the_host_paces_are_told_apart_in_latency_and_power() -> None:
    error, share = mixed(0.03, 0.15)
    found = known_spread(errors_of(error, 0.5 * error, share))
    assert (found.latency.gpu, found.latency.launch) == pytest.approx((0.03, 0.15), rel=0.15)
    assert (found.power.gpu, found.power.launch) == pytest.approx((0.015, 0.075), rel=0.2)


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
    nothing, (error, share) = np.zeros(0), mixed(0.03, 0.1)
    assert paced_std(nothing, nothing, LATENCY_PRIOR) == pytest.approx(LATENCY_PRIOR, rel=1e-3)
    assert interval_factor(nothing) == 1.0
    stated = known_spread(errors_of(error, np.full(RUNS, np.nan), share))
    assert (stated.power.gpu, stated.power.launch) == pytest.approx(POWER_PRIOR, rel=1e-3)


DRAWN = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "student": lambda rng, size: rng.standard_t(3, size),
    "two modes": lambda rng, size: rng.choice([-0.2, 1.5], size, p=[0.8, 0.2]),
}


@settings(max_examples=30)
@given(st.sampled_from(sorted(DRAWN)), st.integers(0, 1000))
def test_nine_of_ten_errors_lie_inside_whatever_their_tails(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = NORMAL_90 * interval_factor(np.abs(DRAWN[kind](rng, RUNS)))
    inside = np.mean(np.abs(DRAWN[kind](rng, 20_000)) <= half * (1.0 + 1e-9))
    assert 0.82 <= inside <= (1.0 if kind == "two modes" else 0.97)  # four deviations of the quantile of 400 runs


def test_few_runs_are_covered_as_often_as_many() -> None:
    rng = np.random.default_rng(6)
    for count in (12, 24, 48):
        halves = [NORMAL_90 * interval_factor(np.abs(rng.standard_t(4, count))) for _ in range(300)]
        assert 0.88 <= np.mean([np.mean(np.abs(rng.standard_t(4, 2000)) <= half) for half in halves]) <= 0.92, count


@pytest.mark.parametrize("ratio", RATIOS)
def test_nine_of_ten_runs_of_unseen_families_lie_inside_whatever_sets_families_apart(ratio: float) -> None:
    held = planted_coverage(ratio, 25)
    assert pytest.approx(FAMILY_PRIOR, rel=0.2) != WITHIN.gpu
    assert 0.88 <= held.known.mean() <= 0.925
    assert 0.88 <= held.unseen.mean() <= 0.925
    assert 0.87 <= held.inside.mean() <= 0.945  # 25 draws scatter by one to two points


def of_families(between: float, count: int, seed: int, runs: int = 12, within: float = KNOWN) -> tuple[np.ndarray, np.ndarray]:
    """Errors of whole families left out, and their names: each family has an error of its own."""
    rng = np.random.default_rng(seed)
    names = np.repeat([f"family{i:02d}" for i in range(count)], runs)
    return np.repeat(between * rng.standard_normal(count), runs) + within * rng.standard_normal(count * runs), names


def stated(error: np.ndarray, names: np.ndarray, known: float = KNOWN) -> float:
    return family_std(error, np.full(len(error), known), names)


def test_families_that_err_as_known_ones_do_add_little_and_others_what_sets_them_apart() -> None:
    calm, apart, far = (float(np.median([stated(*of_families(b, 6, seed)) for seed in range(10)])) for b in (0.0, 0.1, 0.4))
    assert calm < 0.02
    assert 0.08 <= apart <= 0.2
    assert 0.3 <= far <= 0.8


def test_fewer_families_leave_a_wider_interval_and_many_runs_of_each_tell_no_more_of_others() -> None:
    scatter = np.random.default_rng(3).standard_normal(12) * KNOWN
    found = []
    for count in (3, 6, 24):
        error = np.repeat(np.resize([0.1, -0.1], count), 12) + np.tile(scatter, count)
        names = of_families(0.0, count, 0)[1]
        found.append(stated(error, names))
        assert stated(np.tile(error, 20), np.tile(names, 20)) == pytest.approx(found[-1], rel=0.1)
        assert stated(10.0 * error, names, 10.0 * KNOWN) == pytest.approx(10.0 * found[-1], rel=1e-3)
    assert found[0] > 1.1 * found[1] > 1.21 * found[2]
    assert found[2] == pytest.approx(0.1, rel=0.2)  # many families: no more than what was seen


def test_fewer_than_three_families_leave_what_is_assumed_and_power_that_was_not_measured_too() -> None:
    spread = RunSpread(latency=PacedSpread(gpu=KNOWN, launch=0.1), power=PacedSpread(gpu=KNOWN, launch=0.1))
    for count, measured in ((2, True), (4, False)):
        error, names = of_families(0.3, count, 4)
        latency, power = family_spread(errors_of(error, error if measured else error * np.nan, np.zeros(len(error))), names, spread)
        assert (latency == FAMILY_PRIOR) == (count == 2)
        assert power == FAMILY_POWER_PRIOR
