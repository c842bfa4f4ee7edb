"""Charts as inline SVG: points, lines, bands and bars that need no script, no network and follow the page's colours.

Colours come from the page's CSS (classes `p0`, `p1`, … for points, `l0`, … for lines, `b0`, … for areas), so that one
drawing serves light and dark.  Every chart has a title and a description for screen readers.
"""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import count
from math import ceil, floor, log10
from typing import Final

import numpy as np

from estimator.vocabulary.quantities import TINY, Array, BoolArray, IntArray
from estimator.vocabulary.values import frozen

WIDTH: Final = 460.0
HEIGHT: Final = 340.0
LEFT: Final = 68.0
RIGHT: Final = 14.0
TOP: Final = 14.0
BOTTOM: Final = 48.0
"""Size and margins of a chart [SVG unit, 1 px at full width]."""

MOST_POINTS: Final = 1500
"""Most points of a series; more are thinned evenly over the sorted values, so that the page stays small and keeps the extremes."""

_numbers = count()

EDGE_SPACE: Final = 12.0
"""Distance from the right edge below which a label ends at its tick [pixel]."""
LETTER_WIDTH: Final = 7.0
"""Width of a wide letter in the charts' text [pixel]."""
LEGEND_LINE: Final = 18.0


@frozen
class Series:
    """Points or a line of one name: x and y of shape (n,); `band`: the low and the high edge of the area around a line."""

    name: str
    x: Array
    y: Array
    band: tuple[Array, Array] | None = None


