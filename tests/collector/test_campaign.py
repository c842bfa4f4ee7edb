"""A campaign: the same seed gives the same file, nothing is measured twice or lost, clocks come back; what a budget buys; layouts."""

import json
import tomllib
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.bench import open_bench
from collector.campaigns.files import campaign_from_document, campaign_names, load_campaign
from collector.campaigns.measurement import POWER_COLUMNS
from collector.campaigns.plan import chosen_plan, plan_campaign
from collector.campaigns.running import Campaign, campaign_key, kept_rows
from collector.campaigns.selection import hastened, kind_of, point_cost_s
from collector.clocks import clocks_from_text
from collector.daemon.reporting import Tally
from collector.dataset.reader import log_path, read_kernel_dataset
from collector.errors import CampaignError, ClockError, RunnerError
from collector.sensing.catalogue import given_sensor
from collector.simulated.profile import board_names
from estimator import WorkloadError
from microbench.layouts import LAYOUTS
from microbench.shapes import Choice, Derived, KernelGroup, LogRange, draw_operators
from tests.collector.campaigns import BOARD, CLOCKS, ONE_SOFTMAX, SHORT_HEAD, collected, planned, softmax_of_many_sizes, stop_after
from tests.collector.dataset_rows import a_row, operators_of, write_kernel_dataset
from tests.words import called, one_line, refused, told


@pytest.fixture(scope="module")
def finished(tiny, calibration, tmp_path_factory):
    """The dataset of an undisturbed campaign."""
    output = tmp_path_factory.mktemp("finished") / "d.parquet"
    outcome = collected(tiny, output, calibration)
    assert outcome.rows == outcome.rows_planned
    return output


def test_every_kernel_is_measured_at_every_clock_and_the_file_says_what_measured_it(finished, tiny):
    dataset = read_kernel_dataset(finished)
    rows, metadata = dataset.table.to_pylist(), dataset.metadata
    ordinary = Counter((op, row["sm_clock_mhz"]) for op, row in zip(operators_of(dataset.table), rows, strict=True) if op.operator != "add")
    assert len({operator for operator, _ in ordinary}) == 10
    assert list(ordinary.values()) == [1] * 10 * len(CLOCKS)
    anchors = [row for row in rows if row["operator"] == "add"]
    for clock in CLOCKS:
        trials = [row["trial"] for row in anchors if row["sm_clock_mhz"] == clock]
        assert trials == list(range(len(trials)))
    assert len(anchors) >= 3
    assert all(row["idle_before_w"] is not None for row in anchors)
    assert metadata["complete"] is metadata["simulated"] is True
    assert metadata["campaign"]["digest"] == tiny.digest
    assert metadata["sensor"]["averaging"] == "low-pass"
    assert [entry["sm_clock_mhz"] for entry in metadata["idle"]] == [entry["sm_clock_mhz"] for entry in metadata["voltage"]] == list(CLOCKS)
    assert all(30.0 < entry["power_w"] < 80.0 and entry["std_w"] < 2.0 for entry in metadata["idle"])
    assert set(metadata["drift"]) == {"latency", "power"}
    assert {"gpu", "schema_version", "driver", "seed", "versions", "key"} <= metadata.keys()


def test_an_interrupted_campaign_goes_on_where_it_stopped(finished, tiny, calibration, tmp_path):
    output = tmp_path / "d.parquet"
    for rows in (4, 11):
        with pytest.raises(KeyboardInterrupt):
            collected(tiny, output, calibration, report=stop_after(rows), resume=True)
        assert not output.exists()
        assert read_kernel_dataset(log_path(output)).table.num_rows == rows
    first = read_kernel_dataset(log_path(output)).table.to_pylist()
    outcome = collected(tiny, output, calibration, resume=True)
    assert (outcome.rows_kept, outcome.rows) == (11, outcome.rows_planned)
    assert not log_path(output).exists()
    undisturbed, resumed = read_kernel_dataset(finished).table, read_kernel_dataset(output).table
    assert resumed.column("row_id").equals(undisturbed.column("row_id"))
    assert operators_of(resumed) == operators_of(undisturbed)
    rows = resumed.to_pylist()
    assert all(row in rows for row in (*first, *undisturbed.to_pylist()[:4]))


