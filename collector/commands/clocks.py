"""`collect clocks` and `collect privileged`: held SM clocks, and the helper that locks them for users without the right."""

import os
import sys
from pathlib import Path

import click

from collector.commands.options import CONTEXT, FILE, output_options
from collector.commands.output import Speaker, note, settings_lines
from estimator.options.command_line import DONE, FAILED
from estimator.vocabulary.reader import plain


@click.group("clocks", context_settings=CONTEXT, no_args_is_help=False)
def clocks_command() -> None:
    """SM clocks that a dead process left held."""


@clocks_command.command("restore", context_settings=CONTEXT)
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
        note(f"collect clocks restore: {uuid}: {reason}")
    return FAILED if failed else DONE


@click.group("privileged", context_settings=CONTEXT, no_args_is_help=False)
def privileged_command() -> None:
    """The clock helper: a small process of root that locks SM clocks for users without the right."""


@privileged_command.command("serve", context_settings=CONTEXT)
@click.option("--config", type=FILE, required=True, metavar="FILE", help="Settings: docs/how-to/lock-clocks-without-root.md.")
@click.option("--check", is_flag=True, help="Only read the settings and say what they are.")
@output_options
def serve_command(config: Path, check: bool, speak: Speaker) -> int:
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
    return DONE
