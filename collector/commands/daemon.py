"""`collect daemon`."""

from pathlib import Path

import click

from collector.commands.options import CONTEXT, FILE, output_options, require_dataset_packages
from collector.commands.output import Speaker, settings_lines
from estimator.options.command_line import DONE
from estimator.vocabulary.reader import plain


@click.command("daemon", context_settings=CONTEXT)
@click.option("--config", type=FILE, required=True, metavar="FILE", help="Settings: docs/how-to/run-a-daemon.md.")
@click.option("--check", is_flag=True, help="Print the settings and whether the boards are there; start nothing.")
@output_options
def daemon_command(config: Path, check: bool, speak: Speaker) -> int:
    """Run queued campaigns, one at a time on each board, until a request to end.

    SIGTERM, Ctrl-C or `collect stop --daemon` end it after the running kernels; a second one at once.  Interrupted
    jobs continue when it is started again.
    """
    require_dataset_packages()
    from collector.boards import named_boards
    from collector.daemon.settings import read_settings
    from collector.daemon.supervisor import serve

    settings = read_settings(config)
    if check:
        named_boards(settings.gpus)
        documents = {**plain(settings), "state_folder": str(settings.folder)}
        speak.say(documents, settings_lines(documents))
        return DONE
    serve(settings, speak.note)
    return DONE
