"""The report's part about held-out rows: charts of their errors, and the worst rows.

Everything is columns and bins: a report of a million rows is as large as one of ten thousand.  Colours come from the page; title and
description of a chart are for screen readers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from estimator.display.charts import Band, Series, axis_over, line_svg, scatter_svg
from estimator.display.pages import figure_html
from estimator.vocabulary.quantities import Array
from fitter.validate.predictions import LABEL, PERCENT, QUANTITIES
from fitter.validate.tables import Shown, kind_text

MOST_BINS: Final = 24
"""Most bins of one chart; up to this many distinct values, such as clocks, have a bin each."""

QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of signed errors in every bin: ends, quarters and the middle."""

UNITS: Final = {"latency": "s", "power": "W", "energy": "J"}

DEPENDENCES: Final = (("measured time [s]", "measured_latency", True), ("SM clock [MHz]", "clock", False))
"""Quantities on the x axis of error charts: label, column, and whether the axis is logarithmic."""


def held_frame(found: pd.DataFrame) -> pd.DataFrame:
    """Held-out predictions with energy [J] and the error of every quantity in percent (error_Q)."""
    frame = found.assign(**{f"{side}_energy": found[f"{side}_latency"] * found[f"{side}_power"] for side in ("measured", "predicted")})
    errors = {f"error_{quantity}": (frame[f"predicted_{quantity}"] / frame[f"measured_{quantity}"] - 1.0) * PERCENT for quantity in UNITS}
    return frame.assign(**errors).replace([np.inf, -np.inf], np.nan)


def binned(values: Array, errors: Array, *, logarithmic: bool = False) -> pd.DataFrame:
    """Signed errors by a value, shapes (n,): one bin for each value if there are few, else bins of equal width or equal ratio.

    Each row is a non-empty bin: place (where it is drawn), count, and the errors' QUANTILES.
    """
    known = np.isfinite(values) & np.isfinite(errors) & ((values > 0.0) | (not logarithmic))
    frame = pd.DataFrame({"place": np.log(values[known]) if logarithmic else values[known], "error": errors[known]})
    separate = frame["place"].nunique() <= MOST_BINS
    groups = frame.groupby("place" if separate else pd.cut(frame["place"], MOST_BINS, labels=False), sort=True)
    middle = groups["place"].median()
    found = pd.DataFrame({"place": np.exp(middle) if logarithmic else middle, "count": groups.size()})
    return found.assign(**{str(share): groups["error"].quantile(share) for share in QUANTILES}).reset_index(drop=True)


def charts_html(figures: Iterable[str]) -> str:
    """Charts side by side if there is room; "" without charts."""
    joined = "".join(figures)
    return f'<div class="charts">{joined}</div>' if joined else ""


def scatters_html(held: Mapping[str, pd.DataFrame]) -> str:
    """Predicted over measured latency, power and energy."""
    return charts_html(_scatter(held, quantity) for quantity in UNITS)


def _scatter(held: Mapping[str, pd.DataFrame], quantity: str) -> str:
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


def dependences_html(held: Mapping[str, pd.DataFrame]) -> str:
    """Error over size and clock of the held-out rows."""
    figures = []
    for kind, rows in held.items():
        for label, column, logarithmic in DEPENDENCES:
            for quantity in QUANTITIES:
                bins = binned(rows[column].to_numpy(), rows[f"error_{quantity}"].to_numpy(), logarithmic=logarithmic)
                if len(bins):
                    title = f"{quantity.capitalize()} error of {kind} over {label}"
                    figures.append(_bins_figure(title, label, bins, logarithmic))
    return charts_html(figures)


def _bins_figure(title: str, label: str, bins: pd.DataFrame, logarithmic: bool) -> str:
    """Chart of signed errors: a line through medians, bands from the 5th to the 95th percentile and over the middle half."""
    caption = f"{title}, signed: bands 5 to 95 % and middle half, line through medians."
    place, quantiles = bins["place"].to_numpy(), bins[list(map(str, QUANTILES))].to_numpy()
    x = axis_over(label, [place], logarithmic=logarithmic)
    y = axis_over("predicted / measured - 1 [%]", [quantiles.ravel(), np.zeros(1)], logarithmic=False)
    bands = [Band(x=place, low=quantiles[:, i], high=quantiles[:, -1 - i]) for i in (0, 1)]
    lines = [Series(name="median", x=place, y=quantiles[:, 2]), Series(name="no error", x=np.array([x.low, x.high]), y=np.zeros(2))]
    return figure_html(line_svg(title, caption, lines, x, y, bands=bands), caption)


def worst_html(held: Mapping[str, pd.DataFrame]) -> str:
    """Held-out rows with the largest errors, with their conditions."""
    rows, body = pd.concat([pd.DataFrame(), *held.values()], ignore_index=True), ""
    for quantity in QUANTITIES if len(rows) else ():
        unit, error = UNITS[quantity], f"error_{quantity}"
        far = rows.loc[rows[error].abs().sort_values(ascending=False, kind="stable").dropna().index[:12]].round({error: 2})
        kinds = [kind_text(label) for label in far[LABEL[1:]].itertuples(index=False)]
        columns = ["origin", "kind", "what", "clock", f"measured_{quantity}", f"predicted_{quantity}", error]
        head = ("row", "kind", "what ran", "SM clock [MHz]", f"measured [{unit}]", f"predicted [{unit}]", "error [%]")
        lines = far.assign(kind=kinds)[columns].to_numpy().tolist()
        body += Shown(title=f"Held-out rows whose {quantity} is furthest off", head=head, rows=lines).html()
    return body
