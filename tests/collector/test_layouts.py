"""Layouts of matrix products: what a campaign asks for reaches the dataset, and one that asks for none is the campaign that it was."""

import tomllib
from dataclasses import replace

import pytest

from collector.bench import open_bench
from collector.campaigns.files import campaign_from_document
from collector.campaigns.plan import chosen_plan, plan_campaign
from collector.campaigns.selection import hastened, kind_of
from collector.dataset.reader import read_kernel_dataset
from collector.errors import CampaignError
from microbench.layouts import LAYOUTS
from tests.collector.campaigns import SHORT_HEAD, collected
from tests.words import one_line

BOARD = "sim:a100-pcie-40gb"
LINEAR, BMM, SOFTMAX = tomllib.loads("""
[[kernels]]
family = "gemm"
operator = "linear"
precision = "bf16"
count = 2
shape = {batch = 1, m = {low = 16, high = 8192, multiple = 8}, n = {low = 64, high = 8192, multiple = 64}, k = [512, 1024]}
[[kernels]]
family = "gemm"
operator = "bmm"
precision = "bf16"
count = 2
l2_state = "cold"
shape = {batch = 4, m = {low = 16, high = 8192, multiple = 8}, n = {low = 64, high = 8192, multiple = 64}, k = [512, 1024]}
[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp32"
count = 2
shape = {rows = 64, dim = [32, 64]}
""")["kernels"]


def spec_of(*groups):
    head = {"name": "layouts", **tomllib.loads(SHORT_HEAD)}
    return campaign_from_document({**head, "kernels": list(groups)}, "campaign x")


def plan_of(*groups, board=BOARD):
    with open_bench(board) as bench:
        return plan_campaign(spec_of(*groups), (900.0,), (), 3, bench)


@pytest.mark.parametrize("group, natural", [(LINEAR, "tn"), (BMM, "nn")])
def test_the_natural_layout_by_name_is_the_kernel_that_has_none(group, natural):
    unnamed, named, twice = (
        [replace(point, row_id="") for point in plan_of({**group, **how}).points]
        for how in ({}, {"transpose": natural}, {"transpose": [natural, natural]})
    )
    assert unnamed == named
    assert {point.transpose for point in named} == {""}
    assert len(twice) == 2


def test_layouts_are_kinds_of_their_own_in_a_choice_and_the_natural_one_is_not_named():
    spec = spec_of({**LINEAR, "transpose": list(LAYOUTS), "count": 30})
    with open_bench(BOARD) as bench:
        plan = plan_campaign(spec, (900.0,), (), 3, bench)
        chosen = chosen_plan(hastened(spec), plan, bench.gpu_spec, 90.0, 3)
    kinds = {"gemm.linear.bf16", "gemm.linear.bf16 nn", "gemm.linear.bf16 nt", "gemm.linear.bf16 tt"}
    assert {kind_of(point) for point in plan.points} == kinds
    assert {kind_of(point) for point in chosen.points if not point.timed_only} == kinds
    assert chosen.kernels["gemm"] == len(chosen.points) < 120


def test_a_layout_that_a_precision_lacks_is_skipped_by_name_and_another_precision_goes_before():
    fp8 = {**LINEAR, "precision": "fp8", "transpose": ["nn", "tn"], "count": 3}
    plan = plan_of(fp8, board="sim:h200-sxm")
    assert plan.skipped == {"gemm.linear.fp8 nn: not on this board": 3}
    assert {(point.operator.precision, point.transpose) for point in plan.points} == {("fp8", "")}
    either = plan_of({**fp8, "precision": "fp8|bf16"}, board="sim:h200-sxm")
    assert either.skipped == {}
    assert {(point.operator.precision, point.transpose) for point in either.points} == {("bf16", "nn"), ("bf16", "")}


@pytest.mark.parametrize(
    "group, reason",
    [
        ({**SOFTMAX, "transpose": "nn"}, r"kernels\[0\].transpose is for matrix products \(family gemm\); softmax has no layout"),
        ({**LINEAR, "transpose": "nx"}, r"kernels\[0\].transpose\[0\] = 'nx' is unknown; known: nn, nt, tn, tt"),
        ({**LINEAR, "transpose": "n" * 100_000}, "known: nn, nt, tn, tt"),
    ],
)
def test_layouts_that_cannot_be_are_refused_in_one_short_line(group, reason):
    with one_line(CampaignError, reason) as caught:
        spec_of(group)
    assert len(str(caught.value)) < 300


def test_a_dataset_says_in_which_layout_each_product_ran(calibration, tmp_path):
    spec = spec_of({**LINEAR, "transpose": list(LAYOUTS)}, {**BMM, "transpose": "nt", "count": 1}, SOFTMAX)
    rows = read_kernel_dataset(collected(spec, tmp_path / "d.parquet", calibration, clocks=(900.0,)).dataset).table.to_pylist()
    linear = [row for row in rows if row["operator"] == "linear"]
    assert sorted(row["transpose"] for row in linear) == sorted(2 * LAYOUTS)
    assert [(row["transpose"], row["l2_state"]) for row in rows if row["operator"] == "bmm"] == [("nt", "cold")]
    assert [row["transpose"] for row in rows if row["family"] == "softmax"] == [None, None]
    assert all(f"_{row['transpose']}" in row["kernel_name"].lower() for row in rows if row["family"] == "gemm")
