"""The command: where it listens, how it stops, what it says."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from estimator.cli import main
from tests.estimator.serve.conftest import Served


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `estimate serve` and its first line."""
    command = [sys.executable, "-W", "error", "-m", "estimator.cli", "serve", "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


@pytest.mark.parametrize(("stop", "status", "said"), [(signal.SIGINT, 130, "estimate serve: interrupted"), (signal.SIGTERM, 0, "")])
def test_signals_end_it_cleanly(repository: Path, stop: signal.Signals, status: int, said: str) -> None:
    with started(str(repository / "examples" / "gpt2-prefill.json"), "--quiet") as (process, line):
        assert line.startswith("http://127.0.0.1:")
        assert Served(url=line.strip()).request("GET", "/api/choices")[0] == 200
        process.send_signal(stop)
        out, err = process.communicate(timeout=300.0)
    assert (process.returncode, out, err.strip()) == (status, "", said)


def test_another_address_must_be_asked_for_and_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\npage=${{1#file://}}; {{ echo "$page"; stat -c %a "${{page%/*}}"; cat "$page"; }} >{opened}\n', encoding="utf-8"
    )
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    with started("--host", "0.0.0.0", "--json", "--bundle", "a10-eager", "--open") as (process, line):
        url = json.loads(line)["url"]
        assert Served(url=url).request("GET", "/")[0] == 200
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=300.0)
    assert process.returncode == 0
    shown, mode, content = opened.read_text(encoding="utf-8").split("\n", 2)
    assert (mode, url in content) == ("700", True), "a browser's command line can be read by every user, this page by one"
    assert not Path(shown).exists()
    assert err.splitlines() == [
        "serving to whoever knows this address; stop with Ctrl-C",
        "warning: 0.0.0.0 can be reached from other machines; the address travels there unencrypted",
    ]


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "--port", "0"]) == 1
    assert capsys.readouterr().err == (
        "estimate serve: uvicorn is not installed; install wattprint[serve]: pip install 'wattprint[serve]'\n"
    )


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"estimate serve: cannot listen on 127.0.0.1, port {port}: ")
    assert printed.err.endswith("; choose another --host or --port (0: any free one)\n")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["nothing.json"], 1, "no such workload file"),
        (["--bundle", "nothing"], 1, "unknown bundle 'nothing'"),
        (["--bundle", ""], 2, "an empty text names no file"),
        (["--host", "example.org"], 2, "is no IP address"),
        (["--host", "203.0.113.1"], 1, "cannot listen on 203.0.113.1"),
        (["--port", "70000"], 2, "not in the range"),
        (["--port", "http"], 2, "not a valid integer"),
    ],
)
def test_what_cannot_be_served_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], status: int, message: str) -> None:
    assert main(["serve", *words]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
