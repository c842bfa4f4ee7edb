"""What the command `fit` says: tables and sentences for people, documents for programs."""

from collections.abc import Mapping, Sequence
from math import isfinite, isnan, nan
from typing import Any, Final

from estimator.bundles.content import Bundle, GroupCoefficients
from estimator.instructions.energies import LINKS
from estimator.reader import plain
from fitter.blocks.section import block_lines
from fitter.errors import FitterError
from fitter.instructions.display import instruction_lines
from fitter.release.release import differences
from fitter.release.version_rule import needed_step
from fitter.release.workload_changes import WorkloadChange, change_lines
from fitter.rows.columns import Selection
from fitter.rows.rejected import count_power_only, count_whole, reason_meaning
from fitter.validate.notes import NO_INTERVAL, NOTHING, Label, label_of, lacks_interval
from fitter.validate.predictions import ErrorRow

FIGURES: Final = ("mape", "median", "p95", "bias")


def selection_lines(selection: Selection) -> list[str]:
    """What was read and what was left out."""
    used = sum(dataset.used for dataset in selection.datasets)
    alone = selection.latency_only
    lines = [f"{used:,} of {selection.row_count:,} rows used" + (f", {alone:,} of them for their latency alone" if alone else "")]
    lines += [f"  {d.name}: {d.kind}, {d.used:,} of {d.rows:,} rows" for d in selection.datasets]
    lines += [
        f"  start-up removed: {s.startup_s:.2f} s of runs that aim at {s.target_s:g} s ({s.gpu}, {s.runs} runs)" for s in selection.startups
    ]
    for counted, title in ((count_whole, "rejected:"), (count_power_only, "power or energy rejected, the row's latency used:")):
        counts = counted(selection.rejected)
        lines += [title] if counts else []
        lines += [f"  {count:6,}  {reason}: {reason_meaning(reason)}" for reason, count in counts.items()]
    return lines


