"""`collect run` and `collect practice`: the energy of programs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from collector.commands.options import (
    asked_clocks,
    duration_s,
    freqs_option,
    gpu_option,
    one_board,
    output_options,
    seed_option,
    sensor_of,
    sensor_option,
)
from collector.commands.output import Speaker, stoppable
from collector.errors import ClockError
from estimator.commands.options import Number, flag
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, is_given, output_option, tell
from estimator.vocabulary.values import frozen

if TYPE_CHECKING:
    from collector.clocks import ClockHold, Clocks
    from collector.devices.protocols import Instruments
    from collector.programs.program import Program, ProgramRun
    from collector.sampling import Sampler
    from collector.sensing.calibration import SensorCalibration

    Subject = tuple[Instruments, Sampler, Program, SensorCalibration]
    """A board, its readings, a program to run on it, and the sensor."""

LOST: Final = "stopped: the run that was going on is lost, {} before it are reported"


@frozen
class RunOptions:
    """The options of `collect run`, and the program with its arguments."""

    gpu: str
    freqs: str
    repeats: int
    asked_std: float | None
    longest: str
    sensor: str | None
    out: Path | None
    seed: int
    kernels: bool
    command: tuple[str, ...]


program_argument = click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)


@click.command("run", context_settings={"allow_interspersed_args": False})
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
@flag("--kernels", help="Energy by kernel of a Python program, which CUPTI traces.")
@output_option(metavar="RUN.json", help="Write the JSON document to a file as well.")
@seed_option()
@output_options
@program_argument
def run_command(speak: Speaker, **options: Any) -> int:
    """Measure any program: time, energy and power of the board while it runs, each with its uncertainty.

    Options stand before the command: collect run --gpu 0 -- python train.py.  On a simulated board: -- WORKLOAD.json [TIMES].
    The board rests for a second or more before and after each run, for sensors with a lag.  With --json the command's own output goes
    to stderr.

    Exit status: the command's own, by shells' rule 128 + signal if one ended it; 127 for a command that is not found, 126 for
    one that cannot be run; 1 if nothing could be measured, 2 for wrong usage; 130 after an interruption, which loses the
    current run: earlier runs are reported; 3 after success with another SM clock than the requested one.
    """
    from collector.clocks import held_clock
    from collector.programs.display import kernels_document, kernels_lines, run_document, run_lines
    from collector.programs.kernels import measure_kernels

    asked = RunOptions(**options)
    _check_options(asked)
    end: BaseException | None = None
    with (
        _measured_program(asked.gpu, asked.seed, asked.sensor, asked.command, speak) as subject,
        held_clock(subject[0].gpu) as hold,
    ):
        instruments, calibration = subject[0], subject[3]
        clocks = asked_clocks(asked.freqs, instruments.gpu, "--freqs")
        if asked.kernels:
            if len(clocks) > 1:
                raise click.UsageError("--kernels takes one run; give one clock")
            (clock,) = clocks
            hold.set(clock)
            run, kernels = measure_kernels(*subject, asked_mhz=clock)
            runs = [(clock, run)]
            document = kernels_document(asked.command, instruments, run, kernels)
            lines = kernels_lines(document)
        else:
            runs, end = _runs(asked, subject, clocks, hold, speak)
            document = run_document(asked.command, instruments, calibration, runs)
            if isinstance(end, KeyboardInterrupt):
                document["notes"].append(LOST.format(len(runs)))
            lines = run_lines(document)
    speak.say(document, lines, asked.out)
    if end is not None:
        raise end
    failed = next((run.exit_status for _, run in runs if run.exit_status), DONE)
    return failed or (DONE if not any(run.doubts for _, run in runs) else DONE_WITH_WARNINGS)


@click.command("practice", context_settings={"allow_interspersed_args": False})
@gpu_option
@click.option("--trials", type=click.IntRange(1, 1000), default=8, show_default=True, help="Separate trials, with random delays between.")
@sensor_option()
@output_option(metavar="PRACTICE.json", help="Write the JSON document to a file as well.")
@seed_option()
@output_options
@program_argument
def practice_command(
    gpu: str, trials: int, sensor: str | None, out: Path | None, seed: int, command: tuple[str, ...], speak: Speaker
) -> None:
    """Energy of a program by the published good practice, beside the naive reading and this package's own.

    Each trial repeats the command for 5 s, after a random delay.  The good practice is that of Yang, Adamek and Armour: phase shifts where
    the sensor misses some of the time, the rise discarded, readings shifted; gain and offset stay in it.  Options stand before the
    command; on a simulated board: -- WORKLOAD.json [TIMES].

    Exit status: 0; the command's own if it fails; 127, 126 if it cannot be started; 1 if nothing could be measured.
    """
    from collector.programs.display import practice_document, practice_lines
    from collector.programs.practice import measure_practice

    with _measured_program(gpu, seed, sensor, command, speak) as subject:
        document = practice_document(command, subject[0], measure_practice(*subject, trials=trials, seed=seed))
    speak.say(document, practice_lines(document), out)


@contextmanager
def _measured_program(word: str, seed: int, sensor: str | None, command: tuple[str, ...], speak: Speaker) -> "Iterator[Subject]":
    """A command to be measured on the board that `--gpu` names, which no other process then measures on; doubts are warned of.

    Raises the errors of `one_board`, `open_instruments` and `sensor_of`.
    """
    from collector.bench import open_instruments
    from collector.boards import sole_use
    from collector.programs.program import Program
    from collector.sampling import Sampler

    board = one_board(word)
    with stoppable(), sole_use(board), open_instruments(board, seed=seed) as instruments:
        speak.warn(*instruments.notes)
        program = Program(command=command, stdout=sys.stderr if speak.as_json else None)
        yield instruments, Sampler(instruments.gpu, instruments.sensors), program, sensor_of(sensor, instruments, speak)


def _check_options(asked: RunOptions) -> None:
    """Raises UsageError for options that exclude each other."""
    if asked.asked_std is not None and is_given("repeats"):
        raise click.UsageError("--std finds the number of runs; leave --repeats out")
    if asked.asked_std is None and is_given("longest"):
        raise click.UsageError("--longest bounds --std; give both")
    if asked.kernels and (asked.asked_std is not None or asked.repeats > 1):
        raise click.UsageError("--kernels takes one run; leave --std and --repeats out")


def _runs(
    asked: RunOptions, subject: "Subject", clocks: "Clocks", hold: "ClockHold", speak: Speaker
) -> "tuple[list[tuple[float | None, ProgramRun]], BaseException | None]":
    """Runs at every clock, and the interruption or lost clock that ended them early, which is raised if no run is complete.

    Raises the errors of `measure_program` and `measure_program_repeats`.
    """
    from collector.programs.program import measure_program, measure_program_repeats

    runs: list[tuple[float | None, ProgramRun]] = []
    longest_s = duration_s(asked.longest, "--longest")
    try:
        for clock in clocks:
            hold.set(clock)
            if asked.asked_std is not None:
                runs.append((clock, measure_program_repeats(*subject, asked_std=asked.asked_std, longest_s=longest_s, asked_mhz=clock)))
                continue
            for index in range(asked.repeats):
                if speak.verbose:
                    tell(f"run {index + 1} of {asked.repeats}")
                runs.append((clock, measure_program(*subject, index=index, asked_mhz=clock)))
    except (ClockError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt):
            tell(LOST.format(len(runs)))
        if not runs:
            raise
        return runs, error
    return runs, None
