"""The page in a headless browser: clicks, keys, files; skipped where no Chromium is installed."""

import json
from itertools import combinations

import numpy as np
import pytest

from tests.estimator.estimating import printed as json_of
from tests.estimator.serve.conftest import BUNDLE
from tests.estimator.serve.test_serve_answers import OWN


@pytest.fixture
def page(open_page, served):
    """The page with its first result; at the end, it must have had nothing to complain about and asked nobody else."""
    opened = open_page()
    opened.emulate()
    opened.goto(served.url)
    opened.wait_for("document.getElementById('status').textContent.startsWith('latency')")
    opened.choose("#workload", served.workload_key("gpt2-prefill"))
    opened.choose("#bundle", served.bundle_key())
    opened.wait_for("document.getElementById('results-title').textContent.startsWith('gpt2-prefill-b8-s512 on a100-pcie-40gb, ')")
    at_rest(opened)
    yield opened
    assert opened.requested_urls()
    assert all(url.startswith((served.url, "data:,")) for url in opened.requested_urls())
    assert [line for line in opened.complaints() if "422" not in line] == []
    opened.close()


def shown(page):
    """Latency, power and energy as the table shows them in SI units."""
    cells = page.evaluate("[...document.querySelectorAll('#numbers tbody tr')].map((row) => row.title.split(' ')[1])")
    return [float(cell) for cell in cells]


def printed(repository, *words):
    document = json_of(repository / "examples" / "gpt2-prefill.json", f"--bundle {BUNDLE}", *words)
    return [document[name] for name in ("latency_s", "power_w", "energy_j")]


def at_clock(page, clock):
    page.wait_for(f"document.getElementById('results').dataset.clock === '{clock:g}'")


def test_keys_move_the_clock_and_the_numbers_are_those_of_the_command(page, repository):
    at_clock(page, 1410)
    assert shown(page) == printed(repository)
    before = page.evaluate("document.getElementById('chart-energy').innerHTML")
    for _ in range(20):
        page.press("Tab")
        if page.evaluate("document.activeElement.id") == "clock":
            break
    assert page.evaluate("document.activeElement.id") == "clock"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("ArrowLeft", 2)
    at_clock(page, 1380)
    assert shown(page) == printed(repository, "--freq", 1380)
    page.press("Home")
    at_clock(page, 210)
    assert page.evaluate("document.getElementById('clock').getAttribute('aria-valuetext')") == "210 MHz"
    assert page.evaluate("document.getElementById('clock-value').textContent") == "210 MHz"
    page.wait_for("document.getElementById('status').textContent.includes('at 210 MHz')")
    assert page.evaluate("document.getElementById('chart-energy').innerHTML") != before
    assert page.evaluate("document.querySelector('#sweep tr[aria-current] th').textContent") == "210 MHz"


def test_batch_sequence_precision_and_attention_change_the_result(page):
    page.evaluate("document.getElementById('batch').focus()")
    page.press("ArrowRight")
    page.wait_for("document.getElementById('results-title').textContent.startsWith('gpt2-prefill-b8-s512@b12s512')")
    page.evaluate("document.getElementById('sequence').focus()")
    page.press("ArrowLeft")
    page.wait_for("document.getElementById('results-title').textContent.startsWith('gpt2-prefill-b8-s512@b12s384')")
    eager = shown(page)
    page.choose("#attention", "flash")
    page.wait_for("[...document.querySelectorAll('#kernels tbody th')].some((cell) => cell.textContent.startsWith('attention.'))")
    assert shown(page)[0] < eager[0]
    page.choose("#precision", "fp32")
    page.wait_for("[...document.querySelectorAll('#kernels tbody th')].some((cell) => cell.textContent.includes(' fp32 '))")
    page.choose("#gpu", "h100-nvl")
    page.wait_for("document.getElementById('results-title').textContent.includes('on h100-nvl, forecast, bundle h100-sxm ')")
    assert "forecast" in page.evaluate("document.getElementById('remarks').textContent")
    page.choose("#gpu", "a10")
    page.wait_for("document.getElementById('results-title').textContent.includes('on a10, extrapolated, bundle a10-eager ')")


def test_a_file_is_loaded_and_its_sliders_say_why_they_rest(page, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**OWN, "name": "mine <b>& co"}))
    page.upload("#file", path)
    page.wait_for("document.getElementById('results-title').textContent.startsWith('mine <b>& co on a100-pcie-40gb, ')")
    assert page.evaluate("document.getElementById('batch').disabled && document.getElementById('sequence').disabled")
    assert "does not tell" in page.evaluate("document.getElementById('batch-reason').textContent")
    for field, number in (("at-sequence", "128"), ("at-batch", "4")):
        page.evaluate(f"document.getElementById('{field}').focus()")
        page.type_text(number)
        page.press("Tab")
    page.wait_for("!document.getElementById('batch').disabled && !document.getElementById('sequence').disabled")
    page.evaluate("document.getElementById('batch').focus()")
    page.press("ArrowRight")
    page.wait_for("document.getElementById('results-title').textContent.startsWith('mine <b>& co@b6s128')")


