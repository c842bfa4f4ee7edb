"""Stacked bars as inline SVG: parts of time and energy.

As in `estimator.display.charts`, colours come from the page (classes `s0` to `s9`), and title and description are for screen readers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from typing import Final

from estimator.display.charts import EDGE_SPACE, Axis

WIDTH: Final = 760.0
LEFT: Final = 130.0
RIGHT: Final = 14.0
BAR: Final = 30.0
TOP: Final = 8.0
LEGEND_LINE: Final = 18.0
"""Sizes [SVG unit]."""

LONGEST_LABEL: Final = 20
HIDDEN: Final = -1
"""Part number of a blank piece of a bar."""

_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a bar: its length, the index of its part in the chart's `parts`, and its tooltip."""

    length: float
    part: int
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of pieces, from left to right."""

    label: str
    pieces: Sequence[Piece]


def stack_svg(title: str, description: str, bars: Sequence[Bar], parts: Sequence[str], axis: str) -> str:
    """A chart of horizontal bars, each as long as the sum of its pieces; `axis` names quantity and unit."""
    longest = max((sum(piece.length for piece in bar.pieces) for bar in bars), default=0.0) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / longest
    bottom = TOP + len(bars) * (BAR + 14.0)
    body, texts = "", ""
    for row, bar in enumerate(bars):
        top = TOP + row * (BAR + 14.0)
        texts += f'<text x="{LEFT - 8:g}" y="{top + BAR / 2 + 4:g}" text-anchor="end">{escape(_short(bar.label))}</text>'
        start = LEFT
        for piece in bar.pieces:
            width = piece.length * scale
            if width >= 0.05 and piece.part != HIDDEN:  # narrower pieces cannot be seen
                body += (
                    f'<rect class="s s{piece.part % 10}" x="{start:.2f}" y="{top:g}" width="{width:.2f}" height="{BAR:g}">'
                    f"<title>{escape(piece.tip)}</title></rect>"
                )
            start += width
    for tick in Axis(label=axis, low=0.0, high=longest, logarithmic=False).ticks():
        at = LEFT + tick * scale
        anchor = "end" if WIDTH - RIGHT - at < EDGE_SPACE else "middle"
        texts += f'<text x="{at:.2f}" y="{bottom + 8:g}" text-anchor="{anchor}">{tick:g}</text>'
    texts += f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{bottom + 26.0:g}" text-anchor="middle">{escape(axis)}</text>'
    used = [i for i in range(len(parts)) if any(piece.part == i and piece.length > 0.0 for bar in bars for piece in bar.pieces)]
    legend, height = _legend([(i, parts[i]) for i in used], bottom + 36.0)
    number = next(_numbers)
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-labelledby="s{number}t s{number}d">'
        f'<title id="s{number}t">{escape(title)}</title><desc id="s{number}d">{escape(description)}</desc>'
        f'<g class="data">{body}</g><g class="text">{texts}{legend}</g></svg>'
    )


def _legend(entries: Sequence[tuple[int, str]], top: float) -> tuple[str, float]:
    """A legend of the parts, and its bottom edge."""
    width = (WIDTH - RIGHT) / 4
    text = ""
    for place, (number, name) in enumerate(entries):
        left, line = 10 + width * (place % 4), top + LEGEND_LINE * (place // 4)
        text += f'<rect class="s s{number % 10}" x="{left:g}" y="{line:g}" width="12" height="12"/>'
        text += f'<text x="{left + 18:g}" y="{line + 11:g}">{escape(name)}</text>'
    lines = -(-len(entries) // 4)
    return text, top + LEGEND_LINE * lines + 4


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"
