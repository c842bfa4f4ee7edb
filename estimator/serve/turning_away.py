"""The reply to a connection for which there is no room: sent at once, without a thread and without reading its request."""

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final

RETRY_AFTER_S: Final = 1
MOST_DRAINED_BYTES: Final = 1 << 16


def busy_reply(headers: Mapping[str, str], message: str) -> bytes:
    """A whole answer with status 503 that says so in a JSON line."""
    status = HTTPStatus.SERVICE_UNAVAILABLE
    content = json.dumps({"error": message}).encode() + b"\n"
    own = {"Content-Type": "application/json", "Content-Length": str(len(content)), "Retry-After": str(RETRY_AFTER_S)}
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in {**headers, **own}.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


def turn_away(connection: socket.socket, reply: bytes) -> None:
    """Send a reply that fits an empty buffer, and take in what has come: closing over unread bytes would take the reply back."""
    with suppress(OSError):  # its other end may have gone
        connection.setblocking(False)
        connection.sendall(reply)
        connection.shutdown(socket.SHUT_WR)
        left = MOST_DRAINED_BYTES
        while left > 0 and (piece := connection.recv(left)):
            left -= len(piece)
