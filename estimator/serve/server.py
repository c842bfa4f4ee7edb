"""The server of the page: a few fixed files and four questions, on one address, within limits.

It listens where it is told and nowhere else, and answers only to requests that name it by an address (or "localhost"), so that no
foreign page can reach it under a name that it had pointed here.  A connection serves one request, must deliver it in time, and
is one of a bounded number, in which the longest silent one gives way to a new one; at most two answers are computed at once.  Every
refusal is one JSON line.
"""

import ipaddress
import json
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BufferedReader
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from threading import BoundedSemaphore, Lock
from typing import Any, Final
from urllib.parse import parse_qs

from estimator.display.pages import STYLE
from estimator.errors import EstimatorError
from estimator.serve.answers import answer_document
from estimator.serve.catalogue import Catalogue
from estimator.serve.choices import choices_document, entry_document, workload_document
from estimator.serve.errors import RequestError
from estimator.serve.question import MOST_REQUEST_BYTES, parse_object, parse_question, parse_sizes, refuse_unknown
from estimator.serve.timed_reader import TimedReader
from estimator.serve.turning_away import busy_reply, turn_away

MOST_FILE_BYTES: Final = 2 << 20
"""A workload file of the page: forty times those of the published models."""

READ_S: Final = 10.0
"""Time within which a request must have come in, however slowly it drips [s]."""

WRITE_S: Final = 10.0
"""Time within which a browser must have taken an answer [s]."""

COMPUTE_WAIT_S: Final = 20.0
"""Time for which a request waits for its turn to be computed [s]."""

GIVE_WAY_S: Final = 10.0
"""Time within which a connection that gives way has ended [s]."""

COMPLAINT_S: Final = 1.0
"""Time within which refused connections are complained of once [s]."""

MOST_CONNECTIONS: Final = 32
MOST_COMPUTED: Final = 2
"""Requests that are read, and that are computed, at one time."""

MOST_DISCARDED_BYTES: Final = 32 << 20
"""Of a body that is too large, so much is read and thrown away, so that the browser gets to read the refusal."""

LONGEST_LINE: Final = 600
"""Characters of an error."""

Line = Callable[[str], None]
JSON_TYPE: Final = "application/json"
STATIC: Final = Path(__file__).resolve().parent / "static"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",
}
"""Headers of every answer: nothing from elsewhere is loaded, nothing elsewhere may embed or read the page."""


