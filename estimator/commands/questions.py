"""What `estimate sweep`, `best`, `compare` and `explain` do."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.command_line import named_file
from estimator.commands.answer_forms import FILE_FORMATS, PAGE_FORMATS, TEXT_FORMATS, answer_form
from estimator.commands.asking import (
    best_point,
    check_finite,
    check_something_asked,
    left_out_texts,
    questions,
    runnable,
    runnable_questions,
    within_clocks,
)
from estimator.commands.estimate import (
    POWER_CAP_HELP,
    completion_option,
    deliver,
    kernel_count,
    output_options,
    settings_option,
    workload_files,
)
from estimator.commands.numbers import LAUNCH_US, NOT_NEGATIVE, POSITIVE, Number
from estimator.commands.saying import Seen, report, say
from estimator.output_files import output_option

if TYPE_CHECKING:
    from estimator.questions.choosing import Best
    from estimator.questions.costs import Tariff
    from estimator.questions.judging import Asked
    from estimator.questions.points import Case, Sweep

GOALS: Final = ("energy", "latency", "power", "edp", "ed2p")
SWEEP_CHART_NAMES: Final = ("energy", "latency", "power", "front")
EXPLANATION_CHART_NAMES: Final = ("timeline", "time", "modules")
Decorator = Callable[..., Any]


def bundle_files(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Names or files of bundles, each checked."""
    for text in texts:
        named_file(context, parameter, text)
    return texts


def question_options(command: Decorator) -> Decorator:
    """What every question may set: workloads, bundles, GPUs, clocks, sizes, precisions."""
    for option in reversed(
        (
            click.argument("workloads", metavar="[WORKLOAD]...", nargs=-1, callback=workload_files),
            click.option(
                "--bundle",
                "bundle_names",
                metavar="NAME|FILE",
                required=True,
                multiple=True,
                callback=bundle_files,
                help="Calibration; several may be given.",
            ),
            click.option("--freqs", "--freq", "freqs", metavar="LIST|LO:HI:STEP|all", help="SM clocks [MHz]."),
            click.option("--gpu-spec", metavar="NAME|FILE,…", callback=named_file, help="Forecast for other GPUs; 'own': the bundle's."),
            click.option("--batch", metavar="LIST|LO:HI:STEP", help="Sequences or images at once."),
            click.option("--sequence", metavar="LIST|LO:HI:STEP", help="Tokens of each."),
            click.option(
                "--at", metavar="batch=B,sequence=S", help="The sizes that the workload files are written for, unless their names tell."
            ),
            click.option("--precision", metavar="NAME,…", help="Compute in other precisions: bf16, fp16, fp32, fp8, …"),
            click.option("--attention", metavar="eager,flash", help="Attention as separate kernels, fused, or both in turn."),
            click.option(
                "--model", metavar="MODEL", callback=named_file, help="Trace this model instead of reading files (wattprint[torch])."
            ),
            click.option("--phase", type=click.Choice(["prefill", "decode", "train"]), default="prefill", help="Of a traced model."),
            click.option(
                "--set", "figures", multiple=True, callback=settings_option, metavar="KEY=VALUE", help="Change a figure: num_sms=132."
            ),
            click.option(
                "--efficiency", multiple=True, callback=settings_option, metavar="MODULE=SHARE", help="Reached share of a rate: dram=0.8."
            ),
            click.option("--power-cap", type=POSITIVE, metavar="W", help=POWER_CAP_HELP),
            click.option(
                "--host-launch-us", type=LAUNCH_US, metavar="US", help="Host time to launch one operator instead of the bundle's."
            ),
            completion_option,
        )
    ):
        command = option(command)
    return command


def cost_options(command: Decorator) -> Decorator:
    """What energy costs, and what an iteration serves."""
    for option in reversed(
        (
            click.option("--price", type=NOT_NEGATIVE, metavar="PER_KWH", help="Price of a kilowatt-hour, in any currency."),
            click.option("--carbon", type=NOT_NEGATIVE, metavar="G_PER_KWH", help="Emissions of the grid [g CO2e/kWh]."),
            click.option(
                "--overhead", type=Number(1.0), default=1.0, metavar="FACTOR", help="Energy of the site over that of the GPU (PUE): 1.2."
            ),
            click.option("--requests", type=POSITIVE, metavar="N", help="Requests that an iteration serves; else its batch."),
            click.option("--tokens", type=POSITIVE, metavar="N", help="Tokens that an iteration computes; else batch · sequence."),
        )
    ):
        command = option(command)
    return command


