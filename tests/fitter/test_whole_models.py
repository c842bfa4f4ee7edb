"""Whole models on published runs: fit on some, predict the others.

The limits are the project's targets; `benchmarks/whole_models.py` prints the figures themselves.
"""

import numpy as np
import pytest

from benchmarks.whole_models import (
    LANGUAGE,
    by_length,
    mean_score,
    other_clocks,
    outcome,
    read_case,
    summary,
)
from estimator import estimate
from fitter.bundle.runs import fit_runs
from fitter.latency.runs import MATRIX_GROUPS

SPLITS = 4


@pytest.fixture(scope="module")
def cases(shared_data):
    """Runs on the A100 at 900 MHz and at other clocks, and on the A10."""
    folder = shared_data / "energaizer"
    return {name: read_case(folder / f"{name}.csv") for name in ("a100_900mhz", "a100_clocks", "a10_900mhz")}


def half_to_half(case):
    """Random halves of the workloads, predicted by the others."""
    unique = np.unique(case.rows.workload_index)
    found = []
    for seed in range(SPLITS):
        chosen = np.random.default_rng(seed).permutation(unique)[: len(unique) // 2]
        train = np.isin(case.rows.workload_index, chosen)
        found.append(outcome(case.rows.select(train), case.rows.select(~train), case))
    return found


@pytest.mark.parametrize("name, latency, short, longer", [("a100_900mhz", 5.6, 8.2, 3.7), ("a10_900mhz", 4.2, 5.6, 3.4)])
def test_half_of_the_runs_predict_the_other_half(cases, name, latency, short, longer):
    found = half_to_half(cases[name])
    one = mean_score(found)
    assert one["latency"] <= latency
    assert one["power"] <= 3.6
    parts = by_length(found)
    assert parts["below 20 ms"]["latency"] <= short
    assert parts["from 20 ms"]["latency"] <= longer


def test_power_never_exceeds_the_limit_and_throttling_is_found_where_it_happened(cases):
    case, target = cases["a100_900mhz"], cases["a100_clocks"]
    fit = fit_runs(case.rows, case.gpu, case.tables)
    asked = zip(target.rows.row_workloads(), target.rows.asked_clock_mhz(target.gpu).tolist(), strict=True)
    power = np.array([estimate(workload, fit, sm_clock_mhz=clock)[0].power_w for workload, clock in asked])
    assert (power <= target.gpu.power_limit_w * 1.0001).all()
    throttled = target.rows.asked_clock_mhz(target.gpu) - target.rows.clock_mhz(target.gpu) > 5.0
    assert throttled.sum() >= 10
    assert (power[throttled] > 0.97 * target.gpu.power_limit_w).mean() > 0.8


def test_an_a100_bundle_forecasts_a10_latency_from_its_specification(cases):
    one = summary(outcome(cases["a100_900mhz"].rows, cases["a10_900mhz"].rows, cases["a100_900mhz"]))
    assert one["latency"] <= 5.0


def test_a_language_family_can_be_left_out_and_stated_intervals_cover_it(cases):
    """Runs of a family err alike: of collections of five families, drawn with as much error between families as within them, 95 % have a
    share inside of 0.82 to 0.98, though the intervals hold 92 % on average (`planted_spread`).  The benchmark leaves out the two families
    of vision too, which have 8 of the 57 runs.
    """
    case = cases["a100_900mhz"]
    names = np.array([case.rows.workloads[i].model_family for i in case.rows.workload_index])
    found = [outcome(case.rows.select(names != name), case.rows.select(names == name), case, intervals=True) for name in LANGUAGE]
    one, together = mean_score(found), summary(*found)
    assert one["latency"] <= 6.3
    assert one["power"] <= 4.6
    for quantity in ("latency", "power"):
        assert 0.82 <= together[f"{quantity}_coverage"] <= 0.983
        assert 0.3 <= together[f"{quantity}_square"] <= 2.0


def test_one_clock_predicts_the_others_with_the_power_limit_solved_and_intervals_hold(cases):
    case, target = cases["a100_900mhz"], cases["a100_clocks"]
    one = summary(outcome(case.rows, other_clocks(target), case, intervals=True))
    for name, most in (("latency", 4.5), ("power", 4.6), ("energy", 4.2)):
        assert one[name] <= most
    for quantity, least, square in (("latency", 0.85, 1.5), ("power", 0.8, 1.8)):  # one model that errs at six clocks is seven points
        assert least <= one[f"{quantity}_coverage"] <= 0.97
        assert 0.5 <= one[f"{quantity}_square"] <= square


@pytest.mark.parametrize("name", ["a100_900mhz", "a10_900mhz"])
def test_lambdas_are_physical(cases, name):
    fit = fit_runs(cases[name].rows, cases[name].gpu, cases[name].tables)
    assert all(fit.groups[group].coefficients["math"] >= 1.0 - 1e-9 for group in MATRIX_GROUPS)
    for group, names in {"gemm": ("math", "dram"), "elementwise": ("dram", "l2", "issue"), "conv": ("math",)}.items():
        for one in names:
            assert 0.7 <= fit.groups[group].coefficients[one] <= 2.0, (group, one)
