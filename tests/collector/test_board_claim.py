"""A board is one process's at a time, whoever asks, and no user whom root has not let in can hold one."""

import grp
import os
import shutil
import signal
import socket
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from collector.devices.board_claim import CLAIM_PREFIX, SHARED_FOLDER, board_is_claimed, claimed_board
from collector.devices.file_lock import user_name
from collector.errors import BoardBusyError, DeviceError

UUID = f"GPU-test-{os.getpid()}"
ALICE, BOB, MALLORY = 65001, 65002, 65003
MEMBERS = grp.getgrgid(1)
NOWHERE = Path("/nowhere/boards")

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


@pytest.fixture
def shared():
    """A folder as packaging/wattprint-boards.tmpfiles.conf makes it, for members of a group."""
    around = Path(tempfile.mkdtemp(prefix="wp-"))
    folder = around / "boards"
    folder.mkdir()
    around.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(folder, 0, MEMBERS.gr_gid)
    folder.chmod(0o3770)
    yield folder
    shutil.rmtree(around)


@contextmanager
def holder(folder, uid, *, member=True, name=""):
    """A process of a user that claims a board and keeps it, or that merely holds a socket's name: its number, and "mine" or why not."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.umask(0o077)
            if uid != os.geteuid():
                os.setgroups([MEMBERS.gr_gid] if member else [])
                os.setgid(uid)
                os.setuid(uid)
            if name:
                end = socket.socket(socket.AF_UNIX)
                end.bind(name)
                end.listen()
                os.write(writing, b"mine")
                signal.pause()
            try:
                with claimed_board(UUID, folder):
                    os.write(writing, b"mine")
                    signal.pause()
            except DeviceError as error:
                os.write(writing, str(error).encode())
        finally:
            os._exit(1)
    try:
        os.close(writing)
        yield pid, os.read(reading, 4096).decode()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)


@pytest.mark.parametrize("with_folder", [True, False])
def test_a_board_is_claimed_once_by_one_user_and_free_when_its_process_is_killed(with_folder, shared):
    folder = shared if with_folder else NOWHERE
    with holder(folder, os.geteuid()) as (pid, said):
        assert said == "mine"
        expected = f"process {pid} of user {user_name(os.geteuid())} measures on {UUID} now"
        with pytest.raises(BoardBusyError, match=expected), claimed_board(UUID, folder):
            pass
    with claimed_board(UUID, folder), pytest.raises(BoardBusyError, match=f"process {os.getpid()} "), claimed_board(UUID, folder):
        pass
    with claimed_board(UUID, folder):
        assert board_is_claimed(UUID) == (folder == NOWHERE and not SHARED_FOLDER.is_dir())


@only_root
@pytest.mark.parametrize("with_folder", [True, False])
def test_campaigns_of_two_users_exclude_each_other(with_folder, shared):
    folder = shared if with_folder else NOWHERE
    with holder(folder, ALICE) as (pid, said):
        assert said == "mine"
        with holder(folder, BOB) as (_, told):
            assert told.startswith(f"process {pid} of user {ALICE} measures on {UUID} now")
            assert "\n" not in told
    with holder(folder, BOB) as (_, said):
        assert said == "mine", "a file that one member made can be locked by the next"


@only_root
@pytest.mark.parametrize("change", [os.unlink, lambda path: os.rename(path, f"{path}.away")])
def test_no_member_removes_the_claim_of_another(change, shared):
    with holder(shared, ALICE) as (_, said):
        assert said == "mine"
        pid = os.fork()
        if pid == 0:
            os.setgroups([MEMBERS.gr_gid])
            os.setuid(BOB)
            try:
                change(str(shared / f"{UUID}.lock"))
            except PermissionError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0


@only_root
@pytest.mark.parametrize("make", [os.mkdir, lambda path: os.symlink("/nowhere", path)])
def test_what_stands_at_a_locks_name_is_named_with_its_user(make, shared):
    path = str(shared / f"{UUID}.lock")
    make(path)
    os.chown(path, ALICE, -1, follow_symlinks=False)
    with holder(shared, BOB) as (_, told):
        assert told.startswith(f"{path} of user {ALICE} is no lock")


@only_root
def test_where_root_has_made_the_folder_no_other_user_can_hold_a_board(shared):
    with holder(shared, MALLORY, name=CLAIM_PREFIX + UUID) as (_, named), holder(shared, MALLORY, member=False) as (_, told):
        assert named == "mine"
        assert "this user may not claim boards" in told
        assert f"add you to group {MEMBERS.gr_name}" in told
        with holder(shared, ALICE) as (_, said):
            assert said == "mine"


def test_the_packaged_folder_is_the_one_that_is_looked_for(repository):
    (line,) = (repository / "packaging" / "wattprint-boards.tmpfiles.conf").read_text().splitlines()[1:]
    assert line.split() == ["d", str(SHARED_FOLDER), "3770", "root", "wattprint-boards", "-"]
    assert "g wattprint-boards -" in (repository / "packaging" / "wattprint-boards.sysusers.conf").read_text().splitlines()
    unit = (repository / "packaging" / "wattprint-collect.service").read_text()
    assert f"ReadWritePaths=-/srv/wattprint -{SHARED_FOLDER}" in unit.splitlines()
