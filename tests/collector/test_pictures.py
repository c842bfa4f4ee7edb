"""Charts as PNG files: one a chart, drawn in the page's light colours."""

import struct
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import numpy as np
import pytest

from collector.commands.output import write_page
from collector.errors import CollectorError
from estimator.display.charts import LETTER_WIDTH, TOP, WIDTH, Series, axis_over, line_svg
from estimator.display.pages import page_html, section_html

pytest.importorskip("resvg_py", reason="resvg-py is not installed: it draws the PNGs")


def page(*titles: str) -> str:
    x = np.linspace(0.0, 1.0, 50)
    y = 100.0 + 50.0 * np.sin(6.0 * x)
    axes = axis_over("time [s]", [x], logarithmic=False), axis_over("power [W]", [y], logarithmic=False)
    charts = [line_svg(title, "a wave", [Series(name="power", x=x, y=y)], *axes) for title in titles]
    return page_html("Two charts", [section_html("Charts", "".join(charts))])


def pictures(folder: Path, text: str) -> list[Path]:
    write_page(None, folder, text)
    return sorted(folder.iterdir())


def pixels(path: Path) -> np.ndarray:
    """Bytes of a PNG of 8-bit RGBA, unfiltered only as far as telling colours apart needs: its raw rows."""
    data = path.read_bytes()
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


def test_every_chart_becomes_a_file_named_by_its_title(tmp_path: Path) -> None:
    written = pictures(tmp_path / "new", page("Power over time", "Größe & <more>"))
    assert [path.name for path in written] == ["01-power-over-time.png", "02-gr-e-more.png"]
    assert all(len(np.unique(pixels(path))) > 20 for path in written), "a picture is empty"


def test_the_words_are_drawn(tmp_path: Path) -> None:
    (with_words,) = pictures(tmp_path / "a", page("Power"))
    (without,) = pictures(tmp_path / "b", page("Power").replace("power [W]", ""))
    assert np.count_nonzero(pixels(with_words)) != np.count_nonzero(pixels(without))


def test_a_page_without_charts_gives_no_files(tmp_path: Path) -> None:
    assert pictures(tmp_path, page_html("Nothing", [])) == []


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CollectorError, match="name a folder"):
        pictures(tmp_path / "file", page("A"))
