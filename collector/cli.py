"""The command `collect`."""

import json
import math
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from collector.errors import CollectorError
from estimator import __version__
from estimator.command_line import DONE, DONE_WITH_WARNINGS, run_command
from estimator.errors import EstimatorError

if TYPE_CHECKING:
    from collector.campaign import CampaignOutcome, Progress

EXTRA_PACKAGES: Final = ("pyarrow",)
DEFAULT_OUTPUT: Final = "dataset.parquet"
DEFAULT_CAMPAIGN: Final = "quick"
CONTEXT: Final = {"help_option_names": ["-h", "--help"]}


def _output_options(command: Any) -> Any:
    """--json, --quiet and -v, on every command."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="A line for every row on stderr."),
        click.option("-q", "--quiet", is_flag=True, help="No progress and no warnings on stderr."),
        click.option("--json", "as_json", is_flag=True, help="The result as one JSON document."),
    ):
        command = option(command)
    return command


@click.group(
    invoke_without_command=True,
    context_settings=CONTEXT,
    epilog="Exit status: 0 done, 1 not done, 2 wrong usage, 3 done but data were rejected, 130 interrupted.",
)
@click.option("--gpu", default="0", show_default=True, metavar="WORD", help="Board: NVML index, UUID, PCI address or sim:PROFILE.")
@click.option("--freqs", default="current", show_default=True, metavar="MHZ", help="SM clocks: 510,900,1410, LO:HI:STEP, all or current.")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUTPUT, show_default=True, help="Dataset to write.")
@click.option("--campaign", default=DEFAULT_CAMPAIGN, show_default=True, metavar="NAME|FILE.toml", help="What to measure.")
@click.option("--families", metavar="LIST", help="Only these kernel families: gemm,conv,attention,softmax,…")
@click.option("--budget", default="", metavar="TIME", help="Begin no kernel after this much of the board's time: 90s, 30m, 2h.")
@click.option("--sensor", type=click.Path(path_type=Path), metavar="SENSOR.json", help="Known sensor, from `collect sensor --out`.")
@click.option("--pmd", default="", metavar="PORT|sim", help="External power meter: `sim` puts one on a simulated board.")
@click.option("--resume/--fresh", default=None, help="Go on with, or replace, what is at --out; without either nothing is replaced.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Chooses kernels and their order.")
@click.option("--dry-run", is_flag=True, help="Print the plan, its counts and its time; measure nothing.")
@_output_options
@click.version_option(__version__, prog_name="collect")
@click.pass_context
def collect_command(context: click.Context, /, **options: Any) -> int:
    """Measure latency, power and energy of GPU kernels into a Parquet dataset.

    Characterises the power sensor, measures idle power at each clock, then runs every kernel for as long as the
    sensor needs.  Clocks are given back however it ends; finished rows are never lost.
    """
    if context.invoked_subcommand is not None:
        return DONE
    _require_extra()
    return _campaign(**options)


def _campaign(
    gpu: str,
    freqs: str,
    out: Path,
    campaign: str,
    families: str | None,
    budget: str,
    sensor: Path | None,
    pmd: str,
    resume: bool | None,
    seed: int,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Plan, measure, sum up."""
    from collector.bench import open_bench
    from collector.campaign import campaign_key, run_campaign
    from collector.clocks import clocks_from_text
    from collector.config import load_campaign
    from collector.dataset import check_writable
    from collector.display import outcome_document, outcome_lines, plan_document, plan_lines
    from collector.plan import plan_campaign
    from collector.sensor.calibration import read_calibration

    budget_s = _duration_s(budget) if budget else math.inf
    spec = load_campaign(campaign)
    chosen = _families(families)
    with open_bench(_one_board(gpu), seed=seed, meter=_meter(pmd, gpu)) as bench:
        clocks = clocks_from_text(freqs, bench.gpu, bench.gpu_spec)
        plan = plan_campaign(spec, clocks, chosen, seed, bench.gpu.identity().uuid, bench.runner)
        if dry_run:
            _say(plan_document(bench, spec, plan) if as_json else plan_lines(bench, spec, plan))
            return DONE
        check_writable(out)
        identity = bench.gpu.identity()
        calibration = read_calibration(sensor, identity.uuid, identity.driver) if sensor else None
        key = campaign_key(bench, spec, plan, chosen, seed)
        kept = _kept(out, key, resume)
        with _stoppable(out), _progress(len(plan.points), quiet, verbose) as report:
            outcome = run_campaign(bench, spec, plan, key, out, kept=kept, calibration=calibration, budget_s=budget_s, report=report)
        simulated = bench.simulated
    _say(outcome_document(outcome) if as_json else outcome_lines(outcome, simulated))
    return _status(outcome, quiet)


