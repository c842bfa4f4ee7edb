"""The clock helper's socket and clients: their identity from the kernel, the request limit of each user, the log of their actions."""

import json
import os
import socket
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from collector.devices.clock_helper import line_of
from collector.errors import PrivilegedError

Reply = dict[str, Any]
"""A reply to a client, as JSON."""

REQUESTS_PER_S: Final = 20.0
REQUESTS_AT_ONCE: Final = 400.0
LOCK_COST: Final = 10.0
"""Cost of a lock in requests: the driver's work and its lines in the audit log."""
START: Final = "have it started by its socket unit: systemctl start wattprint-clocks.socket wattprint-clocks"


@dataclass(slots=True, kw_only=True, eq=False)
class User:
    """A user's name and remaining requests, over all connections."""

    uid: int
    name: str
    left: float = REQUESTS_AT_ONCE
    at_s: float = field(default_factory=time.monotonic)

    def may_ask(self, cost: float) -> bool:
        """Takes this much of the remaining requests; False if less is left now."""
        now_s = time.monotonic()
        self.left, self.at_s = min(REQUESTS_AT_ONCE, self.left + REQUESTS_PER_S * (now_s - self.at_s)), now_s
        if self.left < cost:
            return False
        self.left -= cost
        return True


@dataclass(slots=True, kw_only=True, eq=False)
class Client:
    """A connection: its user and the bytes of its next request."""

    end: socket.socket
    pid: int
    user: User
    incoming: bytes = b""

    def send(self, content: Reply) -> bool:
        """Sends a reply; returns whether all of it was accepted, without waiting."""
        line = line_of(**content)
        try:
            return self.end.send(line) == len(line)
        except OSError:
            return False


def audit(event: str, client: Client | None = None, **facts: Any) -> None:
    """Writes a change to the audit log, which is stderr: a JSON object a line, with the client as the kernel knows it."""
    who = {} if client is None else {"pid": client.pid, "uid": client.user.uid, "user": client.user.name}
    with suppress(OSError):
        sys.stderr.write(json.dumps({"event": event, **who, **facts}) + "\n")
        sys.stderr.flush()


def passed_socket(environment: Mapping[str, str], group: int) -> socket.socket:
    """The service manager's listening socket (sd_listen_fds(3)).  Raises PrivilegedError without one for this group alone."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        raise PrivilegedError(f"the clock helper gets its socket from systemd; {START}")
    try:
        listener = socket.socket(fileno=3)  # number of the first descriptor that a service manager passes
        alone = environment.get("LISTEN_FDS") == "1" and listener.family == socket.AF_UNIX and listener.type == socket.SOCK_STREAM
        listens = alone and bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        status = os.stat(listener.getsockname()) if listens else None
    except (OSError, TypeError) as error:
        raise PrivilegedError(f"the service manager handed over no socket ({error}); {START}") from error
    if status is None or status.st_mode & stat.S_IRWXO or status.st_gid != group:
        raise PrivilegedError("the service manager must hand over one listening Unix socket for the config's group alone")
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener
