"""`collect status`."""

import os
import time
from pathlib import Path

import click

from collector.commands.options import CONTEXT, config_option, output_options
from collector.commands.output import Speaker, note
from estimator.options.command_line import DONE

SHOWN_JOBS = 20
"""Jobs in the table, beside all open ones."""


@click.command("status", context_settings=CONTEXT)
@click.option("--all", "everything", is_flag=True, help="Every job that there ever was, not the newest only.")
@config_option
@output_options
def status_command(everything: bool, config: Path | None, speak: Speaker) -> int:
    """Jobs, boards and the daemon: state, progress, time left, rows written and refused, clocks.

    A daemon that died, or that has said nothing for a minute, is named in a line on stderr.
    """
    from collector.daemon.display import overview_document, overview_lines
    from collector.daemon.jobs import Overview
    from collector.daemon.settings import client_settings
    from collector.daemon.store import has_database, open_store

    folder = client_settings(config, os.environ).folder
    if has_database(folder):
        with open_store(folder) as store:
            overview = store.overview(-1 if everything else SHOWN_JOBS)
    else:
        overview = Overview()
    now_unix_s = time.time()
    speak.say(overview_document(overview, folder, now_unix_s), overview_lines(overview))
    if complaint := overview.complaint(now_unix_s):
        note(f"warning: {complaint}")
    elif not overview.running:
        speak.note(f"no daemon runs in {folder}; `collect daemon --config FILE` starts one")
    return DONE
