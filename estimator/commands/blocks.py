"""The command `estimate blocks`: time and energy of a kernel from its number of blocks, and platforms for SimGrid."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.commands.options import CSV, JSON, NOT_NEGATIVE, POSITIVE, QUIET, SETTINGS, answer_form, with_options
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, named_file
from estimator.options.output_files import output_option
from estimator.vocabulary.errors import EstimatorError

if TYPE_CHECKING:
    from estimator.blocks.model import BlockModel, Form

FORM_NAMES: Final = ("occupancy", "rounds", "linear")
SIMGRID: Final = "simgrid"
"""What SimGrid finds on the platform of the chosen models, and what is to be executed there."""

POOR_ERROR: Final = 0.25
"""Relative error on grids left out above which a form does not describe a kernel [1]; published forms reach 0.14 on simulated boards."""

RUN_COLUMNS: Final = ("host", "pstate", "speed", "launch", "whole", "rounds", "rest", "latency_s", "energy_j")
LONGEST_LIST: Final = 100_000

ERROR: Final = "_error_"
"""Between quantity and form in the name of a column that holds a relative error."""

ERRORS: Final = "  time_error_…, energy_error_… %: how far each form is off on grids left out of its fit, relative to what was measured\n"

FILTERS: Final = {"kernel": "kernel", "block_threads": "block_threads", "sm_clock_mhz": "freq_mhz"}
"""Fields of a model and the options that choose by them."""

Rows = list[dict[str, Any]]


def block_list(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Comma-separated grids.  Raises BadParameter for what is no positive whole number."""
    words = [] if text is None else text.split(",")
    if len(words) > LONGEST_LIST:
        raise click.BadParameter(f"{len(words)} grids; at most {LONGEST_LIST} at once", context, parameter)
    if wrong := [word for word in words if not (word.strip().isascii() and word.strip().isdecimal() and int(word) >= 1)]:
        raise click.BadParameter(f"{wrong[0]!r} is no number of blocks", context, parameter)
    return tuple(map(int, words))


@click.command(context_settings=SETTINGS, epilog="Block-count models come from `fit` on grids of a kernel; docs/how-to/block-count.md.")
@with_options(
    click.argument("kernel", metavar="[KERNEL]", required=False, callback=named_file),
    click.option("--bundle", "bundle_name", metavar="NAME|FILE", required=True, callback=named_file, help="Calibration to use."),
    click.option("--blocks", callback=block_list, metavar="N,N,…", help="Grids to estimate."),
    click.option("--block-threads", type=click.IntRange(1, 1024), metavar="N", help="Where a kernel has models of several block sizes."),
    click.option("--freq", "freq_mhz", type=POSITIVE, metavar="MHZ", help="SM clock, where there are models of several."),
    click.option(
        "--form",
        type=click.Choice((*FORM_NAMES, SIMGRID)),
        default="occupancy",
        show_default=True,
        help="rounds, linear: as published; simgrid: as SimGrid finds it, with the work to execute.",
    ),
    output_option("--simgrid", metavar="FILE", help="Write a SimGrid platform of the chosen models."),
    click.option(
        "--off-w", type=NOT_NEGATIVE, default=0.0, show_default=True, metavar="W", help="Power of a host that is off, in that platform."
    ),
    CSV,
    JSON,
    QUIET,
)
def blocks_command(**options: Any) -> int:
    """Time and energy of KERNEL by its number of blocks; without KERNEL the models that the bundle has."""
    answer = answer_form({**options, "out": None}, ("csv", "json", "txt"))
    if options["off_w"] and options["simgrid"] is None:
        raise click.UsageError("--off-w belongs to the platform that --simgrid writes")
    if options["blocks"] and options["kernel"] is None:
        raise click.UsageError("--blocks needs a KERNEL")
    from estimator.blocks.model import models_from_section
    from estimator.bundle.files import load_bundle
    from estimator.display.text import printable
    from estimator.uncertainty.validity import simulated_notes

    bundle = load_bundle(options["bundle_name"])
    models = models_from_section(bundle.block_models)
    if not models:
        raise EstimatorError(f"bundle {bundle.name} has no block-count models; `fit` makes them from grids of a kernel")
    chosen, grids, form = _chosen(list(models.values()), options), options["blocks"], options["form"]
    if options["simgrid"] is not None:
        from estimator.blocks.simgrid import platform_xml
        from estimator.vocabulary.whole_file import write_whole

        write_whole(options["simgrid"], platform_xml(chosen, options["off_w"]).encode())
    if grids:
        rows = _simulated(chosen, grids) if form == SIMGRID else _estimates(chosen, grids, form)
    else:
        rows = sorted(_listing(chosen), key=lambda row: (row["sm_clock_mhz"], row["kernel"], row["block_threads"]))
    click.echo(_text(rows, answer), nl=False)
    outside = sorted({str(row["blocks"]) for row in rows if row.get("inside") is False}, key=int)
    warnings = [f"{', '.join(outside)} blocks lie outside the measured grids"] if outside else []
    form = "occupancy" if form == SIMGRID else form
    poor = sorted({model.kernel for model in chosen if max(model.scatter.get(form, {}).values(), default=0.0) > POOR_ERROR})
    if poor and grids:
        warnings.append(f"form {form} is off by more than {POOR_ERROR:.0%} on grids left out of its fit: {', '.join(poor)}")
    if not options["quiet"]:
        for line in (*(f"warning: {text}" for text in warnings), *(f"note: {printable(note)}" for note in simulated_notes(bundle))):
            click.echo(line, err=True)
    return DONE_WITH_WARNINGS if warnings else DONE


