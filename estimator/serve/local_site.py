"""A web site for one user: fixed files and computed answers, behind a token in the address.

The address is http://HOST:PORT/TOKEN/.  Every request without the token gets status 403: from other users of the machine, and from other
web pages, under any name of this address.  The event loop sends fixed files; a few threads compute answers, so that requests for answers
delay only each other.
"""

import asyncio
import ipaddress
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from threading import Thread
from typing import Any, Final

from estimator.options.command_line import one_line
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.values import frozen

MOST_COMPUTED: Final = 2
"""Most answers that are computed at the same time."""

JSON_TYPE: Final = "application/json"
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",
}
"""Headers of every answer: no other site can embed or read it, and no link reveals the token."""

Line = Callable[[str], object]
Message = dict[str, Any]


class RequestError(EstimatorError):
    """A request cannot be served; the message is one line and complete, `status` the HTTP status that goes with it."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


@frozen
class Reply:
    """Content of a response; as a page of a site, a fixed file."""

    content: bytes
    media_type: str
    status: HTTPStatus = HTTPStatus.OK


@frozen
class Computed:
    """A page that `answer` computes from a request's body and query, in a thread.

    most_bytes   largest posted body; 0: the page is fetched with GET
    """

    answer: Callable[[bytes, str], Reply]
    most_bytes: int = 0


@frozen
class Site:
    """Pages by path below the token, as an ASGI application.

    complain gets a line for each internal error.
    """

    pages: Mapping[str, Reply | Computed]
    token: str
    headers: Mapping[str, str]
    complain: Line
    pool: ThreadPoolExecutor

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]) -> None:
        """Answer one request."""
        token, slash, rest = scope["path"][1:].partition("/")
        try:
            if not secrets.compare_digest(token.encode(), self.token.encode()):
                raise RequestError("the address of this page holds a token; take the one that its program printed", HTTPStatus.FORBIDDEN)
            reply = await self._reply(scope, slash + rest, receive)
        except RequestError as error:
            content = json.dumps({"error": one_line(str(error))}).encode() + b"\n"
            reply = Reply(content=content, media_type=JSON_TYPE, status=error.status)
        own = {"Content-Type": reply.media_type, "Content-Length": str(len(reply.content))}
        headers = [(name.encode(), value.encode()) for name, value in {**HEADERS, **self.headers, **own}.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.content})

    async def _reply(self, scope: Message, path: str, receive: Callable[[], Awaitable[Message]]) -> Reply:
        """Raises RequestError."""
        page = self.pages.get(path)
        if page is None:
            raise RequestError("there is nothing here", HTTPStatus.NOT_FOUND)
        methods = ("POST",) if isinstance(page, Computed) and page.most_bytes else ("GET", "HEAD")
        if scope["method"] not in methods:
            raise RequestError(f"{path} takes {' and '.join(methods)}", HTTPStatus.METHOD_NOT_ALLOWED)
        if isinstance(page, Reply):
            return page
        body = await _body(receive, page.most_bytes)
        query = scope["query_string"].decode("latin-1")
        return await asyncio.get_running_loop().run_in_executor(self.pool, self._computed, page, body, query)

    def _computed(self, page: Computed, body: bytes, query: str) -> Reply:
        """Raises RequestError."""
        try:
            return page.answer(body, query)
        except RequestError:
            raise
        except EstimatorError as error:
            raise RequestError(str(error), HTTPStatus.UNPROCESSABLE_ENTITY) from error
        except Exception as error:
            self.complain(f"a request failed: {one_line(f'{type(error).__name__}: {error}')}")
            raise RequestError("this request failed", HTTPStatus.INTERNAL_SERVER_ERROR) from error


@contextmanager
def local_site(
    host: str, port: int, pages: Mapping[str, Reply | Computed], *, token: str, headers: Mapping[str, str], complain: Line
) -> Iterator[str]:
    """Serve pages within the block; yields the address, which contains the token.

    host is an IP address; port 0 is any free one.  Raises OSError if it cannot listen.
    """
    import uvicorn

    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    pool = ThreadPoolExecutor(MOST_COMPUTED)
    site = Site(pages=pages, token=token, headers=headers, complain=complain, pool=pool)
    config = uvicorn.Config(
        site,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    address = _address(listener)
    thread = Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://{address}/{token}/"
    finally:
        server.should_exit = True
        pool.shutdown(wait=False, cancel_futures=True)
        thread.join()
        listener.close()


async def _body(receive: Callable[[], Awaitable[Message]], most_bytes: int) -> bytes:
    """A request's body.  A body that is too large is read to its end, so that the browser receives the refusal."""
    body, more = b"", True
    while more:
        message = await receive()
        body = (body + message.get("body", b""))[: most_bytes + 1]
        more = message.get("more_body", False)
    if len(body) > most_bytes:
        raise RequestError(f"the request is too large; at most {most_bytes} bytes are read", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return body


def _address(listener: socket.socket) -> str:
    """Host and port at which a browser on this machine reaches a listener."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        address = ipaddress.ip_address("::1" if address.version == 6 else "127.0.0.1")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
