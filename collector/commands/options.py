"""Options that several commands of `collect` share, and the meaning of their words."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from collector.commands.output import Speaker
from collector.errors import ClockListError, CollectorError, DeviceError
from estimator.commands.options import flag, with_options
from estimator.options.command_line import OutputPlace, is_given, output_option

if TYPE_CHECKING:
    from collector.clocks import Clocks
    from collector.devices.protocols import Bench, Gpu, Instruments
    from collector.sensing.calibration import SensorCalibration

FILE: Final = click.Path(path_type=Path)
SIMULATED_METER: Final = "sim"


GPU: Final = "Board: NVML index, UUID, PCI address, sim:PROFILE or replay:FILE"
gpu_option = click.option("--gpu", default="0", show_default=True, metavar="WORD", help=f"{GPU}.")
freqs_option = click.option(
    "--freqs", default="current", show_default=True, metavar="MHZ", help="SM clocks: 510,900,1410, LO:HI:STEP, all or current."
)
gpu_spec_option = click.option("--gpu-spec", default="", metavar="FILE.toml", help="Specification of a board for which none is shipped.")
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
seed_option = partial(
    click.option, "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Chance of a simulated board."
)
config_option = click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    help="The daemon's config; else $WATTPRINT_CONFIG, /etc/wattprint/daemon.toml.",
)
poll_option = click.option(
    "--poll-ms", type=click.FloatRange(0.5, 100), default=2.0, hidden=True, help="Time between two readings of the power."
)

campaign_options: Final = with_options(
    click.option("--gpu", default="0", show_default=True, metavar="WORD", help=f"{GPU}; several side by side: 0,1 or all."),
    freqs_option,
    click.option(
        "-o",
        "--out",
        default="dataset.parquet",
        show_default=True,
        metavar="FILE|FOLDER/",
        type=OutputPlace(),
        help="Dataset to write; in a folder, a part of one.",
    ),
    click.option("--families", metavar="LIST", help="Only these kernel families: gemm,conv,attention,softmax,…"),
    click.option("--budget", default="", metavar="TIME", help="Limit of the board's time: 90s, 30m, 2h; of a longer plan, a random part."),
    gpu_spec_option,
    sensor_option(),
    meter_option,
    click.option("--resume/--fresh", default=None, help="Go on with what is at --out, or replace it; without either nothing is replaced."),
    seed_option(help="Chooses kernels and their order."),
    flag("--no-trace", help="Do not ask CUPTI which kernels ran: rows have no kernel names."),
    poll_option,
    flag("--dry-run", help="Print the plan, its counts and its time; measure nothing."),
)
"""Options of a campaign, for `collect` and `collect submit`."""


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--json, --quiet and -v, on every command, which receives them as `speak`."""

    @wraps(command)
    def speaking(*arguments: Any, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> Any:
        return command(*arguments, speak=Speaker(as_json=as_json, quiet=quiet, verbose=verbose), **options)

    return with_options(
        flag("--json", "as_json", help="The result as one JSON document."),
        flag("-q", "--quiet", help="No progress and no warnings on stderr."),
        flag("-v", "--verbose", help="More on stderr of what is done."),
    )(speaking)


def given_words(without: frozenset[str]) -> dict[str, list[str]]:
    """Options that the current command was given, by name and as words, without some names."""
    context = click.get_current_context()
    words = {}
    for option in context.command.params:
        name = option.name or ""
        if isinstance(option, click.Option) and name not in without and is_given(name):
            value = context.params[name]
            words[name] = [(option.opts if value else option.secondary_opts)[0]] if option.is_flag else [option.opts[0], str(value)]
    return words


def meter_arguments(pmd: str, word: str) -> dict[str, Any]:
    """Arguments of `open_bench` for `--pmd`.  Raises DeviceError for a meter that is impossible on this board."""
    if not pmd:
        return {}
    simulated = word.strip().startswith("sim:")
    if word.strip().startswith("replay:") or (pmd == SIMULATED_METER) != simulated:
        raise DeviceError(
            f"--pmd {pmd} cannot be at {word!r}: simulated boards take --pmd sim, real ones a port, a recording has its own meter"
        )
    return {"meter": True} if simulated else {"meter_port": pmd}


def sensor_of(text: str | None, bench: "Instruments", speak: Speaker) -> "SensorCalibration":
    """The calibration that `--sensor` names, else one with only the sensor's names.  An entry of the catalogue gives a warning.

    Raises SensorError for one that cannot be used for this board.
    """
    from collector.sampling import Sampler
    from collector.sensing.catalogue import board_sensor, not_characterised

    sampler = Sampler(bench.gpu, bench.sensors)
    found = board_sensor(text, bench.gpu.identity(), sampler.sensor_name, sampler.field)
    if doubt := not_characterised(found):
        speak.warn(f"sensor {doubt}")
    return found


@contextmanager
def perhaps_recorded(bench: "Bench", path: Path | None) -> Iterator["Bench"]:
    """The bench, recorded into a file if one is given."""
    from collector.replay.recording import recorded_bench

    with nullcontext(bench) if path is None else recorded_bench(bench, path) as recorded:
        yield recorded


def one_board(word: str) -> str:
    """The word for one board.  Raises CollectorError for several."""
    from collector.boards import several

    if several(word):
        raise CollectorError(f"--gpu {word!r} names several boards; they are measured one at a time: run one command for each")
    return word.strip()


def asked_clocks(text: str, gpu: "Gpu", option: str) -> "Clocks":
    """SM clocks [MHz] of a board, None for its current one.  Raises BadParameter, naming the option, for a text that names none."""
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
