"""The command `estimate serve`."""

import json
import signal
from threading import Event
from typing import Any

import click

from estimator.commands.options import JSON, QUIET, with_options
from estimator.options.command_line import named_file, tell
from estimator.vocabulary.errors import EstimatorError


@click.command(
    epilog="Ctrl-C stops it (exit status 130), as does SIGTERM (0). Only this machine can reach the page.",
)
@click.argument("workloads", metavar="[WORKLOAD]...", nargs=-1, type=named_file)
@click.option("--bundle", "bundle_names", metavar="NAME|FILE", multiple=True, type=named_file, help="Offered beside the installed ones.")
@click.option("--gpu", "gpus", metavar="FILE", multiple=True, type=named_file, help="A GPU of your own, offered beside the known ones.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0: any free one.")
@with_options(JSON, QUIET)
def serve_command(**options: Any) -> None:
    """A local web page: choose or drop a WORKLOAD, move clock, batch and sequence, and see time, power and energy change at once."""
    from estimator.serve.catalogue import open_catalogue
    from estimator.serve.server import page_server

    catalogue = open_catalogue(options["workloads"], options["bundle_names"], options["gpus"])
    stopped = Event()
    before = signal.signal(signal.SIGTERM, lambda _signal, _frame: stopped.set())
    try:
        with page_server(options["port"], catalogue, complain=lambda line: tell(f"estimate serve: {line}")) as url:
            click.echo(json.dumps({"url": url}) if options["as_json"] else url)
            if not options["quiet"]:
                tell("serving; everybody with this address can use the page; Ctrl-C stops it")
            stopped.wait()
    except OSError as error:
        fault = error.strerror or str(error)
        raise EstimatorError(f"cannot listen on port {options['port']}: {fault}; choose another --port (0: any free one)") from error
    finally:
        signal.signal(signal.SIGTERM, before)
