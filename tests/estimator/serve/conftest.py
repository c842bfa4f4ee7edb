"""A page server on a free port, and clients for it."""

import http.client
import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from estimator.serve.catalogue import open_catalogue
from estimator.serve.server import page_server
from estimator.vocabulary.resources import resource_folder

OWN_GPU = str(resource_folder("gpus") / "l4.toml")
BUNDLE = "a100-pcie-40gb-eager"
PATIENCE_S = 120.0
"""Only waited for where something never happens."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """The address of a running server, and what it had to complain about."""

    url: str
    complaints: list[str] = field(default_factory=list)

    @property
    def address(self):
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    def fetch(self, method, target, body=None):
        """Status, headers and content of an answer, whose token the target holds or not."""
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        try:
            connection.request(method, target, body=body, headers={"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def request(self, method, path, body=None):
        """The same for a path below the token."""
        return self.fetch(method, urlsplit(self.url).path.rstrip("/") + path, body)

    def ask(self, path, **body):
        """Status and JSON document of a posted question."""
        status, _, content = self.request("POST", path, json.dumps(body).encode())
        return status, json.loads(content)

    def choices(self):
        return json.loads(self.request("GET", "/api/choices")[2])

    def workload_key(self, name):
        return next(entry["key"] for entry in self.choices()["workloads"] if entry["name"].startswith(name))

    def bundle_key(self):
        return next(bundle["key"] for bundle in self.choices()["bundles"] if bundle["name"].startswith(f"{BUNDLE} "))


@pytest.fixture(scope="session")
def served():
    """A server with the shipped examples and bundles."""
    complaints = []
    with page_server(0, open_catalogue([], [], [OWN_GPU]), complain=complaints.append) as url:
        yield Served(url=url, complaints=complaints)
