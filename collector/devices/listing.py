"""What boards are there and what they support."""

from typing import Any, Final

from collector.bench import bench_words, open_bench

COLUMNS: Final = ("gpu", "name", "power fields", "SM clocks", "energy counter", "voltage")


def device_documents() -> list[dict[str, Any]]:
    """Every board that `--gpu` can name here, as plain data."""
    return [_describe(word) for word in bench_words()]


def device_lines(devices: list[dict[str, Any]]) -> list[str]:
    """The boards as a table."""
    rows = [COLUMNS]
    for device in devices:
        clocks = device["sm_clocks_mhz"]
        rows.append(
            (
                device["gpu"],
                device["name"],
                ", ".join(device["power_fields"]) or "none",
                f"{clocks[0]:g} to {clocks[-1]:g} MHz" if clocks else "cannot be locked",
                "yes" if device["energy_counter"] else "no",
                "yes" if device["voltage_readable"] else "no",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _describe(word: str) -> dict[str, Any]:
    """One board, opened and left as it was."""
    with open_bench(word) as bench:
        identity = bench.gpu.identity()
        return {
            "gpu": word,
            "name": identity.name,
            "specification": identity.canonical_name,
            "uuid": identity.uuid,
            "pci_address": identity.pci_address,
            "driver": identity.driver,
            "simulated": identity.simulated,
            "power_fields": [field for sensor in bench.sensors for field in sensor.fields()],
            "energy_counter": any(sensor.read_energy() is not None for sensor in bench.sensors),
            "sm_clocks_mhz": list(bench.gpu.supported_clocks_mhz()),
            "power_limit_w": bench.gpu.power_limit_w(),
            "voltage_readable": bench.gpu.voltage_readable(),
        }
