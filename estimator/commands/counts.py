"""The command `estimate counts`: energy from the work of kernels, counted by a profiler or a disassembler."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.commands.options import (
    CSV,
    JSON,
    QUIET,
    STRICT,
    TEXT_FORMATS,
    Number,
    Options,
    answer_form,
    flag,
    positive,
    whole_numbers,
    with_options,
)
from estimator.commands.reporting import say, show
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, named_file
from estimator.vocabulary.errors import CountsError

if TYPE_CHECKING:
    from estimator.bundle.content import Bundle
    from estimator.counts.activities import CountedKernel, EnergyTable
    from estimator.counts.counted_energy import CountedEnergy
    from estimator.counts.modules import Topology

MOST_MODULES: Final = 4096
"""Most modules of a run."""
Row = dict[str, object]


@click.command(
    epilog="COUNTS is a table of Nsight Compute (ncu --csv --metrics …, see --metrics) or JSON; docs/how-to/energy-from-counts.md.",
)
@with_options(
    click.argument("counts", metavar="[COUNTS]...", nargs=-1, type=named_file),
    flag("--metrics", help="The metrics to ask of ncu, for its --metrics."),
    click.option("--bundle", "bundle_name", metavar="NAME|FILE", type=named_file, help="Energies of a bundle."),
    click.option("--energies", metavar="NAME|FILE", type=named_file, help="Published energies: tesla-k40, or a TOML file."),
    positive("--freq", "freq_mhz", metavar="MHZ", help="SM clock of the run; without it that of the energies."),
    click.option("--constant-w", type=Number(0.0, 1e6), metavar="W", help="Power of the board at rest instead of the bundle's."),
    positive("--dram-pj-per-bit", metavar="PJ", help="Another DRAM: 21.1 for HBM."),
    click.option(
        "--modules",
        callback=whole_numbers,
        default="1",
        show_default=True,
        metavar="N,N,…",
        help="Modules of the run; several: --link-gbps.",
    ),
    click.option("--integration", type=click.Choice(("on-package", "on-board", "switched")), help="How they hang together."),
    positive("--link-gbps", metavar="GB/S", help="COUNTS are of one module; predict N with links of this bandwidth each."),
    click.option("--topology", type=click.Choice(("ring", "switch")), help="Of the links; ring, or switch for --integration switched."),
    click.option("--local-share", type=Number(0.0, 1.0), metavar="S", help="Assumed share of DRAM traffic that stays local; else 1/N."),
    click.option("--against", metavar="COUNTS", type=named_file, help="The same work on one module: prints the scaling efficiency."),
    click.option("--delay-exponent", type=Number(0.0, 10.0), default=1.0, show_default=True, help="i of EDⁱP and EDⁱPSE."),
    CSV,
    JSON,
    STRICT,
    QUIET,
)
def counts_command(**options: Any) -> int:
    """Energy of counted kernels: instructions and transactions times their energies, stalls, constant power.

    E = Σ EPI N + Σ EPT N + EPStall N + P T, after GPUJoule, for one or several modules.
    """
    from estimator.counts.activities import METRICS, read_activities
    from estimator.counts.counted_energy import INTEGRATIONS, counted_energies, scaling
    from estimator.display.text import document_text, json_text, rows_csv, rows_table
    from estimator.uncertainty.validity import clock_warning, simulated_notes, validity_of

    if options["metrics"] == bool(options["counts"]):
        raise click.UsageError("name files of COUNTS or ask for --metrics, not both")
    if options["metrics"]:
        click.echo(",".join(METRICS))
        return DONE
    if (options["bundle_name"] is None) == (options["energies"] is None):
        raise click.UsageError("give either --bundle or --energies")
    if options["freq_mhz"] is not None and options["bundle_name"] is None:
        raise click.UsageError("--freq is for --bundle: published energies hold at one clock")
    _check_modules(options)
    form = answer_form(options, TEXT_FORMATS)
    modules, exponent = options["modules"][0], options["delay_exponent"]
    table, bundle, volt, clock = _energies(options)
    if options["dram_pj_per_bit"] is not None:
        table = table.with_dram(options["dram_pj_per_bit"])

    def kernels_of(names: Sequence[str]) -> "list[CountedKernel]":
        found = [kernel for name in names for kernel in read_activities(Path(name), table.vocabulary)]
        return [replace(one, activity=replace(one.activity, voltage_v=volt, sm_clock_mhz=clock)) for one in found]

    kernels = kernels_of(options["counts"])
    constant = math.nan if options["constant_w"] is None else options["constant_w"]
    if options["link_gbps"] is not None:
        return _scaled(kernels, table, constant, options, form)
    together = INTEGRATIONS.get(options["integration"])
    rows, total, warnings = counted_energies(kernels, table, constant_w=constant, modules=modules, integration=together)
    outside = clock_warning(bundle.clocks_mhz, clock) if bundle else ()
    others: Row = {}
    if options["against"] is not None:
        _, alone, _ = counted_energies(kernels_of([options["against"]]), table, constant_w=constant)
        others |= scaling(alone, total, modules, exponent)
    foreign = [name for kernel in kernels for name in kernel.activity.instructions if table.energies.price(name).reason]
    warnings = (*outside, *warnings)
    *nested, whole = (_row(row, exponent) | {"parts_j": dict(row.parts_j)} for row in (*rows, total))
    flat = [_row(row, exponent) | {f"{part}_j": joule for part, joule in row.parts_j.items()} for row in (*rows, total)]
    others |= {
        "sm_clock_mhz": clock,
        "simulated": bundle is not None and bundle.simulated,
        "validity": validity_of(None, [*outside, *foreign]),
    }
    head = {"energies": table.name, "source": table.source, "modules": modules, "delay_exponent": exponent}
    if form == "json":
        del whole["name"]
        text = json_text({**head, **whole, "kernels": nested, **others, "warnings": list(warnings)})
    elif form == "csv":
        text = rows_csv([row | {"energies": table.name, "validity": others["validity"]} for row in flat[:-1]])
    else:
        text = rows_table(flat) + document_text(head | others)
    show(text)
    return say(warnings, simulated_notes(bundle) if bundle else (), options) or DONE_WITH_WARNINGS * (not total.complete)


def _check_modules(options: Options) -> None:
    """Raises UsageError for options of modules that do not belong together."""
    modules, alone = options["modules"], options["link_gbps"] is None
    if max(modules) > MOST_MODULES:
        raise click.UsageError(f"--modules is at most {MOST_MODULES}")
    if max(modules) == 1 and (options["integration"] or options["against"] or not alone):
        raise click.UsageError("--integration, --against and --link-gbps are for --modules of 2 and more")
    if alone and (len(modules) > 1 or (options["topology"], options["local_share"]) != (None, None)):
        raise click.UsageError("several --modules, --topology and --local-share need --link-gbps: the time on N modules follows from it")
    if options["against"] and not alone:
        raise click.UsageError("--against is a run on one module; with --link-gbps COUNTS are that run")


def _scaled(kernels: "list[CountedKernel]", table: "EnergyTable", constant_w: float, options: Options, form: str) -> int:
    """Print time, energy and scaling efficiency for each number of modules, from the counts of one."""
    from estimator.counts.counted_energy import INTEGRATIONS, counted_energies, scaling
    from estimator.counts.modules import Links, spread_over
    from estimator.display.text import rows_text

    domain, exponent, share = options["integration"], options["delay_exponent"], options["local_share"]
    topology: Topology = options["topology"] or ("switch" if domain == "switched" else "ring")
    links = Links(bytes_per_s=1e9 * options["link_gbps"], topology=topology, local_share=share)
    _, one, warnings = counted_energies(kernels, table, constant_w=constant_w)
    rows = []
    for modules in options["modules"]:
        spread = [spread_over(kernel, modules, links) for kernel in kernels]
        _, total, warnings = counted_energies(spread, table, constant_w=constant_w, modules=modules, integration=INTEGRATIONS.get(domain))
        parts = {f"{name}_j": total.parts_j[name] for name in ("link", "constant", "stalls")}
        given = {"topology": topology, "link_gbps": options["link_gbps"], "local_share": 1.0 / modules if share is None else share}
        row = _row(total, exponent) | parts | scaling(one, total, modules, exponent) | given
        rows.append({"modules": modules, **{name: value for name, value in row.items() if name not in ("name", "launches")}})
    show(rows_text(rows, form))
    local = "spread evenly over the modules" if share is None else f"{100 * share:g} % local"
    assumed = f"assumed: the DRAM's traffic is {local}, and nothing else than links limits the scaling"
    return say(warnings, (assumed,), options) or DONE_WITH_WARNINGS * (not one.complete)


def _energies(options: Options) -> "tuple[EnergyTable, Bundle | None, float, float]":
    """The requested energies, their bundle, and core voltage [V] and SM clock [MHz] of the run, those of the energies without --freq.

    Raises CountsError if a bundle has no energies, OperatingPointError for a clock that its GPU does not support.
    """
    from estimator.counts.activities import EnergyTable, load_energy_table
    from estimator.counts.energies import energies_from_section

    if options["bundle_name"] is None:
        return load_energy_table(options["energies"]), None, math.nan, math.nan
    import numpy as np

    from estimator.bundle.files import load_bundle
    from estimator.engine.board import asked_clocks, board_tables

    bundle, clock = load_bundle(options["bundle_name"]), options["freq_mhz"]
    asked_clocks(clock, bundle.gpu)
    energies = energies_from_section(bundle.instruction_energies)
    if energies is None:
        raise CountsError(f"bundle {bundle.name} has no energies of instructions; `collect --campaign instructions` measures them")
    at_mhz = energies.reference_clock_mhz if clock is None else clock
    # Voltages of one table, as the voltage that was read at the reference clock may differ from that of the table.
    board = board_tables(bundle, bundle.gpu)
    volt, reference = board.voltage_ratios.at(np.array([at_mhz, energies.reference_clock_mhz])).tolist()
    table = EnergyTable(
        name=bundle.name,
        source=f"fitted, {bundle.provenance.created_utc[:10]}",
        vocabulary="sass",
        energies=replace(energies, reference_voltage_v=reference),
        constant_w=float(board.rest_w(np.array([at_mhz]))[0]),
    )
    return table, bundle, volt, at_mhz


def _row(row: "CountedEnergy", delay_exponent: float) -> Row:
    own = {name: getattr(row, name) for name in ("name", "launches", "time_s", "power_w", "energy_j", "energy_std_j")}
    return own | {"energy_delay": row.energy_delay(delay_exponent)}