def test_a_budget_ends_a_campaign_that_can_be_resumed(tiny, calibration, tmp_path):
    output = tmp_path / "d.parquet"
    short = collected(tiny, output, calibration, budget_s=20.0)
    assert 0 < short.rows < short.rows_planned
    assert short.board_time_s <= 20.0 + 5.0
    assert not read_kernel_dataset(output).metadata["complete"]
    none = collected(tiny, output, calibration, resume=True, budget_s=1.0)
    assert (none.rows, none.rows_missing, none.board_time_s) == (short.rows, none.rows_planned - short.rows, 0.0)
    assert collected(tiny, output, calibration, resume=True).rows == short.rows_planned
    assert read_kernel_dataset(output).metadata["complete"]


def test_resuming_something_else_is_refused_with_the_difference(finished, tiny, calibration):
    before = finished.read_bytes()
    with pytest.raises(CampaignError, match="seed was 7, is 8"):
        collected(tiny, finished, calibration, seed=8, resume=True)
    with pytest.raises(CampaignError, match="campaign_digest"):
        collected(replace(tiny, digest="other"), finished, calibration, resume=True)
    assert finished.read_bytes() == before


def test_a_meter_without_a_gain_ends_a_campaign_at_once_and_one_with_it_is_not_needed_to_go_on(tiny, calibration, tmp_path):
    output = tmp_path / "d.parquet"
    with planned(tiny) as (bench, plan, key):
        metered = replace(bench, sensors=(*bench.sensors, SimpleNamespace(fields=lambda: ("total",), read=lambda: ())))
        unknown = replace(calibration, gain=None, notes={"gain": "cut off"})
        with pytest.raises(CampaignError, match="no gain of this meter is known: cut off"):
            Campaign(metered, tiny, plan, key, output, calibration=unknown).run()
        assert list(tmp_path.iterdir()) == []
        metered_key = campaign_key(metered, tiny, plan, (), 7)
        with pytest.raises(KeyboardInterrupt):
            Campaign(metered, tiny, plan, metered_key, output, calibration=calibration, report=stop_after(2)).run()
    assert collected(tiny, output, calibration, resume=True).rows_kept == 2


def test_a_kernel_that_cannot_run_is_counted_not_fatal(tiny, calibration, tmp_path):
    with planned(tiny) as (bench, plan, key):
        runner = bench.runner

        def prepare(operator, *how):
            if operator.family == "softmax":
                raise RunnerError("too large")
            return runner.prepare(operator, *how)

        picky = replace(bench, runner=SimpleNamespace(prepare=prepare, supports=runner.supports, run=runner.run))
        tally, told = Tally(bench.clock), []
        outcome = Campaign(
            picky, tiny, plan, key, tmp_path / "d.parquet", calibration=calibration, report=lambda seen: told.append(tally.message(seen))
        ).run()
    assert outcome.rejected == {"softmax: too large": 8}
    assert outcome.rows == outcome.rows_planned - 8
    assert (told[-1].done, told[-1].rows, told[-1].refused) == (outcome.rows_planned, outcome.rows, 8)


def test_another_seed_draws_other_kernels(tiny):
    with planned(tiny) as (_, first, _), planned(tiny, seed=8) as (_, other, _):
        assert {point.operator for point in first.points} != {point.operator for point in other.points}


def test_a_family_filter_keeps_the_kernels_of_the_family(tiny):
    with open_bench(BOARD) as bench:
        whole, part, few = (plan_campaign(tiny, *how, 1, bench) for how in ((CLOCKS, ()), (CLOCKS, ("softmax",)), ((510.0,), ())))
    softmax, other = ({point.operator for point in one.points if point.operator.family == "softmax"} for one in (whole, part))
    assert softmax == other
    assert part.kernels == {"softmax": 4}
    row_ids = {point.row_id for point in few.points if not point.anchor}
    assert row_ids < {point.row_id for point in whole.points}, "a row's id is its point's, not its place's"


