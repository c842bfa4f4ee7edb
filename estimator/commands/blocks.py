"""The command `estimate blocks`: time and energy of a kernel from its number of blocks, and platforms for SimGrid."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.commands.options import CSV, JSON, QUIET, STRICT, TEXT_FORMATS, Options, answer_form, positive, whole_numbers, with_options
from estimator.commands.reporting import say, show
from estimator.options.command_line import named_file, output_option
from estimator.vocabulary.errors import EstimatorError

if TYPE_CHECKING:
    from estimator.blocks.model import BlockModel, Form

FORM_NAMES: Final = ("occupancy", "rounds", "linear")
SIMGRID: Final = "simgrid"
"""Form of output: SimGrid's results on the platform of the chosen models, and the work to execute there."""

HEAD: Final = ("kernel", "block_threads", "sm_clock_mhz")
"""Fields that tell models apart, and the options that select models by them."""

Row = dict[str, Any]


@click.command(epilog="Block-count models come from `fit` on grids of a kernel; docs/how-to/block-count.md.")
@with_options(
    click.argument("kernel", metavar="[KERNEL]", required=False, type=named_file),
    click.option("--bundle", "bundle_name", metavar="NAME|FILE", required=True, type=named_file, help="Calibration to use."),
    click.option("--blocks", callback=whole_numbers, metavar="N,N,…", help="Grids to estimate."),
    click.option("--block-threads", type=click.IntRange(1, 1024), metavar="N", help="Where a kernel has models of several block sizes."),
    positive("--freq", "sm_clock_mhz", metavar="MHZ", help="SM clock, where there are models of several."),
    click.option(
        "--form",
        type=click.Choice((*FORM_NAMES, SIMGRID)),
        default="occupancy",
        show_default=True,
        help="rounds, linear: as published; simgrid: as SimGrid finds it, with the work to execute.",
    ),
    output_option("--simgrid", metavar="FILE", help="Write a SimGrid platform of the chosen models."),
    CSV,
    JSON,
    STRICT,
    QUIET,
)
def blocks_command(**options: Any) -> int:
    """Time and energy of KERNEL by its number of blocks; without KERNEL the models that the bundle has."""
    answer = answer_form(options, TEXT_FORMATS)
    if options["blocks"] and options["kernel"] is None:
        raise click.UsageError("--blocks needs a KERNEL")
    from estimator.blocks.model import models_from_section
    from estimator.bundle.files import load_bundle
    from estimator.display.text import rows_text
    from estimator.uncertainty.validity import simulated_notes

    bundle = load_bundle(options["bundle_name"])
    models = models_from_section(bundle.block_models)
    if not models:
        raise EstimatorError(f"bundle {bundle.name} has no block-count models; `fit` makes them from grids of a kernel")
    chosen, grids, form = _chosen(list(models.values()), options), options["blocks"], options["form"]
    if options["simgrid"] is not None:
        from estimator.blocks.simgrid import platform_xml
        from estimator.vocabulary.whole_file import write_whole

        write_whole(options["simgrid"], platform_xml(chosen).encode())
    if not grids:
        rows = [_listed(model) for model in sorted(chosen, key=lambda model: (model.sm_clock_mhz, model.kernel, model.block_threads))]
    elif form == SIMGRID:
        rows = [_simulated(model, count, chosen) for model in chosen for count in grids]
    else:
        rows = [_estimated(model, count, form) for model in chosen for count in grids]
    show(rows_text(rows, answer))
    limit_w, warnings = bundle.gpu.power_limit_w, []
    above = {row["blocks"] for row in rows if grids and row["energy_j"] > limit_w * row["latency_s"]}
    outside = {row["blocks"] for row in rows if grids and not row["inside"]}
    for counts, where in ((outside, "lie outside the measured grids"), (above, f"draw more than {limit_w:g} W, the limit: clocks fall")):
        if counts:
            warnings.append(f"{', '.join(map(str, sorted(counts)))} blocks {where}")
    return say(warnings, simulated_notes(bundle), options)


def _chosen(models: "list[BlockModel]", options: Options) -> "list[BlockModel]":
    """The models that the options select; clocks agree to half a MHz.  Raises EstimatorError if no model matches."""
    for field in HEAD:
        wanted, there = options[field], sorted({getattr(model, field) for model in models})
        if wanted is not None:
            own = [(model, getattr(model, field)) for model in models]
            models = [model for model, value in own if value == wanted or (field == "sm_clock_mhz" and abs(value - wanted) <= 0.5)]
        if not models:
            raise EstimatorError(f"no block-count model with {field} {wanted}; there are {', '.join(map(str, there))}")
    return models


def _head(model: "BlockModel") -> Row:
    return {name: getattr(model, name) for name in HEAD}


def _estimated(model: "BlockModel", count: int, form: "Form") -> Row:
    time_s, energy_j, own = float(model.latency_s(count, form)), float(model.energy_j(count, form)), form == "occupancy"
    return _head(model) | {
        "blocks": count,
        "latency_s": time_s,
        "latency_std_s": float(model.latency_std_s(count)) if own else math.nan,
        "power_w": energy_j / time_s,
        "energy_j": energy_j,
        "energy_std_j": float(model.energy_std_j(count)) if own else math.nan,
        "inside": bool(model.inside(count)),
    }


def _simulated(model: "BlockModel", count: int, models: "Sequence[BlockModel]") -> Row:
    """The host, the amounts of work in its units, and the time and energy that the host-energy plugin computes."""
    from estimator.blocks.simgrid import simulated_run

    return _head(model) | {"blocks": count} | asdict(simulated_run(model, count, models)) | {"inside": bool(model.inside(count))}


def _listed(model: "BlockModel") -> Row:
    """The row of a model; `time_error_…` and `energy_error_…` are relative errors of the forms on held-out grids [1]."""
    pairs = [(quantity, form) for quantity in ("time", "energy") for form in FORM_NAMES]
    return {
        **_head(model),
        "blocks_per_sm": model.blocks_per_sm,
        "blocks_from": model.blocks[0],
        "blocks_to": model.blocks[1],
        "rows": model.rows,
        "round_s": model.round_s(),
        "round_power_w": model.round_power_w(),
        "static_w": model.static_w,
        **{f"{quantity}_error_{form}": model.scatter.get(form, {}).get(quantity, math.nan) for quantity, form in pairs},
    }
