"""The clock helper's audit log: who changed what and when; append-only, on disk before anything is changed."""

import errno
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from collector.privileged.peers import Allowance, Client

COMPLAINTS_PER_S: Final = 1.0
COMPLAINTS_AT_ONCE: Final = 50.0
"""Refusals that are written down: a client that provokes them must not fill the disk.  Changes are always written."""


class AuditLog:
    """A JSON object a line.  The file is opened anew for each line, so that it may be moved away at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._torn = False
        self._complaints = Allowance(COMPLAINTS_PER_S, COMPLAINTS_AT_ONCE)
        self._unwritten = 0

    def write(self, event: str, client: Client | None = None, **facts: Any) -> None:
        """A line, on disk when this returns.  Raises OSError where it cannot be had there whole."""
        who = {} if client is None else {"pid": client.pid, "uid": client.uid, "user": client.user}
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = b"\n" * self._torn + json.dumps({"time": at, "event": event, **who, **facts}).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._torn = True
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, "the disk is full")
            os.fsync(descriptor)
            self._torn = False
        finally:
            os.close(descriptor)

    def note(self, event: str, client: Client | None = None, **facts: Any) -> None:
        """A line for what happens whether or not it can be written."""
        try:
            self.write(event, client, **facts)
        except OSError as error:
            with suppress(OSError):
                sys.stderr.write(f"clock helper: audit log cannot be written ({error.strerror}): {event} {facts}\n")

    def complain(self, client: Client, code: str) -> None:
        """A refusal; where there are too many, they are counted, and the next line tells how many."""
        if not self._complaints.take():
            self._unwritten += 1
            return
        unwritten, self._unwritten = self._unwritten, 0
        self.note("refused", client, error=code, **({"not_written_before": unwritten} if unwritten else {}))
