"""Kernels that break the context: on disk before they run, passed over and named by the run that goes on."""

import json
import multiprocessing
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.bench import open_bench
from collector.campaigns.context_guard import SILENT_ENDS, GuardedRunner, killers_path
from collector.cli import main
from collector.dataset import read_kernel_dataset
from collector.errors import CampaignError, DeviceError, RunnerError
from estimator.vocabulary.workload import make_operator
from tests.collector.campaign_texts import SHORT_HEAD
from tests.collector.campaigns import campaign_words

BOARD = "a100-pcie-40gb"
GEMM = make_operator("gemm", "linear", "fp16", batch=1, m=256, n=256, k=256)
ADD = make_operator("elementwise", "add", "fp16", elements=4096, reads=8192)


class Scripted:
    """A runner that does what it is told to when a kernel runs."""

    def __init__(self, runner, deed):
        self.runner, self.deed = runner, deed

    def prepare(self, operator, l2_state="warm", transpose=""):
        return self.runner.prepare(operator, l2_state, transpose)  # type: ignore[no-any-return]

    def run(self, prepared, launches):
        self.deed(prepared)
        return self.runner.run(prepared, launches)  # type: ignore[no-any-return]


def attempt(path, deed, operator=GEMM):
    with open_bench(f"sim:{BOARD}") as bench:
        runner = GuardedRunner(Scripted(bench.runner, deed), path)  # type: ignore[arg-type]
        runner.run(runner.prepare(operator), 3)
    return runner


def nothing(_prepared):
    return None


def breaks(_prepared):
    raise DeviceError("illegal address")


def test_a_kernel_that_broke_the_context_is_passed_over_and_others_are_not(tmp_path):
    path = tmp_path / "x.killers.json"
    with pytest.raises(DeviceError, match="illegal address"):
        attempt(path, breaks)
    with pytest.raises(
        RunnerError, match=r"gemm.linear fp16 batch=1 m=256 n=256 k=256 warm: it broke the context before \(illegal address\)"
    ):
        attempt(path, nothing)
    attempt(path, nothing, ADD)
    with open_bench(f"sim:{BOARD}") as bench:
        runner = GuardedRunner(bench.runner, path)
        runner.run(runner.prepare(GEMM, "warm", "nt"), 3)  # another layout is another kernel
    document = json.loads(path.read_text())
    assert document.pop("broke") == {"gemm.linear fp16 batch=1 m=256 n=256 k=256 warm": "illegal address"}
    document["broke"] = {}
    path.write_text(json.dumps(document))
    attempt(path, nothing)
    assert not path.exists()


def die(path):
    attempt(path, lambda _prepared: os._exit(9))


def test_a_process_that_vanishes_twice_in_a_kernel_is_believed(tmp_path):
    path = tmp_path / "x.killers.json"
    for _ in range(SILENT_ENDS):
        process = multiprocessing.get_context("spawn").Process(target=die, args=(path,))
        process.start()
        process.join()
        assert process.exitcode == 9
        assert json.loads(path.read_text())["running"].startswith("gemm.linear")
    with pytest.raises(RunnerError, match="2 processes ended while it ran; passed over"):
        attempt(path, nothing)


def test_a_kernel_that_finishes_after_one_silent_end_is_cleared(tmp_path):
    path = tmp_path / "x.killers.json"
    name = "gemm.linear fp16 batch=1 m=256 n=256 k=256 warm"
    path.write_text(json.dumps({"running": name, "ends": {}, "broke": {}}))
    attempt(path, nothing)
    assert not path.exists()


def test_what_the_user_stops_is_under_no_suspicion(tmp_path):
    def stopped(_prepared):
        raise KeyboardInterrupt

    path = killers_path(tmp_path / "x.parquet")
    with open_bench(f"sim:{BOARD}") as bench:
        runner = GuardedRunner(Scripted(bench.runner, stopped), path)  # type: ignore[arg-type]
        prepared = runner.prepare(GEMM)
        with pytest.raises(KeyboardInterrupt):
            runner.run(prepared, 3)
        assert json.loads(path.read_text())["running"]
        runner.clear()
    assert not path.exists()


def test_a_refusal_is_no_kill(tmp_path):
    impossible = make_operator("gemm", "linear", "fp16", batch=1, m=2**21, n=2**21, k=2**10)
    for _ in range(2):
        with pytest.raises(RunnerError, match="GB"):
            attempt(tmp_path / "x.killers.json", nothing, impossible)
    assert list(tmp_path.iterdir()) == []


@given(st.binary(max_size=80) | st.sampled_from([b"{}", b"[]", b'{"running":""}', b'{"running":"","ends":{"x":-1},"broke":[]}']))
def test_a_damaged_list_is_refused_in_one_line(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("list") / "x.killers.json"
    path.write_bytes(content)
    with open_bench(f"sim:{BOARD}") as bench, pytest.raises(CampaignError, match="list of kernels") as refused:
        GuardedRunner(bench.runner, path)
    assert "\n" not in str(refused.value)


CAMPAIGN = f"""{SHORT_HEAD}
[[instructions]]
kernels = ["ffma_k8_u64", "iadd3_k8_u64", "imad_k8_u64"]
"""


def test_a_campaign_goes_on_without_the_kernel_that_killed_it_and_names_it(tmp_path, toolchain, calibration, capsys):
    out = tmp_path / "few.parquet"
    words = campaign_words(tmp_path, calibration, CAMPAIGN, more='[faults]\nkills = "iadd3_k8_u64"\n')
    words += ["--out", str(out)]
    assert main(words) == 1
    assert "iadd3_k8_u64: illegal address" in capsys.readouterr().err
    assert main([*words, "--resume", "--strict"]) == 3
    told = capsys.readouterr()
    assert "iadd3_k8_u64: it broke the context before" in told.out + told.err
    dataset = read_kernel_dataset(out)
    assert sorted(dataset.table.column("operator").to_pylist()) == ["ffma_k8_u64", "imad_k8_u64"]
    assert any("iadd3_k8_u64: it broke the context before" in reason for reason in dataset.metadata["rejected"])
    assert main([*words, "--resume"]) == 0
    assert json.loads(killers_path(out).read_text())["broke"].keys() == {"iadd3_k8_u64"}
