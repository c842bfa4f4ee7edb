"""The report of a fit: whole, self-contained, readable by everybody, and as large for many rows as for few."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from estimator.bundle.content import Covariance, IdleTable, VoltageTable
from estimator.display.charts import axis_over
from estimator.vocabulary.workload import FAMILY_FIELDS
from fitter.report.errors import NOMINAL, QUANTILES, binned, coverage_of, held_frame
from fitter.report.page import report_html
from fitter.rows.rejected import RejectedRow
from fitter.validate.predictions import error_rows, predict_kernel_rows, predict_workload_rows
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, various_operators, various_workloads, workload_rows
from tests.fitter.page import Page, colours, contrast, over, style_of

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
NOISE = 0.05
MANY = 20_000

BOARD = {
    "voltage": VoltageTable(sm_clock_mhz=(510.0, 900.0, 1410.0), voltage_v=(0.7, 0.72, 0.9), std_v=(0.01, 0.01, 0.02), source="measured"),
    "idle": IdleTable(sm_clock_mhz=(510.0, 1410.0), power_w=(45.0, 60.0), std_w=0.5, source="measured", temperature_c=35.0),
}


def whole_page(*, simulated: bool = True) -> str:
    """A report with something in every section."""
    bundle = planted_bundle()
    kernels = kernel_rows(bundle, various_operators(60), noise=NOISE)
    count = len(kernels)
    kernels = replace(
        kernels,
        temperature_c=np.linspace(40.0, 70.0, count),
        started_s=1.7e9 + 60.0 * np.arange(count),
        sm_clock_asked_mhz=np.resize([510.0, 900.0, 1410.0], count),
        sources=(HOSTILE,),
    )
    runs = workload_rows(bundle, various_workloads(), noise=NOISE)
    held_out = {"kernels": predict_kernel_rows(bundle, kernels), "workloads": predict_workload_rows(bundle, runs)}
    rows = [row.document() for part in held_out.values() for row in error_rows(part)]
    rejected = tuple(RejectedRow(source=HOSTILE, row=i, reason="BAD_LATENCY", detail=HOSTILE * 100) for i in range(300))
    bundle = replace(
        bundle,
        errors=tuple(rows),
        notes=(HOSTILE,),
        name="planted <b>",
        environment={"simulated": "true"} if simulated else {},
        latency_parameters=Covariance(names=("gemm.math", HOSTILE), covariance=((0.04, -0.03), (-0.03, 0.09))),
        **BOARD,
    )
    return report_html(bundle, replace(selection_of(kernels, runs), rejected=rejected), held_out)


@pytest.fixture(scope="module")
def page() -> str:
    return whole_page()


@pytest.fixture(scope="module")
def read(page: str) -> Page:
    return Page(page)


def test_the_page_is_well_formed_and_self_contained(page: str, read: Page) -> None:
    assert read.open == []
    assert not {tag for tag, _ in read.tags} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "form",
        "base",
        "use",
        "image",
        "foreignobject",
    }
    assert not re.search(r"https?:|url\(|@import|javascript:|data:[a-z]", page)
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on") or name in ("src", "style")]


def test_every_identity_is_given_once_and_every_link_leads_somewhere(read: Page) -> None:
    identities = read.having("id")
    assert len(identities) == len(set(identities))
    links = read.having("href")
    assert links
    assert {link[0] for link in links} == {"#"}
    assert {link[1:] for link in links} <= set(identities)


def test_every_chart_has_a_name_a_description_and_its_numbers_as_a_table(page: str, read: Page) -> None:
    for chart in read.all("svg"):
        assert chart["role"] == "img"
        for identity in str(chart["aria-labelledby"]).split():
            assert len(read.words[identity]) > 5
    figures = re.findall(r"<figure>.*?</figure>", page)
    assert len(figures) == len(read.all("svg"))
    for figure in figures:
        assert re.search(r"<figcaption>.{20,}</figcaption><details><summary>.*<table>", figure)


def test_keyboard_and_screen_reader_find_their_way(page: str, read: Page) -> None:
    assert read.tags[0] == ("html", {"lang": "en"})
    body = [tag for tag, _ in read.tags].index("body")
    assert read.tags[body + 1] == ("a", {"class": "skip", "href": "#main"})
    assert [tag for tag in ("nav", "main", "h1") if len(read.all(tag)) == 1] == ["nav", "main", "h1"]
    for section in read.all("section"):
        assert read.words[str(section["aria-labelledby"])]
        assert f'href="#{section["id"]}"' in page
    levels = [int(tag[1]) for tag, _ in read.tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    assert len(read.all("table")) == len(read.all("caption"))
    assert all(head["scope"] == "col" for head in read.all("th"))
    for name, attributes in read.tags:  # what scrolls can be reached and has a name; nothing jumps ahead
        assert int(attributes.get("tabindex") or 0) <= 0
        if "scroll" in str(attributes.get("class")).split():
            assert attributes["tabindex"] == "0"
            assert attributes["aria-label"], name


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_marks_stand_out_from_the_ground(page: str, dark: bool) -> None:
    style = style_of(page)
    found = colours(style, dark=dark)
    for name in ("fg", "dim", "bad", "p0"):  # WCAG 2.2, 1.4.3: text
        assert contrast(found[name], found["bg"]) >= 4.5, name
    for number in range(10):  # 1.4.11: what is needed to understand a chart
        assert contrast(found[f"p{number}"], found["bg"]) >= 3.0, number
    opacity = float(re.findall(r"\.p0,\.p1,\.p2\{stroke-opacity:([0-9.]+)\}", style)[-1])
    for number in range(3):
        assert contrast(over(found[f"p{number}"], found["bg"], opacity), found["bg"]) >= 3.0, number


def test_the_same_fit_gives_the_same_bytes(page: str) -> None:
    assert whole_page() == page


def test_text_from_data_is_never_markup_and_is_cut(page: str) -> None:
    assert "<script" not in page
    assert "<img" not in page
    assert "planted &lt;b&gt;" in page
    assert len(page) < 1_000_000


def test_a_report_of_almost_nothing_is_still_a_page() -> None:
    bundle = replace(planted_bundle(), power=None, voltage=None, idle=None)
    read = Page(report_html(bundle, selection_of(), {}))
    assert read.open == []
    assert {link[1:] for link in read.having("href")} <= set(read.having("id"))


def many_rows(count: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Predictions of a few hundred kernels measured over and over, and which kernel each row is."""
    bundle = planted_bundle()
    few = predict_kernel_rows(bundle, kernel_rows(bundle, various_operators(100), noise=NOISE))
    index = np.random.default_rng(0).integers(0, len(few), count)
    return few.iloc[index].reset_index(drop=True), index


