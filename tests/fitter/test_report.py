"""The report of a fit and its verdict: whole, self-contained, readable by everybody; what is known, and no more."""

import itertools
import re
import threading
from dataclasses import replace

import numpy as np
import pytest

import fitter.commands.fit
from estimator.blocks.model import section_of as section_of_blocks
from estimator.display.charts import COLOURS
from estimator.model.power import PARTS
from estimator.questions.explanation import LIMITS
from fitter.blocks.section import fit_block_model
from fitter.bundle.calibration import Calibration
from fitter.instructions.section import section_of
from fitter.report.page import pictures_html, report_html
from fitter.report.verdict import family_table, verdict_lines
from fitter.rows.rejected import RejectedRow
from fitter.validate.predictions import error_rows, predict_kernel_rows, predict_workload_rows
from tests.fitter.measured import PLANTED, kernel_rows, selection_of, various_operators, various_workloads, workload_rows
from tests.fitter.page import Page
from tests.fitter.test_block_count import GPU, planted
from tests.fitter.test_instruction_rows import fitted

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
NOISE = 0.05
EXACT = kernel_rows(PLANTED, various_operators(40))


def whole_page():
    """A report with something in every section."""
    kernels = kernel_rows(PLANTED, various_operators(60), noise=NOISE)
    clock = np.resize([510.0, 900.0, 1410.0], len(kernels))
    kernels = replace(kernels, sm_clock_asked_mhz=clock, sources=(HOSTILE,))
    runs = workload_rows(PLANTED, various_workloads(), noise=NOISE)
    held_out = {"kernels": predict_kernel_rows(PLANTED, kernels), "workloads": predict_workload_rows(PLANTED, runs)}
    rows = [row for part in held_out.values() for row in error_rows(part)]
    rejected = tuple(RejectedRow(source=HOSTILE, row=i, reason="BAD_LATENCY", detail=HOSTILE * 100) for i in range(300))
    bundle = replace(PLANTED, errors=tuple(rows), notes=(HOSTILE,), name="planted <b>")
    return report_html(bundle, replace(selection_of(kernels, runs), rejected=rejected), held_out, (f"Good for {HOSTILE}",))


@pytest.fixture(scope="module")
def page():
    return whole_page()


@pytest.fixture(scope="module")
def read(page):
    return Page(page)


def test_the_page_is_well_formed_self_contained_and_shows_text_from_data_as_text(page, read):
    assert read.open == []
    assert not {tag for tag, _ in read.tags} & {"script", "link", "img", "iframe", "object", "form", "base", "use", "image"}
    assert not re.search(r"https?:|url\(|@import|javascript:|data:[a-z]", page)
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on") or name in ("src", "style")]
    assert "planted &lt;b&gt;" in page
    assert len(page) < 1_000_000


