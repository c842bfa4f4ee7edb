"""The report of a fit: one self-contained HTML page, no network, no script, the same bytes for the same fit."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle
from estimator.display.charts import Band, Series, axis_over, line_svg
from estimator.display.pages import LONGEST_CELL, page_html, section_html, table_html, text_html
from estimator.vocabulary.quantities import NORMAL_90, Array
from fitter.instructions.display import instruction_tables
from fitter.report.errors import (
    RESIDUALS,
    charts_html,
    dependences_html,
    errors_html,
    figure_with_table,
    held_frame,
    scatters_html,
    worst_html,
)
from fitter.report.left_out import LeftOut, left_out_html
from fitter.report.text import coefficient_tables
from fitter.rows.columns import Selection
from fitter.rows.rejected import count_reasons, reason_meaning
from fitter.validate.predictions import compared, held_out_notes, summary_row

DRAWING: Final = re.compile(r"(id=|aria-labelledby=)\"[crs]\d+t(?:\"| [crs]\d+d\")|id=\"[crs]\d+d\"")
"""Ids of charts' titles and descriptions, whose numbers count all charts of the process."""

UNPRINTABLE: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
"""Characters of names and notes that control a terminal, hide, or turn the direction of writing."""

REPORT_STYLE: Final = """
a{color:var(--p0)}
.skip{position:absolute;left:-99rem}
.skip:focus{position:static;display:inline-block;padding:.5rem}
nav ul{columns:14rem;padding-left:1.2rem;margin:.5rem 0}
main:focus{outline:none}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--p0);outline-offset:2px}
:target{outline:2px solid var(--p1);outline-offset:4px}
summary{cursor:pointer;padding:.4rem 0}
.charts>figure{max-width:44rem}
.p0,.p1,.p2{stroke-opacity:.85}
@media(max-width:40rem){body{padding:.75rem .75rem 3rem}svg{font-size:14px}dl{grid-template-columns:1fr}dt{margin-top:.4rem}}
@media(prefers-reduced-motion:no-preference){html{scroll-behavior:smooth}}
@media print{.skip,nav{display:none}}
"""
"""Style rules of the report in addition to those of all pages."""


def report_html(bundle: Bundle, selection: Selection, held_out: Mapping[str, pd.DataFrame], left_out: Sequence[LeftOut] = ()) -> str:
    """The page.

    held_out: predictions of held-out rows by kind ("kernels", "workloads").  left_out: errors of fits without whole families
    and clocks.
    """
    held = {kind: held_frame(compared(found)) for kind, found in held_out.items()}
    parts = (
        ("card", "Model card", _model_card(bundle, selection, held_out)),
        ("errors", "Errors on rows left out of the fit", errors_html(bundle, held, held_out_notes(selection, held_out))),
        ("left-out", "Families and clocks left out whole", left_out_html(left_out)),
        ("predicted", "Predicted and measured", scatters_html(held)),
        ("dependence", "Error by size and clock", dependences_html(held)),
        ("residuals", "Residuals over time and temperature", dependences_html(held, RESIDUALS)),
        ("worst", "Largest errors", worst_html(held)),
        ("curves", "Voltage and idle power", _curves(bundle)),
        ("coefficients", "Coefficients", "".join(table.html() for table in coefficient_tables(bundle, list(bundle.groups)))),
        ("correlation", "Correlation of coefficients", _correlations(bundle)),
        ("instructions", "Instruction energies", "".join(table.html() for table in instruction_tables(bundle))),
        ("rejected", "Rejected rows", _rejected(selection)),
        ("domain", "What the fit has seen", _domain(bundle)),
        ("data", "Data sets", _datasets(bundle)),
    )
    shown = [(identity, title, body) for identity, title, body in parts if body]
    links = "".join(f'<li><a href="#{identity}">{escape(title)}</a></li>' for identity, title, _ in shown)
    before = f'<a class="skip" href="#main">Skip to the report</a><nav aria-label="Sections"><ul>{links}</ul></nav>'
    title = f"{bundle.name} {bundle.version}: fit of {bundle.gpu.name}"
    sections = (section_html(title, body, identity) for identity, title, body in shown)
    return UNPRINTABLE.sub("?", _numbered(page_html(title, sections, style=REPORT_STYLE, before=before)))


def _numbered(page: str) -> str:
    """The page with its charts numbered from 1, so that equal fits give equal pages."""
    known: dict[str, int] = {}

    def renamed(found: re.Match[str]) -> str:
        return re.sub(r"([crs]\d+)([td])", lambda name: f"chart{known.setdefault(name[1], len(known) + 1)}{name[2]}", found[0])

    return DRAWING.sub(renamed, page)


def _model_card(bundle: Bundle, selection: Selection, held_out: Mapping[str, pd.DataFrame]) -> str:
    origin, used = bundle.provenance, sum(dataset.used for dataset in selection.datasets)
    facts = {
        "GPU": f"{bundle.gpu.name} {bundle.gpu_uuid}".strip(),
        "Rows": f"{used:,} used of {selection.row_count:,} read",
        **_headlines(held_out),
        "SM clocks": f"{bundle.clocks_mhz[0]:g} to {bundle.clocks_mhz[1]:g} MHz",
        "Host launch cost": f"{bundle.host.launch_s * 1e6:.2f} µs per framework operator ({bundle.host.source})",
        "Power": "no power in the data" if bundle.power is None else f"voltage exponent {bundle.power.voltage_exponent:.2f}",
        "Completion of operator lists": bundle.completion or "none",
        "Made": f"{origin.created_utc}, wattprint {origin.wattprint_version}, commit {origin.commit or 'unknown'}, seed {origin.seed}",
        "Digest": bundle.digest,
    }
    simulated = '<p class="bad">Fitted on a simulated board: these numbers test the program, they say nothing about a GPU.</p>'
    notes = "".join(f"<li>{escape(note[:4000])}</li>" for note in dict.fromkeys((*bundle.notes, *selection.notes)))
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{text_html(value)}</dd>" for name, value in facts.items())
    return (simulated if bundle.simulated else "") + f"<dl>{pairs}</dl>" + (f"<ul>{notes}</ul>" if notes else "")


