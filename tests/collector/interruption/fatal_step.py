"""A campaign in a process that is killed at a chosen step: just before its n-th change of a file's name below a folder."""

import itertools
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from collector.cli import main

STEPS = frozenset({"os.rename", "os.link", "os.remove", "os.mkdir", "os.utime", "os.truncate"})
"""Audit events of calls that change files' names and lengths (docs.python.org/3/library/audit_events.html)."""
CHANGING = os.O_CREAT | os.O_WRONLY | os.O_RDWR
"""Flags of `open` with which it may change a file too."""


@dataclass(frozen=True)
class Task:
    """A campaign to measure: where to, its file and its sensor's, whether what is there is replaced, and whether `output` is a folder in
    which it becomes a part.
    """

    output: Path
    campaign: Path
    sensor: Path
    fresh: bool = False
    parts: bool = False


def measure(task):
    """The whole of a campaign, resumed where something is there."""
    out = f"{task.output}/" if task.parts else str(task.output)
    words = ["--campaign", str(task.campaign), "--sensor", str(task.sensor), "--out", out, "--fresh" if task.fresh else "--resume"]
    assert main(["--gpu", "sim:a100-pcie-40gb", "--freqs", "1200", *words, "--quiet"]) == 0


def measure_until(told, task, fatal):
    """Measure, and be killed just before step number `fatal`; one that comes to its end tells how many steps it had."""
    folder = os.fsencode(task.output.parent)
    steps = itertools.count()
    taken = 0

    def step(event, arguments):
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