def missing_workload_lines(selection: Selection) -> list[str]:
    """A line for each workload file that rows name and that could not be read, with the rows."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row in selection.rejected:
        if row.reason == "MISSING_WORKLOAD":
            rows.setdefault((row.source, row.detail), []).append(row.row)
    lines = []
    for (source, detail), numbers in list(rows.items())[:MOST_LINES]:
        shown = ", ".join(str(number) for number in numbers[:MOST_LINES]) + (", …" if len(numbers) > MOST_LINES else "")
        lines.append(f"{source} row{'s' if len(numbers) > 1 else ''} {shown}: {detail}")
    if len(rows) > MOST_LINES:
        lines.append(f"{len(rows) - MOST_LINES} further workload files could not be read; -v names their rows")
    return lines


MOST_LINES: Final = 5
"""Files, and rows of each, that are named unasked."""


def error_table(rows: Sequence[ErrorRow], notes: Mapping[Label, str] = NOTHING) -> list[str]:
    """Errors in percent, a line per kind of kernel; below them what the notes, as from `held_out_notes`, say of marked kinds."""
    if not rows:
        return []
    numbers = {note: number for number, note in enumerate(dict.fromkeys(notes.values()), 1)}
    marks = [f" [{numbers[notes[label_of(row)]]}]" if label_of(row) in notes else "" for row in rows]
    kinds = [" ".join(part for part in (row.gpu, row.family, row.operator, row.precision) if part) for row in rows]
    names = [kind + mark for kind, mark in zip(kinds, marks, strict=True)]
    width = max(len(name) for name in names)
    heads = "  ".join(f"{quantity:>8} {'median':>7} {'p95':>6} {'bias':>6}" for quantity in ("latency", "power"))
    lines = [f"{'error in percent':{width}}  {'rows':>6}  {heads}  coverage"]
    for name, row in zip(names, rows, strict=True):
        parts = [f"{name:{width}}  {row.n:6,} "]
        for errors in (row.latency, row.power):
            if errors is None:
                parts.append(f" {'–':>8} {'–':>7} {'–':>6} {'–':>6}")
            else:
                parts.append(f" {errors.mape:8.2f} {errors.median:7.2f} {errors.p95:6.1f} {errors.bias:+6.1f}")
        parts.append("      –" if isnan(row.coverage) else f"  {row.coverage:7.0%}")
        lines.append(" ".join(parts))
    lines += [f"  [{number}] {note}" for note, number in numbers.items() if f" [{number}]" in marks]
    return [*lines, f"  {NO_INTERVAL}"] if any(map(lacks_interval, rows)) else lines


def next_lines(bundle: Bundle, path: str) -> list[str]:
    """What to do with a fitted bundle that lies at a path: a line for every command that has an answer of its own data."""
    measured = bundle.power is not None or any(group.rows for group in bundle.groups.values()) or bool(bundle.errors)
    words = ["WORKLOAD.json"] if measured else []
    words += ["counts COUNTS"] if set(bundle.instruction_energies) - {LINKS} else []
    words += ["blocks"] if bundle.block_models else []
    return [f"next: estimate {word} --bundle {path}" for word in words] or [f"next: fit show {path}"]


def show_lines(bundle: Bundle) -> list[str]:
    """A bundle for people: what it is, how good, its coefficients."""
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
    lines += ["", *_stored_errors(bundle), ""]
    fitted = {key: group for key, group in bundle.groups.items() if _has_data(group)}
    if fitted:
        lines.append("coefficients (± standard deviation; * set by the prior, not by the data; without ±: constant, not fitted)")
    for key, group in fitted.items():
        lines.append(f"  {key}  ({group.rows:,} rows)")
        for name, value in group.coefficients.items():
            std = group.ln_std.get(name)
            spread = f" ± {value * std:.2g}" if std is not None else ""
            lines.append(f"    {name:20} {value:.4g}{spread}{' *' if group.identified.get(name) is False else ''}")
    power = bundle.power
    if power is not None:
        point = f"{power.reference_clock_mhz:g} MHz, {power.reference_voltage_v:.4g} V"
        lines.append(f"power at {point}, voltage exponent {power.voltage_exponent:.3g}")
        for name, farad in power.capacitance_f.items():
            lines.append(f"    C {name:18} {farad * 1e9:.4g}{_plus_minus(power.capacitance_std_f.get(name, nan) * 1e9)} nF")
        lines.append(f"    {'busy':20} {power.busy_w:.3g}{_plus_minus(power.busy_std_w)} W")
        lines.append(f"    {'active':20} {power.active_w:.3g}{_plus_minus(power.active_std_w)} W")
    lines += [*instruction_lines(bundle), *block_lines(bundle)]
    priors = [key for key in bundle.groups if key not in fitted]
    if priors:
        lines.append(f"at their priors, no row in the data (`fit show --json` has the values): {', '.join(priors)}")
    return lines


def _has_data(group: GroupCoefficients) -> bool:
    """Whether rows, or another bundle's knowledge, set any coefficient of a group; a fit of whole models counts its runs for all groups."""
    return (group.rows > 0 and bool(group.ln_std)) or any(group.identified.values())


def _plus_minus(std: float) -> str:
    """A deviation behind its value; nothing where it is unknown."""
    return "" if isnan(std) else f" ± {std:.2g}"


def _stored_errors(bundle: Bundle) -> list[str]:
    if not bundle.errors:
        return ["no held-out errors"]
    try:
        return ["held-out errors [%]: mape / median / p95 / bias", *(_stored_error(row) for row in bundle.errors)]
    except (KeyError, TypeError, ValueError) as error:
        raise FitterError(f"bundle {bundle.name}: its held-out errors are damaged ({error}); fit again") from error


def _stored_error(row: Mapping[str, Any]) -> str:
    parts = [f"  {row['family']} {row['operator']} {row['precision']} (n {row['n']})"]
    for quantity in ("latency", "power"):
        if row[quantity]:
            parts.append(f"{quantity} " + " / ".join(f"{row[quantity][name]:.2f}" for name in FIGURES))
    return "  ".join(parts)