def _headlines(held_out: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """A line with error and coverage for each kind of held-out rows."""
    lines = {}
    for kind, found in held_out.items():
        row = summary_row(compared(found), kind)
        for quantity, errors in (("Latency", row.latency), ("Power", row.power)):
            if errors is not None:
                inside = "" if np.isnan(errors.coverage) else f"; 90 % intervals hold {errors.coverage:.0%}"
                figures = f"mean error {errors.mape:.2f} %, median {errors.median:.2f} %, bias {errors.bias:+.2f} %"
                lines[f"{quantity} of {kind}"] = f"{figures} on {errors.n:,} rows{inside}"
    return lines


def _rejected(selection: Selection) -> str:
    if not selection.rejected:
        return "<p>None.</p>"
    counts = [[reason, count, reason_meaning(reason)] for reason, count in count_reasons(selection.rejected).items()]
    listed = [[row.source, row.row, row.reason, "power" if row.power_only else "row", row.detail] for row in selection.rejected[:200]]
    rows = table_html(f"The first {200} rejected rows", ("data set", "row", "reason", "rejected", "value"), listed)
    summary = table_html("Rejected rows by reason", ("reason", "rows", "meaning"), counts)
    return f"{summary}<details><summary>The rows</summary>{rows}</details>"


def _domain(bundle: Bundle) -> str:
    """Fitted ranges; every estimate beyond them is marked as a forecast."""
    rows: list[list[Any]] = [[group, name, low, high] for group, fields in bundle.domain.items() for name, (low, high) in fields.items()]
    table = table_html("Range of each shape field; estimates beyond it carry a warning", ("group", "field", "from", "to"), rows)
    return f"<details><summary>Ranges of shapes</summary>{table}</details>" if table else ""


def _datasets(bundle: Bundle) -> str:
    rows = [[d.name, d.kind, d.rows, d.used, d.sha256] for d in bundle.provenance.datasets]
    return table_html("What the fit was made from", ("data set", "kind", "rows", "used", "SHA-256"), rows)


def _curves(bundle: Bundle) -> str:
    """Core voltage and idle power over the SM clock, with 90 % bands if their error is known."""
    figures = []
    if (voltage := bundle.voltage) is not None:
        std = np.full(len(voltage.voltage_v), np.nan) if voltage.std_v is None else np.array(voltage.std_v)
        figures.append(_curve("Core voltage", "V", voltage.sm_clock_mhz, voltage.voltage_v, std, voltage.source))
    if (idle := bundle.idle) is not None:
        std = np.full(len(idle.power_w), np.nan if idle.std_w is None else idle.std_w)
        figures.append(_curve("Idle power", "W", idle.sm_clock_mhz, idle.power_w, std, idle.source))
    return charts_html(figures)


def _curve(name: str, unit: str, clocks: Sequence[float], values: Sequence[float], std: Array, source: str) -> str:
    series = Series(name=name, x=np.array(clocks), y=np.array(values))
    half = NORMAL_90 * np.nan_to_num(std)
    band = Band(x=series.x, low=series.y - half, high=series.y + half)
    x = axis_over("SM clock [MHz]", [series.x], logarithmic=False)
    y = axis_over(f"{name.lower()} [{unit}]", [band.low, band.high], logarithmic=False)
    caption = f"{name} over the SM clock; the band holds 90 % where its error is known. {source[:LONGEST_CELL]}"
    rows = [list(line) for line in zip(series.x.tolist(), series.y.tolist(), std.tolist(), strict=True)]
    table = table_html(f"{name} over the SM clock", ("SM clock [MHz]", f"{name.lower()} [{unit}]", f"standard deviation [{unit}]"), rows)
    return figure_with_table(line_svg(name, caption, [series], x, y, bands=[band]), caption, table)


def _correlations(bundle: Bundle) -> str:
    """The strongest correlations of the fitted coefficients of latency and of power."""
    latency, power = bundle.latency_parameters, bundle.power
    found = [("latency", latency.names, latency.covariance)]
    found += [] if power is None else [("power", power.terms, power.covariance)]
    body = ""
    for quantity, names, covariance in found:
        matrix = np.array(covariance, dtype=np.float64).reshape(len(names), len(names))
        spread = np.sqrt(np.maximum(np.diag(matrix), 0.0))
        first, second = np.triu_indices(len(names), 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = np.nan_to_num(matrix[first, second] / (spread[first] * spread[second]))
        order = np.argsort(-np.abs(correlation), kind="stable")[:24]
        rows = [[names[first[i]], names[second[i]], float(correlation[i])] for i in order.tolist() if correlation[i]]
        body += table_html(f"Strongest correlations of {quantity} coefficients", ("coefficient", "with", "correlation"), rows)
    return body
