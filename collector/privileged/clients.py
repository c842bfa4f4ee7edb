"""The clock helper's clients: who they are by the kernel's word, how much each user may ask, and what is written down of it."""

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
"""What a client is told, as JSON."""

REQUESTS_PER_S: Final = 20.0
REQUESTS_AT_ONCE: Final = 400.0
LOCK_COST: Final = 10.0
"""A lock, with the driver's work and its lines in the audit log, counts as so many requests."""

COMPLAINTS_PER_S: Final = 1.0
COMPLAINTS_AT_ONCE: Final = 50.0
"""Refusals of a user that are written down; the others are counted.  Changes are always written."""


class Allowance:
    """So many a second, and so many at once."""

    def __init__(self, per_s: float, at_once: float) -> None:
        self._per_s, self._at_once, self._left = per_s, at_once, at_once
        self._at_s = time.monotonic()

    def take(self, cost: float = 1.0) -> bool:
        """So much of it; False where that is not left now."""
        now_s = time.monotonic()
        self._left, self._at_s = min(self._at_once, self._left + self._per_s * (now_s - self._at_s)), now_s
        if self._left < cost:
            return False
        self._left -= cost
        return True


@dataclass(slots=True, kw_only=True)
class User:
    """What a user may still ask and have written down, over all connections; `unwritten` refusals since the last one in the log."""

    uid: int
    name: str
    requests: Allowance = field(default_factory=lambda: Allowance(REQUESTS_PER_S, REQUESTS_AT_ONCE))
    complaints: Allowance = field(default_factory=lambda: Allowance(COMPLAINTS_PER_S, COMPLAINTS_AT_ONCE))
    unwritten: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Client:
    """A connection: who made it, what has come of its next request, when it was heard [monotonic s]."""

    end: socket.socket
    pid: int
    user: User
    heard_s: float
    incoming: bytes = b""

    def send(self, content: Reply) -> bool:
        """Whether a reply was taken whole; nobody is waited for."""
        line = line_of(**content)
        try:
            return self.end.send(line) == len(line)
        except OSError:
            return False


class AuditLog:
    """Who changed what and when: the time and a JSON object a line; a line that the disk does not take goes to stderr."""

    def __init__(self, path: Path) -> None:
        self._log = LogFile(path)

    def write(self, event: str, client: Client | None = None, **facts: Any) -> None:
        """A line."""
        who = {} if client is None else {"pid": client.pid, "uid": client.user.uid, "user": client.user.name}
        line = json.dumps({"event": event, **who, **facts})
        if not self._log.write(line):
            with suppress(OSError):
                sys.stderr.write(f"clock helper: the audit log cannot be written: {line}\n")

    def complain(self, client: Client, code: str) -> None:
        """A refusal; where a user has too many, they are counted, and the next line tells how many."""
        user = client.user
        if not user.complaints.take():
            user.unwritten += 1
            return
        unwritten, user.unwritten = user.unwritten, 0
        self.write("refused", client, error=code, **({"not_written_before": unwritten} if unwritten else {}))
