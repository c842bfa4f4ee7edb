"""The commands `estimate sweep`, `best`, `compare` and `explain`."""

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.commands.options import (
    COSTS,
    FILE_FORMATS,
    KERNELS,
    PAGE_FORMATS,
    POSITIVE,
    QUESTION,
    SETTINGS,
    TEXT_FORMATS,
    Number,
    Options,
    answer_form,
    answer_options,
    with_options,
)
from estimator.commands.queries import answerable, best_point, check_finite, questions, reasons_of
from estimator.commands.reporting import Remarks, deliver_form

if TYPE_CHECKING:
    from collections.abc import Iterator

    from estimator.display.sweeps import Columns, Terms
    from estimator.questions.points import Sweep

GOALS: Final = ("energy", "latency", "power", "edp", "ed2p")
SWEEP_CHARTS: Final = ("energy", "latency", "power", "front")
EXPLANATION_CHARTS: Final = ("timeline", "time", "modules")


@click.command(
    context_settings=SETTINGS,
    epilog="A point each for every bundle, GPU, workload, batch, sequence, precision, form of attention and clock.",
)
@with_options(*QUESTION, *COSTS, *answer_options(FILE_FORMATS, SWEEP_CHARTS))
def sweep_command(**options: Any) -> int:
    """Latency, power and energy of WORKLOADs over clocks, batches, sequences, precisions and GPUs, each with its uncertainty."""
    form = answer_form(options, FILE_FORMATS)
    asked, lost = answerable(questions(options))
    from estimator.display.sweeps import sweep_columns, sweep_table
    from estimator.questions.choosing import answered

    terms, remarks = _terms(options), Remarks()
    remarks.add_left_out(reasons_of(lost))

    def pieces() -> "Iterator[Sweep]":
        for points in answered(asked):
            remarks.add(points)
            yield points

    if form in ("csv", "json", "parquet"):  # piece by piece, so that only one is in memory
        _stream((sweep_columns(points, terms) for points in chain(pieces(), lost if form == "json" else ())), form, options)
    else:
        from estimator.questions.points import joined_sweeps

        points = joined_sweeps(list(pieces()))
        deliver_form(form, {"txt": lambda: sweep_table(points, terms), **_drawn(points, options)}, options["out"])
    return remarks.report(options)


def _stream(columns: "Iterator[Columns]", form: str, options: Options) -> None:
    from estimator.display.sweeps import csv_pieces, json_pieces, write_parquet
    from estimator.vocabulary.whole_file import open_whole

    out = options["out"]
    if form == "parquet":
        write_parquet(out, columns)
        return
    texts = csv_pieces(columns) if form == "csv" else json_pieces(columns)
    if out is None:
        for text in texts:
            click.echo(text, nl=False)
        return
    with open_whole(out) as stream:
        for text in texts:
            stream.write(text.encode("utf-8", errors="replace"))


def _drawn(points: "Sweep", options: Options) -> dict[str, Callable[[], str]]:
    """A sweep as a page and as a chart."""
    from estimator.display.answers import SWEEP_CHARTS as CHARTS
    from estimator.display.answers import sweep_page

    return {"html": lambda: sweep_page(points), "chart": lambda: CHARTS[options["chart"] or SWEEP_CHARTS[0]](points)}


@click.command(
    context_settings=SETTINGS,
    epilog="Without --freqs every clock that the GPU can lock and the bundle's fit has seen is looked at; all where it has seen one.",
)
@with_options(
    *QUESTION,
    *COSTS,
    click.option(
        "--goal", type=click.Choice(GOALS), default="energy", show_default=True, help="What is to be least; edp: energy · latency."
    ),
    click.option("--power-limit", type=POSITIVE, metavar="W", help="Only points of at most this mean power; the board stays as it is."),
    click.option("--latency-limit", type=POSITIVE, metavar="MS", help="Latency of an iteration that must be kept [ms]."),
    click.option(
        "--confidence",
        type=Number(0.0, 1.0, min_open=True, max_open=True),
        default=0.5,
        show_default=True,
        metavar="P",
        help="Probability with which limits are kept.",
    ),
    *answer_options(PAGE_FORMATS, SWEEP_CHARTS),
)
def best_command(**options: Any) -> int:
    """The clock, batch, precision or GPU of least energy (or latency, …) under limits, and the clocks that do not differ from it."""
    form = answer_form(options, PAGE_FORMATS)
    asked, lost = answerable(questions(options))
    from estimator.display.sweeps import best_document, best_text, csv_pieces, sweep_columns
    from estimator.display.text import json_text

    answer, terms = best_point(asked, options), _terms(options)
    cases, chosen = answer.points.cases, answer.points.select([answer.index])  # type: ignore[arg-type]
    too_large = [(case, line) for case in cases for line in case.too_large]
    if cases[answer.points.case[answer.index]].too_large:  # nothing else keeps the limits
        too_large = []
    left_out = [*reasons_of(lost), *too_large]
    forms = {
        "txt": lambda: best_text(answer, terms),
        "json": lambda: json_text(best_document(answer, left_out, terms)),
        "csv": lambda: "".join(csv_pieces([sweep_columns(chosen, terms)])),
        **_drawn(answer.points, options),
    }
    deliver_form(form, forms, options["out"])
    remarks = Remarks()
    remarks.add_left_out(reasons_of(lost))
    remarks.add(chosen)
    remarks.add_left_out(too_large, remarks.notes)
    return remarks.report(options)


