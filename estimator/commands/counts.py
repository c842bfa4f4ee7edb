"""The command `estimate counts`: energy from what kernels did, counted by a profiler or a disassembler."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.command_line import DONE, DONE_WITH_WARNINGS, named_file, named_files
from estimator.commands.numbers import NOT_NEGATIVE, POSITIVE, Number
from estimator.errors import CountsError

if TYPE_CHECKING:
    from estimator.bundles.content import Bundle
    from estimator.domain import Validity
    from estimator.instructions.activities import CountedKernel
    from estimator.instructions.counted_energy import CountedEnergy
    from estimator.instructions.modules import Integration
    from estimator.instructions.tables import EnergyTable

DOMAINS: Final = ("on-package", "on-board", "switched")
MOST_MODULES: Final = 4096
MOST_CONSTANT_W: Final = 1e6
MOST_EXPONENT: Final = 10.0


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="COUNTS is a table of Nsight Compute (ncu --csv --metrics …, see --metrics) or JSON; docs/how-to/energy-from-counts.md.",
)
@click.argument("counts", metavar="[COUNTS]...", nargs=-1, callback=named_files)
@click.option("--metrics", is_flag=True, help="The metrics to ask of ncu, for its --metrics.")
@click.option("--bundle", "bundle_name", metavar="NAME|FILE", callback=named_file, help="Energies of a bundle.")
@click.option("--energies", metavar="NAME|FILE", callback=named_file, help="Published energies: tesla-k40, or a TOML file.")
@click.option("--freq", "freq_mhz", type=POSITIVE, metavar="MHZ", help="SM clock of the run; without it that of the energies.")
@click.option("--constant-w", type=Number(0.0, MOST_CONSTANT_W), metavar="W", help="Power of the board at rest instead of the bundle's.")
@click.option("--dram-pj-per-bit", type=POSITIVE, metavar="PJ", help="Another DRAM: 21.1 for HBM.")
@click.option("--modules", type=click.IntRange(1, MOST_MODULES), default=1, show_default=True, metavar="N", help="Modules of the run.")
@click.option("--integration", type=click.Choice(DOMAINS), help="How they hang together.")
@click.option("--link-pj-per-bit", type=NOT_NEGATIVE, metavar="PJ", help="Energy of a bit on a link instead of the domain's.")
@click.option("--shared-constant", type=Number(0.0, 1.0), metavar="SHARE", help="Share of constant power that modules have in common.")
@click.option("--against", metavar="COUNTS", callback=named_file, help="The same work on one module: prints the scaling efficiency.")
@click.option("--delay-exponent", type=Number(0.0, MOST_EXPONENT), default=1.0, show_default=True, help="i of EDⁱP and EDⁱPSE.")
@click.option("--csv", "as_csv", is_flag=True, help="A CSV line per kernel, SI units.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="No warnings on stderr.")
def counts_command(**options: Any) -> int:
    """Energy of counted kernels: instructions and transactions times what each costs, stalls, constant power.

    E = Σ EPI N + Σ EPT N + EPStall N + P T, after GPUJoule, with several modules if asked.
    """
    from estimator.display.estimates import printable
    from estimator.domain import simulated_notes, validity_of
    from estimator.instructions.activities import METRICS, read_activities
    from estimator.instructions.counted_energy import counted_energies, power_warnings
    from estimator.instructions.modules import scaling_efficiency

    if options["metrics"] and options["counts"]:
        raise click.UsageError("name files of COUNTS or ask for --metrics, not both")
    if options["metrics"]:
        click.echo(",".join(METRICS))
        return DONE
    _check(options)
    bundle = _bundle(options)
    table = _table(bundle, options)
    clock = table.energies.reference_clock_mhz if options["freq_mhz"] is None else options["freq_mhz"]
    integration = _integration(options)
    kernels = _clocked([kernel for name in options["counts"] for kernel in read_activities(Path(name), table.vocabulary)], bundle, options)
    constant = math.nan if options["constant_w"] is None else options["constant_w"]
    rows, total, warnings = counted_energies(kernels, table, constant_w=constant, modules=options["modules"], integration=integration)
    outside = [*_outside_clocks(bundle, clock), *power_warnings(rows, table, options["modules"])]
    document = _document(rows, total, table, options)
    if options["against"] is not None:
        one = _clocked(read_activities(Path(options["against"]), table.vocabulary), bundle, options)
        alone_rows, alone, _ = counted_energies(one, table, constant_w=constant)
        outside += power_warnings(alone_rows, table)
        pairs = (alone.energy_j, alone.time_s), (total.energy_j, total.time_s)
        document["speedup"] = alone.time_s / total.time_s
        document["energy_ratio"] = total.energy_j / alone.energy_j
        document["scaling_efficiency_percent"] = scaling_efficiency(*pairs, options["modules"], options["delay_exponent"])
    foreign = [name for kernel in kernels for name in table.energies.spread_j(kernel.activity)]
    document |= _validity(bundle, clock, validity_of(None, [*outside, *foreign]))
    warnings = (*outside, *_between(bundle, clock), *warnings)
    document["warnings"] = list(warnings)
    click.echo(_text(document, options), nl=False)
    if not options["quiet"]:
        for warning in warnings:
            click.echo(f"warning: {printable(warning)}", err=True)
        for note in () if bundle is None else simulated_notes(bundle):
            click.echo(f"note: {printable(note)}", err=True)
    return DONE_WITH_WARNINGS if warnings else DONE


def _check(options: Mapping[str, Any]) -> None:
    if not options["counts"]:
        raise click.UsageError("name at least one file of COUNTS, or ask for --metrics")
    if (options["bundle_name"] is None) == (options["energies"] is None):
        raise click.UsageError("give either --bundle or --energies")
    if options["as_csv"] and options["as_json"]:
        raise click.UsageError("--csv and --json exclude each other")
    clock = options["freq_mhz"]
    if clock is not None and options["bundle_name"] is None:
        raise click.UsageError("--freq is for --bundle: published energies hold at one clock")
    if options["modules"] == 1 and (options["integration"] or options["against"] or options["link_pj_per_bit"] is not None):
        raise click.UsageError("--integration, --link-pj-per-bit and --against are for --modules of 2 and more")


def _bundle(options: Mapping[str, Any]) -> "Bundle | None":
    """The bundle that is asked for, None for published energies.  Raises OperatingPointError for a clock that its GPU cannot have."""
    if options["bundle_name"] is None:
        return None
    from estimator.board import asked_clocks
    from estimator.bundles.files import load_bundle

    bundle = load_bundle(options["bundle_name"])
    if options["freq_mhz"] is not None:
        asked_clocks(options["freq_mhz"], bundle.gpu)
    return bundle


def _outside_clocks(bundle: "Bundle | None", clock_mhz: float) -> "tuple[str, ...]":
    """A line where energies are asked for at a clock outside those of their measurements."""
    from estimator.domain import clock_warning

    return () if bundle is None else clock_warning(bundle.clocks_mhz, clock_mhz)


def _between(bundle: "Bundle | None", clock_mhz: float) -> "tuple[str, ...]":
    """A line where the board cannot be locked at the clock."""
    from estimator.domain import step_warning

    return () if bundle is None else step_warning(bundle.gpu, [clock_mhz])


def _validity(bundle: "Bundle | None", clock_mhz: float, validity: "Validity") -> dict[str, Any]:
    """What the document says of the answer: the clock of the energies, null for published ones, and whether they hold there."""
    return {
        "sm_clock_mhz": clock_mhz if math.isfinite(clock_mhz) else None,
        "simulated": bundle is not None and bundle.simulated,
        "validity": validity,
    }


def _table(bundle: "Bundle | None", options: Mapping[str, Any]) -> "EnergyTable":
    """The energies that are asked for.  Raises CountsError where a bundle has none."""
    from estimator.instructions.tables import EnergyTable, load_energy_table

    if bundle is None:
        table = load_energy_table(options["energies"])
    else:
        from estimator.instructions.energies import energies_from_section

        energies = energies_from_section(bundle.instruction_energies)
        if energies is None:
            raise CountsError(f"bundle {bundle.name} has no energies of instructions; `collect --campaign instructions` measures them")
        clock = energies.reference_clock_mhz if options["freq_mhz"] is None else options["freq_mhz"]
        table = EnergyTable(
            name=bundle.name,
            title=bundle.gpu.name,
            source=f"fitted, {bundle.provenance.created_utc[:10]}",
            vocabulary="sass",
            energies=energies,
            constant_w=_at_clock(bundle.idle or bundle.gpu.idle_w, "power_w", clock),
            power_limit_w=bundle.gpu.power_limit_w,
        )
    dram = options["dram_pj_per_bit"]
    return table if dram is None else table.with_dram(dram)


def _at_clock(found: Any, values: str, clock_mhz: float) -> float:
    """A table over clocks at one clock; nan without one."""
    import numpy as np

    if found is None:
        return math.nan
    column = getattr(found, values) if hasattr(found, values) else found.value
    return float(np.interp(clock_mhz, found.sm_clock_mhz, column))


def _clocked(kernels: "Sequence[CountedKernel]", bundle: "Bundle | None", options: Mapping[str, Any]) -> "tuple[CountedKernel, ...]":
    """The kernels at the asked clock and the bundle's voltage there."""
    clock = options["freq_mhz"]
    if clock is None or bundle is None:
        return tuple(kernels)
    volt = _at_clock(bundle.voltage or bundle.gpu.voltage_v, "voltage_v", clock)
    return tuple(replace(kernel, activity=replace(kernel.activity, voltage_v=volt, sm_clock_mhz=clock)) for kernel in kernels)


