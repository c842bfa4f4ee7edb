"""One process at a time writes a dataset: on this host and on others, whatever died before."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from collector.dataset import DatasetError
from collector.dataset.claim import SILENT_S, claim_path, claimed

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
    assert (str(path) in str(caught.value)) == ("host" in left)
    assert "\n" not in str(caught.value)
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"host": 1}', b"\xff"])
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
