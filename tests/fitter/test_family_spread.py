"""What is stated for model families that a fit has not seen: laws, and coverage where the spread between families is planted."""

import numpy as np
import pytest

from benchmarks.planted_spread import RATIOS, WITHIN, planted_coverage
from fitter.bundle.run_spread import FAMILY_POWER_PRIOR, FAMILY_PRIOR, PacedSpread, RunErrors, RunSpread, family_spread, family_std

DRAWS = 25
KNOWN = 0.05


def of_families(
    between: float, count: int, rng: np.random.Generator, runs: int = 12, within: float = KNOWN
) -> tuple[np.ndarray, np.ndarray]:
    """Errors of whole families left out, and their names: each family has an error of its own."""
    names = np.repeat([f"family{i}" for i in range(count)], runs)
    common = np.repeat(between * rng.standard_normal(count), runs)
    return common + within * rng.standard_normal(count * runs), names


def stated(error: np.ndarray, names: np.ndarray, known: float = KNOWN) -> float:
    return family_std(error, np.full(len(error), known), names)


@pytest.mark.parametrize("ratio", RATIOS)
def test_nine_of_ten_runs_of_unseen_families_lie_inside_whatever_sets_families_apart(ratio: float) -> None:
    held = planted_coverage(ratio, DRAWS)
    assert 0.88 <= held.known.mean() <= 0.925
    assert 0.88 <= held.unseen.mean() <= 0.925
    assert 0.87 <= held.inside.mean() <= 0.945  # 25 draws scatter by one to two points


def test_planted_spreads_are_not_what_the_fit_expects_anyway() -> None:
    assert pytest.approx(FAMILY_PRIOR, rel=0.2) != WITHIN.gpu


def test_families_that_err_as_known_ones_do_add_little_and_others_what_sets_them_apart() -> None:
    rng = np.random.default_rng(1)
    calm, apart, far = (float(np.median([stated(*of_families(b, 6, rng)) for _ in range(10)])) for b in (0.0, 0.1, 0.4))
    assert calm < 0.02
    assert 0.08 <= apart <= 0.2
    assert 0.35 <= far <= 0.8


def test_stated_spreads_go_with_the_unit() -> None:
    error, names = of_families(0.08, 4, np.random.default_rng(2))
    assert stated(10.0 * error, names, 10.0 * KNOWN) == pytest.approx(10.0 * stated(error, names), rel=1e-3)


def test_fewer_families_leave_a_wider_interval_for_the_same_spread_seen() -> None:
    shifts = np.array([0.1, -0.1])
    found = []
    for count in (3, 6, 24):
        names = np.repeat([f"family{i:02d}" for i in range(count)], 12)
        scatter = np.tile(np.random.default_rng(3).standard_normal(12), count) * KNOWN
        found.append(stated(np.repeat(np.resize(shifts, count), 12) + scatter, names))
    assert found[0] > 1.1 * found[1]
    assert found[1] > 1.1 * found[2]
    assert found[2] == pytest.approx(0.1, rel=0.2)  # many families: no more than what was seen


def test_many_runs_of_a_family_tell_no_more_of_other_families_than_some() -> None:
    error, names = of_families(0.2, 4, np.random.default_rng(3), within=0.0)
    exact = error + np.tile([KNOWN, -KNOWN], len(error) // 2)
    assert stated(np.tile(exact, 20), np.tile(names, 20)) == pytest.approx(stated(exact, names), rel=0.1)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 50.0])
def test_errors_far_from_all_that_is_usual_give_a_finite_spread(scale: float) -> None:
    error, names = of_families(1.0, 3, np.random.default_rng(6), runs=1)
    assert 0.0 <= stated(scale * error, names) < 1000.0 * max(scale, 1.0)


def test_fewer_than_three_families_leave_what_is_assumed_and_power_that_was_not_measured_too() -> None:
    spread = RunSpread(latency=PacedSpread(gpu=KNOWN, launch=0.1), power=PacedSpread(gpu=KNOWN, launch=0.1))
    for count, measured in ((2, True), (4, False)):
        error, names = of_families(0.3, count, np.random.default_rng(4))
        nothing = np.zeros(len(error))
        errors = RunErrors(latency=error, power=error if measured else error * np.nan, launch_bound=nothing, untested=nothing)
        latency, power = family_spread(errors, names, spread)
        assert (latency == FAMILY_PRIOR) == (count == 2)
        assert power == FAMILY_POWER_PRIOR
