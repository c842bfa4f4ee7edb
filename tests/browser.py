"""A headless Chromium driven over its DevTools pipe: pages, clicks, keys, files, with nothing but the standard library.

Chromium is found by name on the PATH, or by WATTPRINT_CHROMIUM.  It talks through two pipes (`--remote-debugging-pipe`), so that no
port is opened.  Waiting is done in the page: `Page.wait_for` returns when a condition holds there.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-extensions", "--mute-audio",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-pipe", "--window-size=1200,900",
)  # fmt: skip
DEADLINE_S = 60.0
"""Longest wait for one answer, or for one condition: far beyond what a busy machine needs."""
OPENING_S = 20.0
"""Longest wait for an empty page, which no file of ours can delay."""
KEY_CODES = {"Tab": 9, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


def find_chromium():
    """The browser's program; None where there is none."""
    named = os.environ.get("WATTPRINT_CHROMIUM")
    if named:
        return named
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class NoAnswerError(Exception):
    """The browser hangs or has ended."""


class Browser:
    """A running browser: messages out, answers and events in."""

    def __init__(self, write, read):
        self._write, self._read = write, read
        self._deadline_s = DEADLINE_S
        self._buffer = b""
        self._last = 0
        self.events = []

    def call(self, method, session="", **parameters):
        """The result of a DevTools method.  Events that come meanwhile are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        _write_all(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self._deadline_s
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _next(self, deadline):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready or not (piece := os.read(self._read, 1 << 16)):
                raise NoAnswerError(f"no answer within {self._deadline_s:g} s" if not ready else "the browser has ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def open_page(self):
        """An empty page with its events switched on."""
        self._deadline_s = OPENING_S
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM", "Accessibility"):
            self.call(f"{domain}.enable", session)
        self._deadline_s = DEADLINE_S
        return Page(self, session)


class Page:
    """One page of the browser."""

    def __init__(self, browser, session):
        self._browser, self._session = browser, session

    def call(self, method, **parameters):
        """A DevTools method on this page."""
        return self._browser.call(method, self._session, **parameters)

    def close(self):
        """End the page."""
        self.call("Page.close")

    def goto(self, url):
        """Load a page; returns when it has loaded."""
        assert not self.call("Page.navigate", url=url).get("errorText")
        self.wait_for(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def evaluate(self, script):
        """The value of a JavaScript expression; of a promise, what it gives."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, condition):
        """Return when an expression is true in the page."""
        timeout_ms = 1000.0 * DEADLINE_S / 2.0
        script = (
            "new Promise((done, fail) => { const start = performance.now(); const look = () => {"
            f" let held = false; try {{ held = Boolean({condition}); }} catch (error) {{ held = false; }}"
            f" if (held) done(true); else if (performance.now() - start > {timeout_ms}) fail(new Error('never held'));"
            " else setTimeout(look, 5); }; look(); })"
        )
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"never held: {condition}"

    def press(self, key, times=1):
        """Press a key of KEY_CODES where the focus is."""
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=KEY_CODES[key])

    def type_text(self, text):
        """Text into the element that has the focus."""
        self.call("Input.insertText", text=text)

    def choose(self, selector, value):
        """Choose an option of a select, as a user's choice would."""
        self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};"
            " e.dispatchEvent(new Event('input', {bubbles: true})); e.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def upload(self, selector, *files):
        """Put files into a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def emulate(self, *, width=1200, height=900, mobile=False):
        """A window's size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def requested_urls(self):
        """Everything that the page has asked the network for."""
        return [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]

    def complaints(self):
        """Errors and warnings of its scripts, its console, and the browser about it."""
        found = [event["params"]["exceptionDetails"]["text"] for event in self._events("Runtime.exceptionThrown")]
        for event in self._events("Runtime.consoleAPICalled"):
            if event["params"]["type"] in ("error", "warning", "assert"):
                found.append(str(event["params"]["args"]))
        for event in self._events("Log.entryAdded"):
            if event["params"]["entry"]["level"] in ("error", "warning"):
                found.append(event["params"]["entry"]["text"])
        return found

    def _events(self, method):
        own = self._browser.events
        return [event for event in own if event.get("method") == method and event.get("sessionId") == self._session]


@contextmanager
def open_browser(program, folder):
    """A browser with a new profile in `folder`, ended at the end with all its processes; its log is `folder`/chromium.log."""
    folder.mkdir(parents=True, exist_ok=True)
    (to_child, from_us), (to_us, from_child) = os.pipe(), os.pipe()
    command = [program, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    placed = ["bash", "-c", f'exec "$@" 3<&{to_child} 4>&{from_child}', "bash", *command]
    with (folder / "chromium.log").open("w") as log:
        process = subprocess.Popen(placed, stdout=log, stderr=log, pass_fds=(to_child, from_child), start_new_session=True)
    os.close(to_child)
    os.close(from_child)
    try:
        yield Browser(from_us, to_us)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(from_us)
        os.close(to_us)


@contextmanager
def open_pages(program, folder):
    """What opens an empty page; a browser that does not answer is started again, twice.  Raises NoAnswerError when none answers."""
    with ExitStack() as running:
        browsers = []

        def open_page():
            for _ in range(3):
                try:
                    browsers[:] = browsers or [running.enter_context(open_browser(program, Path(tempfile.mkdtemp(dir=folder))))]
                    return browsers[0].open_page()
                except (NoAnswerError, BrokenPipeError):
                    running.close()
                    browsers.clear()
            raise NoAnswerError("three browsers in a row did not open an empty page")

        yield open_page


def _write_all(number, content):
    while content:
        content = content[os.write(number, content) :]
