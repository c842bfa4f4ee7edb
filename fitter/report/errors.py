"""The report's part about held-out rows: predicted over measured, and the worst rows.

Charts bin their points: a report of a million rows is as large as one of ten thousand.  Colours come from the page; title and
description of a chart are for screen readers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from estimator.display.charts import Series, axis_over, bars_svg, scatter_svg
from estimator.display.pages import figure_html
from fitter.validate.predictions import LABEL, PERCENT, QUANTITIES, kind_text
from fitter.validate.tables import Shown

MOST_FAMILIES: Final = 12
"""Families in the chart of errors."""

UNITS: Final = {"latency": "s", "power": "W", "energy": "J"}


def held_frame(found: pd.DataFrame) -> pd.DataFrame:
    """Held-out predictions with energy [J] and the error of every quantity in percent (error_Q)."""
    frame = found.assign(**{f"{side}_energy": found[f"{side}_latency"] * found[f"{side}_power"] for side in ("measured", "predicted")})
    errors = {f"error_{quantity}": (frame[f"predicted_{quantity}"] / frame[f"measured_{quantity}"] - 1.0) * PERCENT for quantity in UNITS}
    return frame.assign(**errors).replace([np.inf, -np.inf], np.nan)


def scatters_html(held: Mapping[str, pd.DataFrame]) -> str:
    """Predicted over measured latency, power and energy; "" without rows."""
    joined = "".join(_scatter(held, quantity) for quantity in UNITS)
    return f'<div class="charts">{joined}</div>' if joined else ""


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


def family_errors_html(held: Mapping[str, pd.DataFrame]) -> str:
    """Mean error of latency and power by family of kernels, the largest first; "" without rows."""
    rows = pd.concat([pd.DataFrame(), *held.values()], ignore_index=True)
    if rows.empty:
        return ""
    columns = {f"error_{quantity}": quantity for quantity in QUANTITIES}
    errors = rows[["family", *columns]].set_index("family").abs().groupby(level=0).mean().rename(columns=columns)
    shown = errors.loc[errors.max(axis=1).sort_values(ascending=False).index[:MOST_FAMILIES]]
    caption = "Mean error of held-out rows by family; whole models are the family workload."
    bars = {str(family): dict(zip(QUANTITIES, row, strict=True)) for family, row in zip(shown.index, shown.to_numpy(), strict=True)}
    return figure_html(bars_svg("Error by family", caption, bars, "%"), caption)


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
