"""`collect sensor`: characterise a power sensor on a board, or from a recording."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
from collector.commands.output import Speaker, write_document, write_page
from collector.commands.stopping import stoppable
from collector.errors import CollectorError
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, check_present
from estimator.options.output_files import output_option

if TYPE_CHECKING:
    from collector.sensing.calibration import SensorCalibration
    from collector.sensing.live import CharacterisationGoal

REPLAYED, UUID_MARK = "replay:", "GPU-"
RECORDED_ONLY = ("load", "reference", "column")
LIVE_ONLY = ("freq", "gpu_spec", "pmd", "seed", "window_std_ms", "gain_std", "longest", "record")


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
@output_option("--pictures", kind="folder", metavar="FOLDER", help="Write the charts as PNG files.")
@record_option
@seed_option
@output_options
@click.pass_context
def sensor_command(
    context: click.Context,
    gpu: str,
    freq: str,
    gpu_spec: str,
    pmd: str,
    window_std_ms: float | None,
    gain_std: float | None,
    longest: str,
    readings: Path | None,
    load: Path | None,
    reference: Path | None,
    column: str | None,
    out: Path | None,
    report: Path | None,
    pictures: Path | None,
    record: Path | None,
    seed: int,
    speak: Speaker,
) -> int:
    """Characterise a board's power sensor: update clock, averaging, delay, rise; gain where a meter is there.

    On a board it runs loads of its own, for half a minute or until the asked standard errors are reached.  With
    --readings it works from a recording, as far as that can tell; --gpu then names the board of a log that holds
    several.  What cannot be told is null, with the reason and the run that would tell under notes.
    """
    _check_options(context, recorded=readings is not None)
    if readings is not None:
        check_present([str(path) for path in (readings, load, reference) if path is not None], UNREADABLE)
        board = gpu if context.get_parameter_source("gpu") is not ParameterSource.DEFAULT else None
        calibration, left_out, page = _recorded(readings, load, reference, column, board)
        open_question = load is None and reference is None and calibration.update_period_s is not None
    else:
        from collector.sensing.live import CharacterisationGoal

        if gain_std is not None and not pmd and not gpu.strip().startswith(REPLAYED):
            raise click.UsageError("--gain-std needs --pmd: without a meter the gain cannot be told", context)
        window_std_s = None if window_std_ms is None else window_std_ms * 1e-3
        goal = CharacterisationGoal(window_std_s=window_std_s, gain_std=gain_std, longest_s=duration_s(longest, "--longest"))
        calibration, runs, page = _measured(gpu, freq, gpu_spec, pmd, seed, goal, record)
        open_question, left_out = False, 0
        for run in runs if speak.verbose else ():
            speak.note(run)
    if report is not None or pictures is not None:
        write_page(report, pictures, page())
    from collector.sensing.figures import sensor_lines

    if out is not None:
        write_document(out, calibration.document())
    speak.say(calibration.document(), sensor_lines(calibration))
    doubts = [calibration.notes["readings"]] if left_out else []
    doubts += [calibration.notes["time_base"]] if "time_base" in calibration.notes else []
    for doubt in doubts:
        speak.warn(doubt)
    told = calibration.averaging != "undetermined" or open_question
    return DONE if told and not doubts else DONE_WITH_WARNINGS


UNREADABLE: Final = "{}: cannot be read (No such file or directory)"
"""Said of a recording that is not there, before what would read it is loaded."""


def _check_options(context: click.Context, *, recorded: bool) -> None:
    """Raises UsageError for options that belong to the other way of working."""
    foreign = LIVE_ONLY if recorded else RECORDED_ONLY
    for name in foreign:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            word = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{word} has no meaning with --readings" if recorded else f"{word} needs --readings", context)


def _recorded(
    readings: Path, load: Path | None, reference: Path | None, column: str | None, board: str | None
) -> "tuple[SensorCalibration, int, Callable[[], str]]":
    """The sensor behind a recording, how many of its rows were left out, and what makes a page of it."""
    require_dataset_packages()
    from collector.recordings.run import read_run
    from collector.sensing.identify import SensorName, SensorRecord, identify_sensor
    from collector.sensing.reports import sensor_html

    run = read_run(readings, load, reference, column, board)
    polled = SensorRecord(
        time_s=run.time_s,
        power_w=run.power_w,
        load=run.load,
        meter_s=run.meter_s,
        meter_w=run.meter_w,
        meter_rate_std=run.meter_rate_std,
    )
    name = SensorName(gpu_uuid=run.board if run.board.upper().startswith(UUID_MARK) else "", driver="", sensor="log", field=run.column)
    found = identify_sensor(polled, name, run.remarks)
    title = f"{readings.name}: power sensor"
    return found.calibration, run.left_out, lambda: sensor_html(title, found.calibration, polled, found.updates)


def _measured(
    gpu: str, freq: str, gpu_spec: str, pmd: str, seed: int, goal: "CharacterisationGoal", record: Path | None
) -> "tuple[SensorCalibration, tuple[str, ...], Callable[[], str]]":
    """The sensor of a board, the loads that were run, and what makes a page of it."""
    from collector.bench import open_bench
    from collector.boards import sole_use
    from collector.clocks import held_clock
    from collector.sampling import Sampler
    from collector.sensing.live import characterise_sensor
    from collector.sensing.reports import sensor_html

    board = one_board(gpu)
    with (
        stoppable(),
        sole_use(board),
        open_bench(board, seed=seed, gpu_spec=gpu_spec, **meter_arguments(pmd, gpu)) as opened,
        perhaps_recorded(opened, record) as bench,
        held_clock(bench.gpu) as hold,
    ):
        clocks = asked_clocks(freq, bench.gpu, "--freq")
        if len(clocks) != 1:
            raise CollectorError(f"--freq {freq!r} names {len(clocks)} clocks; give one, or current")
        hold.set(clocks[0])
        found = characterise_sensor(bench, Sampler(bench.gpu, bench.sensors), goal=goal)
        title = f"{bench.gpu.identity().name}: power sensor{' (simulated)' if bench.simulated else ''}"
    return found.calibration, found.runs, lambda: sensor_html(title, found.calibration, found.record, found.updates)
