"""Charts of a fit's report, each as a few paths however many rows it shows: boxes, densities, correlations.

As in `estimator.display.charts`, colours come from the page (REPORT_STYLE), and title and description are for screen readers.
"""

from collections.abc import Sequence
from html import escape
from itertools import count
from typing import Final

import numpy as np

from estimator.display.charts import HEIGHT, MOST_POINTS, WIDTH, Axis, Series, axis_over, frame_svg, pixel_places, scatter_svg
from estimator.quantities import Array
from fitter.report.rows import Bins, largest

REPORT_STYLE: Final = """
a{color:var(--p0)}
.skip{position:absolute;left:-99rem}
.skip:focus{position:static;display:inline-block;padding:.5rem}
nav ul{columns:14rem;padding-left:1.2rem;margin:.5rem 0}
main:focus{outline:none}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--p0);outline-offset:2px}
:target{outline:2px solid var(--p1);outline-offset:4px}
summary{cursor:pointer;padding:.4rem 0}
h3{font-size:1rem;margin:1rem 0 .25rem;overflow-wrap:anywhere}
.charts>figure{max-width:44rem}
.wide svg{min-width:34rem;max-width:56rem}
.p0,.p1,.p2{stroke-opacity:.85}
.whisker{stroke:var(--p0);stroke-width:1.6;fill:none}
.box{stroke:var(--p0);stroke-width:8;stroke-opacity:.45;fill:none}
.middle{stroke:var(--fg);stroke-width:5;stroke-linecap:round;fill:none}
.zero{stroke:var(--fg);stroke-dasharray:2 4}
.d1,.d2,.d3,.d4,.d5,.u1,.u2,.u3,.u4,.u5{stroke:none}
.d1,.d2,.d3,.d4,.d5{fill:var(--p0)}.u1,.u2,.u3,.u4,.u5{fill:var(--p1)}
.d1,.u1{fill-opacity:.25}.d2,.u2{fill-opacity:.45}.d3,.u3{fill-opacity:.65}.d4,.u4{fill-opacity:.85}
@media(max-width:40rem){body{padding:.75rem .75rem 3rem}svg{font-size:14px}dl{grid-template-columns:1fr}dt{margin-top:.4rem}}
@media(prefers-reduced-motion:no-preference){html{scroll-behavior:smooth}}
@media print{.skip,nav{display:none}}
"""
"""Rules of the report beyond those of all pages."""

LEVELS: Final = 5
"""Steps of darkness."""

COLUMNS: Final = 80
ROWS: Final = 64
"""Cells of a density along x and y."""

MOST_OUTLYING: Final = 200
"""Points farthest from the diagonal that are drawn over a density."""

MOST_LINES: Final = 30
"""Kinds in one chart of boxes; the table beside it holds all."""

LINE: Final = 24.0
NAMES: Final = 190.0
BOXES_WIDTH: Final = 760.0
BOXES_RIGHT: Final = 20.0
BOXES_BOTTOM: Final = 44.0
"""Sizes of a chart of boxes [SVG unit]."""

CELL: Final = 14.0
LONGEST_NAME: Final = 27
"""Side of a cell of a correlation [SVG unit], and the letters of a name that fit beside it."""

_numbers = count()


def bins_svg(title: str, description: str, bins: Bins, label: str, *, logarithmic: bool = False) -> str:
    """Signed errors over something: a whisker from the 5th to the 95th percentile, a box over the middle half, a line through medians."""
    x = axis_over(label, [bins.place, bins.low, bins.high], logarithmic=logarithmic)
    y = axis_over("predicted / measured - 1 [%]", [bins.quantiles.ravel(), np.zeros(1)], logarithmic=False)
    tops = [pixel_places(Series(name="", x=bins.place, y=bins.quantiles[:, i]), x, y) for i in range(5)]
    left = tops[0][0]
    body = _zero(x, y) + _uprights("whisker", left, tops[0][1], tops[4][1]) + _uprights("box", left, tops[1][1], tops[3][1])
    middle = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(left, tops[2][1], strict=True))
    body += f'<polyline class="l0" points="{middle}"/>' + _dots("middle", left, tops[2][1])
    return frame_svg(title, description, body, x, y, [], "l")


def _zero(x: Axis, y: Axis) -> str:
    if not y.low < 0.0 < y.high:
        return ""
    left, top = pixel_places(Series(name="", x=np.array([x.low, x.high]), y=np.zeros(2)), x, y)
    return f'<line class="zero" x1="{left[0]:.1f}" y1="{top[0]:.1f}" x2="{left[1]:.1f}" y2="{top[1]:.1f}"/>'


def _uprights(kind: str, left: Array, low: Array, high: Array) -> str:
    path = "".join(f"M{a:.1f} {b:.1f}V{c:.1f}" for a, b, c in zip(left, low, high, strict=True))
    return f'<path class="{kind}" d="{path}"/>'


def _dots(kind: str, left: Array, top: Array) -> str:
    path = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(left, top, strict=True))
    return f'<path class="{kind}" d="{path}"/>'