@click.command(
    context_settings=SETTINGS, epilog="Ratios are against the first; errors that both share (board, coefficients, host) fall out of them."
)
@with_options(
    *QUESTION,
    click.option("--baselines", is_flag=True, help="Beside each what a roofline and a model in AccelWattch's form say of it."),
    *answer_options(TEXT_FORMATS),
)
def compare_command(**options: Any) -> int:
    """Two or more WORKLOADs, bundles, GPUs, precisions, forms of attention, sizes or clocks side by side, with ratios and intervals.

    One alone with --set or --efficiency is compared with the board as it is.
    """
    form = answer_form(options, TEXT_FORMATS)
    from estimator.display.sweeps import comparison_columns, comparison_document, comparison_text, csv_pieces
    from estimator.display.text import json_text
    from estimator.questions.baselines import baseline_estimates
    from estimator.questions.choosing import compare
    from estimator.questions.judging import at_clocks, judged

    asked = [at_clocks(one, (clock,)) if clock else one for one in questions(options) for clock in one.sm_clock_mhz or (0.0,)]
    if len(asked) == 1 and (options["figures"] or options["efficiency"]):
        asked = [*questions({**options, "figures": {}, "efficiency": {}}), *asked]
    least = 1 if options["baselines"] else 2
    if not least <= len(asked) <= 50:
        raise click.UsageError(
            f"{len(asked)} {'thing' if len(asked) == 1 else 'things'} to compare; name {least} to {50}: "
            "workloads, --bundle, --gpu-spec own,NAME, --precision fp32,bf16, …; or change the board with --set"
        )
    comparisons = [compare(asked[0], other) for other in asked[1:]]
    sides = [comparisons[0].left if comparisons else judged(asked[0]).points, *(one.right for one in comparisons)]
    remarks = Remarks()
    for side in sides:
        check_finite(side.cases[0], side.latency_s.tolist())
        remarks.add(side)
    baselines = [baseline_estimates(one) for one in asked] if options["baselines"] else []
    forms = {
        "txt": lambda: comparison_text(sides, comparisons, baselines),
        "json": lambda: json_text(comparison_document(sides, comparisons, baselines)),
        "csv": lambda: "".join(csv_pieces(comparison_columns(sides, baselines))),
    }
    deliver_form(form, forms, options["out"])
    return remarks.report(options)


@click.command(
    context_settings=SETTINGS,
    epilog="Limits: DRAM, L2, tensor and CUDA cores, latency of dependent steps, launch, tile quantisation, load imbalance.",
)
@with_options(*QUESTION, KERNELS, *answer_options(PAGE_FORMATS, EXPLANATION_CHARTS))
def explain_command(**options: Any) -> int:
    """Parts of the time and the energy of one WORKLOAD: by kernel, by limit, by module."""
    form = answer_form(options, PAGE_FORMATS)
    asked = questions(options)
    if len(asked) != 1 or len(asked[0].sm_clock_mhz or (0.0,)) != 1:
        raise click.UsageError("one workload, bundle, GPU and clock at a time are explained; `estimate compare` sets several side by side")
    from estimator.display.answers import EXPLANATION_CHARTS as CHARTS
    from estimator.display.answers import explanation_page
    from estimator.display.explanations import explanation_csv, explanation_document, explanation_text
    from estimator.display.text import json_text
    from estimator.questions.explanation import explain

    answerable(asked)
    answer, simulated = explain(asked[0]), asked[0].bundle.simulated
    forms = {
        "txt": lambda: explanation_text(answer, options["kernels"], simulated),
        "json": lambda: json_text(explanation_document(answer)),
        "csv": lambda: explanation_csv(answer),
        "html": lambda: explanation_page(answer, simulated),
        "chart": lambda: CHARTS[options["chart"] or EXPLANATION_CHARTS[0]](answer),
    }
    deliver_form(form, forms, options["out"])
    remarks = Remarks()
    remarks.add_result(answer.result)
    return remarks.report(options)


def _terms(options: Options) -> "Terms":
    from estimator.display.sweeps import Terms
    from estimator.questions.costs import Tariff

    given = {"price_per_kwh": options["price"], "carbon_g_per_kwh": options["carbon"], "overhead": options["overhead"]}
    tariff = Tariff(**{name: value for name, value in given.items() if value is not None})
    return Terms(tariff=tariff, requests=options["requests"] or 0.0, tokens=options["tokens"] or 0.0)
