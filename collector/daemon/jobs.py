"""The vocabulary of the queue: a job, its states, why it waits, and what is known of a board."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

QUEUED: Final = "queued"
RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
STATES: Final = (QUEUED, RUNNING, DONE, FAILED, CANCELLED)
"""States of a job, in the order in which it may pass through them."""

OPEN_STATES: Final = (QUEUED, RUNNING)

AFTER_ROW: Final = 1
AT_ONCE: Final = 2
"""How a job is to stop: after the kernel that runs, or without waiting for it."""

WAITING_CAUSES: Final[dict[str, str]] = {
    "board_busy": "another process measures on the board",
    "disk_full": "the disk is full",
    "drained": "stopped with the daemon",
}
"""Causes that pass by themselves or by somebody else's doing: a job waits for them as long as it takes."""

TRANSIENT_CAUSES: Final[dict[str, str]] = {
    "board_lost": "the board does not answer any more",
    "driver_unusable": "the driver does not answer",
    "worker_died": "the worker ended without a word",
    "worker_hung": "the worker was silent for too long and was ended",
}
"""Causes that may pass: a job is begun again after them, with growing rests, so many times and no more."""

LONGEST_RETRY_S: Final = 900.0
"""Longest rest before a job is begun again [s]."""


SECONDS_PER_MINUTE: Final = 60
SECONDS_PER_HOUR: Final = 3600


def left_text(seconds: float) -> str:
    """A time that is left, as hours, minutes and seconds."""
    whole = round(seconds)
    return f"{whole // SECONDS_PER_HOUR}:{whole // SECONDS_PER_MINUTE % SECONDS_PER_MINUTE:02d}:{whole % SECONDS_PER_MINUTE:02d}"


def time_text(unix_s: float) -> str:
    """A time of day [s since 1970] for people."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A campaign to be queued.

    board       key of the board: its UUID, or sim:PROFILE
    gpu_word    how it was named
    campaign    a campaign's name, or the file with its frozen copy
    title       the campaign's name for people
    arguments   of `collect`, beyond board, campaign, output and budget
    out         dataset to write: an absolute file; a folder, with a slash at its end, or a URL that takes parts
    budget_s    of the board's time; inf without
    fresh       replaces what lies at `out`
    priority    the higher goes first; equals go in the order of their coming
    """

    board: str
    gpu_word: str
    campaign: str
    title: str
    arguments: tuple[str, ...]
    out: str
    budget_s: float
    fresh: bool
    priority: int
    submitted_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it stands.

    done, total      points finished and planned; `rows` of them gave a row, `refused` could not run, `flagged` rows
                     carry a doubt
    used_s           of the board's time, all attempts together
    attempts         how often it was begun since the last new row
    cause, message   why it waits or failed, as a name and for people
    stop             0, AFTER_ROW or AT_ONCE: what `collect stop` has asked for
    eta_s            until the end; nan where it cannot be told
    before           what lay at its output when it was first begun; None until then
    Times of day are seconds since 1970; nan where there is none.
    """

    id: int
    state: str
    request: JobRequest
    phase: str
    done: int
    total: int
    rows: int
    refused: int
    flagged: int
    used_s: float
    attempts: int
    cause: str
    message: str
    exit_status: int | None
    stop: int
    submitted_unix_s: float
    started_unix_s: float
    ended_unix_s: float
    not_before_unix_s: float
    eta_s: float
    pid: int
    before: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardState:
    """What the daemon knows of a board of its own: the job on it (0: none) and the figures of its last row; nan: unknown."""

    board: str
    gpu_word: str
    name: str
    job: int
    sm_clock_mhz: float
    power_w: float
    temperature_c: float
    updated_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonState:
    """The daemon itself: `running` by its lock; the rest as the last one wrote it (pid 0: there never was one)."""

    running: bool
    pid: int
    version: str
    started_unix_s: float
    beat_unix_s: float
    listen: str
    draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Everything that status, page and metrics show; `jobs` newest first, `counts` of all jobs by state."""

    daemon: DaemonState
    boards: tuple[BoardState, ...]
    jobs: tuple[Job, ...]
    counts: dict[str, int]
    counters: dict[tuple[str, str], float]
