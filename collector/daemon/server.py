"""The daemon's status page and metrics over HTTP: reading only, behind a token in the address that is kept in the state folder."""

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

from collector.daemon.jobs import Overview
from collector.daemon.settings import ListenAddress
from collector.daemon.store import open_store
from collector.devices.errors import DaemonError
from estimator.serve.local_site import Computed, Line, Reply, local_site
from estimator.vocabulary.errors import EstimatorError

SHOWN_JOBS: Final = 50
TOKEN_NAME: Final = "page.token"
"""Holds the token, so that the address of the metrics survives a restart."""

PLAIN: Final = "text/plain; charset=utf-8"
POLICY: Final = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
STYLE: Final = Path(__file__).with_name("status.css")


@contextmanager
def status_site(folder: Path, address: ListenAddress | None, complain: Line) -> Iterator[str]:
    """Serves `/`, `/metrics` and `/health` within the block; gives the page's address, "" without one to listen at.

    Raises DaemonError where the address or the token cannot be had, and where a package of [serve] is missing.
    """
    if address is None:
        yield ""
        return
    try:
        from collector.daemon import metrics
        from collector.daemon.page import status_page
    except ImportError as error:
        raise DaemonError(f"listen: {error.name} is not installed; pip install 'wattprint[collect,serve]', or leave listen out") from error

    def page(overview: Overview) -> Reply:
        return Reply(content=status_page(overview, time.time()).encode("utf-8", "replace"), media_type="text/html; charset=utf-8")

    def figures(overview: Overview) -> Reply:
        return Reply(content=metrics.exposition(overview), media_type=metrics.CONTENT_TYPE)

    shown = {"/": page, "/metrics": figures, "/health": _health}
    pages: dict[str, Reply | Computed] = {path: Computed(answer=partial(_answer, folder, show)) for path, show in shown.items()}
    pages["/style.css"] = Reply(content=STYLE.read_bytes(), media_type="text/css")
    token, headers = _token(folder), {"Content-Security-Policy": POLICY}
    with ExitStack() as stack:
        try:
            site = local_site(address.host, address.port, pages, token=token, headers=headers, log=lambda _line: None, complain=complain)
            place = stack.enter_context(site)
        except OSError as error:
            raise DaemonError(
                f"listen: {address.host} port {address.port} cannot be had ({error.strerror}); name another, or port 0"
            ) from error
        except EstimatorError as error:
            raise DaemonError(f"listen: {error}, or leave listen out of the config") from error
        yield place


def _token(folder: Path) -> str:
    """The token of a state folder, made where there is none.  Raises DaemonError."""
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


def _answer(folder: Path, show: Callable[[Overview], Reply], _body: bytes, _query: str) -> Reply:
    try:
        with open_store(folder) as store:
            found = store.overview(SHOWN_JOBS)
    except DaemonError as error:
        return _plain(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    return show(replace(found, running=True))  # this is a thread of it


def _health(overview: Overview) -> Reply:
    complaint = overview.complaint(time.time())
    return _plain(HTTPStatus.SERVICE_UNAVAILABLE, complaint) if complaint else _plain(HTTPStatus.OK, "ok")


def _plain(status: HTTPStatus, text: str) -> Reply:
    return Reply(content=f"{text}\n".encode("utf-8", "replace"), media_type=PLAIN, status=status)
