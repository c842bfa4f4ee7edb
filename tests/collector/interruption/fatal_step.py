"""A campaign in a process that is killed at a chosen step: just before its n-th change of a file's name below a folder."""

import itertools
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from collector.bench import open_bench
from collector.campaigns.files import load_campaign
from collector.campaigns.plan import plan_campaign
from collector.campaigns.running import Campaign, CampaignOutcome, campaign_key
from collector.campaigns.summary import kept_rows
from collector.dataset import claimed_dataset
from collector.dataset.log import log_path
from collector.dataset.partition import PartitionedPlace, partitioned_place
from collector.dataset.traces import traces_of
from collector.sensing.calibration import load_calibration
from estimator.vocabulary.whole_file import try_place

BOARD = "sim:a100-pcie-40gb"
CLOCKS = (1200.0,)
SEED = 7

STEPS = frozenset({"os.rename", "os.link", "os.remove", "os.mkdir", "os.utime", "os.truncate"})
"""Audit events of calls that change files' names and lengths (docs.python.org/3/library/audit_events.html)."""
CHANGING = os.O_CREAT | os.O_WRONLY | os.O_RDWR
"""Flags of `open` with which it may change a file too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A campaign to measure: where to, its file and its sensor's, whether raw traces are kept and what is there replaced, and whether
    `output` is a folder in which it becomes a part.
    """

    output: Path
    campaign: Path
    sensor: Path
    traces: bool = False
    fresh: bool = False
    parts: bool = False


def measure(task: Task) -> CampaignOutcome:
    """The whole of a campaign as `collect` does it, resumed where something is there."""
    with open_bench(BOARD, seed=SEED) as bench:
        spec = load_campaign(str(task.campaign))
        plan = plan_campaign(spec, CLOCKS, (), SEED, bench)
        key = campaign_key(bench, spec, plan, (), SEED)
        place = partitioned_place(f"{task.output}/") if task.parts else None
        output = task.output if place is None else place.running_output(key)
        if place is not None:
            _publish_left(place, output)
        try_place(output)
        with claimed_dataset(output):
            kept = None if task.fresh else kept_rows(output, key)
            outcome = Campaign(
                bench,
                spec,
                plan,
                key,
                output,
                kept=kept,
                elsewhere=None if place is None else place.measured(key),
                calibration=load_calibration(task.sensor),
                traces=task.traces or (kept is not None and traces_of(output) is not None),
            ).run()
        if place is not None and outcome.rows:
            place.publish(output)
    return outcome


def _publish_left(place: PartitionedPlace, output: Path) -> None:
    if output.is_file() and not log_path(output).is_file():
        place.publish(output)


def measure_until(told: Connection, task: Task, fatal: int) -> None:
    """Measure, and be killed just before step number `fatal`; one that comes to its end tells how many steps it had."""
    folder = os.fsencode(task.output.parent)
    steps = itertools.count()
    taken = 0

    def step(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal taken
        if event not in STEPS and not (event == "open" and arguments[2] & CHANGING):
            return
        if any(isinstance(name, str | bytes | Path) and os.fsencode(name).startswith(folder) for name in arguments[:2]):
            taken = next(steps)
            if taken == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(step)
    measure(task)
    told.send(taken)
