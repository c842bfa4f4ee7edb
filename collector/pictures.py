"""A page's charts as PNG files; the only file that imports resvg_py."""

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any, Final

from collector.errors import CollectorError
from estimator.pages import STYLE
from estimator.whole_file import write_whole

CHART: Final = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title>", re.DOTALL)
COLOUR: Final = re.compile(r"--([a-z0-9]+):(#[0-9a-f]{3,6})")
WIDTH_PIXELS: Final = 1200
BACKGROUND: Final = "#ffffff"
LONGEST_NAME: Final = 60
FAMILIES: Final = ("DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica", "Ubuntu", "Cantarell", "Open Sans", "Roboto")
"""Fonts that are looked for, best first: the renderer draws no text in a family that it does not find."""
SVG: Final = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12" '


def write_pictures(folder: Path, page: str) -> list[Path]:
    """Write every chart of a page into a folder as a PNG, numbered and named by its title; the files.

    Raises CollectorError where the renderer is not installed or finds no font, and for a folder that cannot be written.
    """
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise CollectorError("resvg-py is not installed; install wattprint[plots]: pip install 'wattprint[plots]'") from None
    style, family = _light_style(), _family(svg_to_bytes)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, chart in enumerate(CHART.findall(page), start=1):
            svg = chart.replace("<svg ", SVG, 1)
            picture = svg_to_bytes(svg_string=svg, style_sheet=style, width=WIDTH_PIXELS, background=BACKGROUND, sans_serif_family=family)
            path = folder / f"{number:02d}-{_file_name(chart)}.png"
            write_whole(path, bytes(picture))
            written.append(path)
    except OSError as error:
        raise CollectorError(f"{folder}: cannot be written ({error.strerror}); name a folder of your own") from error
    return written


def _family(draw: Callable[..., Any]) -> str:
    """A font family that is here.  Raises CollectorError where there is none."""

    def word(text: str, family: str) -> bytes:
        svg = f'{SVG} viewBox="0 0 60 20"><text x="2" y="15">{text}</text></svg>'
        return bytes(draw(svg_string=svg, background=BACKGROUND, sans_serif_family=family))

    for family in FAMILIES:
        if word("W", family) != word("", family):
            return family
    raise CollectorError("no font for the charts' text is installed; install one, such as the package fonts-dejavu-core")


def _light_style() -> str:
    """The page's style sheet with the colours of its light form in place: renderers of single pictures know no variables."""
    plain = re.sub(r"@media[^{]*\{.*?\}\s*\}", "", STYLE, flags=re.DOTALL)
    colours = dict(COLOUR.findall(plain))
    return re.sub(r"var\(--([a-z0-9]+)\)", lambda found: colours[found[1]], re.sub(r":root\{[^}]*\}", "", plain))


def _file_name(chart: str) -> str:
    """A chart's title as part of a file name."""
    title = TITLE.search(chart)
    words = re.sub(r"[^a-z0-9]+", "-", unescape(title[1]).lower() if title else "chart").strip("-")
    return words[:LONGEST_NAME] or "chart"
