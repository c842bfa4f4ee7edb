"""Other models beside ours: laws of the roofline and of AccelWattch's form, on made and on published workloads."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import (
    Asked,
    BaselineEstimate,
    Bundle,
    Operator,
    Variant,
    Workload,
    baseline_estimates,
    estimate,
    load_bundle,
    make_operator,
    read_workload,
)
from estimator.cli import main
from estimator.engine.board import board_tables
from estimator.formats import write_workload
from estimator.questions.baselines import METHODS, rest_curve_w, roofline_power_w, roofline_seconds
from estimator.vocabulary.gpu import ClockTable
from estimator.vocabulary.specifications import load_gpu
from tests.estimator.estimating import unlimited
from tests.estimator.synthetic import transformer

BUNDLE = load_bundle("a100-pcie-40gb-eager")
FREE = unlimited(BUNDLE)
A100 = BUNDLE.gpu
CLOCKS = (510.0, 900.0, 1410.0)


def one(*operators: Operator, count: float = 1.0) -> Workload:
    return Workload(name="made", operators=operators, counts=(count,) * len(operators))


def answers(workload: Workload, bundle: Bundle = BUNDLE) -> dict[tuple[str, float], BaselineEstimate]:
    """Baselines by method and clock that runs."""
    asked = Asked(variant=Variant(workload=workload), bundle=bundle, sm_clock_mhz=CLOCKS)
    return {(one.method, one.sm_clock_mhz): one for one in baseline_estimates(asked)}


def published(shared_data: Path) -> list[Path]:
    return sorted((shared_data / "energaizer" / "workloads").glob("*.json"))


def test_no_published_workload_is_faster_than_its_roofline_kernel_by_kernel(shared_data: Path) -> None:
    for path in published(shared_data):
        workload = read_workload(path)
        ideal = roofline_seconds(workload, A100, np.array(CLOCKS))
        for i, own in enumerate(estimate(workload, FREE, sm_clock_mhz=CLOCKS)):
            assert (np.array([kernel.latency_s for kernel in own.kernels]) > ideal[:, i]).all(), (path.name, CLOCKS[i])
            assert own.latency_s > np.array(workload.counts) @ ideal[:, i]


def test_a_large_product_takes_its_flop_over_the_peak_and_a_copy_its_bytes_over_the_bandwidth() -> None:
    product = make_operator("gemm", "linear", "bf16", batch=1, m=8192, n=8192, k=8192)
    copy = make_operator("copy", "contiguous", "bf16", elements=1e8, reads=1e8)
    seconds = roofline_seconds(one(product, copy), A100, np.array([A100.sm_clock_max_mhz, A100.sm_clock_max_mhz / 2.0]))
    assert seconds[0] == pytest.approx([2 * 8192.0**3 / 312e12, 4 * 8192.0**3 / 312e12], rel=2e-3)  # 312 TFLOP/s, A100 data sheet
    assert seconds[1] == pytest.approx([2e8 * 2 / 1.555e12] * 2, rel=1e-3)  # 1555 GB/s


@pytest.mark.parametrize(
    "operator",
    [
        make_operator("gemm", "linear", "bf16", batch=1, m=16384, n=16384, k=16384),
        make_operator("gemm", "linear", "fp32", batch=1, m=16384, n=16384, k=16384),
        make_operator("elementwise", "add", "bf16", elements=1e9, reads=2e9),
    ],
    ids=["tensor", "cuda", "dram"],
)
def test_what_holds_one_resource_at_its_peak_draws_the_power_limit(operator: Operator) -> None:
    board = board_tables(BUNDLE, A100)
    power = roofline_power_w(one(operator), A100, board, A100.power_limit_w, np.array([A100.sm_clock_max_mhz]))
    assert power[0] == pytest.approx(A100.power_limit_w)


def test_all_rows_are_of_one_workload_on_one_board_at_one_clock_and_in_one_set_of_units() -> None:
    workload = transformer(4096, 2048, 12)
    own = {result.sm_clock_mhz: result for result in estimate(workload, BUNDLE, sm_clock_mhz=CLOCKS)}
    found = answers(workload)
    assert {clock for _, clock in found} == own.keys()
    assert max(own) < 1410.0  # the power limit acts, and the others run at the clock that is left
    assert {method for method, _ in found} == METHODS.keys()
    for (_, clock), other in found.items():
        assert (other.workload, other.bundle, other.gpu) == (own[clock].workload, own[clock].bundle, own[clock].gpu)
        assert other.energy_j == pytest.approx(other.latency_s * other.power_w)
        for name, column in (("latency", "latency_s"), ("power", "power_w"), ("energy", "energy_j")):
            assert other.ratios[name] == pytest.approx(getattr(other, column) / getattr(own[clock], column))


def test_the_form_of_accelwattch_has_the_time_of_the_bundle_and_its_power_where_the_forms_meet() -> None:
    """At the reference voltage, with every byte crossing DRAM and idle power as its table, nothing is left to differ."""
    assert BUNDLE.power is not None
    bare = replace(BUNDLE, power=replace(BUNDLE.power, l2_credit=0.0), idle=None, gpu=replace(A100, idle_w=None))
    own = estimate(transformer(512, 1024, 4), bare, sm_clock_mhz=900.0)[0]
    asked = Asked(variant=Variant(workload=transformer(512, 1024, 4)), bundle=bare, sm_clock_mhz=(900.0,))
    other = baseline_estimates(asked)[1]
    assert other.method == "accelwattch-style"
    assert other.latency_s == own.latency_s
    assert other.power_w == pytest.approx(own.power_w)


@given(st.floats(5, 90), st.floats(0, 40), st.floats(0, 40))
def test_a_curve_of_idle_power_that_is_cubic_is_found_again(constant: float, linear: float, cubic: float) -> None:
    clocks = np.linspace(210.0, 1410.0, 20)
    values = constant + linear * clocks / 1410.0 + cubic * (clocks / 1410.0) ** 3
    table = ClockTable(sm_clock_mhz=tuple(clocks.tolist()), value=tuple(values.tolist()))
    np.testing.assert_allclose(rest_curve_w(table, clocks), values, rtol=1e-6)


def test_what_a_baseline_cannot_say_is_missing_with_a_reason() -> None:
    workload = transformer(64, 256, 1)
    silent = replace(BUNDLE, power=None)
    _, other = baseline_estimates(Asked(variant=Variant(workload=workload), bundle=silent, sm_clock_mhz=(900.0,)))
    assert np.isnan(other.power_w)
    assert other.missing == "the bundle has no power coefficients"
    foreign = one(make_operator("gemm", "linear", "fp8", batch=1, m=64, n=64, k=64))
    first = baseline_estimates(Asked(variant=Variant(workload=foreign), bundle=BUNDLE, gpu=load_gpu("v100-pcie-32gb")))[0]
    assert "no published rate" in first.missing


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "made_b2_s128.json"
    write_workload(replace(transformer(256, 512, 2), name="made_b2_s128"), path)
    return str(path)


def test_a_comparison_with_baselines_is_one_table_and_needs_no_second_thing(capsys: pytest.CaptureFixture[str], file: str) -> None:
    words = ["compare", file, "--bundle", "a100-pcie-40gb-eager", "--freqs", "900", "--baselines", "--quiet"]
    main(words)
    text = capsys.readouterr().out
    assert [line.split()[0] for line in text.splitlines()[1:7]] == ["model", "wattprint", "roofline", "over", "accelwattch-style", "over"]
    main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert [one["method"] for one in document["reference"]["baselines"]] == list(METHODS)
    assert document["reference"]["baselines"][0]["latency_s"] < document["reference"]["latency_s"]
    main([*words, "--csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["method"] for row in rows] == ["wattprint", *METHODS]
    assert {row["sm_clock_mhz"] for row in rows} == {"900.0"}
    assert rows[1]["latency_s_std"] == ""