def names_svg(title: str, description: str, names: Sequence[str], bins: Bins) -> str:
    """Signed errors of the first MOST_LINES kinds, a line each: whisker, box and median as in `bins_svg`."""
    shown = min(len(names), MOST_LINES)
    low, high = axis_over("", [bins.quantiles[:shown].ravel(), np.zeros(1)], logarithmic=False), BOXES_WIDTH - BOXES_RIGHT
    bottom = 8.0 + LINE * shown

    def place(values: Array) -> Array:
        return NAMES + low.place(values) * (high - NAMES)

    grid, texts, whiskers, boxes, middles = "", "", "", "", ""
    for tick in low.ticks():
        at = float(place(np.array([tick]))[0])
        grid += f'<line x1="{at:.1f}" y1="4" x2="{at:.1f}" y2="{bottom:g}"/>'
        texts += f'<text x="{at:.1f}" y="{bottom + 16:g}" text-anchor="middle">{tick:.4g}</text>'
    for line in range(shown):
        ends, middle = place(bins.quantiles[line]), 8.0 + LINE * (line + 0.5)
        texts += f'<text x="{NAMES - 10:g}" y="{middle + 4:g}" text-anchor="end">{escape(_short(names[line]))}</text>'
        whiskers += f"M{ends[0]:.1f} {middle:g}H{ends[4]:.1f}"
        boxes += f"M{ends[1]:.1f} {middle:g}H{ends[3]:.1f}"
        middles += f"M{ends[2]:.1f} {middle:g}h0"
    zero = float(place(np.zeros(1))[0])
    body = f'<line class="zero" x1="{zero:.1f}" y1="4" x2="{zero:.1f}" y2="{bottom:g}"/>'
    body += f'<path class="whisker" d="{whiskers}"/><path class="box" d="{boxes}"/><path class="middle" d="{middles}"/>'
    label = (NAMES + high) / 2
    texts += f'<text x="{label:g}" y="{bottom + 36:g}" text-anchor="middle">predicted / measured - 1 [%]</text>'
    return _svg(
        title,
        description,
        (BOXES_WIDTH, bottom + BOXES_BOTTOM),
        f'<g class="grid">{grid}</g><g class="data">{body}</g><g class="text">{texts}</g>',
    )


def density_svg(title: str, description: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    """Predicted over measured with the line of equality: points, or beyond MOST_POINTS rows cells that are darker the more rows they hold.

    Over the cells lie the MOST_OUTLYING rows that are farthest from equality.
    """
    if sum(len(part.x) for part in series) <= MOST_POINTS:
        return scatter_svg(title, description, series, x, y, diagonal=True)
    across, up = np.concatenate([part.x for part in series]), np.concatenate([part.y for part in series])
    known = np.isfinite(across) & np.isfinite(up)
    across, up = across[known], up[known]
    held, _, _ = np.histogram2d(x.place(across), y.place(up), bins=(COLUMNS, ROWS), range=((0.0, 1.0), (0.0, 1.0)))
    origin, top = pixel_places(Series(name="", x=np.array([x.low, x.high]), y=np.array([y.high, y.low])), x, y)
    width, height = (origin[1] - origin[0]) / COLUMNS, (top[1] - top[0]) / ROWS
    level = np.minimum(np.floor(np.log10(np.maximum(held, 1.0))) + 1.0, LEVELS) * (held > 0)
    body = ""
    for number in range(1, LEVELS + 1):
        cells = np.argwhere(level == number)
        path = "".join(
            f"M{origin[0] + i * width:.1f} {top[1] - (j + 1) * height:.1f}h{width:.2f}v{height:.2f}h-{width:.2f}z" for i, j in cells
        )
        body += f'<path class="d{number}" d="{path}"/>' if path else ""
    far = largest(np.abs(np.log(up / across)), MOST_OUTLYING)
    left, down = pixel_places(Series(name="", x=across[far], y=up[far]), x, y)
    body += _dots("p1", left, down) + _equality(x, y)
    return frame_svg(title, description, body, x, y, [], "p")


def _equality(x: Axis, y: Axis) -> str:
    ends = np.array([max(x.low, y.low), min(x.high, y.high)])
    left, top = pixel_places(Series(name="", x=ends, y=ends), x, y)
    return f'<line class="diagonal" x1="{left[0]:.1f}" y1="{top[0]:.1f}" x2="{left[1]:.1f}" y2="{top[1]:.1f}"/>'


def correlation_svg(title: str, description: str, names: Sequence[str], correlation: Array) -> str:
    """A square of cells, shape (p, p): darker the stronger, one colour for positive and one for negative correlations."""
    size = len(names)
    level = np.minimum(np.floor(np.abs(correlation) * LEVELS).astype(np.int64) + 1, LEVELS)
    level[np.abs(correlation) < 1.0 / (2 * LEVELS)] = 0
    body = ""
    for kind, own in (("d", correlation > 0.0), ("u", correlation < 0.0)):
        for number in range(1, LEVELS + 1):
            cells = np.argwhere(own & (level == number))
            path = "".join(f"M{NAMES + CELL * j:g} {4 + CELL * i:g}h{CELL - 1:g}v{CELL - 1:g}h-{CELL - 1:g}z" for i, j in cells)
            body += f'<path class="{kind}{number}" d="{path}"/>' if path else ""
    texts = "".join(
        f'<text x="{NAMES - 6:g}" y="{4 + CELL * i + 11:g}" text-anchor="end">{escape(_short(name))}</text>' for i, name in enumerate(names)
    )
    return _svg(
        title,
        description,
        (max(NAMES + CELL * size + 8.0, WIDTH), max(CELL * size + 12.0, HEIGHT / 4)),
        body + f'<g class="text">{texts}</g>',
    )


def _svg(title: str, description: str, size: tuple[float, float], body: str) -> str:
    number = next(_numbers)
    return (
        f'<svg viewBox="0 0 {size[0]:g} {size[1]:g}" role="img" aria-labelledby="r{number}t r{number}d">'
        f'<title id="r{number}t">{escape(title)}</title><desc id="r{number}d">{escape(description)}</desc>{body}</svg>'
    )


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
