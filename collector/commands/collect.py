"""The command `collect`: a campaign, and a list of commands each of which is loaded when it is asked for."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import click

from collector.commands.options import CONTEXT, gpu_spec_option, meter_option, output_options, record_option, resume_option, sensor_option
from collector.commands.stopping import stoppable
from collector.errors import CollectorError
from estimator import __version__
from estimator.command_line import DONE, run_command
from estimator.errors import EstimatorError
from estimator.output_files import OutputPlace

DEFAULT_OUTPUT: Final = "dataset.parquet"
DEFAULT_CAMPAIGN: Final = "quick"

COMMANDS: Final = (
    "clocks", "correct", "daemon", "devices", "doctor", "export", "kernels", "logs", "pmd", "privileged", "reprocess", "run", "sensor",
    "sensors", "status", "stop", "submit", "validate",
)  # fmt: skip
"""Commands; `name` is `name_command` in collector/commands/name.py."""


class CommandList(click.Group):
    """The commands of `collect`, each imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"collector.commands.{cmd_name}"), f"{cmd_name}_command")
        return command


@click.group(
    cls=CommandList,
    invoke_without_command=True,
    context_settings=CONTEXT,
    epilog="Exit status: 0 done, 1 not done, 2 wrong usage, 3 done but data were rejected, 130 interrupted.",
)
@click.option(
    "--gpu",
    default="0",
    show_default=True,
    metavar="WORD",
    help="Board: NVML index, UUID, PCI address, sim:PROFILE or replay:FILE; several side by side: 0,1 or all.",
)
@click.option("--freqs", default="current", show_default=True, metavar="MHZ", help="SM clocks: 510,900,1410, LO:HI:STEP, all or current.")
@click.option(
    "--out",
    default=DEFAULT_OUTPUT,
    show_default=True,
    metavar="FILE|FOLDER/|URL",
    type=OutputPlace(),
    help="Dataset to write; in a folder or at a URL, a part of one.",
)
@click.option("--campaign", default=DEFAULT_CAMPAIGN, show_default=True, metavar="NAME|FILE.toml", help="What to measure.")
@click.option("--families", metavar="LIST", help="Only these kernel families: gemm,conv,attention,softmax,…")
@click.option("--budget", default="", metavar="TIME", help="Begin no kernel after this much of the board's time: 90s, 30m, 2h.")
@click.option(
    "--select",
    type=click.Choice(("active", "random", "all")),
    help="What a budget is spent on: what adds most to the fit (usual), a random choice, or the plan from its start.",
)
@click.option("--planned-budget", default="", hidden=True, help="The whole budget, of which --budget is what is left.")
@gpu_spec_option
@sensor_option()
@meter_option
@click.option("--traces", is_flag=True, help="Keep every poll beside the dataset, for `collect reprocess`: 5 to 20 kB a row.")
@resume_option
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Chooses kernels and their order.")
@record_option
@click.option("--dry-run", is_flag=True, help="Print the plan, its counts and its time; measure nothing.")
@click.option("--worker", is_flag=True, hidden=True, help="Be the child of a daemon, or of a `collect` on several boards.")
@output_options
@click.version_option(__version__, prog_name="collect")
@click.pass_context
def collect_command(context: click.Context, /, **options: Any) -> int:
    """Measure latency, power and energy of GPU kernels into a Parquet dataset.

    Characterises the power sensor, measures idle power at each clock, then runs every kernel for as long as the
    sensor needs.  Clocks are given back however it ends; finished rows are never lost.
    """
    if context.invoked_subcommand is not None:
        return DONE
    from collector.commands.campaign import measure_campaign

    return measure_campaign(**options)


def run(arguments: Sequence[str]) -> int:
    """Exit status of `collect` with these arguments."""
    with stoppable():
        return run_command(collect_command, arguments, "collect", (CollectorError, EstimatorError))