@collect_command.command("devices", context_settings=CONTEXT)
@_output_options
def devices_command(as_json: bool, quiet: bool, verbose: bool) -> int:
    """What is there and what it supports: power fields, clock lock, energy counter, voltage."""
    from collector.devices.listing import device_documents, device_lines

    devices = device_documents()
    _say(devices if as_json else device_lines(devices))
    if not quiet and all(device["simulated"] for device in devices):
        _note("no NVIDIA board is driven here; simulated boards only")
    return DONE


@collect_command.command("sensor", context_settings=CONTEXT)
@click.option("--gpu", default="0", show_default=True, metavar="WORD", help="Board: NVML index, UUID, PCI address or sim:PROFILE.")
@click.option("--freq", default="current", show_default=True, metavar="MHZ", help="SM clock during the characterisation, or current.")
@click.option("--pmd", default="", metavar="PORT|sim", help="External power meter: `sim` puts one on a simulated board.")
@click.option("--out", type=click.Path(path_type=Path), metavar="SENSOR.json", help="Write the JSON document to a file as well.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Chance of a simulated board.")
@_output_options
def sensor_command(gpu: str, freq: str, pmd: str, out: Path | None, seed: int, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Characterise a board's power sensor: update clock, averaging, delay, rise; gain where a meter is there.

    Runs loads of its own for about half a minute.  What cannot be told is null, with the reason under notes.
    """
    from collector.bench import open_bench
    from collector.clocks import clocks_from_text, held_clock
    from collector.display import sensor_lines
    from collector.sampling import Sampler
    from collector.sensor.characterisation import characterise_sensor
    from estimator.whole_file import write_whole

    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise CollectorError(f"{out}: cannot be written; name a file in a folder that is there")
    with open_bench(_one_board(gpu), seed=seed, meter=_meter(pmd, gpu)) as bench, held_clock(bench.gpu) as hold, _stoppable(None):
        clocks = clocks_from_text(freq, bench.gpu, bench.gpu_spec)
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
    _say(document if as_json else sensor_lines(calibration))
    return DONE if calibration.averaging != "undetermined" else DONE_WITH_WARNINGS


@collect_command.command("export", context_settings=CONTEXT)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--to", "kind", type=click.Choice(["csv", "parquet"]), required=True, help="Format to write.")
@click.option("--out", type=click.Path(path_type=Path), help="File to write; without it the dataset's name with the format's suffix.")
@_output_options
def export_command(dataset: Path, kind: str, out: Path | None, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Write DATASET (a Parquet file, a folder or the log of an unfinished campaign) as CSV or as one Parquet file."""
    _require_extra()
    from collector.dataset.export import export_dataset

    written = export_dataset(dataset, kind, out)
    _say({"output": str(written.path), "rows": written.rows} if as_json else [f"{written.path}: {written.rows} rows"])
    return DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `collect`."""
    return run_command(collect_command, arguments, "collect", (CollectorError, EstimatorError))


def _require_extra() -> None:
    """Raises CollectorError where a package that collecting needs is not installed."""
    for name in EXTRA_PACKAGES:
        try:
            import_module(name)
        except ImportError:
            raise CollectorError(f"{name} is not installed; install wattprint[collect]: pip install 'wattprint[collect]'") from None


def _meter(pmd: str, word: str) -> bool:
    """Whether a simulated board gets its meter.  Raises DeviceError for a meter that cannot be driven."""
    from collector.errors import DeviceError

    if not pmd:
        return False
    if pmd == SIMULATED_METER and word.strip().startswith("sim:"):
        return True
    if pmd == SIMULATED_METER:
        raise DeviceError(f"--pmd sim is the meter of a simulated board, not of {word!r}")
    raise DeviceError(f"--pmd {pmd}: meters on a serial port are not driven by this version; simulated boards take --pmd sim")


SIMULATED_METER: Final = "sim"


def _one_board(word: str) -> str:
    """The word for one board.  Raises CollectorError for several."""
    if "," in word or word.strip().lower() == "all":
        raise CollectorError(f"--gpu {word!r} names several boards; a campaign measures one at a time: run one command for each")
    return word.strip()


def _families(text: str | None) -> tuple[str, ...]:
    """Names of families; none for all.  Raises BadParameter for a list without a name."""
    if text is None:
        return ()
    chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not chosen:
        raise click.BadParameter(f"{text!r} names no family; leave the option out for all", param_hint="--families")
    return chosen


def _kept(out: Path, key: dict[str, Any], resume: bool | None) -> Any:
    """Rows to go on from.  Raises CollectorError where something is at `out` and neither flag says what to do with it."""
    from collector.campaign import kept_rows
    from collector.dataset.log import log_path

    if resume:
        return kept_rows(out, key)
    log = log_path(out)
    if resume is None and log.is_file():
        raise CollectorError(f"{out}: an unfinished campaign lies there ({log}); --resume goes on with it, --fresh starts again")
    if resume is None and out.exists():
        raise CollectorError(f"{out} exists; --fresh replaces it, --resume adds what is missing, --out names another file")
    return None


def _duration_s(text: str) -> float:
    """Seconds from "90s", "30m", "1h30m".  Raises BadParameter for anything else, bare numbers too."""
    import re

    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip().lower())
    if not parts or not any(parts.groups()):
        raise click.BadParameter(f"{text!r} is no time; give a number with a unit, such as 90s, 30m or 1h30m", param_hint="--budget")
    hours, minutes, seconds = (float(part or 0.0) for part in parts.groups())
    total = 3600.0 * hours + 60.0 * minutes + seconds
    if total <= 0:
        raise click.BadParameter(f"{text!r} leaves no time", param_hint="--budget")
    return total


@contextmanager
def _stoppable(out: Path | None) -> Iterator[None]:
    """SIGTERM stops like Ctrl-C; either says how to go on."""

    def stop(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            from collector.dataset.log import log_path

            if log_path(out).is_file():
                _note(f"stopped; clocks are given back, finished rows are in {log_path(out)}: the same command with --resume goes on")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress(total: int, quiet: bool, verbose: bool) -> Iterator[Any]:
    """A function that shows a campaign's progress: a bar with ETA on a terminal, lines with -v, nothing else."""
    from collector.display import row_line

    if quiet or not (verbose or sys.stderr.isatty()):
        yield lambda _progress: None
        return
    if verbose:

        def tell(progress: "Progress") -> None:
            text = row_line(progress.row) if progress.row else progress.phase
            _note(f"{progress.done}/{progress.total} {text}")

        yield tell
        return
    with ExitStack() as stack:
        bars: list[Any] = []  # opened with the first row to measure: its ETA knows nothing of what went before
        begun: list[int] = []

        def advance(progress: "Progress") -> None:
            if not bars and progress.phase != "measuring":
                _note(f"{progress.phase} …")
            elif not bars:
                length = max(1, total - progress.done)
                bars.append(stack.enter_context(click.progressbar(length=length, file=sys.stderr, show_pos=True, label="measuring")))
                begun.append(progress.done)
            elif progress.row is not None:
                bars[0].label = f"{progress.row['family']:<11}"
                bars[0].update(progress.done - begun[0] - bars[0].pos)

        yield advance


def _status(outcome: "CampaignOutcome", quiet: bool) -> int:
    """Exit status of a campaign, and a warning where data were lost."""
    refused = sum(outcome.rejected.values())
    if not refused and not outcome.unusable:
        return DONE
    if not quiet:
        _note(f"warning: {refused} kernels could not run, {outcome.unusable} rows are unusable")
    return DONE_WITH_WARNINGS


def _say(result: Any) -> None:
    """Lines, or one JSON document, on stdout."""
    if isinstance(result, list) and all(isinstance(line, str) for line in result):
        click.echo("\n".join(result))
    else:
        click.echo(json.dumps(result, indent=2, allow_nan=False))


def _note(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    sys.exit(main())
