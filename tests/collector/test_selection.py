"""What a budget is spent on: laws of the choice, on plans of a simulated board."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.bench import Bench, open_bench
from collector.campaigns.files import CampaignSpec, load_campaign
from collector.campaigns.measurement import POWER_COLUMNS
from collector.campaigns.plan import CampaignPlan, chosen_plan, hastened, least_budget_s, plan_campaign
from collector.campaigns.running import campaign_key
from collector.campaigns.selection import kind_of
from collector.cli import main
from collector.dataset import read_kernel_dataset
from collector.errors import CampaignError

CLOCKS = (510.0, 900.0, 1410.0)
BOARD = "sim:a100-pcie-40gb"
SPEC = load_campaign("quick")
HASTY = hastened(SPEC)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with open_bench(BOARD, seed=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def plan(bench: Bench) -> CampaignPlan:
    return planned(bench, SPEC)


def planned(bench: Bench, spec: CampaignSpec, seed: int = 1) -> CampaignPlan:
    return plan_campaign(spec, CLOCKS, (), seed, bench)


def active(bench: Bench, plan: CampaignPlan, budget_s: float, seed: int = 1) -> CampaignPlan:
    return chosen_plan(HASTY, plan, "active", budget_s, seed, bench.gpu_spec)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_every_kind_of_kernel_and_every_clock_is_there_with_power(bench: Bench, plan: CampaignPlan, share: float) -> None:
    chosen = active(bench, plan, share * plan.estimated_s)
    powered = [point for point in chosen.points if not point.timed_only and not point.anchor]
    assert {kind_of(point) for point in powered} == {kind_of(point) for point in plan.points if not point.anchor}
    assert {point.sm_clock_mhz for point in powered} == set(CLOCKS)
    counts = Counter(point.sm_clock_mhz for point in chosen.points)
    assert min(counts.values()) > 0.2 * len(chosen.points)
    assert chosen.choice is not None
    assert chosen.choice.left_out == ()


@settings(max_examples=4, deadline=None)
@given(share=st.floats(0.05, 0.95), way=st.sampled_from(["active", "random"]))
def test_the_planned_time_respects_the_budget_and_the_order_is_the_plan_s(bench: Bench, plan: CampaignPlan, share: float, way: str) -> None:
    budget_s = share * plan.estimated_s
    if way == "active":
        chosen = active(bench, plan, budget_s)
    else:
        chosen = chosen_plan(SPEC, plan, "random", budget_s, 1, bench.gpu_spec)
    assert chosen.estimated_s <= budget_s
    everything = len(chosen.points) >= 0.9 * len(plan.points) and not any(point.timed_only for point in chosen.points)
    assert chosen.estimated_s > 0.8 * budget_s or everything
    places = {(point.operator, point.sm_clock_mhz, point.trial, point.anchor): i for i, point in enumerate(plan.points)}
    found = [places[point.operator, point.sm_clock_mhz, point.trial, point.anchor] for point in chosen.points]
    assert found == sorted(set(found))


def test_the_same_seed_chooses_the_same_and_the_key_changes_with_the_choice(bench: Bench, plan: CampaignPlan) -> None:
    budget_s = 0.1 * plan.estimated_s
    one, again = active(bench, plan, budget_s), active(bench, plan, budget_s)
    assert one == again
    others = [plan, active(bench, plan, 1.5 * budget_s), chosen_plan(SPEC, plan, "random", budget_s, 1, bench.gpu_spec)]
    keys = [campaign_key(bench, SPEC, choice, (), 1) for choice in (one, *others)]
    assert len({key["plan"] for key in keys}) == len(keys)
    assert len({key["selection"] for key in keys}) == len(keys)


def test_a_budget_for_fewer_kernels_than_kinds_names_what_is_left_out(bench: Bench, plan: CampaignPlan) -> None:
    small = active(bench, plan, 0.9 * least_budget_s(HASTY, plan)).choice
    assert small is not None
    assert 0 < small.kinds < small.of_kinds
    assert len(small.left_out) == small.of_kinds - small.kinds
    with pytest.raises(CampaignError, match="leaves no time for a kernel.*give at least"):
        active(bench, plan, 60.0)


CAMPAIGN = """
description = "two kinds of kernel"
warmup_s = 1.0
idle_settle_s = 0.5
idle_window_s = 1.0
kernels_per_block = 8
anchor_every = 0
[measurement]
updates = 4
window_s = 0.5
settle_s = 0.5
gap_s = 0.1
idle_s = 0.5
ranging_s = 0.01
[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp32"
count = 30
[kernels.shape]
rows = { low = 256, high = 65536 }
dim = { low = 64, high = 4096 }
[[kernels]]
family = "norm"
operator = "layernorm"
precision = "fp32"
count = 10
[kernels.shape]
rows = { low = 256, high = 65536 }
dim = { low = 64, high = 4096 }
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "small.toml").write_text(CAMPAIGN)
    return ["--gpu", BOARD, "--freqs", "510,1410", "--campaign", str(tmp_path / "small.toml"), "--out", str(tmp_path / "d.parquet")]


def test_a_chosen_campaign_is_measured_within_its_budget_and_resumed(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--budget", "60s", "--json"]) == 0
    said = capsys.readouterr()
    assert "by what each adds to the fit" in said.err
    outcome = json.loads(said.out)
    assert outcome["board_time_s"] <= 62.0
    dataset = read_kernel_dataset(tmp_path / "d.parquet")
    timed = [row for row in dataset.table.to_pylist() if "short_window" in row["flags"]]
    assert 0 < len(timed) < dataset.table.num_rows
    assert all(row["latency_s"] > 0.0 and all(row[name] is None for name in POWER_COLUMNS) for row in timed)
    assert dataset.metadata["campaign"]["selection"]["way"] == "active"
    assert main([*words, "--budget", "60s", "--resume", "-q"]) == 0
    capsys.readouterr()
    assert main([*words, "--budget", "60s", "--select", "random", "--resume", "-q"]) == 1
    assert "selection was 'active for 60 s', is 'random for 60 s'" in capsys.readouterr().err


def test_what_is_chosen_and_what_cannot_be_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--budget", "60s", "--dry-run"]) == 0
    assert "2 of 2 kinds of kernel" in capsys.readouterr().out
    assert main([*words, "--budget", "39s", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "too small for one kernel of every kind" in said.err
    assert "chosen" not in said.out
    assert main([*words, "--budget", "2h", "--dry-run"]) == 0
    assert "chosen" not in capsys.readouterr().out
    assert main([*words, "--select", "active", "--dry-run"]) == 2
    assert "give one: --budget" in capsys.readouterr().err
    assert main([*words, "--budget", "60s", "--select", "best"]) == 2
