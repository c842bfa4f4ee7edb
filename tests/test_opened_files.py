"""Files that users name are opened in one place: everything else that opens a path is listed here with its reason."""

import ast
import os
import socket
from pathlib import Path

import pytest

from estimator.vocabulary.regular_files import open_regular, read_regular
from tests.fuzz.examples import EXAMPLES

ROOT = Path(__file__).parents[1]
PACKAGES = ("estimator", "collector", "fitter", "microbench")
OPENERS = {
    "open",
    "read_text",
    "read_bytes",
    "ParquetFile",
    "read_schema",
    "read_metadata",
    "read_table",
    "read_csv",
    "open_csv",
    "loadtxt",
    "connect",
}

ALLOWED = {
    "estimator/vocabulary/regular_files.py",  # the one place
    "estimator/tracing/calls.py",  # data of the package
    "estimator/vocabulary/specifications.py",  # data of the package
    "estimator/serve/server.py",  # the page's own files
    "estimator/vocabulary/whole_file.py",  # a folder, to sync it
    "collector/daemon/log_file.py",  # its own log, opened to write
    "collector/daemon/server.py",  # the page's token in the daemon's own folder; the page's own style
    "collector/daemon/store.py",  # SQLite's own file; a folder, to lock it
    "collector/dataset/writer.py",  # the writer's own log
    "collector/dataset/parquet.py",  # a stream; /proc
    "collector/dataset/reader.py",  # the first bytes of a file that was looked at
    "collector/devices/board_claim.py",  # /proc
    "collector/devices/clock_helper.py",  # /proc
    "collector/devices/file_lock.py",  # a lock, opened to write
    "collector/devices/clock_record.py",  # /proc
    "collector/pmd/recording.py",  # lines
    "collector/programs/kernels.py",  # what the measured program wrote into a folder of ours
    "collector/recordings/readings.py",  # bytes
    "collector/replay/recording.py",  # gzip, of a stream
    "fitter/instructions/published.py",  # data of the package
    "fitter/rows/tables.py",  # bytes
    "microbench/kernel.py",  # data of the package
    "microbench/families/catalogue.py",  # data of the package
    "microbench/toolchain/compile.py",  # what the assembler wrote into a folder of ours
    "microbench/runners/cupy_device.py",  # /proc
}


def openings(path):
    """Names of the calls in a file that open a path, but for those whose mode writes alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
        name = "" if name == "connect" and "sqlite3" not in ast.unparse(node.func) else name  # a socket
        words = [item.value for item in (*node.args, *(word.value for word in node.keywords)) if isinstance(item, ast.Constant)]
        modes = [word for word in words if isinstance(word, str) and word.strip("bt") in ("w", "x", "a")]
        if name in OPENERS and not modes:
            yield name


def test_no_other_place_opens_what_a_user_names():
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in files if any(openings(path))}
    assert found == ALLOWED, "open paths with estimator.vocabulary.regular_files, or state here why not"


COPIED = {"stamps", "queue"}
"""Kinds whose file the example itself copies or moves."""


@pytest.mark.parametrize("reader", sorted({*EXAMPLES, "folder"} - COPIED))
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_what_is_no_file_is_refused_at_once_in_one_line(reader, kind, tmp_path, monkeypatch, capsys):
    example = EXAMPLES["dataset" if reader == "folder" else reader](tmp_path)
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    path = tmp_path / "own" / f"input{example.suffix}"
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            listening.bind(path.name)  # a whole path may be too long
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
        capsys.readouterr()
        assert example.run(path.parent if reader == "folder" else path) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_is_read_up_to_its_limit_and_no_further(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(path, 4)
    (tmp_path / "link").symlink_to(path)
    assert read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(tmp_path / "link", 5, follow=False)
    with pytest.raises(OSError, match="no file has such a name"):
        read_regular("a\0b", 5)
    assert read_regular("/proc/self/status", 1 << 20).startswith(b"Name")


def test_a_pipe_that_the_process_was_given_is_read_to_its_end():
    for size, most in ((1000, 1000), (1000, 999)):
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as stream:
            stream.write(b"x" * size)
        if size <= most:
            assert read_regular(f"/dev/fd/{reading}", most) == b"x" * size
        else:
            with pytest.raises(OSError, match="larger than"):
                read_regular(f"/dev/fd/{reading}", most)
        os.close(reading)
