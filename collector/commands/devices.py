"""`collect devices`."""

import math
from typing import TYPE_CHECKING, Any, Final

import click

from collector.commands.options import CONTEXT, output_options
from collector.commands.output import Speaker, columns
from estimator.options.command_line import DONE

if TYPE_CHECKING:
    from collector.devices.protocols import Gpu, PowerSensor

COLUMNS: Final = ("gpu", "name", "power fields", "SM clocks", "energy counter", "voltage")
REFUSED: Final[dict[str, Any]] = {
    "specification": "",
    "pci_address": "",
    "driver": "",
    "simulated": False,
    "power_fields": [],
    "energy_counter": False,
    "sm_clocks_mhz": [],
    "power_limit_w": None,
    "voltage_readable": False,
}
"""What is said of a board that cannot be measured; `refused` says why."""


@click.command("devices", context_settings=CONTEXT)
@output_options
def devices_command(speak: Speaker) -> int:
    """What is there and what it supports: power fields, clock lock, energy counter, voltage."""
    devices = device_documents()
    speak.say(devices, _lines(devices))
    if all(device["simulated"] for device in devices):
        speak.note(f"simulated boards only: {driver_trouble()}")
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


def device_documents() -> list[dict[str, Any]]:
    """Every board that `--gpu` can name here, real ones first, as plain data."""
    from collector.bench import bench_words

    return [*_real_boards(), *(_describe(word) for word in bench_words())]


def driver_trouble() -> str | None:
    """Why no real board can be reached; None where one can be."""
    from collector.devices.nvml_library import open_nvml
    from collector.errors import DriverError

    try:
        with open_nvml() as library:
            return None if library.handles() else "the NVIDIA driver knows no board"
    except DriverError as error:
        return str(error)


def _real_boards() -> list[dict[str, Any]]:
    """Boards of the NVIDIA driver; none where there is no usable one."""
    from collector.devices.nvml import board_addresses, open_board
    from collector.devices.nvml_library import open_nvml
    from collector.errors import DeviceError, DriverError

    try:
        with open_nvml() as library:
            addresses = board_addresses(library, library.handles())
    except DriverError:
        return []
    documents = []
    for address in addresses:
        try:
            with open_board(address.uuid or str(address.index)) as board:
                documents.append(_document(str(address.index), board.gpu, (board.sensor,)))
        except DeviceError as error:
            documents.append({**REFUSED, "gpu": str(address.index), "name": address.name, "uuid": address.uuid, "refused": str(error)})
    return documents


def _describe(word: str) -> dict[str, Any]:
    """One simulated board, opened and left as it was."""
    from collector.bench import open_bench

    with open_bench(word) as bench:
        return _document(word, bench.gpu, bench.sensors)


def _document(word: str, gpu: "Gpu", sensors: "tuple[PowerSensor, ...]") -> dict[str, Any]:
    identity = gpu.identity()
    return {
        "gpu": word,
        "name": identity.name,
        "specification": identity.canonical_name,
        "uuid": identity.uuid,
        "pci_address": identity.pci_address,
        "driver": identity.driver,
        "simulated": identity.simulated,
        "power_fields": [field for sensor in sensors for field in sensor.fields()],
        "energy_counter": any(sensor.read_energy() is not None for sensor in sensors),
        "sm_clocks_mhz": list(gpu.supported_clocks_mhz()),
        "power_limit_w": _known(gpu.power_limit_w()),
        "voltage_readable": gpu.voltage_readable(),
        "refused": "",
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
