"""Families and clocks held out whole: forecast by fits of the others, never by their own rows."""

from dataclasses import replace

import numpy as np
import pytest

from estimator.model.power import BoardTables
from fitter.report.held_out import HeldOut, hold_out
from fitter.report.page import report_html
from fitter.rows.columns import KernelRows, Selection
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, spec, various_operators, various_workloads, workload_rows

TABLES = BoardTables(voltage_v=None, idle_w=None, reference_clock_mhz=900.0, power_limit_w=spec().power_limit_w)


def rows_at(clocks: list[float]) -> KernelRows:
    """Kernels of three families, each row at the next of the clocks; softmax is slower than on any other GPU."""
    rows = kernel_rows(planted_bundle(), various_operators(30), noise=0.01)
    clock = np.resize(np.array(clocks), len(rows))
    slower = np.array([3.0 if operator.family == "softmax" else 1.0 for operator in rows.row_operators()])
    return replace(rows, sm_clock_mhz=clock, sm_clock_asked_mhz=clock, latency_s=slower * rows.latency_s)


def found(selection: Selection) -> dict[tuple[str, str], HeldOut]:
    return {(one.by, one.errors.operator): one for one in hold_out(selection, spec(), TABLES)}


def test_a_family_is_not_fitted_to_its_own_rows() -> None:
    errors = found(selection_of(rows_at([900.0])))
    assert set(errors) == {("family", "gemm"), ("family", "softmax"), ("family", "elementwise")}
    softmax = errors["family", "softmax"].errors
    assert softmax.n == 10
    assert softmax.latency is not None
    assert softmax.latency.bias < -50.0


def test_clocks_are_forecast_from_the_others_and_are_few() -> None:
    errors = found(selection_of(rows_at([600.0, 750.0, 900.0, 1050.0, 1200.0])))
    assert [name for by, name in errors if by == "clock"] == ["600", "900", "1200"]
    assert sum(one.errors.n for one in errors.values() if one.by == "clock") == 18


def test_families_of_models_are_held_out_too_and_stand_on_the_page() -> None:
    selection = selection_of(None, workload_rows(planted_bundle(), various_workloads(), noise=0.01))
    errors = found(selection)
    assert {key: one.errors.n for key, one in errors.items()} == {("family", "large"): 5, ("family", "small"): 5}
    page = report_html(planted_bundle(), selection, {}, tuple(errors.values()))
    assert "held out whole" in page
    assert "workloads large" in page


@pytest.mark.parametrize("clock", [900.0, np.nan])
def test_one_kind_alone_cannot_be_held_out(clock: float) -> None:
    rows = rows_at([clock])
    gemm = np.array([operator.family == "gemm" for operator in rows.row_operators()])
    assert found(selection_of(rows.select(gemm))) == {}
