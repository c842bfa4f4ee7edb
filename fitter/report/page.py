"""Output of the command `fit`: tables and sentences for people, documents for programs, and the report.

The report is one self-contained HTML page, no network, no script.  Charts bin their points: a report of a million rows is as large as
one of ten thousand.  Colours come from the page; title and description of a chart are for screen readers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from math import nan
from typing import Any, Final

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle
from estimator.counts.energies import LINKS
from estimator.display.charts import Series, axis_over, bars_svg, scatter_svg, shares_svg
from estimator.display.pages import Shown, facts_html, figure_html, report_page, table_html
from estimator.engine.kernel_table import KernelTimes, alone_parts_w, bundle_times
from estimator.model.coefficients import MEANING
from estimator.model.tile_choice import predicted_tiles
from estimator.model.timeline import ideal_seconds
from estimator.questions.choosing import UNITS
from estimator.uncertainty.sources import unfitted_groups
from estimator.vocabulary.quantities import HZ_PER_MHZ
from estimator.vocabulary.reader import plain
from fitter.blocks.section import block_tables
from fitter.instructions.display import instruction_tables
from fitter.report.verdict import error_table, has_kernels
from fitter.rows.columns import KernelRows, Selection
from fitter.rows.rejected import count_reasons, reason_meaning
from fitter.validate.predictions import LABEL, PERCENT, QUANTITIES, FramesByKind, compared, kind_text


def selection_lines(selection: Selection) -> list[str]:
    """Lines on the rows that were read and left out."""
    used = sum(dataset.used for dataset in selection.datasets)
    lines = [f"{used:,} of {selection.row_count:,} rows used"]
    named = {name for rows in selection.tables for name in rows.collections} if len(selection.datasets) > 1 else set()
    told = "; names no laboratory (column `collection`), its own name stands for one"
    lines += [f"  {d.name}: {d.kind}, {d.used:,} of {d.rows:,} rows{told if d.name in named else ''}" for d in selection.datasets]
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
        "Power": "of no kernel or run in the data" if bundle.power is None else f"voltage exponent {bundle.power.voltage_exponent:.2f}",
        "Times of laboratories": ", ".join(f"{one.name} × {one.scale:.3f}" for one in bundle.collections) or "none named",
        "Completion of operator lists": bundle.completion or "none",
        "Made": f"{origin.created_utc}, wattprint {origin.wattprint_version}, commit {origin.commit or 'unknown'}, seed {origin.seed}",
        "Digest": bundle.digest,
    }


def dataset_table(bundle: Bundle) -> Shown:
    """Table of the data sets behind a bundle."""
    rows = [[d.name, d.kind, d.rows, d.used, d.sha256] for d in bundle.provenance.datasets]
    return Shown(title="Data of the fit", head=("data set", "kind", "rows", "used", "SHA-256"), rows=rows)


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


def report_html(bundle: Bundle, selection: Selection, held_out: FramesByKind, verdict: Sequence[str] = ()) -> str:
    """The page; held_out: predictions of held-out rows by kind ("kernels", "workloads"); verdict: its first lines."""
    held = {kind: held_frame(compared(found)) for kind, found in held_out.items()}
    rows = pd.concat([pd.DataFrame(), *held.values()], ignore_index=True)
    errors = error_table("Errors in percent; coverage of stated 90 % intervals", bundle.errors).html()
    parts = (
        ("verdict", "Verdict", _verdict(bundle, verdict)),
        ("pictures", "Pictures", scatters_html(held) + family_errors_html(rows) + pictures_html(bundle, selection.kernels)),
        ("card", "Model card", _model_card(bundle, selection)),
        ("errors", "Errors on held-out rows", errors or "<p>No kernels were held out.</p>"),
        ("worst", "Largest errors", worst_html(rows)),
        ("coefficients", "Coefficients", "".join(table.html() for table in coefficient_tables(bundle, list(bundle.groups)))),
        ("instructions", "Instruction energies", "".join(table.html() for table in instruction_tables(bundle))),
        ("blocks", "Block-count models", "".join(table.html() for table in block_tables(bundle))),
        ("rejected", "Rejected rows", _rejected(selection)),
        ("data", "Data sets", dataset_table(bundle).html()),
    )
    return report_page(f"{bundle.name} {bundle.version}: fit of {bundle.gpu.name}", parts)


def _verdict(bundle: Bundle, lines: Sequence[str]) -> str:
    simulated = '<p class="bad">Fitted on a simulated board: these numbers test the program, they say nothing about a GPU.</p>'
    return (simulated if bundle.simulated else "") + "".join(f"<p>{escape(line)}</p>" for line in lines)


def _model_card(bundle: Bundle, selection: Selection) -> str:
    used = sum(dataset.used for dataset in selection.datasets)
    facts = {"Rows": f"{used:,} used of {selection.row_count:,} read", **bundle_facts(bundle)}
    notes = "".join(f"<li>{escape(note[:4000])}</li>" for note in dict.fromkeys((*bundle.notes, *selection.notes)))
    return facts_html(facts) + (f"<ul>{notes}</ul>" if notes else "")


def _rejected(selection: Selection) -> str:
    counts = [[reason, count, reason_meaning(reason)] for reason, count in count_reasons(selection.rejected).items()]
    return table_html("Rejected rows by reason; fit -v names them", ("reason", "rows", "meaning"), counts) or "<p>None.</p>"


# Held-out rows: predicted over measured, and the worst ones ------------------------------------------------------------------


MOST_FAMILIES: Final = 12
"""Families in the chart of errors."""


def held_frame(found: pd.DataFrame) -> pd.DataFrame:
    """Held-out predictions with energy [J] and the error of every quantity in percent (error_Q)."""
    frame = found.assign(**{f"{side}_energy": found[f"{side}_latency"] * found[f"{side}_power"] for side in ("measured", "predicted")})
    errors = {f"error_{quantity}": (frame[f"predicted_{quantity}"] / frame[f"measured_{quantity}"] - 1.0) * PERCENT for quantity in UNITS}
    return frame.assign(**errors).replace([np.inf, -np.inf], np.nan)


def scatters_html(held: FramesByKind) -> str:
    """Predicted over measured latency, power and energy; "" without rows."""
    joined = "".join(_scatter(held, quantity) for quantity in UNITS)
    return f'<div class="charts">{joined}</div>' if joined else ""


def _scatter(held: FramesByKind, quantity: str) -> str:
    columns = [f"measured_{quantity}", f"predicted_{quantity}"]
    points = {name: rows[columns].to_numpy() for name, rows in held.items()}
    known = {name: own[(np.isfinite(own) & (own > 0.0)).all(axis=1)] for name, own in points.items()}
    series = [Series(name=name, x=own[:, 0], y=own[:, 1]) for name, own in known.items() if len(own)]
    if not series:
        return ""
    axis = axis_over("", [own.ravel() for own in known.values()], logarithmic=quantity != "power")
    x, y = (replace(axis, label=f"{side} {quantity} [{UNITS[quantity]}]") for side in ("measured", "predicted"))
    count = sum(len(one.x) for one in series)
    caption = f"Predicted over measured {quantity} of {count:,} held-out rows; the dashed line is equality."
    return figure_html(scatter_svg(f"{quantity.capitalize()}: predicted and measured", caption, series, x, y, diagonal=True), caption)


def family_errors_html(rows: pd.DataFrame) -> str:
    """Mean error of latency and power by family of kernels, the largest first; "" without rows."""
    if rows.empty:
        return ""
    columns = {f"error_{quantity}": quantity for quantity in QUANTITIES}
    errors = rows[["family", *columns]].set_index("family").abs().groupby(level=0).mean().rename(columns=columns)
    shown = errors.loc[errors.max(axis=1).sort_values(ascending=False).index[:MOST_FAMILIES]]
    caption = "Mean error of held-out rows by family; whole models are the family workload."
    bars = {str(family): dict(zip(QUANTITIES, row, strict=True)) for family, row in zip(shown.index, shown.to_numpy(), strict=True)}
    return figure_html(bars_svg("Error by family", caption, bars, "%"), caption)


def worst_html(rows: pd.DataFrame) -> str:
    """Held-out rows with the largest errors, with their conditions."""
    body = ""
    for quantity in QUANTITIES if len(rows) else ():
        unit, error = UNITS[quantity], f"error_{quantity}"
        far = rows.loc[rows[error].abs().sort_values(ascending=False, kind="stable").dropna().index[:12]].round({error: 2})
        kinds = [kind_text(label) for label in far[LABEL[1:]].itertuples(index=False)]
        columns = ["origin", "kind", "what", "clock", f"measured_{quantity}", f"predicted_{quantity}", error]
        head = ("row", "kind", "what ran", "SM clock [MHz]", f"measured [{unit}]", f"predicted [{unit}]", "error [%]")
        lines = far.assign(kind=kinds)[columns].to_numpy().tolist()
        body += Shown(title=f"Held-out rows whose {quantity} is furthest off", head=head, rows=lines).html()
    return body


# The model on the rows that it was fitted to: ideal and corrected time, power by module, tiles --------------------------------


MOST_ROWS: Final = 3000
"""Most rows that a picture shows, evenly chosen over the file."""

MOST_BARS: Final = 5
"""Families whose power is shown by module."""


def pictures_html(bundle: Bundle, rows: KernelRows | None) -> str:
    """The pictures from kernels of the bundle's own GPU; "" without any."""
    own = np.flatnonzero([] if rows is None else np.array(rows.row_gpus) == bundle.gpu.name)
    if rows is None or not len(own):
        return ""
    rows = rows.select(own[np.unique(np.linspace(0, len(own) - 1, min(len(own), MOST_ROWS)).astype(np.int64))])
    clock = rows.clock_mhz(bundle.gpu)
    times = bundle_times(rows.row_operators(), bundle, bundle.gpu, sm_clock_mhz=clock, warm=rows.l2_warm, known=rows.tiles)
    return _ideal(bundle, rows, times) + _tiles(bundle, rows, times) + _modules(bundle, rows, times)


