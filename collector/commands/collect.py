"""The command `collect`: a campaign, and a list of commands that are loaded on use."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import click

from collector.commands.options import campaign_options, output_options, record_option
from collector.commands.output import Speaker, stoppable
from collector.errors import CollectorError
from estimator import __version__
from estimator.commands.options import flag
from estimator.options.command_line import DONE, run_command, with_usual_options
from estimator.vocabulary.errors import EstimatorError

FILES: Final = {
    "doctor": "doctor",
    "listings": "devices export kernels report sensors",
    "pmd": "pmd",
    "run": "practice run",
    "sensor": "correct sensor",
    "services": "clocks daemon privileged status stop",
    "submit": "submit",
}
"""Files in collector/commands, and the commands that they contain: `name` is `name_command` there."""

COMMANDS: Final = {name: file for file, names in FILES.items() for name in names.split()}
"""Commands and their files."""


class CommandList(click.Group):
    """The commands of `collect`, each imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None if unknown."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"collector.commands.{COMMANDS[cmd_name]}"), f"{cmd_name}_command")
        return with_usual_options(command)


@click.group(
    cls=CommandList,
    invoke_without_command=True,
    epilog="Exit status: 0 done, 1 not done, 2 wrong usage, 3 done, but no row is usable or --strict finds a warning, 130 interrupted.",
)
@campaign_options
@click.option("--campaign", default="quick", show_default=True, metavar="NAME|FILE.toml", help="What to measure.")
@flag("--strict", help="Exit status 3 if a warning holds.")
@click.option("--planned-budget", default="", hidden=True, help="The whole budget, of which --budget is what is left.")
@record_option
@flag("--worker", hidden=True, help="Be the child of a daemon, or of a `collect` on several boards.")
@output_options
@click.version_option(__version__, prog_name="collect")
@click.pass_context
def collect_command(context: click.Context, /, speak: Speaker, **options: Any) -> int:
    """Measure latency, power and energy of GPU kernels into a Parquet dataset.

    Characterises the power sensor, measures idle power at each clock, then runs every kernel for as long as the
    sensor needs.  Clocks are given back in every case; finished rows are never lost.
    """
    if context.invoked_subcommand is not None:
        return DONE
    from collector.commands.campaign import CampaignOptions, measure_campaign

    return measure_campaign(CampaignOptions(**options), speak)


def run(arguments: Sequence[str]) -> int:
    """Exit status of `collect` with these arguments."""
    with stoppable():
        return run_command(collect_command, arguments, "collect", (CollectorError, EstimatorError))
