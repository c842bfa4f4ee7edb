"""The daemon and its commands: queued work is measured even if a process dies; a wrong request gets one line and queues nothing."""

import json
import os
import shlex
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from collector.commands.campaign import common_root
from collector.daemon.jobs import AFTER_ROW, AT_ONCE, STALE_S
from collector.daemon.store import FILE_NAME, daemon_lock, locked, open_store, worker_lock_path
from collector.dataset.reader import log_path, read_kernel_dataset, read_log
from collector.devices.board_claim import claimed_board
from tests.collector.daemon.conftest import ATTEMPTS, BOARD, ENDLESS, OTHER_BOARD, row_ids, workers
from tests.collector.nvml.stub import Boards, board_uuid, built
from tests.collector.steady import DEADLINE_S, until
from tests.processes import ended
from tests.words import answer, called, changed, refused, told

MANY = 30
FEW = 4
LAST_REST_S = 5.0
"""Power at rest is measured once more after the last kernel, whatever the budget."""


def undisturbed(place, campaign):
    """The rows that `collect` itself measures."""
    out = place.folder / "undisturbed.parquet"
    assert called(f"--gpu {BOARD} --freqs 900 --campaign {campaign} --sensor {place.sensor} --out {out} -q --json") == 0
    return row_ids(out)


def cut_short(place, blow, **changes):
    """A job that a blow at its daemon cut short, and its dataset; one that was over before the blow is none, and another is begun."""
    for attempt in range(ATTEMPTS):
        out = f"d{attempt}.parquet"
        number = place.queue(place.campaign(MANY), out, **changes)
        daemon = place.start()
        until(lambda number=number: place.job(number).rows >= 2, "some rows are measured")
        blow(number, daemon)
        if place.job(number).state != "done" and log_path(place.folder / out).is_file():
            return number, place.folder / out
        until(lambda: not place.overview().running, "the daemon has ended")
    raise AssertionError(f"{ATTEMPTS} jobs were over before the daemon could be stopped")


def test_a_daemon_killed_in_the_middle_goes_on_with_the_same_rows(place):
    def kill(_number, daemon):
        daemon.kill()
        daemon.communicate()
        until(lambda: not workers(place.folder), "the worker ends by itself when its daemon is dead")

    number, out = cut_short(place, kill)
    log = read_log(log_path(out))
    assert 2 <= log.table.num_rows <= MANY
    # As if it had not ended yet; a process that ends loses its command line before its locks.
    leftover = until(lambda: locked(worker_lock_path(place.state, BOARD)), "the worker's lock is free")
    second = place.start()
    until(lambda: f"runs as process {second.pid}\n" in (place.state / "daemon.log").read_text(), "the daemon runs")
    time.sleep(0.6)  # three looks into the queue
    assert place.job(number).state == "queued"
    os.close(leftover)
    job = place.wait_for(number, "done")
    assert job.rows == job.total == MANY
    assert job.exit_status == 0
    rows = row_ids(out)
    assert len(set(rows)) == len(rows)
    assert rows == undisturbed(place, str(place.folder / "tiny.toml"))
    place.end(second)


def test_sigterm_drains_after_the_running_kernel_and_the_next_daemon_goes_on_with_what_is_left_of_the_budget(place):
    budget_s = 20.0
    later = []

    def terminate(_number, daemon):
        later.append(place.queue(place.campaign(FEW, "later.toml"), f"later{len(later)}.parquet"))
        assert "draining" in place.end(daemon)

    number, out = cut_short(place, terminate, budget_s=budget_s)
    job = place.job(number)
    assert (job.state, job.cause) == ("queued", "drained")
    assert place.job(later[-1]).state == "queued"
    log = read_log(log_path(out))
    assert log.whole_bytes == log_path(out).stat().st_size
    assert log.table.num_rows == job.rows
    until(lambda: not workers(place.folder), "the worker has ended")
    assert called(f"stop {later[-1]} --config {place.config}") == 0
    second = place.start()
    over = place.wait_for(number, "done")
    assert 0.0 < job.used_s <= over.used_s <= budget_s + LAST_REST_S
    assert over.used_s > job.used_s or job.used_s > budget_s / 2.0, "what was left is too little for a kernel only after a late blow"
    assert job.rows <= over.rows < MANY
    place.end(second)