def test_a_page_grows_with_kinds_of_kernels_and_not_with_rows() -> None:
    bundle = planted_bundle()
    rows = kernel_rows(bundle, various_operators(100), noise=NOISE)
    sizes = []
    for count in (MANY, 4 * MANY):
        prediction, index = many_rows(count)
        own = replace(rows.select(index), row=np.arange(1, count + 1))
        text = report_html(bundle, selection_of(own), {"kernels": prediction})
        sizes.append(len(text))
        assert max(len(re.findall(r"<(?:path|rect|polyline|line|circle)", svg)) for svg in re.findall(r"<svg.*?</svg>", text)) < 400
    assert sizes[1] < 1.1 * sizes[0]


columns = arrays(np.float64, st.integers(1, 200), elements=st.floats(-1e6, 1e6, allow_subnormal=False) | st.just(float("nan")))


@given(columns, st.booleans())
def test_bins_hold_every_row_once_and_their_quantiles_ascend(values: np.ndarray, logarithmic: bool) -> None:
    errors = np.cos(np.arange(len(values)))
    found = binned(values, errors, logarithmic=logarithmic)
    known = np.isfinite(values) & ((values > 0) | (not logarithmic))
    assert found["count"].sum() == known.sum()
    assert (np.diff(found[list(QUANTILES)].to_numpy(), axis=1) >= 0).all()
    slack = 1e-12 * found["place"].abs()
    assert (found["low"] <= found["place"] + slack).all()
    assert (found["place"] <= found["high"] + slack).all()


@pytest.mark.parametrize("values", [[1e-6, 3e-3], [5.0], [], [np.nan, 2.0], [0.0, 1.0]])
def test_axes_hold_all_values(values: list[float]) -> None:
    column = np.array(values, dtype=float)
    for logarithmic in (True, False):
        axis = axis_over("x", [column], logarithmic=logarithmic)
        known = column[np.isfinite(column) & ((column > 0) | (not logarithmic))]
        assert axis.low < axis.high
        assert ((axis.place(known) >= -1e-12) & (axis.place(known) <= 1 + 1e-12)).all()
        assert all(axis.low * 0.999 <= tick <= axis.high * 1.001 for tick in axis.ticks())


def test_the_worst_row_stands_first_with_what_is_known_of_it() -> None:
    bundle = planted_bundle()
    rows = kernel_rows(bundle, various_operators(30))
    slow = rows.latency_s.copy()
    slow[17] *= 3.0
    rows = replace(rows, latency_s=slow, kernel_name=tuple(f"kernel-{i}" for i in range(len(rows))))
    text = report_html(bundle, selection_of(rows), {"kernels": predict_kernel_rows(bundle, rows)})
    first = text.split("latency is furthest off")[2].split("<tbody>")[1].split("</tr>")[0]
    operator = rows.operators[rows.operator_index[17]]
    shape = (f"{name} {size:g}" for name, size in zip(FAMILY_FIELDS[operator.family], operator.shape, strict=True))
    assert all(part in first for part in ("planted.csv row 18", "kernel-17", *shape))


def test_coverage_of_intervals_that_are_right_is_as_stated() -> None:
    rng = np.random.default_rng(0)
    prediction, _ = many_rows(MANY)
    std = np.full(MANY, 0.1)
    measured = prediction["predicted_latency"] * np.exp(0.1 * rng.standard_normal(MANY))
    found = coverage_of(held_frame(prediction.assign(measured_latency=measured, std_latency=std)), "latency")
    assert found is not None
    assert found == pytest.approx(list(NOMINAL), abs=1.5)
