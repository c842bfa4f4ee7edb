"""`collect stop`."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from collector.commands.options import CONTEXT, MOST_JOBS, config_option, output_options
from collector.commands.output import Speaker, note
from collector.errors import DaemonError
from estimator.options.command_line import DONE

if TYPE_CHECKING:
    from collector.daemon.store import Store

LOOK_S: Final = 0.1
"""How often the end is looked for [s]."""


@click.command("stop", context_settings=CONTEXT)
@click.argument("job", type=click.IntRange(1, MOST_JOBS), required=False)
@click.option("--all", "everything", is_flag=True, help="Every job that waits or runs.")
@click.option("--daemon", "daemon_too", is_flag=True, help="The daemon itself; its jobs go on when it is started again.")
@click.option("--wait", is_flag=True, help="Return when it has stopped.")
@config_option
@output_options
def stop_command(job: int | None, everything: bool, daemon_too: bool, wait: bool, config: Path | None, speak: Speaker) -> int:
    """Stop a job, all jobs, or the daemon: after the kernel that runs; asked a second time, at once.

    Finished rows are safe; `collect submit … --resume` goes on with a job that was stopped.
    """
    from collector.daemon.jobs import OPEN_STATES
    from collector.daemon.settings import client_settings
    from collector.daemon.store import has_database, open_store

    if (job is not None) + everything + daemon_too != 1:
        raise click.UsageError("name a job, or give --all or --daemon")
    folder = client_settings(config, os.environ).folder
    if not has_database(folder):
        raise DaemonError(f"{folder}: no daemon has ever run there and no job is queued; name its --config")
    with open_store(folder) as store:
        if daemon_too:
            lines, stopped = _stop_daemon(store, wait=wait), []
        else:
            numbers = [item.id for item in store.jobs(*OPEN_STATES)] if everything else [job or 0]
            stopped = _stop_jobs(store, numbers, wait=wait)
            lines = [f"job {item['job']}: {item['state']}" for item in stopped] or ["no job waits or runs"]
    speak.say({"daemon": daemon_too, "jobs": stopped}, lines)
    return DONE


def _stop_jobs(store: "Store", numbers: list[int], *, wait: bool) -> list[dict[str, object]]:
    """Ask each job to stop; what became of it."""
    from collector.daemon.jobs import QUEUED, RUNNING
    from collector.daemon.locks import daemon_runs

    before = {number: store.ask_stop(number) for number in numbers}
    while wait and daemon_runs(store.folder) and not all(store.job(number).ended for number in numbers):
        time.sleep(LOOK_S)
    stopped: list[dict[str, object]] = []
    for number, job in before.items():
        now = store.job(number)
        if job.ended:
            state = f"had ended before ({job.state})"
        elif job.state == QUEUED or now.state != RUNNING:
            state = now.state
        else:
            state = "stops at once" if job.stop else "stops after the kernel that runs"
        stopped.append({"job": number, "state": state})
    return stopped


def _stop_daemon(store: "Store", *, wait: bool) -> list[str]:
    """Ask the daemon to end; one that has ended already is no failure.  Raises DaemonError where there never was one."""
    from collector.daemon.jobs import AT_ONCE
    from collector.daemon.locks import daemon_runs, signal_daemon

    overview = store.overview(limit=0)
    daemon = overview.daemon
    if not overview.running:
        if not daemon.pid:
            raise DaemonError(f"{store.folder}: no daemon has run there; name the config of the one that is meant with --config")
        return ["the daemon has ended before"]
    try:
        how = store.ask_daemon_stop()
    except DaemonError:  # a full disk, mostly: a signal needs none
        how = AT_ONCE
        if not signal_daemon(store.folder, daemon.pid):
            raise
    if how == AT_ONCE:  # a signal wakes a daemon that waits, and reaches one that cannot read its orders
        signal_daemon(store.folder, daemon.pid)
    while wait and daemon_runs(store.folder):
        time.sleep(LOOK_S)
    if wait:
        return ["the daemon has ended"]
    if how == AT_ONCE:
        return ["the daemon ends at once"]
    note("the daemon ends after the kernels that run; `collect stop --daemon` once more ends it at once")
    return ["the daemon is draining"]
