"""Files that users name are opened in one place: everything else that opens a path is listed here with its reason."""

import ast
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collector.campaigns.files import load_campaign
from collector.daemon.settings import read_settings
from collector.dataset import read_kernel_dataset
from collector.errors import CollectorError
from collector.privileged.settings import read_settings as read_helper_settings
from collector.recordings.loads import read_load
from collector.recordings.readings import read_readings
from collector.recordings.reference import read_reference
from collector.replay.recording import open_recording
from collector.sensing.calibration import load_calibration
from collector.simulated.profile import load_board
from estimator.bundle.files import load_bundle
from estimator.counts.activities import read_activities
from estimator.counts.tables import load_energy_table
from estimator.formats import read_workload
from estimator.tracing.models import load_model_config
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.regular_files import open_regular, read_regular
from estimator.vocabulary.specifications import load_gpu
from fitter.errors import FitterError
from fitter.release.signatures import verify
from fitter.rows.selection import read_selection

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

ALLOWED = Counter(
    {
        ("estimator/vocabulary/regular_files.py", "open"): 2,  # the one place
        ("estimator/tracing/calls.py", "read_text"): 1,  # data of the package
        ("estimator/serve/server.py", "read_bytes"): 3,  # the page's own files
        ("estimator/vocabulary/whole_file.py", "open"): 1,  # a folder, to sync it
        ("collector/daemon/log_file.py", "open"): 1,  # its own log, opened to write
        ("collector/daemon/server.py", "open"): 2,  # the page's token in the daemon's own folder
        ("collector/daemon/server.py", "read_bytes"): 1,  # the page's own style
        ("collector/daemon/store.py", "connect"): 1,  # SQLite's own file
        ("collector/daemon/store.py", "open"): 1,  # a folder, to lock it
        ("collector/dataset/log.py", "open"): 3,  # the writer's own log
        ("collector/dataset/parquet.py", "ParquetFile"): 1,  # a stream
        ("collector/dataset/parquet.py", "read_text"): 1,  # /proc
        ("collector/dataset/reader.py", "open"): 1,  # the first bytes of a file that was looked at
        ("collector/dataset/partition.py", "read_bytes"): 1,  # the part that this process has written
        ("collector/devices/board_claim.py", "read_text"): 1,  # /proc
        ("collector/devices/clock_helper.py", "read_text"): 1,  # /proc
        ("collector/devices/file_lock.py", "open"): 2,  # a lock, opened to write
        ("collector/sensing/catalogue.py", "read_text"): 1,  # data of the package
        ("collector/devices/clock_record.py", "read_text"): 1,  # /proc
        ("collector/pmd/recording_files.py", "loadtxt"): 1,  # lines
        ("collector/recordings/columns.py", "read_csv"): 1,  # bytes
        ("collector/replay/recording.py", "open"): 1,  # gzip, of a stream
        ("fitter/instructions/published.py", "read_text"): 1,  # data of the package
        ("fitter/rows/tables.py", "read_csv"): 1,  # bytes
        ("microbench/families/rows.py", "read_text"): 1,  # data of the package
        ("microbench/families/templates.py", "read_text"): 1,  # data of the package
        ("microbench/toolchain/compile.py", "read_bytes"): 1,  # what the assembler wrote into a folder of ours
        ("microbench/runners/cupy_device.py", "read_text"): 1,  # /proc
    }
)


def openings(path: Path) -> Iterator[str]:
    """Names of the calls in a file that open a path, but for those whose mode writes alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
        name = "" if name == "connect" and "sqlite3" not in ast.unparse(node.func) else name  # a socket
        words = [item.value for item in (*node.args, *(word.value for word in node.keywords)) if isinstance(item, ast.Constant)]
        modes = [word for word in words if isinstance(word, str) and word.strip("bt") in ("w", "x", "a")]
        if name in OPENERS and not modes:
            yield name


def test_no_other_place_opens_what_a_user_names() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = Counter((path.relative_to(ROOT).as_posix(), name) for path in files for name in openings(path))
    assert found == +ALLOWED, "open paths with estimator.vocabulary.regular_files, or state here why not"


READERS: dict[str, Callable[[Path], object]] = {
    "bundle": load_bundle,
    "workload": read_workload,
    "gpu": lambda path: load_gpu(f"{path}"),
    "energies": lambda path: load_energy_table(f"{path}"),
    "counts": lambda path: read_activities(path, "sass"),
    "model": lambda path: load_model_config(f"{path}"),
    "dataset": read_kernel_dataset,
    "folder": lambda path: read_kernel_dataset(path.parent),
    "fit": lambda path: read_selection([path]),
    "fit of a folder": lambda path: read_selection([path.parent]),
    "key": lambda path: verify(ROOT / "bundles" / "a10-eager.json", path, str(path)),
    "campaign": lambda path: load_campaign(f"{path}"),
    "board": lambda path: load_board(f"{path}"),
    "sensor": load_calibration,
    "readings": read_readings,
    "load": read_load,
    "reference": read_reference,
    "recording": lambda path: open_recording(path).__enter__(),
    "daemon": read_settings,
    "helper": read_helper_settings,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_what_is_no_file_is_refused_at_once_in_one_line(reader: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dataset.parquet"
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            listening.bind(path.name)  # a whole path may be too long
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
        with pytest.raises((EstimatorError, CollectorError, FitterError)) as refused:
            READERS[reader](path)
    assert "\n" not in str(refused.value)


def test_a_file_is_read_up_to_its_limit_and_no_further(tmp_path: Path) -> None:
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


def test_a_pipe_that_the_process_was_given_is_read_to_its_end() -> None:
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
