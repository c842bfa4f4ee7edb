"""The command: where it listens, how it stops, what it says."""

import json
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.estimator.estimating import fails
from tests.estimator.serve.conftest import Served


@contextmanager
def started(*words):
    """A running `estimate serve` and its first line."""
    command = [sys.executable, "-W", "error", "-m", "estimator.cli", "serve", "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


@pytest.mark.parametrize("stop, status, said", [(signal.SIGINT, 130, "estimate serve: interrupted"), (signal.SIGTERM, 0, "")])
def test_signals_end_it_cleanly(repository, stop, status, said):
    with started(str(repository / "examples" / "gpt2-prefill.json"), "--quiet", "--json") as (process, line):
        url = json.loads(line)["url"]
        assert url.startswith("http://127.0.0.1:")
        assert Served(url=url).request("GET", "/api/choices")[0] == 200
        process.send_signal(stop)
        out, err = process.communicate(timeout=300.0)
    assert (process.returncode, out, err.strip()) == (status, "", said)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "the package uvicorn is not installed; pip install 'wattprint[serve]'" in fails("serve --port 0")


def test_a_port_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        said = fails("serve --port", port)
    assert said.startswith(f"estimate serve: cannot listen on port {port}: ")
    assert said.endswith("; choose another --port (0: any free one)\n")


@pytest.mark.parametrize(
    "words, status, message",
    [
        ("nothing.json", 1, "nothing.json: cannot be read"),
        ("--bundle nothing", 1, "unknown bundle 'nothing'"),
        ("--port 70000", 2, "not in the range"),
    ],
)
def test_what_cannot_be_served_is_one_line(words, status, message):
    assert message in fails("serve", words, status=status)