def _ideal(bundle: Bundle, rows: KernelRows, times: KernelTimes) -> str:
    """Ideal and corrected over measured time.  Source: EnergAIzer (arXiv 2604.20105), fig. 6."""
    ideal_s = ideal_seconds(times.phases, bundle.gpu, rows.clock_mhz(bundle.gpu) * HZ_PER_MHZ)
    known = np.isfinite(times.equations_s) & np.isfinite(ideal_s) & (ideal_s > 0.0) & (rows.latency_s > 0.0)
    if not known.any():
        return ""
    drawn = {"ideal: published rates": ideal_s, "corrected: fitted λ and ε": times.equations_s}
    series = [Series(name=name, x=rows.latency_s[known], y=seconds[known]) for name, seconds in drawn.items()]
    y = axis_over("time of the model [s]", [one.y for one in series], logarithmic=True)
    x = axis_over("measured latency [s]", [one.x for one in series], logarithmic=True)
    caption = "Time at the published rates, and as corrected by the fit, over the measured time, on rows that the fit saw."
    return (
        f'<div class="charts">{figure_html(scatter_svg("Ideal and corrected time", caption, series, x, y, diagonal=True), caption)}</div>'
    )


def _tiles(bundle: Bundle, rows: KernelRows, times: KernelTimes) -> str:
    """Share of kernels whose tile the bundle predicts as their names state it."""
    found = predicted_tiles(rows.row_operators(), bundle.gpu, bundle.tile_predictors, times.coefficients, times.groups)
    first = np.unique(rows.operator_index, return_index=True)[1]
    shapes = first[:0] if found is None else first[np.isfinite(rows.tile_m[first]) & np.isfinite(found.tile_m[first])]
    if found is None or not len(shapes):
        return ""
    hit = (rows.tile_m[shapes] == found.tile_m[shapes]) & (rows.tile_n[shapes] == found.tile_n[shapes])
    text = f"Tiles: predicted as the library chose them for {hit.mean():.0%} of {len(shapes):,} products with a known kernel name"
    return f"<p>{text}. The fit saw these rows: new shapes are hit less often.</p>"


def _modules(bundle: Bundle, rows: KernelRows, times: KernelTimes) -> str:
    """Mean power of the most frequent families by module."""
    parts = alone_parts_w(times, bundle, bundle.gpu, rows.clock_mhz(bundle.gpu), rows.l2_warm)
    if not parts:
        return ""
    families = [operator.family for operator in rows.row_operators()]
    figures = ""
    for family, _ in Counter(families).most_common(MOST_BARS):
        own = np.array(families) == family
        shown = {name: float(np.nanmean(watt[own])) for name, watt in parts.items()}
        caption = f"Power of {family} kernels by module: {sum(shown.values()):.0f} W on average, on rows that the fit saw."
        figures += figure_html(shares_svg(f"Power by module: {family}", caption, shown, "W"), caption)
    return figures
