"""The part of a plan that a budget is spent on, and the time that a plan states: laws of the choice, on simulated boards."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.bench import open_bench
from collector.campaigns.files import load_campaign
from collector.campaigns.measurement import POWER_COLUMNS
from collector.campaigns.plan import chosen_plan, plan_campaign
from collector.campaigns.running import Campaign, campaign_key
from collector.campaigns.selection import hastened, kind_of, point_cost_s
from collector.dataset.reader import read_kernel_dataset
from collector.errors import CampaignError
from collector.sensing.catalogue import given_sensor
from collector.simulated.profile import board_names
from tests.collector.campaigns import BOARD, ONE_SOFTMAX, SHORT_HEAD, planned, softmax_of_many_sizes
from tests.words import called, refused

CLOCKS = (510.0, 900.0, 1410.0)
SPEC = load_campaign("quick")
HASTY = hastened(SPEC)


@pytest.fixture(scope="module")
def bench():
    with open_bench(BOARD, seed=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def plan(bench):
    return plan_campaign(SPEC, CLOCKS, (), 1, bench)


def chosen_part(bench, plan, budget_s, seed=1):
    return chosen_plan(HASTY, plan, bench.gpu_spec, budget_s, seed)


@settings(max_examples=8, deadline=None)
@given(share=st.floats(0.05, 0.95), seed=st.integers(0, 9))
def test_a_part_has_every_kind_and_clock_uses_its_budget_and_keeps_the_order(bench, plan, share, seed):
    budget_s = share * plan.estimated_s
    part = chosen_part(bench, plan, budget_s, seed)
    assert part == chosen_part(bench, plan, budget_s, seed)
    powered = [point for point in part.points if not (point.timed_only or point.anchor)]
    anchors = [(point.operator, point.sm_clock_mhz) for point in part.points if point.anchor]
    assert all(count == 2 for count in Counter(anchors).values())  # a first and a last one at one clock
    assert {kind_of(point) for point in powered} == {kind_of(point) for point in plan.points if not point.anchor}
    counts = Counter(point.sm_clock_mhz for point in part.points if not point.anchor)
    assert min(counts[clock] for clock in CLOCKS) > 0.2 * len(part.points)
    assert part.estimated_s <= budget_s
    everything = len(powered) == part.choice.of if part.choice else False
    assert part.estimated_s > 0.97 * budget_s or everything
    places = {(point.operator, point.sm_clock_mhz): i for i, point in enumerate(plan.points) if not point.anchor}
    found = [places[point.operator, point.sm_clock_mhz] for point in part.points if not point.anchor]
    assert found == sorted(set(found))
    assert part.choice.left_out == ()


def test_rows_and_key_change_with_the_part(bench, plan):
    parts = [plan, *(chosen_part(bench, plan, share * plan.estimated_s) for share in (0.1, 0.2))]
    keys = [campaign_key(bench, SPEC, part, (), 1) for part in parts]
    assert len({key["plan"] for key in keys}) == len({key["selection"] for key in keys}) == len(keys)
    planned = {point.row_id for point in plan.points}
    assert all((point.row_id in planned) is not point.timed_only for part in parts for point in part.points)


def test_a_budget_for_fewer_kernels_than_kinds_names_what_is_left_out(bench, plan):
    kinds = len({kind_of(point) for point in plan.points if not point.anchor})
    _, point_s = point_cost_s(replace(plan.points[-1], idle_before=False), HASTY, plan.sensor)
    small = chosen_part(bench, plan, plan.fixed_s + 0.5 * kinds * point_s).choice
    assert kinds // 2 - 1 <= len(small.left_out) <= kinds // 2 + 1
    with pytest.raises(CampaignError, match="leaves no time for a kernel.*give at least"):
        chosen_part(bench, plan, 60.0)


CAMPAIGN = f"""{SHORT_HEAD}{softmax_of_many_sizes(30)}{ONE_SOFTMAX.replace("fp32", "fp16")}
[[kernels]]
family = "norm"
operator = "layernorm"
precision = "fp32"
count = 10
[kernels.shape]
rows = {{ low = 256, high = 65536 }}
dim = {{ low = 64, high = 4096 }}
"""


@pytest.fixture
def words(tmp_path):
    (tmp_path / "small.toml").write_text(CAMPAIGN)
    return f"--gpu {BOARD} --freqs 510,1410 --campaign {tmp_path / 'small.toml'} --out {tmp_path / 'd.parquet'}"


def test_a_chosen_campaign_is_measured_within_its_budget_and_resumed(words, tmp_path, capsys):
    assert called(f"{words} --budget 60s --json") == 0
    said = capsys.readouterr()
    assert "are only timed" in said.err
    outcome = json.loads(said.out)
    assert outcome["board_time_s"] <= 62.0
    dataset = read_kernel_dataset(tmp_path / "d.parquet")
    timed = [row for row in dataset.table.to_pylist() if "short_window" in row["flags"]]
    assert 0 < len(timed) < dataset.table.num_rows
    assert all(row["latency_s"] > 0.0 and all(row[name] is None for name in POWER_COLUMNS) for row in timed)
    assert dataset.metadata["campaign"]["selection"]["timed"] >= len(timed)
    assert called(f"{words} --budget 60s --resume -q") == 0
    capsys.readouterr()
    changes = {
        "selection was '60 s', is 'all'": "",
        "sensor was": "--budget 60s --sensor a100-pcie-40gb",
        "external_meter was False": "--budget 60s --pmd sim",
    }
    for difference, options in changes.items():
        refused(capsys, 1, f"cannot be resumed: {difference}", f"{words} {options} --resume -q")


def test_what_is_chosen_and_what_cannot_be_is_said(words, capsys):
    for budget, said in (("60s", "chosen"), ("2h", "")):
        assert called(f"{words} --budget {budget} --dry-run") == 0
        assert ("chosen" in capsys.readouterr().out) == bool(said)
    assert called(f"{words} --budget 10s --dry-run") == 1
    enough = capsys.readouterr().err.strip().rpartition("at least ")[2].replace(" ", "")
    assert called(f"{words} --budget {enough} --dry-run") == 0
    assert "too small for one kernel of every kind" in capsys.readouterr().err


@pytest.mark.parametrize("board", board_names())
@pytest.mark.parametrize(("part", "entry"), [(1.0, ""), (0.3, "h200")])
def test_a_campaign_takes_as_long_and_as_much_as_its_plan_states(board, part, entry, tiny, tmp_path):
    """Preparation as planted included, with the sensor characterised or from the catalogue; the energy is a rule of thumb."""
    with open_bench(f"sim:{board}", seed=4) as bench:
        sensor = given_sensor(entry) if entry else None
        spec, plan = tiny, plan_campaign(tiny, (600.0, 900.0), (), 0, bench, sensor=sensor)
        if part < 1.0:
            spec = hastened(tiny)
            plan = chosen_plan(spec, plan, bench.gpu_spec, plan.fixed_s + part * (plan.estimated_s - plan.fixed_s), 0)
        begun_ns = bench.clock.now_ns()
        Campaign(bench, spec, plan, campaign_key(bench, spec, plan, (), 0), tmp_path / "d.parquet", calibration=sensor).run()
        took_s = (bench.clock.now_ns() - begun_ns) * 1e-9
        took_j = bench.planted_energy_j(begun_ns, bench.clock.now_ns())
    assert plan.estimated_s == pytest.approx(took_s, rel=0.15)
    assert plan.estimated_j == pytest.approx(took_j, rel=0.4)


def test_a_budget_that_ends_before_the_first_row_leaves_nothing_and_a_larger_one_begins_anew(tiny, calibration, tmp_path):
    output = tmp_path / "d.parquet"
    with planned(tiny, (900.0,)) as (bench, whole, key):
        plan = replace(whole, fixed_s=0.0)  # the sensor takes longer than anybody could know
        with pytest.raises(CampaignError, match="nothing was measured: the budget ended before the first row"):
            Campaign(bench, tiny, plan, key, output, budget_s=25.0).run()
        assert list(tmp_path.iterdir()) == []
        outcome = Campaign(bench, tiny, plan, key, output, calibration=calibration, budget_s=25.0).run()
    assert 0 < outcome.rows == read_kernel_dataset(output).table.num_rows
