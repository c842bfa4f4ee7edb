"""The daemon's status page and metrics over HTTP: read-only, behind a token in the address that is kept in the state folder.

Metrics are Prometheus's: base units, stable names and labels.  The page is one HTML document without scripts.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

import jinja2
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from collector.daemon.jobs import RUNNING, Board, Job, Overview, left_text, note_text, time_text
from collector.daemon.settings import Address
from collector.daemon.store import open_store
from collector.errors import DaemonError
from estimator.serve.local_site import Computed, Line, Reply, local_site

TOKEN_NAME: Final = "page.token"
"""File of the token, so that the address of the metrics survives a restart."""

HTML: Final = "text/html; charset=utf-8"
PLAIN: Final = "text/plain; charset=utf-8"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
POLICY: Final = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
STYLE: Final = Path(__file__).with_name("status.css")
TEMPLATE: Final = "status.html"
NUMBERS: Final = ("Job", "SM clock", "Power", "Temperature", "Rows", "Left")
"""Columns of the page that hold numbers."""

GAUGES: Final[dict[str, tuple[str, Callable[[Board, Job | None], float | None]]]] = {
    "board_busy": ("1 while a worker measures on the board.", lambda _, job: float(job is not None)),
    "board_power_watts": ("Power of the last row.", lambda board, _: board.power_w),
    "board_sm_clock_hertz": ("SM clock of the last row.", lambda board, _: board.sm_clock_mhz and 1e6 * board.sm_clock_mhz),
    "board_temperature_celsius": ("Temperature of the last row.", lambda board, _: board.temperature_c),
    "board_last_message_timestamp_seconds": ("When the board's worker last spoke, since 1970.", lambda board, _: board.updated_unix_s),
    "job_progress_ratio": (
        "Share of the running job's points that are finished.", lambda _, job: job.done / job.total if job and job.total else None,
    ),
    "job_rows": ("Rows of the running job on disk.", lambda _, job: float(job.rows) if job else None),
    "job_remaining_seconds": ("Time to the running job's end at its pace so far.", lambda _, job: job.eta_s if job else None),
}  # fmt: skip
"""Gauges by board, of the board and its running job; unknown values have no sample."""


@contextmanager
def status_site(folder: Path, address: Address | None, complain: Line) -> Iterator[str]:
    """Serves `/` and `/metrics` within the block; yields the page's address, "" without an address to listen at.

    Raises DaemonError if the address or the token is not available.
    """
    if address is None:
        yield ""
        return
    shown = (("/", lambda overview: status_page(overview, time.time()).encode("utf-8", "replace"), HTML), ("/metrics", exposition, METRICS))
    pages: dict[str, Reply | Computed] = {path: Computed(answer=partial(_answer, folder, show, kind)) for path, show, kind in shown}
    pages["/style.css"] = Reply(content=STYLE.read_bytes(), media_type="text/css")
    token, headers = _token(folder), {"Content-Security-Policy": POLICY}
    with ExitStack() as stack:
        try:
            site = local_site(*address, pages, token=token, headers=headers, complain=complain)
            place = stack.enter_context(site)
        except OSError as error:
            raise DaemonError(
                f"listen: {address[0]} port {address[1]} cannot be had ({error.strerror}); name another, or port 0"
            ) from error
        yield place


def _token(folder: Path) -> str:
    """The token of a state folder, made if missing.  Raises DaemonError."""
    path = folder / TOKEN_NAME
    try:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+") as file:
            known = file.read().strip()
            if not known:
                known = secrets.token_urlsafe()
                file.write(f"{known}\n")
    except (OSError, ValueError) as error:
        raise DaemonError(f"{path}: cannot be read ({error}); remove it, and a new token is made") from error
    return known


def _answer(folder: Path, show: Callable[[Overview], bytes], media_type: str, _body: bytes, _query: str) -> Reply:
    try:
        with open_store(folder) as store:
            found = store.overview(limit=50)
    except DaemonError as error:
        return Reply(content=f"{error}\n".encode("utf-8", "replace"), media_type=PLAIN, status=HTTPStatus.SERVICE_UNAVAILABLE)
    return Reply(content=show(replace(found, running=True)), media_type=media_type)  # this is a thread of it


def status_page(overview: Overview, now_unix_s: float) -> str:
    """The page.  `now_unix_s` is the time of day [s since 1970]."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters |= {"left": left_text, "note": note_text, "utc": time_text}
    complaint = overview.complaint(now_unix_s)
    return environment.get_template(TEMPLATE).render(
        boards=overview.boards,
        jobs=overview.jobs,
        daemon=overview.daemon,
        complaint=complaint,
        state="draining" if overview.daemon.draining else "silent" if complaint else "running",
        counts=", ".join(f"{count} {name}" for name, count in overview.counts.items() if count) or "no jobs",
        now_unix_s=now_unix_s,
        numbers=NUMBERS,
    )


def exposition(overview: Overview) -> bytes:
    """All metrics of an overview as text."""
    registry = CollectorRegistry()
    if overview.daemon.started_unix_s is not None:
        started = Gauge("wattprint_daemon_start_time_seconds", "When the daemon started, since 1970.", registry=registry)
        started.set(overview.daemon.started_unix_s)
    jobs = Gauge("wattprint_jobs", "Jobs by state.", ["state"], registry=registry)
    for state, count in overview.counts.items():
        jobs.labels(state).set(count)
    running = {job.board: job for job in overview.jobs if job.state == RUNNING}
    for name, (text, value) in GAUGES.items():
        gauge = Gauge(f"wattprint_{name}", text, ["gpu", "name"], registry=registry)
        for board in overview.boards:
            if (figure := value(board, running.get(board.board))) is not None:
                gauge.labels(board.board, board.name).set(figure)
    return generate_latest(registry)