def _integration(options: Mapping[str, Any]) -> "Integration | None":
    from estimator.instructions.modules import INTEGRATIONS, Integration

    domain = None if options["integration"] is None else INTEGRATIONS[options["integration"]]
    link, shared = options["link_pj_per_bit"], options["shared_constant"]
    if link is None and shared is None:
        return domain
    if domain is None and link is None:
        raise click.UsageError("--shared-constant needs --integration or --link-pj-per-bit")
    base = domain or Integration(link_pj_per_bit=0.0)
    return Integration(
        link_pj_per_bit=base.link_pj_per_bit if link is None else link,
        shared_constant=base.shared_constant if shared is None else shared,
    )


def _document(rows: "Sequence[CountedEnergy]", total: "CountedEnergy", table: "EnergyTable", options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "energies": table.name,
        "source": table.source,
        "modules": options["modules"],
        "delay_exponent": options["delay_exponent"],
        **{name: value for name, value in _row(total, options).items() if name != "name"},
        "kernels": [_row(row, options) for row in rows],
    }


def _row(row: "CountedEnergy", options: Mapping[str, Any]) -> dict[str, Any]:
    from estimator.instructions.modules import energy_delay

    return {
        "name": row.name,
        "launches": row.launches,
        "time_s": row.time_s,
        "power_w": row.power_w,
        "energy_j": row.energy_j,
        "energy_std_j": row.energy_std_j,
        "energy_delay": energy_delay(row.energy_j, row.time_s, options["delay_exponent"]),
        "parts_j": dict(row.parts_j),
    }


