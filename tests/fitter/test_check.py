"""Errors of a bundle on data: how they are counted, what must hold of them, and when a board has drifted."""

from dataclasses import replace

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import load_gpu
from estimator.vocabulary.quantities import NORMAL_90
from fitter.report.check import check_bundle
from fitter.validate.drift import LEAST_SHIFT, Drift, drifts, outside_range
from fitter.validate.predictions import (
    error_rows,
    errors_of,
    facing_std,
    grouped_folds,
    predict_kernel_rows,
)
from fitter.validate.requirements import a_requirement, judge, missed_line
from tests.estimator.synthetic import addition
from tests.fitter.measured import PLANTED, kernel_rows, selection_of, various_operators, various_workloads, workload_rows


@given(st.floats(0.5, 2.0), st.integers(1, 40))
def test_a_constant_factor_shows_as_bias_and_coverage_on_the_rows_with_both_values(factor, count):
    measured = np.geomspace(1e-6, 1, count + 2)
    predicted = factor * measured
    predicted[-1] = measured[-2] = np.nan
    half = np.where(np.arange(count + 2) % 2, 1.01, 0.99) * abs(np.log(factor)) / NORMAL_90
    errors, unstated = errors_of(measured, predicted, half), errors_of(measured, predicted, np.nan * half)
    assert unstated == {**errors, "coverage": None}
    assert errors["coverage"] == pytest.approx((count // 2) / count) or abs(factor - 1.0) < 1e-9
    assert errors["n"] == count
    assert errors["bias"] == pytest.approx(100 * (factor - 1), abs=1e-6)
    assert errors["mape"] == pytest.approx(abs(errors["bias"]), abs=1e-6)
    assert errors_of(measured[-2:], predicted[-2:], np.ones(2)) is None


@given(st.floats(-1.0, 1.0), st.floats(0.001, 0.5), st.floats(0.001, 0.5), st.floats(-1.0, 1.0))
def test_a_value_lies_in_its_lopsided_interval_exactly_where_its_error_is_within_the_facing_deviation(value, below, above, measured):
    interval = np.array([[value - below, value, value + above]])
    std = facing_std(np.exp(np.array([measured])), interval)[0]
    inside = interval[0, 0] <= measured <= interval[0, 2]
    assert (abs(measured - value) <= NORMAL_90 * std) == inside or min(abs(measured - interval[0, [0, 2]])) < 1e-9


@given(st.lists(st.integers(0, 9), min_size=2, max_size=100), st.floats(0.05, 0.9), st.integers(0, 10))
def test_folds_hold_every_row_once_and_never_part_rows_of_one_label(labels, share, seed):
    column = np.array(labels)
    folds = grouped_folds(column, share, seed)
    assert bool(folds) == (len(set(labels)) > 1)
    for fold, again in zip(folds, grouped_folds(column, share, seed), strict=True):
        assert not set(column[fold]) & set(column[~fold])
        np.testing.assert_array_equal(fold, again)
    if folds:
        assert (np.sum(folds, axis=0) == 1).all()


def test_power_at_the_limit_is_not_compared_but_by_a_clock_that_was_measured():
    rows = kernel_rows(PLANTED, various_operators(30))
    limited = replace(rows, at_limit=np.ones(30, dtype=bool), sm_clock_asked_mhz=rows.sm_clock_mhz)
    for slower, compared in ((1.0, False), (0.7, True)):
        found = error_rows(predict_kernel_rows(PLANTED, replace(limited, sm_clock_mhz=slower * rows.sm_clock_mhz)))
        assert [row["power"] is not None for row in found] == [compared] * len(found)


def test_a_check_names_unknown_kernels_and_forecasts_of_another_gpu():
    rows = kernel_rows(PLANTED, various_operators(9))
    poorer = check_bundle(replace(PLANTED, groups={"gemm": PLANTED.groups["gemm"]}), selection_of(rows))
    assert [row["family"] for row in poorer.rows if row["latency"] is not None] == ["gemm"]
    assert any("no coefficients for 6 of 9" in warning for warning in poorer.warnings)
    forecast = check_bundle(PLANTED, selection_of(replace(rows, gpus=(load_gpu("a10"),))))
    assert {row["gpu"] for row in forecast.rows} == {"a10"}
    assert any(warning.startswith("forecast") for warning in forecast.warnings)


@pytest.mark.parametrize("name", ["own-board", "a10"])
def test_rows_of_a_gpu_from_a_file_are_forecast_from_that_file(name):
    rows = kernel_rows(PLANTED, [addition(2**24), addition(2**26)])
    fast = replace(load_gpu("a10"), name=name)
    slow = replace(fast, dram_bytes_per_s=fast.dram_bytes_per_s / 4)
    seconds = [predict_kernel_rows(PLANTED, replace(rows, gpus=(board,)))["predicted_latency"] for board in (fast, slow)]
    assert (seconds[1] / seconds[0]).to_numpy() == pytest.approx(4.0, rel=0.2)


def test_the_check_document_holds_what_the_contract_names():
    rows = kernel_rows(PLANTED, various_operators(9), noise=0.03)
    selection = selection_of(rows, workload_rows(PLANTED, various_workloads(), noise=0.03))
    document = check_bundle(PLANTED, selection).document(PLANTED, selection)
    assert (document["rows"], document["rejected"]) == (19, {})
    for row in document["errors"]:
        assert set(row) == {"gpu", "family", "operator", "precision", "n", "latency", "power", "coverage"}
        for quantity in ("latency", "power"):
            assert {"mape", "median", "p95", "bias"} <= set(row[quantity])
            assert 0 < row[quantity]["mape"] < 10


# Requirements ---------------------------------------------------------------------------------------------------------


def figures(mape):
    return None if mape is None else {"n": 10, "mape": mape, "median": 1.0, "p95": 1.0, "bias": 0.0, "coverage": 0.9}


def row(kind, latency, power):
    kind_of = {"gpu": "a10", "family": kind, "operator": "all", "precision": "", "n": 10, "coverage": 0.9}
    return {**kind_of, "latency": figures(latency), "power": figures(power)}


@pytest.mark.parametrize(
    "text",
    ["", "latency", "latency=", "latency=five", "latency=-1%", "latency=nan", "latency=1e9999", "energy=5%", "latency=5%;power=4%",
     "latency=5%,,power=4%", "latency=5%,latency=6%", "latency=5%%", "latency=5%" * 10_000],
)  # fmt: skip
def test_limits_are_percent_with_or_without_the_sign_and_anything_else_is_wrong_usage(text):
    assert a_requirement("latency=5%,power=4%") == a_requirement(" latency=5 , power=4.0 ") == {"latency": 5.0, "power": 4.0}
    with pytest.raises(click.BadParameter) as caught:
        a_requirement(text)
    assert len(caught.value.message) < 200


def test_the_worst_kind_of_rows_decides_and_an_unknown_error_is_not_met():
    summary = {"kernels": row("kernels", 4.0, 6.0), "workloads": row("workloads", 7.0, None)}
    latency, power = judge({"latency": 5.0, "power": 6.0}, summary)
    assert (latency["met"], latency["found"], latency["kind"]) == (False, 7.0, "workloads")
    assert (power["met"], power["found"], power["kind"]) == (True, 6.0, "kernels")
    line = missed_line((latency, power))
    assert "workloads" in line
    assert "power" not in line
    (unknown,) = judge({"power": 50.0}, {"kernels": row("kernels", 1.0, None)})
    assert unknown == {"quantity": "power", "limit": 50.0, "found": None, "kind": None, "met": False}
    assert missed_line((unknown,)).startswith("requirement not met: power")


# Drift ----------------------------------------------------------------------------------------------------------------

ERROR = 0.06
"""Error of each kernel's prediction, the same whenever it is measured [ln]."""

REPEATS = 3
NOISE = 0.01


def measured(bundle, seed, *, kernels, slower=1.0, hungrier=1.0):
    """Kernels that the bundle predicts with its error, each measured several times."""
    rng = np.random.default_rng(seed)
    rows = kernel_rows(bundle, various_operators(kernels, seed))
    rows = rows.select(np.repeat(np.arange(len(rows)), REPEATS))
    own = [ERROR * rng.standard_normal(kernels).repeat(REPEATS) + NOISE * rng.standard_normal(len(rows)) for _ in range(2)]
    return replace(rows, latency_s=rows.latency_s * slower * np.exp(own[0]), power_w=rows.power_w * hungrier * np.exp(own[1]))


@pytest.fixture(scope="module")
def stated():
    """A bundle with its errors on held-out kernels."""
    deviations = {"groups": dict.fromkeys(PLANTED.groups, ERROR)}
    errors = error_rows(predict_kernel_rows(PLANTED, measured(PLANTED, 7, kernels=150)))
    return replace(PLANTED, errors=tuple(errors), uncertainty={"latency": deviations, "power": deviations})


def found(bundle, rows):
    return drifts(bundle, [predict_kernel_rows(bundle, rows).assign(outside=outside_range(bundle, rows))])


def test_an_unchanged_board_raises_hardly_any_alarm(stated):
    """1 of 100 checks is stated; more than 5 of 150 have a probability below 0.5 %."""
    rng, rows = np.random.default_rng(0), measured(stated, 3, kernels=30)
    exact, alarms = predict_kernel_rows(stated, rows).assign(outside=outside_range(stated, rows)), 0
    for _ in range(150):
        own = [np.exp(ERROR * rng.standard_normal(30).repeat(REPEATS) + NOISE * rng.standard_normal(len(rows))) for _ in range(2)]
        now = exact.assign(measured_latency=exact["predicted_latency"] * own[0], measured_power=exact["predicted_power"] * own[1])
        alarms += any(one.drifted for one in drifts(stated, [now]))
    assert alarms <= 5


@pytest.mark.parametrize(
    "slower, hungrier, quantity, word",
    [(1.15, 1.0, "latency", "slower"), (1.0, 1.15, "power", "more power"), (0.86, 1.0, "latency", "faster")],
)
def test_a_changed_board_is_noticed_and_by_how_much(stated, slower, hungrier, quantity, word):
    selection = selection_of(measured(stated, 3, kernels=60, slower=slower, hungrier=hungrier))
    check = check_bundle(stated, selection)
    (one,) = (one for one in check.drift if one.drifted)
    assert one.quantity == quantity
    change = 100.0 * (1.0 - 1.0 / (slower * hungrier))
    assert abs(one.shift_percent - change) < 3 * one.std_percent + 1.0
    assert any(line.startswith("drift: 60 kernels") and f"% {word} than stated" in line for line in check.warnings)
    assert [row["drifted"] for row in check.document(stated, selection)["drift"] if row["quantity"] == quantity] == [True]


def test_rows_outside_the_range_fitted_are_no_drift_and_are_listed_apart(stated):
    wide = measured(stated, 5, kernels=60, slower=1.5)
    selection = selection_of(wide)
    inside = check_bundle(stated, selection)
    assert any(line.startswith("drift: ") for line in inside.warnings)
    assert inside.outside == ()
    domain = {key: {"m": (1.0, 64.0), "rows": (1.0, 64.0), "elements": (1.0, 64.0)} for key in stated.groups}
    narrow = replace(stated, domain=domain)
    check = check_bundle(narrow, selection)
    assert not any(line.startswith(("drift: ", "the stated 90 %")) for line in check.warnings)
    assert any(f"{len(wide)} of {len(wide)} rows lie outside the range fitted" in line for line in check.warnings)
    assert {one["family"]: one["n"] for one in check.document(narrow, selection)["outside_range"]} == dict.fromkeys(
        ("gemm", "softmax", "elementwise"), len(wide) // 3
    )
    assert outside_range(replace(stated, clocks_mhz=(1200.0, 1410.0)), wide).all()
    fp32 = replace(wide, operators=tuple(replace(operator, precision="fp32") for operator in wide.operators))
    assert outside_range(stated, fp32).all()


def test_a_gain_that_one_side_alone_measured_is_no_drift_of_power(stated):
    kernels = [predict_kernel_rows(stated, measured(stated, 3, kernels=60, hungrier=1.08)).assign(outside=False)]
    assert [[one.quantity for one in drifts(stated, kernels, gain) if one.drifted] for gain in (0.0, 0.05)] == [["power"], []]


def test_a_shift_below_a_percent_or_without_a_stated_error_is_no_drift(stated):
    one = Drift(quantity="power", kernels=10**6, rows=10**6, shift_percent=0.9 * LEAST_SHIFT, std_percent=1e-6)
    assert not one.drifted
    assert replace(one, shift_percent=1.1 * LEAST_SHIFT).drifted
    rows = measured(stated, 3, kernels=30)
    assert found(replace(stated, errors=()), rows) == ()
    assert found(stated, replace(rows, gpus=(load_gpu("a10"),))) == ()
