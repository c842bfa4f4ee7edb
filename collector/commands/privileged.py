"""`collect privileged`."""

import os
import sys
from pathlib import Path

import click

from collector.commands.options import CONTEXT, output_options
from collector.commands.output import Speaker, settings_lines
from estimator.options.command_line import DONE


@click.group("privileged", context_settings=CONTEXT, no_args_is_help=False)
def privileged_command() -> None:
    """The clock helper: root's small process that locks SM clocks for users who may not."""


@privileged_command.command("serve", context_settings=CONTEXT)
@click.option(
    "--config", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Settings: docs/how-to/lock-clocks-without-root.md."
)
@click.option("--check", is_flag=True, help="Only read the settings and say what they are.")
@output_options
def serve_command(config: Path, check: bool, speak: Speaker) -> int:
    """Lock clocks for allowed users, on a Unix socket, until SIGTERM; every clock is given back.

    The settings name the group that may reach the socket, users, boards and clocks.  This process becomes
    `python -I -m collector.privileged.helper`, which loads nothing of the collector that it does not need.
    """
    from collector.privileged.settings import read_settings

    settings = read_settings(config)
    if not check:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-I", "-m", "collector.privileged.helper", str(config)])
    boards = {board.uuid: [board.lowest_mhz, board.highest_mhz] for board in settings.boards}
    documents = {
        "socket": settings.socket,
        "group": settings.group_id,
        "audit_log": settings.audit_log,
        "lease_s": settings.lease_s,
        "silence_s": settings.silence_s,
        "shared_boards": settings.shared_boards,
    }
    ranges = [f"board         {uuid}: {low} to {high} MHz" for uuid, (low, high) in boards.items()]
    speak.say({**documents, "boards_mhz": boards}, settings_lines(documents) + ranges)
    return DONE
