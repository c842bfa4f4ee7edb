"""`collect devices`."""

import click

from collector.commands.options import CONTEXT, output_options
from collector.commands.output import note, say
from estimator.command_line import DONE


@click.command("devices", context_settings=CONTEXT)
@output_options
def devices_command(as_json: bool, quiet: bool, verbose: bool) -> int:
    """What is there and what it supports: power fields, clock lock, energy counter, voltage."""
    from collector.devices.listing import device_documents, device_lines, driver_trouble

    devices = device_documents()
    say(devices if as_json else device_lines(devices))
    if not quiet and all(device["simulated"] for device in devices):
        note(f"simulated boards only: {driver_trouble()}")
    return DONE
