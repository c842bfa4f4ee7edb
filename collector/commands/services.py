"""The daemon and its jobs (`collect daemon`, `status`, `stop`), held SM clocks and the helper that locks them (`clocks`, `privileged`)."""

import os
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from collector.commands.options import FILE, config_option, output_options
from collector.commands.output import Speaker, columns, settings_lines
from collector.daemon.jobs import AT_ONCE, RUNNING, Board, Job, Overview, left_text, note_text, time_text
from collector.daemon.settings import client_settings
from collector.daemon.store import Store, has_database, open_store
from collector.errors import DaemonError
from estimator.commands.options import flag
from estimator.options.command_line import DONE, FAILED, tell
from estimator.vocabulary.reader import plain


@click.command("daemon")
@config_option
@flag("--check", help="Print the settings and whether the boards are there; start nothing.")
@output_options
def daemon_command(config: Path | None, check: bool, speak: Speaker) -> None:
    """Run queued campaigns, one at a time on each board, until a request to end.

    SIGTERM, Ctrl-C or `collect stop --daemon` end it after the running kernels; a second one at once.  Interrupted
    jobs continue when it is started again.
    """
    from collector.boards import named_boards
    from collector.daemon.supervisor import serve

    import_module("pyarrow")  # without it every job would fail
    settings = client_settings(config, os.environ)
    if not settings.gpus:
        raise click.UsageError("name the boards in a --config FILE (docs/how-to/run-a-daemon.md)")
    if check:
        named_boards(settings.gpus)
        documents = {**plain(settings), "state_folder": str(settings.folder)}
        speak.say(documents, settings_lines(documents))
        return
    serve(settings, speak.note)


JOB_HEADS: Final = ("job", "state", "campaign", "board", "progress", "rows", "refused", "left", "note")
BOARD_HEADS: Final = ("board", "name", "job", "SM clock", "power", "temperature")


@click.command("status")
@config_option
@output_options
def status_command(config: Path | None, speak: Speaker) -> None:
    """Jobs, boards and the daemon: state, progress, time left, rows written and refused, clocks.

    A daemon that died, or that has been silent for a minute, is reported in a line on stderr.
    """
    folder = client_settings(config, os.environ).folder
    if has_database(folder):
        with open_store(folder) as store:
            overview = store.overview(20)
    else:
        overview = Overview()
    now_unix_s = time.time()
    speak.say(overview_document(overview, folder, now_unix_s), overview_lines(overview))
    if complaint := overview.complaint(now_unix_s):
        tell(f"warning: {complaint}")
    elif not overview.running:
        speak.note(f"no daemon runs in {folder}; `collect daemon --config FILE` starts one")


def overview_lines(overview: Overview) -> list[str]:
    """An overview for people."""
    daemon, blocks = overview.daemon, []
    if overview.running:
        since = "now" if daemon.started_unix_s is None else time_text(daemon.started_unix_s)
        page = f", status page at {daemon.listen}" if daemon.listen else ""
        blocks.append([f"daemon {'draining' if daemon.draining else 'running'}: process {daemon.pid} since {since}{page}"])
        if overview.boards:
            blocks.append(columns([BOARD_HEADS, *map(_board_cells, overview.boards)]))
    blocks.append(columns([JOB_HEADS, *map(_job_cells, reversed(overview.jobs))]) if overview.jobs else ["no jobs"])
    return [line for block in blocks for line in ("", *block)][1:]


def overview_document(overview: Overview, folder: Path, now_unix_s: float) -> dict[str, object]:
    """An overview as plain data at a time of day [s since 1970]; unknown values are null."""
    beat_s = overview.daemon.beat_unix_s
    now = {"silent_s": None if beat_s is None else now_unix_s - beat_s, "complaint": overview.complaint(now_unix_s)}
    return {
        "state_folder": str(folder),
        "daemon": {"running": overview.running, **asdict(overview.daemon), **now},
        "counts": overview.counts,
        "boards": overview.boards,
        "jobs": overview.jobs,
    }


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
        note if len(note) <= 100 else f"{note[:100]}…",
    )


