"""Processes that tests start: their streams are pipes of text."""

import sys
from subprocess import PIPE, Popen, run

PYTHON = (sys.executable, "-c")
COLLECT = (sys.executable, "-m", "collector.cli")
LONGEST_S = 600.0
"""Far beyond what a slow machine needs."""


class Piped(Popen):
    """A process that a failing test kills instead of waiting for its end."""

    def __exit__(self, kind, *more):
        if kind:
            self.kill()
        super().__exit__(kind, *more)


def piped(*command, **more):
    """A process that runs; stdin too is a pipe."""
    return Piped([*map(str, command)], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, **more)


def ended(*command, **more):
    """Status and streams of a process that has come to its end."""
    return run([*map(str, command)], capture_output=True, text=True, check=False, timeout=LONGEST_S, **more)