def out_options(forms: Sequence[str]) -> Decorator:
    """Where the answer goes and in which of its forms."""
    help_text = f"Write the answer there, in the form that its ending names: {', '.join(forms)}."

    def decorate(command: Decorator) -> Decorator:
        for option in (
            output_option("-o", "--out", metavar="FILE", help=help_text),
            click.option("--csv", "as_csv", is_flag=True, help="A CSV line per point, SI units."),
        ):
            command = option(command)
        return output_options(command)

    return decorate


def chart_option(names: Sequence[str]) -> Decorator:
    """Which chart a picture is, the first of them without it."""
    return click.option("--chart", type=click.Choice(names), help=f"What an .svg or .png shows; else {names[0]}.")


SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


@click.command(
    context_settings=SETTINGS,
    epilog="A point each for every bundle, GPU, workload, batch, sequence, precision, form of attention and clock.",
)
@question_options
@cost_options
@chart_option(SWEEP_CHART_NAMES)
@out_options(FILE_FORMATS)
def sweep_command(**options: Any) -> int:
    """Latency, power and energy of WORKLOADs over clocks, batches, sequences, precisions and GPUs, each with its uncertainty."""
    form = answer_form(options, FILE_FORMATS)
    check_something_asked(options)
    asked, outside = within_clocks(_questions(options))
    tariff = _tariff(options)
    counts = _counts(options)
    seen = Seen()
    rest = _pieces(asked, outside, seen, whole=form == "json")
    pieces = chain([next(rest)], rest)  # what cannot be answered at all is refused before a line is written
    if form in ("csv", "json", "parquet"):
        _stream(pieces, form, options, tariff, counts)
    else:
        from estimator.display.answers import SWEEP_CHARTS, sweep_page
        from estimator.display.sweeps import sweep_table
        from estimator.questions.points import joined_sweeps

        points = joined_sweeps(list(pieces))
        drawn = {"txt": lambda: sweep_table(points, tariff, **counts), "html": lambda: sweep_page(points)}
        _put(form, drawn.get(form) or (lambda: SWEEP_CHARTS[options["chart"] or SWEEP_CHART_NAMES[0]](points)), options)
    return report(seen, options)


@click.command(
    context_settings=SETTINGS,
    epilog="Without --freqs every clock that the GPU can lock and the bundle's fit has seen is looked at; all where it has seen one.",
)
@question_options
@cost_options
@click.option("--goal", type=click.Choice(GOALS), default="energy", show_default=True, help="What is to be least; edp: energy · latency.")
@click.option("--power-limit", type=POSITIVE, metavar="W", help="Only points of at most this mean power; the board stays as it is.")
@click.option("--latency-limit", type=POSITIVE, metavar="MS", help="Latency of an iteration that must be kept [ms].")
@click.option(
    "--confidence",
    type=Number(0.0, 1.0, above=True, below=True),
    default=0.5,
    show_default=True,
    metavar="P",
    help="Probability with which limits are kept.",
)
@chart_option(SWEEP_CHART_NAMES)
@out_options(PAGE_FORMATS)
def best_command(**options: Any) -> int:
    """The clock, batch, precision or GPU of least energy (or latency, …) under limits, and which clocks cannot be told from it."""
    form = answer_form(options, PAGE_FORMATS)
    check_something_asked(options)
    from estimator.display.answers import SWEEP_CHARTS, sweep_page
    from estimator.display.sweeps import best_document, best_text, csv_pieces, sweep_columns

    asked, outside = within_clocks(_questions(options))
    asked, left_out = runnable_questions(asked, outside)
    answer = best_point(asked, options)
    check_finite(answer.points)
    tariff, counts = _tariff(options), _counts(options)
    texts: dict[str, Callable[[], str]] = {
        "txt": lambda: best_text(answer, tariff, **counts),
        "json": lambda: _json(best_document(answer, [*left_out, *_left_out(answer)], tariff, **counts)),
        "csv": lambda: "".join(csv_pieces([sweep_columns(answer.points.select([answer.index]), tariff, **counts)])),  # type: ignore[arg-type]
        "html": lambda: sweep_page(answer.points),
    }
    _put(form, texts.get(form) or (lambda: SWEEP_CHARTS[options["chart"] or SWEEP_CHART_NAMES[0]](answer.points)), options)
    seen = Seen(left_out)
    seen.add(answer.points.select([answer.index]))  # type: ignore[arg-type]
    seen.cases += answer.points.cases
    seen.notes += _left_out(answer)
    return report(seen, options)