def drop(page, name, content):
    """Drop a file onto the page."""
    page.evaluate(
        "(() => { const data = new DataTransfer();"
        f" data.items.add(new File([{json.dumps(content)}], {json.dumps(name)}, {{type: 'application/json'}}));"
        " document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})); })()"
    )


def test_a_broken_file_is_said_and_a_good_one_goes_on(page):
    before = shown(page)
    drop(page, "broken.json", "[[")
    page.wait_for("document.getElementById('error').textContent.startsWith('broken.json: not valid JSON')")
    assert page.evaluate("document.getElementById('results').classList.contains('stale')")
    drop(page, "good.json", json.dumps({**OWN, "name": "dropped"}))
    page.wait_for("document.getElementById('results-title').textContent.startsWith('dropped on')")
    assert page.evaluate("document.getElementById('error').textContent") == ""
    assert shown(page) != before


def delay(page, path, milliseconds):
    """Let the page's requests to a path take this much longer."""
    page.evaluate(
        "window.fetch = ((before) => async (url, options) => {"
        f" if (url.startsWith({json.dumps(path)})) await new Promise((done) => setTimeout(done, {milliseconds}));"
        " return before(url, options); })(window.fetch)"
    )


def at_rest(page):
    page.wait_for("document.getElementById('results').getAttribute('aria-busy') === 'false'")


@pytest.mark.parametrize("late", ["/api/answer", "/api/workload"])
def test_a_late_answer_to_an_older_question_does_not_hide_a_fault(page, late):
    other = page.evaluate("[...document.getElementById('workload').options].find((option) => !option.selected).value")
    delay(page, late, 400)
    page.choose("#workload", other)
    page.evaluate("document.getElementById('clock').focus()")
    page.press("ArrowLeft")
    drop(page, "broken.json", "[[")
    page.wait_for("document.getElementById('error').textContent.startsWith('broken.json: not valid JSON')")
    at_rest(page)
    assert page.evaluate("document.getElementById('error').textContent").startswith("broken.json: not valid JSON")
    assert page.evaluate("document.getElementById('results').classList.contains('stale')")


@pytest.mark.parametrize("late", ["/api/load", "/api/workload", "/api/answer"])
def test_a_file_and_a_choice_at_once_end_with_what_the_page_says_is_chosen(page, late):
    other = page.evaluate("[...document.getElementById('workload').options].find((option) => !option.selected).value")
    delay(page, late, 300)
    drop(page, "good.json", json.dumps({**OWN, "name": "dropped"}))
    page.choose("#workload", other)
    at_rest(page)
    chosen = page.evaluate("document.getElementById('workload').selectedOptions[0].text.split(' (')[0]")
    assert page.evaluate("document.getElementById('results-title').textContent").startswith(chosen)
    assert not page.evaluate("document.getElementById('results').classList.contains('stale')")


@pytest.mark.parametrize(
    "field, value, usual, error",
    [("precision", "nvfp4", "", ""), ("at-batch", "0", "8", "Batch: "), ("power-cap", "-1", "", "Power limit [W]")],
)
def test_a_setting_that_cannot_be_is_said_and_taken_back(page, field, value, usual, error):
    page.choose(f"#{field}", value)
    page.wait_for(
        f"document.getElementById('error').textContent.startsWith({json.dumps(error)}) && document.getElementById('error').textContent"
    )
    assert page.evaluate("document.getElementById('status').textContent") == "No result for these settings"
    page.choose(f"#{field}", usual)
    page.wait_for("document.getElementById('error').textContent === ''")


def test_every_chart_has_a_title_and_a_table(page):
    titles = page.evaluate("[...document.querySelectorAll('figure svg')].map((svg) => svg.querySelector('title').textContent)")
    assert len(titles) == 5
    for table, rows in {"sweep": 81, "limits": 11, "parts": 10, "kernels": 22}.items():
        assert page.evaluate(f"document.querySelectorAll('#{table} tbody tr').length") == rows, table
    page.evaluate("document.querySelector('details summary').click()")
    assert page.evaluate("document.querySelector('#sweep').checkVisibility()")


def test_what_a_screen_reader_meets_has_a_name(page):
    nodes = [node for node in page.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    controls = [node for node in nodes if node["role"]["value"] in ("slider", "combobox", "spinbutton", "button", "image", "img", "table")]
    assert {node["role"]["value"] for node in controls} >= {"slider", "combobox", "spinbutton", "table"}
    unnamed = [node["role"]["value"] for node in controls if not node.get("name", {}).get("value")]
    assert unnamed == []
    assert "status" in {node["role"]["value"] for node in nodes}


def test_no_width_makes_the_page_scroll_sideways(page):
    drop(page, "long.json", json.dumps({**OWN, "name": "long_name_" * 20}))
    page.wait_for("document.getElementById('results-title').textContent.startsWith('long_name_')")
    for width in (320, 390, 768, 1600):
        page.emulate(width=width, mobile=width < 600)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), width


