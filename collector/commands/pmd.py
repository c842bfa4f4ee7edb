"""`collect pmd`: decode, record and emulate an external power meter."""

import math
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click
from click.core import ParameterSource

from collector.commands.options import CONTEXT, FiniteRange, duration_s, output_options, require_dataset_packages
from collector.commands.output import Speaker
from collector.errors import CollectorError, DeviceError, SensorError
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, INTERRUPTED
from estimator.options.output_files import check_output, output_option

if TYPE_CHECKING:
    from collector.pmd.emulated_meter import PowerWave
    from collector.pmd.protocol import MeterModel
    from collector.pmd.recording import ScannedRecording
    from collector.pmd.table import TableForm

Command = TypeVar("Command", bound=Callable[..., Any])
_path = click.Path(path_type=Path)
_bauds = click.Choice(["115200", "460800", "921600"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWords:
    """Options for the contents of a table."""

    rails: str
    zero: Path | None
    time_base: str

    def form(self, model: "MeterModel", start_s: float = 0.0) -> "TableForm":
        """The table form for a model of meter.  Raises DeviceError for an unknown rail, DatasetError for a recording that gives no zero."""
        from collector.pmd.recording import zero_currents
        from collector.pmd.table import TableForm

        names = [name.strip().lower() for name in self.rails.split(",") if name.strip()]
        return TableForm(rails=model.chosen_rails(names), zero_a=zero_currents(model, self.zero), time_base=self.time_base, start_s=start_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockWords:
    """Options for the start and the clock rate of a recording without stamps."""

    start: float | None
    tick_rate: float | None
    load: Path | None
    baud: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorWords:
    """Options of an emulated meter: its measured power, its identity, its initial state, and its faults."""

    model: str
    power: Path | None
    low: float
    high: float
    period: float
    duty: float
    faults: tuple[str, ...]
    streaming_at: str | None
    clock_error: float
    seed: int


def _grouped(group: type, *options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Options that a command receives as one value, the last of its positional ones so far."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(*values: Any, **given: Any) -> Any:
            return command(*values, group(**{field.name: given.pop(field.name) for field in fields(group)}), **given)

        decorated: Any = run
        for option in reversed(options):
            decorated = option(decorated)
        grouped: Command = decorated
        return grouped

    return decorate


_table_options = _grouped(
    TableWords,
    click.option("--rails", default="", metavar="LIST", help="Rails whose sum is power_w: pcie1,pcie2,…; all without it."),
    click.option("--zero", type=_path, metavar="UNLOADED.pmd", help="Recording with nothing plugged in: its means are the zeros."),
    click.option(
        "--time",
        "time_base",
        type=click.Choice(["first", "monotonic", "unix"]),
        default="first",
        show_default=True,
        help="What t_s counts from: the first sample, the host's monotonic clock's zero, or 1970.",
    ),
)


@click.group("pmd", context_settings=CONTEXT, no_args_is_help=False)
def pmd_command() -> None:
    """ElmorLabs PMD, an external power meter in a board's supply lines."""


@pmd_command.command("decode", context_settings=CONTEXT)
@click.argument("file", type=_path)
@output_option("--out", metavar="P.csv", help="Table to write, Parquet if its suffix says so; without it CSV on stdout.")
@_grouped(
    ClockWords,
    click.option("--start", type=float, metavar="SECONDS", help="Time of the first packet, for a recording without stamps."),
    click.option("--tick-rate", type=FiniteRange(2.9e6, 3.1e6), metavar="HZ", help="Rate of the meter's clock, if known."),
    click.option("--load", type=_path, metavar="L.csv", help="Load stamps t_s,level: the clock's rate is fitted to their edges."),
    click.option("--baud", type=_bauds, help="Line rate of a recording without stamps: 921600 if not given."),
)
@_table_options
@output_options
def decode_command(clock: ClockWords, table: TableWords, *, file: Path, out: Path | None, speak: Speaker) -> int:
    """Turn FILE, a recording of a PMD, into power over time: t_s, power_w, and voltage and current of each rail.

    FILE comes from `collect pmd log`, or contains the raw bytes of any other logger with two-byte time stamps.  Without
    --out the table goes to stdout as CSV and the counts to stderr; with --json alone there is no table.
    """
    require_dataset_packages()
    from collector.pmd.clock_tie import straight_tie
    from collector.pmd.recording import scan_recording
    from collector.pmd.recording_files import read_recording
    from collector.pmd.table import recording_document, recording_lines, write_table
    from collector.recordings.reference import tie_from_load

    if clock.start is not None and not abs(clock.start) <= 9e9:  # 64-bit nanoseconds end 292 years after 1970
        raise click.BadParameter(f"{clock.start} is no time", param_hint="--start")
    if clock.load is not None and (clock.tick_rate is not None or clock.start is None):
        raise click.UsageError("--load needs --start, the first packet's time in its time base, and no --tick-rate")
    if clock.start is not None and table.time_base != "first":
        raise click.UsageError("--start says what t_s counts from; leave --time out")
    recording = read_recording(file, int(clock.baud) if clock.baud else None)
    known = straight_tie("given", 1e-3 * clock.tick_rate) if clock.tick_rate is not None else None
    if clock.load is not None and clock.start is not None:
        known = tie_from_load(recording, clock.load, clock.start)
    scanned = scan_recording(recording, known)
    sink: Path | BinaryIO | None = out if out is not None else None if speak.as_json else sys.stdout.buffer
    summary = write_table(scanned, sink, table.form(recording.model, clock.start or 0.0))
    lines = recording_lines(scanned, summary)
    speak.say(recording_document(scanned, summary), [*lines, f"written: {out}"] if out is not None else [])
    for line in lines if sink is sys.stdout.buffer else ():
        speak.note(line)
    return _status(scanned, speak)


@pmd_command.command("log", context_settings=CONTEXT)
@click.argument("port")
@output_option("--out", default="pmd.csv", show_default=True, help="Table to write at the end; the recording lies beside.")
@click.option("--duration", default="", metavar="TIME", help="Stop after this long: 90s, 30m, 2h; without it at Ctrl-C or SIGTERM.")
@_table_options
@output_options
def log_command(table: TableWords, *, port: str, out: Path, duration: str, speak: Speaker) -> int:
    """Record the meter at PORT: its bytes and their host times in P.pmd on arrival, the table P.csv at the end.

    Ctrl-C and SIGTERM end it; the recording is kept and decoded, also if the meter is unplugged.
    """
    require_dataset_packages()
    from collector.pmd.meter import open_meter
    from collector.pmd.recording import scan_recording
    from collector.pmd.recording_files import log_meter, read_recording
    from collector.pmd.table import recording_document, recording_lines, write_table

    limit_s = duration_s(duration, "--duration") if duration else math.inf
    raw = out.with_suffix(".pmd")
    if out == raw:
        raise CollectorError(f"{out}: is where the raw bytes go; give --out another suffix, .csv or .parquet")
    check_output(raw)
    with _stop_request() as stop, open_meter(port) as meter:
        model = meter.identity.model
        form = table.form(model)  # finds a wrong word before an hour's recording
        speak.note(f"{model.name}, firmware {meter.identity.firmware}; recording into {raw}")
        tell = (lambda seconds, count: speak.note(f"{seconds:.0f} s, {count} bytes")) if speak.verbose else None
        logged = log_meter(meter, raw, stop, duration_s=limit_s, report=tell)
        interrupted = stop.is_set() and math.isfinite(limit_s)
    if not logged.bytes:
        raise logged.failure or DeviceError(f"{port}: nothing came in {logged.duration_s:.1f} s; nothing was recorded")
    scanned = scan_recording(read_recording(raw))
    summary = write_table(scanned, out, form)
    if logged.failure is not None:
        raise DeviceError(f"{logged.failure}; {summary.samples} samples until then are in {out}") from logged.failure
    lines = [*recording_lines(scanned, summary), f"written: {out}"]
    speak.say({**recording_document(scanned, summary), "output": str(out)}, lines)
    return INTERRUPTED if interrupted else _status(scanned, speak)


_power = FiniteRange(0.0, 2000.0)


@pmd_command.command("emulate", context_settings=CONTEXT)
@_grouped(
    EmulatorWords,
    click.option("--model", type=click.Choice(["pmd-usb", "pmd2"]), default="pmd-usb", show_default=True, help="Which meter."),
    click.option("--power", type=_path, metavar="P.csv", help="Power to measure, t_s,power_w, repeated; else a square wave."),
    click.option("--low", type=_power, default=60.0, show_default=True, help="Square wave: lower power [W]."),
    click.option("--high", type=_power, default=250.0, show_default=True, help="Square wave: upper power [W]."),
    click.option("--period", type=FiniteRange(1e-3, 3600.0), default=0.2, show_default=True, help="Square wave: period [s]."),
    click.option("--duty", type=FiniteRange(0.0, 1.0), default=0.5, show_default=True, help="Square wave: share at the upper power."),
    click.option(
        "--fault",
        "faults",
        multiple=True,
        metavar="KIND@S[:AMOUNT]",
        help="lost (bytes), hole, stall (s), silence, unplug.",
    ),
    click.option("--streaming-at", type=_bauds, help="Begin as a meter that a dead session left streaming."),
    click.option(
        "--clock-error", type=FiniteRange(-5000.0, 5000.0), default=0.0, show_default=True, help="Error of the meter's clock [ppm]."
    ),
    click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Noise and places of faults."),
)
@click.option("--duration", default="", metavar="TIME", help="Vanish after this long: 90s, 30m; without it at Ctrl-C or SIGTERM.")
@output_options
def emulate_command(words: EmulatorWords, *, duration: str, speak: Speaker) -> int:
    """Behave like a PMD on a pseudo-terminal, in real time, and print the terminal's path.

    Seconds of faults count from the moment when the host first starts the stream (PMD2: from the start).
    """
    from time import monotonic_ns

    import numpy as np

    from collector.pmd.emulated_line import FaultyLine, fault_from_text, open_pseudo_terminal, serve_meter
    from collector.pmd.emulated_meter import EmulatedState, emulated_meter, square_wave
    from collector.pmd.protocol import MODELS, POWER_ON_BAUD

    given = click.get_current_context().get_parameter_source
    squares = [f"--{name}" for name in ("low", "high", "period", "duty") if given(name) is not ParameterSource.DEFAULT]
    if words.power is not None and squares:
        raise click.UsageError(f"--power gives the power to measure; leave {squares[0]}, of the square wave, out")
    limit_s = duration_s(duration, "--duration") if duration else math.inf
    wave = square_wave(words.low, words.high, words.period, words.duty) if words.power is None else _read_wave(words.power)
    line = FaultyLine([fault_from_text(text) for text in words.faults], np.random.default_rng(words.seed))
    with _stop_request() as stop, open_pseudo_terminal() as terminal:
        state = EmulatedState(
            wave=wave,
            start_ns=monotonic_ns(),
            baud=int(words.streaming_at or POWER_ON_BAUD),
            streaming=words.streaming_at is not None,
            product=MODELS[words.model.upper()].product,
            clock_error_ppm=words.clock_error,
        )
        meter = emulated_meter(state, line, np.random.default_rng(words.seed + 1))
        document = {"port": terminal.path, "model": words.model, "simulated": True, "started_host_ns": state.start_ns}
        speak.say(document, [terminal.path])
        serve_meter(terminal, meter, stop, until_ns=state.start_ns + 1e9 * limit_s)
    speak.note(f"emulated {words.model} gone: {meter.packets_sent} samples sent")
    return DONE


def _read_wave(path: Path) -> "PowerWave":
    """Power to measure, from a table with the columns `t_s` and `power_w`.  Raises SensorError for a file without power."""
    import numpy as np

    from collector.pmd.emulated_meter import PowerWave
    from collector.recordings.columns import numbers, open_log, read_columns

    log = open_log(path)
    places = [log.place(name, [other.lower() for other in log.names]) for name in ("t_s", "power_w")]
    time_s, power_w = (numbers(column) for column in read_columns(log, places).arrays)
    if len(time_s) < 2 or not np.isfinite([time_s, power_w]).all() or np.any(np.diff(time_s) <= 0):
        raise SensorError(f"{path}: needs two rows or more of finite numbers with t_s ascending")
    return PowerWave(time_s=time_s - time_s[0], power_w=power_w)


def _status(scanned: "ScannedRecording", speak: Speaker) -> int:
    """Exit status of a decoded recording, and a warning if it has holes."""
    lost, discarded = scanned.holes.lost.sum(), scanned.tally.discarded_bytes
    told = (lost, "samples missing"), (discarded, "bytes left out, in no packet that can be trusted")
    said = [f"{count:,} {what}" for count, what in told if count]
    if said:
        speak.warn("; ".join(said))
    return DONE_WITH_WARNINGS if said else DONE


@contextmanager
def _stop_request() -> Iterator[Event]:
    """An event that Ctrl-C and SIGTERM set, so that the current work can end in order."""
    asked = Event()
    before = {number: signal.signal(number, lambda _number, _frame: asked.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
