"""Lists of boards, kernels and known sensors (`collect devices`, `kernels`, `sensors`); a dataset as file or page (`export`, `report`)."""

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from collector.commands.options import FILE, output_options
from collector.commands.output import Speaker, columns
from collector.errors import DeviceError, DriverError, SensorError
from estimator.options.command_line import check_output, output_option
from estimator.vocabulary.values import frozen
from estimator.vocabulary.whole_file import write_whole

if TYPE_CHECKING:
    from collector.devices.protocols import Gpu, PowerSensor

FIELDS: Final = ("name", "family", "instruction", "module", "level", "chains", "unroll", "modes", "patterns", "levels")
HEADS: Final = ("name", "family", "level", "modes", "patterns", "runs on", "instruction")


@frozen
class Device:
    """A board that `--gpu` can name here; `refused` is the reason why it cannot be measured."""

    gpu: str
    name: str
    specification: str = ""
    uuid: str
    pci_address: str = ""
    driver: str = ""
    simulated: bool = False
    power_fields: list[str]
    energy_counter: bool = False
    sm_clocks_mhz: list[float]
    power_limit_w: float | None = None
    voltage_readable: bool = False
    refused: str = ""

    @property
    def line(self) -> tuple[str, ...]:
        """The row of a table."""
        clocks = self.sm_clocks_mhz
        return (
            self.gpu,
            self.name,
            self.refused or ", ".join(self.power_fields) or "none",
            f"{clocks[0]:g} to {clocks[-1]:g} MHz" if clocks else "cannot be locked",
            "yes" if self.energy_counter else "no",
            "yes" if self.voltage_readable else "no",
        )


@click.command("devices")
@output_options
def devices_command(speak: Speaker) -> None:
    """List boards and their features: power fields, clock lock, energy counter, voltage."""
    found, trouble = devices()
    header = ("gpu", "name", "power fields", "SM clocks", "energy counter", "voltage")
    speak.say(found, columns([header, *(device.line for device in found)]))
    if trouble:
        speak.note(f"simulated boards only: {trouble}")


def devices() -> tuple[list[Device], str]:
    """Every board that `--gpu` can name here, real ones first; and the reason without a real one, else ""."""
    from collector.bench import bench_words, open_bench
    from collector.devices.nvml import BoardAddress, board_addresses, open_board
    from collector.devices.nvml_library import open_nvml

    found: list[Device] = []
    addresses: tuple[BoardAddress, ...] = ()
    trouble = "the NVIDIA driver knows no board"
    try:
        with open_nvml() as library:
            addresses = board_addresses(library)
    except DriverError as error:
        trouble = str(error)
    for address in addresses:
        word = str(address.index)
        try:
            with open_board(address.uuid or word) as board:
                found.append(_device(word, board.gpu, (board.sensor,)))
        except DeviceError as error:
            found.append(Device(gpu=word, name=address.name, uuid=address.uuid, power_fields=[], sm_clocks_mhz=[], refused=str(error)))
    for word in bench_words():
        with open_bench(word) as bench:
            found.append(_device(word, bench.gpu, bench.sensors))
    return found, "" if addresses else trouble


def _device(word: str, gpu: "Gpu", sensors: "tuple[PowerSensor, ...]") -> Device:
    identity, limit_w = gpu.identity(), gpu.power_limit_w()
    return Device(
        gpu=word,
        name=identity.name,
        specification=identity.canonical_name,
        uuid=identity.uuid,
        pci_address=identity.pci_address,
        driver=identity.driver,
        simulated=identity.simulated,
        power_fields=[field for sensor in sensors for field in sensor.fields()],
        energy_counter=any(sensor.read_energy() is not None for sensor in sensors),
        sm_clocks_mhz=list(gpu.supported_clocks_mhz()),
        power_limit_w=None if math.isnan(limit_w) else limit_w,
        voltage_readable=gpu.voltage_readable(),
    )


@click.command("kernels")
@click.option("--families", metavar="LIST", default="*", help="Only these families, wildcards allowed: ffma,mma_*,copy.")
@output_options
def kernels_command(families: str, speak: Speaker) -> None:
    """List names for `kernels = […]` of a campaign's [[instructions]]: generated microbenchmarks and copies.

    One line each: name, family, memory level or link, launch modes, data patterns, the architectures that run it, and the PTX instruction
    that it prices.
    """
    kernels = listed_kernels([name.strip() for name in families.split(",")])
    speak.say(kernels, columns([HEADS, *map(_cells, kernels)]))