def _chosen(models: "list[BlockModel]", options: Mapping[str, Any]) -> "list[BlockModel]":
    """The models that the options name.  Raises EstimatorError where there is none."""
    for field, option in FILTERS.items():
        wanted, found = options[option], [(model, getattr(model, field)) for model in models]
        there = sorted({value for _, value in found})
        if wanted is not None:
            models = [model for model, value in found if value == wanted or (field == "sm_clock_mhz" and round(value) == round(wanted))]
        if not models:
            raise EstimatorError(f"no block-count model with {field} {wanted}; there are {', '.join(map(str, there))}")
    return models


def _head(model: "BlockModel") -> dict[str, Any]:
    return {"kernel": model.kernel, "block_threads": model.block_threads, "sm_clock_mhz": model.sm_clock_mhz}


def _estimates(models: "Sequence[BlockModel]", grids: Sequence[int], form: "Form") -> Rows:
    rows = []
    for model in models:
        time_s, energy_j = model.latency_s(list(grids), form), model.energy_j(list(grids), form)
        columns = {
            "blocks": list(grids),
            "latency_s": time_s.tolist(),
            "latency_std_s": model.latency_std_s(list(grids), form).tolist(),
            "power_w": (energy_j / time_s).tolist(),
            "energy_j": energy_j.tolist(),
            "energy_std_j": model.energy_std_j(list(grids), form).tolist(),
            "inside": model.inside(list(grids)).tolist(),
        }
        rows += [_head(model) | dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return rows


def _simulated(models: "Sequence[BlockModel]", grids: Sequence[int]) -> Rows:
    """For each grid the host, the amounts of work in its units, and the time and energy that the host-energy plugin finds."""
    from estimator.blocks.simgrid import simulated_run

    rows = []
    for model in models:
        for count in grids:
            run = simulated_run(model, count, models)
            found = {name: getattr(run, name) for name in RUN_COLUMNS}
            rows.append(_head(model) | {"blocks": count} | found | {"inside": bool(model.inside(count))})
    return rows


def _listing(models: "Sequence[BlockModel]") -> Rows:
    """The models; `time_error_…` and `energy_error_…` are relative errors of the forms on grids left out [1]."""
    return [
        {
            **_head(model),
            "blocks_per_sm": model.blocks_per_sm,
            "blocks_from": model.blocks[0],
            "blocks_to": model.blocks[1],
            "rows": model.rows,
            "round_s": model.round_s(),
            "round_power_w": model.round_power_w(),
            "static_w": model.static_w,
            **{
                f"{quantity}{ERROR}{form}": model.scatter.get(form, {}).get(quantity, math.nan)
                for quantity in ("time", "energy")
                for form in FORM_NAMES
            },
        }
        for model in models
    ]


def _text(rows: Rows, form: str) -> str:
    from estimator.display.text import aligned, rows_csv, rows_json

    if form != "txt":
        return rows_json(rows) if form == "json" else rows_csv(rows)
    errors = any(ERROR in name for name in rows[0])
    table = [[f"{name} %" if ERROR in name else name for name in rows[0]], *([_shown(*item) for item in row.items()] for row in rows)]
    return aligned(table, left_columns=(0,)) + ERRORS * errors


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return "-"
    return f"{100.0 * value:.2f}" if ERROR in name else f"{value:.5g}"