@frozen
class Axis:
    """A linear or logarithmic axis from `low` to `high`, with a label that names the unit."""

    label: str
    low: float
    high: float
    logarithmic: bool

    def place(self, values: Array) -> Array:
        """Positions of values, 0 at `low`, 1 at `high`."""
        low, high = self.low, self.high
        if self.logarithmic:
            values, low, high = np.log10(values), log10(low), log10(high)
        return (values - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values along the axis."""
        if self.logarithmic:
            first, last = floor(log10(self.low)), ceil(log10(self.high))
            step = max(1, ceil((last - first) / 7))
            return [10.0**e for e in range(first, last + 1, step)]
        raw = (self.high - self.low) / 5.0
        unit = 10.0 ** floor(log10(raw))
        step_size = next(unit * factor for factor in (1.0, 2.0, 5.0, 10.0) if unit * factor >= raw)
        first_tick = ceil(self.low / step_size)
        return [step_size * i for i in range(first_tick, floor(self.high / step_size + 1e-9) + 1)]


def axis_over(label: str, values: Sequence[Array], *, logarithmic: bool = False) -> Axis:
    """An axis that holds all values; whole decades when logarithmic."""
    joined = np.concatenate([v[np.isfinite(v)] for v in values]) if values else np.zeros(0)
    joined = joined[joined > 0] if logarithmic else joined
    low, high = (float(joined.min()), float(joined.max())) if joined.size else (1.0, 10.0)
    if logarithmic:
        first = floor(log10(low))
        low, high = 10.0**first, 10.0 ** max(ceil(log10(high)), first + 1)
    else:
        margin = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
        low, high = max(low - margin, 0.0) if low >= 0 else low - margin, high + margin
    return Axis(label=label, low=low, high=high, logarithmic=logarithmic)


def scatter_svg(title: str, description: str, series: Sequence[Series], x: Axis, y: Axis, *, diagonal: bool = False) -> str:
    """A chart of points, at most MOST_POINTS a series; with the line y = x if both axes show the same quantity."""
    body = ""
    ends = np.array([max(x.low, y.low), min(x.high, y.high)])
    if diagonal and ends[0] < ends[1]:
        (x1, x2), (y1, y2) = _left(x, ends), _top(y, ends)
        body += f'<line class="diagonal" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    for number, part in enumerate(series):
        kept = _thinned(part)
        points = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(_left(x, part.x[kept]), _top(y, part.y[kept]), strict=True))
        body += f'<path class="p{number}" d="{points}"/>' if points else ""
    return _frame(title, description, body, x, y, [part.name for part in series], "p")


def line_svg(title: str, description: str, series: Sequence[Series], x: Axis, y: Axis, more: int) -> str:
    """A chart of lines through points in ascending x with their bands, broken at values that are not finite; more: lines left out."""
    areas, body = "", ""
    for number, line in enumerate(series):
        across = line.x
        if line.band is not None:
            low, high = line.band
            for part in _stretches(np.isfinite(low) & np.isfinite(high)):
                corners = [*_corners(x, y, across[part], high[part]), *reversed(_corners(x, y, across[part], low[part]))]
                areas += f'<polygon class="b{number}" points="{" ".join(corners)}"/>'
        for part in _stretches(np.isfinite(across) & np.isfinite(line.y)):
            body += f'<polyline class="l{number}" points="{" ".join(_corners(x, y, across[part], line.y[part]))}"/>'
    return _frame(title, description, areas + body, x, y, [part.name for part in series] + [f"{more} more"] * (more > 0), "l")


def _stretches(finite: BoolArray) -> list[IntArray]:
    """Indices of the stretches of a line between values that are not finite."""
    breaks = np.flatnonzero(np.diff(finite.astype(np.int8)) != 0) + 1
    return [part for part in np.split(np.arange(len(finite)), breaks) if len(part) and finite[part[0]]]


def _thinned(series: Series) -> IntArray:
    """Indices of at most MOST_POINTS finite points, evenly over their error, so that the worst stay."""
    known = np.flatnonzero(np.isfinite(series.x) & np.isfinite(series.y))
    if len(known) <= MOST_POINTS:
        return known
    order = np.argsort(series.x[known] / np.maximum(series.y[known], 1e-300), kind="stable")
    return known[order[np.linspace(0, len(known) - 1, MOST_POINTS).round().astype(np.int64)]]


def _left(x: Axis, values: Array) -> Array:
    """Distances from the left of the drawing [SVG unit]."""
    return LEFT + x.place(values) * (WIDTH - LEFT - RIGHT)


def _top(y: Axis, values: Array) -> Array:
    """Distances from the top of the drawing [SVG unit]."""
    return HEIGHT - BOTTOM - y.place(values) * (HEIGHT - TOP - BOTTOM)


def _corners(x: Axis, y: Axis, across: Array, up: Array) -> list[str]:
    return [f"{left:.1f},{top:.1f}" for left, top in zip(_left(x, across), _top(y, up), strict=True)]


def _frame(title: str, description: str, body: str, x: Axis, y: Axis, names: Sequence[str], kind: str) -> str:
    """Axes, grid, labels and legend around a drawing."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    grid, texts = "", ""
    for tick, at in zip(x.ticks(), _left(x, np.array(x.ticks())), strict=True):
        grid += f'<line x1="{at:.1f}" y1="{TOP:g}" x2="{at:.1f}" y2="{bottom:g}"/>'
        anchor = "end" if at > right - EDGE_SPACE else "middle"
        texts += f'<text x="{at:.1f}" y="{bottom + 16:g}" text-anchor="{anchor}">{tick:.5g}</text>'
    for tick, at in zip(y.ticks(), _top(y, np.array(y.ticks())), strict=True):
        grid += f'<line x1="{LEFT:g}" y1="{at:.1f}" x2="{right:g}" y2="{at:.1f}"/>'
        texts += f'<text x="{LEFT - 6:g}" y="{at + 4:.1f}" text-anchor="end">{tick:.5g}</text>'
    texts += f'<text x="{(LEFT + right) / 2:g}" y="{HEIGHT - 10:g}" text-anchor="middle">{escape(x.label)}</text>'
    middle = (TOP + bottom) / 2
    texts += f'<text transform="translate(12 {middle:g}) rotate(-90)" text-anchor="middle">{escape(y.label)}</text>'
    legend, above = _legend(names, kind)
    drawing = f'<g transform="translate(0 {above:g})"><g class="grid">{grid}</g><g class="data">{body}</g><g class="text">{texts}</g></g>'
    return _svg(title, description, f'{drawing}<g class="text">{legend}</g>', WIDTH, HEIGHT + above)


def _svg(title: str, description: str, drawing: str, width: float, height: float) -> str:
    """A drawing with its title and description."""
    number = next(_numbers)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="c{number}t c{number}d">'
        f'<title id="c{number}t">{escape(title)}</title><desc id="c{number}d">{escape(description)}</desc>{drawing}</svg>'
    )


