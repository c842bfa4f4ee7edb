"""One process at a time writes a dataset: on this host and on others, whatever died before."""

import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.dataset import DatasetError, claimed_dataset
from collector.dataset.claim import SILENT_S, claim_path, claimed
from collector.dataset.leftovers import part_path
from collector.dataset.log import log_path
from collector.dataset.traces import running_traces_path

OURS = {
    "host": socket.gethostname(),
    "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip() if Path("/proc").exists() else "",
    "space": os.readlink("/proc/self/ns/pid") if Path("/proc/self/ns/pid").exists() else "",
    "pid": os.getpid(),
    "started": "",
    "token": "t",
}


def leave_claim(output: Path, age_s: float = 0.0, **changes: Any) -> Path:
    """A claim that somebody left."""
    path = claim_path(output)
    path.write_text(json.dumps({**OURS, **changes}))
    seen = path.stat().st_mtime - age_s
    os.utime(path, (seen, seen))
    return path


def test_a_claim_goes_with_its_block(tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    with claimed(output) as claim:
        claim.renew()
        assert claim_path(output).is_file()
    assert list(tmp_path.iterdir()) == []


def test_two_cannot_have_it(tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    with claimed(output), pytest.raises(DatasetError, match=rf"process {os.getpid()} on"), claimed(output):
        pass
    with claimed(output):
        pass


@pytest.mark.parametrize(
    "left",
    [
        {"pid": 2**22 + 5},  # no such process
        {"started": "1"},  # the number belongs to another process by now
        {"boot": "another"},  # the machine was started anew
        {"host": "elsewhere", "boot": "b", "age_s": SILENT_S + 60.0},  # another host, silent for long
    ],
)
def test_what_a_dead_process_left_is_taken_over(tmp_path: Path, left: dict[str, Any]) -> None:
    output = tmp_path / "d.parquet"
    leave_claim(output, **left)
    with claimed(output):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", [{"host": "elsewhere", "boot": "b"}, {"space": "pid:[1]"}])
def test_a_process_that_cannot_be_seen_from_here_may_be_alive(tmp_path: Path, left: dict[str, Any]) -> None:
    output = tmp_path / "d.parquet"
    path = leave_claim(output, **left)
    with pytest.raises(DatasetError, match="another campaign is writing there") as caught, claimed(output):
        pass
    assert f"if that {'host' if 'host' in left else 'process'} is gone, remove {path}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path] == list(tmp_path.iterdir())


HAND_MADE = [json.dumps({**OURS, "pid": pid}).encode() for pid in (0, -1, 2**31, 10**23)]
HAND_MADE += [HAND_MADE[0].replace(b'"pid": 0', b'"pid": 1e400'), b"[" * 100_000, b" " * 5000 + json.dumps(OURS).encode()]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"host": 1}', b"\xff", *HAND_MADE])
def test_a_claim_that_nobody_finished_is_soon_nobodys(tmp_path: Path, content: bytes) -> None:
    output = tmp_path / "d.parquet"
    path = claim_path(output)
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="another campaign"), claimed(output):
        pass
    old = path.stat().st_mtime - 3600.0
    os.utime(path, (old, old))
    with claimed(output):
        pass


def test_only_ones_own_claim_is_removed(tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    with claimed(output):
        path = leave_claim(output, host="elsewhere")
    assert path.is_file()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError), claimed(tmp_path / "no" / "d.parquet"):  # noqa: PT011
        pass


DEAD = {"pid": 2**22 + 5}


@pytest.mark.parametrize("ending", ["token.new", "1a2b3c4d.dead"])
def test_what_a_process_left_that_died_while_it_took_a_claim_is_removed(tmp_path: Path, ending: str) -> None:
    output = tmp_path / "d.parquet"
    (tmp_path / f"{claim_path(output).name}.{ending}").write_text(json.dumps({**OURS, **DEAD}))
    neighbour = tmp_path / f".d.parquet.x.writer.{ending}"
    neighbour.write_text(json.dumps({**OURS, **DEAD}))
    with claimed(output):
        pass
    assert list(tmp_path.iterdir()) == [neighbour]


