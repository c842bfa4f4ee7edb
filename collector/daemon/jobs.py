"""Vocabulary of the queue: a job, its states, why it waits, a board, the daemon.  The classes are the tables of the state database."""

import time
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Final

from estimator.vocabulary.values import frozen

QUEUED: Final = "queued"
RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
STATES: Final = (QUEUED, RUNNING, DONE, FAILED, CANCELLED)
"""States of a job, in their possible order."""

OPEN_STATES: Final = (QUEUED, RUNNING)

AFTER_ROW: Final = 1
AT_ONCE: Final = 2
"""Ways to stop a job: after the running kernel, or without waiting for it."""

WAITING_CAUSES: Final = {
    "board_busy": "another process measures on the board",
    "disk_full": "the disk is full",
    "drained": "stopped with the daemon",
}
"""Causes that pass without a change of the job: it waits for them without limit."""

TRANSIENT_CAUSES: Final = {
    "board_lost": "the board does not answer any more",
    "driver_unusable": "the driver does not answer",
    "worker_died": "the worker ended without a word",
    "worker_hung": "the worker was silent for too long and was ended",
}
"""Causes that may pass: the job is started again, with growing pauses, a limited number of times."""

STALE_S: Final = 60.0
"""Longest time without a sign of life of a working daemon, which writes one every five seconds [s]."""


@frozen
class Job:
    """A campaign in the queue.

    board         key of the board: its UUID, or sim:PROFILE
    campaign      a campaign's name, or the file with its copy; title is its name for people
    arguments     of `collect`, beyond board, campaign, output and budget
    out           dataset to write: an absolute file, or a folder, with a slash at its end, that takes parts
    budget_s      of the board's time, all attempts together; None: no limit
    fresh         replaces an existing output at `out`
    priority      the higher goes first; equals go in the order of submission
    done, total   points finished and planned; `rows` of them gave a row, `refused` could not run, `flagged` rows are doubtful
    used_s        of the board's time, all attempts together
    attempts      starts since the last new row
    cause         why it waits or failed, as a name; message is the same for people
    stop          0, AFTER_ROW or AT_ONCE: the request of `collect stop`
    eta_s         time to the end; None where unknown
    Times of day are seconds since 1970; None for missing ones.
    """

    board: str
    campaign: str
    title: str
    arguments: tuple[str, ...]
    out: str
    budget_s: float | None = None
    fresh: bool = False
    priority: int = 0
    id: int = 0
    state: str = QUEUED
    phase: str = ""
    done: int = 0
    total: int = 0
    rows: int = 0
    refused: int = 0
    flagged: int = 0
    used_s: float = 0.0
    attempts: int = 0
    cause: str = ""
    message: str = ""
    exit_status: int | None = None
    stop: int = 0
    submitted_unix_s: float | None = None
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    not_before_unix_s: float = 0.0
    eta_s: float | None = None
    pid: int = 0

    @property
    def ended(self) -> bool:
        """Whether it will not run any more."""
        return self.state not in OPEN_STATES

    @property
    def shared(self) -> bool:
        """Whether its output is a folder, in which every run has parts of its own."""
        return self.out.endswith("/")


@frozen
class Board:
    """A board of the daemon: its job (0: no job) and the figures of that job's last row."""

    board: str
    name: str = ""
    job: int = 0
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    updated_unix_s: float | None = None


@frozen
class Daemon:
    """The daemon's last record of itself (pid 0: there never was one); `listen` is the address of its page."""

    pid: int = 0
    version: str = ""
    started_unix_s: float | None = None
    beat_unix_s: float | None = None
    listen: str = ""
    draining: bool = False
    stop: int = 0


@frozen
class Overview:
    """Contents of status, page and metrics: `jobs` newest first, `counts` of all jobs by state, `running` by the daemon's lock."""

    daemon: Daemon = Daemon()
    running: bool = False
    boards: tuple[Board, ...] = ()
    jobs: tuple[Job, ...] = ()
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))

    def complaint(self, now_unix_s: float) -> str:
        """The fault of the daemon and its remedy, in one line; "" for one that works or that has ended as requested.

        A silent daemon that holds its lock hangs; one whose lock is free without a request to end has died.
        """
        daemon, silence_s = self.daemon, now_unix_s - (self.daemon.beat_unix_s or 0.0)
        age = f"{silence_s:.0f} s" if silence_s < 7200.0 else f"{silence_s / 3600.0:.0f} h"
        if daemon.pid and self.running and silence_s > STALE_S:
            return (
                f"the daemon, process {daemon.pid}, has said nothing for {age}: it hangs, is stopped or cannot write; look at "
                f"its log, then end it with `kill -KILL {daemon.pid}` and start it again: its jobs go on"
            )
        if daemon.pid and not self.running and not daemon.draining:
            return (
                f"the last daemon, process {daemon.pid}, died without a word, last heard of {age} ago; "
                "`collect daemon --config FILE` starts one that goes on with its jobs"
            )
        return ""


def left_text(seconds: float) -> str:
    """A remaining time, as hours, minutes and seconds."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


def note_text(job: Job) -> str:
    """The reason why a job waits, or its activity, for people."""
    note = job.message or (job.phase if job.state != QUEUED else "")
    later = job.state == QUEUED and job.not_before_unix_s > time.time()
    return f"not before {time_text(job.not_before_unix_s)}{note and f': {note}'}" if later else note


def time_text(unix_s: float) -> str:
    """A time of day [s since 1970] for people."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
