"""`collect sensor`."""

import json
from pathlib import Path

import click

from collector.commands.options import (
    CONTEXT,
    OutputFile,
    asked_clocks,
    gpu_option,
    meter_option,
    one_board,
    output_options,
    seed_option,
    simulated_meter,
)
from collector.commands.output import say
from collector.commands.stopping import stoppable
from collector.errors import CollectorError
from estimator.command_line import DONE, DONE_WITH_WARNINGS


@click.command("sensor", context_settings=CONTEXT)
@gpu_option
@click.option("--freq", default="current", show_default=True, metavar="MHZ", help="SM clock during the characterisation, or current.")
@meter_option
@click.option("--out", type=OutputFile(), metavar="SENSOR.json", help="Write the JSON document to a file as well.")
@seed_option
@output_options
def sensor_command(gpu: str, freq: str, pmd: str, out: Path | None, seed: int, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Characterise a board's power sensor: update clock, averaging, delay, rise; gain where a meter is there.

    Runs loads of its own for about half a minute.  What cannot be told is null, with the reason under notes.
    """
    from collector.bench import open_bench
    from collector.clocks import held_clock
    from collector.display import sensor_lines
    from collector.sampling import Sampler
    from collector.sensor.characterisation import characterise_sensor
    from estimator.whole_file import write_whole

    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise CollectorError(f"{out}: cannot be written; name a file in a folder that is there")
    with open_bench(one_board(gpu), seed=seed, meter=simulated_meter(pmd, gpu)) as bench, held_clock(bench.gpu) as hold, stoppable():
        clocks = asked_clocks(freq, bench, "--freq")
        if len(clocks) != 1:
            raise CollectorError(f"--freq {freq!r} names {len(clocks)} clocks; give one, or current")
        hold.set(clocks[0])
        calibration = characterise_sensor(bench, Sampler(bench.gpu, bench.sensors)).calibration
    document = calibration.document()
    if out is not None:
        try:
            write_whole(out, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())
        except OSError as error:
            raise CollectorError(f"{out}: cannot be written ({error.strerror})") from error
    say(document if as_json else sensor_lines(calibration))
    return DONE if calibration.averaging != "undetermined" else DONE_WITH_WARNINGS
