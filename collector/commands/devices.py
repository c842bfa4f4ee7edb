"""`collect devices`."""

from typing import Any, Final

import click

from collector.commands.options import CONTEXT, output_options
from collector.commands.output import columns, note, say
from estimator.command_line import DONE

COLUMNS: Final = ("gpu", "name", "power fields", "SM clocks", "energy counter", "voltage")


@click.command("devices", context_settings=CONTEXT)
@output_options
def devices_command(as_json: bool, quiet: bool, verbose: bool) -> int:
    """What is there and what it supports: power fields, clock lock, energy counter, voltage."""
    from collector.devices.listing import device_documents, driver_trouble

    devices = device_documents()
    say(devices if as_json else _lines(devices))
    if not quiet and all(device["simulated"] for device in devices):
        note(f"simulated boards only: {driver_trouble()}")
    return DONE


def _lines(devices: list[dict[str, Any]]) -> list[str]:
    """The boards as a table."""
    rows = [COLUMNS]
    for device in devices:
        clocks = device["sm_clocks_mhz"]
        rows.append(
            (
                device["gpu"],
                device["name"],
                device["refused"] or ", ".join(device["power_fields"]) or "none",
                f"{clocks[0]:g} to {clocks[-1]:g} MHz" if clocks else "cannot be locked",
                "yes" if device["energy_counter"] else "no",
                "yes" if device["voltage_readable"] else "no",
            )
        )
    return columns(rows)
