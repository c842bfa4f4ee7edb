"""`collect sensors`: the catalogue of published power sensors."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from collector.commands.options import CONTEXT, output_options
from collector.commands.output import Speaker, columns
from collector.errors import SensorError
from estimator.options.command_line import DONE

if TYPE_CHECKING:
    from collector.sensing.catalogue import PublishedSensor

COLUMNS: Final = ("sensor", "driver", "fields", "averaging", "period ms", "width ms", "rise ms", "gain", "runs")


@click.command("sensors", context_settings=CONTEXT)
@click.argument("name", required=False)
@output_options
def sensors_command(name: str | None, speak: Speaker) -> int:
    """Published power sensors by board, driver and field; those of one board and its generation with NAME.

    NAME is that of an entry or a board's own ("NVIDIA H100 80GB HBM3").  What an entry says is another card's: characterise
    yours with `collect sensor`.  `--sensor ENTRY[@DRIVER][:FIELD]` takes an entry where nothing better is known.
    """
    from collector.sensing.catalogue import catalogue

    found = [sensor for sensor in catalogue() if name is None or sensor.names(name)]
    if not found:
        raise SensorError(f"{name}: no board of the catalogue of sensors; `collect sensors` lists them")
    speak.say([asdict(sensor) for sensor in found], _lines(found))
    return DONE


def _lines(sensors: "Sequence[PublishedSensor]") -> list[str]:
    """A table of sensors for people, and what is to be said of them."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for one in sensors:
        times = ("-" if value is None else f"{value * 1e3:.4g}" for value in (one.update_period_s, one.window_s, one.rise_time_s))
        name = f"{one.name} (generation)" if one.generation else one.name
        rows.append((name, one.driver, ", ".join(one.fields), one.averaging, *times, f"{one.gain or '-'}", f"{one.runs or '-'}"))
    return [*columns(rows), *dict.fromkeys(f"  note: {one.name}: {text}" for one in sensors for text in one.doubts)]
