"""A campaign in a process that keeps what a kill at any of its steps would leave: a copy of a folder before each change of a file in it."""

import os
import shutil
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


def files_of(folder):
    """What is below a folder: the content of each file, and None for a folder."""
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def measure_and_keep(task, kept):
    """Measure, and copy the folder of the output as it is before each step that changes a file in it, unless it is as before the last."""
    folder, last, busy = task.output.parent, None, False

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
    measure(task)
