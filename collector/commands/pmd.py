"""`collect pmd`: decode, record and emulate an external power meter."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from collector.commands.options import FILE, duration_s, output_options
from collector.commands.output import Speaker
from collector.errors import DeviceError
from estimator.commands.options import with_options
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, INTERRUPTED, check_output, output_option

if TYPE_CHECKING:
    from collector.pmd.protocol import MeterModel
    from collector.pmd.table import TableForm

_table_options = with_options(
    click.option(
        "--time",
        "time_base",
        type=click.Choice(["first", "monotonic", "unix"]),
        default="first",
        show_default=True,
        help="What t_s counts from: the first sample, the host's monotonic clock's zero, or 1970.",
    ),
    click.option("--zero", type=FILE, metavar="UNLOADED.pmd", help="Recording with nothing plugged in: its means are the zeros."),
    click.option("--rails", default="", metavar="LIST", help="Rails whose sum is power_w: pcie1,pcie2,…; all without it."),
)
"""Options for the contents of a table."""


def _form(model: "MeterModel", rails: str, zero: Path | None, time_base: str) -> "TableForm":
    """The table form for a model of meter.  Raises DeviceError for an unknown rail, DatasetError for a recording that gives no zero."""
    from collector.pmd.recording import zero_currents
    from collector.pmd.table import TableForm

    names = [name.strip().lower() for name in rails.split(",") if name.strip()]
    return TableForm(rails=model.chosen_rails(names), zero_a=zero_currents(model, zero), time_base=time_base)


@click.group("pmd", no_args_is_help=False)
def pmd_command() -> None:
    """ElmorLabs PMD, an external power meter in a board's supply lines."""


@pmd_command.command("decode")
@click.argument("file", type=FILE)
@output_option(metavar="P.csv", help="Table to write; without it the table goes to stdout.")
@_table_options
@output_options
def decode_command(file: Path, out: Path | None, rails: str, zero: Path | None, time_base: str, speak: Speaker) -> int:
    """Turn FILE, a recording of a PMD, into power over time: t_s, power_w, and voltage and current of each rail.

    FILE comes from `collect pmd log`, or contains the raw bytes of any other logger with two-byte time stamps.  Without
    --out the table goes to stdout as CSV and the counts to stderr; with --json alone there is no table.
    """
    from collector.pmd.recording import read_recording, scan_recording
    from collector.pmd.table import recording_lines, write_table

    scanned = scan_recording(read_recording(file))
    form = _form(scanned.recording.model, rails, zero, time_base)
    document = write_table(scanned, out or (None if speak.as_json else sys.stdout.buffer), form)
    lines = recording_lines(document)
    if out is None:
        speak.say(document, [])
        speak.note(*([] if speak.as_json else lines))
    else:
        speak.say(document, [*lines, f"written: {out}"])
    return _status(document, speak)


@pmd_command.command("log")
@click.argument("port")
@output_option(default="pmd.csv", show_default=True, metavar="P.csv", help="Table to write at the end; the recording lies beside.")
@click.option("--duration", default="", metavar="TIME", help="Stop after this long: 90s, 30m, 2h; without it at Ctrl-C or SIGTERM.")
@_table_options
@output_options
def log_command(port: str, out: Path, duration: str, speak: Speaker, **table: Any) -> int:
    """Record the meter at PORT: its bytes and their host times in P.pmd on arrival, the table P.csv at the end.

    Ctrl-C and SIGTERM end it; the recording is kept and decoded, also if the meter is unplugged.
    """
    from collector.pmd.meter import open_meter
    from collector.pmd.recording import log_meter, read_recording, scan_recording
    from collector.pmd.table import recording_lines, write_table

    limit_s = duration_s(duration, "--duration") if duration else math.inf
    raw = out.with_suffix(".pmd")
    check_output(raw)
    with _stop_request() as stop, open_meter(port) as meter:
        model = meter.model
        form = _form(model, **table)  # finds a wrong word before an hour's recording
        speak.note(f"{model.name}, firmware {meter.firmware}; recording into {raw}")
        tell = (lambda seconds, count: speak.note(f"{seconds:.0f} s, {count} bytes")) if speak.verbose else None
        failure = log_meter(meter, raw, stop, duration_s=limit_s, report=tell)
        interrupted = stop.is_set() and math.isfinite(limit_s)
    if not raw.exists():
        raise failure or DeviceError(f"{port}: nothing came; nothing was recorded")
    scanned = scan_recording(read_recording(raw))
    document = write_table(scanned, out, form)
    if failure is not None:
        raise DeviceError(f"{failure}; {scanned.tally.packets} samples until then are in {out}") from failure
    speak.say({**document, "output": str(out)}, [*recording_lines(document), f"written: {out}"])
    return INTERRUPTED if interrupted else _status(document, speak)


@pmd_command.command("emulate")
@click.option("--model", type=click.Choice(["pmd-usb", "pmd2"]), default="pmd-usb", show_default=True, help="Which meter.")
@click.option("--duration", default="", metavar="TIME", help="Vanish after this long: 90s, 30m; without it at Ctrl-C or SIGTERM.")
@output_options
def emulate_command(model: str, duration: str, speak: Speaker) -> None:
    """Behave like a PMD on a pseudo-terminal, in real time, and print the terminal's path.

    The simulated power is a square wave of 60 and 250 W, 10 times a second.
    """
    import os
    from time import monotonic_ns

    from collector.pmd.emulated import EmulatedMeter, open_pseudo_terminal, serve_meter
    from collector.pmd.protocol import MODELS

    limit_s = duration_s(duration, "--duration") if duration else math.inf
    with _stop_request() as stop, open_pseudo_terminal() as ends:
        meter, path = EmulatedMeter(start_ns=monotonic_ns(), model=MODELS[model.upper()]), os.ttyname(ends[1])
        speak.say({"port": path, "model": model, "simulated": True, "started_host_ns": meter.start_ns}, [path])
        serve_meter(ends, meter, stop, until_ns=meter.start_ns + 1e9 * limit_s)
    speak.note(f"emulated {model} gone: {meter.packets_sent} samples sent")


def _status(document: dict[str, Any], speak: Speaker) -> int:
    """Exit status of a decoded recording, and a warning if it has holes."""
    counts = (document["holes"], "holes without samples"), (document["discarded_bytes"], "bytes left out, in no packet that can be trusted")
    said = [f"{count:,} {what}" for count, what in counts if count]
    if said:
        speak.warn("; ".join(said))
    return DONE_WITH_WARNINGS if said else DONE


@contextmanager
def _stop_request() -> Iterator[Event]:
    """An event that Ctrl-C and SIGTERM set, so that the current work can end in order."""
    from collector.daemon.worker import signals_to

    asked = Event()
    with signals_to(lambda _number, _frame: asked.set()):
        yield asked
