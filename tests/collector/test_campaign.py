"""A campaign: the same seed gives the same file, nothing is measured twice or lost, and clocks come back."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from collector.bench import open_bench
from collector.campaigns.files import campaign_from_document, campaign_names, load_campaign
from collector.campaigns.plan import plan_campaign
from collector.campaigns.running import Campaign, kept_rows
from collector.clocks import clocks_from_text
from collector.daemon.reporting import Tally
from collector.dataset.reader import log_path, read_kernel_dataset
from collector.errors import CampaignError, ClockError, RunnerError
from estimator import WorkloadError
from microbench.shapes import Choice, Derived, KernelGroup, LogRange, draw_operators
from tests.collector.campaigns import BOARD, CLOCKS, collected, planned, stop_after
from tests.collector.dataset_rows import a_row, operators_of, write_kernel_dataset
from tests.words import one_line


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


def test_plans_depend_on_the_seed_alone(tiny):
    with planned(tiny) as (_, first, _), planned(tiny) as (_, again, _), planned(tiny, seed=8) as (_, other, _):
        assert first == again
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


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"count": 0}, r"\.count = 0"),
        ({"precision": "fp12"}, r"\.precision = 'fp12'"),
        ({"l2_state": "tepid"}, r"\.l2_state"),
        ({"shape": {"rows": 1}}, "must give exactly rows, dim"),
        ({"shape": {"rows": {"of": "dim"}, "dim": {"of": "rows"}}}, "derive from each other"),
        ({"shape": {"rows": {"low": 9, "high": 3}, "dim": 1}}, "low <= high"),
        ({"shape": {"rows": "height", "dim": 1}}, "needs another field"),
    ],
)
def test_a_group_that_cannot_be_is_refused_with_its_path(change, reason):
    with pytest.raises(CampaignError, match=rf"kernels\[0\].*{reason}"):
        campaign_from_document({**DOCUMENT, "kernels": [{**SOFTMAX, **change}]}, "campaign x")


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"warmup": 1.0}, "warmup is unknown; known: .*warmup_s"),
        ({"kernels": []}, "at least one group"),
        ({"attention": "xformers"}, "^campaign x: attention"),
        ({"anchors": [{"family": "gemm", "operator": "linear", "precision": "fp16", "m": 1}]}, r"anchors\[0\]"),
    ],
)
def test_campaign_files_are_refused_with_the_keys_path(change, reason):
    with pytest.raises(CampaignError, match=reason):
        campaign_from_document({**DOCUMENT, **change}, "campaign x")


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
