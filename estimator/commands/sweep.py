"""The commands `estimate sweep`, `best` and `compare`: answers of many points."""

import math
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.commands.combinations import check_finite, questions
from estimator.commands.options import CHART_FORMATS, QUESTION, TEXT_FORMATS, answer_form, answer_options, flag, positive, with_options
from estimator.commands.reporting import Forms, deliver, report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from estimator.questions.sweeping import Remarks, Sweep

GOALS: Final = ("energy", "latency", "power", "edp", "ed2p")
CHARTS: Final = ("energy", "latency", "power", "front")


@click.command(
    epilog="A point each for every bundle, GPU, workload, batch, sequence, precision, form of attention and clock.",
)
@with_options(*QUESTION, *answer_options(CHART_FORMATS, CHARTS))
def sweep_command(**options: Any) -> int:
    """Latency, power and energy of WORKLOADs over clocks, batches, sequences, precisions and GPUs, each with its uncertainty."""
    form = answer_form(options, CHART_FORMATS)
    asked = questions(options)
    from estimator.display.answers import pictures
    from estimator.display.sweeps import csv_pieces, json_pieces, sweep_table
    from estimator.questions.choosing import answered
    from estimator.questions.sweeping import joined_sweeps

    warnings: Remarks = []
    notes: Remarks = []
    unusable = False

    def pieces() -> "Iterator[Sweep]":
        nonlocal unusable
        for points in answered(asked):
            unusable |= points.unusable
            warnings.extend(points.warnings)
            notes.extend(points.notes)
            yield points

    forms: Forms = {
        "csv": lambda: csv_pieces(pieces()),  # piece by piece, so that only one is in memory
        "json": lambda: json_pieces(pieces()),
    }
    if form not in forms:
        points = joined_sweeps(pieces())
        forms = {"txt": lambda: sweep_table(points), **pictures(points, options["chart"])}
    deliver(form, forms, options["out"])
    return report(warnings, notes, options, unusable=unusable)


@click.command(
    epilog="Without --freqs every clock that the GPU can lock is looked at, whether the bundle's fit has seen it or not.",
)
@with_options(
    *QUESTION,
    click.option(
        "--goal", type=click.Choice(GOALS), default="energy", show_default=True, help="What is to be least; edp: energy · latency."
    ),
    positive("--power-limit", metavar="W", help="Only points of at most this mean power; the board stays as it is."),
    positive("--latency-limit", metavar="MS", help="Latency of an iteration that must be kept [ms]."),
    *answer_options(CHART_FORMATS, CHARTS),
)
def best_command(**options: Any) -> int:
    """The clock, batch, precision or GPU of least energy (or latency, …) under limits, and the clocks that do not differ from it."""
    form = answer_form(options, CHART_FORMATS)
    asked = questions(options)
    import numpy as np

    from estimator.display.answers import pictures
    from estimator.display.sweeps import best_document, best_text, csv_pieces
    from estimator.display.text import json_text
    from estimator.questions.choosing import MILLISECONDS, best

    power_w, latency_ms = (options[name] or math.inf for name in ("power_limit", "latency_limit"))
    answer = best(asked, options["goal"], power_limit_w=power_w, latency_limit_s=latency_ms * MILLISECONDS)
    points, chosen = answer.points, np.arange(len(answer.points)) == answer.index
    forms = {
        "txt": lambda: best_text(answer),
        "json": lambda: json_text(best_document(answer)),
        "csv": lambda: csv_pieces([points.select(chosen)]),
        **pictures(points, options["chart"]),
    }
    deliver(form, forms, options["out"])
    stated = points.select(chosen | ~np.isfinite(points.latency_s))  # why a GPU cannot run a precision
    skipped = [case for case in points.cases if case.too_large and not points.cases[points.case[answer.index]].too_large]
    notes = [(case.workload, f"left out: {line}") for case in skipped for line in case.too_large]
    return report(stated.warnings, [*stated.notes, *notes], options, unusable=points.select(chosen).unusable)


@click.command(epilog="Ratios are against the first; errors that both share (board, coefficients, host) fall out of them.")
@with_options(
    *QUESTION,
    flag("--baselines", help="Beside each the time of a roofline."),
    *answer_options(TEXT_FORMATS),
)
def compare_command(**options: Any) -> int:
    """Two or more WORKLOADs, bundles, GPUs, precisions, forms of attention, sizes or clocks side by side, with ratios and intervals.

    One alone with --set or --efficiency is compared with the board as it is.
    """
    form = answer_form(options, TEXT_FORMATS)
    from estimator.display.sweeps import comparison_document, comparison_text, with_rooflines
    from estimator.display.text import json_text, rows_csv
    from estimator.questions.choosing import compare
    from estimator.questions.estimates import roofline_latency_s
    from estimator.questions.judging import at_clocks, judged
    from estimator.questions.sweeping import joined_sweeps

    asked = [at_clocks(one, (clock,)) if clock else one for one in questions(options) for clock in one.sm_clock_mhz or (0.0,)]
    if len(asked) == 1 and (options["figures"] or options["efficiency"]):
        asked = [*questions({**options, "figures": {}, "efficiency": {}}), *asked]
    least, count = 1 if options["baselines"] else 2, len(asked)
    if not least <= count <= 50:
        raise click.UsageError(
            f"{count} to compare; name {least} to {50}: "
            "workloads, --gpu h100,l40s, --bundle, --precision fp32,bf16, …; or change the board with --set"
        )
    comparisons = [compare(asked[0], other) for other in asked[1:]]
    sides = joined_sweeps([comparisons[0].left if comparisons else judged(asked[0]).points, *(one.right for one in comparisons)])
    check_finite(sides)
    rooflines_s = [float(roofline_latency_s(one)[0]) for one in asked] if options["baselines"] else []
    forms = {
        "txt": lambda: comparison_text(sides, comparisons, rooflines_s),
        "json": lambda: json_text(comparison_document(sides, comparisons, rooflines_s)),
        "csv": lambda: rows_csv(with_rooflines(sides, rooflines_s)),
    }
    deliver(form, forms, options["out"])
    return report(sides.warnings, sides.notes, options, unusable=sides.unusable)
