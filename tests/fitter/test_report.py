import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from estimator.charts import MOST_POINTS, Axis, Series, axis_over, scatter_svg
from fitter.report import report_html
from fitter.rows import RejectedRow
from fitter.validation import error_rows, predict_kernel_rows, predict_workload_rows
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, various_operators, various_workloads, workload_rows

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
VOID = {"meta", "br", "img", "link", "input", "line", "path", "polyline"}


class Page(HTMLParser):
    """Tags of a page, checked to be balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    bundle = planted_bundle()
    kernels = kernel_rows(bundle, various_operators(60), noise=0.05)
    runs = workload_rows(bundle, various_workloads(), noise=0.05)
    held_out = {"kernels": predict_kernel_rows(bundle, kernels), "workloads": predict_workload_rows(bundle, runs)}
    rows = [row.document() for part in held_out.values() for row in error_rows(part)]
    selection = selection_of(kernels, runs)
    rejected = tuple(RejectedRow(source=HOSTILE, row=i, reason="BAD_LATENCY", detail=HOSTILE * 100) for i in range(300))
    bundle = replace(bundle, errors=tuple(rows), notes=(HOSTILE,), name="planted <b>", environment={"simulated": "true"})
    return report_html(bundle, replace(selection, rejected=rejected), held_out)


def test_the_page_is_well_formed_and_self_contained(page: str) -> None:
    parser = Page()
    parser.feed(page)
    assert parser.open == []
    names = {tag for tag, _ in parser.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "form"}
    assert not re.search(r"https?:|url\(|@import|javascript:", page)


def test_every_chart_is_valid_xml(page: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", page)
    assert len(drawings) == 4
    for drawing in drawings:
        assert ET.fromstring(drawing).tag == "svg"


def test_the_page_can_be_read_without_eyes(page: str) -> None:
    parser = Page()
    parser.feed(page)
    assert parser.tags[0] == ("html", {"lang": "en"})
    charts = [attributes for tag, attributes in parser.tags if tag == "svg"]
    assert len(charts) == 4
    identities = {attributes.get("id") for _, attributes in parser.tags}
    for chart in charts:
        assert chart["role"] == "img"
        assert set(str(chart["aria-labelledby"]).split()) <= identities
    assert sum(tag == "table" for tag, _ in parser.tags) == sum(tag == "caption" for tag, _ in parser.tags)
    assert sum(tag == "h1" for tag, _ in parser.tags) == 1


def test_text_from_data_is_never_markup_and_is_cut(page: str) -> None:
    assert "<script" not in page
    assert "<img" not in page
    assert "planted &lt;b&gt;" in page
    assert len(page) < 1_000_000


def test_a_simulated_board_is_called_simulated(page: str) -> None:
    assert "simulated board" in page


def test_a_report_of_almost_nothing_is_still_a_page() -> None:
    bundle = replace(planted_bundle(), power=None, voltage=None, idle=None)
    parser = Page()
    parser.feed(report_html(bundle, selection_of(), {}))
    assert parser.open == []


def test_many_points_are_thinned_and_the_worst_stay() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(1, 10, 100_000)
    y = x.copy()
    y[17] = 900.0
    axis = Axis(label="t", low=1, high=1000, logarithmic=True)
    drawing = scatter_svg("a", "b", [Series(name="s", x=x, y=y)], axis, axis, diagonal=True)
    points = drawing.split('class="p0" d="')[1].split('"')[0]
    assert points.count("M") == MOST_POINTS
    lowest = min(float(p.split(" ")[1].removesuffix("h0")) for p in points.split("M")[1:])
    assert lowest < 40  # the outlier, near the top


@pytest.mark.parametrize("values", [[1e-6, 3e-3], [5.0], [], [np.nan, 2.0], [0.0, 1.0]])
def test_axes_hold_all_values(values: list[float]) -> None:
    column = np.array(values, dtype=float)
    for logarithmic in (True, False):
        axis = axis_over("x", [column], logarithmic=logarithmic)
        known = column[np.isfinite(column) & ((column > 0) | (not logarithmic))]
        assert axis.low < axis.high
        assert ((axis.place(known) >= -1e-12) & (axis.place(known) <= 1 + 1e-12)).all()
        assert all(axis.low * 0.999 <= tick <= axis.high * 1.001 for tick in axis.ticks())
