"""The pages of `estimate serve`: three fixed files and four answers."""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from estimator.display.pages import STYLE
from estimator.local_site import JSON_TYPE, Computed, Line, Reply, RequestError, local_site
from estimator.serve.answers import answer_document
from estimator.serve.catalogue import Catalogue
from estimator.serve.choices import choices_document, entry_document, workload_document
from estimator.serve.question import MOST_REQUEST_BYTES, parse_object, parse_question, parse_sizes, refuse_unknown

MOST_FILE_BYTES: Final = 2 << 20
"""A workload file of the page: forty times those of the published models."""

STATIC: Final = Path(__file__).resolve().parent / "static"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""Nothing from elsewhere is loaded."""

Document = Callable[[Catalogue, bytes, str], Any]


@contextmanager
def page_server(host: str, port: int, catalogue: Catalogue, *, log: Line, complain: Line) -> Iterator[str]:
    """Serves the page within the block; gives its address.  Arguments and errors are those of `local_site`."""

    def computed(document: Document, most_bytes: int = 0) -> Computed:
        def answer(body: bytes, query: str) -> Reply:
            return Reply(content=json.dumps(document(catalogue, body, query), allow_nan=False).encode(), media_type=JSON_TYPE)

        return Computed(answer=answer, most_bytes=most_bytes)

    pages: dict[str, Reply | Computed] = {
        **_static_files(),
        "/api/choices": computed(_choices),
        "/api/answer": computed(_answer, MOST_REQUEST_BYTES),
        "/api/workload": computed(_describe, MOST_REQUEST_BYTES),
        "/api/load": computed(_load, MOST_FILE_BYTES),
    }
    token = secrets.token_urlsafe()
    with local_site(host, port, pages, token=token, headers=HEADERS, log=log, complain=complain) as address:
        yield address


def _choices(catalogue: Catalogue, _body: bytes, _query: str) -> Any:
    return choices_document(catalogue, MOST_FILE_BYTES)


def _answer(catalogue: Catalogue, body: bytes, _query: str) -> Any:
    return answer_document(parse_question(body), catalogue)


def _describe(catalogue: Catalogue, body: bytes, _query: str) -> Any:
    given = parse_object(body)
    refuse_unknown(given, ("workload", "at"))
    key = given.get("workload")
    if not isinstance(key, str):
        raise RequestError("the field 'workload' is missing or no text")
    return workload_document(catalogue.workload(key), parse_sizes(given.get("at")))


def _load(catalogue: Catalogue, body: bytes, query: str) -> Any:
    try:
        names = parse_qs(query, max_num_fields=1, errors="replace").get("name", [""])
    except ValueError as error:
        raise RequestError("the query must read name=FILE") from error
    return entry_document(catalogue.add(names[0], body))


def _static_files() -> dict[str, Reply]:
    """The fixed files by path, read once: no path of a request reaches the file system."""
    contents = {
        "/": ("text/html", (STATIC / "index.html").read_bytes()),
        "/page.js": ("text/javascript", (STATIC / "page.js").read_bytes()),
        "/page.css": ("text/css", STYLE.encode() + (STATIC / "page.css").read_bytes()),
    }
    return {path: Reply(content=content, media_type=f"{kind}; charset=utf-8") for path, (kind, content) in contents.items()}
