"""A roofline beside our model: its laws, on made and on published workloads."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from estimator import (
    Asked,
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
from estimator.questions.baselines import roofline_power_w, roofline_seconds
from estimator.vocabulary.specifications import load_gpu
from tests.estimator.estimating import unlimited
from tests.estimator.synthetic import transformer

BUNDLE = load_bundle("a100-pcie-40gb-eager")
FREE = unlimited(BUNDLE)
A100 = BUNDLE.gpu
CLOCKS = (510.0, 900.0, 1410.0)


def one(*operators: Operator, count: float = 1.0) -> Workload:
    return Workload(name="made", operators=operators, counts=(count,) * len(operators))


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


def test_it_runs_at_the_clock_that_the_power_limit_leaves_and_its_ratios_are_to_our_estimate() -> None:
    workload = transformer(4096, 2048, 12)
    own = estimate(workload, BUNDLE, sm_clock_mhz=CLOCKS)
    assert own[-1].sm_clock_mhz < 1410.0
    found = baseline_estimates(Asked(variant=Variant(workload=workload), bundle=BUNDLE, sm_clock_mhz=CLOCKS))
    for other, ours in zip(found, own, strict=True):
        assert other.sm_clock_mhz == ours.sm_clock_mhz
        assert other.energy_j == pytest.approx(other.latency_s * other.power_w)
        for name, column in (("latency", "latency_s"), ("power", "power_w"), ("energy", "energy_j")):
            assert other.ratios[name] == pytest.approx(getattr(other, column) / getattr(ours, column))


def test_a_precision_without_a_rate_has_no_time() -> None:
    foreign = one(make_operator("gemm", "linear", "fp8", batch=1, m=64, n=64, k=64))
    (found,) = baseline_estimates(Asked(variant=Variant(workload=foreign), bundle=BUNDLE, gpu=load_gpu("v100-pcie-32gb")))
    assert np.isnan(found.latency_s)


def test_a_comparison_with_baselines_is_one_table_and_needs_no_second_thing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "made_b2_s128.json"
    write_workload(replace(transformer(256, 512, 2), name="made_b2_s128"), file)
    words = ["compare", str(file), "--bundle", "a100-pcie-40gb-eager", "--freqs", "900", "--baselines", "--quiet"]
    main(words)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:5]] == ["900", "roofline", "over"]
    main([*words, "--json"])
    (baseline,) = json.loads(capsys.readouterr().out)["reference"]["baselines"]
    main([*words, "--csv"])
    ours, other = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (ours["method"], other["method"], other["sm_clock_mhz"], other["latency_s_std"]) == ("wattprint", "roofline", "900.0", "")
    assert float(ours["latency_s"]) > float(other["latency_s"]) == baseline["latency_s"]
