"""The clock helper's clients: their identity from the kernel, the request limit of each user, and the log of their actions."""

import json
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from collector.daemon.log_file import LogFile
from collector.devices.clock_helper import line_of

Reply = dict[str, Any]
"""A reply to a client, as JSON."""

REQUESTS_PER_S: Final = 20.0
REQUESTS_AT_ONCE: Final = 400.0
LOCK_COST: Final = 10.0
"""Cost of a lock in requests: the driver's work and its lines in the audit log."""

COMPLAINTS_PER_S: Final = 1.0
COMPLAINTS_AT_ONCE: Final = 50.0
"""Number of a user's refusals that are logged at once; further ones are counted.  Changes are always logged."""


class Allowance:
    """A rate limit: requests per second, and requests at once."""

    def __init__(self, per_s: float, at_once: float) -> None:
        self._per_s, self._at_once, self._left = per_s, at_once, at_once
        self._at_s = time.monotonic()

    def take(self, cost: float = 1.0) -> bool:
        """Takes this much of the allowance; False if less is left now."""
        now_s = time.monotonic()
        self._left, self._at_s = min(self._at_once, self._left + self._per_s * (now_s - self._at_s)), now_s
        if self._left < cost:
            return False
        self._left -= cost
        return True


@dataclass(slots=True, kw_only=True)
class User:
    """Remaining requests and log lines of a user, over all connections; `unwritten` refusals since the last one in the log."""

    uid: int
    name: str
    requests: Allowance = field(default_factory=lambda: Allowance(REQUESTS_PER_S, REQUESTS_AT_ONCE))
    complaints: Allowance = field(default_factory=lambda: Allowance(COMPLAINTS_PER_S, COMPLAINTS_AT_ONCE))
    unwritten: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Client:
    """A connection: its user, the bytes of its next request, the time of its last message [monotonic s]."""

    end: socket.socket
    pid: int
    user: User
    heard_s: float
    incoming: bytes = b""

    def send(self, content: Reply) -> bool:
        """Sends a reply; returns whether all of it was accepted, without waiting."""
        line = line_of(**content)
        try:
            return self.end.send(line) == len(line)
        except OSError:
            return False


class AuditLog:
    """The log of all changes: the time and a JSON object a line; a line that cannot be written goes to stderr."""

    def __init__(self, path: Path) -> None:
        self._log = LogFile(path)

    def write(self, event: str, client: Client | None = None, **facts: Any) -> None:
        """Writes a line."""
        who = {} if client is None else {"pid": client.pid, "uid": client.user.uid, "user": client.user.name}
        line = json.dumps({"event": event, **who, **facts})
        if not self._log.write(line):
            with suppress(OSError):
                sys.stderr.write(f"clock helper: the audit log cannot be written: {line}\n")

    def complain(self, client: Client, code: str) -> None:
        """Logs a refusal; a user's excess refusals are counted, and the next line gives their number."""
        user = client.user
        if not user.complaints.take():
            user.unwritten += 1
            return
        unwritten, user.unwritten = user.unwritten, 0
        self.write("refused", client, error=code, **({"not_written_before": unwritten} if unwritten else {}))