def test_keyboard_and_screen_reader_find_their_way(page, read):
    identities, links = read.having("id"), read.having("href")
    assert len(identities) == len(set(identities))
    assert {link[0] for link in links} == {"#"}
    assert {link[1:] for link in links} <= set(identities)
    assert [tag for tag in ("nav", "main", "h1") if len(read.all(tag)) == 1] == ["nav", "main", "h1"]
    for section in read.all("section"):
        assert read.words[str(section["aria-labelledby"])]
        assert f'href="#{section["id"]}"' in page
    levels = [int(tag[1]) for tag, _ in read.tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    assert len(read.all("table")) == len(read.all("caption"))
    for chart in read.all("svg"):
        assert chart["role"] == "img"
        assert all(len(read.words[identity]) > 5 for identity in str(chart["aria-labelledby"]).split())


@pytest.mark.parametrize("block", [r"^:root\{(.*?)\}", r"prefers-color-scheme:dark\)\{:root\{(.*?)\}"])
def test_text_and_marks_stand_out_from_the_ground(page, block):
    """By day and by night.  Source: WCAG 2.2, 1.4.3 (text), 1.4.11 (charts), definitions of contrast and relative luminance."""
    style = page.split("<style>")[1].strip()
    day, own = (dict(re.findall(r"--(\w+):#(\w+)", re.findall(kind, style, re.DOTALL)[0])) for kind in (r"^:root\{(.*?)\}", block))
    light = {}
    for name, digits in (day | own).items():
        whole = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
        parts = np.array([int(whole[i : i + 2], 16) / 255 for i in (0, 2, 4)])
        light[name] = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
    wanted = {f"p{number}": 3.0 for number in range(10)} | dict.fromkeys(("fg", "dim", "bad", "p0"), 4.5)
    for name, least in wanted.items():
        assert np.divide(*sorted([light[name] + 0.05, light["bg"] + 0.05], reverse=True)) >= least, name


def test_a_page_grows_with_kinds_of_kernels_and_not_with_rows():
    rows = kernel_rows(PLANTED, various_operators(100), noise=NOISE)
    few, sizes = predict_kernel_rows(PLANTED, rows), []
    for count in (20_000, 80_000):
        index = np.random.default_rng(0).integers(0, len(few), count)
        own = replace(rows.select(index), row=np.arange(1, count + 1))
        text = report_html(PLANTED, selection_of(own), {"kernels": few.iloc[index].reset_index(drop=True)})
        sizes.append(len(text))
        assert max(len(re.findall(r"<(?:path|rect|polyline|line|circle)", svg)) for svg in re.findall(r"<svg.*?</svg>", text)) < 400
    assert sizes[1] < 1.1 * sizes[0]
    bare = Page(report_html(replace(PLANTED, power=None, voltage=None, idle=None), selection_of(), {}))
    assert bare.open == []
    assert {link[1:] for link in bare.having("href")} <= set(bare.having("id"))


def test_the_worst_row_stands_first_with_what_is_known_of_it():
    rows = kernel_rows(PLANTED, various_operators(30))
    slow = rows.latency_s * np.where(np.arange(len(rows)) == 17, 3.0, 1.0)
    rows = replace(rows, latency_s=slow, kernel_name=tuple(f"kernel-{i}" for i in range(len(rows))))
    text = report_html(PLANTED, selection_of(rows), {"kernels": predict_kernel_rows(PLANTED, rows)})
    first = text.split("latency is furthest off")[2].split("<tbody>")[1].split("</tr>")[0]
    shape = (f"{name} {size:g}" for name, size in rows.row_operators()[17].named_shape().items())
    assert all(part in first for part in ("planted.csv row 18", "kernel-17", *shape))


def test_the_page_begins_with_its_verdict_and_four_kinds_of_pictures(page, read):
    sections = [str(section["id"]) for section in read.all("section")]
    assert sections[:3] == ["verdict", "pictures", "card"]
    titles = [text for identity, text in read.words.items() if re.fullmatch(r"c\d+t", identity)]
    kinds = ("Latency: predicted and measured", "Power: predicted", "Energy: predicted", "Error by family", "Ideal and corrected time")
    assert all(any(title.startswith(kind) for title in titles) for kind in (*kinds, "Power by module: gemm"))
    assert page.index("Good for ") < page.index("Model card</h2>")


def test_planted_coefficients_bring_ideal_times_to_the_measured_ones():
    """Rows without noise: the corrected points lie on the diagonal, the ideal ones below it."""
    svg = pictures_html(PLANTED, EXACT).split("Ideal and corrected")[1].split("</svg>")[0]
    ideal, corrected = (
        [tuple(map(float, point.split())) for point in d.split("h0")[0:-1]]
        for d in (found.replace("M", "") for found in re.findall(r'class="p[01]" d="(M[^"]*h0M[^"]*)"', svg))
    )
    x1, y1, x2, y2 = (float(re.search(rf'class="diagonal"[^>]*? {name}="([\d.]+)"', svg)[1]) for name in ("x1", "y1", "x2", "y2"))

    def below(points):
        return np.array([y - (y1 + (x - x1) * (y2 - y1) / (x2 - x1)) for x, y in points])  # screens count down

    assert np.abs(below(corrected)).max() < 1.0
    assert (below(ideal) > 0.0).mean() > 0.9


def test_the_tile_hit_rate_counts_shapes_once_and_says_what_it_was_seen_on():
    products = np.array([operator.family == "gemm" for operator in EXACT.row_operators()])
    tile = {"kind": "choice", "tile_m": (128,), "tile_n": (128,), "split": (1,), "liking": (0.0,), "sharpness": 15.0}
    named = replace(PLANTED, tile_predictors={group: tile for group in PLANTED.groups if group.startswith("gemm")})
    half = np.where(np.cumsum(products) % 2 == 0, 128.0, 64.0)
    tiles = {"tile_m": np.where(products, 128.0, np.nan), "tile_n": np.where(products, half, np.nan)}
    text = pictures_html(named, replace(EXACT, **tiles, split_k=np.ones(len(EXACT))))
    hits, count = (half[products] == 128.0).mean(), int(products.sum())
    assert f"for {hits:.0%} of {count} products" in text
    assert "The fit saw these rows" in text
    assert "Tiles:" not in pictures_html(named, EXACT)


def test_no_two_parts_of_a_bar_share_a_colour():
    for parts in (PARTS, (*LIMITS, "waiting for the host")):
        assert len({COLOURS[name] for name in parts}) == len(parts)


def calibration(found):
    return Calibration(
        bundle=PLANTED, selection=selection_of(), errors=(), held_out={"kernels": found} if found is not None else {}, warnings=()
    )


@pytest.fixture(scope="module")
def predicted():
    return predict_kernel_rows(PLANTED, EXACT)


@pytest.mark.parametrize("slower, hotter, energy", [(1.0, 1.0, "0.0"), (1.25, 1.0, "20.0"), (1.25, 0.8, "0.0"), (2.0, 1.25, "60.0")])
def test_errors_are_those_of_the_rows_and_energy_that_of_their_product(predicted, slower, hotter, energy):
    found = predicted.assign(measured_latency=slower * predicted["predicted_latency"], measured_power=hotter * predicted["predicted_power"])
    line = verdict_lines(PLANTED, calibration(found))[1]
    assert f"err by {100 * abs(1 / slower - 1):.1f} % in latency, {100 * abs(1 / hotter - 1):.1f} % in power, {energy} % in energy" in line
    assert f"({len(found)} rows)" in line
    table = family_table(calibration(found))
    assert sum(row[1] for row in table.rows) == len(found)
    assert all(f"{row[4]:.1f}" == energy for row in table.rows)
    assert [row[0] for row in table.rows] == sorted(found["family"].unique())


WITHOUT_SOFTMAX = {key: replace(group, rows=0 if key == "softmax" else 9, ln_std={"x": 0.1}) for key, group in PLANTED.groups.items()}


@pytest.mark.parametrize(
    "change, found",
    [
        ({"clocks_mhz": (900.0, 900.0)}, "other clocks (an extrapolation)"),
        ({"power": None, "voltage": None, "idle": None}, "power and energy (no row has any; where rows state `load`"),
        ({"groups": WITHOUT_SOFTMAX}, "of softmax ("),
    ],
)
def test_what_the_data_lack_is_named(predicted, change, found):
    """Without power in the rows no error of power or energy is stated."""
    lacking = predicted.assign(measured_power=np.nan) if "power" in change else predicted
    lines = verdict_lines(replace(PLANTED, **change), calibration(lacking))
    assert any(line.startswith("missing: ") and found in line for line in lines)
    assert ("in power" in lines[1]) == ("power" not in change)


def test_instructions_and_grids_alone_are_judged_for_what_they_are():
    """Neither kernels nor power are missed, and no row was to be held out."""
    bare = replace(PLANTED, power=None, voltage=None, idle=None, errors=())
    bare = replace(bare, groups={key: replace(group, rows=0) for key, group in bare.groups.items()})
    grids = replace(bare, block_models=section_of_blocks([fit_block_model(planted(), GPU.num_sms)]))
    lines = verdict_lines(grids, calibration(None))
    assert "describes" in lines[0]
    assert lines[1].startswith("1 block-count model(s): rms error on grids left out ")
    assert len(lines) == 2
    energies = fitted()
    lines = verdict_lines(replace(bare, instruction_energies=section_of(energies)), calibration(None))
    assert lines[1].startswith(
        f"energies of {len(section_of(energies)['instructions'])} instructions from {energies.rows} runs, standard error "
    )
    assert len(lines) == 2


def test_a_fit_without_held_out_rows_claims_no_error():
    assert "errors are unknown" in verdict_lines(PLANTED, calibration(None))[1]


@pytest.mark.parametrize("words, told", [((), True), (("--quiet",), False)])
def test_off_a_terminal_a_long_fit_says_what_it_does_and_stops_saying_it(words, told, shared_data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fitter.commands.fit, "PROGRESS_S", 0.02)
    before = set(threading.enumerate())
    fitter.commands.fit.run([str(shared_data / "energaizer" / "a10_900mhz.csv"), "-o", str(tmp_path / "a.json"), "--holdout", "0", *words])
    assert ("fitting all rows" in capsys.readouterr().err.splitlines()) == told
    for thread in set(threading.enumerate()) - before:
        thread.join(1.0)
        assert not thread.is_alive()
