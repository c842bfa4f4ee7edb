"""The pages of `estimate serve`: three fixed files and five answers."""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from estimator.display.pages import STYLE
from estimator.display.text import known
from estimator.serve.answers import Question, ServedQuestion, answer_document, parse_request, served_document
from estimator.serve.catalogue import Catalogue
from estimator.serve.local_site import JSON_TYPE, Computed, Line, Reply, RequestError, local_site

MOST_REQUEST_BYTES: Final = 16 << 10
MOST_FILE_BYTES: Final = 2 << 20
"""Largest request and largest file of the page [byte]; a request has a few hundred bytes, a workload file a fortieth of this."""

STATIC: Final = Path(__file__).resolve().parent / "static"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""Headers that forbid content from other sites."""


@contextmanager
def page_server(port: int, catalogue: Catalogue, *, complain: Line) -> Iterator[str]:
    """Serve the page on this machine within the block; yields its address.  Arguments and errors are those of `local_site`."""

    def computed(document: Callable[[bytes, str], Any], most_bytes: int = 0) -> Computed:
        def answer(body: bytes, query: str) -> Reply:
            return Reply(content=json.dumps(known(document(body, query)), allow_nan=False).encode(), media_type=JSON_TYPE)

        return Computed(answer=answer, most_bytes=most_bytes)

    def describe(body: bytes, _query: str) -> Any:
        asked = parse_request(body, Question)
        return catalogue.described(asked.workload, asked.at)

    pages: dict[str, Reply | Computed] = {
        **_static_files(),
        "/api/choices": computed(lambda _body, _query: catalogue.choices(MOST_FILE_BYTES)),
        "/api/answer": computed(lambda body, _query: answer_document(parse_request(body, Question), catalogue), MOST_REQUEST_BYTES),
        "/api/served": computed(lambda body, _query: served_document(parse_request(body, ServedQuestion), catalogue), MOST_REQUEST_BYTES),
        "/api/workload": computed(describe, MOST_REQUEST_BYTES),
        "/api/load": computed(lambda body, query: catalogue.add(_file_name(query), body), MOST_FILE_BYTES),
    }
    with local_site("127.0.0.1", port, pages, token=secrets.token_urlsafe(), headers=HEADERS, complain=complain) as address:
        yield address


def _file_name(query: str) -> str:
    """The file name in a query of the form name=FILE."""
    try:
        return parse_qs(query, max_num_fields=1, errors="replace").get("name", [""])[0]
    except ValueError as error:
        raise RequestError("the query must read name=FILE") from error


def _static_files() -> dict[str, Reply]:
    """The fixed files by path, read once: no path of a request reaches the file system."""
    contents = {
        "/": ("text/html", (STATIC / "index.html").read_bytes()),
        "/page.js": ("text/javascript", (STATIC / "page.js").read_bytes()),
        "/page.css": ("text/css", STYLE.encode() + (STATIC / "page.css").read_bytes()),
    }
    return {path: Reply(content=content, media_type=f"{kind}; charset=utf-8") for path, (kind, content) in contents.items()}