@click.command(
    context_settings=SETTINGS, epilog="Ratios are against the first; errors that both share (board, coefficients, host) fall out of them."
)
@question_options
@click.option("--baselines", is_flag=True, help="Beside each what a roofline and a model in AccelWattch's form say of it.")
@out_options(TEXT_FORMATS)
def compare_command(**options: Any) -> int:
    """Two or more WORKLOADs, bundles, GPUs, precisions, forms of attention, sizes or clocks side by side, with ratios and intervals.

    One alone with --set or --efficiency is compared with the board as it is.
    """
    form = answer_form(options, TEXT_FORMATS)
    check_something_asked(options)
    from estimator.baselines.answers import baseline_estimates
    from estimator.display.comparisons import comparison_columns, comparison_document, comparison_text
    from estimator.display.sweeps import csv_pieces, sweep_columns
    from estimator.questions.comparison import compare
    from estimator.questions.judging import at_clocks, judged

    asked = [at_clocks(one, (clock,)) if clock else one for one in _questions(options) for clock in one.sm_clock_mhz or (0.0,)]
    if len(asked) == 1 and (options["figures"] or options["efficiency"]):
        (unchanged,) = _questions({**options, "figures": {}, "efficiency": {}})
        asked = [unchanged, *asked]
    least = 1 if options["baselines"] else 2
    if not least <= len(asked) <= MOST_COMPARED:
        raise click.UsageError(
            f"{len(asked)} {'thing' if len(asked) == 1 else 'things'} to compare; name {least} to {MOST_COMPARED}: "
            "workloads, --bundle, --gpu-spec own,NAME, --precision fp32,bf16, …; or change the board with --set"
        )
    comparisons = [compare(asked[0], other) for other in asked[1:]]
    sides = [comparisons[0].left if comparisons else judged(asked[0]).points, *(one.right for one in comparisons)]
    for side in sides:
        check_finite(side)
    baselines = [baseline_estimates(one) for one in asked] if options["baselines"] else []
    texts: dict[str, Callable[[], str]] = {
        "txt": lambda: comparison_text(sides, comparisons, baselines),
        "json": lambda: _json(comparison_document(sides, comparisons, baselines)),
        "csv": lambda: "".join(csv_pieces(comparison_columns(sides, baselines) if baselines else map(sweep_columns, sides))),
    }
    _put(form, texts[form], options)
    seen = Seen()
    for side in sides:
        seen.add(side)
    return report(seen, options)


MOST_COMPARED: Final = 50


@click.command(
    context_settings=SETTINGS,
    epilog="Limits: DRAM, L2, tensor and CUDA cores, latency of dependent steps, launch, tile quantisation, load imbalance.",
)
@question_options
@click.option("--kernels", callback=kernel_count, default="10", show_default=True, metavar="N|all", help="Kernels in the table.")
@chart_option(EXPLANATION_CHART_NAMES)
@out_options(PAGE_FORMATS)
def explain_command(**options: Any) -> int:
    """Where the time and the energy of one WORKLOAD go: by kernel, by what limits it, by module."""
    form = answer_form(options, PAGE_FORMATS)
    check_something_asked(options)
    from estimator.display.answers import EXPLANATION_CHARTS, explanation_page
    from estimator.display.explanations import explanation_csv, explanation_document, explanation_text
    from estimator.questions.choosing import answered
    from estimator.questions.explanation import explain

    asked = _questions(options)
    if len(asked) != 1 or len(asked[0].sm_clock_mhz or (0.0,)) != 1:
        raise click.UsageError("one workload, bundle, GPU and clock at a time are explained; `estimate compare` sets several side by side")
    for points in answered(asked):
        check_finite(points)
    answer, simulated = explain(asked[0]), asked[0].bundle.simulated
    texts: dict[str, Callable[[], str]] = {
        "txt": lambda: explanation_text(answer, options["kernels"], simulated),
        "json": lambda: _json(explanation_document(answer)),
        "csv": lambda: explanation_csv(answer),
        "html": lambda: explanation_page(answer, simulated),
    }
    _put(form, texts.get(form) or (lambda: EXPLANATION_CHARTS[options["chart"] or EXPLANATION_CHART_NAMES[0]](answer)), options)
    named = {kind: [((answer.result.workload,), line) for line in getattr(answer.result, kind)] for kind in ("warnings", "notes")}
    return say(named["warnings"], named["notes"], [(answer.result.workload,)], options)


