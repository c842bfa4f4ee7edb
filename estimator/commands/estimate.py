"""What the command `estimate` does."""

import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from estimator import __version__
from estimator.command_line import (
    QUIET_OR_VERBOSE,
    excludes,
    named_file,
    named_files,
    run_command,
    switch,
)
from estimator.commands.answer_forms import TEXT_FORMATS, answer_form
from estimator.commands.asking import CHOICES, changed_gpu, shares
from estimator.commands.numbers import LAUNCH_US, POSITIVE, precision_word
from estimator.errors import EstimatorError, OperatingPointError, WorkloadError
from estimator.output_files import output_option

if TYPE_CHECKING:
    from estimator.bundles.files import Bundle
    from estimator.gpu import GpuSpec
    from estimator.questions.estimates import Estimate

SHOWN_KERNELS: Final = "10"
POWER_CAP_HELP: Final = "Limit below the board's own, as nvidia-smi sets it: its clock falls. Another board: --set power_limit_w."
MICROSECONDS: Final = 1e-6
MOST_DIGITS: Final = 9
"""Digits of a number of kernels: a longer one is a mistake."""


def kernel_count(context: click.Context, parameter: click.Parameter, value: str) -> int | None:
    """A number of kernels; None for "all"."""
    if value == "all":
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= MOST_DIGITS):
        raise click.BadParameter(f"{value!r} is neither a whole number nor 'all'", context, parameter)
    return int(value)


def settings_option(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE texts as a mapping, each key once."""
    settings: dict[str, str] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise click.BadParameter(f"{text!r} must read KEY=VALUE", context, parameter)
        if key in settings:
            raise click.BadParameter(f"{key!r} is given twice", context, parameter)
        settings[key] = value
    return settings


def workload_files(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Names of files that are there, checked before anything else is asked for.

    A first word of `estimate` that is neither a file nor a command is most likely meant as a command.  Raises WorkloadError.
    """
    for text in named_files(context, parameter, texts):
        try:
            mode = os.stat(text).st_mode
        except FileNotFoundError:
            meant = _meant(text) if context.command is estimate_command else ""
            raise WorkloadError(f"{text}: no such workload file{meant}") from None
        except OSError:
            continue  # said with its reason when it is read
        if stat.S_ISDIR(mode):
            meant = _meant(text) if context.command is estimate_command and text in COMMANDS else ""
            raise WorkloadError(f"{text}: is a folder; name the workload files in it{meant}")
    return texts


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--json, --quiet and -v, on every command."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, callback=excludes("quiet", QUIET_OR_VERBOSE), help="Say on stderr what is used."),
        click.option("-q", "--quiet", is_flag=True, callback=excludes("verbose", QUIET_OR_VERBOSE), help="No warnings or notes on stderr."),
        click.option("--json", "as_json", is_flag=True, help="One JSON document, SI units."),
    ):
        command = option(command)
    return command


def _meant(text: str) -> str:
    """What to say of a word that is no file where a command may be meant."""
    if text in COMMANDS:
        return f"; a command comes first: estimate {text} …"
    return f", nor a command of estimate ({', '.join(COMMANDS)})"


completion_option = switch(
    "completion", "--completion", "--no-completion", True, ("Add the operators that a traced list leaves out (default).", "Add none.")
)


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Commands of their own: sweep, best, compare, explain, serve, trace, counts, blocks, bundles (estimate COMMAND --help). "
    "`estimate bundles` lists the bundles. Exit status: 0 done, 1 not done, 2 wrong usage, 3 done with warnings, 130 interrupted.",
)
@click.argument("workloads", metavar="WORKLOAD...", nargs=-1, required=True, callback=workload_files)
@click.option("--bundle", "bundle_name", metavar="NAME|FILE", required=True, callback=named_file, help="Calibration to use.")
@click.option("--freq", "freq_mhz", type=POSITIVE, metavar="MHZ", help="SM clock; without it the clock of the published peak rates.")
@click.option("--freqs", metavar="LIST|LO:HI:STEP|all", help="Several SM clocks [MHz].")
@click.option("--gpu-spec", metavar="NAME|FILE", callback=named_file, help="Forecast for another GPU.")
@click.option("--set", "figures", multiple=True, callback=settings_option, metavar="KEY=VALUE", help="Change a figure: num_sms=132.")
@click.option("--efficiency", multiple=True, callback=settings_option, metavar="MODULE=SHARE", help="Reached share of a rate: dram=0.8.")
@click.option("--power-cap", type=POSITIVE, metavar="W", help=POWER_CAP_HELP)
@click.option("--host-launch-us", type=LAUNCH_US, metavar="US", help="Host time to launch one operator instead of the bundle's.")
@completion_option
@click.option("--attention", type=click.Choice(["eager", "flash"]), help="Attention as separate kernels or fused.")
@click.option("--precision", metavar="NAME", callback=precision_word, help="Compute in another precision: bf16, fp16, fp32, fp8, …")
@click.option("--kernels", callback=kernel_count, default=SHOWN_KERNELS, show_default=True, metavar="N|all", help="Kernels in the table.")
@output_option("-o", "--out", metavar="FILE", help="Write the result there, as its ending says: csv, json, txt.")
@click.option("--csv", "as_csv", is_flag=True, help="A CSV line per workload and clock, SI units.")
@output_options
@click.version_option(__version__, prog_name="estimate")
def estimate_command(**options: Any) -> int:
    """Latency, power and energy of WORKLOADs on a GPU, from a bundle of fitted coefficients.

    A WORKLOAD is a file: the own JSON format or an EnergAIzer operator list.
    """
    form = answer_form(options, TEXT_FORMATS)
    if options["freq_mhz"] is not None and options["freqs"] is not None:
        raise click.UsageError("--freq and --freqs exclude each other")
    from estimator.bundles.files import load_bundle

    bundle = load_bundle(options["bundle_name"])
    results = _estimates(bundle, options)
    _check_times(results)
    deliver(_result_text(results, bundle, form, options), options["out"])
    return _report(results, bundle, options)


