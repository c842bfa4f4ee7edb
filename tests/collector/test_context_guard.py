"""Kernels that break the context: on disk before they run, passed over and named by the run that goes on."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.bench import open_bench
from collector.campaigns.context_guard import SILENT_ENDS, GuardedRunner, killers_path
from collector.dataset.reader import read_kernel_dataset
from collector.errors import CampaignError, DeviceError, RunnerError
from tests.collector.campaigns import BOARD, SHORT_HEAD, campaign_words
from tests.collector.dataset_rows import addition, product
from tests.words import called, one_line, told

GEMM = product(256)
NAME = "gemm.linear fp16 batch=1 m=256 n=256 k=256 warm"
ADD = addition(4096)


def guarded(bench, path, deed):
    """A guarded runner that does a deed when a kernel runs."""
    return GuardedRunner(SimpleNamespace(prepare=bench.runner.prepare, run=lambda *what: (deed(), bench.runner.run(*what))[1]), path)


def attempt(path, deed=lambda: None, operator=GEMM, layout=""):
    with open_bench(BOARD) as bench:
        runner = guarded(bench, path, deed)
        runner.run(runner.prepare(operator, "warm", layout), 3)


def raising(error):
    def deed():
        raise error

    return deed


def test_a_kernel_that_broke_the_context_is_passed_over_and_others_are_not(tmp_path):
    path = tmp_path / "x.killers.json"
    with pytest.raises(DeviceError, match="illegal address"):
        attempt(path, raising(DeviceError("illegal address")))
    with pytest.raises(RunnerError, match=rf"{NAME}: it broke the context before \(illegal address\)"):
        attempt(path)
    attempt(path, operator=ADD)
    attempt(path, layout="nt")  # another layout is another kernel
    document = json.loads(path.read_text())
    assert document["broke"] == {NAME: "illegal address"}
    path.write_text(json.dumps({**document, "broke": {}}))
    attempt(path)
    assert not path.exists()


def test_two_processes_that_ended_in_a_kernel_are_believed(tmp_path):
    """One that is killed says as little as one that is interrupted and whose runner is not cleared."""
    path = tmp_path / "x.killers.json"
    for _ in range(SILENT_ENDS):
        with pytest.raises(KeyboardInterrupt):
            attempt(path, raising(KeyboardInterrupt))
    with pytest.raises(RunnerError, match="2 processes ended while it ran; passed over"):
        attempt(path)


def test_a_kernel_that_finishes_after_one_silent_end_is_cleared(tmp_path):
    path = tmp_path / "x.killers.json"
    path.write_text(json.dumps({"running": NAME, "ends": {}, "broke": {}}))
    attempt(path)
    assert not path.exists()


def test_what_the_user_stops_is_under_no_suspicion(tmp_path):
    path = tmp_path / "x.killers.json"
    with open_bench(BOARD) as bench:
        runner = guarded(bench, path, raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            runner.run(runner.prepare(GEMM), 3)
        assert json.loads(path.read_text())["running"] == NAME
        runner.clear()
    assert not path.exists()


def test_a_refusal_is_no_kill(tmp_path):
    impossible = product(2**21)
    for _ in range(2):
        with pytest.raises(RunnerError, match="GB"):
            attempt(tmp_path / "x.killers.json", operator=impossible)
    assert list(tmp_path.iterdir()) == []


@given(st.binary(max_size=80) | st.sampled_from([b"{}", b"[]", b'{"running":""}', b'{"running":"","ends":{"x":-1},"broke":[]}']))
def test_a_damaged_list_is_refused_in_one_line(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("list") / "x.killers.json"
    path.write_bytes(content)
    with open_bench(BOARD) as bench, one_line(CampaignError, "list of kernels"):
        GuardedRunner(bench.runner, path)


CAMPAIGN = f"""{SHORT_HEAD}
[[instructions]]
kernels = ["ffma_k8_u64", "iadd3_k8_u64", "imad_k8_u64"]
"""


def test_a_campaign_goes_on_without_the_kernel_that_killed_it_and_names_it(tmp_path, toolchain, sensor_file):
    out = tmp_path / "few.parquet"
    words = campaign_words(tmp_path, sensor_file, CAMPAIGN, more='[faults]\nkills = "iadd3_k8_u64"\n')
    words += f" --out {out}"
    assert "iadd3_k8_u64: illegal address" in told(words, status=1)[1]
    assert "iadd3_k8_u64: it broke the context before" in "".join(told(f"{words} --resume --strict", status=3))
    dataset = read_kernel_dataset(out)
    assert sorted(dataset.table.column("operator").to_pylist()) == ["ffma_k8_u64", "imad_k8_u64"]
    assert any("iadd3_k8_u64: it broke the context before" in reason for reason in dataset.metadata["rejected"])
    assert called(f"{words} --resume") == 0
    assert json.loads(killers_path(out).read_text())["broke"].keys() == {"iadd3_k8_u64"}
