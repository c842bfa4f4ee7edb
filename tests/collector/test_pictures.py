"""Charts as PNG files: one a chart, drawn in the page's light colours."""

import struct
import xml.etree.ElementTree as ET
import zlib

import numpy as np
import pytest

from estimator.display.charts import LETTER_WIDTH, TOP, WIDTH, Series, axis_over, line_svg
from estimator.display.pages import picture_png

pytest.importorskip("resvg_py", reason="resvg-py is not installed: it draws the PNGs")


def pixels(data: bytes) -> np.ndarray:
    """Bytes of a PNG of 8-bit RGBA, unfiltered only as far as telling colours apart needs: its raw rows."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", data[16:20])[0] == 1200
    body, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        body += data[at + 8 : at + 8 + length] if data[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + length
    return np.frombuffer(zlib.decompress(body), dtype=np.uint8)


def test_names_of_lines_stand_above_the_drawing_and_cover_none_of_it() -> None:
    x = np.linspace(0.0, 1.0, 50)
    axes = axis_over("time [s]", [x], logarithmic=False), axis_over("power [W]", [x], logarithmic=False)
    heights = []
    for names in (["one"], ["one", "another"], [f"a rather long name, number {i}" for i in range(5)]):
        chart = ET.fromstring(line_svg("t", "d", [Series(name=name, x=x, y=x) for name in names], *axes))
        heights.append(float(chart.attrib["viewBox"].split()[3]))
        drawing, legend = chart.findall("g")
        above = float(drawing.attrib["transform"].removeprefix("translate(0 ").removesuffix(")"))
        assert above == heights[-1] - heights[0]
        named = {text.text: (float(text.attrib["x"]), float(text.attrib["y"])) for text in legend.findall("text")}
        assert set(named) == (set(names) if len(names) > 1 else set())
        assert len(set(named.values())) == len(named), "two names lie on each other"
        for name, (left, bottom) in named.items():
            assert bottom < TOP + above
            assert left + LETTER_WIDTH * len(name or "") <= WIDTH
    assert heights[0] < heights[1] < heights[2]


def test_the_words_are_drawn() -> None:
    x = np.linspace(0.0, 1.0, 50)
    axes = axis_over("time [s]", [x], logarithmic=False), axis_over("power [W]", [x], logarithmic=False)
    chart = line_svg("Power", "a line", [Series(name="power", x=x, y=x)], *axes)
    with_words, without = (pixels(picture_png(one)) for one in (chart, chart.replace("power [W]", "")))
    assert len(np.unique(with_words)) > 20, "the picture is empty"
    assert np.count_nonzero(with_words) != np.count_nonzero(without)
