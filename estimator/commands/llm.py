"""The command `estimate llm`: a language model under a serving engine."""

import math
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.commands.combinations import boards
from estimator.commands.options import (
    BOARD,
    CHART_FORMATS,
    KV,
    WEIGHTS,
    WHERE,
    Options,
    answer_form,
    answer_options,
    positive,
    whole_numbers,
    with_options,
)
from estimator.commands.reporting import deliver, report
from estimator.options.command_line import named_file
from estimator.vocabulary.errors import EstimatorError, OperatingPointError

if TYPE_CHECKING:
    from estimator.serving.answers import ServedEstimate

GOALS: Final = ("energy_per_token", "tokens_per_s")
USUAL_BATCHES: Final = tuple(sorted({round(2.0 ** (step / 4)) for step in range(33)}))
"""Requests in flight among which --best looks if none are named: 1 to 256, each at most a quarter above the one before from 4 on."""

TOKENS: Final = click.IntRange(1, 10**8)


@click.command(
    epilog="TTFT, TPOT: time to the first output token, and per token after it. Lists (--batch, --tensor-parallel, "
    "--gpu, --freqs) make a table. Exit status: 0 done, 1 not done, 2 wrong usage, 3 does not fit or overloaded.",
)
@with_options(
    click.argument("model", metavar="CONFIG", type=named_file),
    *WHERE,
    click.option("--prompt", type=TOKENS, required=True, metavar="N", help="Tokens of a prompt."),
    click.option("--output", type=click.IntRange(2, 10**8), required=True, metavar="N", help="Tokens of an answer."),
    click.option("--batch", metavar="LIST|LO:HI:STEP", callback=whole_numbers, help="Requests in flight at any time."),
    positive("--rate", metavar="R", help="Requests per second instead."),
    click.option("--tensor-parallel", metavar="LIST", default="1", callback=whole_numbers, help="GPUs that share every layer."),
    click.option("--expert-parallel", type=click.IntRange(1, 4096), default=1, metavar="N", help="Groups of GPUs that share the experts."),
    WEIGHTS,
    KV,
    click.option("--engine", metavar="NAME", type=named_file, help="vllm, tensorrt-llm, sglang, one with its version, or a TOML file."),
    click.option("--best", type=click.Choice(GOALS), help="Only the point of least energy, or of most tokens."),
    positive("--ttft-limit", metavar="MS", help="With --best: mean time to the first token under load."),
    positive("--tpot-limit", metavar="MS", help="With --best: time per output token."),
    *BOARD,
    *answer_options(CHART_FORMATS, ("energy", "tokens", "latency", "power")),
)
def llm_command(**options: Any) -> int:
    """Tokens/s, latencies, power and energy per token of a language model as an engine serves it; CONFIG: config.json, or a name."""
    form, best, batch, rate = answer_form(options, CHART_FORMATS), options["best"], options["batch"], options["rate"]
    if batch and rate:
        raise click.UsageError("--batch and --rate exclude each other: requests in flight, or requests per second")
    if not (batch or rate or best):
        raise click.UsageError("name --batch (requests in flight) or --rate (requests per second)")
    if best is None and (options["ttft_limit"] or options["tpot_limit"]):
        raise click.UsageError("--ttft-limit and --tpot-limit choose among points: add --best")
    from estimator.display.answers import picture_forms
    from estimator.display.serving import served_csv, served_svg, served_text
    from estimator.display.text import json_of_each

    found, without = answers(options)
    points = [best_of(found, options)] if best else found
    if best and not (batch or rate):
        tried = f"--best looks at {', '.join(map(str, USUAL_BATCHES))} requests in flight; --batch LO:HI:STEP names others"
        without.append((points[0].model, tried))
    forms = {
        "txt": lambda: served_text(points),
        "json": lambda: json_of_each(points),
        "csv": lambda: served_csv(points),
        **picture_forms(lambda: served_svg(points, options["chart"])),
    }
    deliver(form, forms, options["out"])
    warnings, notes = ([(one.model, line) for one in points for line in getattr(one, kind)] for kind in ("warnings", "notes"))
    return report(warnings, [*without, *notes], options, unusable=any(one.state for one in points))


def answers(options: Options) -> "tuple[list[ServedEstimate], list[tuple[str, str]]]":
    """Every GPU, number of GPUs, load and clock; and the GPUs and numbers that cannot run the model, each with the reason.

    Raises EstimatorError, the first one if none can run it.
    """
    from estimator.engine.board import open_board
    from estimator.serving.answers import Serving, serve_many

    batches = () if options["rate"] else options["batch"] or USUAL_BATCHES
    given = {name: options[name] for name in ("model", "prompt", "output", "rate", "expert_parallel", "weights", "kv", "engine")}
    servings = [Serving(tensor_parallel=ranks, batch=min(batches, default=None), **given) for ranks in options["tensor_parallel"]]
    found: list[ServedEstimate] = []
    refused: list[EstimatorError] = []
    power_cap, efficiency = options["power_cap"], options["efficiency"]
    for bundle, gpu, clocks, idle in boards(options, (frozenset(servings[0].formats), True))[0]:
        board = open_board(bundle, gpu=gpu, sm_clock_mhz=clocks, power_cap_w=power_cap, efficiency=efficiency, idle_power=idle)
        for serving in servings:
            try:
                found += serve_many(serving, board, batches)
            except EstimatorError as error:
                refused.append(error)
    if not found:
        raise refused[0]
    return found, [(options["model"], f"left out: {reason}") for reason in refused]


def best_of(found: "list[ServedEstimate]", options: Options) -> "ServedEstimate":
    """The best answer within the limits, or the first if none has values.  Raises OperatingPointError if none is within the limits."""
    from estimator.questions.choosing import MILLISECONDS

    ttft, tpot = (MILLISECONDS * (options[name] or math.inf) for name in ("ttft_limit", "tpot_limit"))
    value, sign = ("energy_per_token_j", 1.0) if options["best"] == "energy_per_token" else ("tokens_per_s", -1.0)
    answered = [one for one in found if math.isfinite(getattr(one, value))]
    if not answered:
        if found[0].state:
            return found[0]
        raise OperatingPointError(f"no point can be chosen by {options['best']}: the bundle has no power coefficients; choose another")
    inside = [one for one in answered if one.ttft_loaded_s <= ttft and one.tpot_s <= tpot]
    if not inside:
        raise OperatingPointError(f"none of {len(found)} points is within the limits; loosen them, or take more GPUs")
    return min(inside, key=lambda one: sign * getattr(one, value))