@pytest.mark.parametrize("name, least", [("quick", 250), ("full", 9500)])
def test_shipped_campaigns_can_be_planned(name, least):
    spec = load_campaign(name)
    with open_bench(BOARD) as bench:
        plan = plan_campaign(spec, (900.0,), (), 0, bench)
    assert sum(plan.kernels.values()) >= least
    if name == "full":  # counts of published tables
        least_of = {"gemm": 3300, "conv": 3000, "elementwise": 2200, "attention": 500}
        assert all(plan.kernels[family] >= count for family, count in least_of.items())
    assert name in campaign_names()


def test_draws_are_stratified_and_within_their_limits():
    shape = {
        "batch": Choice(values=(1.0,)), "m": LogRange(low=1, high=1024), "n": LogRange(low=64, high=4096, multiple=64),
        "k": Derived(of="n", divide=(2.0,), least=1.0),
    }  # fmt: skip
    group = KernelGroup(family="gemm", operator="linear", precision="fp16", count=64, shape=shape)
    operators = draw_operators(group, "fp16", np.random.default_rng(1))
    assert len(set(operators)) == 64
    rows = np.sort([operator["m"] for operator in operators])
    assert rows[0] <= 2
    assert rows[-1] >= 900
    assert 20 <= np.searchsorted(rows, 32) <= 44
    assert all(operator["n"] % 64 == 0 and operator["k"] == operator["n"] // 2 for operator in operators)


SOFTMAX = {"family": "softmax", "operator": "softmax", "precision": "fp16", "count": 3, "shape": {"rows": 64, "dim": [32, 64, 128]}}
DOCUMENT = {"name": "x", "kernels": [SOFTMAX]}


GROUPS = [
    ({"count": 0}, r"\.count = 0"),
    ({"precision": "fp12"}, r"\.precision = 'fp12'"),
    ({"l2_state": "tepid"}, r"\.l2_state"),
    ({"shape": {"rows": 1}}, "must give exactly rows, dim"),
    ({"shape": {"rows": {"of": "dim"}, "dim": {"of": "rows"}}}, "does not derive itself"),
    ({"shape": {"rows": {"low": 9, "high": 3}, "dim": 1}}, "low <= high"),
    ({"shape": {"rows": "height", "dim": 1}}, "needs another field"),
    ({"transpose": "nn"}, r"\.transpose is for matrix products \(family gemm\); softmax has no layout"),
]
PLAIN_LINEAR = {"family": "gemm", "operator": "linear", "precision": "bf16", "count": 1, "shape": {"batch": 1, "m": 8, "n": 8, "k": 8}}
CHANGES = [
    *(({"kernels": [SOFTMAX | change]}, rf"kernels\[0\].*{reason}") for change, reason in GROUPS),
    ({"kernels": [PLAIN_LINEAR | {"transpose": "nx"}]}, r"kernels\[0\].transpose\[0\] = 'nx' is unknown; known: nn, nt, tn, tt"),
    ({"kernels": [PLAIN_LINEAR | {"transpose": "n" * 100_000}]}, "known: nn, nt, tn, tt"),
    ({"warmup": 1.0}, "warmup is unknown; known: .*warmup_s"),
    ({"kernels": []}, "at least one group"),
    ({"attention": "xformers"}, "^campaign x: attention"),
    ({"anchors": [{"family": "gemm", "operator": "linear", "precision": "fp16", "m": 1}]}, r"anchors\[0\]"),
]


@pytest.mark.parametrize("change, reason", CHANGES)
def test_campaign_files_are_refused_in_one_short_line_with_the_keys_path(change, reason):
    with one_line(CampaignError, reason) as caught:
        campaign_from_document(DOCUMENT | change, "campaign x")
    assert len(str(caught.value)) < 300


def test_clock_lists():
    with open_bench(BOARD) as bench:
        gpu = bench.gpu
        assert clocks_from_text("all", gpu) == gpu.supported_clocks_mhz()
        assert clocks_from_text("current", gpu) == (None,)
        with one_line(ClockError):
            clocks_from_text("fast", gpu)


def test_a_dataset_that_is_no_campaign_is_not_resumed(tmp_path):
    write_kernel_dataset([a_row()], {}, tmp_path / "d.parquet")
    with pytest.raises(CampaignError, match="not from a campaign"):
        kept_rows(tmp_path / "d.parquet", {"seed": 1})


def group(count, rows, dim):
    return KernelGroup(family="softmax", operator="softmax", precision="fp16", count=count, shape={"rows": rows, "dim": dim})


def test_more_kernels_than_there_can_be_are_refused():
    few = group(100_000, Choice(values=(1.0, 2.0)), LogRange(low=64, high=640, multiple=64))
    with pytest.raises(WorkloadError, match="only 20 of 100000 kernels lie within its ranges and limits"):
        draw_operators(few, "fp16", np.random.default_rng(1))


def test_every_kernel_of_small_ranges_can_be_drawn():
    for low, high, multiple in ((64, 640, 64), (1, 12, 1), (60, 200, 64), (3, 5, 8)):
        rule = LogRange(low=low, high=high, multiple=multiple)
        there = {min(max(multiple * max(1, round(raw / multiple)), low), high) for raw in np.linspace(low, high, 2000).tolist()}
        drawn = draw_operators(group(len(there), Choice(values=(1.0,)), rule), "fp16", np.random.default_rng(2))
        assert {int(operator["dim"]) for operator in drawn} == there


THREE_CLOCKS = (510.0, 900.0, 1410.0)
SPEC = load_campaign("quick")
HASTY = hastened(SPEC)


@pytest.fixture(scope="module")
def bench():
    with open_bench(BOARD, seed=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def plan(bench):
    return plan_campaign(SPEC, THREE_CLOCKS, (), 1, bench)


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
    assert min(counts[clock] for clock in THREE_CLOCKS) > 0.2 * len(part.points)
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


def test_a_chosen_campaign_is_measured_within_its_budget_and_resumed(words, tmp_path):
    out, err = told(f"{words} --budget 60s --json")
    assert "are only timed" in err
    assert json.loads(out)["board_time_s"] <= 62.0
    dataset = read_kernel_dataset(tmp_path / "d.parquet")
    timed = [row for row in dataset.table.to_pylist() if "short_window" in row["flags"]]
    assert 0 < len(timed) < dataset.table.num_rows
    assert all(row["latency_s"] > 0.0 and all(row[name] is None for name in POWER_COLUMNS) for row in timed)
    assert dataset.metadata["campaign"]["selection"]["timed"] >= len(timed)
    assert called(f"{words} --budget 60s --resume -q") == 0
    changes = {
        "selection was '60 s', is 'all'": "",
        "sensor was": "--budget 60s --sensor a100-pcie-40gb",
    }
    for difference, options in changes.items():
        refused(1, f"cannot be resumed: {difference}", f"{words} {options} --resume -q")
    refused(1, "no gain of this meter is known: needs an external meter", f"{words} --budget 60s --pmd sim --resume -q")


def test_what_is_chosen_and_what_cannot_be_is_said(words):
    for budget, said in (("60s", "chosen"), ("2h", "")):
        assert ("chosen" in told(f"{words} --budget {budget} --dry-run")[0]) == bool(said)
    _, err = told(f"{words} --budget 10s --dry-run", status=1)
    enough = err.strip().rpartition("at least ")[2].replace(" ", "")
    assert "too small for one kernel of every kind" in told(f"{words} --budget {enough} --dry-run")[1]


@pytest.mark.parametrize("board", board_names())
@pytest.mark.parametrize("part, entry", [(1.0, ""), (0.3, "h200")])
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


LINEAR, BMM, SOFTMAX_FP32 = tomllib.loads("""
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


def test_a_dataset_says_in_which_layout_each_product_ran(calibration, tmp_path):
    spec = spec_of({**LINEAR, "transpose": list(LAYOUTS)}, {**BMM, "transpose": "nt", "count": 1}, SOFTMAX_FP32)
    rows = read_kernel_dataset(collected(spec, tmp_path / "d.parquet", calibration, clocks=(900.0,)).dataset).table.to_pylist()
    linear = [row for row in rows if row["operator"] == "linear"]
    assert sorted(row["transpose"] for row in linear) == sorted(2 * LAYOUTS)
    assert [(row["transpose"], row["l2_state"]) for row in rows if row["operator"] == "bmm"] == [("nt", "cold")]
    assert [row["transpose"] for row in rows if row["family"] == "softmax"] == [None, None]
    assert all(f"_{row['transpose']}" in row["kernel_name"].lower() for row in rows if row["family"] == "gemm")