def _text(document: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    from estimator.display.csv_lines import csv_lines
    from estimator.display.estimates import aligned, printable
    from estimator.display.sweeps import known

    if options["as_json"]:
        own, *kernels = ({**row, "energy_std_j": known(row["energy_std_j"])} for row in (document, *document["kernels"]))
        return json.dumps({**own, "kernels": kernels}, indent=1) + "\n"
    total = {"name": "total", **{name: document[name] for name in document["kernels"][0] if name != "name"}}
    rows = [{**row, **{f"{part}_j": joule for part, joule in row["parts_j"].items()}} for row in (*document["kernels"], total)]
    for row in rows:
        del row["parts_j"]
    if options["as_csv"]:
        return csv_lines((row.values() for row in rows[:-1]), header=list(rows[0]))
    shown = [[printable(str(row.pop("name")))[:40], *(f"{value:.4g}" for value in row.values())] for row in [dict(row) for row in rows]]
    clock = "" if document["sm_clock_mhz"] is None else f" at {document['sm_clock_mhz']:g} MHz"
    origin = ", fitted on a simulated board" if document["simulated"] else ""
    text_out = f"energies of {printable(document['energies'])}{clock}{origin}\n" + aligned([list(rows[0]), *shown], left_columns=(0,))
    power = "" if document["delay_exponent"] == 1.0 else f"^{document['delay_exponent']:g}"
    text_out += f"  energy_delay: energy · time{power} [J·s{power}]\n"
    if document["validity"] == "outside":
        text_out += "  outside what these energies hold for: the warnings say why\n"
    if "scaling_efficiency_percent" in document:
        text_out += (
            f"\nspeed-up {document['speedup']:.3g}, energy × {document['energy_ratio']:.3g}, "
            f"scaling efficiency {document['scaling_efficiency_percent']:.3g} %\n"
        )
    return text_out
