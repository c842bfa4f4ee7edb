"""`collect sensors`: the catalogue of published power sensors."""

import click

from collector.commands.options import CONTEXT, output_options
from collector.commands.output import say
from collector.errors import SensorError
from estimator.command_line import DONE


@click.command("sensors", context_settings=CONTEXT)
@click.argument("name", required=False)
@output_options
def sensors_command(name: str | None, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Published power sensors by board, driver and field; those of one board and its generation with NAME.

    NAME is that of an entry or a board's own ("NVIDIA H100 80GB HBM3").  What an entry says is another card's: characterise
    yours with `collect sensor`.  `--sensor ENTRY[@DRIVER][:FIELD]` takes an entry where nothing better is known.
    """
    from collector.sensor.catalogue import catalogue, near_entries, sensor_lines

    found = [sensor for sensor in catalogue() if name is None or sensor.names(name)]
    if not found:
        raise SensorError(f"{name}: no board of the catalogue of sensors{near_entries(name or '')}")
    say([sensor.document() for sensor in found] if as_json else sensor_lines(found, doubts=name is not None))
    return DONE