# What the commands share ------------------------------------------------------------------------------------------------


def _questions(options: Mapping[str, Any]) -> "list[Asked]":
    return questions(options)


def _tariff(options: Mapping[str, Any]) -> "Tariff":
    from estimator.questions.costs import Tariff

    given = {"price_per_kwh": options["price"], "carbon_g_per_kwh": options["carbon"], "overhead": options["overhead"]}
    return Tariff(**{name: value for name, value in given.items() if value is not None})


def _counts(options: Mapping[str, Any]) -> dict[str, Any]:
    """What an iteration serves and computes; 0 where each case's own numbers are to be taken."""
    return {name: options[name] or 0.0 for name in ("requests", "tokens")}


def _pieces(asked: "Sequence[Asked]", outside: "Sequence[Sweep]", seen: "Seen", *, whole: bool) -> "Iterator[Sweep]":
    """Points of all questions, at least one that has an answer; those that a GPU cannot run only where `whole`.

    outside: as of `within_clocks`.  Raises EstimatorError for other points without a time.
    """
    from estimator.questions.choosing import answered

    refused = None
    waiting: list[Sweep] = []  # what stands before the first answer
    answers = 0
    for piece in chain(answered(asked), outside):
        points, left_out = runnable(piece)
        seen.add(points, left_out)
        answers += len(points)
        if whole or len(points):
            waiting.append(piece if whole else points)
        if answers:
            yield from waiting
            waiting.clear()
        else:
            refused = piece
    if refused is not None and not answers:
        check_finite(refused)


def _stream(pieces: "Iterator[Sweep]", form: str, options: Mapping[str, Any], tariff: "Tariff", counts: Mapping[str, float]) -> None:
    """Write a sweep piece by piece, so that no more than one is in memory."""
    from estimator.display.sweeps import csv_pieces, json_pieces, sweep_columns, with_left_out

    columns = (sweep_columns(piece, tariff, **counts) for piece in pieces)
    if form == "json":
        columns = (with_left_out(sweep_columns(piece, tariff, **counts), left_out_texts(piece)) for piece in pieces)
    out: Path | None = options["out"]
    if form == "parquet":
        from estimator.display.parquet import write_parquet

        assert out is not None
        write_parquet(out, columns)
        return
    texts = csv_pieces(columns) if form == "csv" else json_pieces(columns)
    if out is None:
        for text in texts:
            click.echo(text, nl=False)
        return
    from estimator.whole_file import open_whole

    with open_whole(out) as stream:
        for text in texts:
            stream.write(text.encode("utf-8", errors="replace"))


def _put(form: str, text: Callable[[], str], options: Mapping[str, Any]) -> None:
    """The answer in its form, to a file or to stdout."""
    out: Path | None = options["out"]
    if form == "svg":
        from estimator.display.pictures import standalone_svg

        deliver(standalone_svg(text()), out)
    elif form == "png":
        from estimator.display.pictures import picture_png

        deliver(picture_png(text()), out)
    else:
        deliver(text(), out)


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _left_out(answer: "Best") -> "list[tuple[Case, str]]":
    """Lines about the cases that were left out because they do not fit into memory; none where the best one does not either."""
    from estimator.display.sweeps import LEFT_OUT

    if answer.points.cases[answer.points.case[answer.index]].too_large:
        return []
    return [(case, f"{LEFT_OUT}{line}") for case in answer.points.cases for line in case.too_large]
