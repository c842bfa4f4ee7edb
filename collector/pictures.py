"""A page's charts as PNG files."""

import re
from html import unescape
from pathlib import Path
from typing import Final

from collector.errors import CollectorError
from estimator.display.pictures import picture_png
from estimator.errors import EstimatorError
from estimator.whole_file import write_whole

CHART: Final = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title>", re.DOTALL)
LONGEST_NAME: Final = 60


def write_pictures(folder: Path, page: str) -> list[Path]:
    """Write every chart of a page into a folder as a PNG, numbered and named by its title; the files.

    Raises CollectorError where the renderer is not installed or finds no font, and for a folder that cannot be written.
    """
    charts = CHART.findall(page)
    try:
        pictures = [picture_png(chart) for chart in charts]
    except EstimatorError as error:
        raise CollectorError(str(error)) from error
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, (chart, picture) in enumerate(zip(charts, pictures, strict=True), start=1):
            path = folder / f"{number:02d}-{_file_name(chart)}.png"
            write_whole(path, picture)
            written.append(path)
    except OSError as error:
        raise CollectorError(f"{folder}: cannot be written ({error.strerror}); name a folder of your own") from error
    return written


def _file_name(chart: str) -> str:
    """A chart's title as part of a file name."""
    title = TITLE.search(chart)
    words = re.sub(r"[^a-z0-9]+", "-", unescape(title[1]).lower() if title else "chart").strip("-")
    return words[:LONGEST_NAME] or "chart"
