"""`collect pmd`: decode, record and emulate an external power meter."""

import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from collector.commands.options import CONTEXT, FiniteRange, duration_s, output_options, require_dataset_packages
from collector.commands.output import Speaker
from collector.errors import CollectorError, DeviceError
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, INTERRUPTED
from estimator.options.output_files import check_output, output_option

if TYPE_CHECKING:
    from collector.pmd.recording import ScannedRecording
    from collector.pmd.table import PowerSummary

DEFAULT_LOG: Final = "pmd.csv"
RECORDING_SUFFIX: Final = ".pmd"
NS_PER_S: Final = 1e9
LATEST_START_S: Final = 9e9
"""Times are 64-bit nanoseconds, which end 292 years after 1970."""
TICKS_PER_S_PER_MS: Final = 1e3
PLAUSIBLE_TICK_RATE: Final = (2.9e6, 3.1e6)
"""Ticks per second that a PMD-USB's clock of nominally 3 MHz can have."""

_rails_option = click.option("--rails", default="", metavar="LIST", help="Rails whose sum is power_w: pcie1,pcie2,…; all without it.")
_zero_option = click.option(
    "--zero", type=click.Path(path_type=Path), metavar="UNLOADED.pmd", help="Recording with nothing plugged in: its means are the zeros."
)
_time_option = click.option(
    "--time",
    "time_base",
    type=click.Choice(["first", "monotonic", "unix"]),
    default="first",
    show_default=True,
    help="What t_s counts from: the first sample, the host's monotonic clock's zero, or 1970.",
)


@click.group("pmd", context_settings=CONTEXT, no_args_is_help=False)
def pmd_command() -> None:
    """ElmorLabs PMD, an external power meter in a board's supply lines."""


@pmd_command.command("decode", context_settings=CONTEXT)
@click.argument("file", type=click.Path(path_type=Path))
@output_option("--out", metavar="P.csv", help="Table to write, Parquet if its suffix says so; without it CSV on stdout.")
@_rails_option
@_zero_option
@_time_option
@click.option("--start", type=float, metavar="SECONDS", help="Time of the first packet, for a recording without stamps.")
@click.option("--tick-rate", type=FiniteRange(*PLAUSIBLE_TICK_RATE), metavar="HZ", help="Rate of the meter's clock, if known.")
@click.option(
    "--load", type=click.Path(path_type=Path), metavar="L.csv", help="Load stamps t_s,level: the clock's rate is fitted to their edges."
)
@click.option(
    "--baud", type=click.Choice(["115200", "460800", "921600"]), help="Line rate of a recording without stamps: 921600 if not given."
)
@output_options
def decode_command(
    file: Path,
    out: Path | None,
    rails: str,
    zero: Path | None,
    time_base: str,
    start: float | None,
    tick_rate: float | None,
    load: Path | None,
    baud: str | None,
    speak: Speaker,
) -> int:
    """Turn FILE, a recording of a PMD, into power over time: t_s, power_w, and voltage and current of each rail.

    FILE is what `collect pmd log` wrote, or the raw bytes that any other logger wrote with two-byte time stamps.  Without
    --out the table goes to stdout as CSV and the counts to stderr; with --json alone there is no table.
    """
    require_dataset_packages()
    from collector.pmd.clock_tie import straight_tie
    from collector.pmd.recording import scan_recording
    from collector.pmd.recording_files import read_recording
    from collector.pmd.report import recording_lines
    from collector.recordings.reference import tie_from_load

    if start is not None and not abs(start) <= LATEST_START_S:
        raise click.BadParameter(f"{start} is no time", param_hint="--start")
    if load is not None and (tick_rate is not None or start is None):
        raise click.UsageError("--load needs --start, the first packet's time in its time base, and no --tick-rate")
    if start is not None and time_base != "first":
        raise click.UsageError("--start says what t_s counts from; leave --time out")
    recording = read_recording(file, int(baud) if baud else None)
    known = straight_tie("given", tick_rate / TICKS_PER_S_PER_MS, math.nan) if tick_rate is not None else None
    if load is not None and start is not None:
        known = tie_from_load(recording, load, start)
    scanned = scan_recording(recording, known)
    table: Any = out if out is not None else None if speak.as_json else sys.stdout.buffer
    document = _written(scanned, table, rails, zero, time_base, start or 0.0)
    lines = recording_lines(document)
    speak.say(document, [*lines, f"written: {out}"] if out is not None else [])
    for line in lines if table is sys.stdout.buffer else ():
        speak.note(line)
    return _status(document, speak)


