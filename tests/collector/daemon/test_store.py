"""The queue: order, one writer a file, and a state file that is whole or refused."""

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.commands.submit import frozen_campaign
from collector.daemon.jobs import CANCELLED, QUEUED, RUNNING, Job
from collector.daemon.store import FILE_NAME, FORMAT, has_database, open_store
from collector.errors import DaemonError
from tests.processes import PYTHON, piped
from tests.words import one_line

REQUEST = Job(
    board="sim:a", campaign="quick", title="quick", arguments=("--freqs", "900"), out="/x/d.parquet",
    budget_s=None, fresh=False, priority=0,
)  # fmt: skip


def queued(store, out, **changes):
    return store.submit(replace(REQUEST, out=out, **changes))


@settings(max_examples=15)
@given(priorities=st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_jobs_leave_by_priority_then_in_the_order_of_their_coming(priorities, tmp_path_factory):
    with open_store(tmp_path_factory.mktemp("state")) as store:
        numbers = [queued(store, f"/x/{index}", priority=priority) for index, priority in enumerate(priorities)]
        left = []
        while (job := store.next_job("sim:a")) is not None:
            left.append(job.id)
            store.begin(job.id)
            store.end(job.id, "done", 0, "", "")
        assert left == [number for _, number in sorted(zip(priorities, numbers, strict=True), key=lambda pair: (-pair[0], pair[1]))]


def test_a_board_takes_its_own_jobs_alone_and_none_before_its_time(tmp_path):
    with open_store(tmp_path) as store:
        number = queued(store, "/x/a")
        assert store.next_job("sim:b") is None
        store.begin(number)
        store.requeue(number, "board_lost", "gone", 1e12, forget_attempt=False)
        assert store.next_job("sim:a") is None
        store.requeue(number, "board_lost", "gone", 0.0, forget_attempt=True)
        job = store.next_job("sim:a")
        assert job.attempts == 0


def test_two_open_jobs_never_write_to_one_file_but_may_to_one_folder(tmp_path):
    with open_store(tmp_path) as store:
        number = queued(store, "/x/d.parquet")
        with pytest.raises(DaemonError, match=f"job {number} writes there"):
            queued(store, "/x/d.parquet")
        store.ask_stop(number)
        queued(store, "/x/d.parquet")
        queued(store, "/x/folder/")
        queued(store, "/x/folder/")


def test_stop_cancels_what_waits_and_asks_what_runs_and_leaves_what_has_ended(tmp_path):
    with open_store(tmp_path) as store:
        first, second = queued(store, "/x/a"), queued(store, "/x/b")
        store.begin(first)
        store.ask_stop(second)
        assert store.job(second).state == CANCELLED
        for asked in (1, 2, 2):
            store.ask_stop(first)
            assert (store.job(first).state, store.job(first).stop) == (RUNNING, asked)
        store.end(first, "done", 0, "", "")
        assert store.ask_stop(first).state == "done"
        with pytest.raises(DaemonError, match="no job 99"):
            store.ask_stop(99)


def test_the_folder_is_its_owners_alone(tmp_path):
    with open_store(tmp_path / "s") as store:
        queued(store, "/x/a")
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "s").iterdir()}
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    assert modes
    assert not any(mode & 0o077 for mode in modes.values()), modes
    (tmp_path / "s").chmod(0o777)
    with pytest.raises(DaemonError, match="others may write there"), open_store(tmp_path / "s"):
        pass


def test_a_state_of_a_newer_version_or_another_program_is_refused(tmp_path):
    with open_store(tmp_path / "new") as store:
        store._connection.execute(f"PRAGMA application_id = {FORMAT + 1}")
    with pytest.raises(DaemonError, match="another program or release"), open_store(tmp_path / "new"):
        pass
    (tmp_path / "other").mkdir(mode=0o700)
    connection = sqlite3.connect(tmp_path / "other" / FILE_NAME)
    connection.execute("CREATE TABLE bookmarks (x)")
    connection.close()
    with pytest.raises(DaemonError, match="another program"), open_store(tmp_path / "other"):
        pass


def test_a_full_disk_is_one_line_and_what_was_written_stays(tmp_path):
    with open_store(tmp_path) as store:
        connection = store._connection
        first = queued(store, "/x/0")
        connection.execute("PRAGMA max_page_count = 20")
        with pytest.raises(DaemonError, match="full"):
            [queued(store, f"/x/{index}") for index in range(1, 2000)]
        assert not connection.in_transaction
        connection.execute("PRAGMA max_page_count = 2000")
        assert store.job(first).state == QUEUED
        queued(store, "/x/again")


MAKER = """
import sys
from pathlib import Path
from collector.daemon.store import open_store
from collector.errors import DaemonError
sys.stdin.readline()
try:
    with open_store(Path(sys.argv[1])) as store:
        print(len(store.overview().jobs))
except DaemonError as error:
    print(error)
"""


def test_processes_that_all_find_no_queue_make_one_and_none_sees_it_half_made(tmp_path):
    folder = tmp_path / "state"
    makers = [piped(*PYTHON, MAKER, folder) for _ in range(4)]
    for maker in makers:
        maker.stdin.write("now\n")
        maker.stdin.flush()
    assert [maker.communicate()[0] for maker in makers] == ["0\n"] * len(makers)


NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_state_folder_that_this_user_may_not_enter_is_not_taken_for_an_empty_one(tmp_path):
    folder = tmp_path / "s"
    assert not has_database(folder)
    assert not has_database(Path(__file__))
    with open_store(folder):
        assert has_database(folder)
    os.seteuid(NOBODY)
    try:
        with one_line(DaemonError, "run the command as the daemon's user"):
            has_database(folder)
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("campaign", ["quick", "own.toml"])
def test_root_leaves_nothing_in_the_folder_of_another_users_daemon(tmp_path, tiny_file, campaign):
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, -1)
    with pytest.raises(DaemonError, match="run the command as that user"):
        frozen_campaign(folder, campaign if campaign == "quick" else str(tiny_file))
    assert list(folder.iterdir()) == []
