"""A page server on a free port, and clients for it."""

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import pytest

from estimator.serve.catalogue import open_catalogue
from estimator.serve.server import READ_S, PageServer

BUNDLE = "a100-pcie-40gb-eager"
PATIENCE_S = 120.0
"""Only waited for where something never happens."""


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running server and what it had to complain about."""

    server: PageServer
    complaints: list[str] = field(default_factory=list)

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of an answer; header names with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE_S)
        try:
            given = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body=body, headers=given)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def ask(self, path: str, **body: Any) -> tuple[int, Any]:
        """Status and JSON document of a posted question."""
        status, _, content = self.request("POST", path, json.dumps(body).encode())
        return status, json.loads(content)

    def choices(self) -> Any:
        return json.loads(self.request("GET", "/api/choices")[2])

    def workload_key(self, name: str) -> str:
        return next(entry["key"] for entry in self.choices()["workloads"] if entry["name"].startswith(name))

    def bundle_key(self, name: str = BUNDLE) -> str:
        return next(bundle["key"] for bundle in self.choices()["bundles"] if bundle["name"].startswith(f"{name} "))

    def raw(self, content: bytes) -> bytes:
        """What comes back for these bytes, until the server ends the connection."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE_S) as connection:
            connection.sendall(content)
            answer = b""
            while piece := connection.recv(1 << 16):
                answer += piece
            return answer


@contextmanager
def running(read_s: float = READ_S, host: str = "127.0.0.1") -> Iterator[Served]:
    """A server with the shipped examples and bundles."""
    complaints: list[str] = []
    server = PageServer(host, 0, open_catalogue([], []), log=lambda line: None, complain=complaints.append, read_s=read_s)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Served(server=server, complaints=complaints)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with running() as server:
        yield server