def test_what_a_living_process_is_about_to_claim_with_stays(tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    others = [tmp_path / f"{claim_path(output).name}.{ending}" for ending in ("token.new", "1a2b3c4d.now", "half.new")]
    for path, content in zip(others, (json.dumps(OURS), "", "{"), strict=True):
        path.write_text(content)
    with claimed(output):
        pass
    assert sorted(tmp_path.iterdir()) == sorted(others)
    for path in others[1:]:  # of which nobody can tell whose they are: soon nobody's
        os.utime(path, (path.stat().st_mtime - 60.0,) * 2)
    with claimed(output):
        pass
    assert list(tmp_path.iterdir()) == others[:1]


def test_a_claim_that_was_taken_away_is_put_back(tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    with claimed(output) as claim:
        claim_path(output).unlink()
        claim.renew()
        assert claim_path(output).is_file()
        with pytest.raises(DatasetError, match="another campaign"), claimed(output):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_was_taken_for_dead_writes_no_more(tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    with claimed(output) as claim:
        path = leave_claim(output, host="elsewhere")
        with pytest.raises(DatasetError, match="on elsewhere writes there now") as caught:
            claim.renew()
        assert "\n" not in str(caught.value)
    assert path.is_file()


@pytest.fixture(params=[0, errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def hard_links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system with hard links (0), and those without as they say so: FAT, SMB and SSHFS among them."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    if request.param:
        monkeypatch.setattr(os, "link", refused)


@pytest.mark.usefixtures("hard_links")
def test_with_hard_links_and_without_one_process_has_the_claim(tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    with claimed(output) as claim:
        claim.renew()
        with pytest.raises(DatasetError, match=rf"process {os.getpid()} on"), claimed(output):
            pass
        claim_path(output).unlink()
        claim.renew()
        assert claim_path(output).is_file()
    assert list(tmp_path.iterdir()) == []
    leave_claim(output, **DEAD)
    with claimed(output):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("hard_links")
def test_a_claim_that_was_taken_away_by_mistake_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "d.parquet"
    path = leave_claim(output, **DEAD)
    rename = os.rename

    def overtaken(old: Path, new: Path) -> None:
        """Between the judgement of a dead claim and its removal a living process puts its own there."""
        monkeypatch.setattr(os, "rename", rename)
        leave_claim(output, host="elsewhere", boot="b")
        rename(old, new)

    monkeypatch.setattr(os, "rename", overtaken)
    with pytest.raises(DatasetError, match="on elsewhere"), claimed(output):
        pass
    assert json.loads(path.read_bytes())["host"] == "elsewhere"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_whose_answer_was_lost_is_known_for_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, link = tmp_path / "d.parquet", os.link

    def asked_twice(*names: Any, **options: Any) -> None:
        link(*names, **options)
        link(*names, **options)  # NFS asks again where no answer came: the name is taken

    monkeypatch.setattr(os, "link", asked_twice)
    with claimed(output) as claim:
        claim.renew()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/null", "nowhere", "itself"])
def test_a_link_in_the_place_of_a_claim_is_nobodys_and_is_not_followed(tmp_path: Path, target: str) -> None:
    output = tmp_path / "d.parquet"
    path = claim_path(output)
    path.symlink_to(path if target == "itself" else target)
    os.utime(path, (0.0, 0.0), follow_symlinks=False)
    with claimed(output):
        assert not path.is_symlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_in_the_place_of_a_claim_is_named_and_stays(tmp_path: Path, make: Callable[[Path], None]) -> None:
    output = tmp_path / "d.parquet"
    path = claim_path(output)
    make(path)
    with pytest.raises(DatasetError) as caught, claimed_dataset(output):
        pass
    assert str(caught.value) == f"{path} is in the way of this dataset's claim; remove it"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
@pytest.mark.parametrize("name", [".d.parquet.writer.abc.dead", ".d.parquet.writer.t.new", ".d.parquet.abcdefgh.part"])
def test_what_is_no_file_among_leftovers_is_somebody_elses(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    foreign = tmp_path / name
    make(foreign)
    os.utime(foreign, (0.0, 0.0))
    with claimed_dataset(tmp_path / "d.parquet"):
        pass
    assert list(tmp_path.iterdir()) == [foreign]


@pytest.mark.parametrize("place", [lambda output: part_path(log_path(output)), running_traces_path])
def test_a_folder_where_a_log_or_traces_have_to_be_is_named(tmp_path: Path, place: Callable[[Path], Path]) -> None:
    output = tmp_path / "d.parquet"
    foreign = place(output)
    foreign.mkdir()
    with pytest.raises(DatasetError) as caught, claimed_dataset(output):
        pass
    assert str(caught.value) == f"{foreign} is in the way of this dataset; remove it"
    assert list(tmp_path.iterdir()) == [foreign]