def box(page, selector):
    """Left, top, right and bottom of an element [px]."""
    return page.evaluate(
        f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
        " return [b.left, b.top, b.right, b.bottom].map((end) => Math.round(end)); })()"
    )


def test_the_result_comes_first_on_a_phone_and_beside_the_settings_on_a_desk(page):
    page.emulate(width=390, height=844, mobile=True)
    headline, numbers, settings = (box(page, selector) for selector in ("#headline", "#numbers", "#settings"))
    assert headline[3] < numbers[1] < 500
    assert numbers[3] < settings[1] < box(page, "#details")[1]
    assert numbers[2] <= 390
    page.emulate(width=1366, height=768)
    assert box(page, "#settings")[2] <= box(page, "#numbers")[0]
    assert box(page, "#numbers")[3] < 768
    page.evaluate("scrollTo(0, 600)")
    assert 0 <= box(page, "#headline")[1] < 20  # stays in sight


def test_the_first_clock_of_every_bundle_is_one_that_its_fit_has_seen(page, served):
    choices = served.choices()
    bundles, nearest = choices["bundles"], {entry["gpu"]: entry["bundle"] for entry in choices["gpus"]}
    for field, key, bundle in [
        *(("bundle", one["key"], one) for one in bundles),
        *(("gpu", one["gpu"], one) for one in bundles if nearest[one["gpu"]] == one["key"]),
    ]:
        page.choose(f"#{field}", key)
        clock = page.evaluate("Number.parseFloat(document.getElementById('clock-value').textContent)")
        low, high = bundle["fitted_clocks_mhz"]
        assert low <= clock <= high, bundle["name"]


def test_each_message_stands_in_one_place(page):
    page.choose("#gpu", "h100-nvl")
    page.wait_for("document.getElementById('results-title').textContent.includes('on h100-nvl')")
    lines = page.evaluate("[...document.querySelectorAll('#remarks li')].map((line) => line.textContent.replace(/^[a-z]+: /, ''))")
    assert lines
    assert len(lines) == len(set(lines))
    everything = page.evaluate("document.body.innerText")
    assert all(everything.count(line) == 1 for line in lines)


def test_a_module_has_one_colour_in_both_bars_and_no_other_has_it(page, served):
    page.choose("#workload", served.workload_key("llama-8b-decode"))  # waits for its host
    page.wait_for("document.getElementById('results-title').textContent.startsWith('llama-8b-decode')")
    of_dram = set()
    for name in ("time", "modules"):
        found = page.evaluate(
            f"[...document.querySelectorAll('#chart-{name} rect > title')]"
            ".map((tip) => [tip.textContent, getComputedStyle(tip.parentNode).fill])"
        )
        colours = [tuple(map(int, colour[4:-1].split(", "))) for _, colour in found]
        assert all(max(map(abs, np.subtract(a, b))) > 8 for a, b in combinations(colours, 2)), found
        of_dram |= {colour for text, colour in found if text.startswith("DRAM")}
    assert len(of_dram) == 1


def test_a_link_opens_served_models_and_their_numbers_are_those_of_the_server(page, served):
    page.evaluate("document.querySelector('header a').click()")
    page.wait_for("document.querySelectorAll('#served-numbers tbody tr').length === 6")
    settings = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "prompt": 1024, "output": 256, "batch": 16}

    def cells():
        return page.evaluate("[...document.querySelectorAll('#served-numbers tbody tr')].map((row) => row.title.split(' ')[1])")

    _, document = served.ask("/api/served", **settings)
    names = ("ttft_s", "ttft_loaded_s", "tpot_s", "tokens_per_s", "power_w", "energy_per_token_j")
    assert [float(cell) for cell in cells()] == [document[name] for name in names]
    before = page.evaluate("document.getElementById('served-headline').textContent")
    assert "tokens/s" in before
    page.choose("#llm-gpu", "l4")
    page.choose("#llm", "llama-3.1-70b")
    page.wait_for("document.getElementById('served-headline').textContent.startsWith('does not fit')")
    assert set(cells()) == {"unknown"}
    page.choose("#llm-output", "1")
    page.wait_for("document.getElementById('served-error').textContent.startsWith('Output [tokens]: ')")
    for width in (320, 390, 1366):
        page.emulate(width=width, height=700, mobile=width < 600)
        page.evaluate("document.getElementById('served-answer').scrollIntoView()")
        assert box(page, "#served")[1] >= max(box(page, "#settings")[3], box(page, "#headline")[3]), width  # covered by neither
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), width
