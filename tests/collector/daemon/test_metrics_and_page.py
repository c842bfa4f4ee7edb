"""What the daemon shows: metrics that a strict reader takes, a page that every reader can use, and no way to change anything."""

import stat
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from collector.daemon.jobs import Board, Daemon, Job, Overview
from collector.daemon.server import POLICY, TOKEN_NAME, exposition, status_page, status_site
from collector.daemon.store import open_store
from collector.errors import DaemonError
from tests.estimator.serve.conftest import Served
from tests.fitter.page import Page


def parsed(text):
    """The samples of an exposition; one that comes twice fails."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, tuple(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


JOB = Job(
    board="GPU-1", campaign="quick", title="quick", arguments=(), out="/x", id=3, state="running",
    phase="measuring", done=5, total=20, rows=4, refused=1, flagged=2, used_s=12.5, attempts=1, started_unix_s=1e9, eta_s=75.0, pid=7,
)  # fmt: skip
BOARD = Board(board="GPU-1", name="NVIDIA H200", job=3, sm_clock_mhz=1410.0, power_w=321.5, updated_unix_s=1e9)
OVERVIEW = Overview(
    daemon=Daemon(pid=9, version="1.2.3", started_unix_s=1e9, beat_unix_s=1e9),
    running=True,
    boards=(BOARD,),
    jobs=(JOB,),
    counts={"queued": 0, "running": 1, "done": 0, "failed": 0, "cancelled": 0},
)


def test_metrics_are_in_base_units_and_unknown_figures_have_no_sample():
    samples = parsed(exposition(OVERVIEW).decode())
    board = (("gpu", "GPU-1"), ("name", "NVIDIA H200"))
    wanted = {
        "board_sm_clock_hertz": 1.41e9,
        "board_power_watts": 321.5,
        "job_progress_ratio": 0.25,
        "job_remaining_seconds": 75,
        "job_rows": 4,
    }
    assert {name: samples[f"wattprint_{name}", board] for name in wanted} == wanted
    assert samples["wattprint_jobs", (("state", "running"),)] == 1
    assert ("wattprint_board_temperature_celsius", board) not in samples


def test_the_page_can_be_read_by_everybody_runs_no_script_and_orders_nothing():
    page = Page(status_page(OVERVIEW, 1e9))
    assert page.all("html")[0]["lang"] == "en"
    for landmark in ("header", "main", "footer", "h1", "title"):
        assert len(page.all(landmark)) == 1, landmark
    assert len(page.all("table")) == len(page.all("caption")) == 2
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    assert page.all("progress")[0]["value"] == "5"
    assert not [tag for tag, _ in page.tags if tag in ("script", "form", "button", "input", "iframe", "img")]
    assert {str(attributes["href"]) for attributes in page.all("a")} == {"#jobs", "./", "metrics"}
    assert "default-src 'none'" in POLICY


@settings(max_examples=20)
@given(text=st.text())
def test_whatever_a_job_or_a_board_is_called_is_shown_as_text(text):
    hostile = f"{text}</td><script>alert(1)</script>"
    overview = replace(
        OVERVIEW,
        boards=(replace(BOARD, board=hostile, name=hostile),),
        jobs=(replace(JOB, title=hostile, board=hostile, message=hostile, state=hostile),),
    )
    assert not Page(status_page(overview, 1e9)).all("script")


@pytest.fixture
def served(tmp_path):
    with open_store(tmp_path) as store:
        store.daemon_started(1, "1.0", "", [])
    with status_site(tmp_path, ("127.0.0.1", 0), lambda _line: None) as url:
        yield Served(url=url)


def test_reading_is_answered_to_who_has_the_token_and_nothing_else(served):
    status, headers, content = served.request("GET", "/")
    assert (status, headers["Content-Security-Policy"]) == (200, POLICY)
    assert b"wattprint daemon" in content
    status, headers, content = served.request("GET", "/metrics?x=1")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert parsed(content.decode())
    assert served.request("GET", "/../../etc/passwd")[0] == 404
    assert {served.request(method, "/")[0] for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH")} == {405}
    assert {served.fetch("GET", path)[0] for path in ("/", "/metrics")} == {403}, "without the token nothing is told"


def test_the_token_is_its_owners_alone_and_survives_a_restart(tmp_path):
    tokens = []
    for _ in range(2):
        with status_site(tmp_path, ("127.0.0.1", 0), lambda _line: None) as url:
            tokens.append(urlsplit(url).path)
    assert tokens[0] == tokens[1]
    assert stat.S_IMODE((tmp_path / TOKEN_NAME).stat().st_mode) == 0o600


def test_a_damaged_state_is_said_and_the_server_lives_on(served, tmp_path):
    for path in tmp_path.glob("state.sqlite*"):
        path.write_bytes(b"x" * 5000)
    for name in ("/", "/metrics"):
        status, _, content = served.request("GET", name)
        assert (status, content.count(b"\n")) == (503, 1)
    for path in tmp_path.glob("state.sqlite*"):
        path.unlink()
    assert served.request("GET", "/")[0] == 200


def test_what_cannot_be_served_is_one_line(served, tmp_path):
    host, port = served.address
    here = (host, port)
    with pytest.raises(DaemonError, match=f"port {port} cannot be had"), status_site(tmp_path, here, print):
        pass
    with status_site(tmp_path, None, print) as at:
        assert at == ""