def _legend(names: Sequence[str], kind: str) -> tuple[str, float]:
    """A legend of several series in lines above a drawing, and its height."""
    if len(names) < 2:
        return "", 0.0
    legend, left, line = "", LEFT, 0
    for i, name in enumerate(names):
        width = 20.0 + LETTER_WIDTH * len(name) + 14.0
        if left > LEFT and left + width > WIDTH:
            left, line = LEFT, line + 1
        at = TOP + LEGEND_LINE * line
        legend += f'<path class="{kind}{i}" d="M{left:g} {at - 4:g}h{0 if kind == "p" else 14}"/>'
        legend += f'<text x="{left + 20.0:g}" y="{at:g}">{escape(name)}</text>'
        left += width
    return legend, LEGEND_LINE * (line + 1)


SHARES_WIDTH: Final = 760.0
BAR_HEIGHT: Final = 30.0
"""Size of a bar of shares [SVG unit]."""
BARS_LEFT: Final = 120.0
BARS_RIGHT: Final = 80.0
"""Space for the names and the values of bars [SVG unit]."""


COLOURS: Final = {
    "DRAM": 0, "L2": 1, "tensor": 2, "tensor cores": 2, "CUDA": 3, "CUDA cores": 3, "special functions": 4, "shared": 5, "links": 5,
    "idle": 6, "latency": 6, "active": 7, "launch": 7, "busy": 8, "tile quantisation": 8, "leakage": 9, "load imbalance": 9,
    "waiting for the host": 10,
}  # fmt: skip
"""Colour of each part of time or energy: a module has the same one in every chart."""


def shares_svg(title: str, description: str, parts: Mapping[str, float], unit: str) -> str:
    """One horizontal bar of parts as shares of their sum, each with its value as a tooltip, above a legend."""
    total = sum(parts.values()) or 1.0
    known = {name: (COLOURS[name], value) for name, value in parts.items() if value > 0.0}
    body, legend, start = "", "", 0.0
    for place, (name, (colour, value)) in enumerate(known.items()):
        width = SHARES_WIDTH * value / total
        tip = escape(f"{name}: {value:.4g} {unit}, {value / total:.1%}")
        body += f'<rect class="s s{colour}" x="{start:.2f}" y="0" width="{width:.2f}" height="{BAR_HEIGHT:g}"><title>{tip}</title></rect>'
        start += width
        left, top = SHARES_WIDTH / 4 * (place % 4), BAR_HEIGHT + 10.0 + LEGEND_LINE * (place // 4)
        legend += f'<rect class="s s{colour}" x="{left:g}" y="{top:g}" width="12" height="12"/>'
        legend += f'<text x="{left + 18:g}" y="{top + 11:g}">{escape(name)}, {value / total:.1%}</text>'
    height = BAR_HEIGHT + 14.0 + LEGEND_LINE * -(-len(known) // 4)
    return _svg(title, description, f'<g class="data">{body}</g><g class="text">{legend}</g>', SHARES_WIDTH, height)


def bars_svg(title: str, description: str, rows: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Horizontal bars from zero: every row has the same names, each with a colour; nan has no bar."""
    most = np.nanmax([value for bars in rows.values() for value in bars.values()], initial=TINY)
    scale = (SHARES_WIDTH - BARS_LEFT - BARS_RIGHT) / most
    legend, top = _legend(list(next(iter(rows.values()))), "p")
    body, texts, top = "", legend, top + 6.0
    for row, bars in rows.items():
        texts += f'<text x="{BARS_LEFT - 8:g}" y="{top + LEGEND_LINE - 5:g}" text-anchor="end">{escape(row)}</text>'
        for number, value in enumerate(bars.values()):
            if np.isfinite(value):
                body += f'<rect class="s s{number}" x="{BARS_LEFT:g}" y="{top + 3:g}" width="{scale * value:.1f}" height="14"/>'
                texts += f'<text x="{BARS_LEFT + scale * value + 6:.1f}" y="{top + LEGEND_LINE - 5:g}">{value:.3g} {escape(unit)}</text>'
            top += LEGEND_LINE
        top += 6.0
    return _svg(title, description, f'<g class="data">{body}</g><g class="text">{texts}</g>', SHARES_WIDTH, top)
