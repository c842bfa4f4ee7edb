"""The command `fit`."""

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from estimator import __version__
from estimator.commands.options import Number, with_options
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, is_given, named_file, output_option, run_command, tell
from estimator.vocabulary.documents import printable
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.regular_files import special_kind
from fitter.commands.bundles import (
    bundle_argument,
    diff_command,
    json_option,
    probes_command,
    release_command,
    say,
    seed_option,
    show_command,
    verify_command,
)
from fitter.errors import FitterError
from fitter.validate.requirements import judge, missed_line, require_option

if TYPE_CHECKING:
    from estimator.bundle.content import Bundle
    from fitter.bundle.calibration import Calibration
    from fitter.rows.columns import Selection
    from fitter.validate.requirements import Verdict

DEFAULT_BUNDLE: Final = "bundle.json"
LOG_SUFFIX: Final = ".log.jsonl"
"""Suffix that `collect` adds to the name of a data set while its campaign runs."""

PROGRESS_S: Final = 30.0
"""Time between lines of progress off a terminal [s]."""


datasets_argument: Final = click.argument("datasets", metavar="DATASET...", nargs=-1, required=True, type=named_file)
output_options: Final = with_options(
    json_option,
    click.option("-q", "--quiet", is_flag=True, help="No notes and no warnings on stderr."),
    click.option("--strict", is_flag=True, help="Exit status 3 if a warning holds or a row was rejected."),
    click.option("-v", "--verbose", is_flag=True, help="All tables; name every rejected row on stderr."),
)


def a_line(text: str) -> str:
    """Reject control characters in a text that tables show."""
    if not text.isprintable():
        raise click.BadParameter("a character of it cannot be printed")
    return text


@click.command(
    epilog="More commands: fit check, fit show, fit diff, fit release, fit verify, fit probes. "
    "Exit status: 0 done, 1 not done, 2 wrong usage, 3 done, but --require is missed or --strict finds a warning, "
    "130 interrupted.",
)
@datasets_argument
@output_option(default=DEFAULT_BUNDLE, show_default=True, metavar="BUNDLE.json")
@output_option("--report", metavar="REPORT.html", help="Write a self-contained page about the fit.")
@click.option(
    "--holdout",
    type=Number(0.0, 0.5),
    default=0.2,
    show_default=True,
    help="Share of kernels and workloads left out for errors.",
)
@seed_option
@click.option("--gpu", metavar="NAME|FILE.toml", help="The GPU to fit where data sets hold several, or do not name theirs.")
@click.option("--name", metavar="NAME", type=a_line, help="Name of the bundle; without it the GPU's.")
@click.option(
    "--prior",
    "priors",
    metavar="BUNDLE",
    multiple=True,
    type=named_file,
    help="Start from this bundle, usually of another GPU: few kernels then suffice.  Of several, power is the mean.",
)
@click.option(
    "--anchor",
    "anchors",
    metavar="BUNDLE",
    multiple=True,
    type=named_file,
    help="Correct this bundle of another GPU by the datasets: one or a few runs, or kernels, with energy.",
)
@require_option
@click.option("--scheduler", metavar="ADDRESS", help="Read on the workers of this Dask cluster, e.g. tcp://10.0.0.1:8786.")
@output_options
@click.version_option(__version__, prog_name="fit")
def fit_command(**options: Any) -> int:
    """Fit coefficients to measurements and write them as a bundle.

    A DATASET is a Parquet file or folder of `collect`, a workload dataset (whole models) or a kernel table (CSV or
    Parquet); several kinds together are one fit.
    """
    if len(options["anchors"]) > (not (options["priors"] or is_given("holdout"))):
        told = "--anchor takes one bundle, and no --prior or --holdout beside it"
        raise click.UsageError(f"{told}: many rows start from priors, a few correct a forecast")
    _check_datasets(options["datasets"])
    from estimator.bundle.files import bundle_heads, load_bundle, save_bundle
    from estimator.uncertainty.nearest import nearest_bundle
    from estimator.vocabulary.specifications import load_gpu
    from fitter.bundle.calibration import calibrate, calibrate_anchored, lacks_power
    from fitter.release.versions import identity
    from fitter.report.page import selection_document
    from fitter.rows.screening import asked_gpu
    from fitter.rows.selection import read_selection, require_one_gpu, require_one_world
    from fitter.scale.streamed import is_streamed, read_streamed

    progress = _progress(options["quiet"])
    if is_streamed(options["datasets"], options["scheduler"]):
        selection = read_streamed(options["datasets"], options["gpu"], options["seed"], options["scheduler"], progress)
    else:
        selection = read_selection(options["datasets"], options["gpu"])
    gpu = asked_gpu(options["gpu"]) or load_gpu(require_one_gpu(selection))
    priors = [load_bundle(name) for name in options["priors"]]
    anchors = [load_bundle(name) for name in options["anchors"]]
    require_one_world(selection, [*priors, *anchors])
    heads = bundle_heads(tell) if not priors and lacks_power(selection) else {}
    lenders = {name: head for name, head in heads.items() if head.power}
    lender = load_bundle(nearest_bundle(gpu, lenders)) if lenders else None
    common: dict[str, Any] = {"name": options["name"] or "", "seed": options["seed"]}
    calibration = (
        calibrate_anchored(selection, gpu, *anchors, **common)
        if anchors
        else calibrate(selection, gpu, **common, holdout=options["holdout"], priors=priors, lender=lender, progress=progress)
    )
    bundle = save_bundle(calibration.bundle, options["out"])
    if options["report"]:
        from estimator.vocabulary.whole_file import write_whole
        from fitter.report.page import report_html
        from fitter.report.verdict import verdict_lines

        page = report_html(bundle, calibration.selection, calibration.held_out, verdict_lines(bundle, calibration))
        write_whole(options["report"], page.encode("utf-8", errors="replace"))
    progress("")
    summary = calibration.summary()
    verdicts = judge(options["require"], summary)
    notes = [note for note in bundle.notes if note not in calibration.warnings]
    found = {"errors": bundle.errors, "summary": summary, "notes": notes, "requirements": verdicts, "warnings": calibration.warnings}
    origin = {"bundle": str(options["out"]), **identity(bundle), **selection_document(calibration.selection)}
    say(origin | found if options["as_json"] else _fit_lines(bundle, calibration, options))
    return _finish(calibration.selection, notes, calibration.warnings, options, verdicts)


