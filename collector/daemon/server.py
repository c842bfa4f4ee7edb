"""The status page and the metrics over HTTP: reading only, on this machine unless it was allowed otherwise."""

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from collector.daemon import metrics, page
from collector.daemon.heartbeat import heartbeat_complaint
from collector.daemon.jobs import Overview
from collector.daemon.settings import ListenAddress
from collector.daemon.store import open_store
from collector.errors import DaemonError

REQUEST_S: Final = 5.0
"""Patience for a request to arrive, and for its answer to be taken [s]."""
MOST_REQUESTS: Final = 16
"""Requests at a time; more are turned away."""
SHOWN_JOBS: Final = 50
HOST: Final = re.compile(r"(?:\[(?P<six>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::\d+)?")


class StatusServer(ThreadingHTTPServer):
    """Answers GET and HEAD of `/`, `/metrics` and `/health`; made by `status_server`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, folder: Path, address: ListenAddress, any_host: bool) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.folder = folder
        self.any_host = any_host
        self._free = threading.BoundedSemaphore(MOST_REQUESTS)
        super().__init__((address.host, address.port), _Handler)

    @property
    def place(self) -> str:
        """Host and port, as they stand in a URL."""
        host, port = self.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, of which there are only so many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The life of such a thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that goes away in the middle is nobody's concern."""


class _Handler(BaseHTTPRequestHandler):
    server: StatusServer
    timeout = REQUEST_S
    server_version = "wattprint"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the overridden method
        """Requests are not logged."""

    def _answer(self, *, with_body: bool) -> None:
        status, kind, text = self._content()
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", page.POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _content(self) -> tuple[HTTPStatus, str, str]:
        plain = "text/plain; charset=utf-8"
        # A page of the web that has this address under a name of its own (DNS rebinding) is no local caller.
        if not self.server.any_host and not _local(self.headers.get("Host", "")):
            return HTTPStatus.FORBIDDEN, plain, "only local names of this machine are answered\n"
        path = self.path.partition("?")[0]
        if path not in ("/", "/metrics", "/health"):
            return HTTPStatus.NOT_FOUND, plain, "there are /, /metrics and /health\n"
        try:
            with open_store(self.server.folder) as store:
                found = store.overview(SHOWN_JOBS)
        except DaemonError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, plain, f"{error}\n"
        overview = replace(found, daemon=replace(found.daemon, running=True))  # this is a thread of it
        if path == "/metrics":
            return HTTPStatus.OK, metrics.CONTENT_TYPE, metrics.exposition(overview)
        if path == "/health":
            return _health(overview)
        return HTTPStatus.OK, page.CONTENT_TYPE, page.status_page(overview, time.time())


def _local(host: str) -> bool:
    """Whether a Host header names this machine by a name that nobody else can have given it."""
    parts = HOST.fullmatch(host.strip().lower())
    if not parts:
        return False
    try:
        return parts["name"] == "localhost" or ipaddress.ip_address(parts["six"] or parts["name"] or "").is_loopback
    except ValueError:
        return False


def _health(overview: Overview) -> tuple[HTTPStatus, str, str]:
    complaint = heartbeat_complaint(overview.daemon, time.time())
    if complaint:
        return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{complaint}\n"
    return HTTPStatus.OK, "text/plain; charset=utf-8", "ok\n"


@contextmanager
def status_server(folder: Path, address: ListenAddress | None, any_host: bool) -> Iterator[str]:
    """Serves the page within the block; the place where it is ("" without an address).

    `any_host` answers callers whatever name they know this machine by.  Raises DaemonError where the address cannot be had.
    """
    if address is None:
        yield ""
        return
    try:
        server = StatusServer(folder, address, any_host)
    except OSError as error:
        raise DaemonError(
            f"listen: {address.host} port {address.port} cannot be had ({error.strerror}); name another, or port 0"
        ) from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        yield server.place
    finally:
        server.shutdown()
        server.server_close()
        thread.join(REQUEST_S)
