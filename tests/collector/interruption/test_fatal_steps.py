"""A campaign that is killed before any one of its changes to files: nothing of it is left behind, lost or doubled once it goes on.

Random blows (`benchmarks/kill_campaign.py`) hit the long steps; here every step is hit once.
"""

import multiprocessing
import signal
from contextlib import suppress
from dataclasses import replace

import pytest

from collector.dataset.reader import read_kernel_dataset
from tests.collector.campaigns import ONE_SOFTMAX, SHORT_HEAD
from tests.collector.interruption.fatal_step import Task, measure, measure_until

PATIENCE_S = 600.0
MOST_STEPS = 1000


@pytest.fixture(scope="module")
def context():
    """Processes that have everything imported."""
    started = multiprocessing.get_context("forkserver")
    started.set_forkserver_preload(["tests.collector.interruption.fatal_step", "pandas"])  # Arrow looks for pandas
    yield started
    with suppress(AttributeError):
        multiprocessing.forkserver._forkserver._stop()


def killed_before(context, task, step):
    """Whether the campaign was killed; one that has no step of that number comes to its end."""
    ear, mouth = context.Pipe(duplex=False)
    process = context.Process(target=measure_until, args=(mouth, task, step))
    process.start()
    mouth.close()
    process.join(PATIENCE_S)
    ear.close()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def check_whole(task):
    """A dataset as an undisturbed campaign leaves it, and nothing beside it."""
    dataset = read_kernel_dataset(task.output)
    assert dataset.table.num_rows == 1
    assert dataset.metadata["complete"]
    (file,) = files_in(task.output.parent)
    assert file.endswith(".parquet")


@pytest.mark.parametrize("how", [{}, {"fresh": True}, {"parts": True}])  # a file, one in the place of another, a part
def test_a_kill_before_any_step_leaves_nothing_behind(how, context, tmp_path, sensor_file):
    campaign = tmp_path / "campaign.toml"
    campaign.write_text(SHORT_HEAD + ONE_SOFTMAX)
    for step in range(MOST_STEPS):
        output = tmp_path / f"step-{step}" / ("fleet" if how.get("parts") else "d.parquet")
        output.parent.mkdir()
        task = Task(output=output, campaign=campaign, sensor=sensor_file, **how)
        again = replace(task, fresh=False)
        if task.fresh:
            measure(again)
        killed = killed_before(context, task, step)
        measure(again)
        check_whole(again)
        if not killed:
            return
    pytest.fail("the campaign has no end of steps")