@click.command()
@bundle_argument
@datasets_argument
@click.option("--gpu", metavar="NAME|FILE.toml", help="Only the rows of this GPU; the GPU of tables that do not name theirs.")
@require_option
@output_options
def check_command(bundle_name: str, datasets: Sequence[str], gpu: str | None, **options: Any) -> int:
    """Show errors of BUNDLE on unseen data, and drift of its board.

    Rows of another GPU than the bundle's are forecast from that GPU's specification, with a warning.  Rows of its own GPU, such as
    weekly anchors, show whether the board still agrees with the bundle within the stated error: exit status 3 if not, or if
    the intervals do not hold.  Rows outside the fitted range are listed separately and do not count as drift.
    """
    _check_datasets(datasets)
    from estimator.bundle.files import load_bundle

    bundle = load_bundle(bundle_name)
    from estimator.vocabulary.specifications import canonical_gpu_name
    from fitter.report.check import check_bundle
    from fitter.report.page import selection_lines
    from fitter.rows.selection import read_selection, require_one_world

    # Tables name a GPU of the user's own that only the bundle knows.
    own = None if canonical_gpu_name(bundle.gpu.name) else bundle.gpu
    selection = read_selection(datasets, gpu or own)
    require_one_world(selection, judged=bundle)
    found = check_bundle(bundle, selection)
    verdicts = judge(options["require"], found.summary)
    if options["as_json"]:
        say({**found.document(bundle, selection), "requirements": verdicts})
    else:
        say([*selection_lines(selection), "", *found.lines()])
    return _finish(selection, selection.notes, found.warnings, options, verdicts, refuted=found.refuted)


COMMANDS: Final[Mapping[str, click.Command]] = {
    "check": check_command,
    "show": show_command,
    "diff": diff_command,
    "release": release_command,
    "verify": verify_command,
    "probes": probes_command,
}
"""First arguments that choose a sub-command; any other first argument is a data set."""


