"""Jobs, boards and daemon as lines and as plain data."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from collector.daemon.heartbeat import heartbeat_complaint, silent_s
from collector.daemon.jobs import QUEUED, RUNNING, BoardState, Job, Overview, left_text, time_text

JOB_HEADS: Final = ("job", "state", "campaign", "board", "progress", "rows", "refused", "left", "note")
BOARD_HEADS: Final = ("board", "name", "job", "SM clock", "power", "temperature")
LONGEST_NOTE: Final = 100
"""Characters of a note in the table; --json has all."""


def overview_lines(overview: Overview) -> list[str]:
    """An overview for people."""
    daemon = overview.daemon
    lines = []
    if daemon.running:
        since = time_text(daemon.started_unix_s) if daemon.pid else "now"
        page = f", status page at {daemon.listen}" if daemon.listen else ""
        lines.append(f"daemon {'draining' if daemon.draining else 'running'}: process {daemon.pid} since {since}{page}")
    if overview.boards and daemon.running:
        lines += ["", *_table(BOARD_HEADS, [_board_cells(board) for board in overview.boards])]
    if overview.jobs:
        lines += ["", *_table(JOB_HEADS, [_job_cells(job) for job in reversed(overview.jobs)])]
    lines += ["", "no jobs"] if not overview.jobs else []
    return lines[1:] if lines[0] == "" else lines


def overview_document(overview: Overview, folder: Path, now_unix_s: float) -> dict[str, Any]:
    """An overview as plain data at a time of day [s since 1970]; what is not known is null."""
    daemon = overview.daemon
    trouble = {"silent_s": silent_s(daemon, now_unix_s), "complaint": heartbeat_complaint(daemon, now_unix_s)}
    return {
        "state_folder": str(folder),
        "daemon": _known({**asdict(daemon), **trouble}),
        "counts": overview.counts,
        "boards": [_known(asdict(board)) for board in overview.boards],
        "jobs": [job_document(job) for job in overview.jobs],
    }


def job_document(job: Job) -> dict[str, Any]:
    """A job as plain data."""
    document = {name: value for name, value in asdict(job).items() if name not in ("request", "before")}
    request = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(job.request).items()}
    return _known({**document, **request})


def note_text(job: Job) -> str:
    """What keeps a job, or what it is doing, for people."""
    note = job.message or (job.phase if job.state != QUEUED else "")
    later = job.state == QUEUED and job.not_before_unix_s > time.time()
    return f"not before {time_text(job.not_before_unix_s)}{note and f': {note}'}" if later else note


def _board_cells(board: BoardState) -> tuple[str, ...]:
    return (
        board.board,
        board.name,
        str(board.job) if board.job else "-",
        _figure(board.sm_clock_mhz, "MHz", 0),
        _figure(board.power_w, "W", 1),
        _figure(board.temperature_c, "°C", 0),
    )


def _job_cells(job: Job) -> tuple[str, ...]:
    note = note_text(job)
    return (
        str(job.id),
        f"{job.state}, stopping" if job.state == RUNNING and job.stop else job.state,
        job.request.title,
        job.request.board,
        f"{job.done}/{job.total}" if job.total else "-",
        str(job.rows),
        str(job.refused),
        left_text(job.eta_s) if math.isfinite(job.eta_s) else "-",
        note if len(note) <= LONGEST_NOTE else f"{note[:LONGEST_NOTE]}…",
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [tuple(heads), *rows]
    widths = [max(len(row[index]) for row in cells) for index in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _figure(value: float, unit: str, digits: int) -> str:
    return f"{value:.{digits}f} {unit}" if math.isfinite(value) else "-"


def _known(document: dict[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in document.items()}
