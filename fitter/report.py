"""The report of a fit: one self-contained HTML page, no network, no script."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np

from estimator.bundle_content import Bundle
from estimator.charts import Axis, Series, axis_over, line_svg, scatter_svg
from estimator.coefficients import MEANING
from estimator.pages import LONGEST_CELL, figure_html, number_html, page_html, section_html, table_html, text_html
from fitter.instructions_display import instruction_html
from fitter.rows import RejectedRow, Selection, count_reasons, reason_meaning
from fitter.validation import Prediction

MOST_REJECTED: Final = 200
"""Rejected rows that are listed one by one; all are counted."""

MOST_WORST: Final = 15
"""Held-out rows of the largest error that are listed."""

LONGEST_NOTE: Final = 4000
"""Notes name many kinds of kernels; beyond this they are cut [character]."""


def report_html(bundle: Bundle, selection: Selection, held_out: Mapping[str, Prediction]) -> str:
    """The page.  `held_out`: predictions of rows left out of the fit, by what they are ("kernels", "workloads")."""
    sections = (
        section_html("Model card", _model_card(bundle, selection)),
        section_html("Errors on rows left out of the fit", _errors(bundle)),
        section_html("Predicted and measured", _scatters(held_out)),
        section_html("Largest errors", _worst(held_out)),
        section_html("Coefficients", _coefficients(bundle) + _power(bundle)),
        section_html("Instruction energies", instruction_html(bundle)),
        section_html("Voltage and idle power", _curves(bundle)),
        section_html("Rejected rows", _rejected(selection)),
        section_html("Data sets", _datasets(bundle)),
    )
    return page_html(f"{bundle.name} {bundle.version}: fit of {bundle.gpu.name}", sections)


def _model_card(bundle: Bundle, selection: Selection) -> str:
    origin, used = bundle.provenance, sum(dataset.used for dataset in selection.datasets)
    facts = {
        "GPU": f"{bundle.gpu.name} {bundle.gpu_uuid}".strip(),
        "Rows": f"{used:,} used of {selection.row_count:,} read",
        "SM clocks": f"{bundle.clocks_mhz[0]:g} to {bundle.clocks_mhz[1]:g} MHz",
        "Host launch cost": f"{bundle.host.launch_s * 1e6:.2f} µs per framework operator ({bundle.host.source})",
        "Power": "no power in the data" if bundle.power is None else f"voltage exponent {bundle.power.voltage_exponent:.2f}",
        "Completion of operator lists": bundle.completion or "none",
        "Made": f"{origin.created_utc}, wattprint {origin.wattprint_version}, commit {origin.commit or 'unknown'}, seed {origin.seed}",
        "Digest": bundle.digest,
    }
    simulated = '<p class="bad">Fitted on a simulated board: these numbers test the program, they say nothing about a GPU.</p>'
    notes = "".join(f"<li>{escape(note[:LONGEST_NOTE])}</li>" for note in (*bundle.notes, *selection.notes))
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{text_html(value)}</dd>" for name, value in facts.items())
    return (simulated if bundle.simulated else "") + f"<dl>{pairs}</dl>" + (f"<ul>{notes}</ul>" if notes else "")


def _errors(bundle: Bundle) -> str:
    """Held-out errors as stored in the bundle."""
    if not bundle.errors:
        return "<p>No rows were held out.</p>"
    head = ("family", "operator", "precision", "rows")
    figures = ("mape", "median", "p95", "bias", "coverage")
    body = ""
    for quantity in ("latency", "power"):
        known = [row for row in bundle.errors if row[quantity]]
        rows = [[row["family"], row["operator"], row["precision"], row["n"], *_figures(row[quantity], figures)] for row in known]
        body += table_html(f"{quantity.capitalize()} error in percent; coverage of stated 90 % intervals", (*head, *figures), rows)
    return body


def _figures(errors: Mapping[str, Any], names: Sequence[str]) -> list[float]:
    return [float("nan") if errors[name] is None else float(errors[name]) for name in names]


def _scatters(held_out: Mapping[str, Prediction]) -> str:
    charts = []
    for quantity, unit, columns, logarithmic in (
        ("latency", "s", ("measured_s", "predicted_s"), True),
        ("power", "W", ("measured_w", "predicted_w"), False),
    ):
        series = [Series(name=name, x=getattr(p, columns[0]), y=getattr(p, columns[1])) for name, p in held_out.items()]
        series = [s for s in series if (np.isfinite(s.x) & np.isfinite(s.y)).any()]
        if not series:
            continue
        both = axis_over("", [s.x for s in series] + [s.y for s in series], logarithmic=logarithmic)
        x = Axis(label=f"measured {quantity} [{unit}]", low=both.low, high=both.high, logarithmic=logarithmic)
        y = Axis(label=f"predicted {quantity} [{unit}]", low=both.low, high=both.high, logarithmic=logarithmic)
        count = sum(len(s.x) for s in series)
        text = f"Predicted over measured {quantity} of {count} held-out rows; the dashed line is equality."
        charts.append(figure_html(scatter_svg(f"{quantity.capitalize()}: predicted and measured", text, series, x, y, diagonal=True), text))
    return f'<div class="charts">{"".join(charts)}</div>' if charts else ""


def _worst(held_out: Mapping[str, Prediction]) -> str:
    """Held-out rows with the largest latency error."""
    rows: list[tuple[float, list[Any]]] = []
    for name, prediction in held_out.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            error = (prediction.predicted_s / prediction.measured_s - 1.0) * 100.0
        order = np.argsort(-np.abs(np.nan_to_num(error)), kind="stable")[:MOST_WORST]
        for i in order.tolist():
            figures = [float(prediction.measured_s[i]), float(prediction.predicted_s[i]), float(error[i])]
            rows.append((abs(figures[-1]), [name, " ".join(prediction.labels[i][1:]), prediction.origins[i], *figures]))
    rows.sort(key=lambda pair: -pair[0])
    head = ("kind", "what", "row", "measured s", "predicted s", "error %")
    return table_html("Held-out rows whose latency is furthest off", head, [row for _, row in rows[:MOST_WORST]])


def _coefficients(bundle: Bundle) -> str:
    rows: list[list[Any]] = []
    for key, group in bundle.groups.items():
        for name, value in group.coefficients.items():
            std = group.ln_std.get(name, float("nan"))
            known = "" if name not in group.identified else "data" if group.identified[name] else "prior"
            rows.append([key, name, value, value * std, known, group.rows, MEANING.get(name, "")])
    return table_html("Latency coefficients", ("group", "coefficient", "value", "std", "set by", "rows", "meaning"), rows)


def _power(bundle: Bundle) -> str:
    power = bundle.power
    if power is None:
        return ""
    rows: list[list[Any]] = [
        [name, farad * 1e9, power.capacitance_std_f.get(name, float("nan")) * 1e9, power.event_energy_j.get(name, float("nan")) * 1e12]
        for name, farad in power.capacitance_f.items()
    ]
    table = table_html("Switched capacitance by module", ("module", "C [nF]", "std [nF]", "energy per event [pJ]"), rows)
    return table + (
        f"<p>Running SMs draw {power.busy_w:.3g} ± {number_html(power.busy_std_w)} W, a board in use {power.active_w:.3g} ± "
        f"{number_html(power.active_std_w)} W, at {power.reference_clock_mhz:g} MHz and {power.reference_voltage_v:.4g} V.</p>"
    )


def _curves(bundle: Bundle) -> str:
    charts = []
    if bundle.voltage is not None:
        charts.append(_curve("Core voltage", "V", bundle.voltage.sm_clock_mhz, bundle.voltage.voltage_v, bundle.voltage.source))
    if bundle.idle is not None:
        charts.append(_curve("Idle power", "W", bundle.idle.sm_clock_mhz, bundle.idle.power_w, bundle.idle.source))
    return f'<div class="charts">{"".join(charts)}</div>' if charts else ""


def _curve(name: str, unit: str, clocks: Sequence[float], values: Sequence[float], source: str) -> str:
    series = Series(name=name, x=np.array(clocks), y=np.array(values))
    x = axis_over("SM clock [MHz]", [series.x], logarithmic=False)
    y = axis_over(f"{name.lower()} [{unit}]", [series.y], logarithmic=False)
    text = f"{name} over the SM clock."
    return figure_html(line_svg(name, text, [series], x, y), f"{text} {source[:LONGEST_CELL]}")


def _rejected(selection: Selection) -> str:
    if not selection.rejected:
        return "<p>None.</p>"
    counts = [[reason, count, reason_meaning(reason)] for reason, count in count_reasons(selection.rejected).items()]
    listed = [_rejected_cells(row) for row in selection.rejected[:MOST_REJECTED]]
    more = len(selection.rejected) - len(listed)
    rest = f'<p class="dim">and {more:,} more</p>' if more > 0 else ""
    rows = table_html("Rejected rows one by one", ("data set", "row", "reason", "rejected", "value"), listed)
    summary = table_html("Rejected rows by reason", ("reason", "rows", "meaning"), counts)
    return f"{summary}<details><summary>The rows</summary>{rows}{rest}</details>"


def _rejected_cells(row: RejectedRow) -> list[Any]:
    return [row.source, row.row, row.reason, "power" if row.power_only else "row", row.detail]


def _datasets(bundle: Bundle) -> str:
    rows = [[d.name, d.kind, d.rows, d.used, d.sha256] for d in bundle.provenance.datasets]
    return table_html("What the fit was made from", ("data set", "kind", "rows", "used", "SHA-256"), rows)
