"""`collect practice`."""

from pathlib import Path

import click

from collector.commands.options import (
    CONTEXT,
    gpu_option,
    measured_program,
    output_options,
    seed_option,
    sensor_option,
)
from collector.commands.output import Speaker
from estimator.options.command_line import DONE
from estimator.options.output_files import output_option


@click.command("practice", context_settings={**CONTEXT, "ignore_unknown_options": True})
@gpu_option
@click.option("--trials", type=click.IntRange(1, 1000), default=8, show_default=True, help="Separate trials, with random delays between.")
@sensor_option()
@output_option("--out", metavar="PRACTICE.json", help="Write the JSON document to a file as well.")
@seed_option
@output_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def practice_command(
    gpu: str, trials: int, sensor: str | None, out: Path | None, seed: int, command: tuple[str, ...], speak: Speaker
) -> int:
    """Energy of a program by the published good practice, beside the naive reading and this package's own.

    Each trial repeats the command for 5 s, after a random delay.  The good practice is that of Yang, Adamek and Armour: phase shifts where
    the sensor misses some of the time, the rise discarded, readings shifted; gain and offset stay in it.  Write `--` before the
    command; on a simulated board: -- WORKLOAD.json [TIMES].

    Exit status: 0; the command's own if it fails; 127, 126 if it cannot be started; 1 if nothing could be measured.
    """
    from collector.programs.display import practice_document, practice_lines
    from collector.programs.practice import measure_practice

    with measured_program(gpu, seed, sensor, command, speak) as subject:
        document = practice_document(command, subject[0], measure_practice(*subject, trials=trials, seed=seed))
    speak.say(document, practice_lines(document), out)
    return DONE
