"""The command `estimate blocks`: time and energy of a kernel from its number of blocks, and platforms for SimGrid."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.command_line import DONE, DONE_WITH_WARNINGS, named_file
from estimator.commands.numbers import NOT_NEGATIVE, POSITIVE
from estimator.errors import EstimatorError
from estimator.output_files import output_option

if TYPE_CHECKING:
    from estimator.blocks.model import BlockModel

FORM_NAMES: Final = ("occupancy", "rounds", "linear")
SIMGRID: Final = "simgrid"
POOR_ERROR: Final = 0.25
"""Relative error on grids left out above which a form does not describe a kernel [1]; published forms reach 0.14 on simulated boards."""
"""What SimGrid finds on the platform of the chosen models, and what is to be executed there."""

RUN_COLUMNS: Final = ("host", "pstate", "speed", "launch", "whole", "rounds", "rest", "latency_s", "energy_j")
LONGEST_LIST: Final = 100_000
COLUMNS: Final = (
    "kernel", "block_threads", "sm_clock_mhz", "blocks", "latency_s", "latency_std_s", "power_w", "energy_j", "energy_std_j", "inside",
)  # fmt: skip


def block_list(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Comma-separated grids.  Raises BadParameter for what is no positive whole number."""
    if text is None:
        return ()
    words = text.split(",")
    if len(words) > LONGEST_LIST:
        raise click.BadParameter(f"{len(words)} grids; at most {LONGEST_LIST} at once", context, parameter)
    if wrong := [word for word in words if not (word.strip().isascii() and word.strip().isdecimal() and int(word) >= 1)]:
        raise click.BadParameter(f"{wrong[0]!r} is no number of blocks", context, parameter)
    return tuple(int(word) for word in words)


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Block-count models come from `fit` on grids of a kernel; docs/how-to/block-count.md.",
)
@click.argument("kernel", metavar="[KERNEL]", required=False, callback=named_file)
@click.option("--bundle", "bundle_name", metavar="NAME|FILE", required=True, callback=named_file, help="Calibration to use.")
@click.option("--blocks", callback=block_list, metavar="N,N,…", help="Grids to estimate.")
@click.option("--block-threads", type=click.IntRange(1, 1024), metavar="N", help="Where a kernel has models of several block sizes.")
@click.option("--freq", "freq_mhz", type=POSITIVE, metavar="MHZ", help="SM clock, where there are models of several.")
@click.option(
    "--form",
    type=click.Choice((*FORM_NAMES, SIMGRID)),
    default="occupancy",
    show_default=True,
    help="rounds, linear: as published; simgrid: as SimGrid finds it, with the work to execute.",
)
@output_option("--simgrid", metavar="FILE", help="Write a SimGrid platform of the chosen models.")
@click.option(
    "--off-w", type=NOT_NEGATIVE, default=0.0, show_default=True, metavar="W", help="Power of a host that is off, in that platform."
)
@click.option("--csv", "as_csv", is_flag=True, help="A CSV line per grid, SI units.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="No warnings on stderr.")
def blocks_command(**options: Any) -> int:
    """Time and energy of KERNEL by its number of blocks; without KERNEL the models that the bundle has."""
    if options["as_csv"] and options["as_json"]:
        raise click.UsageError("--csv and --json exclude each other")
    if options["off_w"] and options["simgrid"] is None:
        raise click.UsageError("--off-w belongs to the platform that --simgrid writes")
    if options["blocks"] and options["kernel"] is None:
        raise click.UsageError("--blocks needs a KERNEL")
    from estimator.blocks.model import models_from_section
    from estimator.bundles.files import load_bundle
    from estimator.display.estimates import printable
    from estimator.domain import simulated_notes

    bundle = load_bundle(options["bundle_name"])
    models = models_from_section(bundle.block_models)
    if not models:
        raise EstimatorError(f"bundle {bundle.name} has no block-count models; `fit` makes them from grids of a kernel")
    chosen = _chosen(list(models.values()), options)
    if options["simgrid"] is not None:
        from estimator.blocks.simgrid import platform_xml
        from estimator.whole_file import write_whole

        write_whole(options["simgrid"], platform_xml(chosen, options["off_w"]).encode())
    if options["blocks"]:
        rows = _simulated(chosen, options["blocks"]) if options["form"] == SIMGRID else _estimates(chosen, options)
    else:
        rows = sorted(_listing(chosen), key=lambda row: (row["sm_clock_mhz"], row["kernel"], row["block_threads"]))
    click.echo(_text(rows, options), nl=False)
    outside = sorted({row["blocks"] for row in rows if row.get("inside") is False})
    warnings = [f"{_few(outside)} blocks lie outside the measured grids"] if outside else []
    form = "occupancy" if options["form"] == SIMGRID else options["form"]
    poor = sorted({model.kernel for model in chosen if max(model.scatter.get(form, {}).values(), default=0.0) > POOR_ERROR})
    if poor and options["blocks"]:
        warnings.append(f"form {form} is off by more than {POOR_ERROR:.0%} on grids left out of its fit: {', '.join(poor)}")
    if not options["quiet"]:
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
        for note in simulated_notes(bundle):
            click.echo(f"note: {printable(note)}", err=True)
    return DONE_WITH_WARNINGS if warnings else DONE


def _chosen(models: "list[BlockModel]", options: Mapping[str, Any]) -> "list[BlockModel]":
    """The models that the options name.  Raises EstimatorError where there is none, or several for grids to be estimated."""
    kernel, threads, clock = options["kernel"], options["block_threads"], options["freq_mhz"]
    chosen = [model for model in models if kernel is None or model.kernel == kernel]
    if not chosen:
        raise EstimatorError(f"no block-count model of {kernel!r}; there are {', '.join(sorted({model.kernel for model in models}))}")
    if threads is not None:
        sizes = sorted({model.block_threads for model in chosen})
        chosen = [model for model in chosen if model.block_threads == threads]
        if not chosen:
            raise EstimatorError(f"no model with {threads} threads a block; there are {', '.join(map(str, sizes))}")
    if clock is not None:
        clocks = sorted({model.sm_clock_mhz for model in chosen})
        chosen = [model for model in chosen if round(model.sm_clock_mhz) == round(clock)]
        if not chosen:
            raise EstimatorError(f"no model at {clock:g} MHz; there are {', '.join(f'{one:g}' for one in clocks)}")
    return chosen


def _estimates(models: "Sequence[BlockModel]", options: Mapping[str, Any]) -> list[dict[str, Any]]:
    form, grids = options["form"], list(options["blocks"])
    rows = []
    for model in models:
        columns = {
            "latency_s": model.latency_s(grids, form),
            "latency_std_s": model.latency_std_s(grids, form),
            "energy_j": model.energy_j(grids, form),
            "energy_std_j": model.energy_std_j(grids, form),
            "inside": model.inside(grids),
        }
        for index, count in enumerate(grids):
            row = {"kernel": model.kernel, "block_threads": model.block_threads, "sm_clock_mhz": model.sm_clock_mhz, "blocks": count}
            row |= {name: values[index].item() for name, values in columns.items()}
            row["power_w"] = row["energy_j"] / row["latency_s"]
            rows.append({name: row[name] for name in COLUMNS})
    return rows


def _simulated(models: "Sequence[BlockModel]", grids: Sequence[int]) -> list[dict[str, Any]]:
    """For each grid the host, the amounts of work in its units, and the time and energy that the host-energy plugin finds."""
    from estimator.blocks.simgrid import simulated_run

    rows = []
    for model in models:
        for count in grids:
            run = simulated_run(model, count, models)
            row = {"kernel": model.kernel, "block_threads": model.block_threads, "sm_clock_mhz": model.sm_clock_mhz, "blocks": count}
            rows.append(row | {name: getattr(run, name) for name in RUN_COLUMNS} | {"inside": bool(model.inside(count))})
    return rows


def _listing(models: "Sequence[BlockModel]") -> list[dict[str, Any]]:
    """The models; `time_error_…` and `energy_error_…` are relative errors of the forms on grids left out [1]."""
    return [
        {
            "kernel": model.kernel,
            "block_threads": model.block_threads,
            "sm_clock_mhz": model.sm_clock_mhz,
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


def _text(rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    from estimator.display.csv_lines import csv_lines
    from estimator.display.estimates import aligned

    if options["as_json"]:
        return json.dumps([{name: _nulled(value) for name, value in row.items()} for row in rows], indent=1) + "\n"
    if options["as_csv"]:
        return csv_lines((row.values() for row in rows), header=list(rows[0]))
    names = [f"{name} %" if _is_error(name) else name for name in rows[0]]
    shown = [[_percent(value) if _is_error(name) else _shown(value) for name, value in row.items()] for row in rows]
    return aligned([names, *shown], left_columns=(0,)) + (ERRORS if any(map(_is_error, rows[0])) else "")


ERROR: Final = "_error_"
"""Between quantity and form in the name of a column that holds a relative error."""

ERRORS: Final = "  time_error_…, energy_error_… %: how far each form is off on grids left out of its fit, relative to what was measured\n"


def _is_error(name: str) -> bool:
    """Whether a column of the listing is a relative error of a form."""
    return ERROR in name


def _percent(share: float) -> str:
    return f"{100.0 * share:.2f}" if math.isfinite(share) else "-"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}" if math.isfinite(value) else "-"
    return str(value)


def _nulled(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _few(values: Sequence[int]) -> str:
    shown = ", ".join(str(value) for value in values[:3])
    return f"{shown} and {len(values) - 3} more" if len(values) > 3 else shown
