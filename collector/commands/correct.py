"""`collect correct`."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from collector.commands.options import CONTEXT, FILE, output_options, require_dataset_packages, sensor_option
from collector.commands.output import Speaker
from collector.errors import SensorError
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS
from estimator.options.output_files import output_option
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.whole_file import write_whole

DOUBTS: Final = (
    "catalogue", "field", "sensor", "averaging", "update_period_s", "readings", "gaps", "load",
)  # fmt: skip
"""Notes that turn the result into one with a warning."""


@click.command("correct", context_settings=CONTEXT)
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
    require_dataset_packages()
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
    document = {**found.document(run.origin_s), "notes": {**of_recording, **found.notes}}
    speak.say(document, correction_lines(found, out, run.remarks))
    warnings = [text for text in (run.remarks.get("readings"), *(found.notes.get(key, "") for key in DOUBTS)) if text]
    for text in warnings:
        speak.warn(text)
    return DONE_WITH_WARNINGS if warnings else DONE
