"""`collect sensor`: characterise a power sensor on a board, or from a recording."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from collector.commands.options import (
    CONTEXT,
    FiniteRange,
    asked_clocks,
    duration_s,
    gpu_option,
    gpu_spec_option,
    meter_arguments,
    meter_option,
    one_board,
    output_options,
    perhaps_recorded,
    record_option,
    require_dataset_packages,
    seed_option,
)
from collector.commands.output import Speaker, stoppable, write_document
from collector.errors import CollectorError
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, check_present
from estimator.options.output_files import output_option
from estimator.vocabulary.whole_file import write_whole

if TYPE_CHECKING:
    from collector.sensing.calibration import SensorCalibration

RECORDED_ONLY: Final = ("load", "reference", "column")
LIVE_ONLY: Final = ("freq", "gpu_spec", "pmd", "seed", "window_std_ms", "gain_std", "longest", "record")


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorOptions:
    """The options of `collect sensor`."""

    gpu: str
    freq: str
    gpu_spec: str
    pmd: str
    window_std_ms: float | None
    gain_std: float | None
    longest: str
    readings: Path | None
    load: Path | None
    reference: Path | None
    column: str | None
    out: Path | None
    report: Path | None
    record: Path | None
    seed: int


@click.command("sensor", context_settings=CONTEXT)
@gpu_option
@click.option("--freq", default="current", show_default=True, metavar="MHZ", help="SM clock during the characterisation, or current.")
@gpu_spec_option
@meter_option
@click.option("--window-std-ms", type=FiniteRange(min=0, min_open=True), help="Run loads until the window's standard error is this.")
@click.option("--gain-std", type=FiniteRange(min=0, min_open=True), help="Run loads until the gain's standard error is this.")
@click.option("--longest", default="3m", show_default=True, metavar="TIME", help="Stop after loads of this length: 90s, 3m.")
@click.option("--readings", type=click.Path(path_type=Path), metavar="R.csv", help="Recorded polls: t_s,power_w or an nvidia-smi log.")
@click.option("--load", type=click.Path(path_type=Path), metavar="L.csv", help="When the load ran beside them: t_s,level.")
@click.option("--reference", type=click.Path(path_type=Path), metavar="P.csv", help="An external meter: t_s,power_w, or a PMD's raw bytes.")
@click.option("--column", metavar="NAME", help="The log's power column, such as power.draw.instant.")
@output_option("--out", metavar="SENSOR.json", help="Write the JSON document to a file as well.")
@output_option("--report", metavar="R.html", help="Write a page with charts.")
@record_option
@seed_option
@output_options
@click.pass_context
def sensor_command(context: click.Context, /, speak: Speaker, **options: Any) -> int:
    """Characterise a board's power sensor: update clock, averaging, delay, rise; with a meter also gain.

    On a board it runs loads of its own, for half a minute or until the requested standard errors are reached.  With
    --readings it works from a recording, with fewer results; --gpu then names the board of a log that holds
    several.  An undetermined value is null; notes give the reason and the run that would determine it.
    """
    _check_options(context, recorded=options["readings"] is not None)
    asked = SensorOptions(**options)
    if asked.readings is not None:
        named = [str(path) for path in (asked.readings, asked.load, asked.reference) if path is not None]
        check_present(named, "{}: cannot be read (No such file or directory)")
        board = asked.gpu if context.get_parameter_source("gpu") is not ParameterSource.DEFAULT else None
        calibration, left_out, page = _recorded(asked, asked.readings, board)
        open_question = asked.load is None and asked.reference is None and calibration.update_period_s is not None
    else:
        calibration, runs, page = _measured(asked)
        open_question, left_out = False, 0
        for run in runs if speak.verbose else ():
            speak.note(run)
    if asked.report is not None:
        write_whole(asked.report, page().encode())
    from collector.sensing.figures import sensor_lines

    if asked.out is not None:
        write_document(asked.out, calibration.document())
    speak.say(calibration.document(), sensor_lines(calibration))
    doubts = [calibration.notes["readings"]] if left_out else []
    doubts += [calibration.notes["time_base"]] if "time_base" in calibration.notes else []
    for doubt in doubts:
        speak.warn(doubt)
    told = calibration.averaging != "undetermined" or open_question
    return DONE if told and not doubts else DONE_WITH_WARNINGS


def _check_options(context: click.Context, *, recorded: bool) -> None:
    """Raises UsageError for options of the other way of working."""
    foreign = LIVE_ONLY if recorded else RECORDED_ONLY
    for name in foreign:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            word = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{word} has no meaning with --readings" if recorded else f"{word} needs --readings", context)


def _recorded(asked: SensorOptions, readings: Path, board: str | None) -> "tuple[SensorCalibration, int, Callable[[], str]]":
    """The sensor behind a recording, the number of its rows that were left out, and a function that makes its page."""
    require_dataset_packages()
    from collector.recordings.run import read_run
    from collector.sensing.identify import SensorName, SensorRecord, identify_sensor
    from collector.sensing.reports import sensor_html

    run = read_run(readings, asked.load, asked.reference, asked.column, board)
    polled = SensorRecord(
        time_s=run.time_s,
        power_w=run.power_w,
        load=run.load,
        meter_s=run.meter_s,
        meter_w=run.meter_w,
        meter_rate_std=run.meter_rate_std,
    )
    uuid = run.board if run.board.upper().startswith("GPU-") else ""
    found = identify_sensor(polled, SensorName(gpu_uuid=uuid, driver="", sensor="log", field=run.column), run.remarks)
    title = f"{readings.name}: power sensor"
    return found.calibration, run.left_out, lambda: sensor_html(title, found.calibration, polled, found.updates)


def _measured(asked: SensorOptions) -> "tuple[SensorCalibration, tuple[str, ...], Callable[[], str]]":
    """The sensor of a board, the loads of the measurement, and a function that makes its page."""
    from collector.bench import open_bench
    from collector.boards import sole_use
    from collector.clocks import held_clock
    from collector.sampling import Sampler
    from collector.sensing.live import CharacterisationGoal, characterise_sensor
    from collector.sensing.reports import sensor_html

    if asked.gain_std is not None and not asked.pmd and not asked.gpu.strip().startswith("replay:"):
        raise click.UsageError("--gain-std needs --pmd: without a meter the gain cannot be told")
    window_std_s = None if asked.window_std_ms is None else asked.window_std_ms * 1e-3
    longest_s = duration_s(asked.longest, "--longest")
    goal = CharacterisationGoal(window_std_s=window_std_s, gain_std=asked.gain_std, longest_s=longest_s)
    board = one_board(asked.gpu)
    with (
        stoppable(),
        sole_use(board),
        open_bench(board, seed=asked.seed, gpu_spec=asked.gpu_spec, **meter_arguments(asked.pmd, asked.gpu)) as opened,
        perhaps_recorded(opened, asked.record) as bench,
        held_clock(bench.gpu) as hold,
    ):
        clocks = asked_clocks(asked.freq, bench.gpu, "--freq")
        if len(clocks) != 1:
            raise CollectorError(f"--freq {asked.freq!r} names {len(clocks)} clocks; give one, or current")
        hold.set(clocks[0])
        found = characterise_sensor(bench, Sampler(bench.gpu, bench.sensors), goal=goal)
        title = f"{bench.gpu.identity().name}: power sensor{' (simulated)' if bench.simulated else ''}"
    return found.calibration, found.runs, lambda: sensor_html(title, found.calibration, found.record, found.updates)
