"""The report in a real browser: wide and narrow, by keyboard."""

import pytest

from tests.fitter.test_report import whole_page

PROBE = """(() => {
const ways = [...document.querySelectorAll('a[href],summary,[tabindex="0"]')];
const seen = ways.filter(e => e.offsetParent !== null || e.className === 'skip');
seen[0].focus();
const first = document.activeElement.getBoundingClientRect();
const right = e => e.getBoundingClientRect().right;
const wide = [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll,svg') && right(e) > innerWidth + 1);
return {
  inner: innerWidth, scroll: document.documentElement.scrollWidth, first: seen[0].textContent, visible: first.left >= 0 && first.width > 40,
  loaded: performance.getEntriesByType('resource').length, charts: document.querySelectorAll('svg').length,
  flat: [...document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().height < 30).length,
  beyond: wide.slice(0, 5).map(e => e.tagName + ' ' + e.textContent.slice(0, 40))};
})()"""
"""Asks the browser what it made of the page."""


@pytest.mark.parametrize("width", [1200, 412])
def test_nothing_is_wider_than_the_screen_and_the_keyboard_begins_at_the_skip_link(open_page, tmp_path, width):
    report = tmp_path / "report.html"
    report.write_text(whole_page())
    page = open_page()
    page.emulate(width=width, height=2400)
    page.goto(report.as_uri())
    found = page.evaluate(PROBE)
    assert found["scroll"] <= found["inner"], found
    assert found["beyond"] == []
    assert found["first"] == "Skip to the report"
    assert found["visible"]
    assert found["loaded"] == 0
    assert found["charts"] >= 4
    assert found["flat"] == 0
    assert page.complaints() == []
    page.close()