def show_document(bundle: Bundle) -> dict[str, Any]:
    """What `fit show --json` says: the bundle's description without its bulk."""
    return {
        "name": bundle.name,
        "version": bundle.version,
        "digest": bundle.digest,
        "gpu": bundle.gpu.name,
        "gpu_uuid": bundle.gpu_uuid,
        "simulated": bundle.simulated,
        "clocks_mhz": list(bundle.clocks_mhz),
        "host_launch_s": bundle.host.launch_s,
        "provenance": {
            "created_utc": bundle.provenance.created_utc,
            "wattprint_version": bundle.provenance.wattprint_version,
            "commit": bundle.provenance.commit,
            "seed": bundle.provenance.seed,
            "datasets": [
                {"name": d.name, "sha256": d.sha256, "kind": d.kind, "rows": d.rows, "used": d.used, "rejected": dict(d.rejected)}
                for d in bundle.provenance.datasets
            ],
        },
        "groups": {
            key: {name: _with_std(value, value * group.ln_std.get(name, nan)) for name, value in group.coefficients.items()}
            for key, group in bundle.groups.items()
        },
        "capacitance_f": {}
        if bundle.power is None
        else {name: _with_std(value, bundle.power.capacitance_std_f.get(name, nan)) for name, value in bundle.power.capacitance_f.items()},
        "instruction_energies": plain(bundle.instruction_energies),
        "block_models": plain(bundle.block_models),
        "errors": plain(bundle.errors),
        "notes": list(bundle.notes),
    }


def _with_std(value: float, std: float) -> dict[str, float | None]:
    return {"value": value, "std": std if isfinite(std) else None}


def diff_lines(old: Bundle, new: Bundle, changes: Sequence[WorkloadChange] = ()) -> list[str]:
    """What changed from one bundle to another, and what that changes for workloads."""
    return [*_coefficient_lines(old, new), "", *change_lines(changes), "", f"as a release: {needed_step(old, new).text()}"]


def _coefficient_lines(old: Bundle, new: Bundle) -> list[str]:
    lines = [f"{old.name} {old.version} → {new.name} {new.version}"]
    if old.gpu.name != new.gpu.name:
        lines.append(f"another GPU: {old.gpu.name} → {new.gpu.name}")
    elif old.gpu != new.gpu:
        lines.append(f"the specification of {new.gpu.name} changed")
    changes = differences(old, new)
    if not changes:
        return [*lines, "no coefficient changed"]
    width = max(len(change.place) for change in changes)
    lines.append(f"{'coefficient':{width}}  {'old':>10}  {'new':>10}  {'factor':>7}  std deviations")
    for change in changes:
        figures = (
            _figure(change.old, "10.4g"),
            _figure(change.new, "10.4g"),
            _figure(change.factor, "7.3f"),
            _figure(change.sigmas, "8.1f"),
        )
        lines.append(f"{change.place:{width}}  " + "  ".join(figures))
    return lines


def _figure(value: float, form: str) -> str:
    width = int(form.split(".")[0])
    return f"{'–':>{width}}" if isnan(value) else f"{value:{form}}"


def startup_document(selection: Selection) -> list[dict[str, Any]]:
    """Start-up by host, for programs."""
    names = ("source", "gpu", "target_s", "startup_s", "runs")
    return [{**{name: getattr(s, name) for name in names}, "quartiles_s": list(s.quartiles_s)} for s in selection.startups]


def selection_document(selection: Selection) -> dict[str, Any]:
    """Rows read, used and rejected, for programs.

    `rejected` counts rows left out as wholes by reason, so that rows = used + Σ rejected.  `rejected_power_only` counts rows whose power
    alone was rejected; `used_latency_only` adds to these the rows that never had a power.
    """
    return {
        "rows": selection.row_count,
        "used": sum(dataset.used for dataset in selection.datasets),
        "rejected": count_whole(selection.rejected),
        "used_latency_only": selection.latency_only,
        "rejected_power_only": count_power_only(selection.rejected),
        "startup": startup_document(selection),
        "notes": list(selection.notes),
    }