def run(given: list[str]) -> int:
    """Run `fit` with these words and return its exit status."""
    from collector.errors import DatasetError

    expected: tuple[type[Exception], ...] = (EstimatorError, FitterError, DatasetError)
    if given and given[0] in COMMANDS:
        return run_command(COMMANDS[given[0]], given[1:], f"fit {given[0]}", expected)
    return run_command(fit_command, given, "fit", expected)


def _check_datasets(names: Sequence[str]) -> None:
    """Check that data sets on this machine exist before scientific packages are loaded, which takes a second.

    Raises FitterError for a pipe or a device, and for the log of an unfinished campaign beside a data set or in a folder.  Hosts may
    still measure into parts of a folder: their folders (`host=`) are skipped.
    """
    for name in names:
        with suppress(OSError):  # missing, or no permission to look
            if kind := special_kind(name):
                raise FitterError(f"{name}: is {kind}, not a file; write what it holds to a file and name that")
        if os.path.realpath(name) == os.sep:  # a walk through the whole file system would not end
            raise FitterError(f"{name}: the root of all files; name a data set or a folder of them")
        logs = [name if name.endswith(LOG_SUFFIX) else f"{name.rstrip(os.sep)}{LOG_SUFFIX}"]
        for folder, below, files in os.walk(name):
            below[:] = [word for word in below if not word.startswith((".", "host="))]
            logs += [os.path.join(folder, file) for file in files if file.endswith(LOG_SUFFIX)]
        for log in filter(os.path.isfile, logs):
            so_far = f"`collect export {log} --to parquet` gives the rows so far"
            raise FitterError(f"{log}: its campaign did not finish; the same `collect` command with --resume goes on with it, or {so_far}")


def _progress(quiet: bool) -> Callable[[str], None]:
    """Function that shows the current step: on one line of a terminal, else in a line every PROGRESS_S until the command ends."""
    terminal, step, ended = sys.stderr.isatty(), "reading", threading.Event()

    def say(text: str) -> None:
        nonlocal step
        step = text
        if terminal and not quiet:
            click.echo(f"\r\x1b[K{printable(text)}", err=True, nl=False)

    def repeat() -> None:
        while not ended.wait(PROGRESS_S):
            tell(step or "writing")

    if not terminal and not quiet:
        click.get_current_context().call_on_close(ended.set)
        threading.Thread(target=repeat, daemon=True).start()
    return say


def _fit_lines(bundle: "Bundle", calibration: "Calibration", options: Mapping[str, object]) -> list[str]:
    from fitter.report.page import next_lines, selection_lines
    from fitter.report.verdict import error_table, family_table, verdict_lines

    lines = [*verdict_lines(bundle, calibration), *family_table(calibration).lines(), ""]
    lines += selection_lines(calibration.selection)
    if options["verbose"] and calibration.errors:
        rows = [*calibration.errors, *calibration.summary().values()]
        lines += ["", *error_table(f"errors in percent on held-out rows ({options['holdout']:.0%} at a time):", rows).lines(), ""]
    return [*lines, f"written: {options['out']} {bundle.digest}", *next_lines(bundle, str(options["out"]))]


def _finish(
    selection: "Selection",
    notes: Sequence[str],
    warnings: Sequence[str],
    options: Mapping[str, object],
    verdicts: "Sequence[Verdict]",
    refuted: bool = False,
) -> int:
    """Print notes, warnings and, with -v, rejected rows to stderr; return the exit status.  --quiet does not hide missed requirements.

    --gpu leaves out rows of other GPUs on purpose: they are counted and cause no warning.  refuted: the data contradict the bundle.
    """
    from fitter.rows.rejected import OTHER_GPU

    refused = sum(row.count for row in selection.rejected if row.reason != OTHER_GPU)
    if options["verbose"]:
        for row in selection.rejected:
            tell(f"{row.source} row {row.row}: {row.reason}{' (power)' if row.power_only else ''}: {row.detail}")
    if not options["quiet"]:
        rejected = [f"{refused} rows, or their power alone, were rejected; -v names them"] if refused else []
        for line in [*(f"note: {note}" for note in notes), *(f"warning: {warning}" for warning in (*warnings, *rejected))]:
            tell(line)
    if missed := missed_line(verdicts):
        tell(missed)
    return DONE_WITH_WARNINGS if refuted or missed or (options["strict"] and (refused or warnings)) else DONE
