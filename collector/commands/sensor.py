"""`collect sensor` and `collect correct`: characterise a power sensor on a board, or from a recording, and correct what it read."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from collector.commands.options import (
    FILE,
    asked_clocks,
    gpu_option,
    gpu_spec_option,
    meter_arguments,
    meter_option,
    one_board,
    output_options,
    perhaps_recorded,
    poll_option,
    record_option,
    seed_option,
    sensor_option,
)
from collector.commands.output import Speaker, stoppable
from collector.errors import CollectorError, SensorError
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, is_given, output_option
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.values import frozen
from estimator.vocabulary.whole_file import write_whole

if TYPE_CHECKING:
    from collector.sensing.calibration import SensorCalibration

RECORDED_ONLY: Final = ("load", "reference", "column")
LIVE_ONLY: Final = ("freq", "gpu_spec", "pmd", "poll_ms", "seed", "record")


@frozen
class SensorOptions:
    """The options of `collect sensor`."""

    gpu: str
    freq: str
    gpu_spec: str
    pmd: str
    poll_ms: float
    readings: Path | None
    load: Path | None
    reference: Path | None
    column: str | None
    out: Path | None
    record: Path | None
    seed: int


@click.command("sensor")
@gpu_option
@click.option("--freq", default="current", show_default=True, metavar="MHZ", help="SM clock during the characterisation, or current.")
@gpu_spec_option
@meter_option
@poll_option
@click.option("--readings", type=FILE, metavar="R.csv", help="Recorded polls: t_s,power_w or an nvidia-smi log.")
@click.option("--load", type=FILE, metavar="L.csv", help="When the load ran beside them: t_s,level.")
@click.option("--reference", type=FILE, metavar="P.csv", help="An external meter: t_s,power_w, or a PMD's raw bytes.")
@click.option("--column", metavar="NAME", help="The log's power column, such as power.draw.instant.")
@output_option(metavar="SENSOR.json", help="Write the JSON document to a file as well.")
@record_option
@seed_option()
@output_options
def sensor_command(speak: Speaker, **options: Any) -> int:
    """Characterise a board's power sensor: update clock, averaging, delay, rise; with a meter also gain.

    On a board it runs loads of its own for half a minute.  With --readings it works from a recording, with fewer results; --gpu then
    names the board of a log that holds several.  An undetermined value is null; notes give the reason and the run that would
    determine it.
    """
    _check_options(recorded=options["readings"] is not None)
    asked = SensorOptions(**options)
    if asked.readings is not None:
        board = asked.gpu if is_given("gpu") else None
        calibration = _recorded(asked, asked.readings, board)
        open_question = asked.load is None and asked.reference is None and calibration.update_period_s is not None
    else:
        calibration = _measured(asked)
        open_question = False
    from collector.sensing.calibration import NO_METER
    from collector.sensing.figures import sensor_lines

    speak.say(calibration.document(), sensor_lines(calibration), asked.out)
    doubts = [text for subject in ("readings", "gain") if (text := calibration.notes.get(subject, NO_METER)) != NO_METER]
    speak.warn(*doubts)
    told = calibration.averaging != "undetermined" or open_question
    return DONE if told and not doubts else DONE_WITH_WARNINGS


def _check_options(*, recorded: bool) -> None:
    """Raises UsageError for options of the other way of working."""
    for name in LIVE_ONLY if recorded else RECORDED_ONLY:
        if is_given(name):
            word = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{word} has no meaning with --readings" if recorded else f"{word} needs --readings")


def _recorded(asked: SensorOptions, readings: Path, board: str | None) -> "SensorCalibration":
    """The sensor behind a recording."""
    from collector.recordings.run import read_run
    from collector.sensing.calibration import SensorCalibration
    from collector.sensing.catalogue import is_uuid
    from collector.sensing.identify import identify_sensor

    run = read_run(readings, asked.load, asked.reference, asked.column, board)
    uuid = run.board if is_uuid(run.board) else ""
    sensor = SensorCalibration(gpu_uuid=uuid, driver="", sensor="log", field=run.column)
    return identify_sensor(run.record, sensor, run.remarks).calibration


def _measured(asked: SensorOptions) -> "SensorCalibration":
    """The sensor of a board."""
    from collector.bench import open_bench
    from collector.boards import sole_use
    from collector.clocks import held_clock
    from collector.sampling import Sampler
    from collector.sensing.live import characterise_sensor

    board, meter = one_board(asked.gpu), meter_arguments(asked.pmd, asked.gpu)
    with (
        stoppable(),
        sole_use(board),
        open_bench(board, seed=asked.seed, gpu_spec=asked.gpu_spec, poll_s=1e-3 * asked.poll_ms, **meter) as opened,
        perhaps_recorded(opened, asked.record) as bench,
        held_clock(bench.gpu) as hold,
    ):
        clocks = asked_clocks(asked.freq, bench.gpu, "--freq")
        if len(clocks) != 1:
            raise CollectorError(f"--freq {asked.freq!r} names {len(clocks)} clocks; give one, or current")
        hold.set(clocks[0])
        return characterise_sensor(bench, Sampler(bench.gpu, bench.sensors))


DOUBTS: Final = (
    "catalogue", "field", "sensor", "averaging", "update_period_s", "readings", "gaps", "load",
)  # fmt: skip
"""Notes that turn the result into one with a warning."""


@click.command("correct")
@click.option("--readings", type=FILE, required=True, metavar="R.csv", help="Polled power: t_s,power_w, or an nvidia-smi log.")
@sensor_option(required=True)
@click.option("--load", type=FILE, metavar="L.csv", help="When the load ran: t_s,level.")
@click.option("--column", metavar="NAME", help="Power column of a log that has several.")
@click.option("--gpu", "board", metavar="WORD", help="Board in a log of several: index, UUID or PCI address.")
@output_option(metavar="C.csv", help="Write corrected power over time: t_s,power_w,power_std_w.")
@output_options
def correct_command(
    readings: Path, sensor: str, load: Path | None, column: str | None, board: str | None, out: Path | None, speak: Speaker
) -> int:
    """Correct recorded power readings: power and energy with their uncertainty, the naive value beside them.

    With --load the readings are regressed on the load, and the energy is that of the load, first start to last end; without,
    the sensor's averaging is removed if the readings allow it, and the energy is that of the recording.
    """
    from collector.recordings.run import read_run
    from collector.sensing.catalogue import CATALOGUE, check_board, field_doubt, given_sensor, not_characterised
    from collector.sensing.correct import correct_recording
    from collector.sensing.correction_text import correction_lines, trace_csv

    run = read_run(readings, load, column=column, board=board)
    record, calibration = run.record, given_sensor(sensor, field=run.column)
    check_board(calibration, run.board, str(readings))
    try:
        found = correct_recording(record.time_s, record.power_w, calibration, record.load)
    except SensorError as error:
        raise SensorError(f"{readings}: {error}") from error
    doubts = {"field": field_doubt(calibration, run.column), CATALOGUE: not_characterised(calibration)}
    found = replace(found, notes=FrozenMapping({**found.notes, **{key: text for key, text in doubts.items() if text}}))
    if out is not None:
        write_whole(out, trace_csv(found, run.origin_s).encode())
    of_recording = {f"recording.{key}": text for key, text in run.remarks.items()}
    speak.say({**found.document(run.origin_s), "notes": {**of_recording, **found.notes}}, correction_lines(found, out, run.remarks))
    warnings = [text for text in (run.remarks.get("readings"), *(found.notes.get(key, "") for key in DOUBTS)) if text]
    speak.warn(*warnings)
    return DONE_WITH_WARNINGS if warnings else DONE
