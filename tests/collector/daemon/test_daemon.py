"""The daemon with real processes: what is queued gets measured, whatever dies in between."""

import os
import signal
import time

import pytest

from collector.cli import main
from collector.daemon.store import locked, worker_lock_path
from collector.dataset.reader import log_path, read_log
from tests.collector.daemon.conftest import ATTEMPTS, BOARD, ENDLESS, OTHER_BOARD, row_ids, workers
from tests.collector.steady import DEADLINE_S, until
from tests.processes import ended
from tests.words import answer, called, refused, told

MANY = 30
FEW = 4
LAST_REST_S = 5.0
"""Power at rest is measured once more after the last kernel, whatever the budget."""


def undisturbed(place, campaign):
    """The rows that `collect` itself measures."""
    out = place.folder / "undisturbed.parquet"
    words = f"--gpu {BOARD} --freqs 900 --campaign {campaign} --sensor {place.sensor} --out {out} -q --json".split()
    assert main(words) == 0
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
    until(lambda: (place.state / "daemon.log").read_text().count("runs as process") == 2, "the daemon runs")
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
    (board,) = document["boards"]
    assert board["board"] == BOARD
    assert board["sm_clock_mhz"] == pytest.approx(900, abs=15)
    refused(1, "another daemon", "daemon", *config)
    assert main(["stop", "--daemon", *config]) == 0
    assert process.wait(DEADLINE_S) == 0
    assert "daemon has ended" in (place.state / "daemon.log").read_text()