@pmd_command.command("log", context_settings=CONTEXT)
@click.argument("port")
@output_option("--out", default=DEFAULT_LOG, show_default=True, help="Table to write at the end; the recording lies beside.")
@click.option("--duration", default="", metavar="TIME", help="Stop after this long: 90s, 30m, 2h; without it at Ctrl-C or SIGTERM.")
@_rails_option
@_zero_option
@_time_option
@output_options
def log_command(
    port: str,
    out: Path,
    duration: str,
    rails: str,
    zero: Path | None,
    time_base: str,
    speak: Speaker,
) -> int:
    """Record the meter at PORT: its bytes and their host times in P.pmd as they come, the table P.csv at the end.

    Ctrl-C and SIGTERM end it; what was recorded is kept and decoded, also where the meter is unplugged.
    """
    require_dataset_packages()
    from collector.pmd.logger import log_meter
    from collector.pmd.meter import open_meter
    from collector.pmd.recording import scan_recording
    from collector.pmd.recording_files import read_recording
    from collector.pmd.report import recording_lines
    from collector.pmd.samples import chosen_rails
    from collector.pmd.zero import zero_currents

    limit_s = duration_s(duration, "--duration") if duration else math.inf
    raw = out.with_suffix(RECORDING_SUFFIX)
    if out == raw:
        raise CollectorError(f"{out}: is where the raw bytes go; give --out another suffix, .csv or .parquet")
    check_output(raw)
    with _stop_request() as stop, open_meter(port) as meter:
        chosen_rails(meter.identity.model, _names(rails))  # a wrong word is better found before an hour's recording
        zero_currents(meter.identity.model, zero)
        speak.note(f"{meter.identity.model}, firmware {meter.identity.firmware}; recording into {raw}")
        tell = (lambda seconds, count: speak.note(f"{seconds:.0f} s, {count} bytes")) if speak.verbose else None
        logged = log_meter(meter, raw, stop, duration_s=limit_s, report=tell)
        interrupted = stop.is_set() and math.isfinite(limit_s)
    if not logged.bytes:
        raise logged.failure or DeviceError(f"{port}: nothing came in {logged.duration_s:.1f} s; nothing was recorded")
    document = _written(scan_recording(read_recording(raw)), out, rails, zero, time_base, 0.0)
    if logged.failure is not None:
        raise DeviceError(f"{logged.failure}; {document['samples']} samples until then are in {out}") from logged.failure
    speak.say({**document, "output": str(out)}, [*recording_lines(document), f"written: {out}"])
    return INTERRUPTED if interrupted else _status(document, speak)