COMMANDS: Final = {
    "best": "estimator.commands.questions:best_command",
    "blocks": "estimator.commands.blocks:blocks_command",
    "bundles": "estimator.commands.bundles:bundles_command",
    "compare": "estimator.commands.questions:compare_command",
    "counts": "estimator.commands.counts:counts_command",
    "explain": "estimator.commands.questions:explain_command",
    "serve": "estimator.serve.command:serve_command",
    "sweep": "estimator.commands.questions:sweep_command",
    "trace": "estimator.commands.trace:trace_command",
}
"""Words that, as the first argument, choose a command of their own, and where it is; anything else is a workload (./sweep: a file of
that name)."""


def run(given: list[str]) -> int:
    """Run `estimate` with these words and return its exit status."""
    if given and given[0] in COMMANDS:
        module, _, name = COMMANDS[given[0]].partition(":")
        command = getattr(import_module(module), name)
        return run_command(command, given[1:], f"estimate {given[0]}", (EstimatorError,))
    return run_command(estimate_command, given, "estimate", (EstimatorError,))


def _estimates(bundle: "Bundle", options: Mapping[str, Any]) -> list["Estimate"]:
    """Every workload at every clock."""
    from estimator.formats import read_workload
    from estimator.questions.estimates import estimate

    gpu = _gpu(bundle, options)
    clocks = _clocks(gpu or bundle.gpu, options)
    launch_us = options["host_launch_us"]
    results: list[Estimate] = []
    files: dict[str, str] = {}
    for path in options["workloads"]:
        workload = read_workload(path, completion=options["completion"], attention=options["attention"] or "")
        if options["precision"]:
            from estimator.forms.rewriting import with_precision  # most workloads are taken as they are

            workload = with_precision(workload, options["precision"])
        if files.setdefault(workload.name, path) != path:  # two files may bear one name; their results must not pass for one
            workload = replace(workload, name=f"{workload.name} ({path})")
        results += estimate(
            workload,
            bundle,
            sm_clock_mhz=clocks,
            gpu=gpu,
            power_cap_w=options["power_cap"],
            host_launch_s=None if launch_us is None else launch_us * MICROSECONDS,
            efficiency=shares(options["efficiency"]),
        )
    return results


def _check_times(results: Sequence["Estimate"]) -> None:
    """Refuse results without a time: the GPU has no rate for a precision, or a number is beyond all reason."""
    from estimator.domain import why_no_time

    for result in results:
        if not math.isfinite(result.latency_s):
            raise EstimatorError(f"{result.workload} has no finite time on {result.gpu}: {why_no_time(result.warnings, CHOICES)}")


def _gpu(bundle: "Bundle", options: Mapping[str, Any]) -> "GpuSpec | None":
    """The GPU to estimate for; None for the bundle's own."""
    from estimator.specifications import load_gpu

    gpu = load_gpu(options["gpu_spec"]) if options["gpu_spec"] is not None else None
    return changed_gpu(gpu or bundle.gpu, options["figures"]) if options["figures"] else gpu


def _clocks(gpu: "GpuSpec", options: Mapping[str, Any]) -> tuple[float, ...] | None:
    from estimator.clock_list import parse_clocks

    if options["freqs"] is not None:
        try:
            return parse_clocks(options["freqs"], gpu)
        except OperatingPointError as error:
            raise click.UsageError(f"--freqs: {error}") from error
    return None if options["freq_mhz"] is None else (options["freq_mhz"],)


def _result_text(results: Sequence["Estimate"], bundle: "Bundle", form: str, options: Mapping[str, Any]) -> str:
    from estimator.display.estimates import csv_text, json_text, table_text

    if form == "json":
        return json_text(results)
    if form == "csv":
        return csv_text(results)
    several = len(results) > len(options["workloads"])
    chosen = click.get_current_context().get_parameter_source("kernels") is not click.core.ParameterSource.DEFAULT
    kernels = 0 if several and not chosen else options["kernels"]
    return table_text(results, kernels, bundle.simulated)


def deliver(answer: str | bytes, out: Path | None) -> None:
    """The answer to a file, whole or not at all, or to stdout.  Raises UnwrittenError."""
    if out is None:
        click.echo(answer, nl=False)
        return
    from estimator.whole_file import write_whole

    write_whole(out, answer if isinstance(answer, bytes) else answer.encode("utf-8", errors="replace"))


def _report(results: Sequence["Estimate"], bundle: "Bundle", options: Mapping[str, Any]) -> int:
    """Warnings to stderr, each once; the exit status."""
    from estimator.commands.saying import say

    if options["verbose"]:
        click.echo(f"bundle {bundle.name} {bundle.version}, {bundle.digest}, fitted {bundle.provenance.created_utc}", err=True)
        click.echo(f"launch cost of the host: {bundle.host.launch_s / MICROSECONDS:.1f} µs ({bundle.host.source})", err=True)
    warnings, notes = ([((one.workload,), text) for one in results for text in getattr(one, kind)] for kind in ("warnings", "notes"))
    return say(warnings, notes, [(one.workload,) for one in results], options)