def test_stop_ends_one_job_of_two_boards_and_a_second_sigterm_all_at_once_and_no_finished_row_is_lost(place):
    place.configure(BOARD, OTHER_BOARD)
    campaign = place.campaign(ENDLESS)
    first, second = place.queue(campaign, "a.parquet"), place.queue(campaign, "b.parquet", board=OTHER_BOARD)
    process = place.start()
    until(lambda: place.job(first).rows >= 2 and place.job(second).rows >= 2, "both measure")
    assert told(f"stop {first} --config {place.config}")[0].startswith(f"job {first}: ")
    stopped = place.wait_for(first, "cancelled")
    assert "--resume" in stopped.message
    figures = {board.board: (board.job, board.sm_clock_mhz, board.power_w) for board in place.overview().boards}
    assert figures[OTHER_BOARD] == (second, pytest.approx(900, abs=15), pytest.approx(100, abs=90))
    assert read_log(log_path(place.folder / "a.parquet")).table.num_rows == stopped.rows
    assert place.job(second).state == "running"
    worker = place.worker_of(second)
    os.kill(worker, signal.SIGSTOP)  # a kernel that takes long
    process.send_signal(signal.SIGTERM)
    until(lambda: place.overview().daemon.draining, "the daemon drains")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    os.kill(worker, signal.SIGCONT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert place.job(second).state == "queued"
    assert read_log(log_path(place.folder / "b.parquet")).table.num_rows >= 2


def test_a_full_disk_makes_a_job_wait_until_there_is_room(place):
    small = place.folder / "small"
    small.mkdir()
    mounted = ended("mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", small)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        number = place.queue(place.campaign(MANY), "small/d.parquet")
        process = place.start()
        full = place.waiting(number, "disk_full")
        assert full.state == "queued"
        assert "no space" in full.message.lower()
        assert ended("mount", "-o", "remount,size=8m", small).returncode == 0
        assert place.wait_for(number, "done").rows == MANY
        assert len(set(row_ids(small / "d.parquet"))) == MANY
        place.end(process)
    finally:
        place.close()  # a process that ends loses its command line before its files
        until(lambda: ended("umount", small).returncode == 0, "the disk is nobody's")


def test_a_worker_that_hangs_or_dies_is_noticed_and_its_job_goes_on(place):
    # More retries than it needs: on a machine that is held up, a sound worker may be silent for so long, too.
    place.configure(BOARD, hang_s=4.0, retries=ATTEMPTS)
    number = place.queue(place.campaign(ENDLESS), "d.parquet")
    process = place.start()
    until(lambda: place.job(number).rows >= 2, "some rows are measured")
    hung = place.worker_of(number)
    os.kill(hung, signal.SIGSTOP)
    place.worker_of(number, other_than=hung)
    before = place.job(number).rows
    until(lambda: place.job(number).rows > before and place.job(number).attempts == 1, "a new row forgives the first failure")
    dead = place.worker_of(number)
    os.kill(dead, signal.SIGKILL)
    place.worker_of(number, other_than=dead)
    before = place.job(number).rows
    until(lambda: place.job(number).rows > before, "a new row comes after the second one")
    place.end(process)
    rows = read_log(log_path(place.folder / "d.parquet")).table.column("row_id").to_pylist()
    assert len(set(rows)) == len(rows) == place.job(number).rows


def test_jobs_run_by_priority_one_that_cannot_be_measured_fails_alone_and_status_logs_and_stop_speak_of_them(place):
    config, campaign = ["--config", str(place.config)], place.campaign(FEW)
    (place.folder / "gone").mkdir()
    late, broken = place.queue(campaign, "late.parquet"), place.queue(campaign, "gone/d.parquet", priority=1)
    first = place.submit(place.campaign(FEW, "copied.toml"), "first.parquet", "--priority", "7")
    (place.folder / "gone").rmdir()
    (place.folder / "copied.toml").unlink()  # later changes to the file change no queued job
    process = place.start()
    for number in (late, first):
        assert place.wait_for(number, "done").rows == FEW
    failed = place.job(broken)
    assert (failed.state, failed.attempts, failed.cause, failed.exit_status) == ("failed", 1, "", 1)
    assert "no folder" in failed.message
    assert sorted((late, broken, first), key=lambda number: place.job(number).started_unix_s) == [first, broken, late]
    lines = (place.state / "logs" / f"job-{first}.log").read_text().splitlines()
    assert "softmax.softmax.fp32 900 MHz" in "".join(lines)
    assert f"done: {FEW} rows of {FEW} planned" in lines[-1]
    document = answer("status", *config)
    assert (document["daemon"]["running"], document["daemon"]["pid"]) == (True, process.pid)
    assert document["counts"]["done"] == 2
    job = next(job for job in document["jobs"] if job["id"] == first)
    assert (job["state"], job["done"], job["total"], job["rows"], job["refused"], job["eta_s"]) == ("done", FEW, FEW, FEW, 0, None)
    until(lambda: answer("status", *config)["boards"][0]["job"] == 0, "the board is free")
    (board,) = answer("status", *config)["boards"]
    assert [board[name] for name in ("board", "sm_clock_mhz", "power_w", "temperature_c")] == [BOARD, None, None, None]
    refused(1, "another daemon", "daemon", *config)
    assert called("stop", "--daemon", *config) == 0
    assert process.wait(DEADLINE_S) == 0
    assert "daemon has ended" in (place.state / "daemon.log").read_text()


UUID = board_uuid()


@pytest.mark.parametrize(
    "change, reason",
    [
        ("/etc/passwd", "passwd"),
        ("--out /nowhere/d.parquet", "no folder"),
        ("--out there.parquet", "exists"),
        (f"--sensor none.json --gpu {BOARD},{OTHER_BOARD}", "belong to one board"),
    ],
)
def test_a_submission_that_cannot_be_is_one_line_and_queues_nothing(change, reason, place, monkeypatch):
    monkeypatch.chdir(place.folder)
    Path("there.parquet").touch()
    campaign = place.campaign(2) if change.startswith("--") else ""
    status = 2 if "one board" in reason else 1
    refused(status, reason, changed(f"submit {campaign} --gpu {BOARD} --freqs 900 --config {place.config}", change))
    assert place.overview().jobs == ()
    assert not (place.state / "campaigns").exists()


def test_a_submission_prints_its_plan_and_keeps_its_campaign_in_the_state_folder(place):
    (place.folder / "..x; rm -rf ~").mkdir()
    campaign = place.campaign(3, "..x; rm -rf ~/$(id) ä.toml")
    words = f"submit {shlex.quote(campaign)} --freqs 510,900 --config {place.config}"
    plans = answer(f"{words} --gpu {BOARD},{OTHER_BOARD} --out both --dry-run")
    assert [plan["rows"] for plan in plans] == [6, 6]
    assert place.overview().jobs == ()
    assert not Path("both").exists()
    out, err = told(f"{words} --gpu {BOARD} --out {place.folder / 'd.parquet'} --budget 90s --priority 3 --seed 5")
    assert "3 kernels (softmax 3)" in out
    assert "job 1 queued: $(id) ä" in out
    assert "no daemon runs" in err
    job = place.job(1)
    assert (job.budget_s, job.priority) == (90.0, 3)
    assert job.arguments[-2:] == ("--seed", "5")
    copy = Path(job.campaign)
    assert copy.resolve().is_relative_to(place.state)
    assert copy.name == "$(id) ä.toml"
    assert copy.read_text() == Path(campaign).read_text()
    assert told(f"stop 1 --config {place.config}")[0] == "job 1: cancelled\n"


def test_a_daemon_finds_its_settings_as_its_clients_do(place, monkeypatch):
    monkeypatch.setenv("WATTPRINT_CONFIG", str(place.config))
    assert str(place.state) in told("daemon --check")[0]


@pytest.mark.parametrize(
    "words, status, reason",
    [
        ("stop", 2, "name a job"),
        ("stop 7", 1, "no job 7"),
        ("stop --daemon", 1, "no daemon has run there"),
        ("daemon --check", 2, "--config"),
    ],
)
def test_orders_that_cannot_be_are_one_line(words, status, reason, place):
    place.overview()
    refused(status, reason, words if "check" in words else f"{words} --config {place.config}")


def test_without_any_state_there_are_no_jobs_and_nothing_is_made(place):
    config = f"--config {place.config}"
    out, err = told(f"status {config}")
    assert out == "no jobs\n"
    assert "no daemon runs" in err
    refused(1, "no daemon has ever run", f"stop 1 {config}")
    assert answer(f"daemon --check {config}")["gpus"] == [BOARD]
    assert not place.state.exists()


def test_several_boards_measure_side_by_side_are_stopped_together_and_go_on(place):
    words = f"--gpu {BOARD},{OTHER_BOARD} --freqs 900 --campaign {place.campaign(6)}"
    for attempt in range(ATTEMPTS):
        out = place.folder / f"both-{attempt}"
        process = place.process(*words.split(), "--out", str(out), "-v")
        for line in process.stderr:
            if " 2/6 " in line:
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
        if process.returncode:
            break  # else the signal came too late: this process was held up, and all was measured
    assert process.returncode == 130
    until(lambda: not workers(place.folder), "the workers have ended")
    said, err = told(f"{words} --out {out} --resume --json -v")
    document = json.loads(said)
    assert document["dataset"] == f"{out}/"
    assert [board["exit_status"] for board in document["boards"]] == [0, 0]
    assert f"{OTHER_BOARD} 6/6" in err
    rows = row_ids(out)
    assert len(rows) == len(set(rows)) == 12
    assert len(set(read_kernel_dataset(out).table.column("gpu_uuid").to_pylist())) == 2


@pytest.mark.parametrize(
    "change, reason",
    [
        ("--record r", "--record belongs to one board"),
        ("--out file.parquet", "names a file"),
        ("--out new.parquet", "names a file"),
    ],
)
def test_several_boards_are_all_checked_before_one_begins(change, reason, place, monkeypatch):
    monkeypatch.chdir(place.folder)
    Path("file.parquet").touch()
    before = sorted(place.folder.iterdir())
    status = 2 if "one board" in reason else 1
    refused(status, reason, changed(f"--gpu {BOARD},{OTHER_BOARD} --freqs 900 --campaign quick --out both", change))
    assert sorted(place.folder.iterdir()) == before


def test_a_folder_of_an_earlier_campaign_goes_on_whatever_its_name(tmp_path):
    (tmp_path / "both.parquet").mkdir()
    assert common_root(str(tmp_path / "both.parquet")) == f"{tmp_path}/both.parquet/"


def test_a_real_board_is_left_alone_while_another_measures_and_its_clock_comes_back(place, tmp_path):
    boards = Boards(tmp_path / "boards")
    place.environment |= {"LD_LIBRARY_PATH": str(built(tmp_path)), "WATTPRINT_NVML_STUB": str(boards.path)}
    clocks = tmp_path / "clocks"
    clocks.mkdir(mode=0o700)
    record = {"gpu_uuid": UUID, "pid": 1, "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
    (clocks / f"{UUID}.clock.json").write_text(json.dumps(record))
    boards.set(lock_low=900, lock_high=900)
    place.configure("0")
    with claimed_board(UUID):
        number = place.queue(place.campaign(2), "d.parquet", board=UUID)
        process = place.start()
        assert f"process {os.getpid()} of user " in place.waiting(number, "board_busy").message
        until(lambda: boards.get("reset_calls") > 0, "the clock that a dead process left is given back")
    until(lambda: place.job(number).state == "failed" or place.job(number).cause != "board_busy", "the job is tried when the board is free")
    with open_store(place.state) as store:
        assert store.overview().boards[0].board == UUID
    place.end(process)


CLOCK_STEP_S = 1.0
"""The time of day may be set meanwhile by so much [s]."""


def daemon_was_there(place, *, silent_s, draining):
    """What a daemon writes of itself, so long ago."""
    with open_store(place.state) as store:
        store.daemon_started(4321, "1", "", [])
        store.daemon_beats(draining=draining)
    with sqlite3.connect(place.state / FILE_NAME) as connection:
        connection.execute("UPDATE daemon SET beat_unix_s = ?", (time.time() - silent_s,))
    connection.close()


@pytest.mark.parametrize(
    "runs, silent_s, draining, words",
    [
        (True, 1.5 * STALE_S, False, "process 4321, has said nothing for 90 s"),
        (True, 0.5 * STALE_S, False, ""),
        (False, 12.0, False, "process 4321, died without a word"),
        (False, 12.0, True, ""),
    ],
)
def test_status_flags_a_dead_and_a_hung_daemon_in_one_line(runs, silent_s, draining, words, place):
    since_s = time.time() - silent_s
    daemon_was_there(place, silent_s=silent_s, draining=draining)
    with daemon_lock(place.state) if runs else open_store(place.state):
        _, err = told(f"status --config {place.config}")
        document = answer(f"status --quiet --config {place.config}")
    complaint = document["daemon"]["complaint"]
    assert (words in complaint, bool(complaint)) == (True, bool(words))
    assert (complaint in err, err.count("\n")) == (True, 1 if words or not runs else 0)
    assert silent_s - CLOCK_STEP_S <= document["daemon"]["silent_s"] <= time.time() - since_s + CLOCK_STEP_S


def test_the_second_stop_ends_it_at_once_and_the_third_finds_it_done(place):
    words = f"stop --daemon --config {place.config}"
    place.overview()
    daemon_was_there(place, silent_s=0.0, draining=False)
    with daemon_lock(place.state):
        for said, asked in (("is draining; once more ends it at once", AFTER_ROW), ("ends at once", AT_ONCE)):
            assert told(words)[0] == f"the daemon {said}\n"
            assert place.overview().daemon.stop == asked
    assert told(words)[0] == "the daemon has ended before\n"
