from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.vocabulary.quantities import NORMAL_90
from fitter.report.check import check_bundle
from fitter.validate.predictions import (
    WORKLOAD_FAMILY,
    error_rows,
    errors_of,
    facing_std,
    grouped_folds,
    predict_kernel_rows,
    predict_workload_rows,
)
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, various_operators, various_workloads, workload_rows


def test_a_perfect_prediction_has_no_error() -> None:
    values = np.geomspace(1e-6, 1, 50)
    errors = errors_of(values, values, np.full(50, 0.1))
    assert errors is not None
    assert (errors.mape, errors.median, errors.p95, errors.bias, errors.coverage, errors.n) == (0, 0, 0, 0, 1, 50)


@given(st.floats(0.5, 2.0), st.integers(1, 40))
def test_a_constant_factor_shows_as_bias(factor: float, count: int) -> None:
    measured = np.geomspace(1e-6, 1, count)
    errors = errors_of(measured, factor * measured, np.full(count, np.nan))
    assert errors is not None
    assert errors.bias == pytest.approx(100 * (factor - 1), abs=1e-6)
    assert errors.mape == pytest.approx(abs(errors.bias), abs=1e-6)
    assert np.isnan(errors.coverage)


def test_ninety_percent_of_normal_errors_lie_inside_their_interval() -> None:
    rng = np.random.default_rng(0)
    std = rng.uniform(0.01, 0.2, 20_000)
    errors = errors_of(np.exp(std * rng.standard_normal(20_000)), np.ones(20_000), std)
    assert errors is not None
    assert errors.coverage == pytest.approx(0.9, abs=0.01)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=100), st.floats(0.05, 0.9), st.integers(0, 10))
def test_folds_hold_every_row_once_and_never_part_rows_of_one_label(labels: list[int], share: float, seed: int) -> None:
    column = np.array(labels)
    folds = grouped_folds(column, share, seed)
    if len(set(labels)) < 2:
        assert folds == []
        return
    assert (np.sum(folds, axis=0) == 1).all()
    for fold in folds:
        assert not set(column[fold]) & set(column[~fold])
    for fold, again in zip(folds, grouped_folds(column, share, seed), strict=True):
        np.testing.assert_array_equal(fold, again)


def test_a_bundle_predicts_the_rows_that_it_made() -> None:
    bundle = planted_bundle()
    kernels = predict_kernel_rows(bundle, kernel_rows(bundle, various_operators(30)))
    runs = predict_workload_rows(bundle, workload_rows(bundle, various_workloads()))
    for row in [*error_rows(kernels), *error_rows(runs)]:
        assert row.latency is not None
        assert row.power is not None
        assert row.latency.p95 < 1e-6
        assert row.power.p95 < 1e-6
    assert {row.family for row in error_rows(kernels)} == {"gemm", "softmax", "elementwise"}
    assert [row.family for row in error_rows(runs)] == [WORKLOAD_FAMILY]


def test_power_at_the_limit_is_not_compared() -> None:
    bundle = planted_bundle()
    rows = kernel_rows(bundle, various_operators(6))
    capped = replace(rows, at_limit=np.ones(6, dtype=bool))
    assert all(row.power is None for row in error_rows(predict_kernel_rows(bundle, capped)))


def test_kernels_without_coefficients_are_not_compared_and_named() -> None:
    bundle = planted_bundle()
    rows = kernel_rows(bundle, various_operators(9))
    poorer = replace(bundle, groups={"gemm": bundle.groups["gemm"]})
    found = check_bundle(poorer, selection_of(rows))
    assert [row.family for row in found.rows if row.latency is not None] == ["gemm"]
    assert any("no coefficients for 6 of 9" in warning for warning in found.warnings)


def test_the_check_document_holds_what_the_contract_names() -> None:
    bundle = planted_bundle()
    rows = kernel_rows(bundle, various_operators(9), noise=0.03)
    selection = selection_of(rows, workload_rows(bundle, various_workloads(), noise=0.03))
    document = check_bundle(bundle, selection).document(bundle, selection)
    assert document["rows"] == 19
    assert document["rejected"] == {}
    for row in document["errors"]:
        assert set(row) == {"gpu", "family", "operator", "precision", "n", "latency", "power", "coverage"}
        for quantity in ("latency", "power"):
            assert {"mape", "median", "p95", "bias"} <= set(row[quantity])
            assert 0 < row[quantity]["mape"] < 10


@given(st.floats(-1.0, 1.0), st.floats(0.001, 0.5), st.floats(0.001, 0.5), st.floats(-1.0, 1.0))
def test_a_value_lies_in_its_lopsided_interval_exactly_where_its_error_is_within_the_facing_deviation(
    value: float, below: float, above: float, measured: float
) -> None:
    interval = np.array([[value - below, value, value + above]])
    std = facing_std(np.exp(np.array([measured])), interval)[0]
    inside = interval[0, 0] <= measured <= interval[0, 2]
    assert (abs(measured - value) <= NORMAL_90 * std) == inside or min(abs(measured - interval[0, [0, 2]])) < 1e-9


def test_errors_take_only_rows_where_both_values_are_known() -> None:
    errors = errors_of(np.array([1.0, np.nan, 1.0]), np.array([1.1, 1.0, np.nan]), np.full(3, np.nan))
    assert errors is not None
    assert errors.n == 1
    assert errors_of(np.array([np.nan]), np.array([1.0]), np.array([0.1])) is None


def test_rows_of_another_gpu_are_forecast_with_a_warning() -> None:
    bundle = planted_bundle()
    rows = replace(kernel_rows(bundle, various_operators(6)), gpus=("a10",))
    found = check_bundle(bundle, selection_of(rows))
    assert {row.gpu for row in found.rows} == {"a10"}
    assert any(warning.startswith("forecast") for warning in found.warnings)
