"""Output of the command `fit`: tables and sentences for people, documents for programs."""

from collections.abc import Sequence
from math import nan
from typing import Any, Final

from estimator.bundle.content import Bundle
from estimator.counts.energies import LINKS
from estimator.model.coefficients import MEANING
from estimator.uncertainty.sources import unfitted_groups
from estimator.vocabulary.reader import plain
from fitter.blocks.section import block_tables
from fitter.instructions.display import instruction_tables
from fitter.report.verdict import has_kernels
from fitter.rows.columns import Selection
from fitter.rows.rejected import count_reasons, reason_meaning
from fitter.validate.predictions import Shown, error_table


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
    words = ["WORKLOAD.json"] if has_kernels(bundle) else []
    words += ["counts COUNTS"] if set(bundle.instruction_energies) - {LINKS} else []
    words += ["blocks"] if bundle.block_models else []
    return [f"next: estimate {word} --bundle {path}" for word in words] or [f"next: fit show {path}"]


def bundle_facts(bundle: Bundle) -> dict[str, str]:
    """Where a bundle comes from and what it holds for, by title."""
    origin = bundle.provenance
    return {
        "GPU": f"{bundle.gpu.name} {bundle.gpu_uuid}".rstrip() + (" (simulated)" if bundle.simulated else ""),
        "SM clocks": f"{bundle.clocks_mhz[0]:g} to {bundle.clocks_mhz[1]:g} MHz",
        "Host launch cost": f"{bundle.host.launch_s * 1e6:.3g} µs per framework operator ({bundle.host.source})",
        "Power": "no power in the data" if bundle.power is None else f"voltage exponent {bundle.power.voltage_exponent:.2f}",
        "Completion of operator lists": bundle.completion or "none",
        "Made": f"{origin.created_utc}, wattprint {origin.wattprint_version}, commit {origin.commit or 'unknown'}, seed {origin.seed}",
        "Digest": bundle.digest,
    }


def dataset_table(bundle: Bundle) -> Shown:
    """Table of the data sets behind a bundle."""
    rows = [[d.name, d.kind, d.rows, d.used, d.sha256] for d in bundle.provenance.datasets]
    return Shown(title="What the fit was made from", head=("data set", "kind", "rows", "used", "SHA-256"), rows=rows)


def show_lines(bundle: Bundle) -> list[str]:
    """Description of a bundle: identity, errors, coefficients."""
    lines = [f"{bundle.name} {bundle.version}", *(f"{title}: {text}" for title, text in bundle_facts(bundle).items())]
    lines += [f"note: {note}" for note in bundle.notes]
    priors = unfitted_groups(bundle, bundle.groups)
    fitted = [key for key in bundle.groups if key not in priors]
    tables = [dataset_table(bundle), error_table("held-out errors in percent:", bundle.errors), *coefficient_tables(bundle, fitted)]
    lines += [line for table in [*tables, *instruction_tables(bundle), *block_tables(bundle)] for line in table.lines()]
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


LARGE: Final = ("latency_parameters", "tile_predictors", "residuals", "domain")
"""Sections of a bundle with large tables, which `fit show --json` leaves out."""


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
