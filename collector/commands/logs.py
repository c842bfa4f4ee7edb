"""`collect logs`."""

import os
import time
from pathlib import Path
from typing import Final

import click

from collector.commands.options import CONTEXT, MOST_JOBS, config_option
from collector.errors import DaemonError
from estimator.options.command_line import DONE

LOOK_S: Final = 0.2
"""How often a log is looked at for more [s]."""


@click.command("logs", context_settings=CONTEXT)
@click.argument("job", type=click.IntRange(1, MOST_JOBS), required=False)
@click.option("-f", "--follow", is_flag=True, help="Wait for more, until the job or the daemon has ended.")
@config_option
def logs_command(job: int | None, follow: bool, config: Path | None) -> int:
    """The log of a job, or of the daemon."""
    from collector.daemon.locks import daemon_runs
    from collector.daemon.log_file import LogReader, job_log_path
    from collector.daemon.settings import client_settings
    from collector.daemon.store import has_database, open_store

    settings = client_settings(config, os.environ)
    folder = settings.folder
    if not has_database(folder):
        raise DaemonError(f"{folder}: no daemon has ever run there and no job is queued; name its --config")
    with open_store(folder) as store:
        if job is not None:
            store.job(job)
        reader = LogReader(job_log_path(folder, job) if job is not None else settings.log)
        while True:
            over = not follow or (store.job(job).ended if job is not None else not daemon_runs(folder))
            for line in reader.lines():
                click.echo(line)
            if over:
                return DONE
            time.sleep(LOOK_S)
