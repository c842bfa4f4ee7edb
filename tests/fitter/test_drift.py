"""The drift monitor: silent on an unchanged board, loud on a changed one."""

from dataclasses import replace

import numpy as np
import pytest

from estimator.bundle.content import Bundle
from fitter.report.check import check_bundle
from fitter.rows.columns import KernelRows, Selection
from fitter.validate.drift import LEAST_SHIFT, TOGETHER, Drift, drifts, outside_reasons
from fitter.validate.predictions import error_rows, predict_kernel_rows
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, various_operators

ERROR = 0.06
"""Error of each kernel's prediction, the same whenever it is measured [ln]."""

REPEATS = 3
NOISE = 0.01


def stated_bundle(seed: int) -> Bundle:
    """A bundle that knows how wrong it is on kernels left out of it."""
    bundle = planted_bundle()
    rows = measured(bundle, seed, kernels=150)
    stated = {"groups": dict.fromkeys(bundle.groups, ERROR)}
    errors = tuple(row.document() for row in error_rows(predict_kernel_rows(bundle, rows)))
    return replace(bundle, errors=errors, uncertainty={"latency": stated, "power": stated})


def measured(bundle: Bundle, seed: int, *, kernels: int, slower: float = 1.0, hungrier: float = 1.0) -> KernelRows:
    """Kernels that the bundle predicts with its error, each measured several times."""
    rng = np.random.default_rng(seed)
    rows = kernel_rows(bundle, various_operators(kernels, seed))
    rows = rows.select(np.repeat(np.arange(len(rows)), REPEATS))
    own = [ERROR * rng.standard_normal(kernels).repeat(REPEATS) + NOISE * rng.standard_normal(len(rows)) for _ in range(2)]
    return replace(rows, latency_s=rows.latency_s * slower * np.exp(own[0]), power_w=rows.power_w * hungrier * np.exp(own[1]))


def found(bundle: Bundle, rows: KernelRows) -> tuple[Drift, ...]:
    return drifts(bundle, [predict_kernel_rows(bundle, rows).assign(outside=outside_reasons(bundle, rows))])


CHECKS = 300
MOST_ALARMS = 8
"""1 of 100 checks is stated; more than 8 of 300 have a probability below 0.5 %."""


def test_an_unchanged_board_raises_hardly_any_alarm() -> None:
    bundle, rng = stated_bundle(7), np.random.default_rng(0)
    rows = measured(bundle, 3, kernels=30)
    exact, alarms = predict_kernel_rows(bundle, rows).assign(outside=outside_reasons(bundle, rows)), 0
    count = len(rows) // REPEATS
    for _ in range(CHECKS):
        own = [np.exp(ERROR * rng.standard_normal(count).repeat(REPEATS) + NOISE * rng.standard_normal(len(rows))) for _ in range(2)]
        now = exact.assign(measured_latency=exact["predicted_latency"] * own[0], measured_power=exact["predicted_power"] * own[1])
        alarms += any(one.drifted for one in drifts(bundle, [now]))
    assert alarms <= MOST_ALARMS


@pytest.mark.parametrize(("slower", "hungrier", "quantity"), [(1.12, 1.0, "latency"), (1.0, 1.12, "power"), (0.88, 1.0, "latency")])
def test_a_changed_board_is_noticed_and_by_how_much(slower: float, hungrier: float, quantity: str) -> None:
    bundle = stated_bundle(7)
    moved = [one for one in found(bundle, measured(bundle, 3, kernels=60, slower=slower, hungrier=hungrier)) if one.kind == TOGETHER]
    assert [one.quantity for one in moved if one.drifted] == [quantity]
    (one,) = (one for one in moved if one.drifted)
    said = one.document()
    change = (slower if quantity == "latency" else hungrier) - 1.0
    assert abs(said["shift_percent"] - 100 * change) < 3 * said["std_percent"] + 1.0
    assert (
        said["direction"]
        == {(True, "latency"): "slower", (False, "latency"): "faster", (True, "power"): "more power"}[change > 0, quantity]
    )
    assert said["direction"] in one.text()


