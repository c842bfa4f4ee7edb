"""What a lent card's script promises without a card: anchors are compared, a call ends in its time with its results packed."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from collector.cli import main
from collector.dataset.reader import log_path, read_kernel_dataset
from collector.devices.protocols import THROTTLE_BITS, PowerReadings, StateReadings
from collector.sampling import Trace
from scripts.anchor_check import WANTED, AnchorError, agreement
from scripts.anchor_check import main as anchor_check
from scripts.card_call import Call, kill, pack, unpack
from scripts.card_smoke import decided, limit_lag
from scripts.real_card import STAGES, Card, over
from scripts.real_card import main as real_card
from tests.collector.dataset_rows import write_kernel_dataset

CAMPAIGN = """
description = "few anchors"
warmup_s = 0.0
idle_settle_s = 0.2
idle_window_s = 0.3
kernels_per_block = 10
anchor_every = 0
[measurement]
updates = 5
window_s = 0.3
settle_s = 0.2
gap_s = 0.0
[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp16"
count = 6
[kernels.shape]
rows = { low = 4096, high = 65536, multiple = 8 }
dim = 1024
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anchors")
    (folder / "few.toml").write_text(CAMPAIGN)
    out = folder / "anchors-1.parquet"
    words = f"--campaign {folder / 'few.toml'} --gpu sim:a100-pcie-40gb --freqs current --out {out} -q".split()
    assert main(words) == 0
    return out


def scaled(source, target, factor, **changes):
    """The dataset with every energy times a factor, and columns replaced."""
    found = read_kernel_dataset(source)
    rows = [{**row, "energy_j": factor * row["energy_j"], **changes} for row in found.table.to_pylist()]
    write_kernel_dataset(rows, found.metadata, target)
    return target


def test_a_rehearsal_is_compared_with_itself_alone(measured, tmp_path, capfd):
    for name in ("anchors-1", "again-1", "campaign-1"):
        shutil.copy(measured, tmp_path / f"{name}.parquet")
    datasets = {f"{stage}-1": {"stage": stage, "seed": 1, "planned_s": 1} for stage in ("anchors", "campaign", "again")}
    state = {"stages": {}, "events": [], "datasets": datasets, "boards": ["sim:a100-pcie-40gb"]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert real_card(f"compare card --folder {tmp_path}".split()) == 0
    assert "energy differs by 0.00% on average of 6 kernels" in capfd.readouterr().out


@pytest.mark.parametrize("factor, status", [(1.0, 0), (1.01, 0), (0.98, 3), (1.5, 3)])
def test_two_measurements_differ_by_what_they_differ_by(measured, tmp_path, factor, status, capsys):
    second = scaled(measured, tmp_path / "b.parquet", factor)
    assert anchor_check(f"{measured} {second} -o {tmp_path / 'a.json'}".split()) == status
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["kernels"] == 6
    assert found["energy"]["mean"] == pytest.approx(abs(np.log(factor)), abs=1e-12)
    assert found["energy"]["bias"] == pytest.approx(np.log(factor), abs=1e-12)
    assert found["latency"]["largest"] == found["power"]["largest"] == 0.0
    assert ("met" if status == 0 else "missed") in capsys.readouterr().out
    assert (found["energy"]["mean"] <= WANTED) == (status == 0)


def test_datasets_that_share_too_little_are_refused_in_one_line(measured, tmp_path, capsys):
    other = scaled(measured, tmp_path / "other.parquet", 1.0, rows=7)
    with pytest.raises(AnchorError, match="share 0 kernels, 3 are the least"):
        agreement(measured, other)
    blind = scaled(measured, tmp_path / "blind.parquet", 1.0, power_w=None)
    (tmp_path / "no.parquet").write_bytes(b"no dataset")
    for second in (other, blind, tmp_path / "no.parquet", tmp_path / "missing.parquet"):
        assert anchor_check(f"{measured} {second}".split()) == 1
        out, err = capsys.readouterr()
        assert (out, err.partition(":")[0], err.count("\n")) == ("", "anchor_check", 1)


def test_a_call_without_time_begins_nothing_and_packs_what_is_there(tmp_path):
    folder, out, came = (tmp_path / name for name in ("results", "out", "elsewhere"))
    folder.mkdir()
    (folder / "campaign.parquet").write_bytes(b"rows of the call before")
    assert real_card(f"--call-s 1 --gpu sim:h100-sxm --folder {folder} --out {out}".split()) == 3
    assert real_card(f"setup --pieces {out} --gpu sim:h100-sxm --folder {came}".split()) == 0
    assert (came / "campaign.parquet").read_bytes() == b"rows of the call before"
    for place in (folder, came):
        stages = json.loads((place / "state.json").read_text())["stages"]
        assert {name: one["state"] for name, one in stages.items()} == {name: "part" for name, stage in STAGES.items() if stage.on_card}


def test_what_did_not_come_back_and_unknown_stages_are_told_in_a_line(tmp_path, capsys):
    (tmp_path / "file").touch()
    for name, line in (("file", "File exists"), ("new", "no dataset is there")):
        assert real_card(["compare", "--folder", str(tmp_path / name)]) in (1, 3)
        assert line in "".join(capsys.readouterr())
    assert real_card(f"setup --pieces {tmp_path} --folder {tmp_path / 'f'}".split()) == 1
    assert capsys.readouterr().err.count("\n") == 1
    for damage in ("{", "[]", '{"stages": {"smoke": 3}, "events": [], "datasets": {}, "boards": []}'):
        (tmp_path / "f" / "state.json").write_text(damage)
        assert real_card(f"card --folder {tmp_path / 'f'}".split()) == 1
        assert "delete it: stages begin again" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        real_card(f"smok --folder {tmp_path / 'f'}".split())
    assert "no stage is called smok" in capsys.readouterr().err


def test_a_rehearsal_with_every_fault_looks_first_and_decides_by_what_it_saw(tmp_path, repository):
    profile = (repository / "configs" / "simulated-boards" / "h100-sxm.toml").read_text()
    board = tmp_path / "board.toml"
    board.write_text(f"{profile}\n[faults]\nlimit_lag_s = 0.05\ncall_s = 0.012\nstartup_s = 30\nlate_trace_share = 0.9\n")
    assert real_card(f"smoke doctor card --gpu sim:{board} --folder {tmp_path}".split()) == 0
    found = json.loads((tmp_path / "smoke.json").read_text())
    assert found["failed"] == {}
    assert found["load"]["capped"]
    assert 0.1 < found["load"]["settle_s"] < 0.3
    settings = found["settings"]
    assert not settings["trace"]
    assert settings["poll_ms"] == pytest.approx(1e3 * found["load"]["reading"]["p50_s"], abs=0.05)
    assert 5.0 * 1.0 < settings["poll_ms"] < 5.0 * 12.0  # a call of 1 to 12 ms, and four times as long at rest after it
    assert found["load"]["settle_s"] < settings["timed_s"] <= 0.4
    assert "a planted fault" in (tmp_path / "card.md").read_text()


@pytest.mark.parametrize(
    "found, poll_ms, trace, timed_s",
    [
        ("{}", 2.0, False, 0.1),  # a look that saw nothing
        ('{"trace": {"named": 8, "of": 8}, "load": {"update_s": 0.1, "settle_s": 0.0}}', 5.0, True, 0.1),
        ('{"calls": {"energy": {"p50_s": 0.003}}, "load": {"update_s": 0.1, "settle_s": 9.0}}', 5.0, False, 0.4),  # no reading waits for it
        ('{"load": {"update_s": 0.1, "reading": {"p50_s": 0.0155}}}', 15.5, False, 0.1),
        ('{"load": {"update_s": NaN, "reading": {"p50_s": 0.3}, "state": {"p50_s": 0.06}}}', 60.0, False, 0.25),
    ],
)
def test_what_is_seen_decides(found, poll_ms, trace, timed_s):
    assert decided(json.loads(found)) == {"poll_ms": poll_ms, "trace": trace, "timed_s": pytest.approx(timed_s)}


def under_load(clock_mhz, count):
    """A run of three seconds at the power limit with `count` states, whose clock is a function of the time [s]."""
    stamps = np.linspace(0, 3_000_000_000, count).astype(np.int64)
    temperature, volt, mask = (np.full(count, value) for value in (50.0, math.nan, THROTTLE_BITS["sw_power_cap"]))
    clocks = clock_mhz(stamps * 1e-9)
    states = StateReadings(host_ns=stamps, sm_clock_mhz=clocks, temperature_c=temperature, voltage_v=volt, throttle_mask=mask)
    return Trace(states=states, board=PowerReadings(field="instant", host_ns=stamps, power_w=np.linspace(600, 700, count)), reference=None)


@pytest.mark.parametrize("swing_mhz", [0.0, 5.0, 60.0])
@pytest.mark.parametrize("lag_s", [0.01, 0.05, 0.1])
def test_a_limit_has_settled_once_the_clock_steps_no_further_than_at_the_end(lag_s, swing_mhz):
    """Boards at their limit step to and fro by several percent; that is not the limit taking hold."""
    random = np.random.default_rng(1)
    trace = under_load(lambda t: 1500.0 + 480.0 * np.exp(-t / lag_s) + swing_mhz * random.uniform(-1.0, 1.0, t.size), 150)
    found = limit_lag(trace, 0, 3_000_000_000)
    assert found["capped"]
    assert found["clock_mhz"][1] == pytest.approx(1500.0, abs=1.0 + swing_mhz / 2.0)
    assert lag_s <= found["settle_s"] <= 5.0 * lag_s + 0.04


@pytest.mark.parametrize(
    "program, limit_s, why",
    [
        ("print(7)", 30.0, ""),
        ("raise SystemExit('no torch')", 30.0, "exit status 1: no torch"),
        ("import time\nwhile True: print(end='x', flush=True); time.sleep(0.1)", 1.5, "time limit"),
        ("import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(60)", 30.0, "nothing written for 1 s"),
        ("print(7)", -1.0, "no time is left in this call"),
    ],
)
def test_a_process_ends_in_its_time_and_a_hang_is_ended_at_once(tmp_path, program, limit_s, why):
    call = Call(tmp_path, 60.0, dict(os.environ), time.monotonic())
    assert call.run("step", [sys.executable, "-c", program], limit_s, stall_s=1.0) == why
    assert 50.0 < call.left_s() < 60.0
    assert (tmp_path / "step.json").exists() == (limit_s > 0)
    assert why or (tmp_path / "step.json").read_text() == "7\n"
    assert call.run("count", ["no-such-profiler"], 30.0).startswith("no-such-profiler cannot be started")


def test_a_process_that_the_driver_holds_does_not_hold_the_call():
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeper:

        class Held:
            pid = sleeper.pid

            def wait(self, timeout):
                raise subprocess.TimeoutExpired("held", timeout)

        kill(Held())
        assert sleeper.wait(10.0) == -signal.SIGKILL


@pytest.fixture
def places(tmp_path):
    """Folders of results, of what travels, and of what came back."""
    folders = tuple(tmp_path / name for name in ("results", "out", "back"))
    for folder in folders:
        folder.mkdir()
    return folders


def test_results_come_back_in_pieces_that_may_travel_also_where_they_are_fewer_than_before(places):
    folder, out, back = places
    (folder / "recordings").mkdir()
    large = folder / "recordings" / "a.recording"
    content = np.random.default_rng(1).bytes(16 << 20)
    large.write_bytes(content)
    pack(folder, out)
    assert [path.name for path in sorted(out.glob("*/*"))] == ["results.tar.gz.00", "results.tar.gz.01"]
    assert max(path.stat().st_size for path in out.glob("*/*")) <= 16 << 20
    unpack(out, back)
    assert (back / "recordings" / "a.recording").read_bytes() == content
    large.write_bytes(b"rows")
    pack(folder, out)
    unpack(out, back)
    assert (back / "recordings" / "a.recording").read_bytes() == b"rows"
    assert [path.name for path in out.glob("*/*")] == ["results.tar.gz.00"]


@pytest.mark.parametrize("step", ["shutil.copytree", "pathlib.Path.rename", "shutil.rmtree"])
def test_a_packing_that_breaks_off_at_any_step_leaves_whole_results(places, monkeypatch, step):
    folder, out, back = places
    (folder / "rows").write_text("first")
    pack(folder, out)
    (folder / "rows").write_text("second")

    remove = shutil.rmtree

    def broken(*arguments, **options):
        if step == "shutil.rmtree" and "results-" not in str(arguments[0]):
            return remove(*arguments, **options)
        if step == "shutil.copytree":
            arguments[1].mkdir()
            (arguments[1] / "results.tar.gz.00").write_bytes(b"a part")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(step, broken)
        with pytest.raises(KeyboardInterrupt):
            pack(folder, out)
    unpack(out, back)
    assert (back / "rows").read_text() in ("first", "second")
    pack(folder, out)
    unpack(out, back)
    assert (back / "rows").read_text() == "second"


def test_the_log_of_an_earlier_call_does_not_stay_beside_the_dataset_that_it_became(places):
    folder, out, here = places
    for name in ("campaign-1.parquet", "anchors-1.parquet"):
        assert log_path(here / name).write_text("rows of the first call")
    assert (folder / "campaign-1.parquet").write_text("all rows")
    pack(folder, out)
    unpack(out, here)
    assert {path.name for path in here.iterdir()} == {"campaign-1.parquet", "anchors-1.parquet.log.jsonl"}


def test_results_that_grow_while_they_are_packed_cost_no_stage(places):
    folder, out, back = places
    (folder / "a.log").write_bytes(bytes(64 << 20))
    writes = "import sys, time\nwith open(sys.argv[1], 'ab') as log:\n  while True: log.write(b'row'); log.flush(); time.sleep(1e-4)"
    with subprocess.Popen([sys.executable, "-c", writes, str(folder / "a.log")]) as writer:
        try:
            for _ in range(3):
                pack(folder, out)
        finally:
            writer.kill()
    unpack(out, back)
    assert (back / "a.log").stat().st_size >= 64 << 20


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_call_that_is_killed_leaves_what_its_running_stage_wrote_and_ends_the_stage(places, repository, number):
    folder, out, back = places
    writes = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nopen('rows', 'w').write('first rows')\ntime.sleep(60)"
    program = f"""
import os, sys, time
from pathlib import Path
from scripts import card_call
card_call.PACK_S = 0.0
call = card_call.Call(Path({str(folder)!r}), 60.0, dict(os.environ), time.monotonic(), Path({str(out)!r}))
os.chdir({str(folder)!r})
call.run("step", [sys.executable, "-c", {writes!r}], 30.0)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=repository, start_new_session=True, stdout=subprocess.DEVNULL) as call:
        packed = set()
        while len(packed) < 3:  # the third began after the row was written
            packed = packed | set(out.glob("results-*")) if (folder / "rows").exists() else set()
        os.kill(call.pid, number)
    stage = Path("/proc") / (folder / "pid").read_text()
    until = time.monotonic() + 10.0
    while stage.exists() and "zombie" not in (stage / "status").read_text():
        assert time.monotonic() < until
    unpack(out, back)
    assert (back / "rows").read_text() == "first rows"


def rehearsed(folder, board, *stages, call_s=900):
    return real_card([*stages, *f"--gpu sim:{board} --folder {folder} --call-s {call_s} --stall-s 20".split()])


@pytest.fixture
def boards(tmp_path, repository):
    """Two boards of one kind, which differ by their UUIDs, and one of another kind."""
    kinds = {"first": "h100-sxm", "second": "h100-sxm", "other": "h200-sxm"}
    profiles = repository / "configs" / "simulated-boards"
    return {name: shutil.copy(profiles / f"{kind}.toml", tmp_path / f"{name}.toml") for name, kind in kinds.items()}


def test_a_call_on_another_board_goes_on_there(tmp_path, boards):
    """A fresh machine holds another board of the same kind: it needs its own sensor, and its rows go beside those of the first.

    Rows that the first board measured before its sensor was known stop no later stage, and stay apart.
    """
    folder = tmp_path / "results"
    assert rehearsed(folder, boards["first"], "anchors", call_s=140) == 3
    assert (folder / "anchors-1-no-sensor.parquet").exists()
    assert rehearsed(folder, boards["first"], "sensor", "anchors") == 0
    assert rehearsed(folder, boards["second"], "sensor", "again") == 0
    first, second = (read_kernel_dataset(folder / name).table for name in ("anchors-1.parquet", "again-2.parquet"))
    assert first.num_rows == second.num_rows == 30
    assert {*first.column("gpu_uuid").to_pylist()}.isdisjoint(second.column("gpu_uuid").to_pylist())
    assert agreement(folder / "anchors-1.parquet", folder / "again-2.parquet")["kernels"] == 30


@pytest.mark.parametrize("state, characterised, passed", [("done", False, False), ("done", True, True), ("failed", False, True)])
def test_a_fourth_board_has_its_sensor_characterised_too(tmp_path, state, characterised, passed):
    stages = {"sensor": {"state": state, "calls": 3}, "anchors": {"state": "done", "calls": 1}}
    call = Call(tmp_path, 60.0, {}, time.monotonic())
    card = Card(gpu="0", stall_s=1.0, call=call, state={"stages": stages, "boards": ["a", "b", "c", "d"], "board": "d"})
    if characterised:
        (tmp_path / "sensor-4.json").write_text("{}")
    assert (over(card, "sensor"), over(card, "anchors"), over(card, "campaign")) == (passed, True, False)


def test_a_board_of_another_kind_is_refused_in_a_line(tmp_path, boards, capsys):
    folder = tmp_path / "results"
    assert rehearsed(folder, boards["first"], "doctor") == 0
    capsys.readouterr()
    assert rehearsed(folder, boards["other"]) == 1
    assert "holds results of NVIDIA H100" in capsys.readouterr().err
    state = folder / "state.json"
    state.write_text(state.read_text().replace("sim:", "GPU-"))  # a real card's results, and a rehearsal in their folder
    assert rehearsed(folder, boards["second"]) == 1
    assert "(GPU-" in capsys.readouterr().err


def test_a_stage_that_fails_alike_is_not_repeated(tmp_path, boards, capsys):
    """An error before any row, such as a missing assembler, costs one start and not four."""
    (tmp_path / "real-card-anchors.toml").write_text("no campaign")
    assert rehearsed(tmp_path, boards["first"], "anchors") == 3
    assert capsys.readouterr().out.count("== anchors, ") == 1
