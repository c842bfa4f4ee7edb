"""The report in a real browser: wide and narrow, by keyboard."""

import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.fitter.test_report import whole_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=3000",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
PHONE = (412, 2400)
DESK = (1200, 2400)
LIMIT_S = 30

PROBE = """<script>
const ways = [...document.querySelectorAll('a[href],summary,[tabindex="0"]')];
const seen = ways.filter(e => e.offsetParent !== null || e.className === 'skip');
seen[0].focus();
const first = document.activeElement.getBoundingClientRect();
const right = e => e.getBoundingClientRect().right;
const wide = [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll,svg') && right(e) > innerWidth + 1);
document.title = JSON.stringify({
  inner: innerWidth, scroll: document.documentElement.scrollWidth, first: seen[0].textContent, visible: first.left >= 0 && first.width > 40,
  loaded: performance.getEntriesByType('resource').length, charts: document.querySelectorAll('svg').length,
  flat: [...document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().height < 40).length,
  beyond: wide.slice(0, 5).map(e => e.tagName + ' ' + e.textContent.slice(0, 40))});
</script></body>"""
"""Asks the browser what it made of the page; it is in the tested copy alone."""


@pytest.fixture(scope="module")
def browser() -> str:
    named = os.environ.get("WATTPRINT_CHROMIUM")
    found = named or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(
            f"no browser: none of {', '.join(NAMES)} is installed, and WATTPRINT_CHROMIUM names none (Debian: apt install chromium)"
        )
    return found


def run(browser: str, profile: Path, page: Path, size: tuple[int, int]) -> str:
    """What the browser wrote."""
    command = [browser, *FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", "--dump-dom", page.as_uri()]
    for attempt in range(4):
        command[-4] = f"--user-data-dir={profile}{attempt}"
        with suppress(subprocess.TimeoutExpired):  # a browser started beside other programs hangs at times
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            break
    else:
        pytest.fail("the browser hangs")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_nothing_is_wider_than_the_screen_and_the_keyboard_begins_at_the_skip_link(
    browser: str, tmp_path: Path, size: tuple[int, int]
) -> None:
    copy = tmp_path / "probed.html"
    copy.write_text(whole_page().replace("</body>", PROBE), encoding="utf-8")
    dom = run(browser, tmp_path / "profile", copy, size)
    title = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert title is not None
    found: dict[str, Any] = json.loads(unescape(title[1]))
    assert found["scroll"] <= found["inner"], found
    assert found["beyond"] == []
    assert found["first"] == "Skip to the report"
    assert found["visible"]
    assert found["loaded"] == 0
    assert found["charts"] > 15
    assert found["flat"] == 0
