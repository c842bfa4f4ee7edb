"""`collect run`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from collector.commands.options import (
    CONTEXT,
    asked_clocks,
    duration_s,
    freqs_option,
    gpu_option,
    meter_arguments,
    meter_option,
    one_board,
    output_options,
    seed_option,
    sensor_of,
    sensor_option,
)
from collector.commands.output import Speaker, note, stoppable
from collector.errors import ClockError, ProgramError
from estimator.commands.options import Number
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS
from estimator.options.output_files import output_option

if TYPE_CHECKING:
    from collector.bench import Instruments
    from collector.programs.program import ProgramRun
    from collector.sampling import Sampler
    from collector.sensing.calibration import SensorCalibration


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `collect run`, and the program with its arguments."""

    gpu: str
    freqs: str
    repeats: int
    asked_std: float | None
    longest: str
    sensor: str | None
    pmd: str
    out: Path | None
    seed: int
    kernels: bool
    command: tuple[str, ...]


@click.command("run", context_settings={**CONTEXT, "ignore_unknown_options": True})
@gpu_option
@freqs_option
@click.option(
    "--repeats", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Run the command so many times at each clock."
)
@click.option(
    "--std",
    "asked_std",
    type=Number(0.0, 1.0, min_open=True),
    metavar="SHARE",
    help="Run it as often as one run's energy takes to be known to this share: 0.01 is 1 %.",
)
@click.option("--longest", default="10m", show_default=True, metavar="TIME", help="Time that --std may take at each clock: 90s, 10m.")
@sensor_option()
@meter_option
@click.option("--kernels", is_flag=True, help="Energy by kernel of a Python program, which CUPTI traces.")
@output_option("--out", metavar="RUN.json", help="Write the JSON document to a file as well.")
@seed_option
@output_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run_command(context: click.Context, /, speak: Speaker, **options: Any) -> int:
    """Measure any program: time, energy and power of the board while it runs, each with its uncertainty.

    Write `--` before the command: collect run --gpu 0 -- python train.py.  On a simulated board: -- WORKLOAD.json [TIMES].
    The board rests for a second or more before and after each run, so that a sensor with a lag misses nothing.  With --json the
    command's own output goes to stderr.

    Exit status: the command's own, by shells' rule 128 + signal if one ended it; 127 for a command that is not found, 126 for
    one that cannot be run; 1 if nothing could be measured, 2 for wrong usage; 130 after an interruption, which loses the
    current run: earlier runs are reported; 3 after success with another SM clock than the requested one.
    """
    from collector.bench import open_instruments
    from collector.boards import sole_use
    from collector.clocks import held_clock
    from collector.programs.display import run_document, run_lines
    from collector.sampling import Sampler

    asked = RunOptions(**options)
    _check_options(context, asked)
    board, longest_s = one_board(asked.gpu), duration_s(asked.longest, "--longest")
    end: BaseException | None = None
    runs: list[tuple[float | None, ProgramRun]] = []
    with (
        stoppable(),
        sole_use(board),
        open_instruments(board, seed=asked.seed, **meter_arguments(asked.pmd, asked.gpu)) as instruments,
        held_clock(instruments.gpu) as hold,
    ):
        for line in instruments.notes:
            speak.warn(line)
        sampler = Sampler(instruments.gpu, instruments.sensors)
        calibration = sensor_of(asked.sensor, instruments, speak)
        clocks = asked_clocks(asked.freqs, instruments.gpu, "--freqs")
        if asked.kernels and len(clocks) > 1:
            raise click.UsageError("--kernels takes one run; give one clock", context)
        lost: list[str] = []
        try:
            if asked.kernels:
                hold.set(clocks[0])
                return _run_kernels(asked, instruments, sampler, calibration, clocks[0], speak)
            for clock in clocks:
                hold.set(clock)
                for found in _runs(asked, longest_s, instruments, sampler, calibration, clock, speak):
                    runs.append((clock, found))
        except ProgramError as error:
            note(f"collect: {error}")
            return error.exit_status
        except (ClockError, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt):
                lost = [f"stopped: the run that was going on is lost, {len(runs)} before it are reported"]
                note(*lost)
            if not runs:
                raise
            end = error
        document = run_document(asked.command, instruments, calibration, runs)
    document["notes"] += lost
    speak.say(document, run_lines(document), asked.out)
    if end is not None:
        raise end
    failed = next((run.exit_status for _, run in runs if run.exit_status), DONE)
    return failed or (DONE if not any(run.doubts for _, run in runs) else DONE_WITH_WARNINGS)


def _check_options(context: click.Context, asked: RunOptions) -> None:
    """Raises UsageError for options that exclude each other."""
    given = context.get_parameter_source
    if asked.asked_std is not None and given("repeats") is not ParameterSource.DEFAULT:
        raise click.UsageError("--std finds the number of runs; leave --repeats out", context)
    if asked.asked_std is None and given("longest") is not ParameterSource.DEFAULT:
        raise click.UsageError("--longest bounds --std; give both", context)
    if asked.kernels and (asked.asked_std is not None or asked.repeats > 1):
        raise click.UsageError("--kernels takes one run; leave --std and --repeats out", context)


def _runs(
    asked: RunOptions,
    longest_s: float,
    instruments: "Instruments",
    sampler: "Sampler",
    calibration: "SensorCalibration",
    asked_mhz: float | None,
    speak: Speaker,
) -> "Iterator[ProgramRun]":
    """The runs at one clock, each at its end.  Raises the errors of `measure_program` and `measure_program_repeats`."""
    from collector.programs.execution import Program
    from collector.programs.program import measure_program, measure_program_repeats

    common = (instruments, sampler, Program(command=asked.command, stdout=sys.stderr if speak.as_json else None), calibration)
    if asked.asked_std is not None:
        yield measure_program_repeats(*common, asked_std=asked.asked_std, longest_s=longest_s, asked_mhz=asked_mhz)
        return
    for index in range(asked.repeats):
        if speak.verbose:
            note(f"run {index + 1} of {asked.repeats}")
        yield measure_program(*common, index=index, asked_mhz=asked_mhz)


def _run_kernels(
    asked: RunOptions,
    instruments: "Instruments",
    sampler: "Sampler",
    calibration: "SensorCalibration",
    asked_mhz: float | None,
    speak: Speaker,
) -> int:
    """Measure one run by kernel, print the table, and return the command's exit status.  Raises the errors of `measure_kernels`."""
    from collector.programs.display import kernels_document, kernels_lines
    from collector.programs.execution import Program
    from collector.programs.kernels import measure_kernels

    program = Program(command=asked.command, stdout=sys.stderr if speak.as_json else None)
    found = measure_kernels(instruments, sampler, program, calibration, asked_mhz=asked_mhz)
    document = kernels_document(asked.command, instruments, found)
    speak.say(document, kernels_lines(document), asked.out)
    return found.run.exit_status or (DONE_WITH_WARNINGS if found.run.doubts else DONE)
