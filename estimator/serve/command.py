"""The command `estimate serve`."""

import ipaddress
import json
import signal
import webbrowser
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final

import click

from estimator.commands.options import OUTPUT, SETTINGS, Options, with_options, workload_files
from estimator.options.command_line import DONE, named_files
from estimator.vocabulary.errors import EstimatorError

LOOPBACK: Final = "127.0.0.1"


def host_address(context: click.Context, parameter: click.Parameter, text: str) -> str:
    """An IP address.  Raises BadParameter."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no IP address; write {LOOPBACK}, ::1 or 0.0.0.0", context, parameter) from None


@click.command(
    context_settings=SETTINGS,
    epilog="Ctrl-C stops it (exit status 130), as does SIGTERM (0). Without --host only this machine can reach the page.",
)
@click.argument("workloads", metavar="[WORKLOAD]...", nargs=-1, callback=workload_files)
@click.option(
    "--bundle", "bundle_names", metavar="NAME|FILE", multiple=True, callback=named_files, help="Offered beside the installed ones."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0: any free one.")
@click.option("--host", metavar="ADDRESS", default=LOOPBACK, callback=host_address, help="Listen there instead of on this machine alone.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
@with_options(*OUTPUT)
def serve_command(**options: Any) -> int:
    """A local web page: choose or drop a WORKLOAD, move clock, batch and sequence, and see time, power and energy change at once."""
    from estimator.serve.catalogue import open_catalogue
    from estimator.serve.server import page_server

    catalogue = open_catalogue(options["workloads"], options["bundle_names"])
    log = _say if options["verbose"] else _nothing
    stopped = Event()
    before = signal.signal(signal.SIGTERM, lambda _signal, _frame: stopped.set())
    try:
        with ExitStack() as stack:
            try:
                url = stack.enter_context(page_server(options["host"], options["port"], catalogue, log=log, complain=_say))
            except OSError as error:
                where = f"{options['host']}, port {options['port']}"
                fault = error.strerror or str(error)
                raise EstimatorError(f"cannot listen on {where}: {fault}; choose another --host or --port (0: any free one)") from error
            _announce(url, options)
            if options["open_page"]:
                _open_in_browser(url, stack)
            stopped.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    return DONE


def _announce(url: str, options: Options) -> None:
    """Write the address of the page to stdout, other lines to stderr."""
    click.echo(json.dumps({"url": url}) if options["as_json"] else url)
    if not options["quiet"]:
        click.echo("serving to whoever knows this address; stop with Ctrl-C", err=True)
    if not ipaddress.ip_address(options["host"]).is_loopback:
        click.echo(
            f"warning: {options['host']} can be reached from other machines; the address travels there unencrypted",
            err=True,
        )


def _open_in_browser(url: str, stack: ExitStack) -> None:
    """Open the page through a file of this user: every user can read a browser's command line, which must not contain the token."""
    path = Path(stack.enter_context(TemporaryDirectory(prefix="wattprint-"))) / "page.html"
    path.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={url}"><title>wattprint</title>', encoding="utf-8")
    if not webbrowser.open(path.as_uri()):
        click.echo("note: no browser could be opened; open the address above", err=True)


def _say(line: str) -> None:
    click.echo(f"estimate serve: {line}", err=True)


def _nothing(_line: str) -> None:
    """Ignore the line of a successful request."""
