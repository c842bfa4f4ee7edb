"""A page's chart as a picture of its own: SVG with its colours in it, or PNG; the only file of this package that imports resvg_py."""

import re
from collections.abc import Callable
from typing import Any, Final

from estimator.display.pages import STYLE
from estimator.vocabulary.errors import EstimatorError

COLOUR: Final = re.compile(r"--([a-z0-9]+):(#[0-9a-f]{3,6})")
WIDTH_PIXELS: Final = 1200
BACKGROUND: Final = "#ffffff"
FAMILIES: Final = ("DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica", "Ubuntu", "Cantarell", "Open Sans", "Roboto")
"""Fonts that are looked for, best first: the renderer draws no text in a family that it does not find."""
SVG: Final = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12" '


def standalone_svg(chart: str) -> str:
    """A chart as an SVG file: with its name space, its light colours and a white ground."""
    start, _, rest = chart.replace("<svg ", SVG, 1).partition(">")
    return f'{start}><style>{light_style()}</style><rect width="100%" height="100%" fill="{BACKGROUND}"/>{rest}\n'


def picture_png(chart: str) -> bytes:
    """A chart as a PNG file.  Raises EstimatorError where the renderer is not installed or finds no font."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise EstimatorError("resvg-py is not installed; install wattprint[plots]: pip install 'wattprint[plots]'") from None
    svg, family = chart.replace("<svg ", SVG, 1), _family(svg_to_bytes)
    picture = svg_to_bytes(svg_string=svg, style_sheet=light_style(), width=WIDTH_PIXELS, background=BACKGROUND, sans_serif_family=family)
    return bytes(picture)


def _family(draw: Callable[..., Any]) -> str:
    """A font family that is here.  Raises EstimatorError where there is none."""

    def word(text: str, family: str) -> bytes:
        svg = f'{SVG} viewBox="0 0 60 20"><text x="2" y="15">{text}</text></svg>'
        return bytes(draw(svg_string=svg, background=BACKGROUND, sans_serif_family=family))

    for family in FAMILIES:
        if word("W", family) != word("", family):
            return family
    raise EstimatorError("no font for the charts' text is installed; install one, such as the package fonts-dejavu-core")


def light_style() -> str:
    """The page's style sheet with the colours of its light form in place: renderers of single pictures know no variables."""
    plain = re.sub(r"@media[^{]*\{.*?\}\s*\}", "", STYLE, flags=re.DOTALL)
    colours = dict(COLOUR.findall(plain))
    return re.sub(r"var\(--([a-z0-9]+)\)", lambda found: colours[found[1]], re.sub(r":root\{[^}]*\}", "", plain))
