"""Families and clocks left out whole: forecast by what the others taught, never by their own rows."""

from dataclasses import replace

import numpy as np
import pytest

from estimator.model.power import BoardTables
from estimator.vocabulary.specifications import load_gpu
from fitter.report.left_out import MOST_CLOCKS, LeftOut, leave_out
from fitter.report.page import report_html
from fitter.rows.columns import KernelRows, Selection
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, various_operators, various_workloads, workload_rows
from tests.fitter.page import Page

A100 = load_gpu("a100-pcie-40gb")
TABLES = BoardTables(voltage_v=None, idle_w=None, reference_clock_mhz=900.0, power_limit_w=A100.power_limit_w)
SLOWER = 3.0


def rows_at(clocks: list[float]) -> KernelRows:
    """Kernels of three families, each row at the next of the clocks."""
    rows = kernel_rows(planted_bundle(), various_operators(30), noise=0.01)
    clock = np.resize(np.array(clocks), len(rows))
    return replace(rows, sm_clock_mhz=clock, sm_clock_asked_mhz=clock)


def found(selection: Selection) -> tuple[LeftOut, ...]:
    return leave_out(selection, A100, TABLES)


@pytest.fixture(scope="module")
def kernels() -> KernelRows:
    """All softmax kernels are slower than any other GPU's: only their own rows could tell."""
    rows = rows_at([900.0])
    own = np.array([operator.family == "softmax" for operator in rows.row_operators()])
    return replace(rows, latency_s=np.where(own, SLOWER * rows.latency_s, rows.latency_s))


def test_a_family_left_out_is_not_told_by_its_own_rows(kernels: KernelRows) -> None:
    errors = {one.name: one for one in found(selection_of(kernels))}
    assert set(errors) == {"gemm", "softmax", "elementwise"}
    assert {one.by for one in errors.values()} == {"family"}
    softmax = errors["softmax"]
    assert softmax.n == 10
    assert softmax.latency is not None
    assert softmax.latency.bias < -50.0


def test_clocks_left_out_are_forecast_from_the_others_and_are_few() -> None:
    errors = [one for one in found(selection_of(rows_at([600.0, 750.0, 900.0, 1050.0, 1200.0]))) if one.by == "clock"]
    assert [one.name for one in errors] == ["600", "900", "1200"]
    assert len(errors) == MOST_CLOCKS
    assert sum(one.n for one in errors) == 18


def test_families_of_models_are_left_out_too_and_all_is_on_the_page() -> None:
    runs = workload_rows(planted_bundle(), various_workloads(), noise=0.01)
    errors = found(selection_of(None, runs))
    assert [(one.kind, one.by, one.name, one.n) for one in errors] == [
        ("workloads", "family", "large", 5),
        ("workloads", "family", "small", 5),
    ]
    page = report_html(planted_bundle(), selection_of(None, runs), {}, errors)
    read = Page(page)
    assert read.open == []
    assert 'href="#left-out"' in page
    for one in errors:
        assert one.power is not None
        assert f"<td>{one.name}</td>" in page


def test_what_there_is_one_of_cannot_be_left_out(kernels: KernelRows) -> None:
    own = np.array([operator.family == "gemm" for operator in kernels.row_operators()])
    assert found(selection_of(kernels.select(own))) == ()
    free = replace(kernels, sm_clock_mhz=kernels.sm_clock_mhz * np.nan, sm_clock_asked_mhz=kernels.sm_clock_mhz * np.nan)
    assert {one.by for one in found(selection_of(free))} == {"family"}
