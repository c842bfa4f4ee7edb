"""Jobs, boards and daemon as lines and as plain data."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from collector.daemon.jobs import QUEUED, RUNNING, Board, Job, Overview, left_text, time_text

JOB_HEADS: Final = ("job", "state", "campaign", "board", "progress", "rows", "refused", "left", "note")
BOARD_HEADS: Final = ("board", "name", "job", "SM clock", "power", "temperature")
LONGEST_NOTE: Final = 100
"""Characters of a note in the table; --json has all."""


def overview_lines(overview: Overview) -> list[str]:
    """An overview for people."""
    daemon, blocks = overview.daemon, []
    if overview.running:
        since = "now" if daemon.started_unix_s is None else time_text(daemon.started_unix_s)
        page = f", status page at {daemon.listen}" if daemon.listen else ""
        blocks.append([f"daemon {'draining' if daemon.draining else 'running'}: process {daemon.pid} since {since}{page}"])
        if overview.boards:
            blocks.append(_table(BOARD_HEADS, [_board_cells(board) for board in overview.boards]))
    jobs = [_job_cells(job) for job in reversed(overview.jobs)]
    blocks.append(_table(JOB_HEADS, jobs) if jobs else ["no jobs"])
    return [line for block in blocks for line in ("", *block)][1:]


def overview_document(overview: Overview, folder: Path, now_unix_s: float) -> dict[str, Any]:
    """An overview as plain data at a time of day [s since 1970]; what is not known is null."""
    beat_s = overview.daemon.beat_unix_s
    now = {"silent_s": None if beat_s is None else now_unix_s - beat_s, "complaint": overview.complaint(now_unix_s)}
    return {
        "state_folder": str(folder),
        "daemon": {"running": overview.running, **asdict(overview.daemon), **now},
        "counts": overview.counts,
        "boards": [asdict(board) for board in overview.boards],
        "jobs": [{name: value for name, value in asdict(job).items() if name != "before"} for job in overview.jobs],
    }


def note_text(job: Job) -> str:
    """What keeps a job, or what it is doing, for people."""
    note = job.message or (job.phase if job.state != QUEUED else "")
    later = job.state == QUEUED and job.not_before_unix_s > time.time()
    return f"not before {time_text(job.not_before_unix_s)}{note and f': {note}'}" if later else note


def _board_cells(board: Board) -> tuple[str, ...]:
    figures = ((board.sm_clock_mhz, "{:.0f} MHz"), (board.power_w, "{:.1f} W"), (board.temperature_c, "{:.0f} °C"))
    return (board.board, board.name, str(board.job or "-"), *("-" if value is None else form.format(value) for value, form in figures))


def _job_cells(job: Job) -> tuple[str, ...]:
    note = note_text(job)
    return (
        str(job.id),
        f"{job.state}, stopping" if job.state == RUNNING and job.stop else job.state,
        job.title,
        job.board,
        f"{job.done}/{job.total}" if job.total else "-",
        str(job.rows),
        str(job.refused),
        "-" if job.eta_s is None else left_text(job.eta_s),
        note if len(note) <= LONGEST_NOTE else f"{note[:LONGEST_NOTE]}…",
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [tuple(heads), *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
