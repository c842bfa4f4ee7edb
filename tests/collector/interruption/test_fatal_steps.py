"""A campaign that is killed before any one of its changes to files: nothing of it is left behind, lost or doubled once it goes on.

Random blows (`benchmarks/kill_campaign.py`) hit the long steps; here every step is hit once.
"""

import multiprocessing
import shutil
from dataclasses import replace

import pytest

from collector.dataset.reader import read_kernel_dataset
from tests.collector.campaigns import ONE_SOFTMAX, SHORT_HEAD
from tests.collector.interruption.fatal_step import Task, measure, measure_and_keep

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

FEWEST = 8
"""States of the folder that a campaign passes through at least."""


def check_whole(task):
    """A dataset as an undisturbed campaign leaves it, and nothing beside it."""
    dataset = read_kernel_dataset(task.output)
    assert dataset.table.num_rows == 1
    assert dataset.metadata["complete"]
    (file,) = (path for path in task.output.parent.rglob("*") if path.is_file())
    assert file.suffix == ".parquet"


@pytest.mark.parametrize("how", [{}, {"fresh": True}, {"parts": True}])  # a file, one in the place of another, a part
def test_a_kill_before_any_step_leaves_nothing_behind(how, tmp_path, sensor_file):
    campaign, folder, kept = tmp_path / "campaign.toml", tmp_path / "data", tmp_path / "kept"
    campaign.write_text(SHORT_HEAD + ONE_SOFTMAX)
    task = Task(output=folder / ("fleet" if how.get("parts") else "d.parquet"), campaign=campaign, sensor=sensor_file, **how)
    again = replace(task, fresh=False)
    folder.mkdir()
    kept.mkdir()
    if task.fresh:
        measure(again)
    # A process of its own: what it leaves bears the number of one that is no more.
    process = multiprocessing.get_context("fork").Process(target=measure_and_keep, args=(task, kept))
    process.start()
    process.join()
    assert process.exitcode == 0
    check_whole(again)
    left = sorted(kept.iterdir())
    assert len(left) >= FEWEST
    for state in left:
        shutil.rmtree(folder)
        shutil.copytree(state, folder)
        measure(again)
        check_whole(again)
