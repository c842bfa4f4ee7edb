"""Options that several commands of `collect` share, and what their words mean."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from collector.commands.output import note
from collector.errors import ClockListError, CollectorError, DeviceError
from estimator.command_line import QUIET_OR_VERBOSE, excludes, switch
from estimator.output_files import output_option

if TYPE_CHECKING:
    from collector.bench import Bench, Instruments
    from collector.devices.protocols import Gpu
    from collector.sensing.calibration import SensorCalibration

CONTEXT: Final = {"help_option_names": ["-h", "--help"]}
MOST_JOBS: Final = 2**31 - 1
"""Largest number of a job."""
DATASET_PACKAGES: Final = ("pyarrow",)
SIMULATED_METER: Final = "sim"


class FiniteRange(click.FloatRange):
    """A number within limits; unlike click's own range it takes no nan and no infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number.  Raises BadParameter."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number


gpu_option = click.option(
    "--gpu", default="0", show_default=True, metavar="WORD", help="Board: NVML index, UUID, PCI address, sim:PROFILE or replay:FILE."
)
gpu_spec_option = click.option(
    "--gpu-spec",
    default="",
    metavar="FILE.toml",
    help="Specification of a board for which none is shipped.",
)
meter_option = click.option(
    "--pmd", default="", metavar="PORT|sim", help="External power meter: its serial port; `sim` on a simulated board."
)
sensor_option = partial(
    click.option,
    "--sensor",
    metavar="SENSOR.json|NAME",
    help="Known sensor: a file of `collect sensor --out`, or an entry of `collect sensors`.",
)
record_option = output_option("--record", metavar="FILE", help="Record the run, for --gpu replay:FILE.")
resume_option = switch(
    "resume", "--resume", "--fresh", None, ("Go on with what is at --out.", "Replace what is at --out; without either nothing is replaced.")
)
seed_option = click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Chance of a simulated board.")


def output_options(command: Any) -> Any:
    """--json, --quiet and -v, on every command."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, callback=excludes("quiet", QUIET_OR_VERBOSE), help="More on stderr of what is done."),
        click.option(
            "-q", "--quiet", is_flag=True, callback=excludes("verbose", QUIET_OR_VERBOSE), help="No progress and no warnings on stderr."
        ),
        click.option("--json", "as_json", is_flag=True, help="The result as one JSON document."),
    ):
        command = option(command)
    return command


def require_dataset_packages() -> None:
    """Raises CollectorError where a package that datasets need is not installed."""
    for name in DATASET_PACKAGES:
        try:
            import_module(name)
        except ImportError:
            raise CollectorError(f"{name} is not installed; install wattprint[collect]: pip install 'wattprint[collect]'") from None


def meter_arguments(pmd: str, word: str) -> dict[str, Any]:
    """What `--pmd` means to `open_bench`.  Raises DeviceError for a meter that cannot be where the board is."""
    kind = word.strip().partition(":")[0] if ":" in word and word.strip().startswith(("sim:", "replay:")) else ""
    if not pmd:
        return {}
    if kind == "replay":
        raise DeviceError("--pmd: a recording has the meter that it was made with; leave the option out")
    if (pmd == SIMULATED_METER) != (kind == "sim"):
        meter = "the meter of a simulated board" if pmd == SIMULATED_METER else "a meter on a serial port"
        raise DeviceError(f"--pmd {pmd} is {meter}, which cannot be at {word!r}; simulated boards take --pmd sim, real ones a port")
    return {"meter": True} if kind == "sim" else {"meter_port": pmd}


def known_sensor(text: str | None, bench: "Bench | Instruments", quiet: bool) -> "SensorCalibration | None":
    """What `--sensor` names, for the board of a bench; None without one.  An entry of the catalogue comes with a warning.

    Raises SensorError for what cannot be used for this board.
    """
    if not text:
        return None
    from collector.sampling import Sampler
    from collector.sensing.catalogue import given_sensor, not_characterised

    identity = bench.gpu.identity()
    found = given_sensor(text, identity.uuid, identity.driver, Sampler(bench.gpu, bench.sensors).field, identity.name)
    if (doubt := not_characterised(found)) and not quiet:
        note(f"warning: sensor {doubt}")
    return found


@contextmanager
def perhaps_recorded(bench: "Bench", path: Path | None) -> Iterator["Bench"]:
    """The bench, recorded into a file where one is named."""
    if path is None:
        yield bench
        return
    from collector.replay.recording import recorded_bench

    with recorded_bench(bench, path) as recorded:
        yield recorded


def one_board(word: str) -> str:
    """The word for one board.  Raises CollectorError for several."""
    if "," in word or word.strip().lower() == "all":
        raise CollectorError(f"--gpu {word!r} names several boards; they are measured one at a time: run one command for each")
    return word.strip()


def asked_clocks(text: str, gpu: "Gpu", option: str) -> tuple[float | None, ...]:
    """SM clocks [MHz] of a board, None for its present one.  Raises BadParameter, naming the option, for a text that names none."""
    from collector.clocks import clocks_from_text

    try:
        return clocks_from_text(text, gpu)
    except ClockListError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def duration_s(text: str, option: str) -> float:
    """Seconds from "90s", "30m", "1h30m".  Raises BadParameter, naming the option, for anything else, bare numbers too."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip().lower())
    if not parts or not any(parts.groups()):
        raise click.BadParameter(f"{text!r} is no time; give a number with a unit, such as 90s, 30m or 1h30m", param_hint=option)
    hours, minutes, seconds = (float(part or 0.0) for part in parts.groups())
    total = 3600.0 * hours + 60.0 * minutes + seconds
    if total <= 0:
        raise click.BadParameter(f"{text!r} leaves no time", param_hint=option)
    return total
