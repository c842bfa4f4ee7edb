"""From errors of left-out runs to what is stated: laws on errors that are drawn as the statement assumes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitter.run_spread import NORMAL_90, PRIOR_FAMILIES, family_std, interval_factor, paced_std, single_std

EXPECTED = (0.04, 0.12)
RUNS = 400


def mixed(gpu: float, launch: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Errors of runs, half of them paced by the GPU, some by the host, some by both; and the host's share."""
    rng = np.random.default_rng(seed)
    share = rng.choice([0.0, 0.0, 0.5, 1.0], RUNS)
    return np.sqrt((1.0 - share) * gpu**2 + share * launch**2) * rng.standard_normal(RUNS), share


def of_families(
    between: float, count: int, rng: np.random.Generator, runs: int = 12, within: float = 0.05
) -> tuple[np.ndarray, np.ndarray]:
    """Errors of whole families left out, and their names: each family has an error of its own."""
    names = np.repeat([f"family{i}" for i in range(count)], runs)
    common = np.repeat(between * rng.standard_normal(count), runs)
    return common + within * rng.standard_normal(count * runs), names


def test_what_the_gpu_paces_and_what_the_host_paces_are_told_apart() -> None:
    gpu, launch = paced_std(*mixed(0.03, 0.15), EXPECTED)
    assert gpu == pytest.approx(0.03, rel=0.15)
    assert launch == pytest.approx(0.15, rel=0.15)


def test_a_host_with_slow_modes_does_not_widen_what_the_gpu_paces() -> None:
    calm, slow = (paced_std(*mixed(0.03, launch), EXPECTED)[0] for launch in (0.05, 0.3))
    assert slow == pytest.approx(calm, rel=0.15)


def test_no_runs_leave_what_was_expected() -> None:
    assert paced_std(np.zeros(0), np.zeros(0), EXPECTED) == pytest.approx(EXPECTED, rel=1e-3)
    assert single_std(np.zeros(0), 0.04) == pytest.approx(0.04)
    assert interval_factor(np.zeros(0), np.zeros(0)) == 1.0


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
    half = NORMAL_90 * interval_factor(drawn_errors(kind, rng, RUNS), np.ones(RUNS))
    inside = np.mean(np.abs(drawn_errors(kind, rng, 20_000)) <= half * (1.0 + 1e-9))
    assert 0.84 <= inside <= (1.0 if kind == "two modes" else 0.96)


def test_families_that_err_as_known_ones_do_add_less_than_expected_and_others_more() -> None:
    rng = np.random.default_rng(1)
    spreads = []
    for between in (0.0, 0.15):
        drawn = [of_families(between, 6, rng) for _ in range(10)]
        spreads.append(float(np.median([family_std(error, np.full(len(error), 0.05), names, 0.05) for error, names in drawn])))
    assert spreads[0] < 0.045
    assert spreads[1] > 0.08


def test_no_family_leaves_what_was_expected() -> None:
    nothing = np.zeros(0)
    assert family_std(nothing, nothing, np.zeros(0, dtype=str), 0.05) == pytest.approx(0.05, rel=0.05)


def test_an_error_that_another_source_states_already_is_not_stated_twice() -> None:
    rng = np.random.default_rng(2)
    error, names = of_families(0.02, 4, rng)
    error[names == "family3"] += 0.23  # kernels that no other family used
    known = np.full(len(error), 0.05)
    stated = np.where(names == "family3", 0.2, known)
    once, twice = (family_std(error, std, names, 0.05) for std in (stated, known))
    assert once < 0.05
    assert twice > 1.3 * once


def test_runs_of_one_family_count_as_one() -> None:
    rng = np.random.default_rng(3)
    error, names = of_families(0.1, 5, rng, within=0.0)
    many, many_names = np.tile(error, 20), np.tile(names, 20)
    one, repeated = (family_std(e, np.full(len(e), 0.03), n, 0.05) for e, n in ((error, names), (many, many_names)))
    assert repeated == pytest.approx(one, rel=1e-6)
    assert PRIOR_FAMILIES > 0


def test_nine_of_ten_new_families_runs_lie_inside_on_average_but_not_in_every_sample() -> None:
    rng = np.random.default_rng(4)
    covered = []
    for _ in range(300):
        error, names = of_families(0.05, 4, rng)
        half = NORMAL_90 * np.hypot(0.05, family_std(error, np.full(len(error), 0.05), names, 0.05))
        fresh, _ = of_families(0.05, 3, rng)
        covered.append(np.mean(np.abs(fresh) <= half))
    assert 0.86 <= np.mean(covered) <= 0.94
    assert np.mean(np.array(covered) >= 0.95) > 0.2  # runs of a family err alike: nearly all inside is common, and so is a fifth outside
