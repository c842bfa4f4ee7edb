"""Laboratories and limits: scales of collections, intervals of this laboratory and of another one, rows at the power limit, anchors."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from estimator import OperatingPointError, estimate, load_gpu, predict_kernels
from estimator.bundle.content import CollectionRecord
from estimator.engine.board import board_tables, carried_power
from estimator.model.power_limit import LIMIT_SHARE, LIMIT_SHARE_STD
from estimator.uncertainty.laboratory import ELSEWHERE_STD
from fitter.bundle.calibration import calibrate_anchored, far_laboratories
from fitter.bundle.drafts import draft_from_rows
from fitter.errors import CalibrationError
from fitter.power.limit import with_limit_share
from fitter.report.check import check_bundle
from fitter.report.page import selection_lines
from fitter.rows.columns import Selection, join_rows
from fitter.rows.selection import read_selection
from fitter.transfer.anchor import USUAL_RATIO, _scaled, anchored
from fitter.validate.predictions import predict_rows
from tests.fitter.measured import (
    PLANTED,
    kernel_rows,
    selection_of,
    transformer,
    various_operators,
    various_workloads,
    workload_rows,
)
from tests.fitter.test_block_count import planted

A100, H100 = load_gpu("a100-pcie-40gb"), load_gpu("h100-sxm")
ERRORS = {"gpu": 0.03, "launch": 0.03, "groups": dict.fromkeys(("gemm", "softmax", "elementwise"), 0.03)}
STATED = {"latency": ERRORS, "power": ERRORS}


def of(rows, name, factor=1.0):
    """The rows as another laboratory measures them."""
    return replace(rows, collections=(name,), latency_s=rows.latency_s * factor)


def log_scales(bundle):
    return {one.name: float(np.log(one.scale)) for one in bundle.collections}


@pytest.mark.parametrize("factor", [0.88, 1.0, 1.12])
def test_a_factor_between_two_laboratories_comes_back_from_kernels_of_both(factor):
    labs = enumerate((("one", 1.0), ("two", factor)))
    rows = join_rows([of(kernel_rows(PLANTED, various_operators(90, seed), 0.02, seed), *lab) for seed, lab in labs])
    found = draft_from_rows(rows, None, A100, board_tables(PLANTED, A100), seed=0).bundle
    scales = log_scales(found)
    assert scales["two"] - scales["one"] == pytest.approx(np.log(factor), abs=0.025)
    errors = predict_rows(found, rows)
    bias = np.log(errors["predicted_latency"] / errors["measured_latency"]).groupby(errors["collection"]).median()
    assert bias.abs().max() < 0.02


def test_laboratories_far_from_their_mean_are_told():
    scales = {"fast": 0.75, "near": 1.25, "far": 1.35}
    labs = tuple(CollectionRecord(name=name, rows=1, scale=scale) for name, scale in scales.items())
    assert [line.split()[2] for line in far_laboratories(replace(PLANTED, collections=labs))] == ["fast", "far"]


def test_runs_of_a_slower_laboratory_leave_the_kernels_of_another_as_they_are():
    kernels = of(kernel_rows(PLANTED, various_operators(150), 0.02), "kernels")
    lab = (CollectionRecord(name="runs", rows=1, scale=1.1),)
    slower = replace(workload_rows(replace(PLANTED, collections=lab), various_workloads(), 0.01), collections=("runs",))
    tables = board_tables(PLANTED, A100)
    alone, joint = (draft_from_rows(kernels, other, A100, tables, seed=0).bundle for other in (None, slower))
    scales = log_scales(joint)
    assert 0.015 < scales["runs"] - scales["kernels"] < 0.13  # host and unmeasured groups take up a part
    for rows, most in ((kernels, 0.04), (slower, 0.04)):
        found = predict_rows(joint, rows)
        assert np.abs(np.log(found["predicted_latency"] / found["measured_latency"])).mean() < most
    assert_allclose(predict_rows(joint, kernels)["predicted_latency"], predict_rows(alone, kernels)["predicted_latency"], rtol=0.07)


def test_an_answer_holds_for_the_mean_laboratory_or_a_named_one_and_says_what_it_is_worth_elsewhere():
    both = (CollectionRecord(name="one", rows=1, scale=1.0), CollectionRecord(name="two", rows=1, scale=1.21))
    bundle = replace(PLANTED, collections=both, uncertainty=STATED)
    workload = various_workloads()[4]
    settings = {"host_launch_s": 0.0, "sm_clock_mhz": 900.0}
    mean, one, two = (estimate(workload, bundle, **settings, collection=name)[0] for name in (None, "one", "two"))
    assert (mean.latency_s / one.latency_s, two.latency_s / one.latency_s) == pytest.approx((1.1, 1.21))
    assert mean.latency_s_std / mean.latency_s > one.latency_s_std / one.latency_s
    for name, quantity in (("latency_s", "latency"), ("power_w", "power")):
        here, there = (getattr(one, f"{name}_std{end}") / getattr(one, name) for end in ("", "_elsewhere"))
        assert there == pytest.approx(np.hypot(here, ELSEWHERE_STD[quantity]), rel=1e-6)
    assert one.energy_j_std_elsewhere > one.energy_j_std
    with pytest.raises(OperatingPointError, match="no collection 'three'; its collections: one, two"):
        estimate(workload, bundle, collection="three")


def test_a_check_states_this_laboratory_for_named_collections_and_another_for_the_rest():
    bundle = replace(PLANTED, uncertainty=STATED)
    rows = kernel_rows(bundle, various_operators(30), 0.03)
    own, other = (check_bundle(bundle, selection_of(part)) for part in (rows, of(rows, "far", 1.09)))
    assert [(one.name, one.laboratory) for one in (*own.collections, *other.collections)] == [("planted", "this"), ("far", "another")]
    assert all(one.coverage > 0.7 for one in (*own.collections, *other.collections))
    assert "another laboratory (not in the bundle)" in other.lines()[-1]
    assert not other.drift
    unnamed = check_bundle(replace(bundle, collections=()), selection_of(rows))
    assert unnamed.warnings[0] == "bundle planted names no collection: all rows count as another laboratory's"


HEADER = "operator,gpu,precision,batch,m,n,k,latency_s"
LOADS = [
    ("", "", "", False, False),
    ("load", "sustained", "", True, False),
    ("load", "Burst", "", False, True),
    ("source", "trtllm-1.0.0#7", "trtllm-1.0.0", False, True),
    ("source,power_w", "trtllm-1.0.0#7,200", "trtllm-1.0.0", True, False),
    ("collection,source", "mine,trtllm-1.0.0#7", "mine", False, True),
]


@pytest.mark.parametrize("columns, cells, name, sustained, burst", LOADS)
def test_a_table_says_who_measured_and_how_long_its_kernels_ran(read_table, columns, cells, name, sustained, burst):
    lines = f"{HEADER},{columns}", f"linear,a100-pcie-40gb,bf16,1,512,512,512,1e-5,{cells}"
    rows = read_table(*(line.removesuffix(",") for line in lines)).kernels
    assert (rows.collections, rows.sustained.tolist(), rows.burst.tolist()) == ((name or "table.csv",), [sustained], [burst])


def test_sustained_kernels_run_at_the_clock_that_the_limit_leaves_and_bursts_at_their_own():
    bundle = replace(PLANTED, gpu=replace(A100, power_limit_w=150.0))  # large products exceed it
    operators, highest = various_operators(60), np.full(60, A100.sm_clock_limit_mhz)
    table = predict_kernels(operators, bundle, bundle.gpu, sm_clock_mhz=highest, warm=np.ones(60, dtype=bool))
    unknown = dict.fromkeys(("power_w", "sm_clock_mhz", "sm_clock_asked_mhz"), np.full(60, np.nan))
    rows = replace(kernel_rows(bundle, operators), latency_s=table.latency_s, **unknown)
    limited = table.sm_clock_mhz < highest
    assert 5 < limited.sum() < 55
    far, yes = of(rows, "far"), np.ones(60, dtype=bool)
    for own in (far, replace(rows, sustained=yes)):  # of a laboratory that is not in the bundle, or stated
        assert_allclose(predict_rows(bundle, own)["predicted_latency"], rows.latency_s, rtol=1e-6)
    for own in (rows, replace(far, burst=yes), replace(far, sm_clock_mhz=highest)):
        nominal = predict_rows(bundle, own)["predicted_latency"].to_numpy()
        assert_allclose(nominal[~limited], rows.latency_s[~limited], rtol=1e-6)
        assert np.all(nominal[limited] <= rows.latency_s[limited])
        assert nominal.sum() < 0.98 * rows.latency_s.sum()


def test_times_at_the_limit_without_a_clock_are_not_fitted_at_the_nominal_one():
    rows = kernel_rows(PLANTED, [one for one in various_operators(240) if one.family == "gemm"], 0.01)
    limited = np.arange(len(rows)) % 2 == 0
    latency = np.where(limited, 1.5, 1.0) * rows.latency_s
    slow = replace(rows, latency_s=latency, sm_clock_mhz=np.full(len(rows), np.nan), at_limit=limited)
    both = (slow, replace(slow, sm_clock_mhz=rows.sm_clock_mhz))
    bundles = [draft_from_rows(one, None, A100, board_tables(PLANTED, A100), seed=0).bundle for one in both]
    ratio, mixed = (predict_rows(one, rows.select(~limited))["predicted_latency"] / rows.latency_s[~limited] for one in bundles)
    assert np.abs(np.log(ratio)).mean() < 0.02 < np.log(mixed).mean()


@pytest.mark.parametrize("share, count", [(1.0, 20), (0.965, 20), (0.99, 1)])
def test_the_share_of_the_limit_comes_from_throttled_runs(share, count):
    rows = workload_rows(PLANTED, various_workloads()[:1] * count)
    own = {"sm_clock_asked_mhz": np.full(count, 1410.0), "sm_clock_measured_mhz": np.full(count, 1200.0)}
    throttled = replace(rows, **own, energy_j=share * A100.power_limit_w * rows.latency_s)
    power = with_limit_share(PLANTED, None, throttled).power
    weight = count / (count + (0.0075 / LIMIT_SHARE_STD) ** 2)
    assert power.limit_share == pytest.approx(weight * share + (1.0 - weight) * LIMIT_SHARE)
    assert power.limit_share_std < LIMIT_SHARE_STD
    assert with_limit_share(PLANTED, None, rows).power == PLANTED.power


@pytest.mark.parametrize("hungrier", [0.6, 1.1, 1.5])
def test_an_anchor_corrects_by_half_shrinks_the_interval_and_tells_of_a_board_of_another_kind(hungrier):
    source = replace(PLANTED, uncertainty=STATED)
    board = replace(H100, power_limit_w=1e6)
    truth, (*anchors, workload) = anchored_truth(source, board, hungrier), busy_workloads()
    runs = workload_rows(truth, anchors, clocks_mhz=(1500.0,))
    runs = replace(runs, gpus=(board,), collections=("anchors",))
    found, warnings = anchored(source, selection_of(None, runs.select(np.arange(1))), board)
    before, after, true = (estimate(workload, one, gpu=board, sm_clock_mhz=1500.0)[0] for one in (source, found, truth))
    assert abs(np.log(after.power_w / true.power_w)) < 0.75 * abs(np.log(before.power_w / true.power_w))
    assert after.power_w_std / after.power_w < before.power_w_std / before.power_w
    assert bool(warnings) == (not USUAL_RATIO[0] <= hungrier <= USUAL_RATIO[1])
    assert [one.name for one in found.collections] == ["anchors"]


def busy_workloads():
    """Decoders that no host slows."""
    return [transformer(tokens, 2048, 12, name=f"busy-{tokens}") for tokens in (8192, 16384, 32768)]


def anchored_truth(source, board, factor):
    """A board of another kind whose core draws more by a factor than the rules say."""
    power = _scaled(carried_power(source, source.power, board), factor)
    return replace(source, gpu=board, power=power, voltage=None, idle=board.idle_w)


def test_anchors_that_agree_with_the_forecast_leave_its_time_and_those_that_wait_for_their_host_do_not_count():
    usual = {name: replace(group, usual={"math": 1.5}) for name, group in PLANTED.groups.items() if "math" in group.coefficients}
    source = replace(PLANTED, groups={**PLANTED.groups, **usual}, uncertainty=STATED)
    forecast = [estimate(one, source, gpu=H100, sm_clock_mhz=1400.0)[0].latency_s for one in busy_workloads()]
    runs = replace(workload_rows(source, [*busy_workloads(), *various_workloads()], clocks_mhz=(1400.0,)), gpus=(H100,))
    runs = replace(runs, latency_s=np.array([*forecast, *[0.005] * 10]))
    found = calibrate_anchored(selection_of(None, runs), H100, source, name="", seed=0)
    (warning,) = found.warnings
    assert "10 of 13 anchors left out" in warning
    answers = [estimate(one, found.bundle, sm_clock_mhz=1400.0)[0] for one in busy_workloads()]
    assert [one.latency_s for one in answers] == pytest.approx(forecast)
    assert {one.validity for one in answers} == {"forecast"}
    assert all("corrected by anchors (3)" in " ".join(one.warnings) for one in answers)


@pytest.mark.parametrize(
    "board, workloads, energy_j, reason",
    [
        (A100, various_workloads(), 1.0, "start from it with --prior"),
        (H100, busy_workloads(), np.nan, "no anchor has an energy whose power lies between rest and the limit"),
        (H100, various_workloads()[:5], 1.0, "all 5 anchors are runs below 59 µs"),
    ],
)
def test_anchors_without_energy_or_too_short_and_bundles_of_the_same_board_are_refused(board, workloads, energy_j, reason):
    runs = workload_rows(PLANTED, workloads)
    runs = replace(runs, energy_j=energy_j * runs.energy_j, gpus=(board,))
    with pytest.raises(CalibrationError, match=reason):
        anchored(PLANTED, selection_of(None, runs), board)


def test_an_anchored_bundle_has_no_energies_of_its_source_and_rows_that_are_no_anchors_are_refused():
    source = replace(PLANTED, instruction_energies={"links": {}}, block_models={"a/32": {}}, uncertainty=STATED)
    runs = replace(workload_rows(PLANTED, busy_workloads()), gpus=(H100,))
    good = selection_of(None, runs)
    found, _ = anchored(source, good, H100)
    assert (found.instruction_energies, found.block_models) == ({}, {})
    milli = replace(runs, latency_s=1e3 * runs.latency_s, energy_j=1e3 * runs.energy_j)
    for other, reason in ((replace(good, blocks=planted()), "without --anchor"), (selection_of(None, milli), "latency_s, in seconds")):
        with pytest.raises(CalibrationError, match=reason):
            anchored(PLANTED, other, H100)
    with pytest.raises(CalibrationError, match="without --anchor"):
        anchored(PLANTED, Selection(blocks=planted()), H100)


def test_tables_of_one_fit_that_name_no_laboratory_are_told(tmp_path):
    line = "linear,a100-pcie-40gb,bf16,1,512,512,512"
    (tmp_path / "a.csv").write_text(f"{HEADER}\n{line},1e-5\n")
    (tmp_path / "b.csv").write_text(f"{HEADER},collection\n{line},2e-5,mine\n")
    both = read_selection([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert read_selection([tmp_path / "b.csv", tmp_path / "a.csv"]).datasets == both.datasets, "one bundle for any order of the files"
    assert [line.split(":")[0].strip() for line in selection_lines(both) if "names no laboratory" in line] == ["a.csv"]
    assert both.kernels.row_collections() == ["a.csv", "mine"]
