"""`collect practice`."""

import sys
from pathlib import Path

import click

from collector.commands.options import (
    CONTEXT,
    gpu_option,
    one_board,
    output_options,
    seed_option,
    sensor_of,
    sensor_option,
)
from collector.commands.output import Speaker, stoppable
from collector.errors import ProgramError
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
    from collector.bench import open_instruments
    from collector.boards import sole_use
    from collector.programs.display import practice_document, practice_lines
    from collector.programs.execution import Program
    from collector.programs.practice import measure_practice
    from collector.sampling import Sampler

    board = one_board(gpu)
    with stoppable(), sole_use(board), open_instruments(board, seed=seed) as instruments:
        sampler = Sampler(instruments.gpu, instruments.sensors)
        program = Program(command=command, stdout=sys.stderr if speak.as_json else None)
        try:
            found = measure_practice(instruments, sampler, program, sensor_of(sensor, instruments, speak), trials=trials, seed=seed)
        except ProgramError as error:
            click.echo(f"collect: {error}", err=True)
            return error.exit_status
        document = practice_document(command, instruments, found)
    speak.say(document, practice_lines(document), out)
    return DONE
