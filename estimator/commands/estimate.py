"""The commands `estimate` and `estimate explain`, and the words that select sub-commands."""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from estimator import __version__
from estimator.commands.combinations import check_finite, questions
from estimator.commands.options import CHART_FORMATS, KERNELS, QUESTION, TEXT_FORMATS, answer_form, answer_options, with_options
from estimator.commands.reporting import Forms, deliver, report
from estimator.options.command_line import WRONG_USAGE, is_given, run_command
from estimator.vocabulary.errors import EstimatorError

if TYPE_CHECKING:
    from estimator.questions.estimates import Estimate

CHARTS: Final = ("time", "modules")


@click.command(
    epilog="Commands of their own: sweep, best, compare, explain, llm, serve, trace, counts, blocks, bundles, gpus (COMMAND --help). "
    "`estimate gpus` lists the GPUs. Exit status: 0 done, 1 not done, 2 wrong usage, 3 not to be used as it is, 130 interrupted.",
)
@with_options(*QUESTION, KERNELS, *answer_options(TEXT_FORMATS), click.version_option(__version__, prog_name="estimate"))
def estimate_command(**options: Any) -> int:
    """Latency, power and energy of WORKLOADs on a GPU, by its name, from the best bundle for it: estimate gpt2.json --gpu h100.

    A WORKLOAD is a file: the own JSON format or an EnergAIzer operator list.  --model traces a PyTorch model in its place.
    """
    form = answer_form(options, TEXT_FORMATS)
    asked = questions(options)
    if max(len(options["precision"]), len(options["attention"])) > 1:
        raise click.UsageError("one precision and form of attention at a time; `estimate sweep` takes several")
    from estimator.display.estimates import kernel_table, result_document
    from estimator.display.sweeps import csv_pieces, sweep_table
    from estimator.display.text import json_of_each
    from estimator.questions.estimates import estimates_of
    from estimator.questions.judging import predicted
    from estimator.questions.sweeping import joined_sweeps, table

    predictions = [predicted(one) for one in asked]
    points = joined_sweeps([table([one.variant], prediction) for one, prediction in zip(asked, predictions, strict=True)])
    check_finite(points)
    most = options["kernels"] if is_given("kernels") or len(points) == len(asked) else 0

    def results() -> "list[Estimate]":
        return [result for prediction in predictions for result in estimates_of(prediction)]

    forms: Forms = {
        "json": lambda: json_of_each([result_document(result) for result in results()]),
        "csv": lambda: csv_pieces([points]),
        "txt": lambda: "\n".join([sweep_table(points), *(kernel_table(result, most) for result in ([] if most == 0 else results()))]),
    }
    deliver(form, forms, options["out"])
    return report(points.warnings, points.notes, options, unusable=points.unusable)


@click.command(
    epilog="Limits: DRAM, L2, tensor and CUDA cores, latency of dependent steps, launch, tile quantisation, load imbalance.",
)
@with_options(*QUESTION, KERNELS, *answer_options(CHART_FORMATS, CHARTS))
def explain_command(**options: Any) -> int:
    """Parts of the time and the energy of one WORKLOAD: by kernel, by limit, by module."""
    form = answer_form(options, CHART_FORMATS)
    asked = questions(options)
    if len(asked) != 1 or len(asked[0].sm_clock_mhz or (0.0,)) != 1:
        raise click.UsageError("one workload, bundle, GPU and clock at a time are explained; `estimate compare` sets several side by side")
    from estimator.display.answers import pictures
    from estimator.display.estimates import explanation_csv, explanation_document, explanation_text
    from estimator.display.text import json_text
    from estimator.questions.explanation import explain
    from estimator.questions.judging import judged

    (question,) = asked
    check_finite(judged(question).points)
    answer = explain(question)
    result = answer.result
    forms = {
        "txt": lambda: explanation_text(answer, options["kernels"], question.bundle.simulated),
        "json": lambda: json_text(explanation_document(answer)),
        "csv": lambda: explanation_csv(answer),
        **pictures(answer, options["chart"]),
    }
    deliver(form, forms, options["out"])
    warnings, notes = ([(result.workload, line) for line in lines] for lines in (result.warnings, result.notes))
    return report(warnings, notes, options, unusable=not result.usable)


COMMANDS: Final = {
    "best": "estimator.commands.sweep:best_command",
    "blocks": "estimator.commands.blocks:blocks_command",
    "bundles": "estimator.commands.bundles:bundles_command",
    "compare": "estimator.commands.sweep:compare_command",
    "counts": "estimator.commands.counts:counts_command",
    "explain": "estimator.commands.estimate:explain_command",
    "gpus": "estimator.commands.bundles:gpus_command",
    "llm": "estimator.commands.llm:llm_command",
    "serve": "estimator.serve.command:serve_command",
    "sweep": "estimator.commands.sweep:sweep_command",
    "trace": "estimator.commands.trace:trace_command",
}
"""Sub-commands by the first argument, and their location; any other argument is a workload (./sweep: a file of that name)."""


def run(given: list[str]) -> int:
    """Run `estimate` with these words and return its exit status."""
    word = given[0] if given else ""
    if word in COMMANDS:
        module, _, name = COMMANDS[word].partition(":")
        return run_command(getattr(import_module(module), name), given[1:], f"estimate {word}", (EstimatorError,))
    if word.isalpha() and not Path(word).exists():
        known = ", ".join(COMMANDS)
        sys.stderr.write(f"estimate: {word}: no file and no sub-command of this name; sub-commands, each with --help: {known}\n")
        return WRONG_USAGE
    return run_command(estimate_command, given, "estimate", (EstimatorError,))
