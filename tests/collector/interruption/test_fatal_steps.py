"""A campaign that is killed before any one of its changes to files: nothing of it is left behind, lost or doubled once it goes on.

Random blows (`benchmarks/kill_campaign.py`) hit the long steps; here every step is hit once.
"""

import multiprocessing
import os
import shutil
import sys
from pathlib import Path

import pytest

from collector.dataset.reader import read_kernel_dataset
from tests.collector.campaigns import ONE_SOFTMAX, SHORT_HEAD, campaign_words
from tests.words import called

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

STEPS = frozenset({"os.rename", "os.link", "os.remove", "os.mkdir", "os.utime", "os.truncate"})
"""Audit events of calls that change files' names and lengths (docs.python.org/3/library/audit_events.html)."""
CHANGING = os.O_CREAT | os.O_WRONLY | os.O_RDWR
"""Flags of `open` with which it may change a file too."""
FEWEST = 8
"""States of the folder that a campaign passes through at least."""


def files_of(folder):
    """What is below a folder: the content of each file, and None for a folder."""
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def measure_and_keep(words, folder, kept):
    """Measure, and copy a folder as a kill would leave it: before each step that changes a file in it, unless it is as before the last."""
    last, busy = None, False

    def step(event, arguments):
        nonlocal last, busy
        if busy or (event not in STEPS and not (event == "open" and arguments[2] & CHANGING)):
            return
        if any(isinstance(name, str | bytes | Path) and os.fsencode(name).startswith(os.fsencode(folder)) for name in arguments[:2]):
            busy = True
            if (found := files_of(folder)) != last:
                last = found
                shutil.copytree(folder, kept / f"{len(list(kept.iterdir())):03d}")
            busy = False

    sys.addaudithook(step)
    assert called(words) == 0


@pytest.mark.parametrize(
    "out, how",
    [("d.parquet", "--resume"), ("d.parquet", "--fresh"), ("fleet/", "--resume")],
    ids=["a file", "in place of another", "a part"],
)
def test_a_kill_before_any_step_leaves_nothing_behind(out, how, tmp_path, sensor_file):
    folder, kept = tmp_path / "data", tmp_path / "kept"
    words = f"{campaign_words(tmp_path, sensor_file, SHORT_HEAD + ONE_SOFTMAX, freqs='1200')} --out {folder}/{out} --quiet"

    def check_whole():
        """A dataset as an undisturbed campaign leaves it, and nothing beside it."""
        assert called(f"{words} --resume") == 0
        dataset = read_kernel_dataset(folder / out)
        assert dataset.table.num_rows == 1
        assert dataset.metadata["complete"]
        assert [path.suffix for path in folder.rglob("*") if path.is_file()] == [".parquet"]

    folder.mkdir()
    kept.mkdir()
    if how == "--fresh":
        check_whole()
    # A process of its own: what it leaves bears the number of one that is no more.
    process = multiprocessing.get_context("fork").Process(target=measure_and_keep, args=(f"{words} {how}", folder, kept))
    process.start()
    process.join()
    assert process.exitcode == 0
    left = sorted(kept.iterdir())
    assert len(left) >= FEWEST
    for state in left:
        shutil.rmtree(folder)
        shutil.copytree(state, folder)
        check_whole()