class PageServer(ThreadingMixIn, TCPServer):
    """A TCP server that hands each connection to a thread of its own, up to MOST_CONNECTIONS."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, catalogue: Catalogue, *, log: Line, complain: Line, read_s: float = READ_S) -> None:
        """log takes a line for each request, complain one for each that went wrong; read_s: time within which a request must be in [s].

        Raises OSError where it cannot listen.
        """
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.catalogue = catalogue
        self.log, self.complain, self.read_s = log, complain, read_s
        self.files = _static_files()
        self.turn = BoundedSemaphore(MOST_COMPUTED)
        self._room = BoundedSemaphore(MOST_CONNECTIONS)
        self._silent: dict[int, socket.socket] = {}
        self._silent_lock = Lock()
        self._complained = -COMPLAINT_S
        super().__init__((host, port), _Handler)

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return str(self.server_address[0])

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the page."""
        address = ipaddress.ip_address(self.host)
        if address.is_unspecified:
            address = ipaddress.ip_address("::1" if address.version == 6 else "127.0.0.1")
        return f"http://[{address}]:{self.port}/" if address.version == 6 else f"http://{address}:{self.port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to a thread; one too many takes the place of the longest silent one, or is refused where none is silent."""
        if not (self._room.acquire(blocking=False) or (self._end_longest_silent() and self._room.acquire(timeout=GIVE_WAY_S))):
            self._complain_of_refusals()
            turn_away(request, busy_reply(HEADERS, f"{MOST_CONNECTIONS} requests are being answered; try again"))
            self.shutdown_request(request)
            return
        with self._silent_lock:
            self._silent[id(request)] = request
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no further thread can be started
            self.heard(request)
            self._room.release()
            raise

    def heard(self, connection: socket.socket) -> None:
        """Whose request has come in gives way to nobody."""
        with self._silent_lock:
            self._silent.pop(id(connection), None)

    def _end_longest_silent(self) -> bool:
        """Whether there was a connection that had not delivered its request; its thread finds it ended."""
        with self._silent_lock:
            if not self._silent:
                return False
            connection = self._silent.pop(next(iter(self._silent)))
            with suppress(OSError):  # its other end may have gone
                connection.shutdown(socket.SHUT_RDWR)
        self.complain(f"more than {MOST_CONNECTIONS} connections at once: the longest silent one is closed")
        return True

    def _complain_of_refusals(self) -> None:
        """A line about refused connections, one for as many as come in a while."""
        now = time.monotonic()
        if now - self._complained > COMPLAINT_S:
            self.complain(f"more than {MOST_CONNECTIONS} requests at once: new ones are refused")
            self._complained = now

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.heard(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line about what went wrong; a browser that went away is no fault."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            self.complain(f"a request failed: {_one_line(f'{type(error).__name__}: {error}')}")


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # the base's 0.9 has no status and no headers to refuse with

    def setup(self) -> None:
        """A reader that gives up at the deadline, whatever has come in by then."""
        super().setup()
        self.rfile.close()
        self._reader = TimedReader(self.connection, time.monotonic() + self.server.read_s)
        self.rfile = BufferedReader(self._reader)
        # A request of which not even a line comes in is refused and logged too.
        self.requestline, self.command, self.request_version = "", "", self.default_request_version

    def handle(self) -> None:
        """The request; one that began and did not come in within its time is refused."""
        super().handle()
        if self._reader.late:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request did not come in within {self.server.read_s:g} s")

    def version_string(self) -> str:
        return "wattprint"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base's name
        self.server.log(_one_line(format % args))

    def do_GET(self) -> None:
        """The page's files, and what can be chosen."""
        path = self.path.partition("?")[0]
        if not self._may_ask():
            return
        if path in self.server.files:
            self._send(HTTPStatus.OK, *self.server.files[path])
        elif path == "/api/choices":
            self._answer(lambda: choices_document(self.server.catalogue, MOST_FILE_BYTES))
        elif path in ROUTES:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes POST", Allow="POST")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here; the page is at /")

    def do_HEAD(self) -> None:
        """The same without its content."""
        self.do_GET()

    def do_POST(self) -> None:
        """A question, or a workload file."""
        path, _, query = self.path.partition("?")
        if not self._may_ask():
            return
        if path not in ROUTES:
            known = path in self.server.files or path == "/api/choices"
            status = HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND
            self._refuse(
                status, f"there is nothing to post to here; known: {', '.join(ROUTES)}", **({"Allow": "GET, HEAD"} if known else {})
            )
            return
        limit, answer = ROUTES[path]
        body = self._body(limit)
        if body is not None:
            self._answer(lambda: answer(self.server.catalogue, body, query))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses by itself: a malformed request, and a method that no `do_…` serves."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "this method is not served; known: GET, HEAD, POST", Allow="GET, HEAD, POST")
            return
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def handle_expect_100(self) -> bool:
        """A client that waits to be asked for its body sends it unasked after a while; nothing is promised before it is looked at."""
        return True

    def _may_ask(self) -> bool:
        """Whether the request names this server and, unless it is for a fixed file, comes from its own page; refused otherwise."""
        host, origin = self.headers.get_all("Host") or [], self.headers.get("Origin")
        if len(host) != 1 or not names_this_server(host[0]):
            self._refuse(HTTPStatus.FORBIDDEN, f"this server answers at {self.server.url} and under no other name")
            return False
        foreign = (origin is not None and origin != f"http://{host[0]}") or self.headers.get("Sec-Fetch-Site") in (
            "cross-site",
            "same-site",
        )
        if foreign and self.path.partition("?")[0] not in self.server.files:  # a link elsewhere may lead to the page
            self._refuse(HTTPStatus.FORBIDDEN, "requests of other pages are not answered")
            return False
        return True

    def _body(self, limit: int) -> bytes | None:
        """The request's body; None where it was refused."""
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdecimal() and len(length) <= MOST_DIGITS):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a request must say its Content-Length")
            return None
        size = int(length)
        if size > limit:
            self._discard(size)
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{size} bytes are too many; at most {limit} are read")
            return None
        body = self.rfile.read(size)
        if self.headers.get_content_type() != JSON_TYPE:
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the content type must be {JSON_TYPE}")
            return None
        if len(body) < size:
            self._refuse(HTTPStatus.BAD_REQUEST, f"the request ends after {len(body)} of {size} bytes")
            return None
        return body

    def _discard(self, size: int) -> None:
        left = min(size, MOST_DISCARDED_BYTES)
        while left > 0:
            piece = self.rfile.read(min(left, 1 << 16))
            if not piece:
                return
            left -= len(piece)

    def _answer(self, document: Callable[[], Any]) -> None:
        """Compute, when it is this request's turn, and send."""
        self.server.heard(self.connection)
        if not self.server.turn.acquire(timeout=COMPUTE_WAIT_S):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once; try again")
            return
        try:
            status, content = _computed(document)
        finally:
            self.server.turn.release()
        self._send(status, JSON_TYPE, content)

    def _refuse(self, status: HTTPStatus, message: str, **headers: str) -> None:
        self._send(status, JSON_TYPE, _refusal(message), **headers)

    def _send(self, status: HTTPStatus, content_type: str, content: bytes, **headers: str) -> None:
        self.close_connection = True
        self.server.heard(self.connection)
        self.connection.settimeout(WRITE_S)
        self.send_response(status)
        charset = "; charset=utf-8" if content_type.startswith("text/") else ""
        for name, value in {**HEADERS, **headers, "Content-Type": content_type + charset, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


MOST_DIGITS: Final = 15
"""Digits of a length: more is no length."""


def names_this_server(host: str) -> bool:
    """Whether a Host header names a server by an IP address or as localhost, with any port: a tunnel may have its own.

    A page elsewhere can have any name of its own point here, but not an address: the browser states the name that it was given.
    """
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):
        name, port = host, "80"
    if not (port.isascii() and port.isdecimal()):
        return False
    if name.lower() == "localhost":
        return True
    bracketed = name.startswith("[") and name.endswith("]")
    try:
        return ipaddress.ip_address(name[1:-1] if bracketed else name).version == (6 if bracketed else 4)
    except ValueError:
        return False