def listed_kernels(families: Sequence[str]) -> list[dict[str, Any]]:
    """The kernels and copies of some families (wildcards allowed) as plain data.  Raises UsageError for a family without one."""
    from microbench.families.catalogue import KERNELS, SWEEP
    from microbench.kernel import ARCHITECTURES
    from microbench.loads.copies import COPIES
    from microbench.loads.generated import Named

    # A kernel with an energy of its own, the same with other chains or unrolling, or a copy.
    groups: dict[str, Sequence[Named]] = {"catalogue": KERNELS, "variant": SWEEP, "copy": COPIES}
    every = [(kind, one) for kind, group in groups.items() for one in group]
    for pattern in families:
        if not any(fnmatchcase(one.family, pattern) for _, one in every):
            raise click.UsageError(f"--families: no family is named {pattern!r}; without the option all are listed")
    return [
        {
            "kind": kind,
            "architectures": [name for name in ARCHITECTURES if not one.refusal(name)],
            **{name: getattr(one, name) for name in FIELDS},
        }
        for kind, one in every
        if any(fnmatchcase(one.family, pattern) for pattern in families)
    ]


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    from microbench.kernel import ARCHITECTURES

    runs, lacking = one["architectures"], [name for name in ARCHITECTURES if name not in one["architectures"]]
    runs_on = ", ".join(runs) if len(lacking) >= len(runs) else f"all but {', '.join(lacking)}" if lacking else "all"
    return (one["name"], one["family"], one["level"], ",".join(one["modes"]), ",".join(one["patterns"]), runs_on, one["instruction"])


@click.command("sensors")
@click.argument("name", required=False)
@click.option("--entry", type=FILE, metavar="SENSOR.json", help="Make NAME's entry from a characterised sensor.")
@output_option(metavar="FILE.toml", help="Where to write it.")
@output_options
def sensors_command(name: str | None, entry: Path | None, out: Path | None, speak: Speaker) -> None:
    """Known power sensors by board, driver and field; those of one board and its generation with NAME.

    NAME is that of an entry or a board's own ("NVIDIA H100 80GB HBM3").  An entry describes another card: characterise
    yours with `collect sensor`.  `--sensor ENTRY[@DRIVER][:FIELD]` takes an entry if nothing better is known.
    The folder that WATTPRINT_SENSORS names adds entries; --entry writes one to send back or to put there.
    """
    from collector.sensing.calibration import load_calibration
    from collector.sensing.catalogue import catalogue, entry_text

    if entry is not None or out is not None:
        if name is None or entry is None or out is None:
            raise click.UsageError("an entry needs NAME, --entry SENSOR.json and --out FILE.toml")
        text = entry_text(load_calibration(entry), name)
        write_whole(out, text.encode())
        speak.say({"out": str(out)}, [text.rstrip(), f"written to {out}"])
        return
    found = [sensor for sensor in catalogue() if name is None or sensor.names(name)]
    if not found:
        raise SensorError(f"{name}: no board of the catalogue of sensors; `collect sensors` lists them")
    rows: list[Sequence[str]] = [("sensor", "driver", "fields", "averaging", "period ms", "width ms", "rise ms", "gain", "runs")]
    for one in found:
        times = ("-" if value is None else f"{value * 1e3:.4g}" for value in (one.update_period_s, one.window_s, one.rise_time_s))
        title = f"{one.name} (generation)" if one.generation else one.name
        rows.append(
            (title, one.driver, ", ".join(one.fields), one.averaging, *times, f"{one.gain:.3f}" if one.gain else "-", f"{one.runs or '-'}")
        )
    notes = dict.fromkeys(f"  note: {one.name}: {text}" for one in found for text in one.doubts)
    speak.say(found, [*columns(rows), *notes])


@click.command("export")
@click.argument("dataset", type=FILE)
@click.option("--to", "kind", type=click.Choice(["csv", "parquet"]), required=True, help="Format to write.")
@output_option(help="File to write; without it the dataset's name with the format's suffix.")
@output_options
def export_command(dataset: Path, kind: str, out: Path | None, speak: Speaker) -> None:
    """Write DATASET (a Parquet file, a folder or the log of an unfinished campaign) as CSV or as one Parquet file."""
    from collector.dataset.reader import left_out
    from collector.dataset.writer import export_dataset

    if out is None:
        out = dataset.with_suffix(f".{kind}")
        check_output(out)
    rows = export_dataset(dataset, kind, out)
    speak.warn(*filter(None, [left_out(dataset)]))
    speak.say({"output": str(out), "rows": rows}, [f"{out}: {rows} rows"])


@click.command("report")
@click.argument("dataset", type=FILE)
@output_option(required=True, metavar="PAGE.html", help="Page to write.")
@output_options
def report_command(dataset: Path, out: Path, speak: Speaker) -> None:
    """Write a page about DATASET (a Parquet file, a folder or the log of an unfinished campaign): what holds, what does not and why."""
    from collector.campaigns.page import dataset_page
    from collector.dataset.reader import left_out

    page, rows = dataset_page(dataset)
    speak.warn(*filter(None, [left_out(dataset)]))
    write_whole(out, page.encode("utf-8", errors="replace"))
    speak.say({"output": str(out), "rows": rows}, [f"{out}: a page about {rows} rows"])
