"""The report's part about held-out rows: prediction errors, their dependences, and the worst rows.

Everything is columns and bins: a report of a million rows is as large as one of ten thousand.  As in `estimator.display.charts`, colours
come from the page (`report.html`), and title and description are for screen readers.
"""

import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle
from estimator.display.charts import Axis, Band, Series, axis_over, line_svg, scatter_svg
from estimator.display.pages import table_html
from estimator.vocabulary.quantities import Array
from fitter.report.text import stored_errors
from fitter.validate.predictions import LABEL, PERCENT, QUANTITIES, Label
from fitter.validate.tables import FIGURES, kind_text

MOST_BINS: Final = 24
"""Most bins of one chart; up to this many distinct values, such as clocks, have a bin each."""

QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of signed errors in every bin: ends, quarters and the middle."""

NOMINAL: Final = {50.0: 0.6745, 68.0: 0.9945, 80.0: 1.2816, 90.0: 1.6449, 95.0: 1.9600, 99.0: 2.5758}
"""Shares of a normal distribution [percent], and the number of standard deviations on each side that hold them."""

UNITS: Final = {"latency": "s", "power": "W", "energy": "J"}

BIN_HEAD: Final = ("from", "to", "rows", "5 %", "25 %", "median", "75 %", "95 %", "median magnitude")

DEPENDENCES: Final = (("measured time", "s", "measured_latency", True), ("SM clock", "MHz", "clock", False))
RESIDUALS: Final = (("time since the first row", "h", "hours", False), ("temperature", "°C", "temperature", False))
"""Quantities on the x axis of error charts: name, unit, column, and whether the axis is logarithmic."""


def held_frame(found: pd.DataFrame) -> pd.DataFrame:
    """Held-out predictions with energy [J], the error of every quantity in percent (error_Q), and hours since the first row."""
    energy = {f"{column}_energy": found[f"{column}_latency"] * found[f"{column}_power"] for column in ("measured", "predicted")}
    frame = found.assign(**energy, hours=(found["started_s"] - found["started_s"].min()) / 3600.0)
    errors = {f"error_{quantity}": (frame[f"predicted_{quantity}"] / frame[f"measured_{quantity}"] - 1.0) * PERCENT for quantity in UNITS}
    return frame.assign(**errors).replace([np.inf, -np.inf], np.nan)


def binned(values: Array, errors: Array, *, logarithmic: bool = False) -> pd.DataFrame:
    """Signed errors by a value, shapes (n,): one bin for each value if there are few, else bins of equal width or equal ratio.

    Each row is a non-empty bin: low, high, place (where it is drawn), count, the errors' QUANTILES, and their median magnitude.
    """
    known = np.isfinite(values) & np.isfinite(errors) & ((values > 0.0) | (not logarithmic))
    frame = pd.DataFrame({"value": values[known], "error": errors[known]})
    place = np.log(frame["value"]) if logarithmic else frame["value"]
    separate = frame["value"].nunique() <= MOST_BINS
    groups = frame.groupby("value" if separate else pd.cut(place, MOST_BINS, labels=False), sort=True)
    found = groups.agg(low=("value", "min"), high=("value", "max"), count=("value", "size"))
    found["place"] = np.sqrt(found["low"]) * np.sqrt(found["high"]) if logarithmic else 0.5 * (found["low"] + found["high"])
    for share in QUANTILES:
        found[share] = groups["error"].quantile(share)
    found["magnitude"] = groups["error"].agg(lambda own: own.abs().median())
    return found.reset_index(drop=True)


def coverage_of(held: pd.DataFrame, quantity: str) -> Array | None:
    """Share of rows inside their stated intervals, for each of NOMINAL [percent]; None if no interval is stated."""
    ratio = held[f"measured_{quantity}"] / held[f"predicted_{quantity}"]
    score = (ratio.map(math.log).abs() / held[f"std_{quantity}"]).dropna()
    return np.array([float((score <= half).mean()) * PERCENT for half in NOMINAL.values()]) if len(score) else None


def bins_svg(title: str, description: str, bins: pd.DataFrame, label: str, *, logarithmic: bool = False) -> str:
    """Chart of signed errors: a line through medians, bands from the 5th to the 95th percentile and over the middle half."""
    place, quantiles = bins["place"].to_numpy(), bins[list(QUANTILES)].to_numpy()
    x = axis_over(label, [place], logarithmic=logarithmic)
    y = axis_over("predicted / measured - 1 [%]", [quantiles.ravel(), np.zeros(1)], logarithmic=False)
    bands = [Band(x=place, low=quantiles[:, i], high=quantiles[:, -1 - i]) for i in (0, 1)]
    lines = [Series(name="median", x=place, y=quantiles[:, 2]), Series(name="no error", x=np.array([x.low, x.high]), y=np.zeros(2))]
    return line_svg(title, description, lines, x, y, bands=bands)


def figure_with_table(svg: str, caption: str, table: str) -> str:
    """A chart with its caption, and its data as a table for users who cannot see charts."""
    below = f"<details><summary>The same as a table</summary>{table}</details>" if table else ""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption>{below}</figure>"


def charts_html(figures: Iterable[str]) -> str:
    """Charts side by side if there is room; "" without charts."""
    joined = "".join(figures)
    return f'<div class="charts">{joined}</div>' if joined else ""


def errors_html(bundle: Bundle, held: Mapping[str, pd.DataFrame], notes: Mapping[Label, str]) -> str:
    """Held-out errors as stored in the bundle, and the coverage of stated intervals.

    notes: as from `held_out_notes`.
    """
    body = "" if bundle.errors else "<p>No rows were held out: nothing is known about how wrong this bundle is.</p>"
    head = ("family", "operator", "precision", "rows", "mean", "median", "95th percentile", "bias", "coverage")
    for quantity in QUANTITIES:
        known = [(row, errors) for row in stored_errors(bundle) if (errors := getattr(row, quantity)) is not None]
        rows = [
            [*row.label[1:], e.n, *(round(getattr(e, name), 2) for name in FIGURES), round(PERCENT * e.coverage, 2)] for row, e in known
        ]
        body += table_html(f"{quantity.capitalize()} error in percent; coverage of stated 90 % intervals", head, rows)
    lines = (f"{kind_text(label[1:])}: {reason}" for label, reason in notes.items())
    return body + "".join(f'<p class="dim">{escape(line)}</p>' for line in lines) + charts_html([_coverage(held)])


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
    rows = [[name, *shares.round(2).tolist()] for name, shares in known.items()]
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
    return table_html(caption, BIN_HEAD, [[low, high, int(count), *np.round(rest, 2).tolist()] for low, high, count, *rest in rows])


def dependences_html(held: Mapping[str, pd.DataFrame], over: Iterable[tuple[str, str, str, bool]] = DEPENDENCES) -> str:
    """Error over columns of the held-out rows."""
    figures = []
    for kind, rows in held.items():
        for what, unit, column, logarithmic in over:
            for quantity in QUANTITIES:
                bins = binned(rows[column].to_numpy(), rows[f"error_{quantity}"].to_numpy(), logarithmic=logarithmic)
                if len(bins):
                    title = f"{quantity.capitalize()} error of {kind} over {what}"
                    caption = f"{title}, signed: bands 5 to 95 % and middle half, line through medians."
                    svg = bins_svg(title, caption, bins, f"{what} [{unit}]", logarithmic=logarithmic)
                    figures.append(figure_with_table(svg, caption, _bin_table(f"{title} [{unit}], in percent", bins)))
    return charts_html(figures)


def worst_html(held: Mapping[str, pd.DataFrame]) -> str:
    """Held-out rows with the largest errors, with their conditions."""
    if not held:
        return ""
    rows, body = pd.concat(list(held.values()), ignore_index=True), ""
    head = ("row", "kind", "what ran", "SM clock [MHz]", "measured [{0}]", "predicted [{0}]", "error [%]")
    for quantity in QUANTITIES:
        columns = ["origin", "name", "what", "clock", f"measured_{quantity}", f"predicted_{quantity}", f"error_{quantity}"]
        far = rows.loc[rows[f"error_{quantity}"].abs().sort_values(ascending=False, kind="stable").dropna().index[:12]]
        far = far.assign(name=[kind_text(label) for label in far[LABEL[1:]].itertuples(index=False)])[columns]
        title = f"Held-out rows whose {quantity} is furthest off"
        lines = far.round({f"error_{quantity}": 2}).to_numpy().tolist()
        body += table_html(title, [name.format(UNITS[quantity]) for name in head], lines)
    return body