@pmd_command.command("emulate", context_settings=CONTEXT)
@click.option("--model", type=click.Choice(["pmd-usb", "pmd2"]), default="pmd-usb", show_default=True, help="Which meter.")
@click.option(
    "--power", type=click.Path(path_type=Path), metavar="P.csv", help="Power to measure, t_s,power_w, repeated; else a square wave."
)
@click.option("--low", type=FiniteRange(0.0, 2000.0), default=60.0, show_default=True, help="Square wave: lower power [W].")
@click.option("--high", type=FiniteRange(0.0, 2000.0), default=250.0, show_default=True, help="Square wave: upper power [W].")
@click.option("--period", type=FiniteRange(1e-3, 3600.0), default=0.2, show_default=True, help="Square wave: period [s].")
@click.option(
    "--duty", type=FiniteRange(0.0, 1.0), default=0.5, show_default=True, help="Square wave: share of the period at the upper power."
)
@click.option(
    "--fault", "faults", multiple=True, metavar="KIND@S[:AMOUNT]", help="lost, doubled, garbled (bytes), hole, stall (s), silence, unplug."
)
@click.option(
    "--streaming-at", type=click.Choice(["115200", "460800", "921600"]), help="Begin as a meter that a dead session left streaming."
)
@click.option("--clock-error", type=FiniteRange(-5000.0, 5000.0), default=0.0, show_default=True, help="Error of the meter's clock [ppm].")
@click.option("--firmware", type=click.IntRange(1, 255), default=6, show_default=True, help="Firmware version that it states.")
@click.option("--duration", default="", metavar="TIME", help="Vanish after this long: 90s, 30m; without it at Ctrl-C or SIGTERM.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Noise and places of faults.")
@output_options
def emulate_command(
    model: str,
    power: Path | None,
    low: float,
    high: float,
    period: float,
    duty: float,
    faults: tuple[str, ...],
    streaming_at: str | None,
    clock_error: float,
    firmware: int,
    duration: str,
    seed: int,
    speak: Speaker,
) -> int:
    """Behave like a PMD on a pseudo-terminal, in real time, and print the terminal's path.

    Seconds of faults count from the moment at which the host first lets it stream (PMD2: from the start).
    """
    from time import monotonic_ns

    import numpy as np

    from collector.pmd.emulated_faults import FaultyLine, fault_from_text
    from collector.pmd.emulated_meter import EmulatedMeter, EmulatedPmd2, EmulatedPmdUsb, EmulatedState
    from collector.pmd.emulated_port import open_pseudo_terminal, serve_meter
    from collector.pmd.emulated_wave import read_wave, square_wave
    from collector.pmd.protocol import PMD2, PMD_USB, POWER_ON_BAUD

    given = click.get_current_context().get_parameter_source
    squares = [f"--{name}" for name in ("low", "high", "period", "duty") if given(name) is not ParameterSource.DEFAULT]
    if power is not None and squares:
        raise click.UsageError(f"--power gives the power to measure; leave {squares[0]}, of the square wave, out")
    limit_s = duration_s(duration, "--duration") if duration else math.inf
    wave = read_wave(power) if power is not None else square_wave(low, high, period, duty)
    state = EmulatedState(
        baud=int(streaming_at or POWER_ON_BAUD),
        streaming=streaming_at is not None,
        product=PMD_USB if model == "pmd-usb" else PMD2,
        firmware=firmware,
        clock_error_ppm=clock_error,
    )
    line = FaultyLine([fault_from_text(text) for text in faults], np.random.default_rng(seed))
    with _stop_request() as stop, open_pseudo_terminal() as terminal:
        begin = monotonic_ns()
        build = EmulatedPmdUsb if model == "pmd-usb" else EmulatedPmd2
        meter: EmulatedMeter = build(state, wave, line, np.random.default_rng(seed + 1), begin)
        speak.say({"port": terminal.path, "model": model, "simulated": True, "started_host_ns": begin}, [terminal.path])
        serve_meter(terminal, meter, stop, until_ns=None if math.isinf(limit_s) else begin + round(limit_s * NS_PER_S))
    speak.note(f"emulated {model} gone: {meter.packets_sent} samples sent, {terminal.overrun_bytes} bytes found no room at the host")
    return DONE


def _written(scanned: "ScannedRecording", out: Any, rails: str, zero: Path | None, time_base: str, start_s: float) -> dict[str, Any]:
    """Write the table and say what it holds."""
    from collector.pmd.report import recording_document
    from collector.pmd.samples import chosen_rails
    from collector.pmd.table import write_table
    from collector.pmd.zero import zero_currents

    model = scanned.recording.model
    summary: PowerSummary = write_table(
        scanned,
        out,
        zero_a=zero_currents(model, zero),
        rails=chosen_rails(model, _names(rails)),
        time_base=time_base,
        start_s=start_s,
    )
    return recording_document(scanned, summary)


def _status(document: dict[str, Any], speak: Speaker) -> int:
    """Exit status of a decoded recording, and a warning where it has holes."""
    lost, discarded = document["lost"], document["discarded_bytes"]
    if not lost and not discarded:
        return DONE
    told = ((lost, "samples missing"), (discarded, "bytes left out, in no packet that can be trusted"))
    speak.warn("; ".join(f"{count:,} {what}" for count, what in told if count))
    return DONE_WITH_WARNINGS


def _names(rails: str) -> tuple[str, ...]:
    return tuple(name.strip().lower() for name in rails.split(",") if name.strip())


@contextmanager
def _stop_request() -> Iterator[Event]:
    """An event that Ctrl-C and SIGTERM set, so that what is being done can be ended properly."""
    asked = Event()
    before = {number: signal.signal(number, lambda _number, _frame: asked.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
