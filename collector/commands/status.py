"""`collect status`."""

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from collector.commands.options import CONTEXT, config_option, output_options
from collector.commands.output import Speaker, columns, note
from estimator.options.command_line import DONE

if TYPE_CHECKING:
    from collector.daemon.jobs import Board, Job, Overview

JOB_HEADS: Final = ("job", "state", "campaign", "board", "progress", "rows", "refused", "left", "note")
BOARD_HEADS: Final = ("board", "name", "job", "SM clock", "power", "temperature")


@click.command("status", context_settings=CONTEXT)
@click.option("--all", "everything", is_flag=True, help="Every job that there ever was, not the newest only.")
@config_option
@output_options
def status_command(everything: bool, config: Path | None, speak: Speaker) -> int:
    """Jobs, boards and the daemon: state, progress, time left, rows written and refused, clocks.

    A daemon that died, or that has said nothing for a minute, is named in a line on stderr.
    """
    from collector.daemon.jobs import Overview
    from collector.daemon.settings import client_settings
    from collector.daemon.store import has_database, open_store

    folder = client_settings(config, os.environ).folder
    if has_database(folder):
        with open_store(folder) as store:
            overview = store.overview(-1 if everything else 20)
    else:
        overview = Overview()
    now_unix_s = time.time()
    speak.say(overview_document(overview, folder, now_unix_s), overview_lines(overview))
    if complaint := overview.complaint(now_unix_s):
        note(f"warning: {complaint}")
    elif not overview.running:
        speak.note(f"no daemon runs in {folder}; `collect daemon --config FILE` starts one")
    return DONE


def overview_lines(overview: "Overview") -> list[str]:
    """An overview for people."""
    from collector.daemon.jobs import time_text

    daemon, blocks = overview.daemon, []
    if overview.running:
        since = "now" if daemon.started_unix_s is None else time_text(daemon.started_unix_s)
        page = f", status page at {daemon.listen}" if daemon.listen else ""
        blocks.append([f"daemon {'draining' if daemon.draining else 'running'}: process {daemon.pid} since {since}{page}"])
        if overview.boards:
            blocks.append(columns([BOARD_HEADS, *map(_board_cells, overview.boards)]))
    blocks.append(columns([JOB_HEADS, *map(_job_cells, reversed(overview.jobs))]) if overview.jobs else ["no jobs"])
    return [line for block in blocks for line in ("", *block)][1:]


def overview_document(overview: "Overview", folder: Path, now_unix_s: float) -> dict[str, Any]:
    """An overview as plain data at a time of day [s since 1970]; what is not known is null."""
    beat_s = overview.daemon.beat_unix_s
    now = {"silent_s": None if beat_s is None else now_unix_s - beat_s, "complaint": overview.complaint(now_unix_s)}
    return {
        "state_folder": str(folder),
        "daemon": {"running": overview.running, **asdict(overview.daemon), **now},
        "counts": overview.counts,
        "boards": [asdict(board) for board in overview.boards],
        "jobs": [asdict(job) for job in overview.jobs],
    }


def _board_cells(board: "Board") -> tuple[str, ...]:
    figures = ((board.sm_clock_mhz, "{:.0f} MHz"), (board.power_w, "{:.1f} W"), (board.temperature_c, "{:.0f} °C"))
    return (board.board, board.name, str(board.job or "-"), *("-" if value is None else form.format(value) for value, form in figures))


def _job_cells(job: "Job") -> tuple[str, ...]:
    from collector.daemon.jobs import RUNNING, left_text, note_text

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
        note if len(note) <= 100 else f"{note[:100]}…",
    )