def _computed(document: Callable[[], Any]) -> tuple[HTTPStatus, bytes]:
    """A document as JSON; what refuses it, as its status and an error line."""
    try:
        return HTTPStatus.OK, json.dumps(document(), allow_nan=False).encode()
    except RequestError as error:
        return error.status, _refusal(str(error))
    except EstimatorError as error:
        return HTTPStatus.UNPROCESSABLE_ENTITY, _refusal(str(error))
    except MemoryError:
        return HTTPStatus.SERVICE_UNAVAILABLE, _refusal("not enough memory for this request")


def _refusal(message: str) -> bytes:
    return json.dumps({"error": _one_line(message)}).encode() + b"\n"


def _answer_question(catalogue: Catalogue, body: bytes, _query: str) -> Any:
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


ROUTES: Final[dict[str, tuple[int, Callable[[Catalogue, bytes, str], Any]]]] = {
    "/api/answer": (MOST_REQUEST_BYTES, _answer_question),
    "/api/workload": (MOST_REQUEST_BYTES, _describe),
    "/api/load": (MOST_FILE_BYTES, _load),
}
"""What may be posted: the most bytes of a body, and what answers it."""


def _static_files() -> dict[str, tuple[str, bytes]]:
    """Content type and content by path, read once: no path of a request reaches the file system."""
    style = STYLE.encode() + (STATIC / "page.css").read_bytes()
    page, script = (STATIC / "index.html").read_bytes(), (STATIC / "page.js").read_bytes()
    return {"/": ("text/html", page), "/page.js": ("text/javascript", script), "/page.css": ("text/css", style)}


def _one_line(text: str) -> str:
    line = "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))
    return line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "…"
