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


def test_no_measured_run_is_faster_than_its_roofline(shared_data: Path) -> None:
    rows = [row for row in csv.DictReader(io.StringIO((shared_data / "energaizer" / "a100_clocks.csv").read_text())) if _whole(row)]
    workloads = {name: read_workload(shared_data / "energaizer" / name) for name in {row["workload"] for row in rows}}
    for row in rows:
        workload = workloads[row["workload"]]
        ideal = roofline_seconds(workload, A100, np.array([float(row["sm_clock_measured_mhz"])]))
        assert float(row["latency_s"]) > float((np.array(workload.counts) @ ideal)[0]), row
    assert len(rows) > 50


def _whole(row: dict[str, str]) -> bool:
    """Whether a run lasted about as long as all do; a failed one did not."""
    return float(row["iterations"]) * float(row["latency_s"]) > 24.0


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


@given(tokens=st.sampled_from([64, 256, 1024]), width=st.sampled_from([256, 768]), factor=st.integers(2, 5))
def test_a_workload_done_several_times_takes_so_much_longer_at_the_same_power(tokens: int, width: int, factor: int) -> None:
    single = transformer(tokens, width, 2)
    several = replace(single, counts=tuple(factor * count for count in single.counts))
    for key, more in answers(several, FREE).items():
        once = answers(single, FREE)[key]
        assert more.latency_s == pytest.approx(factor * once.latency_s)
        assert more.power_w == pytest.approx(once.power_w)
        assert more.energy_j == pytest.approx(factor * once.energy_j)


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


def test_components_scale_with_the_square_of_the_voltage() -> None:
    assert BUNDLE.power is not None
    square = replace(BUNDLE.power, l2_credit=0.0, voltage_exponent=2.0)
    bare = unlimited(replace(BUNDLE, power=square, idle=None, gpu=replace(A100, idle_w=None)))
    asked = Asked(variant=Variant(workload=transformer(512, 1024, 4)), bundle=bare, sm_clock_mhz=(1400.0,))
    own = estimate(asked.variant.workload, bare, sm_clock_mhz=1400.0)[0]
    assert baseline_estimates(asked)[1].power_w == pytest.approx(own.power_w)
    cubic = replace(bare, power=replace(square, voltage_exponent=3.0))
    assert baseline_estimates(replace(asked, bundle=cubic))[1].power_w == baseline_estimates(asked)[1].power_w


@given(st.floats(5, 90), st.floats(0, 40), st.floats(0, 40))
def test_a_curve_of_idle_power_that_is_cubic_is_found_again(constant: float, linear: float, cubic: float) -> None:
    clocks = np.linspace(210.0, 1410.0, 20)
    values = constant + linear * clocks / 1410.0 + cubic * (clocks / 1410.0) ** 3
    table = ClockTable(sm_clock_mhz=tuple(clocks.tolist()), value=tuple(values.tolist()))
    np.testing.assert_allclose(rest_curve_w(table, clocks), values, rtol=1e-6)


def test_a_falling_idle_table_gives_no_negative_part() -> None:
    table = ClockTable(sm_clock_mhz=(200.0, 800.0, 1400.0), value=(60.0, 50.0, 40.0))
    np.testing.assert_allclose(rest_curve_w(table, np.array([200.0, 1400.0])), 50.0)


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
