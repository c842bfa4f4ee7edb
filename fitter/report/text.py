"""Output of the command `fit`: tables and sentences for people, documents for programs."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any, Final

from estimator.bundle.content import Bundle, GroupCoefficients
from estimator.bundle.files import document_of
from estimator.counts.energies import LINKS
from estimator.model.coefficients import MEANING
from estimator.vocabulary.reader import plain
from fitter.blocks.section import block_table
from fitter.instructions.display import instruction_tables
from fitter.rows.columns import Selection
from fitter.rows.rejected import count_reasons, reason_meaning
from fitter.validate.predictions import LABEL, ErrorRow, Errors
from fitter.validate.tables import Shown, error_table


def selection_lines(selection: Selection) -> list[str]:
    """Lines on the rows that were read and left out."""
    used = sum(dataset.used for dataset in selection.datasets)
    lines = [f"{used:,} of {selection.row_count:,} rows used"]
    lines += [f"  {d.name}: {d.kind}, {d.used:,} of {d.rows:,} rows" for d in selection.datasets]
    lines += [
        f"  start-up removed: {s.startup_s:.2f} s of runs that aim at {s.target_s:g} s ({s.gpu}, {s.runs} runs)" for s in selection.startups
    ]
    for power, title in ((False, "rejected:"), (True, "power or energy rejected, the row's latency used:")):
        counts = count_reasons(selection.rejected, power_only=power)
        lines += [title] if counts else []
        lines += [f"  {count:6,}  {reason}: {reason_meaning(reason)}" for reason, count in counts.items()]
    return lines


def next_lines(bundle: Bundle, path: str) -> list[str]:
    """Next steps with a fitted bundle at a path: a line for every command that applies to its data."""
    measured = bundle.power is not None or any(group.rows for group in bundle.groups.values()) or bool(bundle.errors)
    words = ["WORKLOAD.json"] if measured else []
    words += ["counts COUNTS"] if set(bundle.instruction_energies) - {LINKS} else []
    words += ["blocks"] if bundle.block_models else []
    return [f"next: estimate {word} --bundle {path}" for word in words] or [f"next: fit show {path}"]


def show_lines(bundle: Bundle) -> list[str]:
    """Description of a bundle: identity, errors, coefficients."""
    origin = bundle.provenance
    lines = [
        f"{bundle.name} {bundle.version}  {bundle.digest}",
        f"GPU {bundle.gpu.name} {bundle.gpu_uuid}".rstrip() + (" (simulated)" if bundle.simulated else ""),
        f"made {origin.created_utc} by wattprint {origin.wattprint_version}, commit {origin.commit or 'unknown'}, seed {origin.seed}",
        f"SM clocks {bundle.clocks_mhz[0]:g} to {bundle.clocks_mhz[1]:g} MHz; "
        f"host launch cost {bundle.host.launch_s * 1e6:.3g} µs ({bundle.host.source})",
    ]
    lines += [f"data: {d.name}, {d.kind}, {d.used:,} of {d.rows:,} rows, sha256 {d.sha256[:12]}…" for d in origin.datasets]
    lines += [f"note: {note}" for note in bundle.notes]
    lines += ["", *error_table("held-out errors in percent:", stored_errors(bundle)).lines(), ""]
    fitted = [key for key, group in bundle.groups.items() if _has_data(group)]
    tables = [*coefficient_tables(bundle, fitted), *instruction_tables(bundle), block_table(bundle)]
    lines += [line for table in tables for line in table.lines()]
    priors = [key for key in bundle.groups if key not in fitted]
    if priors:
        lines.append(f"at their priors, no row in the data (`fit show --json` has the values): {', '.join(priors)}")
    return lines


def coefficient_tables(bundle: Bundle, groups: Sequence[str]) -> list[Shown]:
    """Tables of latency coefficients of some groups, with their errors and origin, and of power coefficients."""
    rows: list[list[Any]] = []
    for key in groups:
        group = bundle.groups[key]
        for name, value in group.coefficients.items():
            known = {None: "constant", True: "data", False: "prior"}[group.identified.get(name)]
            rows.append([key, name, value, value * group.ln_std.get(name, nan), known, group.rows, MEANING.get(name, "")])
    head = ("group", "coefficient", "value", "± std", "set by", "rows", "meaning")
    tables, power = [Shown(title="Latency coefficients", head=head, rows=rows)], bundle.power
    if power is None:
        return tables
    point = f"at {power.reference_clock_mhz:g} MHz, {power.reference_voltage_v:.4g} V, voltage exponent {power.voltage_exponent:.3g}"
    farads = [
        [n, f * 1e9, power.capacitance_std_f.get(n, nan) * 1e9, power.event_energy_j[n] * 1e12] for n, f in power.capacitance_f.items()
    ]
    static = [["running SMs", power.busy_w, power.busy_std_w], ["board in use", power.active_w, power.active_std_w]]
    heads = ("module", "C [nF]", "± std [nF]", "energy per event [pJ]")
    tables.append(Shown(title=f"Switched capacitance by module, {point}", head=heads, rows=farads))
    tables.append(Shown(title=f"Static power {point}", head=("what", "power [W]", "± std [W]"), rows=static))
    return tables


def _has_data(group: GroupCoefficients) -> bool:
    """Whether rows, or another bundle, determine any coefficient of a group; a fit of whole models counts its runs for all groups."""
    return (group.rows > 0 and bool(group.ln_std)) or any(group.identified.values())


def stored_errors(bundle: Bundle) -> list[ErrorRow]:
    """The held-out errors of a bundle."""
    kept = (*LABEL, "n")
    return [
        ErrorRow(**{name: row[name] for name in kept}, latency=_figures(row["latency"]), power=_figures(row["power"]))
        for row in bundle.errors
    ]


def _figures(errors: Mapping[str, Any] | None) -> Errors | None:
    values: dict[str, Any] = {name: nan if value is None else value for name, value in (errors or {}).items()}
    return Errors(**values) if values else None


LARGE: Final = ("latency_parameters", "tile_predictors", "residuals", "domain")
"""Sections of a bundle with large tables."""


def show_document(bundle: Bundle) -> dict[str, object]:
    """Output of `fit show --json`: the fields of the bundle's file without large tables."""
    return {name: value for name, value in document_of(bundle).items() if name not in LARGE}


def selection_document(selection: Selection) -> dict[str, object]:
    """Rows read, used and rejected, for programs.

    `rejected` counts fully rejected rows by reason, so that rows = used + Σ rejected.  `rejected_power_only` counts rows that lose only
    their power.
    """
    return {
        "rows": selection.row_count,
        "used": sum(dataset.used for dataset in selection.datasets),
        "rejected": count_reasons(selection.rejected, power_only=False),
        "rejected_power_only": count_reasons(selection.rejected, power_only=True),
        "startup": plain(selection.startups),
        "notes": list(selection.notes),
    }
