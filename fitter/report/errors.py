"""The report's part about rows left out of the fit: how wrong predictions are, where, and which rows are worst."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle
from estimator.display.charts import Axis, Series, axis_over, line_svg, scatter_svg
from estimator.display.pages import table_html
from fitter.report.charts import bins_svg
from fitter.report.rows import NOMINAL, QUANTILES, binned, coverage_of
from fitter.validate.notes import NO_INTERVAL
from fitter.validate.predictions import PERCENT, Label

MOST_WORST: Final = 12
"""Rows of the largest error that are listed for each quantity."""

UNITS: Final = {"latency": "s", "power": "W", "energy": "J"}
QUANTITIES: Final = ("latency", "power")

BIN_HEAD: Final = ("from", "to", "rows", "5 %", "25 %", "median", "75 %", "95 %", "median magnitude")

DEPENDENCES: Final = (("measured time", "s", "measured_latency", True), ("SM clock", "MHz", "clock", False))
RESIDUALS: Final = (("time since the first row", "h", "hours", False), ("temperature", "°C", "temperature", False))
"""What errors are shown over: name, unit, column, and whether its axis is logarithmic."""


def figure_with_table(svg: str, caption: str, table: str, *, wide: bool = False) -> str:
    """A chart, its caption, and the same as a table for those who do not see charts."""
    kind = ' class="wide scroll" tabindex="0" role="region" aria-label="' + escape(caption) + '"' if wide else ""
    below = f"<details><summary>The same as a table</summary>{table}</details>" if table else ""
    return f"<figure><div{kind}>{svg}</div><figcaption>{escape(caption)}</figcaption>{below}</figure>"


def charts_html(figures: Iterable[str]) -> str:
    """Charts side by side where there is room; nothing without any."""
    joined = "".join(figures)
    return f'<div class="charts">{joined}</div>' if joined else ""


def in_percent(value: float) -> float:
    """A percentage as tables show it: to a hundredth, so that small ones do not look more exact than large ones."""
    return round(value, 2)


def errors_html(bundle: Bundle, held: Mapping[str, pd.DataFrame], notes: Mapping[Label, str]) -> str:
    """Held-out errors as stored in the bundle, and whether stated intervals hold what they should.

    notes: as from `held_out_notes`.
    """
    body = "" if bundle.errors else "<p>No rows were held out: nothing is known about how wrong this bundle is.</p>"
    head = ("family", "operator", "precision", "rows", "mean", "median", "95th percentile", "bias", "coverage")
    for quantity in QUANTITIES:
        known = [row for row in bundle.errors if row[quantity]]
        rows = [[row["family"], row["operator"], row["precision"], row[quantity]["n"], *_stored(row[quantity])] for row in known]
        body += table_html(f"{quantity.capitalize()} error in percent; coverage of stated 90 % intervals", head, rows)
    lines = [f"{' '.join(filter(None, label[1:]))}: {reason}" for label, reason in notes.items()]
    if any(row[quantity] and row[quantity]["coverage"] is None for row in bundle.errors for quantity in QUANTITIES):
        lines.append(NO_INTERVAL)
    return body + "".join(f'<p class="dim">{escape(line)}</p>' for line in lines) + charts_html([_coverage(held)])


def _stored(errors: Mapping[str, Any]) -> list[float]:
    """Figures of one quantity; coverage, a share, as a percentage."""
    values = {name: np.nan if errors[name] is None else float(errors[name]) for name in ("mape", "median", "p95", "bias", "coverage")}
    return [in_percent(value * (PERCENT if name == "coverage" else 1.0)) for name, value in values.items()]


def _coverage(held: Mapping[str, pd.DataFrame]) -> str:
    found = {f"{quantity} of {kind}": coverage_of(rows, quantity) for kind, rows in held.items() for quantity in QUANTITIES}
    known = {name: shares for name, shares in found.items() if shares is not None}
    if not known:
        return ""
    nominal = np.array(list(NOMINAL))
    series = [Series(name=name, x=nominal, y=shares) for name, shares in {**known, "as stated": nominal}.items()]
    low = min(45.0, *(float(shares.min()) for shares in known.values()))
    x = Axis(label="share that intervals should hold [%]", low=45.0, high=100.0, logarithmic=False)
    y = Axis(label="share that they hold [%]", low=low, high=100.0, logarithmic=False)
    caption = "Coverage: how many held-out rows lie inside their stated intervals. Below the line of equality intervals are too narrow."
    rows = [[name, *map(in_percent, shares.tolist())] for name, shares in known.items()]
    table = table_html("Rows inside their stated intervals [%]", ("quantity", *(f"{share:g} %" for share in NOMINAL)), rows)
    return figure_with_table(line_svg("Coverage of stated intervals", caption, series, x, y), caption, table)


def scatters_html(held: Mapping[str, pd.DataFrame]) -> str:
    """Predicted over measured latency, power and energy."""
    return charts_html(_scatter(held, quantity) for quantity in UNITS)


def _scatter(held: Mapping[str, pd.DataFrame], quantity: str) -> str:
    columns = [f"measured_{quantity}", f"predicted_{quantity}"]
    known = {name: rows.loc[((rows[columns] > 0.0) & (rows[columns] < np.inf)).all(axis=1)] for name, rows in held.items()}
    series = [Series(name=name, x=rows[columns[0]].to_numpy(), y=rows[columns[1]].to_numpy()) for name, rows in known.items() if len(rows)]
    if not series:
        return ""
    logarithmic, unit = quantity != "power", UNITS[quantity]
    both = axis_over("", [values for s in series for values in (s.x, s.y)], logarithmic=logarithmic)
    x, y = (
        Axis(label=f"{side} {quantity} [{unit}]", low=both.low, high=both.high, logarithmic=logarithmic)
        for side in ("measured", "predicted")
    )
    count = sum(len(s.x) for s in series)
    caption = f"Predicted over measured {quantity} of {count:,} held-out rows; the dashed line is equality."
    joined = np.concatenate([s.x for s in series]), np.concatenate([s.y for s in series])
    bins = binned(joined[0], (joined[1] / joined[0] - 1.0) * PERCENT, logarithmic=True)
    svg = scatter_svg(f"{quantity.capitalize()}: predicted and measured", caption, series, x, y, diagonal=True)
    return figure_with_table(svg, caption, _bin_table(f"Error by measured {quantity} [{unit}], error in percent", bins))


def _bin_table(caption: str, bins: pd.DataFrame) -> str:
    rows = bins[["low", "high", "count", *QUANTILES, "magnitude"]].to_numpy().tolist()
    return table_html(caption, BIN_HEAD, [[low, high, int(count), *map(in_percent, rest)] for low, high, count, *rest in rows])


def dependences_html(held: Mapping[str, pd.DataFrame], over: Iterable[tuple[str, str, str, bool]] = DEPENDENCES) -> str:
    """Error over columns of the held-out rows."""
    figures = []
    for kind, rows in held.items():
        for what, unit, column, logarithmic in over:
            for quantity in QUANTITIES:
                bins = binned(rows[column].to_numpy(), rows[f"error_{quantity}"].to_numpy(), logarithmic=logarithmic)
                if len(bins):
                    title = f"{quantity.capitalize()} error of {kind} over {what}"
                    caption = f"{title}, signed: whisker 5 to 95 %, box middle half, line through medians."
                    svg = bins_svg(title, caption, bins, f"{what} [{unit}]", logarithmic=logarithmic)
                    figures.append(figure_with_table(svg, caption, _bin_table(f"{title} [{unit}], in percent", bins)))
    return charts_html(figures)


def worst_html(held: Mapping[str, pd.DataFrame]) -> str:
    """Held-out rows with the largest errors, with what is known of them."""
    if not held:
        return ""
    rows, body = pd.concat(list(held.values()), ignore_index=True), ""
    for quantity, unit in (("latency", "s"), ("power", "W")):
        far = rows[f"error_{quantity}"].abs().sort_values(ascending=False, kind="stable").dropna().index[:MOST_WORST]
        columns = ["origin", "name", "what", "clock", f"measured_{quantity}", f"predicted_{quantity}", f"error_{quantity}"]
        lines = [[*line, in_percent(error)] for *line, error in rows.loc[far, columns].to_numpy().tolist()]
        head = ("row", "kind", "what ran", "SM clock [MHz]", f"measured [{unit}]", f"predicted [{unit}]", "error [%]")
        body += table_html(f"Held-out rows whose {quantity} is furthest off", head, lines)
    return body