def test_repeats_of_one_kernel_are_no_further_evidence() -> None:
    bundle = stated_bundle(7)
    rows = measured(bundle, 3, kernels=30)
    again = rows.select(np.tile(np.arange(len(rows)), 20))
    for once, often in zip(found(bundle, rows), found(bundle, again), strict=True):
        assert often.kernels == once.kernels
        assert often.rows == 20 * once.rows
        assert often.std >= 0.9 * once.std


def test_a_check_warns_of_drift_and_says_its_statistics() -> None:
    bundle = stated_bundle(7)
    selection: Selection = selection_of(measured(bundle, 3, kernels=60, hungrier=1.15))
    check = check_bundle(bundle, selection)
    assert any(line.startswith("drift: all kernels drawing 1") and "more power than the bundle says" in line for line in check.warnings)
    said = check.document(bundle, selection)["drift"]
    assert {"quantity", "kind", "kernels", "rows", "limit", "shift_percent", "std_percent", "direction", "sigmas", "drifted"} == set(
        said[0]
    )
    assert not any(line.startswith("drift: ") for line in check_bundle(bundle, selection_of(measured(bundle, 3, kernels=60))).warnings)


def test_rows_outside_the_range_fitted_are_no_drift_and_are_told_apart() -> None:
    bundle = stated_bundle(7)
    seen = measured(bundle, 3, kernels=60)
    wide = measured(bundle, 5, kernels=60, slower=1.5)
    domain = {key: {"m": (1.0, 64.0), "rows": (1.0, 64.0), "elements": (1.0, 64.0)} for key in bundle.groups}
    narrow = replace(bundle, domain=domain)
    assert any(line.startswith("drift: ") for line in check_bundle(bundle, selection_of(wide)).warnings)
    selection = selection_of(wide)
    check = check_bundle(narrow, selection)
    assert not any(line.startswith(("drift: ", "the stated 90 %")) for line in check.warnings)
    assert any(f"{len(wide)} of {len(wide)} rows lie outside the range fitted (shape {len(wide)})" in line for line in check.warnings)
    assert sum(one.n for one, _ in check.outside) == len(wide)
    assert all(one.latency is not None and one.latency.bias < -20.0 for one, _ in check.outside)
    document = check.document(narrow, selection)["outside_range"]
    assert {one["family"] for one in document} == {"gemm", "softmax", "elementwise"}
    assert all(one["reasons"] == {"shape": one["n"]} for one in document)
    assert any(line.startswith("outside the range fitted") for line in check.lines())
    assert check_bundle(bundle, selection_of(seen)).outside == ()


def test_a_clock_or_a_precision_that_no_row_had_is_outside() -> None:
    bundle = stated_bundle(7)
    rows = measured(bundle, 3, kernels=30)
    at_900 = outside_reasons(replace(bundle, clocks_mhz=(1200.0, 1410.0)), rows)
    assert set(at_900) == {"clock"}
    fp32 = replace(rows, operators=tuple(replace(operator, precision="fp32") for operator in rows.operators))
    assert set(outside_reasons(bundle, fp32)) == {"precision"}
    assert set(outside_reasons(bundle, rows)) == {""}


def test_a_shift_below_a_percent_is_no_drift_however_sure() -> None:
    one = Drift(quantity="power", kind=TOGETHER, kernels=10**6, rows=10**6, shift=0.9 * LEAST_SHIFT, std=1e-6, limit=3.0)
    assert not one.drifted
    assert replace(one, shift=1.1 * LEAST_SHIFT).drifted


def test_nothing_is_said_without_stated_errors_or_of_another_board() -> None:
    bundle = stated_bundle(7)
    rows = measured(bundle, 3, kernels=30)
    assert found(replace(bundle, errors=()), rows) == ()
    assert found(replace(bundle, uncertainty={"latency": {}, "power": {}}), rows) == ()
    assert found(bundle, replace(rows, gpus=("a10",))) == ()
