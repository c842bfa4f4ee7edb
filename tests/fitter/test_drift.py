"""The drift monitor: silent on an unchanged board, loud on a changed one."""

from dataclasses import replace

import numpy as np
import pytest

from estimator.bundles.content import Bundle
from fitter.check import check_bundle
from fitter.drift import LEAST_SHIFT, TOGETHER, Drift, drift_lines, drifts
from fitter.rows import KernelRows, Selection
from fitter.validation import error_rows, predict_kernel_rows
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
    return drifts(bundle, selection_of(rows), {"kernels": predict_kernel_rows(bundle, rows)})


CHECKS = 300
MOST_ALARMS = 8
"""1 of 100 checks is stated; more than 8 of 300 have a probability below 0.5 %."""


def test_an_unchanged_board_raises_hardly_any_alarm() -> None:
    bundle, rng = stated_bundle(7), np.random.default_rng(0)
    rows = measured(bundle, 3, kernels=30)
    exact, alarms = predict_kernel_rows(bundle, rows), 0
    count = len(rows) // REPEATS
    for _ in range(CHECKS):
        own = [np.exp(ERROR * rng.standard_normal(count).repeat(REPEATS) + NOISE * rng.standard_normal(len(rows))) for _ in range(2)]
        now = replace(exact, measured_s=exact.predicted_s * own[0], measured_w=exact.predicted_w * own[1])
        alarms += any(one.drifted for one in drifts(bundle, selection_of(rows), {"kernels": now}))
    assert alarms <= MOST_ALARMS


@pytest.mark.parametrize(("slower", "hungrier", "quantity"), [(1.12, 1.0, "latency"), (1.0, 1.12, "power"), (0.88, 1.0, "latency")])
def test_a_changed_board_is_noticed_and_by_how_much(slower: float, hungrier: float, quantity: str) -> None:
    bundle = stated_bundle(7)
    moved = [one for one in found(bundle, measured(bundle, 3, kernels=60, slower=slower, hungrier=hungrier)) if one.kind == TOGETHER]
    assert [one.quantity for one in moved if one.drifted] == [quantity]
    (one,) = (one for one in moved if one.drifted)
    change = (slower if quantity == "latency" else hungrier) - 1.0
    assert abs(one.shift - 100 * change) < 3 * one.std + 1.0


def test_repeats_of_one_kernel_are_no_further_evidence() -> None:
    bundle = stated_bundle(7)
    rows = measured(bundle, 3, kernels=30)
    again = rows.select(np.tile(np.arange(len(rows)), 20))
    for once, often in zip(found(bundle, rows), found(bundle, again), strict=True):
        assert often.kernels == once.kernels
        assert often.rows == 20 * once.rows
        assert often.std >= 0.9 * once.std


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
    assert drift_lines(()) == []


def test_a_check_warns_of_drift_and_says_its_statistics() -> None:
    bundle = stated_bundle(7)
    selection: Selection = selection_of(measured(bundle, 3, kernels=60, hungrier=1.15))
    check = check_bundle(bundle, selection)
    assert any(line.startswith("drift: power +") for line in check.warnings)
    said = check.document(bundle, selection)["drift"]
    assert {"quantity", "kind", "kernels", "rows", "limit", "shift_percent", "std_percent", "sigmas", "drifted"} == set(said[0])
    assert not any(line.startswith("drift: ") for line in check_bundle(bundle, selection_of(measured(bundle, 3, kernels=60))).warnings)