@click.command("stop")
@click.argument("job", type=click.IntRange(1, 2**31 - 1), required=False)
@flag("--daemon", "daemon_too", help="The daemon itself; its jobs go on when it is started again.")
@config_option
@output_options
def stop_command(job: int | None, daemon_too: bool, config: Path | None, speak: Speaker) -> None:
    """Stop a job, or the daemon: after the running kernel; at the second request, at once.

    Finished rows are safe; `collect submit … --resume` continues a stopped job.
    """
    if (job is not None) + daemon_too != 1:
        raise click.UsageError("name a job, or give --daemon")
    folder = client_settings(config, os.environ).folder
    if not has_database(folder):
        raise DaemonError(f"{folder}: no daemon has ever run there and no job is queued; name its --config")
    with open_store(folder) as store:
        state = _stop_daemon(store) if daemon_too else _stop_job(store, job or 0)
    speak.say({"daemon": daemon_too, "job": job, "state": state}, [f"the daemon {state}" if daemon_too else f"job {job}: {state}"])


def _stop_job(store: Store, number: int) -> str:
    """Requests a job to stop; returns its state then."""
    before = store.ask_stop(number)
    if before.ended:
        return f"had ended before ({before.state})"
    state = store.job(number).state
    return ("stops at once" if before.stop else "stops after the kernel that runs") if state == RUNNING else state


def _stop_daemon(store: Store) -> str:
    """Requests the daemon to end; one that has already ended is no failure.  Raises DaemonError if there never was one."""
    overview = store.overview(limit=0)
    if not overview.running:
        if not overview.daemon.pid:
            raise DaemonError(f"{store.folder}: no daemon has run there; name the config of the one that is meant with --config")
        return "has ended before"
    return "ends at once" if store.ask_daemon_stop() == AT_ONCE else "is draining; once more ends it at once"


@click.group("clocks", no_args_is_help=False)
def clocks_command() -> None:
    """SM clocks that a dead process left held."""


@clocks_command.command("restore")
@output_options
def restore_command(speak: Speaker) -> int:
    """Give back every clock that a process left held when it died.

    Clocks of a living process are left alone.  This happens automatically when a board's clock is next held, and a
    guard process does it within a second or two of the death; the command is for the case that both were prevented.
    """
    from collector.devices.clock_record import restore_left_clocks

    outcome = restore_left_clocks()
    failed = {uuid: reason for uuid, reason in outcome if reason}
    restored = [uuid for uuid, reason in outcome if not reason]
    lines = [f"{uuid}: SM clock given back" for uuid in restored]
    speak.say({"restored": restored, "failed": failed}, lines or ([] if failed else ["no clock was left held"]))
    for uuid, reason in failed.items():
        tell(f"collect clocks restore: {uuid}: {reason}")
    return FAILED if failed else DONE


@click.group("privileged", no_args_is_help=False)
def privileged_command() -> None:
    """The clock helper: a small process of root that locks SM clocks for users without the right."""


@privileged_command.command("serve")
@click.option("--config", type=FILE, required=True, metavar="FILE", help="Settings: docs/how-to/lock-clocks-without-root.md.")
@flag("--check", help="Only read the settings and say what they are.")
@output_options
def serve_command(config: Path, check: bool, speak: Speaker) -> None:
    """Lock clocks for allowed users, on systemd's socket, until SIGTERM; every clock is given back.

    The settings name the group that may reach the socket, users, boards and clocks.  This process becomes
    `python -I -m collector.privileged.helper`, which loads only the modules of the collector that it needs.
    """
    from collector.privileged.settings import read_settings

    settings = read_settings(config)
    if not check:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-I", "-m", "collector.privileged.helper", str(config)])
    boards = [f"{board.uuid}: {board.lowest_mhz} to {board.highest_mhz} MHz" for board in settings.boards]
    speak.say(plain(settings), settings_lines({**plain(settings), "boards": boards}))
